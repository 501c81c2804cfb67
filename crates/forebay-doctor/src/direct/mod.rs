//! Which drive can reach which device memory by itself, and what prevents it.
//!
//! All of it is read from /sys and /proc, as an ordinary user; files that such a user cannot read are reported. Nothing
//! is tried: where no obstacle is found, only a transfer whose bytes are compared would prove that there is none.

mod blocker;
mod drive;
mod kernel;
mod memory;
mod topology;

use serde::Serialize;

pub use self::blocker::Blocker;
use self::blocker::RouteFindings;
pub use self::memory::{BarMemory, MemoryOffer};
pub(crate) use self::topology::{PciNearness, nearness};
pub use self::topology::{PciWay, pci_distance};
use crate::gpu::GpuFacts;
use crate::machine::MachineFacts;
use crate::storage::StoragePlace;
use crate::system::System;

/// The verdict on the path from a drive to a memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Reach {
    /// Something prevents it.
    Blocked,
    /// No obstacle was found, and all was readable. Nothing is proven.
    NoObstacle,
    /// No obstacle was found, but not all was readable.
    Unknown,
}

impl Reach {
    /// For people.
    pub const fn label(self) -> &'static str {
        match self {
            Self::Blocked => "blocked",
            Self::NoObstacle => "no obstacle",
            Self::Unknown => "unknown",
        }
    }
}

/// The way from the drive below a place to a memory.
#[derive(Clone, Debug, Serialize)]
pub struct DriveRoute {
    /// PCI address of the memory's device.
    pub memory: String,
    /// The place's path.
    pub place: String,
    /// The verdict.
    pub reach: Reach,
    /// The blockers.
    pub blockers: Vec<Blocker>,
    /// How bytes would travel; none if the drive is not known.
    pub way: Option<PciWay>,
    /// Notes that block nothing.
    pub notes: Vec<String>,
    /// Files that could not be read, and who could read them.
    pub unread: Vec<String>,
}

/// All memories with all places.
pub fn routes(
    system: &dyn System,
    machine: &MachineFacts,
    gpus: &[GpuFacts],
    places: &[StoragePlace],
) -> (Vec<BarMemory>, Vec<DriveRoute>) {
    let memories = memory::probe(system, gpus);
    let mut routes = Vec::new();
    for memory in &memories {
        let gpu = gpus.iter().find(|gpu| gpu.pci == memory.pci);
        for place in places {
            routes.push(route(system, machine, memory, gpu, place));
        }
    }
    (memories, routes)
}

fn route(
    system: &dyn System,
    machine: &MachineFacts,
    memory: &BarMemory,
    gpu: Option<&GpuFacts>,
    place: &StoragePlace,
) -> DriveRoute {
    let mut found = RouteFindings::default();
    kernel::check(machine, memory, &mut found);
    match gpu {
        Some(gpu) => kernel::check_driver(system, machine, gpu, &mut found),
        None => memory::check(system, memory, &mut found),
    }
    drive::check(place, &mut found);
    let drive = place.controller.as_deref();
    topology::check_iommu(system, memory, drive, gpu.is_some(), &mut found);
    let way = drive.and_then(|drive| topology::check(system, machine, memory, drive, &mut found));
    let reach = match (found.blockers.is_empty(), found.unread.is_empty()) {
        (false, _) => Reach::Blocked,
        (true, true) => Reach::NoObstacle,
        (true, false) => Reach::Unknown,
    };
    let RouteFindings { blockers, notes, unread } = found;
    DriveRoute { memory: memory.pci.clone(), place: place.path.clone(), reach, blockers, way, notes, unread }
}
