//! The storage below a place, and whether it accepts device memory.

use super::blocker::{Blocker, RouteFindings};
use crate::storage::{DiskKind, StoragePlace};

/// File systems that are known to pass the pages of a direct read or write to the drive unchanged.
const PASSING: [&str; 3] = ["ext4", "xfs", "raw"];

/// Adds the blockers between device memory and the drive below a place.
pub(super) fn check(place: &StoragePlace, found: &mut RouteFindings) {
    // An overlay passes pages to the file system below it, which is not visible here.
    if place.kind == DiskKind::Overlay {
        let text = "the file system below the overlay; mount the directory as a volume to see it: docker run -v /data:/data";
        return found.unread(text);
    }
    let disk = place.disk.as_deref().unwrap_or(&place.source);
    if let Some(blocker) = blocker(place, disk) {
        found.block(blocker);
    } else if place.controller.is_none() {
        found.unread(format!("where {disk} is on the PCI bus (/sys shows it, where a container has it)"));
    }
}

fn blocker(place: &StoragePlace, disk: &str) -> Option<Blocker> {
    let fs = &place.file_system;
    Some(match place.kind {
        DiskKind::Nvme if PASSING.contains(&fs.as_str()) => return None,
        DiskKind::Nvme => {
            Blocker::new("file-system", format!("{fs} is not known to accept P2P memory (ext4 and xfs are)"))
                .fix("keep the files on ext4 or xfs, or use the block device itself")
        }
        DiskKind::NvmeMultipath => {
            Blocker::new("multipath", format!("{disk} is a multipath head, which has no P2P queue"))
                .fix("add nvme_core.multipath=N to the kernel command line and reboot")
                .remote()
        }
        DiskKind::NvmeOf => Blocker::new(
            "fabrics",
            format!("{disk} is NVMe over fabrics: this machine's network card writes to memory, not a drive"),
        ),
        DiskKind::Md | DiskKind::DeviceMapper | DiskKind::Loop => stacked(place, disk),
        DiskKind::Virtio => {
            Blocker::new("no-queue", format!("{disk} is a virtio disk, which has no P2P queue"))
                .fix("give the virtual machine an NVMe drive of its own (PCI passthrough)")
        }
        DiskKind::Memory => Blocker::new("memory", format!("{fs} is memory: there is no drive below it")),
        DiskKind::Network => Blocker::new(
            if fs.starts_with("nfs") { "nfs" } else { "network" },
            format!("{fs}: kernel clients of network file systems refuse P2P memory"),
        )
        .remote(),
        DiskKind::Fuse => Blocker::new(
            "fuse",
            format!("{fs}: a program serves this file system, and gets its own copy of all bytes"),
        ),
        DiskKind::Scsi | DiskKind::Zram | DiskKind::RamDisk | DiskKind::Overlay | DiskKind::Other => {
            Blocker::new("no-queue", format!("{disk} ({}) has no P2P queue", place.kind.label()))
        }
    })
}

/// The blocker of a block device that is made of others.
fn stacked(place: &StoragePlace, disk: &str) -> Blocker {
    let members = match place.members.as_slice() {
        [] => String::new(),
        members => format!(" over {}", members.join(", ")),
    };
    let (id, text, fix) = match place.kind {
        DiskKind::Md => (
            "md",
            format!("{disk} is software RAID{members}: its queue does not accept P2P memory"),
            "keep the files on one of the drives without md",
        ),
        DiskKind::DeviceMapper => (
            "dm",
            format!(
                "{disk} is device mapper{members}: its queue passes P2P memory on only if every member's does, and \
                 encryption never does"
            ),
            "keep the files on a partition of the drive itself (lsblk shows the partitions)",
        ),
        _ => {
            let backing = place.backing.as_ref().map(|file| format!(" over {file}")).unwrap_or_default();
            (
                "loop",
                format!("{disk} is a loop device{backing}: it copies, and refuses P2P memory"),
                "mount the drive's own file system, or read the backing file",
            )
        }
    };
    Blocker::new(id, text).fix(fix).remote()
}
