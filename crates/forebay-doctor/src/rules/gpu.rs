//! GPUs and their driver.

use crate::finding::{Facts, Findings, Severity};
use crate::gpu::GpuFacts;

pub(super) fn find(facts: &Facts<'_>, found: &mut Findings) {
    for gpu in facts.gpus.iter().filter(|gpu| gpu.maker == "AMD" && gpu.index.is_none()) {
        let text = format!("AMD GPU at {}: forebay {} knows NVIDIA GPUs only", gpu.pci, crate::VERSION);
        found.add("gpu-amd", Severity::Note, text, None);
    }
    let hidden: Vec<&GpuFacts> =
        facts.gpus.iter().filter(|g| g.maker == "NVIDIA" && g.index.is_none()).collect();
    let Some(why) = &facts.offered.missing else {
        let names: Vec<&str> = facts.offered.gpus.iter().map(|gpu| gpu.name.as_str()).collect();
        found.add("gpu", Severity::Ok, format!("the GPU driver offers {}", names.join(", ")), None);
        for gpu in hidden {
            let text = format!("the driver does not offer the GPU at {}", gpu.pci);
            found.add("gpu-hidden", Severity::Note, text, Some("check CUDA_VISIBLE_DEVICES and nvidia-smi"));
        }
        return;
    };
    match hidden.first() {
        Some(gpu) if facts.machine.driver.is_some() => {
            let text = format!(
                "an NVIDIA GPU ({}) and its kernel driver are here, but CUDA is not usable: {}",
                gpu.pci, why.text
            );
            let fix = if facts.machine.container.is_some() {
                "start the container with the driver's libraries: docker run --gpus all …"
            } else {
                why.fix
                    .as_deref()
                    .unwrap_or("install the driver's libraries: apt install libnvidia-compute-<version>")
            };
            found.add("no-cuda", Severity::Slower, text, Some(fix));
        }
        Some(gpu) => {
            let text =
                format!("an NVIDIA GPU ({}) is here, but its driver is not loaded: {}", gpu.pci, why.text);
            found.add(
                "no-driver",
                Severity::Slower,
                text,
                Some("install the driver: apt install nvidia-open, then reboot"),
            );
        }
        None => {
            let text = format!(
                "no GPU: the PCI bus shows none, and the CUDA driver is missing or offers none ({}); transfers end in host memory",
                why.text
            );
            let fix = if facts.machine.container.is_some() {
                "if the host has a GPU: docker run --gpus all …"
            } else {
                "use a machine with an NVIDIA GPU; forebay works with host memory until then"
            };
            found.add("no-gpu", Severity::Slower, text, Some(fix));
        }
    }
}
