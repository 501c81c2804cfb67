# proves: `forebay doctor` finds nothing in a healthy guest with an NFS mount over RDMA (rxe); a missing port, a wrong version, TCP
#   instead of RDMA, a link that is down, a mount that is missing and what a reboot would take are found with their evidence,
#   and each fix is typed as it is printed.
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
card=$(cat /sys/class/infiniband/lab0/parent)

say "a server that does not listen on RDMA"
nfs_server tcp-only
doctor
found nfs-server-port slower "/proc/fs/nfsd/portlist: "
if timeout 20 mount -t nfs -o vers=4.0,proto=rdma,port=20049 "$address:/tmp" /mnt; then fail "it listens on RDMA already"; fi
type_fix nfs-server-port
gone nfs-server-port

say "an export on a drive"
doctor
found export-not-tmpfs note "/export/disk"

say "a healthy guest"
mount_for_good
cp /tmp/source /mnt/source
cat /mnt/source >/dev/null
dmesg -C
healthy
healthy /mnt

say "a wrong version"
umount /mnt
nfs_mount rdma 4.2 tmp
doctor /mnt
found nfs-version note "vers=4.2"
type_fix nfs-version
gone nfs-version /mnt
grep ' /mnt nfs' /proc/mounts | grep -q vers=4.0,.*proto=rdma || fail "$(grep ' /mnt ' /proc/mounts)"

say "TCP instead of RDMA"
umount /mnt
nfs_mount tcp 4.2 tmp
doctor /mnt
found nfs-not-rdma slower "proto=tcp"
type_fix nfs-not-rdma
gone nfs-not-rdma /mnt
grep ' /mnt nfs' /proc/mounts | grep -q vers=4.0,.*proto=rdma || fail "$(grep ' /mnt ' /proc/mounts)"

say "read-ahead smaller than a READ"
for file in /sys/class/bdi/0:*/read_ahead_kb; do echo 16 >"$file"; done
doctor /mnt
found nfs-read-ahead note "read_ahead_kb: 16"
type_fix nfs-read-ahead
gone nfs-read-ahead /mnt
healthy /mnt

say "what a reboot would take"
rm /etc/fstab /etc/modules-load.d/rdma.conf
doctor
found mount-by-hand note "no line for /mnt"
# rdma-core's own list has xprtrdma; the soft device's module is in none.
found boot-modules note "no rdma_rxe"
type_fix mount-by-hand
type_fix boot-modules
healthy

say "a mount that is missing"
umount /mnt
doctor
found mount-missing blocks "/proc/self/mountinfo: no NFS at /mnt"
type_fix mount-missing
gone mount-missing
for file in /sys/class/bdi/0:*/read_ahead_kb; do echo 16384 >"$file"; done
healthy

say "io_uring switched off"
echo 2 >/proc/sys/kernel/io_uring_disabled
doctor
found io-uring slower "/proc/sys/kernel/io_uring_disabled: 2"
type_fix io-uring
gone io-uring

say "a link that is down"
umount /mnt
ip link set "$card" down
doctor
found rdma-link-down blocks "ports/1/state: 1: DOWN"
type_fix rdma-link-down
for _ in $(seq 50); do
    ! rdma link show lab0/1 | grep -q "state ACTIVE" || break
    sleep 0.1
done
gone rdma-link-down
