# proves: where no drive reaches the memory p2p is refused with the kernel's reason, and the bytes are staged.
# kernel: p2p
# cpu: max
# drives: cmb=64M peer=512M
# topology: two-root-ports
# needs: forebay
# timeout: 120
. /lab/guest/p2p.sh
device=p2pmem:$(provider)
cp /payload/forebay .
make_fs ext4 "$(drive peer)"
bench() { ./forebay bench -f /mnt/file -d "$device" -x 0 -w 1 -s 4M -i 1M "$@" 2>&1 | tee said; }
for direction in 1 0; do
    bench -I $direction -V
    grep -q "engine .*staged: " said || fail "not staged"
    grep -q "not p2p: .*EREMOTEIO" said || fail "no reason"
    must_fail ./forebay bench -f /mnt/file -d "$device" -x 0 -w 1 -s 4M -i 1M -I $direction --strict p2p
    [[ $said == *EREMOTEIO*hint:* ]] || fail "no reason, or no hint"
done
say "a device without such memory"
must_fail ./forebay bench -f /mnt/file -d p2pmem:0000:00:00.0 -x 0 -w 1 -s 4M -i 1M -I 0
[[ $said == *"publishes no peer-to-peer memory"* ]] || fail "another reason"
