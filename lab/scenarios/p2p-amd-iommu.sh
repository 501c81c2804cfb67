# proves: across a trusted host bridge it does so behind an IOMMU too.
# kernel: p2p
# cpu: EPYC
# drives: cmb=64M peer=512M
# topology: two-root-ports
# qemu: -device intel-iommu,intremap=on
# append: intel_iommu=on
# timeout: 120
. /lab/guest/p2p.sh
on_each "$(drive peer)" works uring-iopoll=EOPNOTSUPP
