# proves: NFS 3, 4.0, 4.1 and 4.2 over RDMA (rxe) and TCP, on tmpfs and ext4 exports: written and read by staged; the
#   mount's calls and the transport counted every byte, and `forebay check` names version, transport and sizes.
# kernel: debian
# memory: 1G
# drives: disk=256M
# qemu: -device virtio-blk-pci,drive=disk,serial=disk
# qemu: -device virtio-net-pci,netdev=n0,romfile= -netdev user,id=n0,restrict=on
# needs: forebay fake-cuda
# timeout: 600
. /lab/guest/forebay.sh
. /lab/guest/rdma.sh
. /lab/guest/nfs.sh
size=3000001
pattern /tmp/source $size nfs
rdma_up rxe
nfs_server
for proto in rdma tcp; do
    for version in 3 4.0 4.1 4.2; do
        say "NFS $version over $proto"
        nfs_case $proto $version tmp
    done
    say "an export on ext4"
    nfs_case $proto 4.2 disk
done

say "what check says of such mounts"
nfs_check rdma 4.2 65536 131072
nfs_check tcp 3 131072 65536
