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
for kind in tcp rdma; do
    for version in 3 4.0 4.1; do
        say "NFS $version over $kind: a restart"
        restarted $kind $version
    done
    say "a restart while forebay copies"
    copy_restarted $kind 4.2
    copy_restarted $kind 3
    for version in 3 4.2; do
        say "NFS $version over $kind: read-only, taken away, removed"
        made_read_only $kind $version
        taken_away $kind $version
        removed $kind $version
    done
    say "a server that stays away"
    stays_away $kind 4.1
    stays_away $kind 3
done
