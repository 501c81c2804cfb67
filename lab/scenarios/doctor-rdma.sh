# proves: `forebay doctor` finds reads through the page cache alone, calls that wait for a slot, bytes that no RDMA port counted, and a
#   mount over RDMA without a device, and each fix is typed as it is printed.
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
rdma_up rxe
card=$(cat /sys/class/infiniband/lab0/parent)
nfs_server
mount_for_good
head -c 80M /dev/urandom >/export/tmp/big
healthy /mnt

say "reads through the page cache alone"
# Less read-ahead, so that they do not wait for each other.
for file in /sys/class/bdi/0:*/read_ahead_kb; do echo 256 >"$file"; done
cat /mnt/big >/dev/null
doctor /mnt
found nfs-buffered note "direct 0"
type_fix nfs-buffered "s|FILE|big|"
gone nfs-buffered /mnt

say "bytes that no port counted"
# The link is another one than the bytes came by.
rdma link delete lab0
rdma link add lab0 type rxe netdev "$card"
doctor /mnt
found rdma-no-traffic slower "bytes of READ and WRITE"
# Its fix: what the ports count before a read and after it.
counts="s|^compare before and after a read: ||"
type_fix rdma-no-traffic "$counts"
mv /tmp/fix.txt /tmp/before.txt
timeout 60 dd if=/mnt/big of=/dev/null bs=1M iflag=direct status=none
type_fix rdma-no-traffic "$counts"
sent() { sed -n 's/.* sent_pkts \([0-9]*\).*/\1/p' "$1"; }
[ "$(sent /tmp/fix.txt)" -gt $(($(sent /tmp/before.txt) + 1000)) ] || fail "$(cat /tmp/before.txt /tmp/fix.txt)"
gone rdma-no-traffic /mnt

say "calls that wait for a slot"
umount /mnt
# Four of them, and forty readers.
echo 4 >/proc/sys/sunrpc/rdma_slot_table_entries
nfs_mount rdma 4.0 tmp
for file in /sys/class/bdi/0:*/read_ahead_kb; do echo 16384 >"$file"; done
crowd() {
    local at pids=()
    for at in $(seq 40); do
        dd if=/mnt/big of=/dev/null bs=64K count=8 skip=$((at * 8)) iflag=direct status=none &
        pids+=($!)
    done
    wait "${pids[@]}"
}
crowd
doctor /mnt
found nfs-client-queue slower "queue"
type_fix nfs-client-queue
for file in /sys/class/bdi/0:*/read_ahead_kb; do echo 16384 >"$file"; done
crowd
gone nfs-client-queue /mnt

say "no device"
umount /mnt
rdma link delete lab0
doctor
found rdma-no-device blocks "/sys/class/infiniband/*"
type_fix rdma-no-device "s|INTERFACE|$card|"
gone rdma-no-device
