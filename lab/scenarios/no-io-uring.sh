# proves: where seccomp denies io_uring, as containers do, bytes move all the same, and the receipt says why it is slower.
# kernel: debian
# drives: a=512M
# qemu: -device virtio-blk-pci,drive=a,serial=a
# needs: forebay fake-cuda deny-io-uring
# timeout: 120
# quick: yes
. /lab/guest/forebay.sh
gpu_denied() { FOREBAY_LIBCUDA=/tmp/libfake_cuda.so python3 /payload/deny-io-uring --user 1000 "$@"; }
make_fs ext4 "$(drive a)"
chmod 777 /mnt
pattern /mnt/a 20000001
chmod 666 /mnt/a
quiet gpu_denied forebay cp --verify /mnt/a /mnt/b
drop_caches
same /mnt/a /mnt/b
quiet gpu_denied forebay bench -f /mnt/c -i 4M -w 2 -s 16M -I 1 -V
drop_caches
quiet gpu_denied forebay bench -f /mnt/c -i 4M -w 2 -s 16M -I 0 -V
echo "$said"
grep -q "io_uring" <<<"$said" || fail "the report does not say that io_uring is missing"
