# proves: across a host bridge that the kernel does not know, every operation is refused with EREMOTEIO.
# kernel: p2p
# cpu: max
# drives: cmb=64M peer=512M
# topology: two-root-ports
# timeout: 120
. /lab/guest/p2p.sh
on_each "$(drive peer)" refuses
