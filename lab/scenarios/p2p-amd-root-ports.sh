# proves: across a host bridge that the kernel trusts (AMD since Zen) a drive's DMA reaches a BAR.
# kernel: p2p
# cpu: EPYC
# drives: cmb=64M peer=512M
# topology: two-root-ports
# trace: pci_nvme_map_addr pci_nvme_read pci_nvme_write
# check: dma-in-bar
# timeout: 120
. /lab/guest/p2p.sh
on_each "$(drive peer)" works uring-iopoll=EOPNOTSUPP
