//! The description of the machine, and the time of day.

use std::fs;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use crc_fast::CrcAlgorithm::Crc64Nvme;
use forebay_bench::report::MachineReport;
use forebay_config::env;
use forebay_doctor::machine::{KernelDriver, MachineFacts, meminfo};
use forebay_doctor::storage::{self, DiskKind};
use forebay_doctor::topology::Topology;
use forebay_doctor::{RealSystem, System};
use forebay_error::Result;
use forebay_gpu::{DeviceName, Devices};
use forebay_sys::UtcTime;

use crate::model::{Device, Machine, PathFacts};

/// Describes this machine for these devices and paths.
pub(crate) fn this(devices: &[DeviceName], paths: &[impl AsRef<Path>]) -> Result<Machine> {
    let MachineReport { kernel, cpus, cpu_model } = MachineReport::this();
    let found = Devices::discover();
    let devices = devices
        .iter()
        .map(|name| {
            let device = found.named(name)?;
            let info = device.info();
            Ok(Device {
                name: name.to_string(),
                model: info.name.clone(),
                pci: info.pci.clone(),
                is_host: info.is_host,
                driver: info.driver_version,
            })
        })
        .collect::<Result<_>>()?;
    let paths = paths.iter().map(|path| facts(path.as_ref())).collect();
    let memory = meminfo(&RealSystem, "MemTotal:").unwrap_or(0);
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default().trim().to_owned();
    let about = MachineFacts::probe(&RealSystem);
    let topology = Topology::probe(&RealSystem, &forebay_doctor::live::offered(&found).gpus);
    let governor = RealSystem.text("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor");
    Ok(Machine {
        product: product(&about),
        gpu_driver: about.driver.as_ref().map_or_else(String::new, gpu_driver),
        governor: governor.unwrap_or_default(),
        limits: limits(&about),
        boot,
        kernel,
        cpu_model,
        cpus,
        memory,
        devices,
        paths,
        topology,
    })
}

fn product(about: &MachineFacts) -> String {
    let kind = match (&about.container, about.virtual_machine) {
        (Some(container), true) => format!("{container} container in a virtual machine"),
        (Some(container), false) => format!("{container} container"),
        (None, true) => "virtual machine".to_owned(),
        (None, false) => String::new(),
    };
    let words = about.product.clone().into_iter().chain(Some(kind).filter(|kind| !kind.is_empty()));
    words.collect::<Vec<_>>().join(", ")
}

fn gpu_driver(driver: &KernelDriver) -> String {
    let kind = if driver.open { "open" } else { "proprietary" };
    format!("{} ({kind})", driver.version)
}

/// CPUs and memory that the cgroup allows this process.
fn limits(about: &MachineFacts) -> String {
    let cpus = about.cpu_quota.map(|cpus| format!("{} CPUs", crate::quantity::figure(cpus)));
    let memory = about.memory_limit.map(|bytes| format!("{} of memory", forebay_bench::text::bytes(bytes)));
    let all: Vec<_> = cpus.into_iter().chain(memory).collect();
    if all.is_empty() { "none".to_owned() } else { all.join(", ") }
}

/// A checksum of the program: the command, or the module of the Python package.
pub(crate) fn build() -> String {
    let bytes = own_object().and_then(|path| fs::read(path).ok());
    bytes.map(|bytes| format!("{:016x}", crc_fast::checksum(Crc64Nvme, &bytes))).unwrap_or_default()
}

/// The file that this code was mapped from.
fn own_object() -> Option<String> {
    let here = build as fn() -> String as usize;
    let maps = fs::read_to_string("/proc/self/maps").ok()?;
    maps.lines().find_map(|line| {
        let (start, end) = line.split(' ').next()?.split_once('-')?;
        let at = |text| usize::from_str_radix(text, 16).ok();
        (at(start)?..at(end)?).contains(&here).then(|| line.get(line.find('/')?..).map(str::to_owned))?
    })
}

fn facts(path: &Path) -> PathFacts {
    if let Some(scheme) = forebay_source::scheme_of(path) {
        let url = path.display().to_string();
        return PathFacts {
            path: url.clone(),
            file_system: scheme.to_owned(),
            source: url,
            drive: String::new(),
            options: env::text("FOREBAY_NFS").map_or_else(String::new, |how| format!("FOREBAY_NFS={how}")),
            mount: String::new(),
            disk: String::new(),
        };
    }
    let path = path.display().to_string();
    let real = RealSystem.resolve(&path).unwrap_or_else(|| path.clone());
    let place = storage::place(&RealSystem, &real);
    let drive = drive(place.kind, place.disk.as_deref());
    let mount = storage::mount(&RealSystem, &real);
    PathFacts {
        path,
        file_system: place.file_system,
        source: place.source,
        drive,
        options: mount.as_ref().map_or_else(String::new, |mount| options(&mount.options)),
        mount: mount.map_or_else(String::new, |mount| once_each(&mount.flags, &mount.options)),
        disk: place.disk.unwrap_or_default(),
    }
}

/// The flags of a mount and the options of its file system: `rw` is in both.
fn once_each(flags: &str, options: &str) -> String {
    let mut all: Vec<&str> = Vec::new();
    for option in flags.split(',').chain(options.split(',')) {
        if !all.contains(&option) {
            all.push(option);
        }
    }
    all.join(",")
}

/// Names of emulated disks.
const VIRTUAL_MODELS: [&str; 8] = [
    "QEMU",
    "VBOX",
    "VMware",
    "Virtual",
    "PersistentDisk",
    "nvme_card",
    "Elastic Block Store",
    "MSFT NVMe Accelerator",
];
const OF_A_GUEST: &str = "of a virtual machine";

/// The drive's model, where the kernel shows it.
fn drive(kind: DiskKind, disk: Option<&str>) -> String {
    let model = disk.and_then(|disk| storage::drive_model(&RealSystem, disk)).unwrap_or_default();
    let is_guest = || {
        let text = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        text.lines().any(|line| line.starts_with("flags") && line.split(' ').any(|flag| flag == "hypervisor"))
    };
    let is_virtual = match kind {
        DiskKind::Virtio => true,
        DiskKind::Scsi | DiskKind::Md | DiskKind::DeviceMapper => is_guest(),
        _ => VIRTUAL_MODELS.iter().any(|name| model.contains(name)),
    };
    match (is_virtual, model.is_empty()) {
        (false, _) => model,
        (true, true) => format!("{} {OF_A_GUEST}", kind.label()),
        (true, false) => format!("{model} {OF_A_GUEST}"),
    }
}

/// A note on paths whose drive is emulated by a host.
pub(crate) fn virtual_disks(machine: &Machine) -> Option<String> {
    let paths = machine.paths.iter().filter(|path| path.drive.ends_with(OF_A_GUEST));
    let names: Vec<&str> = paths.map(|path| path.path.as_str()).collect();
    (!names.is_empty()).then(|| {
        format!(
            "A virtual machine's disk: {}. Its host may cache, share and limit it, so a read that is cold here may be served from the host's memory: the rates are of this virtual disk at this time, not of a drive.",
            names.join(", ")
        )
    })
}

/// The options of a mount that other figures come from.
fn options(all: &str) -> String {
    let names = ["proto=", "vers=", "nfsvers=", "rsize=", "wsize=", "nconnect=", "sync", "dax"];
    let counts =
        |one: &&str| names.iter().any(|name| one == name || name.ends_with('=') && one.starts_with(name));
    all.split(',').filter(counts).collect::<Vec<_>>().join(",")
}

/// Now, UTC, as `2026-11-22 18:05:09`.
pub(crate) fn now() -> String {
    let seconds = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs());
    UtcTime::from_unix(seconds).to_string()
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_build_is_its_program() {
        let own = std::env::current_exe().and_then(std::fs::canonicalize).unwrap_or_default();
        assert_eq!(super::own_object(), own.to_str().map(str::to_owned));
        assert_eq!(super::build().len(), 16);
    }

    #[test]
    fn options_that_count() {
        let all = "rw,vers=4.0,rsize=1048576,namlen=255,hard,proto=rdma,port=20049,addr=10.0.0.1";
        assert_eq!(super::options(all), "vers=4.0,rsize=1048576,proto=rdma");
        assert_eq!(super::once_each("rw,relatime", "rw,discard"), "rw,relatime,discard");
    }
}
