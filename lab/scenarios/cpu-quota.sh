# proves: lanes follow the CPU quota of a cgroup, of version 2 and of version 1, from the beginning and when it changes under a read; with
#   8 MiB of locked memory and no privilege, too. All bytes are right, and receipts say what held them back.
# kernel: debian
# memory: 1G
# cpus: 4
# drives: a=512M
# qemu: -device virtio-blk-pci,drive=a,serial=a
# needs: forebay fake-cuda
# timeout: 400
. /lab/guest/forebay.sh
mount -t tmpfs -o size=400M tmpfs /mnt
chmod 777 /mnt
export FOREBAY_SLOT_SIZE=512K # a read has enough works to be measured
pattern /mnt/a 64000001
quiet gpu forebay bench -f /mnt/v -i 4M -s 64M -I 1 -V

in_pod() { bash -c "echo \$\$ >$pod/cgroup.procs && exec \"\$@\"" bash env FOREBAY_LIBCUDA=/tmp/libfake_cuda.so "$@"; }

# most NUMBER: reads for some seconds; the last measurement found this number of lanes at most.
most() {
    quiet in_pod forebay bench -f /mnt/v -i 64M -I 0 --engine staged -T 12
    local last
    last=$(grep -o "[0-9]* of [0-9]* lanes" <<<"$said" | tail -n 1) || fail "nothing was measured: $said"
    [ "${last#* }" = "of $1 lanes" ] || fail "$last, where $1 CPUs are allowed: $said"
    echo "  $last"
}

# The quota of the group, which `allow` sets, is followed, and every byte is the file's.
follows() {
    local cpus
    for cpus in 2 1; do
        allow $cpus
        most $cpus
        quiet in_pod forebay bench -f /mnt/v -i 16M -w 2 -I 0 --engine staged -V
        quiet in_pod forebay cp --verify /mnt/a /mnt/b
        same /mnt/a /mnt/b
    done
    (sleep 3; allow 3) &
    most 3
    wait
}

say "version 2"
pod=/sys/fs/cgroup/pod
echo +cpu >/sys/fs/cgroup/cgroup.subtree_control
mkdir $pod
allow() { echo "${1}00000 100000" >$pod/cpu.max; }
follows
rmdir $pod
echo -cpu >/sys/fs/cgroup/cgroup.subtree_control

say "version 1"
umount /sys/fs/cgroup
mount -t tmpfs tmpfs /sys/fs/cgroup
mkdir /sys/fs/cgroup/cpu
mount -t cgroup -o cpu cgroup /sys/fs/cgroup/cpu || skip "this kernel has no CPU quota of version 1"
pod=/sys/fs/cgroup/cpu/pod
mkdir $pod
allow() { echo "${1}00000" >$pod/cpu.cfs_quota_us; }
follows

say "8 MiB of locked memory"
unset FOREBAY_SLOT_SIZE
umount /mnt
make_fs ext4 "$(drive a)"
chmod 777 /mnt
pattern /mnt/a 64000001
chmod 644 /mnt/a
little() { (ulimit -l 8192 && gpu setpriv --reuid 65534 --regid 65534 --clear-groups "$@"); }
quiet little forebay cp --verify /mnt/a /mnt/b
drop_caches
same /mnt/a /mnt/b
quiet little forebay bench -f /mnt/v -i 4M -w 4 -s 64M -I 1 -V
drop_caches
quiet little forebay bench -f /mnt/v -i 4M -w 4 -I 0 -V
grep -q "verified" <<<"$said" || fail "$said"
grep -A1 "without registered buffers" <<<"$said" || fail "nothing says what little locked memory costs: $said"
grep -q "ulimit -l" <<<"$said" || fail "no hint: $said"
