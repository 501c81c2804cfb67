# proves: where bus addresses go astray a read succeeds and its bytes do not arrive: only a comparison can tell.
#   (Below one switch the kernel uses bus addresses; QEMU routes them through the IOMMU all the same.)
# kernel: p2p
# drives: cmb=64M peer=512M
# topology: same-switch
# qemu: -device intel-iommu,intremap=on
# append: intel_iommu=on
# timeout: 90
# quick: yes
. /lab/guest/p2p.sh
python3 /lab/guest/p2p.py "$(provider)" all=WRONG mixed=WRONG uring-iopoll=EOPNOTSUPP uring-fixed=EFAULT \
    mlock=EREMOTEIO "$(drive peer)"
