//! The rules: each reads the facts and returns findings. One file for each part of the machine.

mod bench;
mod boot;
mod bus;
mod cluster;
mod command;
mod copy;
mod driver;
mod drives;
mod edit;
mod ethernet;
mod export;
mod gpu;
mod ids;
mod io;
mod libcufile;
mod limits;
mod log;
mod modules;
mod nfs;
mod nic;
mod objects;
mod pod;
mod process;
mod rdma;
mod server;
mod surroundings;
mod switch;
mod transfer;

use std::path::Path;

pub(crate) use ids::{IDS, similar};
pub(crate) use objects::of_rdma;

use crate::exports::{Export, exports};
use crate::facts::Facts;
use crate::finding::{Finding, Findings, Severity};
use crate::storage::{self, StoragePlace};
use crate::system::System;

/// All findings, worst first.
pub(crate) fn findings(facts: &Facts<'_>) -> Vec<Finding> {
    let mut found = Findings::default();
    apply(facts, &mut found);
    copy::find(facts, &mut found);
    found.sorted()
}

/// Findings of an NFS server: what of a machine its clients wait for.
pub(crate) fn of_server(facts: &Facts<'_>, exports: &[(Export, StoragePlace)]) -> Vec<Finding> {
    let mut found = Findings::default();
    drives::find(facts, &mut found);
    let ports = crate::rdma::ports(facts.system);
    rdma::find(facts, &[], &[], &ports, &mut found);
    log::find(facts, &[], &[], &ports, &mut found);
    // That is said of all files together.
    found.retain(|finding| finding.id != "log-unreadable");
    export::find(exports, &mut found);
    server::of_copy(facts, &mut found);
    found.sorted()
}

/// Findings of a network's two ends.
pub(crate) fn of_two_ends(here: &dyn System, there: &dyn System, host: &str) -> Vec<Finding> {
    let mut found = Findings::default();
    ethernet::two_ends(here, there, host, &mut found);
    found.sorted()
}

/// Exports of a machine whose kernel serves NFS, and what they lie on.
pub(crate) fn served(system: &dyn System) -> Vec<(Export, StoragePlace)> {
    let all = if rdma::serves(system) { exports(system) } else { Vec::new() };
    all.into_iter()
        .map(|export| (storage::place(system, &export.path), export))
        .map(|(place, export)| (export, place))
        .collect()
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
    switch::find(facts, found);
    transfer::find(facts, found);
    io::find(facts, found);
    limits::find(facts, found);
    pod::find(facts, found);
    surroundings::find(facts, found);
    bus::find(facts, found);
    drives::find(facts, found);
    cluster::find(facts, found);
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
    export::find(&served(facts.system), found);
}

/// Whether an engine refused because of the state of a file's pages, which changes by itself, not because of the
/// machine.
fn is_passing(reason: &str) -> bool {
    reason.starts_with("its pages") || reason.starts_with("the file was changed")
}
