//! io_uring, O_DIRECT, residency.

use forebay_config::IoBackend;

use crate::exercise::ExerciseResult;
use crate::facts::Facts;
use crate::finding::{Findings, Severity};
use crate::machine::{IoUring, Refuser};
use crate::storage::{DiskKind, StoragePlace};

pub(super) fn find(facts: &Facts<'_>, found: &mut Findings) {
    match &facts.machine.io_uring {
        IoUring::Works => ring_findings(facts, found),
        IoUring::Refused { errno, by } => refused(facts, *errno, *by, found),
    }
    place_by_place(facts, found);
}

/// A ring can be made. The lanes may use threads all the same.
fn ring_findings(facts: &Facts<'_>, found: &mut Findings) {
    let on_threads = facts.lanes().find(|lanes| lanes.backend == "threads");
    let asked = facts.config.as_ref().is_ok_and(|config| config.io == IoBackend::Threads);
    match on_threads {
        None => found.add("io-uring", Severity::Ok, "io_uring is allowed", None),
        Some(_) if asked => {
            let text = "io_uring is allowed; the lanes use threads, as FOREBAY_IO asks";
            found.add("io-uring", Severity::Note, text, Some("unset FOREBAY_IO"))
        }
        Some(lanes) => {
            let why = lanes.notes.iter().find(|note| note.text.contains("io_uring"));
            let text = "a small io_uring can be made, but the lanes use threads with preadv";
            let fix = why.and_then(|why| why.fix.as_deref()).unwrap_or("ulimit -l unlimited");
            let finding = found.add("io-uring", Severity::Slower, text, Some(fix));
            finding.seen("lanes", why.map_or("threads", |why| why.text.as_str()))
        }
    };
}

fn refused(facts: &Facts<'_>, errno: i32, by: Refuser, found: &mut Findings) {
    let pod = facts.in_pod();
    let (who, fix, place) = match by {
        Refuser::Sysctl => (
            "kernel.io_uring_disabled is 2",
            "echo 0 | sudo tee /proc/sys/kernel/io_uring_disabled",
            "/proc/sys/kernel/io_uring_disabled",
        ),
        Refuser::SysctlGroup => (
            "kernel.io_uring_disabled is 1 and this user is not in kernel.io_uring_group",
            "id -g | sudo tee /proc/sys/kernel/io_uring_group",
            "/proc/sys/kernel/io_uring_disabled",
        ),
        Refuser::Seccomp if pod => (
            "a seccomp filter forbids it (containerd's default profile does)",
            "securityContext: {seccompProfile: {type: Localhost, localhostProfile: io_uring.json}}, a profile that allows io_uring_setup, io_uring_enter, io_uring_register",
            "/proc/self/status",
        ),
        Refuser::Seccomp => (
            "a seccomp filter forbids it (Docker's default profile does)",
            "docker run --security-opt seccomp=unconfined … or a profile that allows io_uring_setup, io_uring_enter, io_uring_register",
            "/proc/self/status",
        ),
        Refuser::Kernel => ("this kernel has no io_uring", "use a kernel with CONFIG_IO_URING=y", ""),
        Refuser::Memlock => ("RLIMIT_MEMLOCK is too small for it", "ulimit -l unlimited", ""),
        Refuser::Unknown => {
            ("the reason is not visible from here", "ask for io_uring in the security policy (LSM)", "")
        }
    };
    let text =
        format!("io_uring is not allowed (errno {errno}): {who}; cold reads go by threads with preadv");
    let finding = found.add("io-uring", Severity::Slower, text, Some(fix));
    finding.seen("io_uring_setup", std::io::Error::from_raw_os_error(errno).to_string());
    let content = facts.system.text(place).unwrap_or_default();
    let line = content.lines().find(|line| line.starts_with("Seccomp:")).unwrap_or(&content);
    if !place.is_empty() && !content.is_empty() {
        finding.seen(place, line.replace('\t', " "));
    }
}

fn place_by_place(facts: &Facts<'_>, found: &mut Findings) {
    let mut named: Vec<&str> = Vec::new();
    for verdict in facts.verdicts() {
        let Some(exercised) = &verdict.exercise else { continue };
        let Some(place) = facts.places.iter().find(|place| place.path == verdict.place) else { continue };
        if named.contains(&place.path.as_str()) {
            continue;
        }
        named.push(&place.path);
        place_findings(place, exercised, found);
    }
}

fn place_findings(place: &StoragePlace, exercised: &ExerciseResult, found: &mut Findings) {
    let at = format!("{} ({})", place.path, place.file_system);
    match (exercised.alignment, &exercised.direct_refused) {
        (Some((memory, offset)), _) => {
            let text =
                format!("{at}: O_DIRECT works with memory aligned to {memory} and offsets to {offset} bytes");
            found.add("o-direct", Severity::Ok, text, None);
        }
        (None, Some(why)) if place.kind == DiskKind::Memory => {
            found.add(
                "o-direct",
                Severity::Ok,
                format!("{at}: memory, O_DIRECT is not needed ({why})"),
                None,
            );
        }
        (None, Some(why)) => {
            let text = format!("{at}: no O_DIRECT ({why}); cold reads go through the page cache");
            found.add(
                "o-direct",
                Severity::Slower,
                text,
                Some("use a file system with O_DIRECT for large cold reads (ext4, xfs)"),
            );
        }
        (None, None) => {}
    }
    match exercised.residency.as_deref() {
        Some("mincore") => {
            let text = format!(
                "{at}: page-cache residency by mincore, which is right only for files that this user owns or may write"
            );
            found.add("residency", Severity::Note, text, Some("use kernel 6.5 or later for cachestat"));
        }
        Some(method) => {
            let text = format!("{at}: page-cache residency by {method}");
            found.add("residency", Severity::Ok, text, None);
        }
        None => {}
    }
}
