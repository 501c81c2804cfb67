# proves: the engine's contract holds over p2p: the same suite as for every engine, into a drive's memory by another's DMA.
# kernel: p2p
# memory: 2G
# drives: cmb=64M peer=512M
# topology: same-switch
# needs: contract
# trace: pci_nvme_map_addr pci_nvme_read pci_nvme_write
# check: dma-in-bar
# timeout: 900
. /lab/guest/p2p.sh
make_fs ext4 "$(drive peer)"
cp /payload/contract .
FOREBAY_TEST_BAR=p2pmem:$(provider) FOREBAY_TEST_DIR=/mnt ./contract --test-threads 1
