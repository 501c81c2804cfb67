# proves: on the root bus too, where nothing routes from device to device, every operation is refused with EREMOTEIO.
# kernel: p2p
# cpu: max
# drives: cmb=64M peer=512M
# topology: root-bus
# timeout: 120
. /lab/guest/p2p.sh
on_each "$(drive peer)" refuses
