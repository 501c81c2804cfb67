# proves: NFS 3, 4.0, 4.1 and 4.2 over RDMA (rxe) and TCP, on tmpfs and ext4 exports: written and read by staged, and
#   the mount's own counters show that every byte went over the wire.
# kernel: debian
# memory: 1G
# drives: disk=256M
# qemu: -device virtio-blk-pci,drive=disk,serial=disk
# qemu: -device virtio-net-pci,netdev=n0,romfile= -netdev user,id=n0,restrict=on
# needs: forebay fake-cuda
# timeout: 400
. /lab/guest/forebay.sh
. /lab/guest/rdma.sh
. /lab/guest/nfs.sh
size=3000001
pattern /tmp/source $size nfs
rdma_up rxe
nfs_server
for version in 3 4.0 4.1 4.2; do
    say "NFS $version over RDMA"
    nfs_case rdma $version tmp
done
nfs_case rdma 4.2 disk
say "NFS over TCP"
nfs_case tcp 3 tmp
nfs_case tcp 4.2 disk

say "what check says of such a mount"
nfs_mount rdma 4.2 tmp
gpu forebay check /mnt >/tmp/check.txt 2>&1 || true
grep -i -E 'nfs|rdma' /tmp/check.txt || fail "check says nothing of NFS"
