//! The rules: each reads the facts and returns findings. One file for each part of the machine.

mod bench;
mod boot;
mod bus;
mod command;
mod driver;
mod drives;
mod gpu;
mod io;
mod libcufile;
mod limits;
mod log;
mod nfs;
mod nic;
mod pod;
mod process;
mod rdma;
mod server;
mod surroundings;
mod transfer;

use std::path::Path;

use crate::facts::Facts;
use crate::finding::{Finding, Findings, Severity};

/// All findings, worst first.
pub(crate) fn findings(facts: &Facts<'_>) -> Vec<Finding> {
    let mut found = Findings::default();
    apply(facts, &mut found);
    found.sorted()
}

/// All rules, in the order in which findings of one severity are shown.
fn apply(facts: &Facts<'_>, found: &mut Findings) {
    if let Err(why) = facts.config {
        let variables = facts.machine.environment.iter().filter(|(name, _)| name.starts_with("FOREBAY_"));
        let variables: Vec<String> = variables.map(|(name, value)| format!("{name}={value}")).collect();
        found.hinted("config-invalid", Severity::Blocks, why).seen("environment", variables.join(" "));
    }
    if let Some(process) = facts.process {
        process::find(facts, process, found);
    }
    bench::find(facts.benches, found);
    gpu::find(facts, found);
    driver::find(facts, found);
    transfer::find(facts, found);
    io::find(facts, found);
    limits::find(facts, found);
    pod::find(facts, found);
    surroundings::find(facts, found);
    bus::find(facts, found);
    drives::find(facts, found);
    libcufile::find(facts, found);
    network(facts, found);
}

/// NFS, RDMA, and their configuration for boot and lines of the log.
fn network(facts: &Facts<'_>, found: &mut Findings) {
    let mounted = crate::nfs::mounted(facts.system);
    let mut configured = crate::nfs::configured(facts.system);
    // Of configured mounts, too, only those of the paths asked for.
    if facts.places.iter().any(|place| place.asked) {
        let holds = |point: &str| facts.places.iter().any(|place| Path::new(&place.path).starts_with(point));
        configured.retain(|one| holds(&one.point));
    }
    let ports = crate::rdma::ports(facts.system);
    nfs::find(facts, &mounted, &ports, found);
    rdma::find(facts, &mounted, &configured, &ports, found);
    boot::find(facts, &mounted, &configured, &ports, found);
    log::find(facts, &mounted, &configured, &ports, found);
    if !nfs::relevant(facts, &mounted).is_empty() {
        nic::find(facts, &ports, found);
    }
    server::find(facts, found);
}

/// Whether an engine refused because of the state of a file's pages, which changes by itself, not because of the
/// machine.
fn is_passing(reason: &str) -> bool {
    reason.starts_with("its pages") || reason.starts_with("the file was changed")
}
