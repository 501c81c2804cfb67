//! Other machines' file systems, disks in memory, NVSwitches, modules of RDMA, exports, and what a copy lacks.

use forebay_doctor::finding::Severity::{Blocks, Note};

use super::*;
use crate::trees::PORT;

const SWITCH: &str = "/sys/bus/pci/devices/0000:05:00.0";
const NSCQ: &str = "/usr/lib/x86_64-linux-gnu/libnvidia-nscq.so";

/// A machine with an NVSwitch, and what runs it.
fn switched(t: &mut Tree) -> &mut Tree {
    t.file(&format!("{SWITCH}/vendor"), "0x10de\n").file(&format!("{SWITCH}/class"), "0x068000\n");
    t.file("/proc/99/comm", "nv-fabricmanage\n").file(&format!("{NSCQ}.580.95.05"), "")
}

pub(super) const CASES: &[Case] = &[
    case(
        "cluster-file-system",
        "Lustre, with NVIDIA's module",
        Note,
        "/proc/self/mountinfo: lustre of 10.0.0.5@o2ib:/fs at /far",
        "FOREBAY_ENGINE=libcufile forebay check /far",
        |t| mounted(t, "0:60 / /far rw - lustre 10.0.0.5@o2ib:/fs rw"),
    ),
    case(
        "cluster-file-system",
        "BeeGFS",
        Note,
        "beegfs of beegfs_nodev",
        "forebay check /far tries it",
        |t| mounted(t, "0:60 / /far rw - beegfs beegfs_nodev rw"),
    ),
    case("cluster-file-system", "Weka", Note, "wekafs of backend/fs", "forebay check /far tries it", |t| {
        mounted(t, "0:60 / /far rw - wekafs backend/fs rw")
    }),
    case("cluster-file-system", "GPFS", Note, "gpfs of gpfs0", "forebay check /far tries it", |t| {
        mounted(t, "0:60 / /far rw - gpfs gpfs0 rw")
    }),
    case(
        "cluster-file-system",
        "another",
        Note,
        "ceph of mon:/ at /far",
        "forebay check /far tries it",
        |t| mounted(t, "0:60 / /far rw - ceph mon:/ rw"),
    ),
    case("ram-disk", "zram", Note, "ext4 of /dev/zram0 at /far", "mount -t tmpfs -o size=8G tmpfs", |t| {
        t.link("/sys/dev/block/252:0", "/sys/devices/virtual/block/zram0")
            .dir("/sys/devices/virtual/block/zram0");
        mounted(t, "252:0 / /far rw - ext4 /dev/zram0 rw")
    }),
    case(
        "ram-disk",
        "brd on an older kernel",
        Note,
        "xfs of /dev/ram0 at /far",
        "without O_DIRECT tmpfs",
        |t| {
            t.file("/proc/sys/kernel/osrelease", "6.1.0-40-amd64\n");
            t.link("/sys/dev/block/1:0", "/sys/devices/virtual/block/ram0")
                .dir("/sys/devices/virtual/block/ram0");
            mounted(t, "1:0 / /far rw - xfs /dev/ram0 rw")
        },
    ),
    case(
        "fabric-manager",
        "it does not run",
        Blocks,
        "nv-fabricmanager in /proc/*/comm: not there",
        "apt install nvidia-fabricmanager-580",
        |t| all(switched(t).without("/proc/99/comm")),
    ),
    case("nscq", "none", Note, "libnvidia-nscq.so.*: not there", "apt install libnvidia-nscq-580", |t| {
        all(switched(t).without(&format!("{NSCQ}.580.95.05")))
    }),
    case("nscq", "of another driver", Note, "libnvidia-nscq.so.570.1.1", "libnvidia-nscq-580", |t| {
        all(switched(t).without(&format!("{NSCQ}.580.95.05")).file(&format!("{NSCQ}.570.1.1"), ""))
    }),
    case(
        "peermem",
        "the closed driver",
        Note,
        "580.95.05, not the open module",
        "apt install nvidia-open",
        |t| {
            all(t.replace(
                "/proc/driver/nvidia/version",
                "Open Kernel Module for x86_64",
                "x86_64 Kernel Module",
            ))
        },
    ),
    case(
        "rdma-ucm",
        "not loaded",
        Note,
        "/sys/class/misc/rdma_cm: not there",
        "tee /etc/modules-load.d/rdma_ucm.conf",
        |t| all(t.without("/sys/class/misc/rdma_cm")),
    ),
    case(
        "ib-ipoib",
        "InfiniBand without an interface",
        Blocks,
        "/sys/class/infiniband/mlx5_0/device/net/*: not there",
        "sudo modprobe ib_ipoib",
        |t| {
            all(t
                .file(&format!("{PORT}/link_layer"), "InfiniBand\n")
                .without(&format!("{PORT}/gid_attrs/ndevs/0")))
        },
    ),
    case(
        "dcqcn",
        "it does not slow down",
        Note,
        "ecn/roce_rp/enable/3: 0",
        "echo 1 | sudo tee /sys/class/net/ens1/ecn/roce_rp/enable/3",
        |t| all(t.file("/sys/class/net/ens1/ecn/roce_rp/enable/3", "0\n")),
    ),
    case("mtu", "Ethernet's own", Note, "/sys/class/net/ens1/mtu: 1500", "ip link set ens1 mtu 9000", |t| {
        all(t.file("/sys/class/net/ens1/mtu", "1500\n"))
    }),
    case(
        "export-not-tmpfs",
        "a drive",
        Note,
        "/var/lib/nfs/etab:1: /data",
        "exportfs -o rw,insecure,fsid=1 '*:/data-ram'",
        |t| {
            all(t
                .file("/proc/fs/nfsd/portlist", "rdma 20049\ntcp 2049\n")
                .file("/var/lib/nfs/etab", "/data\t*(rw)\n"))
        },
    ),
    // A copy: no other rule takes a missing file for a fault of the machine.
    case(
        "not-in-copy",
        "the driver and the bus",
        Note,
        "/proc/driver: not there",
        "run forebay doctor on that machine",
        |t| all(t.without("/proc/driver").without("/sys/bus")),
    ),
    case(
        "not-in-copy",
        "RDMA, whose module is loaded",
        Note,
        "/sys/class/infiniband: not there",
        "cp -a",
        |t| {
            t.without("/sys/class/infiniband").append("/proc/modules", "ib_core 1 0 - Live 0x0\n");
            t.without("/sys/bus/pci/devices/0000:1d:00.0");
            all(t.without("/dev/infiniband"))
        },
    ),
    case("not-in-copy", "/etc", Note, "/etc: not there", "", |t| all(t.without("/etc"))),
    case("not-in-copy", "io_uring, limits", Note, "/proc/self/limits: not there", "", |t| {
        t.without("/proc/self/limits");
        all(t.without("/proc/sys/kernel/io_uring_disabled"))
    }),
    case("not-in-copy", "a path", Note, "/data/none: not there", "", |_| asked("/data/none")),
];
