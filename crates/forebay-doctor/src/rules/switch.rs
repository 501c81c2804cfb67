//! NVSwitches between GPUs: the fabric manager that sets them up, and the library that asks them.

use super::driver::libraries;
use crate::facts::Facts;
use crate::finding::{Findings, Severity};
use crate::gpu::BUS;
use crate::system::System;

pub(super) fn find(facts: &Facts<'_>, found: &mut Findings) {
    // A container sees neither the node's processes nor its libraries.
    if facts.machine.container.is_some() {
        return;
    }
    let (Some(driver), Some(switch)) = (&facts.machine.driver, first_switch(facts.system)) else { return };
    let release = driver.version.split('.').next().unwrap_or_default();
    manager(facts, &switch, release, found);
    library(facts, &switch, &driver.version, release, found);
}

/// The PCI address of an NVSwitch: a bridge of NVIDIA's that is no PCI bridge.
fn first_switch(system: &dyn System) -> Option<String> {
    system.list(BUS).into_iter().find(|pci| {
        let number = |file: &str| system.number(&format!("{BUS}/{pci}/{file}"));
        number("vendor") == Some(0x10de) && number("class").is_some_and(|class| class >> 8 == 0x0680)
    })
}

/// Without it CUDA does not start on a machine with NVSwitches (error 802).
fn manager(facts: &Facts<'_>, switch: &str, release: &str, found: &mut Findings) {
    // CUDA itself says its version: it starts.
    if facts.offered.gpus.iter().any(|gpu| gpu.driver_api > 0) || is_running(facts.system, "nv-fabricmanager")
    {
        return;
    }
    let text = "the GPUs are connected by NVSwitches, and NVIDIA's fabric manager is not running: CUDA does not start (error 802)";
    let fix = format!(
        "sudo systemctl enable --now nvidia-fabricmanager; if there is none: sudo apt install nvidia-fabricmanager-{release} (its version must be the driver's)"
    );
    let finding = found.add("fabric-manager", Severity::Blocks, text, Some(&fix));
    finding
        .seen(&format!("{BUS}/{switch}/class"), "0x068000 (an NVSwitch)")
        .missing("nv-fabricmanager in /proc/*/comm");
}

/// Whether a program runs. The kernel keeps 15 characters of its name.
fn is_running(system: &dyn System, program: &str) -> bool {
    let comm = &program[..program.len().min(15)];
    let processes =
        system.list("/proc").into_iter().filter(|name| name.bytes().all(|byte| byte.is_ascii_digit()));
    processes.into_iter().any(|pid| system.text(&format!("/proc/{pid}/comm")).as_deref() == Some(comm))
}

/// libnvidia-nscq must be of the driver's version.
fn library(facts: &Facts<'_>, switch: &str, driver: &str, release: &str, found: &mut Findings) {
    let all = libraries(facts.system, "libnvidia-nscq.so.");
    if all.iter().any(|(_, version)| version == driver) {
        return;
    }
    let text = match all.first() {
        Some((_, version)) => {
            format!(
                "libnvidia-nscq is of version {version}, the driver {driver}: DCGM cannot ask the NVSwitches"
            )
        }
        None => {
            "libnvidia-nscq is not installed: DCGM cannot ask the NVSwitches for links and errors".to_owned()
        }
    };
    let fix = format!("sudo apt install libnvidia-nscq-{release}");
    let finding = found.add("nscq", Severity::Note, text, Some(&fix));
    finding.seen(&format!("{BUS}/{switch}/class"), "0x068000 (an NVSwitch)");
    match all.first() {
        Some((path, _)) => finding.seen("library", path),
        None => finding.missing("libnvidia-nscq.so.*"),
    };
}
