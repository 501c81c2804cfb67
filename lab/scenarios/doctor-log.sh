# proves: `forebay doctor` reads in the kernel's own log that an NFS server does not respond (its threads are stopped), and that it
#   came back; finds an RDMA port without an address, and an NVMe drive with a scheduler; each fix is typed as it is printed.
# kernel: debian
# memory: 1G
# drives: disk=256M nvme=128M
# qemu: -device virtio-blk-pci,drive=disk,serial=disk
# qemu: -device nvme,drive=nvme,serial=nvme
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
nfs_server
mount_for_good
cp /tmp/source /mnt/source
healthy

say "an NVMe drive with a scheduler"
modprobe nvme
for _ in $(seq 50); do
    [ ! -b /dev/nvme0n1 ] || break
    sleep 0.1
done
drive=$(drive nvme)
name=${drive#/dev/}
mkdir /data
mkfs.ext4 -q -F "$drive"
mount "$drive" /data
modprobe -a mq-deadline bfq 2>/dev/null || true
echo mq-deadline >"/sys/block/$name/queue/scheduler" || fail "$(cat "/sys/block/$name/queue/scheduler")"
doctor /data
found scheduler note "[mq-deadline]"
type_fix scheduler
gone scheduler /data
echo 0 >"/sys/block/$name/queue/read_ahead_kb"
doctor /data
found read-ahead note "read_ahead_kb: 0"
type_fix read-ahead
gone read-ahead /data
healthy /data

say "a server that does not respond"
umount /mnt
nfs_mount tcp 3 tmp "timeo=10,retrans=2"
rpc.nfsd 0
for _ in $(seq 3); do timeout 15 cat /mnt/source >/dev/null 2>&1 & done
for _ in $(seq 40); do
    ! dmesg | grep -q "not responding" || break
    sleep 1
done
dmesg | grep -E "nfs: server" | tail -n 2
doctor
found nfs-not-responding blocks "not responding"
# The mount itself does not answer, and is looked at all the same.
SECONDS=0
doctor /mnt
found nfs-not-responding blocks "not responding"
found nfs-not-rdma slower "proto=tcp"
[ $SECONDS -lt 60 ] || fail "it took $SECONDS seconds"
dmesg >/tmp/log.txt
forebay doctor --log /tmp/log.txt >/tmp/by-file.txt || true
grep -q "nfs-not-responding" /tmp/by-file.txt || fail "not in the log as a file: $(cat /tmp/by-file.txt)"

# Its fix asks whether the machine is there, and then whether its NFS server is.
ln -s /bin/busybox /usr/local/bin/ping
type_fix nfs-not-responding 's|^is it up: ping \([^;]*\);.*|ping -c 1 \1|'
serves=$(ask nfs-not-responding fix | sed -n 's/.*; \(rpcinfo -t [^;]*\);.*/\1/p')
must_fail timeout 60 bash -c "$serves"

# "OK" is said of a call that was said not to be answered.
before=$(dmesg | grep -c "not responding")
cat /mnt/source >/dev/null 2>&1 &
for _ in $(seq 60); do
    [ "$(dmesg | grep -c "not responding")" -eq "$before" ] || break
    sleep 1
done
rpc.nfsd 4
# A client that failed for long waits long before it connects again.
for _ in $(seq 200); do
    ! dmesg | grep -q "nfs: server .* OK" || break
    sleep 1
done
type_fix nfs-not-responding 's|.*; \(rpcinfo -t [^;]*\);.*|\1|'
doctor
found nfs-not-responding note "not responding"
umount -f /mnt || umount -l /mnt
dmesg -C

say "a port without an address"
ip address flush dev "$card"
sleep 1
doctor
echo "  without an address: $(ids)"
found rdma-gid blocks "ports/1/gids: "
type_fix rdma-gid "s|ADDRESS/24|$address/24|;s|^give the interface an address: ||"
for _ in $(seq 50); do
    doctor
    [ -n "$(ask rdma-gid text)" ] || break
    sleep 0.2
done
gone rdma-gid
