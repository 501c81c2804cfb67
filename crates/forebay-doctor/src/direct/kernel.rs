//! Requirements on the kernel and the GPU's driver, and their options.

use super::blocker::{Blocker, RouteFindings};
use super::memory::BarMemory;
use crate::gpu::{BUS, GpuFacts};
use crate::machine::MachineFacts;
use crate::system::System;

/// The first driver that offers pages for peer-to-peer DMA at all.
const FIRST_DRIVER: [u32; 2] = [565, 57];
/// The first driver whose pages work on kernels from 6.15 on.
const FIXED_DRIVER: [u32; 2] = [595, 44];
/// Without this option the driver maps BAR 1 in a way that the kernel cannot make pages for.
const OPTION: &str = "RmForceDisableIomapWC=1";

/// The kernel itself.
pub(super) fn check(machine: &MachineFacts, memory: &BarMemory, found: &mut RouteFindings) {
    // Where the kernel shows such memory it has the option, readable or not.
    match machine.kernel_p2pdma.or(memory.bytes.map(|_| true)) {
        Some(true) => {}
        Some(false) => {
            let text = format!("kernel {} is built without CONFIG_PCI_P2PDMA", machine.kernel);
            found.block(
                Blocker::new("kernel-config", text)
                    .fix("boot a kernel with CONFIG_PCI_P2PDMA=y (Ubuntu 24.04 and RHEL 10 have it)"),
            );
        }
        None => found.unread(format!(
            "whether kernel {} has CONFIG_PCI_P2PDMA: no /proc/config.gz, /boot/config-{} or \
             /lib/modules/{}/config",
            machine.kernel, machine.kernel, machine.kernel
        )),
    }
    if machine.kernel_version() < (6, 2) {
        let text = format!("kernel {} has no peer-to-peer DMA for programs", machine.kernel);
        found.block(Blocker::new("kernel-version", text).fix("boot kernel 6.2 or later"));
    }
}

/// True where the driver's allocation of such memory fails because of the kernel's page reference counts.
fn counts_clash(machine: &MachineFacts) -> bool {
    machine.driver.as_ref().is_some_and(|driver| {
        machine.kernel_version() >= (6, 15) && driver.numbers() < FIXED_DRIVER.to_vec() && driver.open
    })
}

/// The driver of a GPU.
pub(super) fn check_driver(
    system: &dyn System,
    machine: &MachineFacts,
    gpu: &GpuFacts,
    found: &mut RouteFindings,
) {
    if gpu.maker != "NVIDIA" {
        let text = format!("{} GPUs: this version of forebay cannot get memory for drives there", gpu.maker);
        return found.block(Blocker::new("gpu-maker", text));
    }
    if machine.arch == "aarch64" {
        let text = "on ARM the driver offers such memory only for GPUs that share memory with the processor";
        found.block(Blocker::new("architecture", text));
    }
    let Some(driver) = &machine.driver else {
        return found.block(
            Blocker::new("no-driver", "no NVIDIA kernel driver is visible")
                .fix("install the open kernel module: apt install nvidia-open (595.44.02 or later)"),
        );
    };
    let version = &driver.version;
    if !driver.open {
        let text = format!("driver {version} is the proprietary kernel module");
        found.block(
            Blocker::new("driver-proprietary", text)
                .fix("install the open kernel module: apt install nvidia-open (or nvidia-driver-*-open)"),
        );
    } else if driver.numbers() < FIRST_DRIVER.to_vec() {
        let text = format!("driver {version} offers no P2P pages");
        found.block(Blocker::new("driver-version", text).fix("install driver 595.44.02 or later"));
    } else if counts_clash(machine) {
        let text = format!(
            "driver {version} with kernel {}: page reference counts clash, the driver's P2P allocation fails with \
             NV_ERR_INVALID_ARGUMENT",
            machine.kernel
        );
        found.block(
            Blocker::new("driver-counts", text)
                .fix("install driver 595.44.02 or later, or boot a kernel before 6.15"),
        );
    }
    if gpu.p2pmem.unwrap_or(0) == 0 {
        found.block(not_published(system, gpu, found_options(system)));
    }
}

/// The driver's registry options, as it was loaded with them; none if that cannot be read.
fn found_options(system: &dyn System) -> Option<String> {
    let text = system.text("/proc/driver/nvidia/params")?;
    let line = text.lines().find_map(|line| line.strip_prefix("RegistryDwords:"))?;
    Some(line.trim().trim_matches('"').to_owned())
}

/// Why there is no such memory, though the driver could have some.
fn not_published(system: &dyn System, gpu: &GpuFacts, options: Option<String>) -> Blocker {
    let dir = format!("{BUS}/{}/p2pmem", gpu.pci);
    let text = format!("the driver publishes no P2P memory for the GPU (no {dir})");
    if let Some(mib) = gpu.bar1_mib
        && gpu.memory > 0
        && mib << 20 < gpu.memory
    {
        let text =
            format!("{text}: its BAR 1 has {mib} MiB, less than its {} MiB of memory", gpu.memory >> 20);
        return Blocker::new("bar-size", text)
            .fix("switch on \"Above 4G decoding\" and \"Resizable BAR\" in the firmware, if the GPU has it");
    }
    if !system.is_dir("/sys/module/nvidia_uvm") && system.is_dir("/sys/module/nvidia") {
        return Blocker::new("driver-uvm", format!("{text}: nvidia-uvm is not loaded"))
            .fix("sudo modprobe nvidia-uvm");
    }
    match options {
        Some(options) if options.contains(OPTION) => {
            Blocker::new("no-p2pmem", format!("{text}, although it was loaded with {options}"))
                .fix("the kernel's log has the reason: sudo dmesg | grep -i -e nvrm -e uvm")
        }
        _ => Blocker::new("driver-options", text).fix(format!(
            "echo 'options nvidia NVreg_RegistryDwords=\"{OPTION};\"' | sudo tee \
             /etc/modprobe.d/forebay-p2p.conf, then reboot"
        )),
    }
}
