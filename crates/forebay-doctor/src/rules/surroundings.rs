//! /proc, containers, Secure Boot.

use crate::facts::Facts;
use crate::finding::{Findings, Severity};

pub(super) fn find(facts: &Facts<'_>, found: &mut Findings) {
    let machine = facts.machine;
    match facts.process {
        _ if machine.proc_readable => {}
        Some(process) => {
            let text =
                "this user may not look into the process: its mounts, files and libraries are not known";
            let fix = format!("sudo forebay doctor --pid {}", process.pid);
            let place = format!("/proc/{}/mountinfo", process.pid);
            found.add("process-hidden", Severity::Note, text, Some(&fix)).seen(&place, "not for this user");
        }
        None => {
            let text = "/proc does not show this process: mounts, limits, residency and counters are unknown";
            let finding = found.add("proc", Severity::Slower, text, Some("mount -t proc proc /proc"));
            finding.missing("/proc/self/status");
        }
    }
    if let Some(name) = &machine.container {
        let signs = ["/.dockerenv", "/run/.containerenv"].into_iter().find(|sign| facts.system.exists(sign));
        let finding = found.add("container", Severity::Note, format!("signs of a container ({name})"), None);
        finding.seen(signs.unwrap_or("environment or /proc/1/cgroup"), name);
    }
    if machine.wsl {
        let text = "Windows Subsystem for Linux: drives are virtual, no direct path is possible";
        let finding = found.add("wsl", Severity::Note, text, None);
        finding.seen("/proc/sys/kernel/osrelease", &machine.kernel);
    }
    if machine.secure_boot == Some(true) && machine.nvidia_fs.is_none() && facts.library.is_some() {
        let text = "Secure Boot is on: an nvidia-fs module without a trusted signature does not load (forebay needs none)";
        let fix = Some("mokutil --sb-state; sign the module if you need it");
        let finding = found.add("secure-boot", Severity::Note, text, fix);
        finding.seen("/sys/firmware/efi/efivars/SecureBoot-*", "1").missing("/proc/driver/nvidia-fs/version");
    }
}
