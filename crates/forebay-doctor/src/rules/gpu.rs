//! GPUs and their driver.

use crate::exercise::Hinted;
use crate::facts::Facts;
use crate::finding::{Findings, Severity};
use crate::gpu::{BUS, GpuFacts};

pub(super) fn find(facts: &Facts<'_>, found: &mut Findings) {
    for gpu in facts.gpus.iter().filter(|gpu| gpu.maker == "AMD" && gpu.index.is_none()) {
        let text = format!("AMD GPU at {}: forebay {} knows NVIDIA GPUs only", gpu.pci, crate::VERSION);
        found.add("gpu-amd", Severity::Note, text, None).seen(&bus_file(gpu), "0x1002");
    }
    let mut hidden = facts.gpus.iter().filter(|gpu| gpu.maker == "NVIDIA" && gpu.index.is_none());
    if let Some(why) = &facts.offered.missing {
        return none(facts, hidden.next(), why, found);
    }
    let names: Vec<&str> = facts.offered.gpus.iter().map(|gpu| gpu.name.as_str()).collect();
    found.add("gpu", Severity::Ok, format!("the GPU driver offers {}", names.join(", ")), None);
    for gpu in hidden {
        let text = format!("the driver does not offer the GPU at {}", gpu.pci);
        let fix = Some("check CUDA_VISIBLE_DEVICES and nvidia-smi");
        found.add("gpu-hidden", Severity::Note, text, fix).seen(&bus_file(gpu), "0x10de");
    }
}

fn bus_file(gpu: &GpuFacts) -> String {
    format!("{BUS}/{}/vendor", gpu.pci)
}

/// The driver offers no GPU.
fn none(facts: &Facts<'_>, on_bus: Option<&GpuFacts>, why: &Hinted, found: &mut Findings) {
    let contained = facts.machine.container.is_some();
    match (on_bus, &facts.machine.driver) {
        (Some(gpu), Some(driver)) => {
            let text = format!(
                "an NVIDIA GPU ({}) and its kernel driver are here, but CUDA is not usable: {}",
                gpu.pci, why.text
            );
            let fix = if contained {
                "start the container with the driver's libraries: docker run --gpus all …"
            } else {
                why.fix
                    .as_deref()
                    .unwrap_or("install the driver's libraries: apt install libnvidia-compute-<version>")
            };
            let finding = found.add("no-cuda", Severity::Slower, text, Some(fix));
            finding.seen(&bus_file(gpu), "0x10de").seen("/proc/driver/nvidia/version", &driver.version);
        }
        (Some(gpu), None) => {
            let text =
                format!("an NVIDIA GPU ({}) is here, but its driver is not loaded: {}", gpu.pci, why.text);
            let fix = Some("install the driver: apt install nvidia-open, then reboot");
            let finding = found.add("no-driver", Severity::Slower, text, fix);
            finding.seen(&bus_file(gpu), "0x10de").missing("/proc/driver/nvidia/version");
        }
        (None, _) => {
            let text = format!(
                "no GPU: the PCI bus shows none, and the CUDA driver is missing or offers none ({}); transfers end in host memory",
                why.text
            );
            let fix = if contained {
                "if the host has a GPU: docker run --gpus all …"
            } else {
                "use a machine with an NVIDIA GPU; forebay works with host memory until then"
            };
            let finding = found.add("no-gpu", Severity::Slower, text, Some(fix));
            finding.seen(&format!("{BUS}/*/vendor"), "none is 0x10de with a GPU's class");
        }
    }
}
