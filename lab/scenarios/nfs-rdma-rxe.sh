# proves: NFS 3, 4.0, 4.1 and 4.2 over RDMA (rxe) and TCP, on tmpfs and ext4 exports: written and read by staged; the
#   mount's calls and the transport counted every byte, and `forebay check` names version, transport and sizes,
#   and what the server says: handles, ports, RDMA.
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
handles="nfs-handle: /mnt: the kernel gives handles of its files"
low="note +nfs-any-port: /mnt: the export takes calls from ports below 1024 only"
takes="ok +nfs-rdma-port: /mnt: the server takes connections over RDMA on port 20049"
nfs_check rdma 4.2 65536 131072 "$handles" "$low" "ok +nfs-rdma-port: /mnt: the server takes RDMA on port 20049: it is mounted so"
nfs_check tcp 3 131072 65536 "$handles" "$low" "$takes"
exported rw,insecure >/etc/exports
exportfs -ra
nfs_check tcp 4.0 131072 65536 "note +nfs-handle: /mnt: the kernel gives no handle of it \(version 4.0\)" "$takes" \
    "ok +nfs-any-port: /mnt: the export takes calls from any port \(insecure\)"
say "what check says without an RDMA device, by the portmapper's list"
quiet rpcinfo $address
grep -q "nfs" <<<"$said" || fail "rpcinfo: $said"
! grep -q "rdma" <<<"$said" || fail "Linux's server is listed for RDMA: $said"
rdma link delete lab0
nfs_check tcp 4.1 131072 65536 "$handles" \
    "note +nfs-rdma-port: /mnt: whether the server takes RDMA is not known: its portmapper lists no NFS over RDMA"
