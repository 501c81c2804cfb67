# proves: a power cut during a PUT by `forebay serve s3` on xfs leaves the old object or the new one, and the new one once
#   200 was answered; with --no-sync, which does not promise it, the loss is caught.
# kernel: debian
# memory: 1G
# drives: base=320M copy=320M cow=128M log=256M
# qemu: -device virtio-blk-pci,drive=base,serial=base -device virtio-blk-pci,drive=copy,serial=copy
# qemu: -device virtio-blk-pci,drive=cow,serial=cow -device virtio-blk-pci,drive=log,serial=log
# needs: forebay
# timeout: 400
. /lab/guest/forebay.sh
. /lab/guest/powercut.sh
gateway_power_cut xfs rw
