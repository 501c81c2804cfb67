# proves: the same as nfs-direct-rxe over soft iWARP (siw), which Debian's kernels have not.
# kernel: p2p
# memory: 1G
# append: nfs.localio_enabled=0
# qemu: -device virtio-net-pci,netdev=n0,romfile= -netdev user,id=n0,restrict=on
# needs: forebay fake-cuda nfs-loop
# timeout: 600
. /lab/guest/forebay.sh
. /lab/guest/rdma.sh
. /lab/guest/nfs.sh
. /lab/guest/direct.sh
direct_all siw
