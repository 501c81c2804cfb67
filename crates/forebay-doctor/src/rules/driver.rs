//! NVIDIA's driver, CUDA, nvidia-fs, and the device files that programs need.

use crate::facts::Facts;
use crate::finding::{Findings, Severity};
use crate::system::System;

/// The oldest driver for programs of a CUDA release.
const OLDEST: [(u32, [u32; 3]); 4] =
    [(13, [580, 65, 6]), (12, [525, 60, 13]), (11, [450, 80, 2]), (10, [410, 48, 0])];
const LIBRARIES: [&str; 5] =
    ["/usr/lib/x86_64-linux-gnu", "/usr/lib64", "/usr/lib/aarch64-linux-gnu", "/usr/lib/wsl/lib", "/usr/lib"];

pub(super) fn find(facts: &Facts<'_>, found: &mut Findings) {
    versions(facts, found);
    toolkits(facts, found);
    nvidia_fs(facts, found);
    no_gds(facts, found);
    devices(facts, found);
    visible(facts, found);
}

/// The driver in the kernel and its library must be of one version.
fn versions(facts: &Facts<'_>, found: &mut Findings) {
    let Some(driver) = &facts.machine.driver else { return };
    // CUDA reports a version, so it starts.
    if facts.process.is_none() && facts.offered.gpus.iter().any(|gpu| gpu.driver_api > 0) {
        return;
    }
    let libraries = libraries(facts.system, "libcuda.so.");
    if libraries.is_empty() || libraries.iter().any(|(_, version)| *version == driver.version) {
        return;
    }
    let (path, version) = &libraries[0];
    let text =
        format!("the driver in the kernel is {}, its library {version}: CUDA does not start", driver.version);
    let fix = if facts.machine.container.is_some() {
        "recreate the container, so that it gets the node's libraries"
    } else {
        "sudo reboot (the kernel still has the old one), or install both of one version"
    };
    let finding = found.add("driver-mismatch", Severity::Blocks, text, Some(fix));
    finding.seen("/proc/driver/nvidia/version", &driver.version).seen("library", path);
}

/// The driver's libraries whose names begin so, as `libcuda.so.`, with their versions.
pub(super) fn libraries(system: &dyn System, start: &str) -> Vec<(String, String)> {
    let mut all = Vec::new();
    for dir in LIBRARIES {
        let names = system.list(dir).into_iter();
        all.extend(names.filter_map(|name| {
            let version = name.strip_prefix(start).filter(|version| version.contains('.'))?.to_owned();
            Some((format!("{dir}/{name}"), version))
        }));
    }
    all
}

/// A CUDA toolkit that is newer than the driver allows.
fn toolkits(facts: &Facts<'_>, found: &mut Findings) {
    let Some(driver) = &facts.machine.driver else { return };
    for name in facts.system.list("/usr/local") {
        let Some(version) = name.strip_prefix("cuda-").filter(|name| name.contains('.')) else { continue };
        let major = version.split('.').next().and_then(|part| part.parse::<u32>().ok());
        let Some((major, oldest)) = OLDEST.iter().find(|(known, _)| Some(*known) == major) else { continue };
        if driver.numbers().as_slice() < oldest.as_slice() {
            let [a, b, c] = oldest;
            let text = format!(
                "CUDA {version} is installed, and needs driver {a}.{b:02}.{c:02} or later; this one is {}: its programs do not start",
                driver.version
            );
            let fix = format!(
                "sudo apt install nvidia-open (a newer driver) and reboot; or programs of CUDA {}; or cuda-compat-{major}",
                major - 1
            );
            let finding = found.add("cuda-mismatch", Severity::Slower, text, Some(&fix));
            finding.seen("/usr/local", &name).seen("/proc/driver/nvidia/version", &driver.version);
        }
    }
}

/// NVIDIA's libcufile is installed, and a module or device that it needs is missing.
fn nvidia_fs(facts: &Facts<'_>, found: &mut Findings) {
    let system = facts.system;
    let Some(loaded) = &facts.machine.nvidia_fs else {
        // Containers see the node's modules.
        let on_node = system
            .text("/proc/modules")
            .is_some_and(|text| text.lines().any(|line| line.starts_with("nvidia_fs ")));
        let p2p = facts.cufile.get("properties.use_pci_p2pdma") == Some("true");
        let wanted = facts.library.is_some() || facts.in_pod();
        if wanted && facts.machine.driver.is_some() && !on_node && !p2p {
            let text = "nvidia-fs is not loaded: NVIDIA's libcufile copies through host memory (forebay needs no module)";
            let fix = if facts.in_pod() {
                "on the node: sudo modprobe nvidia_fs; by the GPU operator: gds.enabled=true"
            } else {
                "sudo modprobe nvidia_fs; if there is none: sudo apt install nvidia-fs"
            };
            let finding = found.add("nvidia-fs", Severity::Note, text, Some(fix));
            finding.missing("/proc/driver/nvidia-fs/version").missing("nvidia_fs in /proc/modules");
        }
        return;
    };
    if facts.machine.container.is_some() && facts.library.is_some() && !system.exists("/dev/nvidia-fs0") {
        let text = "the node has nvidia-fs, and this container none of its devices: NVIDIA's libcufile copies through host memory";
        let fix = if facts.in_pod() {
            "GPU operator: gds.enabled=true and the pod's annotation or NVIDIA_GDS=enabled in its environment"
        } else {
            "docker run --gpus all -e NVIDIA_GDS=enabled …, or --device /dev/nvidia-fs0 (and the other numbers)"
        };
        let finding = found.add("nvidia-fs", Severity::Note, text, Some(fix));
        finding.seen("/proc/driver/nvidia-fs/version", loaded).missing("/dev/nvidia-fs0");
    }
    let sources = system.list("/usr/src").into_iter();
    let versions: Vec<String> =
        sources.filter_map(|name| name.strip_prefix("nvidia-fs-").map(str::to_owned)).collect();
    let same = |version: &String| version == loaded || version.starts_with(&format!("{loaded}."));
    if !versions.is_empty() && !versions.iter().any(same) {
        let text = format!("nvidia-fs {loaded} is loaded, {} is installed", versions.join(", "));
        let fix = "sudo rmmod nvidia_fs && sudo modprobe nvidia_fs; if it stays: sudo dkms autoinstall";
        let finding = found.add("nvidia-fs-version", Severity::Slower, text, Some(fix));
        finding
            .seen("/proc/driver/nvidia-fs/version", loaded)
            .seen("/usr/src", format!("nvidia-fs-{}", versions[0]));
    }
}

/// GPUs that NVIDIA's GDS does not support, and forebay does.
fn no_gds(facts: &Facts<'_>, found: &mut Findings) {
    for gpu in facts.gpus.iter().filter(|gpu| gpu.name.contains("GeForce") || gpu.name.contains("TITAN")) {
        let text = format!(
            "{} ({}): NVIDIA's GDS supports data centre and RTX professional GPUs only, and copies through host memory here",
            gpu.name, gpu.pci
        );
        let fix = "forebay's own engines work there: forebay run -- COMMAND";
        let finding = found.add("gpu-no-gds", Severity::Note, text, Some(fix));
        finding.seen("GPU", &gpu.name);
        finding.seen("BAR 1", gpu.bar1_mib.map(|mib| format!("{mib} MiB")).unwrap_or_default());
    }
}

/// The device files of a GPU: containers have them only when they ask.
fn devices(facts: &Facts<'_>, found: &mut Findings) {
    let system = facts.system;
    let Some(driver) = &facts.machine.driver else { return };
    let (control, uvm) = ("/dev/nvidiactl", "/dev/nvidia-uvm");
    let contained = facts.machine.container.is_some();
    if !system.exists(control) {
        if contained {
            let text = "the node has an NVIDIA driver, and this container no GPU: it was started without one";
            let fix = if facts.in_pod() {
                "resources: {limits: {nvidia.com/gpu: 1}} in the pod's manifest; runtimeClassName: nvidia where that is not the default"
            } else {
                "docker run --gpus all … (podman: --device nvidia.com/gpu=all)"
            };
            let finding = found.add("no-gpu-device", Severity::Slower, text, Some(fix));
            finding.seen("/proc/driver/nvidia/version", &driver.version).missing(control);
        }
    } else if !system.exists(uvm) {
        let text = "the device of CUDA's memory is missing: CUDA does not start";
        let fix = if contained {
            "start the container by NVIDIA's runtime (docker run --gpus all …), not by --device alone"
        } else {
            "sudo modprobe nvidia_uvm && sudo nvidia-modprobe -u -c 0"
        };
        found.add("no-uvm", Severity::Blocks, text, Some(fix)).missing(uvm);
    }
}

/// CUDA_VISIBLE_DEVICES names a GPU that does not exist.
fn visible(facts: &Facts<'_>, found: &mut Findings) {
    let Some(value) = facts.system.env("CUDA_VISIBLE_DEVICES") else { return };
    let bus = facts.gpus.iter().filter(|gpu| gpu.maker == "NVIDIA").count();
    let wrong = value.split(',').find(|part| part.trim().parse::<usize>().is_ok_and(|index| index >= bus));
    if let Some(part) = wrong.filter(|_| bus > 0) {
        let text = format!(
            "CUDA_VISIBLE_DEVICES names GPU {part}, and there are {bus}: that one, and all behind it, are hidden"
        );
        let fix = format!(
            "export CUDA_VISIBLE_DEVICES={}, or unset it",
            (0..bus).map(|n| n.to_string()).collect::<Vec<_>>().join(",")
        );
        found
            .add("gpu-index", Severity::Blocks, text, Some(&fix))
            .seen("environment", format!("CUDA_VISIBLE_DEVICES={value}"));
    }
}
