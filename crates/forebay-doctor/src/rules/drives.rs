//! Drives and tmpfs: links, schedulers, read-ahead, O_DIRECT.

use crate::facts::Facts;
use crate::finding::{Findings, Severity};
use crate::gpu::BUS;
use crate::machine::meminfo;
use crate::storage::{DiskKind, StoragePlace};

pub(super) fn find(facts: &Facts<'_>, found: &mut Findings) {
    let mut seen: Vec<&str> = Vec::new();
    for place in facts.places {
        if place.file_system == "tmpfs" {
            tmpfs(facts, place, found);
        }
        let Some(disk) = place.disk.as_deref().filter(|disk| !seen.contains(disk)) else { continue };
        seen.push(disk);
        if matches!(place.kind, DiskKind::Zram | DiskKind::RamDisk) {
            ram_disk(facts, place, disk, found);
        }
        for name in std::iter::once(disk).chain(place.members.iter().map(String::as_str)) {
            queue(facts, place, name, found);
        }
        if let Some(pci) = &place.controller {
            link(facts, disk, pci, found);
        }
    }
}

/// Where the fix mounts a disk in memory.
const RAM: &str = "/mnt/forebay-ram";

/// tmpfs takes O_DIRECT since 6.6.
fn tmpfs(facts: &Facts<'_>, place: &StoragePlace, found: &mut Findings) {
    if facts.machine.kernel_version() >= (6, 6) || facts.machine.kernel_version() == (0, 0) || !place.asked {
        return;
    }
    let text = format!(
        "{} is tmpfs, which refuses O_DIRECT before kernel 6.6: gdsio and fio --direct=1 fail there (forebay does not ask for it)",
        place.path
    );
    // Half of what is free; mkfs.xfs makes none below 300 MiB.
    let kib = meminfo(facts.system, "MemAvailable:").map_or(1 << 20, |bytes| (bytes / 2) >> 10);
    let kib = kib.clamp(320 << 10, 8 << 20);
    let fix = format!(
        "sudo mkdir {RAM} && sudo modprobe brd rd_nr=1 rd_size={kib} && sudo mkfs.xfs /dev/ram0 && sudo mount /dev/ram0 {RAM}; undo: sudo umount {RAM} && sudo rmdir {RAM} && sudo rmmod brd; or read through the page cache; or kernel 6.6"
    );
    let finding = found.add("tmpfs-direct", Severity::Slower, text, Some(&fix));
    finding
        .seen("/proc/sys/kernel/osrelease", &facts.machine.kernel)
        .seen("/proc/self/mountinfo", format!("tmpfs at {}", place.mount_point));
}

/// zram and brd: memory behind a file system that caches its pages once more.
fn ram_disk(facts: &Facts<'_>, place: &StoragePlace, disk: &str, found: &mut Findings) {
    let (path, fs) = (&place.path, &place.file_system);
    let cost = if place.kind == DiskKind::Zram {
        "a CPU decompresses every page that is read"
    } else {
        "a CPU copies every page that is read"
    };
    let text =
        format!("{path} ({fs}) lies on a disk in memory ({disk}): {cost}, so its rates are no drive's");
    // tmpfs has the pages in place, and the engine `mapped` reads them there.
    let fix = if facts.machine.kernel_version() >= (6, 6) {
        format!(
            "tmpfs takes O_DIRECT, too, and a GPU reads it in place: sudo mkdir {RAM} && sudo mount -t tmpfs -o size=8G tmpfs {RAM}"
        )
    } else if place.kind == DiskKind::Zram {
        format!(
            "brd does not compress: sudo modprobe brd rd_nr=1 rd_size=8388608 && sudo mkfs.{fs} /dev/ram0"
        )
    } else {
        format!(
            "without O_DIRECT tmpfs does it: sudo mkdir {RAM} && sudo mount -t tmpfs -o size=8G tmpfs {RAM}"
        )
    };
    let finding = found.add("ram-disk", Severity::Note, text, Some(&fix));
    finding.seen("/proc/self/mountinfo", format!("{fs} of {} at {}", place.source, place.mount_point));
}

fn queue(facts: &Facts<'_>, place: &StoragePlace, disk: &str, found: &mut Findings) {
    let dir = format!("/sys/class/block/{disk}/queue");
    let path = format!("{dir}/scheduler");
    if matches!(place.kind, DiskKind::Nvme | DiskKind::NvmeMultipath | DiskKind::NvmeOf)
        && let Some(text) = facts.system.text(&path)
        && let Some(chosen) =
            text.split_once('[').and_then(|(_, rest)| rest.split_once(']')).map(|(word, _)| word)
        && chosen != "none"
    {
        let severity = if chosen == "bfq" { Severity::Slower } else { Severity::Note };
        let said =
            format!("{disk} has the I/O scheduler {chosen}: it costs an NVMe drive requests per second");
        let fix = format!("echo none | sudo tee {path}");
        found.add("scheduler", severity, said, Some(&fix)).seen(&path, &text);
    }
    let path = format!("{dir}/read_ahead_kb");
    if let Some(kb) = facts.system.number(&path).filter(|&kb| kb < 128) {
        let said = format!("{disk} reads ahead {kb} KiB: buffered reads are slow");
        let fix = format!("echo 128 | sudo tee {path}");
        found.add("read-ahead", Severity::Note, said, Some(&fix)).seen(&path, kb.to_string());
    }
}

fn link(facts: &Facts<'_>, disk: &str, pci: &str, found: &mut Findings) {
    let path = |file: &str| format!("{BUS}/{pci}/{file}");
    let text = |file: &str| facts.system.text(&path(file));
    for (what, now, most) in
        [("lanes", "current_link_width", "max_link_width"), ("GT/s", "current_link_speed", "max_link_speed")]
    {
        let (Some(is), Some(can)) = (text(now), text(most)) else { continue };
        let number = |text: &str| {
            text.split_whitespace().next().and_then(|word| word.parse::<f64>().ok()).unwrap_or(0.0)
        };
        let (now_at, at_most) = (number(&is), number(&can));
        if now_at > 0.0 && now_at < at_most {
            let said = format!("{disk}: its PCIe link ({pci}) has {now_at} of {at_most} {what}");
            let fix = format!(
                "put the drive into a slot that has them, or reseat it; lspci -vvs {pci} | grep -E 'LnkCap|LnkSta'"
            );
            found
                .add("drive-link", Severity::Slower, said, Some(&fix))
                .seen(&path(now), is)
                .seen(&path(most), can);
        }
    }
}
