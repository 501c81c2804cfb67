# proves: `forebay doctor` finds a line of fstab without port=20049, a unit that does not wait for the network, and READs of 32 KiB, and
#   each fix is typed as it is printed.
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
. /lab/guest/doctor.sh
pattern /tmp/source 3000001 nfs
rdma_up rxe
nfs_server
mount_for_good
cp /tmp/source /mnt/source
healthy

say "fstab without a port"
sed -i s/,port=20049// /etc/fstab
doctor
found nfs-port note "/etc/fstab:1: $address:/tmp /mnt nfs vers=4.0,proto=rdma,_netdev"
type_fix nfs-port
gone nfs-port
grep -q "proto=rdma,port=20049,_netdev" /etc/fstab || fail "$(cat /etc/fstab)"

say "a unit that does not wait for the network"
rm /etc/fstab
mkdir -p /etc/systemd/system/remote-fs.target.wants
printf '%s\n' "[Unit]" "Description=data" "DefaultDependencies=no" "[Mount]" "What=$address:/tmp" "Where=/mnt" "Type=nfs" \
    "Options=vers=4.0,proto=rdma,port=20049" >/etc/systemd/system/mnt.mount
ln -s ../mnt.mount /etc/systemd/system/remote-fs.target.wants/mnt.mount
doctor
found unit-network note "/etc/systemd/system/mnt.mount:3: DefaultDependencies=no"
type_fix unit-network
gone unit-network
healthy

say "small READs"
umount /mnt
nfs_mount rdma 4.0 tmp "rsize=16384,wsize=16384"
for file in /sys/class/bdi/0:*/read_ahead_kb; do echo 16384 >"$file"; done
doctor /mnt
found nfs-small-reads slower "rsize=16384"
type_fix nfs-small-reads
gone nfs-small-reads /mnt
