//! Which drive can reach which device memory by itself, and what keeps it from that.
//!
//! All of it is read from /sys and /proc, as an ordinary user; what such a user cannot read is said. Nothing is tried:
//! where no obstacle is found, only a transfer whose bytes are compared would prove that there is none.

mod drive;
mod kernel;
mod memory;
mod topology;

use serde::Serialize;

pub use self::memory::{BarMemory, Offer};
pub use self::topology::Way;
use crate::exercise::Hinted;
use crate::gpu::Gpu;
use crate::machine::Machine;
use crate::storage::Place;
use crate::system::System;

/// One thing that keeps a drive from a memory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Blocker {
    /// Stable name of the rule, for programs.
    pub id: &'static str,
    /// What is so.
    pub text: String,
    /// What to type or change, if anything helps.
    pub fix: Option<String>,
    /// What a transfer that tries all the same fails with.
    pub errno: Option<&'static str>,
}

impl Blocker {
    fn new(id: &'static str, text: impl Into<String>) -> Self {
        Self { id, text: text.into(), fix: None, errno: None }
    }

    fn fix(mut self, fix: impl Into<String>) -> Self {
        self.fix = Some(fix.into());
        self
    }

    /// The kernel accepts the memory, and then finds that the drive cannot reach it.
    const fn remote(mut self) -> Self {
        self.errno = Some("EREMOTEIO");
        self
    }

    /// The same as a reason of a verdict.
    pub(crate) fn reason(&self) -> Hinted {
        Hinted { text: self.text.clone(), fix: self.fix.clone() }
    }
}

/// What is known about a way from a drive to a memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Reach {
    /// Something keeps the drive from it.
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
pub struct Route {
    /// PCI address of the memory's device.
    pub memory: String,
    /// The place's path.
    pub place: String,
    /// What is known.
    pub reach: Reach,
    /// What keeps the drive from it.
    pub blockers: Vec<Blocker>,
    /// How bytes would travel; none if the drive is not known.
    pub way: Option<Way>,
    /// What is worth knowing and keeps nobody from anything.
    pub notes: Vec<String>,
    /// What could not be read, and who could.
    pub unread: Vec<String>,
}

/// All memories with all places.
pub fn routes(
    system: &dyn System,
    machine: &Machine,
    gpus: &[Gpu],
    places: &[Place],
) -> (Vec<BarMemory>, Vec<Route>) {
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
    machine: &Machine,
    memory: &BarMemory,
    gpu: Option<&Gpu>,
    place: &Place,
) -> Route {
    let mut found = Found::default();
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
    let Found { blockers, notes, unread } = found;
    Route { memory: memory.pci.clone(), place: place.path.clone(), reach, blockers, way, notes, unread }
}

/// What rules found.
#[derive(Default)]
struct Found {
    blockers: Vec<Blocker>,
    notes: Vec<String>,
    unread: Vec<String>,
}

impl Found {
    fn block(&mut self, blocker: Blocker) {
        self.blockers.push(blocker);
    }

    fn note(&mut self, text: impl Into<String>) {
        self.notes.push(text.into());
    }

    fn unread(&mut self, text: impl Into<String>) {
        self.unread.push(text.into());
    }
}
