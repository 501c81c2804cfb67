# proves: on an overlay over two drives a file speaks for itself alone: one drive reaches the memory, the other's bytes go
#   astray, and are staged.
# kernel: p2p
# cpu: EPYC
# drives: cmb=64M peer=256M good=256M
# topology: same-switch
# qemu: -device intel-iommu,intremap=on
# qemu: -device pcie-root-port,id=root9,chassis=9,slot=9 -device nvme,serial=good,drive=good,bus=root9
# append: intel_iommu=on
# needs: forebay
# timeout: 180
. /lab/guest/p2p.sh
device=p2pmem:$(provider)
cp /payload/forebay .
mkdir good bad over
for name in good bad; do
    disk=$(drive ${name/bad/peer})
    mkfs.ext4 -q "$disk"
    mount "$disk" $name
done
mkdir good/low bad/up bad/work
pattern good/low/gdsio.0 4194304
pattern bad/up/gdsio.1 4194304
mount -t overlay -o lowerdir=good/low,upperdir=bad/up,workdir=bad/work,xino=on overlay over
[ "$(stat -c %d over/gdsio.0)" = "$(stat -c %d over/gdsio.1)" ] || fail "two device numbers: this shows nothing"
bench() { ./forebay bench -D over -d "$device" -x 0 -w 2 -s 4M -i 1M -I 0 "$@"; }

# Which of them is tried first is a matter of luck.
for attempt in 1 2 3 4; do
    must_fail bench --strict p2p,all
    grep -q "did not arrive" <<<"$said" || fail "another reason: $said"
    bench --json report.json
    python3 - <<'PYTHON'
import json
[one] = json.load(open("report.json"))["passes"]
moved = {engine["engine"]: engine["drive"] for engine in one["engines"]}
assert moved == {"p2p": 4 << 20, "staged": 0}, one["engines"]
PYTHON
    say "attempt $attempt: the one by p2p, the other staged"
done
# Each is what a plain read says, in one process after the other.
for name in 0 1; do ./forebay verify -d "$device" -f over/gdsio.$name; done
