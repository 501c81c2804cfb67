# proves: forebay's own client and Linux's NFS server over soft RoCE (rxe), versions 3, 4.0, 4.1 and 4.2, by URL: the server puts
#   bytes into the client's memory and fetches them from there, at odd offsets, lengths and addresses between guard bytes, on
#   tmpfs and ext4; both sides' RDMA counters have them, TCP has not. As root, and without privilege with 8 MiB of locked memory.
# kernel: debian
# memory: 1G
# drives: disk=256M
# qemu: -device virtio-blk-pci,drive=disk,serial=disk
# qemu: -device virtio-net-pci,netdev=n0,romfile= -netdev user,id=n0,restrict=on
# needs: forebay fake-cuda nfs-loop
# timeout: 600
. /lab/guest/forebay.sh
. /lab/guest/rdma.sh
. /lab/guest/nfs.sh
. /lab/guest/direct.sh
direct_all rxe
say "an export on ext4, from its page cache and past it"
cp /tmp/source /export/disk/source
drop_caches
moved rxe read $size nfs_loop rdma ranges "nfs://$address/disk/source?version=4.2" /tmp/source
moved rxe read $size nfs_loop rdma ranges "nfs://$address/export/disk/source?version=3" /tmp/source
