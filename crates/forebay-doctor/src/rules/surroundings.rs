//! /proc, containers, Secure Boot.

use crate::finding::{Facts, Findings, Severity};

pub(super) fn find(facts: &Facts<'_>, found: &mut Findings) {
    let machine = facts.machine;
    if !machine.proc_readable {
        let text = "/proc does not show this process: mounts, limits, residency and counters cannot be told";
        let finding = found.add("proc", Severity::Slower, text, Some("mount -t proc proc /proc"));
        finding.missing("/proc/self/status");
    }
    if let Some(name) = &machine.container {
        found.add("container", Severity::Note, format!("signs of a container ({name})"), None);
    }
    if machine.wsl {
        found.add(
            "wsl",
            Severity::Note,
            "Windows Subsystem for Linux: drives are virtual, no direct path is possible",
            None,
        );
    }
    if machine.secure_boot == Some(true) && machine.nvidia_fs.is_none() && facts.library.is_some() {
        let text = "Secure Boot is on: an nvidia-fs module without a trusted signature does not load (forebay needs none)";
        found.add(
            "secure-boot",
            Severity::Note,
            text,
            Some("mokutil --sb-state; sign the module if you need it"),
        );
    }
    if !facts.cufile.ignored.is_empty() || facts.cufile.error.is_some() {
        let path = facts.cufile.path.as_deref().unwrap_or_default();
        if let Some(error) = &facts.cufile.error {
            found.add("cufile-json", Severity::Note, format!("{error}: libcufile's defaults hold"), None);
        }
        for key in &facts.cufile.ignored {
            let text = format!("{path}: libcufile ignores {key}");
            found.add("cufile-json", Severity::Note, text, None);
        }
    }
}
