# proves: Linux's NFS server is stopped and started while forebay's own client copies, reads and writes by URL, over TCP and RDMA
#   (rxe): all goes on with the right bytes, after the time of grace; an export that becomes read-only, one that is taken away, a
#   file that is removed and a server that stays away end with the right error, in time.
# kernel: debian
# memory: 1G
# qemu: -device virtio-net-pci,netdev=n0,romfile= -netdev user,id=n0,restrict=on
# needs: forebay nfs-loop
# timeout: 600
. /lab/guest/forebay.sh
. /lab/guest/rdma.sh
. /lab/guest/nfs.sh
. /lab/guest/direct.sh
. /lab/guest/restart.sh
pattern /tmp/source 3000001 restart
rdma_up rxe
nfs_server
mkdir /tmp/copies
# all KIND COPIES FAILS AWAY VERSION …: the versions of each part.
all() {
    local kind=$1 copies=$2 fails=$3 away=$4 version
    shift 4
    for version in "$@"; do
        say "NFS $version over $kind: a restart"
        restarted "$kind" "$version"
    done
    say "NFS $copies over $kind: a restart while forebay copies"
    copy_restarted "$kind" "$copies"
    say "NFS $fails over $kind: read-only, taken away, removed"
    made_read_only "$kind" "$fails"
    taken_away "$kind" "$fails"
    removed "$kind" "$fails"
    say "NFS $away over $kind: a server that stays away"
    stays_away "$kind" "$away"
}
all tcp 4.2 3 4.1 3 4.1
all rdma 3 4.2 3 3 4.0 4.1
