//! What a saved copy of a machine lacks: rules that would take that for the machine's own lack are not believed.

use crate::facts::Facts;
use crate::finding::{Findings, Severity};
use crate::rdma;

/// A part of a machine that copies lack, what it tells, and the findings that are guesses without it.
struct Part {
    path: &'static str,
    tells: &'static str,
    guesses: &'static [&'static str],
}

const fn part(path: &'static str, tells: &'static str, guesses: &'static [&'static str]) -> Part {
    Part { path, tells, guesses }
}

const IO_URING: &str = "/proc/sys/kernel/io_uring_disabled";

const PARTS: [Part; 12] = [
    part("/proc/self/mountinfo", "mounts", &["proc"]),
    part("/proc/self/status", "rights of a process", &["proc", "memlock"]),
    part("/proc/self/limits", "limits of a process", &["memlock"]),
    part("/proc/1", "processes", &["fabric-manager"]),
    part("/proc/modules", "loaded modules", &["nvidia-fs", "peermem"]),
    part("/proc/driver", "NVIDIA's driver", &["no-gpu", "no-driver", "no-cuda", "nvidia-fs"]),
    part(IO_URING, "io_uring", &["io-uring"]),
    part("/sys/bus/pci/devices", "GPUs, drives and their links", &["no-gpu", "pcie-link"]),
    part(rdma::CLASS, "RDMA", &["rdma-no-device", "nfs-not-rdma"]),
    part("/sys/class/misc", "device files", &["rdma-ucm"]),
    part("/usr/lib", "libraries", &["nscq"]),
    part("/etc", "what is there after a reboot", &["mount-by-hand", "boot-modules"]),
];

/// Whether the copy lacks it, and the machine has it.
fn lacks(facts: &Facts<'_>, path: &str) -> bool {
    let is_there = facts.system.exists(path);
    match path {
        // Kernels before 6.6 have no such file.
        IO_URING => !is_there && facts.machine.kernel_version() >= (6, 6),
        // Without RDMA's core module there is nothing to copy.
        rdma::CLASS => {
            let modules = facts.system.text("/proc/modules");
            !is_there && modules.is_none_or(|text| text.lines().any(|line| line.starts_with("ib_core ")))
        }
        _ => !is_there,
    }
}

/// Takes guesses back, and says of what nothing is known.
pub(super) fn find(facts: &Facts<'_>, found: &mut Findings) {
    if !facts.system.is_copy() {
        return;
    }
    let missing: Vec<&Part> = PARTS.iter().filter(|part| lacks(facts, part.path)).collect();
    found.retain(|finding| !missing.iter().any(|part| part.guesses.contains(&finding.id)));
    if !missing.is_empty() {
        let tells: Vec<&str> = missing.iter().map(|part| part.tells).collect();
        let text = format!("the copy lacks files; not known are: {}", tells.join(", "));
        let fix = "copy these, too (of /sys with /sys/devices, where its links lead: cp -a), or run forebay doctor on that machine";
        let finding = found.add("not-in-copy", Severity::Note, text, Some(fix));
        for part in missing {
            finding.missing(part.path);
        }
    }
    paths(facts, found);
}

/// Paths that were asked for are judged by their names.
fn paths(facts: &Facts<'_>, found: &mut Findings) {
    for place in facts.places.iter().filter(|place| place.asked && !facts.system.exists(&place.path)) {
        let path = &place.path;
        let text = if place.file_system.is_empty() {
            format!("the copy lacks {path}, and no mount holds it")
        } else {
            let (fs, point) = (&place.file_system, &place.mount_point);
            format!(
                "the copy lacks {path}: by its name it is on the {fs} at {point}, unless a link leads elsewhere"
            )
        };
        found.add("not-in-copy", Severity::Note, text, None).missing(path);
    }
}
