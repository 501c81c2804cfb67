# proves: on a kernel without cachestat (6.1) warm and cold are distinguished by other means; bytes verified.
# kernel: debian-6.1
# drives: a=512M
# qemu: -device virtio-blk-pci,drive=a,serial=a
# needs: forebay fake-cuda
# timeout: 150
# quick: yes
. /lab/guest/forebay.sh
for type in ext4 xfs; do
    say $type
    make_fs $type "$(drive a)"
    pattern /mnt/a 3000001 $type
    copied_by staged /mnt/a /mnt/b
    read_by staged /mnt/b
    sleep 1.2
    read_by mapped /mnt/b
    quiet gpu forebay bench -f /mnt/c -i 64K -w 2 -s 4M -I 1 -V
    quiet gpu forebay bench -f /mnt/c -i 64K -w 2 -s 4M -I 0 -V --drop-cache
    grep state <<<"$said"
    grep -q "state *cold" <<<"$said" || fail "not seen to be cold"
    quiet gpu forebay bench -f /mnt/c -i 64K -w 2 -s 4M -I 0 -V --warm
    grep state <<<"$said"
    grep -q "state *warm" <<<"$said" || fail "not seen to be warm"
    if grep -q "by cachestat" <<<"$said"; then fail "cachestat on Linux $(uname -r)?"; fi
    umount /mnt
done
