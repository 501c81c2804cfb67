//! Describes this machine's RDMA devices: by queries where one was opened, and by /sys.

use std::fs;
use std::path::Path;

use forebay_error::Result;
use forebay_nfs::RdmaOptions;
use forebay_verbs::{Device, Transport};
use serde::Serialize;

const CLASS: &str = "/sys/class/infiniband";

/// An RDMA device. `None` is unknown.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub(super) struct Nic {
    /// Its name: `mlx5_0`.
    pub(super) name: String,
    /// What carries it.
    pub(super) transport: &'static str,
    /// The bytes by RDMA went by it.
    pub(super) used: bool,
    /// Whether it has memory windows of type 2B.
    pub(super) windows: Option<bool>,
    /// Bytes of the largest region.
    pub(super) region_bytes: Option<u64>,
    /// How many regions it has room for.
    pub(super) regions: Option<u32>,
    /// RDMA READs of a peer that it answers at a time.
    pub(super) reads: Option<u32>,
    /// `device_cap_flags`.
    pub(super) flags: Option<u32>,
    /// Its kernel driver.
    pub(super) driver: Option<String>,
    /// Version of its firmware.
    pub(super) firmware: Option<String>,
    /// The board.
    pub(super) board: Option<String>,
    /// Of its first port: `400 Gb/sec (4X NDR)`.
    pub(super) rate: Option<String>,
    /// Of its first port: `Ethernet`, `InfiniBand`.
    pub(super) link: Option<String>,
    /// Of its first port: `4: ACTIVE`.
    pub(super) state: Option<String>,
    /// Its address on the PCI bus.
    pub(super) pci: Option<String>,
    /// Its NUMA node.
    pub(super) numa_node: Option<i32>,
}

/// All devices; `used` is the one that bytes went by, as it describes itself.
pub(super) fn all(rdma: &RdmaOptions, used: Option<&Device>) -> Result<Vec<Nic>> {
    let devices = rdma.fabric.devices()?;
    Ok(devices.iter().map(|device| Nic::of(device, used, Path::new(CLASS))).collect())
}

impl Nic {
    fn of(device: &Device, used: Option<&Device>, class: &Path) -> Self {
        let used = used.filter(|used| used.name == device.name);
        let told = used.unwrap_or(device);
        let base = class.join(&device.name);
        let text = |path: &str| {
            let text = fs::read_to_string(base.join(path)).ok()?;
            Some(text.trim().to_owned()).filter(|text| !text.is_empty())
        };
        let target = |path: &str| {
            let path = fs::canonicalize(base.join(path)).ok()?;
            Some(path.file_name()?.to_string_lossy().into_owned())
        };
        Self {
            name: device.name.clone(),
            transport: match device.transport {
                Transport::Infiniband => "InfiniBand or RoCE",
                Transport::Iwarp => "iWARP",
                Transport::Other => "other",
            },
            used: used.is_some(),
            windows: told.windows,
            region_bytes: told.limits.map(|limits| limits.region_bytes),
            regions: told.limits.map(|limits| limits.regions),
            reads: told.reads,
            flags: told.limits.map(|limits| limits.flags),
            driver: target("device/driver"),
            firmware: text("fw_ver"),
            board: text("board_id"),
            rate: text("ports/1/rate"),
            link: text("ports/1/link_layer"),
            state: text("ports/1/state"),
            pci: target("device"),
            numa_node: text("device/numa_node").and_then(|node| node.parse().ok()).filter(|node| *node >= 0),
        }
    }

    /// In one line, whatever is known.
    pub(super) fn line(&self) -> String {
        let windows = match self.windows {
            Some(true) => "has memory windows of type 2B",
            Some(false) => "has no memory windows of type 2B",
            None => "was not asked about memory windows",
        };
        let mut line = format!("{} ({}) {windows}", self.name, self.transport);
        let mut more = |what: Option<String>| line.extend(what.map(|what| format!("; {what}")));
        more(self.region_bytes.map(|bytes| format!("regions of at most {bytes} bytes")));
        more(self.driver.as_ref().map(|driver| format!("driver {driver}")));
        more(self.firmware.as_ref().map(|firmware| format!("firmware {firmware}")));
        more(self.rate.clone());
        more(self.state.clone());
        line
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::os::unix::fs::symlink;

    use forebay_verbs::DeviceLimits;

    use super::*;

    fn device(limits: Option<DeviceLimits>) -> Device {
        let (name, windows) = ("mlx5_0".to_owned(), limits.map(|_| true));
        Device {
            name,
            transport: Transport::Infiniband,
            windows,
            reads: limits.map(|_| 16),
            limits,
            path: None,
        }
    }

    #[test]
    fn a_nic_is_told_by_its_own_answers_and_by_sys() {
        let root = tempfile::tempdir().unwrap();
        let (class, card) = (root.path().join("class"), root.path().join("0000:1c:00.0"));
        for folder in [class.join("mlx5_0/ports/1"), card.clone(), root.path().join("mlx5_core")] {
            fs::create_dir_all(folder).unwrap();
        }
        symlink(&card, class.join("mlx5_0/device")).unwrap();
        symlink(root.path().join("mlx5_core"), card.join("driver")).unwrap();
        for (path, text) in [
            ("fw_ver", "28.39.1002\n"),
            ("board_id", "MT_0000000838\n"),
            ("ports/1/rate", "400 Gb/sec (4X NDR)\n"),
            ("ports/1/state", "4: ACTIVE\n"),
            ("device/numa_node", "-1\n"),
        ] {
            fs::write(class.join("mlx5_0").join(path), text).unwrap();
        }
        let limits = DeviceLimits { region_bytes: 1 << 40, regions: 7, flags: 1 << 24 };
        let nic = Nic::of(&device(None), Some(&device(Some(limits))), &class);
        assert_eq!(
            nic.line(),
            "mlx5_0 (InfiniBand or RoCE) has memory windows of type 2B; regions of at most 1099511627776 bytes; driver \
             mlx5_core; firmware 28.39.1002; 400 Gb/sec (4X NDR); 4: ACTIVE"
        );
        assert_eq!((nic.pci.as_deref(), nic.numa_node, nic.used), (Some("0000:1c:00.0"), None, true));
        assert_eq!((nic.regions, nic.reads, nic.flags, nic.link), (Some(7), Some(16), Some(1 << 24), None));
        let idle = Nic::of(&device(None), None, &root.path().join("nowhere"));
        assert_eq!(idle.line(), "mlx5_0 (InfiniBand or RoCE) was not asked about memory windows");
        assert!(!idle.used && idle.pci.is_none());
    }
}
