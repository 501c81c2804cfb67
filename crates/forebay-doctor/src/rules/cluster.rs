//! File systems of other machines but NFS: which engine moves their bytes, and why no better one.

use forebay_ways::EngineKind;

use crate::facts::Facts;
use crate::finding::{Findings, Severity};
use crate::storage::{DiskKind, StoragePlace};

/// File systems whose own clients NVIDIA's library knows, and their names.
const KNOWN_TO_GDS: [(&str, &str); 4] =
    [("lustre", "Lustre"), ("beegfs", "BeeGFS"), ("gpfs", "IBM Storage Scale (GPFS)"), ("wekafs", "WekaFS")];

pub(super) fn find(facts: &Facts<'_>, found: &mut Findings) {
    let mut seen: Vec<&str> = Vec::new();
    let network = facts.places.iter().filter(|place| place.kind == DiskKind::Network && place.nfs.is_none());
    for place in network {
        if !seen.contains(&place.mount_point.as_str()) {
            seen.push(&place.mount_point);
            served(facts, place, found);
        }
    }
}

fn served(facts: &Facts<'_>, place: &StoragePlace, found: &mut Findings) {
    let gds = KNOWN_TO_GDS.iter().find(|(fs, _)| *fs == place.file_system);
    let name = gds.map_or(place.file_system.as_str(), |(_, name)| name);
    let point = &place.mount_point;
    let text = format!(
        "{point} is {name}: the engine {} moves its bytes, {}; {} pins pages of local file systems only, {} needs a local NVMe drive, {} an NFS server with RDMA",
        EngineKind::Staged,
        EngineKind::Staged.words(),
        EngineKind::Mapped,
        EngineKind::P2p,
        EngineKind::Placed,
    );
    let check = format!("forebay check {}", forebay_error::quoted(&place.path));
    let fix = match gds.filter(|_| facts.library.is_some() && facts.machine.nvidia_fs.is_some()) {
        Some(_) => format!(
            "{check} tries it; NVIDIA's library has a way of its own where the file system's client was built with nvidia-fs: FOREBAY_ENGINE={} {check}",
            EngineKind::Libcufile
        ),
        None => format!("{check} tries it"),
    };
    let finding = found.add("cluster-file-system", Severity::Note, text, Some(&fix));
    finding.seen("/proc/self/mountinfo", format!("{} of {} at {point}", place.file_system, place.source));
}
