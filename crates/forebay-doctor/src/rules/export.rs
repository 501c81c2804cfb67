//! An NFS server of this machine: what its exports lie on.

use forebay_error::quoted;

use crate::exports::Export;
use crate::finding::{Findings, Severity};
use crate::storage::{DiskKind, StoragePlace};

pub(super) fn find(exports: &[(Export, StoragePlace)], found: &mut Findings) {
    for (export, place) in exports {
        if place.kind != DiskKind::Memory {
            not_tmpfs(export, place, found);
        }
    }
}

/// A drive below an export bounds what a client measures of the network.
fn not_tmpfs(export: &Export, place: &StoragePlace, found: &mut Findings) {
    let disk = place.disk.as_deref().unwrap_or(place.kind.label());
    let text = format!(
        "the export {} lies on {} ({disk}), not on tmpfs: what clients measure there is bounded by the drive",
        export.path, place.file_system
    );
    let ram = format!("{}-ram", export.path.trim_end_matches('/'));
    let fix = format!(
        "to measure the network alone: sudo mkdir {0} && sudo mount -t tmpfs -o size=8G tmpfs {0} && sudo exportfs -o rw,insecure,fsid=1 {1}",
        quoted(&ram),
        quoted(&format!("*:{ram}"))
    );
    let finding = found.add("export-not-tmpfs", Severity::Note, text, Some(&fix));
    finding.seen(&export.place, &export.text);
    finding.seen("/proc/self/mountinfo", format!("{} at {}", place.file_system, place.mount_point));
}
