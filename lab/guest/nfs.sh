# shellcheck shell=bash
# An NFS server of this guest's own, and mounts of it that go through the network card or RDMA.

# nfs_server: exports /export/tmp (tmpfs) and /export/disk (ext4 on drive disk).
nfs_server() {
    modprobe -a nfsd nfs nfsv3 nfsv4 rpcrdma 2>/dev/null || true
    # An NFSv4 root cannot be an overlay: a tmpfs with the exports mounted in it.
    mkdir -p /export
    mount -t tmpfs tmpfs /export
    mkdir /export/tmp /export/disk
    mount -t tmpfs tmpfs /export/tmp
    make_fs ext4 "$(drive disk)" /export/disk
    printf '%s\n' "/export *(rw,no_root_squash,no_subtree_check,fsid=0)" \
        "/export/tmp *(rw,no_root_squash,no_subtree_check,fsid=1)" \
        "/export/disk *(rw,no_root_squash,no_subtree_check,fsid=2)" >/etc/exports
    mount -t nfsd nfsd /proc/fs/nfsd
    mkdir -p /var/lib/nfs/rpc_pipefs /run/rpcbind
    rpcbind -w
    rpc.statd
    exportfs -ra
    echo 10 >/proc/fs/nfsd/nfsv4leasetime
    echo 10 >/proc/fs/nfsd/nfsv4gracetime
    rpc.nfsd 4
    rpc.mountd
    echo "rdma 20049" >/proc/fs/nfsd/portlist 2>/dev/null || true
}

# nfs_mount PROTO VERSION EXPORT: mounts it on /mnt.
nfs_mount() {
    local options="proto=$1,vers=$2" path="/$3"
    [ "$1" = tcp ] || options+=",port=20049"
    case $2 in 3) options+=",nolock,mountproto=tcp" path="/export/$3" ;; esac
    timeout 60 mount -t nfs -o "$options" "$address:$path" /mnt || fail "mount -o $options $address:$path"
}

# nfs_bytes read|write: payload bytes that READ or WRITE calls of the mount on /mnt carried: not what the page cache or a
# short cut past the network gave.
nfs_bytes() {
    awk -v want="$1" '
        $1 == "device" { here = ($5 == "/mnt") }
        here && $1 ~ /^READ(_PLUS)?:$/ && want == "read" { bytes += $6 }
        here && $1 == "WRITE:" && want == "write" { bytes += $5 }
        END { print bytes + 0 }' /proc/self/mountstats
}

# nfs_case PROTO VERSION EXPORT: forebay writes and reads there by `staged`; the wire carried every byte.
nfs_case() {
    local file=/mnt/file-$1-$2 before after
    nfs_mount "$@"
    before=$(nfs_bytes write)
    copied_by staged /tmp/source "$file"
    after=$(nfs_bytes write)
    [ $((after - before)) -ge "$size" ] || fail "$* wrote only $((after - before)) bytes over the network"
    before=$(nfs_bytes read)
    read_cold staged "$file"
    after=$(nfs_bytes read)
    [ $((after - before)) -ge "$size" ] || fail "$* read only $((after - before)) bytes over the network"
    same /tmp/source "/export/$3/file-$1-$2"
    grep -A 20 ' mounted on /mnt ' /proc/self/mountstats | grep -q "xprt:.*$1" || fail "$* does not use $1"
    echo "  $*: $((after - before)) bytes of read calls"
    rm "$file"
    umount /mnt
}
