//! The way between storage and GPU: links, NUMA nodes, IOMMU.

use super::transfer::target_name;
use crate::exercise::ExerciseTarget;
use crate::facts::Facts;
use crate::finding::counted;
use crate::finding::{Findings, Severity};
use crate::machine::Iommu;

pub(super) fn find(facts: &Facts<'_>, found: &mut Findings) {
    let machine = facts.machine;
    for gpu in facts.gpus.iter().filter(|gpu| gpu.index.is_some()) {
        let name = gpu.index.map(|index| target_name(&ExerciseTarget::Gpu(index))).unwrap_or_default();
        match &gpu.link {
            Some(link) if link.width > 0 && link.width < link.max_width => {
                let text = format!(
                    "{name}: PCIe link has {} of {} ({})",
                    link.width,
                    counted(link.max_width as usize, "lane"),
                    link.speed
                );
                let fix =
                    format!("reseat the card or use another slot; lspci -vvs {} | grep LnkSta", gpu.pci);
                let finding = found.add("pcie-width", Severity::Slower, text, Some(&fix));
                finding.seen(
                    &format!("/sys/bus/pci/devices/{}/current_link_width", gpu.pci),
                    link.width.to_string(),
                );
            }
            Some(link) if link.width > 0 && link.speed != link.max_speed => {
                let text = format!(
                    "{name}: PCIe link at {}, could be {} (idle GPUs lower it)",
                    link.speed, link.max_speed
                );
                let fix =
                    format!("look again under load: cat /sys/bus/pci/devices/{}/current_link_speed", gpu.pci);
                let finding = found.add("pcie-speed", Severity::Note, text, Some(&fix));
                finding.seen(&format!("/sys/bus/pci/devices/{}/current_link_speed", gpu.pci), &link.speed);
            }
            Some(link) if link.width > 0 => {
                let lanes = counted(link.width as usize, "lane");
                let text = format!("{name}: PCIe link at {} with {lanes}, all it can", link.speed);
                found.add("pcie-link", Severity::Ok, text, None);
            }
            _ if facts.system.exists(&format!("/sys/bus/pci/devices/{}", gpu.pci)) => {
                let text = format!("{name}: the PCIe link cannot be read here");
                found
                    .add("pcie-link", Severity::Note, text, None)
                    .missing(&format!("/sys/bus/pci/devices/{}/current_link_width", gpu.pci));
            }
            _ => {}
        }
        for place in facts.places {
            if let (Some(a), Some(b)) = (gpu.numa_node, place.numa_node)
                && a != b
            {
                let text = format!(
                    "{name} is on NUMA node {a}, {} ({}) on node {b}",
                    place.path,
                    place.kind.label()
                );
                let fix = format!("numactl --cpunodebind={a} --membind={a} COMMAND");
                let finding = found.add("numa", Severity::Note, text, Some(&fix));
                finding.seen(&format!("/sys/bus/pci/devices/{}/numa_node", gpu.pci), a.to_string());
                let drive = place.controller.as_deref().unwrap_or("…");
                finding.seen(&format!("/sys/bus/pci/devices/{drive}/numa_node"), b.to_string());
            }
        }
        if let [first, ..] = gpu.acs.as_slice() {
            let text = format!("{name}: ACS redirects peer-to-peer requests at bridge {first}");
            let fix =
                format!("for peer-to-peer between devices below it: sudo setpci -s {first} ECAP_ACS+6.w=0");
            let finding = found.add("acs", Severity::Note, text, Some(&fix));
            finding.seen(
                &format!("/sys/bus/pci/devices/{first}/config"),
                "the ACS capability redirects requests",
            );
        }
    }
    if machine.iommu == Iommu::Translating {
        iommu(facts, found);
    }
}

/// NVIDIA's GDS is not guaranteed to work then; forebay's transfers through host memory do not mind.
fn iommu(facts: &Facts<'_>, found: &mut Findings) {
    let gds = facts.machine.nvidia_fs.is_some() || facts.library.is_some();
    let severity = if gds && !facts.gpus.is_empty() { Severity::Slower } else { Severity::Note };
    let text = "the IOMMU translates: transfers through host memory work, peer-to-peer ones (and NVIDIA's GDS) are slow or fail";
    let fix =
        "add iommu=pt to GRUB_CMDLINE_LINUX in /etc/default/grub, then: sudo update-grub && sudo reboot";
    let finding = found.add("iommu", severity, text, Some(fix));
    finding.seen("/proc/cmdline", facts.system.text("/proc/cmdline").unwrap_or_default());
    let types = facts.system.list("/sys/kernel/iommu_groups").into_iter().find_map(|group| {
        let path = format!("/sys/kernel/iommu_groups/{group}/type");
        Some((facts.system.text(&path).filter(|kind| kind.starts_with("DMA"))?, path))
    });
    if let Some((kind, path)) = types {
        finding.seen(&path, kind);
    }
}
