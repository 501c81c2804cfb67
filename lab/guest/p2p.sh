# shellcheck shell=bash
# What the p2p scenarios share: a drive with memory (serial cmb), and a second one (serial peer).

# The PCI address of the device that offers memory; its range goes to the host, which looks for it in QEMU's trace.
provider() {
    local folder
    for folder in /sys/bus/pci/devices/*/p2pmem; do
        [ -e "$folder/allocate" ] || fail "no device offers P2P memory"
        dmesg | sed -n 's/.*added peer-to-peer DMA memory \(0x[0-9a-f]*\)-\(0x[0-9a-f]*\).*/\1 \2/p' >/out/bar
        basename "$(dirname "$folder")"
        return
    done
}

# on_each DEVICE COMMAND …: runs the command with the device, and a file on fresh ext4 and xfs on it, as last argument.
on_each() {
    local device=$1 type
    shift
    say "raw"
    "$@" "$device"
    for type in ext4 xfs; do
        say "$type"
        make_fs $type "$device"
        dd if=/dev/zero of=/mnt/file bs=1M count=4 status=none
        sync -f /mnt/file
        "$@" /mnt/file
        umount /mnt
    done
}

# works TARGET, refuses TARGET: the answers of the kernel where the path exists, and where it does not.
works() { python3 /lab/guest/p2p.py "$(provider)" uring-fixed=EFAULT mlock=EREMOTEIO "$@"; }
refuses() { python3 /lab/guest/p2p.py "$(provider)" all=EREMOTEIO uring-fixed=EFAULT uring-iopoll=EOPNOTSUPP "$@"; }
