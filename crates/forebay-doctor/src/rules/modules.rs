//! Kernel modules that RDMA wants besides its card's: rdma_ucm, ib_ipoib, nvidia_peermem.

use crate::facts::Facts;
use crate::finding::{Findings, Severity};
use crate::machine::MachineFacts;
use crate::rdma::{CLASS, Port};
use crate::system::System;

pub(super) fn find(facts: &Facts<'_>, ports: &[Port], wanted: bool, found: &mut Findings) {
    let Some(port) = ports.iter().find(|port| port.is_active()) else { return };
    ucm(facts, port, found);
    peermem(facts.system, facts.machine, ports, found);
    for port in ports.iter().filter(|port| port.is_active() && port.link_layer == "InfiniBand") {
        ipoib(facts, port, wanted, found);
    }
}

/// Loads a module now and at each boot.
pub(super) fn load(module: &str) -> String {
    format!("sudo modprobe {module} && echo {module} | sudo tee /etc/modules-load.d/{module}.conf")
}

/// Programs connect by the kernel's connection manager, whose device file rdma_ucm makes.
fn ucm(facts: &Facts<'_>, port: &Port, found: &mut Findings) {
    const DEVICE: &str = "/sys/class/misc/rdma_cm";
    if facts.system.exists(DEVICE) {
        return;
    }
    let text = format!(
        "rdma_ucm is not loaded: programs (nfs:// over RDMA, rping, perftest -R) cannot connect by {}; mounts can",
        port.name()
    );
    found.add("rdma-ucm", Severity::Note, text, Some(&load("rdma_ucm"))).missing(DEVICE);
}

/// A card reaches GPU memory by dma-buf, which the open driver offers, or by nvidia_peermem.
pub(super) fn peermem(system: &dyn System, machine: &MachineFacts, ports: &[Port], found: &mut Findings) {
    let Some(driver) = machine.driver.as_ref().filter(|driver| !driver.open) else { return };
    let Some(card) = ports.iter().find(|port| port.is_active() && !port.is_soft) else { return };
    let modules = system.text("/proc/modules").unwrap_or_default();
    if modules.lines().any(|line| line.starts_with("nvidia_peermem ")) {
        return;
    }
    let text = format!(
        "{} cannot reach GPU memory: the closed driver offers no dma-buf, and nvidia_peermem is not loaded; NCCL and UCX copy through host memory, and forebay's engine {} is off",
        card.device,
        forebay_ways::EngineKind::Placed
    );
    let fix = format!(
        "the open driver: sudo apt install nvidia-open; for NCCL and UCX alone, with NVIDIA's DOCA: {}",
        load("nvidia_peermem")
    );
    let finding = found.add("peermem", Severity::Note, text, Some(&fix));
    finding.seen("/proc/driver/nvidia/version", format!("{}, not the open module", driver.version));
    finding.missing("nvidia_peermem in /proc/modules");
}

/// NFS finds its server by an IP address, which InfiniBand has by ib_ipoib.
fn ipoib(facts: &Facts<'_>, port: &Port, wanted: bool, found: &mut Findings) {
    let dir = format!("{CLASS}/{}/device/net", port.device);
    if port.interface.is_some() || !facts.system.list(&dir).is_empty() {
        return;
    }
    let severity = if wanted { Severity::Blocks } else { Severity::Note };
    let text =
        format!("{} is InfiniBand without an IP interface: NFS cannot find its server over it", port.name());
    let fix = format!("{} && ip link; then: sudo ip address add ADDRESS/24 dev ib0", load("ib_ipoib"));
    let finding = found.add("ib-ipoib", severity, text, Some(&fix));
    finding.missing(&format!("{dir}/*")).seen(&format!("{}/link_layer", port.dir()), &port.link_layer);
}
