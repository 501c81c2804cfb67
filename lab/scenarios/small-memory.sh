# proves: a machine with 512 MiB writes and reads a file of 1.5 GiB, every byte checked, and nothing is killed.
# kernel: debian
# memory: 512M
# drives: a=4G
# qemu: -device virtio-blk-pci,drive=a,serial=a
# needs: forebay fake-cuda
# timeout: 400
. /lab/guest/forebay.sh
make_fs xfs "$(drive a)"
free_mib() { awk '/MemAvailable/ { print int($2 / 1024) }' /proc/meminfo; }
echo "available: $(free_mib) MiB"
quiet gpu forebay bench -f /mnt/a -i 4M -w 2 -s 1536M -I 1 -V
grep engine <<<"$said"
quiet gpu forebay bench -f /mnt/a -i 4M -w 2 -s 1536M -I 0 -V
grep engine <<<"$said"
echo "available: $(free_mib) MiB"
if dmesg | grep -i "out of memory"; then fail "something was killed"; fi
