//! The distance between a GPU and the RDMA link by which servers write into its memory.

use super::transfer::target_name;
use crate::direct::{PciNearness, nearness, pci_distance};
use crate::exercise::ExerciseTarget;
use crate::facts::Facts;
use crate::finding::{Findings, Severity};
use crate::gpu::{BUS, GpuFacts};
use crate::rdma::Port;

/// A link's card, and its distance to a GPU.
struct Card<'a> {
    port: &'a Port,
    pci: Option<String>,
    numa: Option<i64>,
}

/// For each GPU the nearest link that is up. Only where something is mounted by NFS.
pub(super) fn find(facts: &Facts<'_>, ports: &[Port], found: &mut Findings) {
    let cards: Vec<Card<'_>> = ports
        .iter()
        .filter(|port| port.is_active() && !port.is_soft)
        .map(|port| Card { port, pci: port.pci(facts.system), numa: port.numa_node(facts.system) })
        .collect();
    for gpu in facts.gpus {
        let Some(index) = gpu.index else { continue };
        let distance = |card: &&Card<'_>| {
            let hops = card.pci.as_deref().and_then(|pci| pci_distance(facts.system, &gpu.pci, pci));
            (hops.unwrap_or(usize::MAX), card.numa != gpu.numa_node)
        };
        if let Some(card) = cards.iter().min_by_key(distance) {
            tell(facts, gpu, &target_name(&ExerciseTarget::Gpu(index)), card, found);
        }
    }
}

fn tell(facts: &Facts<'_>, gpu: &GpuFacts, name: &str, card: &Card<'_>, found: &mut Findings) {
    let link = card.port.name();
    let near = card.pci.as_deref().and_then(|pci| nearness(facts.system, &gpu.pci, pci));
    let text = match (near, gpu.numa_node, card.numa) {
        (Some(PciNearness::Switch(bridge)), ..) => {
            format!("{name} and the RDMA link {link} are behind one PCIe switch ({bridge})")
        }
        (Some(PciNearness::HostBridge), ..) => {
            format!("{name} and the RDMA link {link} are behind one host bridge")
        }
        (_, Some(one), Some(other)) if one == other => {
            format!("{name} and the RDMA link {link} are on NUMA node {one}")
        }
        (_, Some(one), Some(other)) => {
            let text = format!(
                "{name} is on NUMA node {one}, its nearest RDMA link {link} on node {other}: bytes that a server writes there cross between sockets"
            );
            let fix = "nvidia-smi topo -m shows which GPU is near which NIC; take that one: CUDA_VISIBLE_DEVICES=INDEX COMMAND; or put the card into a slot of the GPU's node";
            let finding = found.add("nic-distance", Severity::Note, text, Some(fix));
            finding.seen(&format!("{BUS}/{}/numa_node", gpu.pci), one.to_string());
            finding.seen(&card.port.numa_file(), other.to_string());
            return;
        }
        _ => return,
    };
    let finding = found.add("nic-distance", Severity::Ok, text, None);
    finding.seen(
        &format!("{BUS}/{}", gpu.pci),
        facts.system.resolve(&format!("{BUS}/{}", gpu.pci)).unwrap_or_default(),
    );
    finding.seen(&card.port.device_link(), card.pci.as_deref().unwrap_or_default());
}
