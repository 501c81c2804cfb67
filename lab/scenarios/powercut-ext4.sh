# proves: a power cut during `forebay cp` and Python's `save_file` on ext4 leaves the old file or the new one, and the
#   new one once they have returned; a build whose syncs do nothing is caught.
# kernel: debian
# memory: 1G
# drives: base=320M copy=320M cow=128M log=256M
# qemu: -device virtio-blk-pci,drive=base,serial=base -device virtio-blk-pci,drive=copy,serial=copy
# qemu: -device virtio-blk-pci,drive=cow,serial=cow -device virtio-blk-pci,drive=log,serial=log
# needs: forebay fake-cuda nosync wheel
# timeout: 400
# quick: yes
. /lab/guest/forebay.sh
. /lab/guest/powercut.sh
options=noauto_da_alloc
pattern /tmp/old $size old
pattern /tmp/new $size new

say "cp"
record ext4 $options gpu forebay cp /tmp/new /mnt/file
check_states $options || fail "cp: a state is neither old nor new, or lost"

say "cp, by a build whose syncs do nothing"
cp /payload/nosync /tmp/nosync.so
record ext4 $options gpu env LD_PRELOAD=/tmp/nosync.so forebay cp /tmp/new /mnt/file
if said=$(check_states $options); then fail "a build without fsync was not caught"; fi
echo "$said"
grep -q "MIXED [1-9]" <<<"$said" || fail "a build without fsync left no mixed file"

say "save_file"
cp -r /payload/wheel /tmp/wheel
gpu python3 /lab/guest/save.py /tmp/new /tmp/saved
mv /tmp/saved /tmp/new.saved
record ext4 $options gpu python3 /lab/guest/save.py /tmp/new /mnt/file
mv /tmp/new.saved /tmp/new
check_states $options || fail "save_file: a state is neither old nor new, or lost"
