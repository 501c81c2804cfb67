# proves: below one switch a drive's DMA goes straight into a BAR: raw, ext4 and xfs, every operation as known.
# kernel: p2p
# drives: cmb=64M peer=512M
# topology: same-switch
# append: nvme.poll_queues=1
# trace: pci_nvme_map_addr pci_nvme_read pci_nvme_write
# check: dma-in-bar
# timeout: 120
# quick: yes
. /lab/guest/p2p.sh
on_each "$(drive peer)" works
say "the drive that the memory belongs to (QEMU takes no list that mixes its own memory with ordinary memory)"
works mixed=EIO "$(drive cmb)"
