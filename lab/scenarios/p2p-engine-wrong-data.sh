# proves: the trial catches reads that succeed and whose bytes do not arrive: p2p is refused, and the bytes are staged.
# kernel: p2p
# drives: cmb=64M peer=512M
# topology: same-switch
# qemu: -device intel-iommu,intremap=on
# append: intel_iommu=on
# needs: forebay
# timeout: 120
. /lab/guest/p2p.sh
device=p2pmem:$(provider)
cp /payload/forebay .
make_fs ext4 "$(drive peer)"
for direction in 1 0; do
    ./forebay bench -f /mnt/file -d "$device" -x 0 -w 1 -s 4M -i 1M -I $direction -V 2>&1 | tee said
    grep -q "engine .*staged: " said || fail "not staged"
    grep -q "not p2p: a trial .* succeeded, but" said || fail "not caught"
    must_fail ./forebay bench -f /mnt/file -d "$device" -x 0 -w 1 -s 4M -i 1M -I $direction --strict p2p
    [[ $said == *iommu=pt* ]] || fail "no hint"
done
say "raw: the first write is compared, and put right"
umount /mnt
peer=$(drive peer)
./forebay bench -f "$peer" -d "$device" -x 0 -w 1 -s 4M -i 1M -I 1 -V --yes-destroy "$peer" 2>&1 | tee said
grep -q "not p2p: a trial write succeeded, but other bytes were written" said || fail "not caught"
