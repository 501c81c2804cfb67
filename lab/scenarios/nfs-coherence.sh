# proves: what docs/concepts/nfs.md says of readers: files that this host's kernel has mounted, used by URL over TCP and RDMA (rxe):
#   a buffered writer, one by mmap, O_DIRECT, another client, truncate, rename, delegations, and bytes written by URL as the mount
#   sees them: old or new by the written rule, never a mix. A mounted file's server is found by what the kernel tells of the file:
#   by its handle, or by its path (version 4.0); not that of a mount of another network.
# kernel: debian
# memory: 1G
# qemu: -device virtio-net-pci,netdev=n0,romfile= -netdev user,id=n0,restrict=on
# needs: forebay nfs-loop
# timeout: 600
. /lab/guest/forebay.sh
. /lab/guest/rdma.sh
. /lab/guest/nfs.sh
. /lab/guest/direct.sh
# Nothing is written in the background meanwhile.
echo 6000 >/proc/sys/vm/dirty_writeback_centisecs
rdma_up rxe
modprobe veth 2>/dev/null || true
# Another host, as far as NFS is concerned: its own network, its own name.
ip netns add other
ip link add here type veth peer name there netns other
ip address add 10.8.0.1/24 dev here
ip link set here up
ip -n other address add 10.8.0.2/24 dev there
ip -n other link set there up
# The server gives out no delegation as long as old clients may come back: of NFS 4, and of NFS 3's locks.
modprobe -a nfsd nfs 2>/dev/null || true
echo 1 >/proc/sys/fs/nfs/nlm_grace_period
nfs_server
until grep -q Y /proc/fs/nfsd/v4_end_grace; do sleep 0.2; done
mkdir /other
for case in tcp-3 tcp-4.0 tcp-4.1 tcp-4.2 rdma-3 rdma-4.1; do
    version=${case#*-} path=/tmp
    case $version in 3) path=/export/tmp ;; esac
    say "NFS $version: mounted over TCP, by URL over ${case%-*}"
    nfs_mount tcp "$version" tmp
    # The mount is made in the other network, and moved here.
    nsenter --net=/run/netns/other unshare --uts sh -c "hostname other && mount -t nfs \
        -o proto=tcp,vers=$version$([ "$version" != 3 ] || echo ,nolock,mountproto=tcp) 10.8.0.1:$path /other"
    by_mount "${case%-*}" "$version"
    python3 /lab/guest/coherence.py "${case%-*}" "$version" $address
    umount /mnt /other
    rm -f /export/tmp/*
done
