//! GPUs as the PCI bus shows them.

use serde::Serialize;

use crate::exercise::{DriverOffer, GpuSeen, Hinted};
use crate::system::System;

/// A PCI link: current and maximum speed and width.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PciLink {
    /// As `32.0 GT/s PCIe`.
    pub speed: String,
    /// The device's maximum.
    pub max_speed: String,
    /// Lanes in use.
    pub width: u32,
    /// Lanes of the device.
    pub max_width: u32,
}

impl PciLink {
    /// The link of a device of the bus, where the kernel tells it.
    pub(crate) fn of(system: &dyn System, pci: &str) -> Option<Self> {
        let text = |file: &str| system.text(&format!("{BUS}/{pci}/{file}"));
        Some(Self {
            speed: text("current_link_speed")?,
            max_speed: text("max_link_speed")?,
            width: text("current_link_width")?.parse().ok()?,
            max_width: text("max_link_width")?.parse().ok()?,
        })
    }
}

/// A GPU.
#[derive(Clone, Debug, Serialize)]
pub struct GpuFacts {
    /// Index at the surface (`-d`); none if the driver does not offer it.
    pub index: Option<usize>,
    /// Product name, or the name by PCI id.
    pub name: String,
    /// The manufacturer.
    pub maker: &'static str,
    /// As `0000:1b:00.0`.
    pub pci: String,
    /// 32 hexadecimal digits; empty if the driver does not offer it.
    pub uuid: String,
    /// Bytes of device memory; 0 if the driver does not offer it.
    pub memory: u64,
    /// Driver API version as 1000 × major + 10 × minor.
    pub driver_api: i32,
    /// Size of BAR 1 in MiB.
    pub bar1_mib: Option<u64>,
    /// NUMA node.
    pub numa_node: Option<i64>,
    /// PCI link.
    pub link: Option<PciLink>,
    /// Type of its IOMMU group (`DMA`, `DMA-FQ`, `identity`); none without IOMMU.
    pub iommu_group: Option<String>,
    /// Bytes that the device offers for peer-to-peer DMA by the kernel's own way.
    pub p2pmem: Option<u64>,
    /// Bridges above it that redirect peer-to-peer requests (ACS), where readable.
    pub acs: Vec<String>,
}

/// Where the kernel lists PCI devices.
pub(crate) const BUS: &str = "/sys/bus/pci/devices";

/// The GPUs that the driver offers, with their PCI properties, then GPUs that only the bus shows.
pub fn probe(system: &dyn System, offered: &[GpuSeen]) -> Vec<GpuFacts> {
    let mut gpus: Vec<GpuFacts> = offered.iter().map(|seen| on_bus(system, seen)).collect();
    for pci in system.list(BUS) {
        let number = |file: &str| system.number(&format!("{BUS}/{pci}/{file}"));
        let maker = match number("vendor") {
            Some(0x10de) => "NVIDIA",
            Some(0x1002) => "AMD",
            _ => continue,
        };
        // Display controllers (03xx) and processing accelerators (1200).
        let class = number("class").unwrap_or(0) >> 8;
        if (class >> 8 == 3 || class == 0x1200) && !gpus.iter().any(|gpu| gpu.pci == pci) {
            let name = format!("{maker} device {:04x}", number("device").unwrap_or(0));
            gpus.push(on_bus(system, &GpuSeen { index: None, name, pci, ..GpuSeen::default() }));
        }
    }
    gpus
}

/// GPUs as the driver's own files show them, for machines whose driver cannot be asked.
pub fn by_files(system: &dyn System) -> DriverOffer {
    const DIR: &str = "/proc/driver/nvidia/gpus";
    let described = system.list(DIR).into_iter().enumerate().filter_map(|(index, pci)| {
        let text = system.text(&format!("{DIR}/{pci}/information"))?;
        let field = |name: &str| {
            let value = text.lines().find_map(|line| line.strip_prefix(name));
            value.map(|value| value.trim().to_owned()).unwrap_or_default()
        };
        let uuid = field("GPU UUID:").trim_start_matches("GPU-").replace('-', "");
        Some(GpuSeen { index: Some(index), name: field("Model:"), pci, uuid, ..GpuSeen::default() })
    });
    let gpus: Vec<GpuSeen> = described.collect();
    let missing = gpus.is_empty().then(|| Hinted::new(format!("{DIR} lists none")));
    DriverOffer { gpus, missing }
}

fn on_bus(system: &dyn System, seen: &GpuSeen) -> GpuFacts {
    let dir = format!("{BUS}/{}", seen.pci);
    let known = !seen.pci.is_empty() && system.exists(&dir);
    let text = |file: &str| known.then(|| system.text(&format!("{dir}/{file}"))).flatten();
    let number = |file: &str| known.then(|| system.number(&format!("{dir}/{file}"))).flatten();
    GpuFacts {
        index: seen.index,
        name: seen.name.clone(),
        maker: if seen.name.starts_with("AMD") { "AMD" } else { "NVIDIA" },
        pci: seen.pci.clone(),
        uuid: seen.uuid.clone(),
        memory: seen.memory,
        driver_api: seen.driver_api,
        bar1_mib: text("resource").and_then(|table| bar_size(&table, 1)).map(|bytes| bytes >> 20),
        numa_node: number("numa_node").filter(|&node| node >= 0),
        link: known.then(|| PciLink::of(system, &seen.pci)).flatten(),
        iommu_group: text("iommu_group/type"),
        p2pmem: number("p2pmem/size").map(|size| size as u64),
        acs: if known { acs_above(system, &dir) } else { Vec::new() },
    }
}

/// Size of the BAR on line `index` of a PCI `resource` table.
fn bar_size(table: &str, index: usize) -> Option<u64> {
    let mut numbers = table
        .lines()
        .nth(index)?
        .split_whitespace()
        .map(|w| u64::from_str_radix(w.trim_start_matches("0x"), 16));
    let (start, end) = (numbers.next()?.ok()?, numbers.next()?.ok()?);
    (end > start).then(|| end - start + 1)
}

/// Bridges on the way from the device to its root whose ACS control redirects requests or completions. The
/// extended configuration space that tells so is readable by root only.
fn acs_above(system: &dyn System, dir: &str) -> Vec<String> {
    let Some(path) = system.resolve(dir) else { return Vec::new() };
    let parts: Vec<&str> = path.split('/').collect();
    let bridges = parts.iter().take(parts.len() - 1).filter(|part| is_pci_address(part));
    bridges
        .filter(|bridge| {
            system
                .read(&format!("{BUS}/{bridge}/config"))
                .is_ok_and(|config| acs_redirects(&config).unwrap_or(false))
        })
        .map(|bridge| (*bridge).to_owned())
        .collect()
}

/// Whether a path component is a PCI address as `0000:1b:00.0`.
pub(crate) fn is_pci_address(part: &str) -> bool {
    let bytes = part.as_bytes();
    bytes.len() == 12 && bytes[4] == b':' && bytes[7] == b':' && bytes[10] == b'.'
}

/// Walks the extended capabilities to ACS (000Dh); bits 2, 3 and 5 of its control word redirect.
pub(crate) fn acs_redirects(config: &[u8]) -> Option<bool> {
    let word = |at: usize| Some(u16::from_le_bytes([*config.get(at)?, *config.get(at + 1)?]));
    let mut at = 0x100;
    // Capabilities are at least 8 bytes each: more than 480 would be a loop.
    for _ in 0..480 {
        let (id, next) = (word(at)?, usize::from(word(at + 2)? >> 4));
        if id == 0x0d {
            return Some(word(at + 6)? & 0b10_1100 != 0);
        }
        if next < 0x100 {
            return None;
        }
        at = next;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_the_size_of_a_bar() {
        let table = "0x00000000a0000000 0x00000000a0ffffff 0x0000000000040200\n\
                     0x0000380000000000 0x0000383fffffffff 0x000000000014220c\n\
                     0x0000000000000000 0x0000000000000000 0x0000000000000000";
        assert_eq!(bar_size(table, 1), Some(256 << 30));
        assert_eq!(bar_size(table, 2), None);
        assert_eq!(bar_size(table, 9), None);
    }

    #[test]
    fn finds_acs_in_configuration_space() {
        let mut config = vec![0u8; 4096];
        config[0x100..0x104].copy_from_slice(&[0x01, 0x00, 0x01, 0x14]); // AER, next at 0x140
        config[0x140..0x148].copy_from_slice(&[0x0d, 0x00, 0x01, 0x00, 0x5f, 0x00, 0x1d, 0x00]);
        assert_eq!(acs_redirects(&config), Some(true));
        config[0x146] = 0x01;
        assert_eq!(acs_redirects(&config), Some(false));
        assert_eq!(acs_redirects(&config[..64]), None);
    }
}
