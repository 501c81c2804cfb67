//! Memory of PCI devices that drives might reach: GPUs, and other devices that publish peer-to-peer memory.

use serde::Serialize;

use super::blocker::{Blocker, RouteFindings};
use crate::gpu::{BUS, GpuFacts};
use crate::system::System;

/// The provider of the memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum MemoryOffer {
    /// A GPU's driver, if it does.
    Gpu,
    /// An NVMe drive's controller memory buffer.
    Nvme,
    /// Another device that publishes peer-to-peer memory.
    Other,
}

/// Memory behind a PCI bus.
#[derive(Clone, Debug, Serialize)]
pub struct BarMemory {
    /// PCI address of the device.
    pub pci: String,
    /// A description for people.
    pub name: String,
    /// Its provider.
    pub offer: MemoryOffer,
    /// Bytes that the kernel knows as peer-to-peer memory; none if it knows none.
    pub bytes: Option<u64>,
    /// Of them, bytes that nobody has allocated.
    pub free: Option<u64>,
    /// Whether its driver lets others use it.
    pub published: Option<bool>,
}

/// The GPUs, then other devices with peer-to-peer memory.
pub(super) fn probe(system: &dyn System, gpus: &[GpuFacts]) -> Vec<BarMemory> {
    let of = |pci: &str, name: String, offer: MemoryOffer| {
        let number = |file: &str| system.number(&format!("{BUS}/{pci}/p2pmem/{file}"));
        BarMemory {
            pci: pci.to_owned(),
            name,
            offer,
            bytes: number("size").map(|bytes| bytes as u64),
            free: number("available").map(|bytes| bytes as u64),
            published: number("published").map(|flag| flag != 0),
        }
    };
    let of_gpu = |gpu: &GpuFacts| of(&gpu.pci, gpu.name.clone(), MemoryOffer::Gpu);
    let mut all: Vec<_> = gpus.iter().filter(|gpu| !gpu.pci.is_empty()).map(of_gpu).collect();
    for pci in system.list(BUS) {
        if !system.is_dir(&format!("{BUS}/{pci}/p2pmem")) || all.iter().any(|known| known.pci == pci) {
            continue;
        }
        // Class 0108: NVM controllers.
        let is_nvme = system.number(&format!("{BUS}/{pci}/class")).is_some_and(|class| class >> 8 == 0x0108);
        let id = |file: &str| system.number(&format!("{BUS}/{pci}/{file}")).unwrap_or(0);
        let (name, offer) = if is_nvme {
            ("controller memory buffer of an NVMe drive".to_owned(), MemoryOffer::Nvme)
        } else {
            (format!("memory of device {:04x}:{:04x}", id("vendor"), id("device")), MemoryOffer::Other)
        };
        all.push(of(&pci, name, offer));
    }
    all
}

/// Whether programs may have some of it.
pub(super) fn check(system: &dyn System, memory: &BarMemory, found: &mut RouteFindings) {
    let allocate = format!("{BUS}/{}/p2pmem/allocate", memory.pci);
    if memory.bytes == Some(0) {
        found.block(Blocker::new("no-p2pmem", format!("{} has no bytes of peer-to-peer memory", memory.pci)));
    }
    if memory.published == Some(false) {
        let text =
            format!("the driver of {} does not publish its memory (p2pmem/published is 0)", memory.pci);
        found.block(Blocker::new("not-published", text));
    }
    if memory.free == Some(0) && memory.bytes.is_some_and(|bytes| bytes > 0) {
        let text = format!("all peer-to-peer memory of {} is in use (p2pmem/available is 0)", memory.pci);
        found.block(Blocker::new("in-use", text).fix(format!("find out by whom: sudo fuser -v {allocate}")));
    }
    if !system.exists(&allocate) {
        let text = format!("the kernel has no {allocate}: programs cannot get this memory");
        found.block(Blocker::new("no-allocate", text).fix("boot kernel 6.2 or later"));
    } else if !(system.access(&allocate, false) && system.access(&allocate, true)) {
        let text = format!("this user may not open {allocate}");
        found.block(Blocker::new("permission", text).fix(format!("sudo chmod a+rw {allocate}")));
    }
}
