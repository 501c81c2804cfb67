# proves: `forebay doctor` finds an NFS server that is slow (its disk is), calls that were sent again (the server was stopped under
#   them), and why mounts failed (version, option, export), and each fix is typed as it is printed.
# kernel: debian
# memory: 1G
# drives: slow=128M
# qemu: -device virtio-blk-pci,drive=slow,serial=slow
# qemu: -device virtio-net-pci,netdev=n0,romfile= -netdev user,id=n0,restrict=on
# needs: forebay fake-cuda
# timeout: 600
. /lab/guest/forebay.sh
. /lab/guest/rdma.sh
. /lab/guest/nfs.sh
. /lab/guest/doctor.sh
. /lab/guest/restart.sh
rdma_up rxe
nfs_server

# Direct reads one after the other, of a page each: what the emulated CPU does for them is little.
read_file() { timeout 120 dd if="/mnt/$1" of=/dev/null bs=4K count=150 iflag=direct status=none; }

say "a slow disk of the server"
modprobe -a dm_mod dm_delay
head -c 16M /dev/urandom >/tmp/bytes
make_fs ext4 "$(drive slow)" /export/disk
cp /tmp/bytes /export/disk/file
umount /export/disk
sectors=$(blockdev --getsz "$(drive slow)")
dmsetup create slow --table "0 $sectors delay $(drive slow) 0 25"
echo 0 >/sys/block/dm-0/queue/read_ahead_kb
mount -o ro /dev/mapper/slow /export/disk
exportfs -o rw,no_root_squash,fsid=2 '*:/export/disk'
nfs_mount rdma 4.0 disk
read_file file
doctor /mnt
found nfs-server-slow slower "READ: "
# What it says of disks is to be typed on the server, which this is; and then leaves them out.
ask nfs-server-slow fix >/tmp/fix
echo "  typed: cat /proc/fs/nfsd/pool_stats; rpc.nfsd 64"
quiet bash -c "$(sed -n 's/.* \(cat \/proc\/fs\/nfsd\/pool_stats\).*/\1/p' /tmp/fix)"
quiet bash -c "$(sed -n 's/.*its threads: \(sudo rpc.nfsd [0-9]*\)).*/\1/p' /tmp/fix)"
[ "$(cat /proc/fs/nfsd/threads)" = 64 ] || fail "$(cat /proc/fs/nfsd/threads) threads"
mkdir /export/ram
type_fix nfs-server-slow 's|.*export a tmpfs: ||;s|fsid=1|fsid=7|'
cp /tmp/bytes /export/ram/file
umount /mnt
nfs_mount rdma 4.0 ram
read_file file
gone nfs-server-slow /mnt

say "calls that are sent again"
umount /mnt
nfs_mount tcp 3 tmp
cp /tmp/bytes /export/tmp/file
read_file file
doctor /mnt
[ -z "$(ask nfs-sent-again text)" ] || fail "sent again without a reason: $(ask nfs-sent-again text)"
# Answers that take three seconds, and a server that is stopped as soon as all have asked. They are open before: to open asks, too.
asked() { sed -n 's/^rpc \([0-9]*\) .*/\1/p' /proc/net/rpc/nfs; }
have_asked() { [ "$(asked)" -ge $((before + 8)) ]; }
for at in $(seq 8); do exec {files[at]}</mnt/file; done
tc qdisc add dev lo root netem delay 1500ms
before=$(asked)
for at in $(seq 8); do
    dd of=/dev/null bs=64K count=2 skip=$((at * 8)) iflag=direct status=none <&"${files[at]}" &
    readers[at]=$!
done
wait_for 20 have_asked || fail "$(($(asked) - before)) calls of 8"
rpc.nfsd 0
tc qdisc del dev lo root
rpc.nfsd 64
for at in $(seq 8); do wait "${readers[at]}" || fail "a reader failed"; done
for at in $(seq 8); do exec {files[at]}<&-; done
doctor /mnt
found nfs-sent-again slower "sent"
ask nfs-sent-again fix
umount /mnt
nfs_mount tcp 3 tmp
read_file file
gone nfs-sent-again /mnt
umount /mnt

say "a version that the server does not do"
# Where no journal runs, as here, what mount says is written to the kernel's log by whoever starts it.
try_mount() { ! timeout 60 mount -t nfs "$@" 2>/tmp/said || fail "mounted: $*"; sed 's/^/mount[1]: /' /tmp/said | tee /dev/kmsg; }
dmesg -C
rpc.nfsd 0
rpc.nfsd -N 4.2 4
echo "rdma 20049" >/proc/fs/nfsd/portlist
try_mount -o vers=4.2,proto=rdma,port=20049 "$address:/tmp" /mnt
doctor
found nfs-mount-failed slower "mount.nfs: "
type_fix nfs-mount-failed "s|^ask for 4.0, else 3: ||;s| (vers=3.*||;s|SERVER:/EXPORT POINT|$address:/tmp /mnt|"
doctor
found nfs-mount-failed note "mount.nfs: "
umount /mnt

say "an option that is none"
dmesg -C
try_mount -o vers=4.0,proto=rdma,port=20049,rzise=65536 "$address:/tmp" /mnt
doctor
found nfs-mount-failed slower "an incorrect mount option"
echo "$address:/tmp /mnt nfs vers=4.0,proto=rdma,port=20049,rzise=65536,_netdev,noauto 0 0" >/etc/fstab
fix=$(ask nfs-mount-failed fix | sed -n 's/^options passed: \(sudo mount -v\) POINT; .*/\1 \/mnt/p')
echo "  typed: $fix"
must_fail bash -c "$fix"
grep -q "rzise=65536" <<<"$said" || fail "it does not show the option: $said"
sed -i s/rzise/rsize/ /etc/fstab
quiet bash -c "$fix"
doctor
# The last that was logged is the kernel's own word on the attempt before.
found nfs-mount-failed note "Unknown parameter 'rzise'"
umount /mnt
rm /etc/fstab

say "an export that is not for this client"
dmesg -C
exportfs -u '*:/export/tmp'
try_mount -o vers=3,nolock,mountproto=tcp "$address:/export/tmp" /mnt
doctor
found nfs-mount-failed slower "access denied by server"
fix=$(ask nfs-mount-failed fix | sed -n 's/^on the server: \(sudo exportfs -v\); a line for this client in \/etc\/exports, then \(sudo exportfs -ra\); .*/\1 \&\& \2/p')
echo "  typed: $fix"
quiet bash -c "$fix"
nfs_mount tcp 3 tmp
doctor
found nfs-mount-failed note "access denied by server"
umount /mnt
