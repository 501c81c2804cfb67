# proves: `forebay doctor` in a container's limits: a small cgroup, kills for memory and io_uring denied are found, with a pod's fixes.
# kernel: debian
# memory: 1G
# drives: disk=512M
# qemu: -device virtio-blk-pci,drive=disk,serial=disk
# needs: forebay fake-cuda deny-io-uring
# timeout: 300
. /lab/guest/forebay.sh
. /lab/guest/doctor.sh
make_fs ext4 "$(drive disk)" /mnt
healthy /mnt

say "a small cgroup that was killed in"
group=/sys/fs/cgroup/pod
mountpoint -q /sys/fs/cgroup || mount -t cgroup2 cgroup2 /sys/fs/cgroup
mkdir "$group"
echo "+memory" >/sys/fs/cgroup/cgroup.subtree_control || true
echo 33554432 >"$group/memory.max"
(echo "$BASHPID" >"$group/cgroup.procs"; exec python3 -c 'x = bytearray(200 << 20)') || echo "  killed"
(echo "$BASHPID" >"$group/cgroup.procs"; gpu forebay doctor --pod --json >/tmp/doctor.json) || true
found memory-limit slower "33554432 bytes"
found oom-kills slower "memory.events: oom_kill 1"
# Its fix: a higher limit, which is what the runtime writes for --memory or resources.limits.memory; or fewer slots.
ask memory-limit fix | grep -q "^raise the limit .*, or lower FOREBAY_SLOTS$" || fail "$(ask memory-limit fix)"
in_group() { (echo "$BASHPID" >"$group/cgroup.procs"; gpu "$@" >/tmp/doctor.json) || true; }
type_fix memory-limit "s|^raise the limit .*|echo 671088640 >$group/memory.max|"
in_group forebay doctor --pod --json
found memory-limit note "671088640 bytes"
echo $((96 << 20)) >"$group/memory.max"
in_group forebay doctor --pod --json
found memory-limit slower "100663296 bytes"
FOREBAY_SLOTS=2 in_group forebay doctor --pod --json
found memory-limit note "100663296 bytes"
echo "  typed: FOREBAY_SLOTS=2"

say "io_uring denied"
python3 /payload/deny-io-uring --memlock 1048576 env FOREBAY_LIBCUDA=/tmp/libfake_cuda.so forebay doctor --pod --json >/tmp/doctor.json || true
found io-uring slower "/proc/self/status: Seccomp: 2"
ask io-uring fix | grep -q seccompProfile || fail "no pod's fix: $(ask io-uring fix)"
