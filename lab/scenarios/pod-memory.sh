# proves: in a pod-like cgroup (memory.max) a file of twice its size is copied and read, cold and warm; nothing is killed.
# kernel: debian
# drives: a=2G
# qemu: -device virtio-blk-pci,drive=a,serial=a
# needs: forebay fake-cuda
# timeout: 240
. /lab/guest/forebay.sh
make_fs ext4 "$(drive a)"
pattern /mnt/a 320000001
pod=/sys/fs/cgroup/pod
echo +memory >/sys/fs/cgroup/cgroup.subtree_control
mkdir $pod
echo 160M >$pod/memory.max
in_pod() { bash -c "echo \$\$ >$pod/cgroup.procs && exec \"\$@\"" bash env FOREBAY_LIBCUDA=/tmp/libfake_cuda.so "$@"; }
quiet in_pod forebay cp --verify /mnt/a /mnt/b
echo "$said"
for pass in 1 2 3; do
    quiet in_pod forebay bench -f /mnt/b -i 4M -w 2 -s 300M -I 0
    echo "pass $pass:$(grep engine <<<"$said")"
done
quiet in_pod forebay verify -f /mnt/b -n 7
drop_caches
same /mnt/a /mnt/b
cat $pod/memory.events
echo "peak: $(($(cat $pod/memory.peak) >> 20)) MiB"
[ "$(awk '$1 == "oom_kill" { print $2 }' $pod/memory.events)" = 0 ] || fail "something was killed"
