//! The way between storage and GPU: links, NUMA nodes, IOMMU.

use super::edit::kernel_argument;
use super::transfer::target_name;
use crate::exercise::ExerciseTarget;
use crate::facts::Facts;
use crate::finding::{Findings, Severity, counted};
use crate::gpu::{BUS, GpuFacts};
use crate::machine::Iommu;

pub(super) fn find(facts: &Facts<'_>, found: &mut Findings) {
    for gpu in facts.gpus.iter().filter(|gpu| gpu.index.is_some()) {
        let name = gpu.index.map(|index| target_name(&ExerciseTarget::Gpu(index))).unwrap_or_default();
        link(facts, gpu, &name, found);
        numa(facts, gpu, &name, found);
        if let [first, ..] = gpu.acs.as_slice() {
            let text = format!("{name}: ACS redirects peer-to-peer requests at bridge {first}");
            let fix =
                format!("for peer-to-peer between devices below it: sudo setpci -s {first} ECAP_ACS+6.w=0");
            let finding = found.add("acs", Severity::Note, text, Some(&fix));
            finding.seen(&format!("{BUS}/{first}/config"), "the ACS capability redirects requests");
        }
    }
    if facts.machine.iommu == Iommu::Translating {
        iommu(facts, found);
    }
}

/// The PCIe link of a GPU: its width, then its speed.
fn link(facts: &Facts<'_>, gpu: &GpuFacts, name: &str, found: &mut Findings) {
    let (width_file, speed_file) =
        (format!("{BUS}/{}/current_link_width", gpu.pci), format!("{BUS}/{}/current_link_speed", gpu.pci));
    match &gpu.link {
        Some(link) if link.width > 0 && link.width < link.max_width => {
            let lanes = counted(link.max_width as usize, "lane");
            let text = format!("{name}: PCIe link has {} of {lanes} ({})", link.width, link.speed);
            let fix = format!("reseat the card or use another slot; lspci -vvs {} | grep LnkSta", gpu.pci);
            let finding = found.add("pcie-width", Severity::Slower, text, Some(&fix));
            finding.seen(&width_file, link.width.to_string());
        }
        Some(link) if link.width > 0 && link.speed != link.max_speed => {
            let text = format!(
                "{name}: PCIe link at {}, could be {} (idle GPUs lower it)",
                link.speed, link.max_speed
            );
            let fix = format!("look again under load: cat {speed_file}");
            found.add("pcie-speed", Severity::Note, text, Some(&fix)).seen(&speed_file, &link.speed);
        }
        Some(link) if link.width > 0 => {
            let lanes = counted(link.width as usize, "lane");
            let text = format!("{name}: PCIe link at {} with {lanes}, all it can", link.speed);
            found.add("pcie-link", Severity::Ok, text, None);
        }
        _ if facts.system.exists(&format!("{BUS}/{}", gpu.pci)) => {
            let text = format!("{name}: the PCIe link cannot be read here");
            found.add("pcie-link", Severity::Note, text, None).missing(&width_file);
        }
        _ => {}
    }
}

/// Places whose drives are on another NUMA node than the GPU.
fn numa(facts: &Facts<'_>, gpu: &GpuFacts, name: &str, found: &mut Findings) {
    for place in facts.places {
        let (Some(near), Some(far)) = (gpu.numa_node, place.numa_node) else { continue };
        if near == far {
            continue;
        }
        let (path, kind) = (&place.path, place.kind.label());
        let text = format!("{name} is on NUMA node {near}, {path} ({kind}) on node {far}");
        let fix = format!("numactl --cpunodebind={near} --membind={near} COMMAND");
        let finding = found.add("numa", Severity::Note, text, Some(&fix));
        finding.seen(&format!("{BUS}/{}/numa_node", gpu.pci), near.to_string());
        let drive = place.controller.as_deref().unwrap_or("…");
        finding.seen(&format!("{BUS}/{drive}/numa_node"), far.to_string());
    }
}

/// NVIDIA's GDS is not guaranteed to work then; forebay's transfers through host memory still work.
fn iommu(facts: &Facts<'_>, found: &mut Findings) {
    let gds = facts.machine.nvidia_fs.is_some() || facts.library.is_some();
    let severity = if gds && !facts.gpus.is_empty() { Severity::Slower } else { Severity::Note };
    let text = "the IOMMU translates: transfers through host memory work, peer-to-peer ones (and NVIDIA's GDS) are slow or fail";
    let fix = kernel_argument(facts.system, "iommu=pt");
    let finding = found.add("iommu", severity, text, Some(&fix));
    finding.seen("/proc/cmdline", facts.system.text("/proc/cmdline").unwrap_or_default());
    let types = facts.system.list("/sys/kernel/iommu_groups").into_iter().find_map(|group| {
        let path = format!("/sys/kernel/iommu_groups/{group}/type");
        Some((facts.system.text(&path).filter(|kind| kind.starts_with("DMA"))?, path))
    });
    if let Some((kind, path)) = types {
        finding.seen(&path, kind);
    }
}
