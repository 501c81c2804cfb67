//! Places of devices on the PCI bus, and how near two of them are.

use std::fs;

/// A device's place: its root bus, and the bridges from there down to it, itself last.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PciPlace {
    /// The root bus, as `0000:00`.
    pub root: String,
    /// Addresses of the bridges and of the device.
    pub devices: Vec<String>,
    /// Its NUMA node, where the system tells.
    pub node: Option<u32>,
}

/// How near two devices are, the nearest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum PciDistance {
    /// Below one bridge, which is a switch's or a root port: this many bridges between them.
    Switch(usize),
    /// Below one root bus.
    HostBridge,
    /// On one NUMA node.
    Node,
    /// On another, or not known.
    Far,
}

/// Whether a part of a path is a PCI address: `0000:1b:00.0`.
fn is_address(part: &str) -> bool {
    let mut fields = part.split([':', '.']);
    let is_hex = |field: Option<&str>, len: usize| {
        field.is_some_and(|text| text.len() >= len && text.chars().all(|digit| digit.is_ascii_hexdigit()))
    };
    part.matches(':').count() == 2
        && is_hex(fields.next(), 4)
        && is_hex(fields.next(), 2)
        && is_hex(fields.next(), 2)
        && is_hex(fields.next(), 1)
        && fields.next().is_none()
}

impl PciPlace {
    /// The place of a device by its address, as /sys shows it.
    pub fn of(address: &str) -> Option<Self> {
        let path = fs::canonicalize(format!("/sys/bus/pci/devices/{address}")).ok()?;
        Self::of_path(path.to_str()?)
    }

    /// The place of a device by its path below /sys/devices, with its NUMA node.
    pub fn of_path(path: &str) -> Option<Self> {
        let node = fs::read_to_string(format!("{path}/numa_node")).ok();
        let node = node.and_then(|text| text.trim().parse().ok());
        Some(Self { node, ..Self::parse(path)? })
    }

    /// Reads a path as `/sys/devices/pci0000:00/0000:00:01.0/0000:01:00.0`.
    pub fn parse(path: &str) -> Option<Self> {
        let mut parts = path.split('/').skip_while(|part| !part.starts_with("pci"));
        let root = parts.next()?.trim_start_matches("pci").to_owned();
        let devices: Vec<String> = parts.filter(|part| is_address(part)).map(str::to_owned).collect();
        (!devices.is_empty()).then_some(Self { root, devices, node: None })
    }

    /// The bridges above it.
    pub fn bridges(&self) -> &[String] {
        &self.devices[..self.devices.len() - 1]
    }

    /// Bridges, from the root bus down, that both are below.
    pub fn shared_bridges(&self, other: &Self) -> usize {
        let both = self.bridges().iter().zip(other.bridges());
        if self.root == other.root { both.take_while(|(one, other)| one == other).count() } else { 0 }
    }

    /// How near another device is.
    pub fn distance(&self, other: &Self) -> PciDistance {
        match self.shared_bridges(other) {
            0 if self.root == other.root => PciDistance::HostBridge,
            0 if self.node.is_some() && self.node == other.node => PciDistance::Node,
            0 => PciDistance::Far,
            shared => PciDistance::Switch(self.bridges().len() + other.bridges().len() - 2 * shared + 1),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(path: &str, node: u32) -> PciPlace {
        PciPlace { node: Some(node), ..PciPlace::parse(&format!("/sys/devices/{path}")).unwrap() }
    }

    #[test]
    fn what_is_behind_one_switch_is_nearest() {
        let gpu = place("pci0000:15/0000:15:01.0/0000:16:00.0/0000:17:00.0/0000:18:00.0", 0);
        let others = [
            place("pci0000:15/0000:15:01.0/0000:16:00.0/0000:17:01.0/0000:19:00.0", 0),
            place(
                "pci0000:15/0000:15:01.0/0000:16:00.0/0000:17:02.0/0000:1a:00.0/0000:1b:00.0/0000:1c:00.0",
                0,
            ),
            place("pci0000:15/0000:15:02.0/0000:30:00.0", 0),
            place("pci0000:37/0000:37:01.0/0000:38:00.0", 0),
            place("pci0000:97/0000:97:01.0/0000:98:00.0", 1),
        ];
        let distances = others.each_ref().map(|other| gpu.distance(other));
        let near = [PciDistance::Switch(3), PciDistance::Switch(5), PciDistance::HostBridge];
        assert_eq!(distances[..3], near);
        assert_eq!(distances[3..], [PciDistance::Node, PciDistance::Far]);
        assert!(distances.is_sorted());
        for (other, distance) in others.iter().zip(distances) {
            assert_eq!(other.distance(&gpu), distance);
        }
        // A system of one node tells none.
        let unknown = PciPlace { node: None, ..gpu };
        assert_eq!(unknown.distance(&PciPlace { node: None, ..others[3].clone() }), PciDistance::Far);
    }

    #[test]
    fn paths_of_devices_elsewhere_have_no_place() {
        for path in
            ["/sys/devices/virtual/net/eth0", "", "/sys/devices/pci0000:00", "/sys/devices/pci0000:00/x"]
        {
            assert_eq!(PciPlace::parse(path), None, "{path}");
        }
        let virtio = PciPlace::parse("/sys/devices/pci0000:00/0000:00:03.0/virtio0/net/eth0").unwrap();
        assert_eq!((virtio.root.as_str(), virtio.devices), ("0000:00", vec!["0000:00:03.0".to_owned()]));
        assert_eq!(PciPlace::of("0000:ff:1f.9"), None);
    }
}
