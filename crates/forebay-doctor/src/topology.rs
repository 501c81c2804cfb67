//! GPUs, drives and network cards of the machine, and how far they are from each other on the PCI bus.

use std::collections::BTreeMap;
use std::fmt::Write;

use forebay_error::plain;
use forebay_gpu::{PciDistance, PciPlace};
use serde::{Deserialize, Serialize};

use crate::gpu::{self, BUS, PciLink, is_pci_address};
use crate::system::System;

/// A GPU, a drive or a network card. Texts are empty where the kernel does not tell them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Part {
    /// As programs name it: `GPU0`, `nvme0n1`, `mlx5_0`.
    pub name: String,
    /// Model; of a network card with its network interface and rate.
    pub model: String,
    /// Version of its firmware.
    pub firmware: String,
    /// As `0000:1b:00.0`.
    pub pci: String,
    /// What its PCIe link runs at, as `16.0 GT/s × 4`, and what it can where that is more.
    pub link: String,
    /// NUMA node.
    pub numa_node: Option<i64>,
}

/// How far one device is from another, in the words of `nvidia-smi topo -m`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Distance {
    /// The device itself.
    #[serde(rename = "X")]
    Own,
    /// Behind one PCIe switch or bridge.
    #[serde(rename = "PIX")]
    OneSwitch,
    /// Behind several PCIe switches, and no host bridge.
    #[serde(rename = "PXB")]
    Switches,
    /// Through one host bridge.
    #[serde(rename = "PHB")]
    HostBridge,
    /// Through two host bridges of one NUMA node.
    #[serde(rename = "NODE")]
    Node,
    /// Through the link between NUMA nodes.
    #[serde(rename = "SYS")]
    System,
    /// /sys does not show the way.
    #[serde(rename = "?")]
    Unknown,
}

impl Distance {
    /// The word that stands in a matrix.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Own => "X",
            Self::OneSwitch => "PIX",
            Self::Switches => "PXB",
            Self::HostBridge => "PHB",
            Self::Node => "NODE",
            Self::System => "SYS",
            Self::Unknown => "?",
        }
    }

    /// What the word means.
    pub const fn meaning(self) -> &'static str {
        match self {
            Self::Own => "the device itself",
            Self::OneSwitch => "one PCIe switch",
            Self::Switches => "several PCIe switches",
            Self::HostBridge => "one host bridge",
            Self::Node => "two host bridges of one NUMA node",
            Self::System => "the link between NUMA nodes",
            Self::Unknown => "/sys does not show the way",
        }
    }
}

/// The devices of a machine, and the way between any two.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Topology {
    /// GPUs.
    pub gpus: Vec<Part>,
    /// Drives that are not made of others.
    pub drives: Vec<Part>,
    /// Network cards on the PCI bus.
    pub nics: Vec<Part>,
    /// A row and a column for each device: GPUs, then drives, then network cards.
    pub matrix: Vec<Vec<Distance>>,
}

/// Bridges between two devices behind one switch: a port of the switch for each, and its upstream port.
const ONE_SWITCH: usize = 3;
/// Block devices that are no drives.
const NO_DRIVES: [&str; 9] = ["loop", "ram", "zram", "dm-", "md", "sr", "fd", "nbd", "drbd"];

impl Topology {
    /// Looks; `gpus` are those that the driver offers, in its order.
    pub fn probe(system: &dyn System, gpus: &[crate::exercise::GpuSeen]) -> Self {
        let gpus = gpus_of(system, gpus);
        let (drives, nics) = (drives(system), nics(system));
        let places: Vec<_> =
            gpus.iter().chain(&drives).chain(&nics).map(|part| place(system, &part.pci)).collect();
        let row = |(at, one): (usize, &Option<PciPlace>)| {
            let cell = |(other, to): (usize, &Option<PciPlace>)| match (one, to) {
                _ if at == other => Distance::Own,
                (Some(one), Some(to)) => distance(one, to),
                _ => Distance::Unknown,
            };
            places.iter().enumerate().map(cell).collect()
        };
        let matrix = places.iter().enumerate().map(row).collect();
        Self { gpus, drives, nics, matrix }
    }

    /// All devices in the order of the matrix.
    pub fn parts(&self) -> impl Iterator<Item = &Part> {
        self.gpus.iter().chain(&self.drives).chain(&self.nics)
    }

    /// The words of the matrix that need an explanation, each once.
    pub fn legend(&self) -> Vec<Distance> {
        let mut all: Vec<Distance> = Vec::new();
        for one in self.matrix.iter().flatten() {
            if !all.contains(one) && *one != Distance::Own {
                all.push(*one);
            }
        }
        all
    }

    /// Tables for a terminal.
    pub fn text(&self) -> String {
        if self.parts().next().is_none() {
            return "no GPU, drive or network card is on the PCI bus\n".to_owned();
        }
        let none = |text: &str| if text.is_empty() { "-".to_owned() } else { text.to_owned() };
        let heads = ["name", "PCI address", "link", "NUMA node", "firmware", "model"].map(str::to_owned);
        let rows = self.parts().map(|part| {
            let node = part.numa_node.map_or_else(|| "-".to_owned(), |node| node.to_string());
            [&part.name, &part.pci, &part.link, &node, &part.firmware, &part.model]
                .map(|text| none(text))
                .to_vec()
        });
        let mut text = aligned(&std::iter::once(heads.to_vec()).chain(rows).collect::<Vec<_>>());
        text.push('\n');
        let heads = std::iter::once(String::new()).chain(self.parts().map(|part| part.name.clone()));
        let rows = self.parts().zip(&self.matrix).map(|(part, row)| {
            let cells = row.iter().map(|one| one.word().to_owned());
            std::iter::once(part.name.clone()).chain(cells).collect()
        });
        text += &aligned(&std::iter::once(heads.collect()).chain(rows).collect::<Vec<_>>());
        for one in self.legend() {
            let _ = write!(text, "\n{:<4}  {}", one.word(), one.meaning());
        }
        text.push('\n');
        text
    }
}

/// Lines whose cells stand below each other. Models and names may be those of a copy that anybody has made.
fn aligned(rows: &[Vec<String>]) -> String {
    let shown = |row: &Vec<String>| row.iter().map(|cell| plain(cell).into_owned()).collect();
    let rows: Vec<Vec<String>> = rows.iter().map(shown).collect();
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = |at: usize| {
        rows.iter().filter_map(|row| row.get(at)).map(|cell| cell.chars().count()).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..columns).map(width).collect();
    let mut text = String::new();
    for row in &rows {
        let cells: Vec<String> =
            row.iter().zip(&widths).map(|(cell, width)| format!("{cell:<width$}")).collect();
        let _ = writeln!(text, "{}", cells.join("  ").trim_end());
    }
    text
}

fn place(system: &dyn System, pci: &str) -> Option<PciPlace> {
    let place = PciPlace::parse(&system.resolve(&format!("{BUS}/{pci}"))?)?;
    let node = numa_node(system, pci).and_then(|node| u32::try_from(node).ok());
    (place.devices.last().map(String::as_str) == Some(pci)).then_some(PciPlace { node, ..place })
}

fn distance(one: &PciPlace, other: &PciPlace) -> Distance {
    match one.distance(other) {
        PciDistance::Switch(bridges) if bridges <= ONE_SWITCH => Distance::OneSwitch,
        PciDistance::Switch(_) => Distance::Switches,
        PciDistance::HostBridge => Distance::HostBridge,
        PciDistance::Node => Distance::Node,
        PciDistance::Far => Distance::System,
    }
}

fn numa_node(system: &dyn System, pci: &str) -> Option<i64> {
    system.number(&format!("{BUS}/{pci}/numa_node")).filter(|node| *node >= 0)
}

/// The PCIe link in words.
fn link(system: &dyn System, pci: &str) -> String {
    let Some(link) = PciLink::of(system, pci) else { return String::new() };
    let words = |speed: &str, width: u32| format!("{} × {width}", speed.trim_end_matches(" PCIe"));
    let now = words(&link.speed, link.width);
    let most = words(&link.max_speed, link.max_width);
    if now == most { now } else { format!("{now} of {most}") }
}

/// A device of the bus.
fn part(system: &dyn System, name: &str, pci: Option<&str>) -> Part {
    let pci = pci.unwrap_or_default();
    Part {
        name: name.to_owned(),
        link: link(system, pci),
        numa_node: numa_node(system, pci),
        pci: pci.to_owned(),
        ..Part::default()
    }
}

fn gpus_of(system: &dyn System, offered: &[crate::exercise::GpuSeen]) -> Vec<Part> {
    let found = gpu::probe(system, offered).into_iter().enumerate();
    let part = |(at, gpu): (usize, gpu::GpuFacts)| {
        let about = system.text(&format!("/proc/driver/nvidia/gpus/{}/information", gpu.pci));
        let bios =
            about.as_deref().and_then(|text| text.lines().find_map(|line| line.strip_prefix("Video BIOS:")));
        Part {
            model: gpu.name,
            firmware: bios.map(|text| text.trim().to_owned()).unwrap_or_default(),
            ..part(system, &format!("GPU{}", gpu.index.unwrap_or(at)), Some(&gpu.pci))
        }
    };
    found.map(part).collect()
}

/// The PCI device that a path of /sys is below.
fn pci_of(path: &str) -> Option<String> {
    path.rsplit('/').find(|part| is_pci_address(part)).map(str::to_owned)
}

fn drives(system: &dyn System) -> Vec<Part> {
    let names = system.list("/sys/class/block").into_iter();
    let found = names.filter(|name| !NO_DRIVES.iter().any(|prefix| name.starts_with(prefix)));
    let drive = |name: String| {
        let dir = system.resolve(&format!("/sys/class/block/{name}"))?;
        let text = |file: &str| system.text(&format!("{dir}/{file}")).unwrap_or_default();
        if system.exists(&format!("{dir}/partition")) || text("size") == "0" {
            return None;
        }
        // With multipath the device is a subsystem, and below it are its controllers.
        let by_controller = || {
            let mut below = system.list(&format!("{dir}/device")).into_iter();
            let address = below.find_map(|one| system.text(&format!("{dir}/device/{one}/address")))?;
            is_pci_address(&address).then_some(address)
        };
        let pci = pci_of(&dir).or_else(by_controller);
        let (model, maker) = (text("device/model"), text("device/vendor"));
        let firmware =
            [text("device/firmware_rev"), text("device/rev")].into_iter().find(|one| !one.is_empty());
        let model = match (model.is_empty(), name.starts_with("vd"), maker.starts_with("0x")) {
            (true, true, _) => "virtio disk".to_owned(),
            (false, _, false) => format!("{maker} {model}").trim().to_owned(),
            _ => model,
        };
        Some(Part { model, firmware: firmware.unwrap_or_default(), ..part(system, &name, pci.as_deref()) })
    };
    found.filter_map(drive).collect()
}

/// Names of a class by the PCI device that they belong to.
fn by_pci(system: &dyn System, class: &str) -> BTreeMap<String, Vec<String>> {
    let mut all: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for name in system.list(class) {
        if let Some(pci) = system.resolve(&format!("{class}/{name}")).and_then(|path| pci_of(&path)) {
            all.entry(pci).or_default().push(name);
        }
    }
    all
}

fn nics(system: &dyn System) -> Vec<Part> {
    let (interfaces, rdma) = (by_pci(system, "/sys/class/net"), by_pci(system, "/sys/class/infiniband"));
    let mut all: Vec<&String> = interfaces.keys().chain(rdma.keys()).collect();
    all.sort_unstable();
    all.dedup();
    let first =
        |of: &BTreeMap<String, Vec<String>>, pci: &str| of.get(pci).and_then(|names| names.first().cloned());
    let nic = |pci: &String| {
        let (interface, device) = (first(&interfaces, pci), first(&rdma, pci));
        let about = |file: &str| {
            let text =
                device.as_ref().and_then(|name| system.text(&format!("/sys/class/infiniband/{name}/{file}")));
            text.unwrap_or_default()
        };
        let speed =
            interface.as_ref().and_then(|name| system.number(&format!("/sys/class/net/{name}/speed")));
        let speed = speed.filter(|mbit| *mbit > 0).map(|mbit| format!("{} Gb/s", mbit as f64 / 1e3));
        let driver = system.resolve(&format!("{BUS}/{pci}/driver"));
        let driver = driver.and_then(|path| path.rsplit('/').next().map(str::to_owned)).unwrap_or_default();
        let kind = [about("hca_type"), driver].into_iter().find(|one| !one.is_empty());
        let rate = Some(about("ports/1/rate")).filter(|one| !one.is_empty()).or(speed);
        let beside = device.as_ref().and(interface.clone());
        let model: Vec<String> = [kind, beside, rate].into_iter().flatten().collect();
        let name = device.clone().or_else(|| interface.clone()).unwrap_or_default();
        Part { model: model.join(", "), firmware: about("fw_ver"), ..part(system, &name, Some(pci)) }
    };
    all.into_iter().map(nic).collect()
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;
    use std::path::Path;

    use super::*;
    use crate::RootedSystem;

    struct Tree(tempfile::TempDir);

    impl Tree {
        fn write(&self, path: &str, text: &str) {
            let path = self.0.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }

        fn link(&self, from: &str, to: &str) {
            let from = self.0.path().join(from);
            fs::create_dir_all(from.parent().unwrap()).unwrap();
            symlink(Path::new("/").join(to), from).unwrap();
        }

        /// A device of the bus, as the kernel shows it.
        fn device(&self, way: &str, node: &str) {
            let pci = way.rsplit('/').next().unwrap();
            let dir = format!("sys/devices/{way}");
            self.write(&format!("{dir}/numa_node"), node);
            self.link(&format!("sys/bus/pci/devices/{pci}"), &dir);
        }
    }

    /// A switch with a GPU, a drive and a card; a drive below the other socket.
    fn machine() -> Tree {
        let tree = Tree(tempfile::tempdir().unwrap());
        let switch = "pci0000:15/0000:15:01.0/0000:16:00.0";
        let gpu = format!("{switch}/0000:17:00.0/0000:18:00.0");
        let drive = format!("{switch}/0000:17:02.0/0000:1b:00.0");
        let card = format!("{switch}/0000:17:01.0/0000:19:00.0");
        let far = "pci0000:d0/0000:d0:03.0/0000:d1:00.0";
        for (way, node) in [(gpu.as_str(), "0"), (&drive, "0"), (&card, "0"), (far, "1")] {
            tree.device(way, node);
        }
        for (file, text) in [("vendor", "0x10de"), ("class", "0x030200"), ("device", "0x2330")] {
            tree.write(&format!("sys/devices/{gpu}/{file}"), text);
        }
        for (way, name, model, width) in
            [(drive.as_str(), "nvme0", "KIOXIA CM7", "4"), (far, "nvme1", "Micron 7450", "2")]
        {
            let controller = format!("sys/devices/{way}/nvme/{name}");
            tree.write(&format!("{controller}/model"), model);
            tree.write(&format!("{controller}/firmware_rev"), "2.1.0");
            tree.write(&format!("{controller}/{name}n1/size"), "1000");
            tree.link(&format!("{controller}/{name}n1/device"), &controller);
            tree.link(&format!("sys/class/block/{name}n1"), &format!("{controller}/{name}n1"));
            tree.write(&format!("{controller}/{name}n1/{name}n1p1/partition"), "1");
            tree.link(&format!("sys/class/block/{name}n1p1"), &format!("{controller}/{name}n1/{name}n1p1"));
            for (file, text) in [
                ("current_link_speed", "16.0 GT/s PCIe"),
                ("max_link_speed", "16.0 GT/s PCIe"),
                ("current_link_width", width),
                ("max_link_width", "4"),
            ] {
                tree.write(&format!("sys/devices/{way}/{file}"), text);
            }
        }
        let rdma = format!("sys/devices/{card}/infiniband/mlx5_0");
        for (file, text) in
            [("hca_type", "MT4129"), ("fw_ver", "28.39.1002"), ("ports/1/rate", "400 Gb/sec (4X NDR)")]
        {
            tree.write(&format!("{rdma}/{file}"), text);
        }
        tree.link("sys/class/infiniband/mlx5_0", &rdma);
        tree.write(&format!("sys/devices/{card}/net/ens1/speed"), "400000");
        tree.link("sys/class/net/ens1", &format!("sys/devices/{card}/net/ens1"));
        tree.write("sys/devices/virtual/net/lo/mtu", "1");
        tree.link("sys/class/net/lo", "sys/devices/virtual/net/lo");
        tree
    }

    #[test]
    fn devices_and_the_way_between_them() {
        let tree = machine();
        let found = Topology::probe(&RootedSystem::new(tree.0.path()), &[]);
        insta::assert_snapshot!(found.text(), @r"
        name     PCI address   link                            NUMA node  firmware    model
        GPU0     0000:18:00.0  -                               0          -           NVIDIA device 2330
        nvme0n1  0000:1b:00.0  16.0 GT/s × 4                   0          2.1.0       KIOXIA CM7
        nvme1n1  0000:d1:00.0  16.0 GT/s × 2 of 16.0 GT/s × 4  1          2.1.0       Micron 7450
        mlx5_0   0000:19:00.0  -                               0          28.39.1002  MT4129, ens1, 400 Gb/sec (4X NDR)

                 GPU0  nvme0n1  nvme1n1  mlx5_0
        GPU0     X     PIX      SYS      PIX
        nvme0n1  PIX   X        SYS      PIX
        nvme1n1  SYS   SYS      X        SYS
        mlx5_0   PIX   PIX      SYS      X

        PIX   one PCIe switch
        SYS   the link between NUMA nodes
        ");
        let json = serde_json::to_string(&found).unwrap();
        assert_eq!(serde_json::from_str::<Topology>(&json).unwrap(), found);
    }

    #[test]
    fn a_copy_does_not_write_to_the_terminal() {
        let tree = machine();
        tree.write("sys/devices/pci0000:d0/0000:d0:03.0/0000:d1:00.0/nvme/nvme1/model", "Mi\u{1b}[2Jcron");
        let text = Topology::probe(&RootedSystem::new(tree.0.path()), &[]).text();
        assert!(text.contains("cron") && !text.contains('\u{1b}'), "{text:?}");
    }

    #[test]
    fn a_machine_without_a_bus() {
        let root = tempfile::tempdir().unwrap();
        let found = Topology::probe(&RootedSystem::new(root.path()), &[]);
        assert_eq!(
            (found.text().as_str(), found),
            ("no GPU, drive or network card is on the PCI bus\n", Topology::default())
        );
    }
}
