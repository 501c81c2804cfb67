# proves: loop, device mapper and md in between refuse the path, though the drives below would take it.
# kernel: p2p
# drives: cmb=64M peer=256M second=256M
# topology: same-switch
# qemu: -device xio3130-downstream,id=down2,bus=up,chassis=4,slot=0 -device nvme,serial=second,drive=second,bus=down2
# timeout: 120
. /lab/guest/p2p.sh
# A read into mixed memory falls back to the page cache here.
blocked() { refuses mixed=ok "uring-iopoll=EREMOTEIO|EOPNOTSUPP" "$1"; }

say "loop over the peer"
loop=$(losetup --find --show --direct-io=on "$(drive peer)")
blocked "$loop"
losetup -d "$loop"

say "device mapper (linear) over the peer"
dmsetup create line --table "0 204800 linear $(drive peer) 0"
blocked /dev/mapper/line
dmsetup remove line

say "md raid0 over two peers"
mdadm --create /dev/md0 --run --level=0 --raid-devices=2 --metadata=1.2 "$(drive peer)" "$(drive second)"
blocked /dev/md0
mdadm --stop /dev/md0
