//! Blockers between drives and device memory: a machine without any, and then one blocker after the other.

mod machines;

use std::fmt::Write as _;

use forebay_doctor::direct::{DriveRoute, MemoryOffer, PciWay, Reach};
use forebay_doctor::exercise::Exercise;
use forebay_doctor::{CheckOptions, CheckReport, examine, render};
use machines::Fake;

const ROOT: &str = "/sys/devices/pci0000:00";
const PORT: &str = "0000:00:01.0";
const SWITCH: &str = "0000:01:00.0";
const BUS: &str = "/sys/bus/pci/devices";
const GPU: &str = "0000:03:00.0";
const CMB: &str = "0000:06:00.0";
const MOUNTS: &str = "27 1 254:0 / / rw - ext4 /dev/vda rw\n40 27 259:6 / /data rw - xfs /dev/nvme1n1 rw\n";

fn behind_switch(port: &str, device: &str) -> String {
    format!("{ROOT}/{PORT}/{SWITCH}/{port}/{device}")
}

/// ACS in the configuration space of a bridge.
fn config(acs: u8) -> Vec<u8> {
    let mut config = vec![0u8; 4096];
    config[0x100..0x108].copy_from_slice(&[0x0d, 0, 1, 0, 0x5f, 0, acs, 0]);
    config
}

/// A GPU, an NVMe drive and another drive with memory behind one switch; all as it should be, and all readable.
fn good() -> Fake {
    let mut fake = Fake::new("6.17.0-8-generic", 32);
    fake.driver("595.71.05").gpu(GPU, "NVIDIA H100 PCIe", 80 << 30);
    fake.file("/proc/self/mountinfo", MOUNTS)
        .dir("/data")
        .dir("/sys/module/nvidia")
        .dir("/sys/module/nvidia_uvm");
    fake.file("/boot/config-6.17.0-8-generic", "CONFIG_PCI_P2PDMA=y\n");
    fake.file("/proc/cpuinfo", "vendor_id\t: GenuineIntel\ncpu family\t: 6\n");
    fake.pci(&format!("{ROOT}/0000:00:00.0"), 0x0006_0000, 0x8086, 0x3000);
    fake.pci(&format!("{ROOT}/{PORT}"), 0x0006_0400, 0x8086, 0x352a);
    fake.pci(&format!("{ROOT}/{PORT}/{SWITCH}"), 0x0006_0400, 0x1000, 0xc010);
    for (port, device) in [("0000:02:00.0", GPU), ("0000:02:01.0", "0000:04:00.0"), ("0000:02:02.0", CMB)] {
        let path = behind_switch(port, device);
        fake.pci(path.rsplit_once('/').map_or("", |(port, _)| port), 0x0006_0400, 0x1000, 0xc010);
        match device {
            GPU => fake.link(&format!("{BUS}/{GPU}"), &path),
            _ => fake.pci(&path, 0x0001_0802, 0x144d, 0xa824),
        };
    }
    for bridge in [PORT, SWITCH, "0000:02:00.0", "0000:02:01.0", "0000:02:02.0"] {
        fake.file(&format!("{BUS}/{bridge}/config"), config(0));
    }
    for (pci, bytes) in [(GPU, 256u64 << 30), (CMB, 64 << 20)] {
        fake.file(&format!("{BUS}/{pci}/p2pmem/size"), bytes.to_string());
        fake.file(&format!("{BUS}/{pci}/p2pmem/available"), bytes.to_string());
        fake.file(&format!("{BUS}/{pci}/p2pmem/published"), "1\n");
        fake.file(&format!("{BUS}/{pci}/p2pmem/allocate"), "");
    }
    fake.disk("259:6", &format!("{}/nvme/nvme1/nvme1n1", behind_switch("0000:02:01.0", "0000:04:00.0")));
    fake
}

fn look(machine: &Fake) -> CheckReport {
    let options = CheckOptions { paths: vec!["/data".into()], ..CheckOptions::default() };
    examine(machine, machine, &options).unwrap_or_else(|error| panic!("{error:?}"))
}

fn route<'a>(report: &'a CheckReport, memory: &str) -> &'a DriveRoute {
    report
        .routes
        .iter()
        .find(|route| route.memory == memory)
        .unwrap_or_else(|| panic!("no route to {memory}"))
}

#[test]
fn nothing_is_in_the_way_of_a_good_machine() {
    let report = look(&good());
    for memory in [GPU, CMB] {
        let route = route(&report, memory);
        assert_eq!(route.reach, Reach::NoObstacle, "{route:?}");
        assert_eq!(route.way, Some(PciWay::Switch { bridge: SWITCH.to_owned() }), "{route:?}");
    }
    let offers: Vec<_> = report.memories.iter().map(|memory| (memory.offer, memory.bytes)).collect();
    assert_eq!(offers, [(MemoryOffer::Gpu, Some(256 << 30)), (MemoryOffer::Nvme, Some(64 << 20))]);
    insta::assert_snapshot!(render::text(&report));
}

type Change = fn(&mut Fake);

/// The change, the memory of the path, and the rule that reports it.
const CASES: &[(&str, &str, &str, Change)] = &[
    ("kernel without the option", GPU, "kernel-config", |m| {
        m.file("/boot/config-6.17.0-8-generic", "# CONFIG_PCI_P2PDMA is not set\nCONFIG_ZONE_DEVICE=y\n");
    }),
    ("no module of the driver", GPU, "no-driver", |m| {
        m.without("/proc/driver/nvidia/version");
    }),
    ("proprietary module", GPU, "driver-proprietary", |m| {
        m.file(
            "/proc/driver/nvidia/version",
            "NVRM version: NVIDIA UNIX x86_64 Kernel Module  595.71.05  Release\n",
        );
    }),
    ("old driver", GPU, "driver-version", |m| {
        m.driver("560.28.03");
    }),
    ("driver whose counts clash with the kernel's", GPU, "driver-counts", |m| {
        m.driver("580.95.05");
    }),
    ("driver without the option", GPU, "driver-options", |m| {
        m.without(&format!("{BUS}/{GPU}/p2pmem/size"));
        m.file("/proc/driver/nvidia/params", "ResmanDebugLevel: 4294967295\nRegistryDwords: \"\"\n");
    }),
    ("driver with the option, but without memory", GPU, "no-p2pmem", |m| {
        m.without(&format!("{BUS}/{GPU}/p2pmem/size"));
        m.file("/proc/driver/nvidia/params", "RegistryDwords: \"RmForceDisableIomapWC=1;\"\n");
    }),
    ("small BAR", GPU, "bar-size", |m| {
        m.without(&format!("{BUS}/{GPU}/p2pmem/size"));
        let bars = "0x0000 0x0000 0x0000\n0x0000380000000000 0x000038000fffffff 0x000000000014220c\n";
        m.file(&format!("{BUS}/{GPU}/resource"), bars);
    }),
    ("memory that is not published", CMB, "not-published", |m| {
        m.file(&format!("{BUS}/{CMB}/p2pmem/published"), "0\n");
    }),
    ("memory that is all in use", CMB, "in-use", |m| {
        m.file(&format!("{BUS}/{CMB}/p2pmem/available"), "0\n");
    }),
    ("memory that is root's", CMB, "permission", |m| {
        m.forbid(&format!("{BUS}/{CMB}/p2pmem/allocate"));
    }),
    ("memory without a way to allocate it", CMB, "no-allocate", |m| {
        m.without(&format!("{BUS}/{CMB}/p2pmem/allocate"));
    }),
    ("file system that is not known to do it", CMB, "file-system", |m| {
        m.file("/proc/self/mountinfo", MOUNTS.replace("xfs", "btrfs"));
    }),
    ("NFS", CMB, "nfs", |m| {
        m.file("/proc/self/mountinfo", "40 27 0:50 / /data rw - nfs4 server:/export rw\n");
    }),
    ("another network file system", CMB, "network", |m| {
        m.file("/proc/self/mountinfo", "40 27 0:50 / /data rw - cifs //server/x rw\n");
    }),
    ("FUSE", CMB, "fuse", |m| {
        m.file("/proc/self/mountinfo", "40 27 0:50 / /data rw - fuse.sshfs x rw\n");
    }),
    ("tmpfs", CMB, "memory", |m| {
        m.file("/proc/self/mountinfo", "40 27 0:50 / /data rw - tmpfs tmpfs rw\n");
    }),
    ("loop device", CMB, "loop", |m| {
        m.disk("259:6", "/sys/devices/virtual/block/loop3");
        m.file("/sys/devices/virtual/block/loop3/loop/backing_file", "/images/data.img\n");
    }),
    ("software RAID", CMB, "md", |m| {
        m.disk("259:6", "/sys/devices/virtual/block/md0");
        m.dir("/sys/devices/virtual/block/md0/slaves/nvme1n1")
            .dir("/sys/devices/virtual/block/md0/slaves/nvme2n1");
    }),
    ("LVM on software RAID", CMB, "dm", |m| {
        m.disk("259:6", "/sys/devices/virtual/block/dm-0");
        m.dir("/sys/devices/virtual/block/dm-0/slaves/md0").dir("/sys/class/block/md0/slaves/nvme1n1");
    }),
    ("multipath", CMB, "multipath", |m| {
        m.disk("259:6", "/sys/devices/virtual/nvme-subsystem/nvme-subsys0/nvme0n1");
    }),
    ("NVMe over fabrics", CMB, "fabrics", |m| {
        m.disk("259:6", "/sys/devices/virtual/nvme-fabrics/ctl/nvme0/nvme0n1");
    }),
    ("virtio disk", CMB, "no-queue", |m| {
        m.disk("259:6", &format!("{ROOT}/0000:00:05.0/virtio1/block/vda"));
    }),
    ("host bridge that is not trusted", CMB, "host-bridge", |m| {
        m.disk("259:6", &format!("{ROOT}/0000:00:07.0/0000:08:00.0/nvme/nvme1/nvme1n1"));
        m.pci(&format!("{ROOT}/0000:00:07.0/0000:08:00.0"), 0x0001_0802, 0x144d, 0xa824);
    }),
    ("host bridge of a virtual machine", CMB, "host-bridge", |m| {
        m.disk("259:6", &format!("{ROOT}/0000:00:07.0/0000:08:00.0/nvme/nvme1/nvme1n1"));
        m.pci(&format!("{ROOT}/0000:00:07.0/0000:08:00.0"), 0x0001_0802, 0x144d, 0xa824);
        m.file("/proc/cpuinfo", "vendor_id\t: GenuineIntel\nflags\t\t: fpu hypervisor\n");
    }),
    ("ACS that redirects, at the switch", CMB, "acs", |m| {
        m.file(&format!("{BUS}/0000:02:01.0/config"), config(0x0c));
        m.file(&format!("{BUS}/0000:02:02.0/config"), config(0x0c));
    }),
    ("IOMMU that translates for the GPU", GPU, "iommu", |m| {
        m.file(&format!("{BUS}/{GPU}/iommu_group/type"), "DMA-FQ\n");
    }),
    ("IOMMU that translates for the drive", GPU, "iommu", |m| {
        m.file(&format!("{BUS}/0000:04:00.0/iommu_group/type"), "DMA\n");
    }),
];

#[test]
fn each_blocker_is_named_with_what_to_type() {
    let mut out = String::new();
    for (name, memory, id, change) in CASES {
        let mut machine = good();
        change(&mut machine);
        let report = look(&machine);
        let route = route(&report, memory);
        assert_eq!(route.reach, Reach::Blocked, "{name}");
        let ids: Vec<&str> = route.blockers.iter().map(|blocker| blocker.id).collect();
        assert_eq!(ids, [*id], "{name}: {:?}", route.blockers);
        let blocker = &route.blockers[0];
        let _ = writeln!(out, "{name}\n  {id}: {}", blocker.text);
        if let Some(fix) = &blocker.fix {
            let _ = writeln!(out, "  fix: {fix}");
        }
        if let Some(errno) = blocker.errno {
            let _ = writeln!(out, "  errno: {errno}");
        }
    }
    insta::assert_snapshot!(out);
}

#[test]
fn an_old_kernel_has_neither_the_memory_nor_the_option() {
    let mut machine = Fake::new("5.15.0-100-generic", 8);
    machine.driver("595.71.05").gpu(GPU, "NVIDIA H100 PCIe", 80 << 30);
    machine.file("/proc/self/mountinfo", MOUNTS).dir("/data");
    let report = look(&machine);
    let ids: Vec<&str> = route(&report, GPU).blockers.iter().map(|blocker| blocker.id).collect();
    assert!(ids.contains(&"kernel-version"), "{ids:?}");
}

#[test]
fn amd_processors_pass_it_through_the_root() {
    let mut machine = good();
    machine.disk("259:6", &format!("{ROOT}/0000:00:07.0/0000:08:00.0/nvme/nvme1/nvme1n1"));
    machine.pci(&format!("{ROOT}/0000:00:07.0/0000:08:00.0"), 0x0001_0802, 0x144d, 0xa824);
    machine.file("/proc/cpuinfo", "vendor_id\t: AuthenticAMD\ncpu family\t: 25\n");
    let report = look(&machine);
    let route = route(&report, GPU);
    assert_eq!(route.reach, Reach::NoObstacle, "{route:?}");
    assert_eq!(route.way, Some(PciWay::HostBridge { bridges: vec!["8086:3000".into()] }));
    // A family before Zen does not.
    machine.file("/proc/cpuinfo", "vendor_id\t: AuthenticAMD\ncpu family\t: 21\n");
    assert_eq!(self::route(&look(&machine), GPU).reach, Reach::Blocked);
}

#[test]
fn what_an_ordinary_user_cannot_read_is_said() {
    let mut machine = good();
    machine.without("/boot/config-6.17.0-8-generic");
    for bridge in [SWITCH, "0000:02:00.0", "0000:02:01.0", "0000:02:02.0"] {
        machine.file(&format!("{BUS}/{bridge}/config"), &config(0)[..64]);
    }
    let report = look(&machine);
    let route = route(&report, CMB);
    assert_eq!(route.reach, Reach::Unknown, "{route:?}");
    // Memory that is there shows that the kernel has the option.
    assert!(route.unread.iter().all(|what| what.contains("ACS of bridge")), "{route:?}");
    assert_eq!(route.unread.len(), 3, "{route:?}");
    let text = render::text(&report);
    assert!(text.contains("could not be read: ACS of bridge 0000:02:01.0; root can: sudo lspci"), "{text}");
}

#[test]
fn what_lies_below_an_overlay_is_not_known() {
    let mut machine = good();
    machine.file("/proc/self/mountinfo", "40 27 0:50 / /data rw - overlay overlay rw\n");
    let report = look(&machine);
    let route = route(&report, CMB);
    assert_eq!((route.reach, route.blockers.as_slice()), (Reach::Unknown, [].as_slice()), "{route:?}");
    assert!(route.unread[0].contains("below the overlay"), "{route:?}");
}

#[test]
fn a_drive_reaches_its_own_memory_however_it_is_connected() {
    let mut machine = good();
    machine.disk("259:6", &format!("{}/nvme/nvme2/nvme2n1", behind_switch("0000:02:02.0", CMB)));
    machine.file(&format!("{BUS}/0000:02:02.0/config"), config(0x0c));
    let report = look(&machine);
    assert_eq!(route(&report, CMB).way, Some(PciWay::SameDevice));
    assert_eq!(route(&report, CMB).reach, Reach::NoObstacle);
}

#[test]
fn a_block_device_is_a_place() {
    let mut machine = good();
    let sysfs = format!("{}/nvme/nvme1/nvme1n1", behind_switch("0000:02:01.0", "0000:04:00.0"));
    machine.file("/dev/nvme1n1", "").link("/sys/class/block/nvme1n1", &sysfs);
    machine.file(&format!("{sysfs}/dev"), "259:6\n");
    let options = CheckOptions { paths: vec!["/dev/nvme1n1".into()], ..CheckOptions::default() };
    let report = examine(&machine, &machine, &options).unwrap_or_else(|error| panic!("{error:?}"));
    assert_eq!((report.places[0].file_system.as_str(), report.places[0].device.as_str()), ("raw", "259:6"));
    assert_eq!(route(&report, CMB).reach, Reach::NoObstacle, "{:?}", route(&report, CMB));
}

#[test]
fn an_iommu_that_translates_for_other_memory_is_a_note() {
    let mut machine = good();
    machine.file(&format!("{BUS}/{CMB}/iommu_group/type"), "DMA-FQ\n");
    let report = look(&machine);
    assert_eq!(route(&report, CMB).reach, Reach::NoObstacle);
    assert!(route(&report, CMB).notes[0].contains("wrong bytes"), "{:?}", route(&report, CMB));
    assert!(!machine.offered().gpus.is_empty());
}
