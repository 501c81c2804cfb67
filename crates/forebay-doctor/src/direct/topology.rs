//! The way on the PCI bus between a drive and a memory: by a switch, or through the host bridge.

use forebay_gpu::PciPlace;
use serde::Serialize;

use super::blocker::{Blocker, RouteFindings};
use super::memory::BarMemory;
use crate::gpu::{BUS, acs_redirects};
use crate::machine::MachineFacts;
use crate::system::System;

/// How bytes would travel.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "by", rename_all = "snake_case")]
pub enum PciWay {
    /// Drive and memory are one device.
    SameDevice,
    /// By a bridge that both are behind.
    Switch {
        /// Its PCI address.
        bridge: String,
    },
    /// Up to the root and down again.
    HostBridge {
        /// Vendor and device of the host bridges, as `8086:29c0`.
        bridges: Vec<String>,
    },
}

/// A device's place.
fn place(system: &dyn System, pci: &str) -> Option<PciPlace> {
    let place = PciPlace::parse(&system.resolve(&format!("{BUS}/{pci}"))?)?;
    (place.devices.last().map(String::as_str) == Some(pci)).then_some(place)
}

/// Bridges and roots between two devices of the bus, by their addresses. None if /sys does not show the path.
pub fn pci_distance(system: &dyn System, one: &str, other: &str) -> Option<usize> {
    let (one, other) = (place(system, one)?, place(system, other)?);
    let shared = one.devices.iter().zip(&other.devices).take_while(|(a, b)| a == b).count();
    let roots = if one.root == other.root { 0 } else { 2 };
    Some(one.devices.len() + other.devices.len() - 2 * shared + roots)
}

/// The nearest common point of two devices of the bus.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum PciNearness {
    /// The bridge that both are behind.
    Switch(String),
    /// The root that both are below.
    HostBridge,
    /// None: each is below its own root.
    Roots,
}

/// How near two devices are. None if /sys does not show the path.
pub(crate) fn nearness(system: &dyn System, one: &str, other: &str) -> Option<PciNearness> {
    let (one, other) = (place(system, one)?, place(system, other)?);
    Some(match one.shared_bridges(&other) {
        0 if one.root == other.root => PciNearness::HostBridge,
        0 => PciNearness::Roots,
        shared => PciNearness::Switch(one.bridges()[shared - 1].clone()),
    })
}

/// Follows the kernel's own rules. None if /sys does not show the path.
pub(super) fn check(
    system: &dyn System,
    machine: &MachineFacts,
    memory: &BarMemory,
    drive: &str,
    found: &mut RouteFindings,
) -> Option<PciWay> {
    if memory.pci == drive {
        return Some(PciWay::SameDevice);
    }
    let (Some(from), Some(to)) = (place(system, drive), place(system, &memory.pci)) else {
        found.unread(format!("the way on the PCI bus between {drive} and {}", memory.pci));
        return None;
    };
    let shared = from.shared_bridges(&to);
    if shared == 0 {
        let bridges = through_root(system, machine, &from, &to, None, found);
        return Some(PciWay::HostBridge { bridges });
    }
    // The shared bridge itself counts, too.
    let below = from.bridges()[shared - 1..].iter().chain(&to.bridges()[shared..]);
    let redirecting = redirecting(system, below, found);
    if redirecting.is_empty() {
        return Some(PciWay::Switch { bridge: from.bridges()[shared - 1].clone() });
    }
    let bridges = through_root(system, machine, &from, &to, Some(&redirecting), found);
    Some(PciWay::HostBridge { bridges })
}

/// Bridges whose ACS sends peer-to-peer requests up to the root.
fn redirecting<'a>(
    system: &dyn System,
    bridges: impl Iterator<Item = &'a String>,
    found: &mut RouteFindings,
) -> Vec<String> {
    let mut all = Vec::new();
    for bridge in bridges {
        match system.read(&format!("{BUS}/{bridge}/config")) {
            // A program without privileges sees the first 64 bytes only, and some kernels 256.
            Ok(config) if config.len() > 0x100 => {
                if acs_redirects(&config) == Some(true) {
                    all.push(bridge.clone());
                }
            }
            _ => found.unread(format!(
                "ACS of bridge {bridge}; root can: sudo lspci -vvs {bridge} | grep ACSCtl (ReqRedir+ redirects)"
            )),
        }
    }
    all
}

/// The way leads through the root: the kernel must trust the host bridges for that. Their names.
fn through_root(
    system: &dyn System,
    machine: &MachineFacts,
    from: &PciPlace,
    to: &PciPlace,
    acs: Option<&[String]>,
    found: &mut RouteFindings,
) -> Vec<String> {
    let same = from.root == to.root;
    let mut roots = vec![&from.root];
    if !same {
        roots.push(&to.root);
    }
    let seen: Vec<Option<(i64, i64)>> = roots.iter().map(|root| host_bridge(system, root)).collect();
    let name = |seen: &Option<(i64, i64)>| match seen {
        Some((vendor, device)) => format!("{vendor:04x}:{device:04x}"),
        None => "unknown".to_owned(),
    };
    let names: Vec<String> = seen.iter().map(name).collect();
    let is_trusted = is_zen(system) || seen.iter().all(|seen| seen.is_some_and(|id| is_listed(id, same)));
    if is_trusted {
        if let Some(bridges) = acs {
            found.note(format!(
                "ACS at bridge {} sends peer-to-peer requests through the root, which is slower",
                bridges.join(", ")
            ));
        }
        return names;
    }
    let distrusted = format!(
        "the host bridge ({}), which kernel {} is not known to trust with peer-to-peer DMA",
        names.join(", "),
        machine.kernel
    );
    let log = "the kernel's messages: sudo dmesg | grep -i p2pdma";
    found.block(
        match acs {
            Some(bridges) => Blocker::new(
                "acs",
                format!("ACS at bridge {} sends peer-to-peer requests through {distrusted}", bridges.join(", ")),
            )
            .fix(format!(
                "add pci=disable_acs_redir={} to the kernel command line and reboot (devices behind it are no longer \
                 isolated from each other)",
                bridges.join(";")
            )),
            None if machine.virtual_machine => {
                Blocker::new("host-bridge", format!("the way leads through {distrusted}: that of a virtual machine"))
                    .fix("give the guest both devices behind one virtual PCIe switch, or an AMD processor model")
            }
            None => Blocker::new("host-bridge", format!("the way leads through {distrusted}"))
                .fix(format!("put both devices behind one PCIe switch (lspci -tv shows the tree); {log}")),
        }
        .remote(),
    );
    names
}

/// Vendor and device of the first device on a root bus: the host bridge, or a root port where that is hidden.
fn host_bridge(system: &dyn System, root: &str) -> Option<(i64, i64)> {
    let on_bus = |pci: &String| pci.starts_with(&format!("{root}:"));
    let first = system.list(BUS).into_iter().filter(on_bus).min()?;
    let number = |file: &str| system.number(&format!("{BUS}/{first}/{file}"));
    Some((number("vendor")?, number("device")?))
}

/// AMD processors from Zen on.
fn is_zen(system: &dyn System) -> bool {
    let text = system.text("/proc/cpuinfo").unwrap_or_default();
    let field = |name: &str| {
        let line = text.lines().find(|line| line.split(':').next().is_some_and(|key| key.trim() == name))?;
        line.split_once(':').map(|(_, value)| value.trim().to_owned())
    };
    field("vendor_id").as_deref() == Some("AuthenticAMD")
        && field("cpu family")
            .and_then(|family| family.parse::<u32>().ok())
            .is_some_and(|family| family >= 0x17)
}

/// Host bridges that kernels trust. Newer kernels have a longer list.
fn is_listed((vendor, device): (i64, i64), same: bool) -> bool {
    const INTEL: i64 = 0x8086;
    const GOOGLE: i64 = 0x1ae0;
    // Sandy Bridge-E to Haswell-E: within one host bridge only.
    const WITHIN: [i64; 4] = [0x3c00, 0x3c01, 0x2f00, 0x2f01];
    // Skylake-E, Ice Lake, Sapphire Rapids to Diamond Rapids (by the accelerators on their root buses).
    const ACROSS: [i64; 16] = [
        0x2020, 0x2030, 0x2031, 0x2032, 0x2033, 0x09a2, 0x0b25, 0x0cfe, 0x11fb, 0x1212, 0x1216, 0x4940,
        0x4942, 0x4944, 0x4946, 0x4948,
    ];
    match vendor {
        INTEL => ACROSS.contains(&device) || (same && WITHIN.contains(&device)),
        GOOGLE => true,
        _ => false,
    }
}

/// An IOMMU that translates is in the way of GPUs; with other devices' memory the kernel handles it.
pub(super) fn check_iommu(
    system: &dyn System,
    memory: &BarMemory,
    drive: Option<&str>,
    is_gpu: bool,
    found: &mut RouteFindings,
) {
    let translates = |pci: &str| {
        system.text(&format!("{BUS}/{pci}/iommu_group/type")).is_some_and(|kind| kind.starts_with("DMA"))
    };
    let whose = match (translates(&memory.pci), drive.is_some_and(translates)) {
        (false, false) => return,
        (true, _) if is_gpu => "the IOMMU translates for this GPU",
        (false, true) if is_gpu => "the IOMMU translates for the drive",
        _ => {
            return found.note(
                "the IOMMU translates: where it does not know the memory a read may end without an error and with wrong \
                 bytes, so compare them",
            );
        }
    };
    found.block(Blocker::new("iommu", whose).fix(
        "add iommu=pt to the kernel command line (GRUB_CMDLINE_LINUX in /etc/default/grub), update-grub, reboot",
    ));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distances_on_the_bus() -> std::io::Result<()> {
        let root = tempfile::tempdir()?;
        let devices = root.path().join("sys/bus/pci/devices");
        std::fs::create_dir_all(&devices)?;
        for way in [
            "pci0000:00/0000:00:01.0/0000:01:00.0",
            "pci0000:00/0000:00:01.0/0000:02:00.0",
            "pci0000:80/0000:80:02.0/0000:82:00.0",
        ] {
            std::fs::create_dir_all(root.path().join("sys/devices").join(way))?;
            let link = devices.join(&way[way.len() - 12..]);
            std::os::unix::fs::symlink(format!("/sys/devices/{way}"), link)?;
        }
        let system = crate::RootedSystem::new(root.path());
        assert_eq!(pci_distance(&system, "0000:01:00.0", "0000:02:00.0"), Some(2));
        assert_eq!(pci_distance(&system, "0000:01:00.0", "0000:82:00.0"), Some(6));
        assert_eq!(pci_distance(&system, "0000:01:00.0", "0000:99:00.0"), None);
        Ok(())
    }

    #[test]
    fn older_bridges_are_trusted_within_themselves_only() {
        assert!(is_listed((0x8086, 0x2f00), true) && !is_listed((0x8086, 0x2f00), false));
        assert!(is_listed((0x8086, 0x09a2), false) && is_listed((0x1ae0, 1), false));
        assert!(!is_listed((0x8086, 0x29c0), true), "QEMU's q35");
    }
}
