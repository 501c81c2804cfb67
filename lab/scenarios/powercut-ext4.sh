# proves: a power cut during `forebay cp` and Python's `save_file` on ext4 leaves the old file or the new one, and the
#   new one once they have returned; a build whose syncs do nothing is caught.
# kernel: debian
# memory: 1G
# drives: base=320M copy=320M cow=128M log=256M
# qemu: -device virtio-blk-pci,drive=base,serial=base -device virtio-blk-pci,drive=copy,serial=copy
# qemu: -device virtio-blk-pci,drive=cow,serial=cow -device virtio-blk-pci,drive=log,serial=log
# needs: forebay fake-cuda nosync wheel
# timeout: 400
. /lab/guest/forebay.sh
. /lab/guest/powercut.sh
power_cut ext4 noauto_da_alloc
