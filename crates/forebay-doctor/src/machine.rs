//! The machine as a whole: kernel, processors, memory and its limits, container, IOMMU.

use std::collections::BTreeMap;
use std::io::Read;

use serde::Serialize;

use crate::system::System;

/// Whether this process may use io_uring.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "state", rename_all = "snake_case")]
pub enum IoUring {
    /// A ring was made and closed.
    Works,
    /// The system call failed.
    Refused {
        /// Its errno.
        errno: i32,
        /// The cause.
        by: Refuser,
    },
}

/// Why io_uring is not allowed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Refuser {
    /// `kernel.io_uring_disabled` is 2.
    Sysctl,
    /// `kernel.io_uring_disabled` is 1 and this user is not in `kernel.io_uring_group`.
    SysctlGroup,
    /// A seccomp filter (the usual container).
    Seccomp,
    /// The kernel has no io_uring.
    Kernel,
    /// RLIMIT_MEMLOCK, on kernels before 5.12.
    Memlock,
    /// Something else (an LSM, for example).
    Unknown,
}

/// The state of the IOMMU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Iommu {
    /// None, or switched off.
    Disabled,
    /// Present; devices see physical addresses.
    PassThrough,
    /// Present and translating.
    Translating,
}

impl Iommu {
    /// As gdscheck's `IOMMU:` line writes it.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Disabled => "disabled",
            Self::PassThrough => "pass-through",
            Self::Translating => "enabled",
        }
    }
}

/// NVIDIA's kernel module.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct KernelDriver {
    /// As `580.159.04`.
    pub version: String,
    /// True for the open kernel module, which peer-to-peer paths need.
    pub open: bool,
}

/// RDMA devices of the kernel.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Rdma {
    /// Their names.
    pub devices: Vec<String>,
    /// Ports in state ACTIVE.
    pub up: usize,
    /// Other ports.
    pub down: usize,
}

/// Variables of libcufile that change this report.
const CUFILE_VARIABLES: &[&str] = &[
    "CUFILE_ENV_PATH_JSON",
    "CUFILE_ALLOW_COMPAT_MODE",
    "CUFILE_FORCE_COMPAT_MODE",
    "CUFILE_USE_PCIP2PDMA",
    "CUFILE_LOGGING_LEVEL",
    "CUFILE_LOGFILE_PATH",
];

/// The state of the machine.
#[derive(Clone, Debug, Serialize)]
pub struct MachineFacts {
    /// Variables of forebay, libcufile and CUDA that are set.
    pub environment: BTreeMap<&'static str, String>,
    /// Kernel release.
    pub kernel: String,
    /// Instruction set.
    pub arch: String,
    /// Product name from the firmware, where there is one.
    pub product: Option<String>,
    /// True in a virtual machine (the processor says so).
    pub virtual_machine: bool,
    /// The container technology, if this is a container.
    pub container: Option<String>,
    /// True in the Windows Subsystem for Linux.
    pub wsl: bool,
    /// Whether /proc shows this process (mountinfo, status).
    pub proc_readable: bool,
    /// CPUs that this process may run on.
    pub cpus: usize,
    /// CPUs that the cgroup lets it use at a time.
    pub cpu_quota: Option<f64>,
    /// Bytes of memory.
    pub memory: Option<u64>,
    /// The tightest memory limit of the cgroup and its ancestors.
    pub memory_limit: Option<u64>,
    /// Soft RLIMIT_MEMLOCK; none is unlimited.
    pub memlock: Option<u64>,
    /// Whether this process has CAP_IPC_LOCK (RLIMIT_MEMLOCK then does not bind).
    pub ipc_lock: bool,
    /// io_uring.
    pub io_uring: IoUring,
    /// IOMMU.
    pub iommu: Iommu,
    /// Secure Boot, where readable.
    pub secure_boot: Option<bool>,
    /// `CONFIG_PCI_P2PDMA` of this kernel, where its configuration is readable.
    pub kernel_p2pdma: Option<bool>,
    /// NVIDIA's kernel module.
    pub driver: Option<KernelDriver>,
    /// Version of the nvidia-fs kernel module, if loaded.
    pub nvidia_fs: Option<String>,
    /// RDMA.
    pub rdma: Rdma,
}

impl MachineFacts {
    /// Looks.
    pub fn probe(system: &dyn System) -> Self {
        let uname = system.uname();
        let status = system.text("/proc/self/status");
        let proc_readable = status.is_some() && system.text("/proc/self/mountinfo").is_some();
        let release = uname.release.to_ascii_lowercase();
        Self {
            environment: forebay_config::VARIABLES
                .iter()
                .map(|variable| variable.name)
                .chain(CUFILE_VARIABLES.iter().copied())
                .chain(["CUDA_VISIBLE_DEVICES"])
                .filter_map(|name| Some((name, system.env(name)?)))
                .collect(),
            product: product(system),
            virtual_machine: system.text("/proc/cpuinfo").is_some_and(|text| {
                text.lines().any(|l| l.starts_with("flags") && l.contains(" hypervisor"))
            }),
            container: container(system),
            wsl: release.contains("microsoft"),
            proc_readable,
            cpus: system.cpus(),
            cpu_quota: cpu_quota(system),
            memory: meminfo(system, "MemTotal:"),
            memory_limit: memory_limits(system).iter().map(|one| one.limit).min(),
            memlock: system.memlock(),
            ipc_lock: status.as_deref().is_some_and(|text| capability(text, 14)),
            io_uring: io_uring(system),
            iommu: iommu(system),
            secure_boot: secure_boot(system),
            kernel_p2pdma: kernel_config(system, &uname.release)
                .map(|text| config_has(&text, "CONFIG_PCI_P2PDMA")),
            driver: driver(system),
            nvidia_fs: nvidia_fs(system),
            rdma: rdma(system),
            kernel: uname.release,
            arch: uname.machine,
        }
    }

    /// Kernel version as (major, minor).
    pub fn kernel_version(&self) -> (u32, u32) {
        let mut numbers = self.kernel.split(['.', '-']).map_while(|part| part.parse().ok());
        (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0))
    }
}

impl KernelDriver {
    /// Version as numbers that compare.
    pub fn numbers(&self) -> Vec<u32> {
        self.version.split('.').map_while(|part| part.parse().ok()).collect()
    }
}

fn product(system: &dyn System) -> Option<String> {
    let text = system.text("/sys/class/dmi/id/product_name").filter(|text| !text.is_empty());
    text.or_else(|| system.text("/proc/device-tree/model").map(|text| text.trim_end_matches('\0').to_owned()))
}

fn container(system: &dyn System) -> Option<String> {
    if system.env("KUBERNETES_SERVICE_HOST").is_some() {
        return Some("kubernetes".to_owned());
    }
    if system.exists("/run/.containerenv") {
        return Some("podman".to_owned());
    }
    if system.exists("/.dockerenv") {
        return Some("docker".to_owned());
    }
    if let Some(name) = system.env("container") {
        return Some(name);
    }
    let groups = system.text("/proc/1/cgroup")?;
    ["docker", "kubepods", "containerd", "lxc"]
        .into_iter()
        .find(|word| groups.contains(word))
        .map(|word| if word == "kubepods" { "kubernetes".to_owned() } else { word.to_owned() })
}

/// Bytes of a line of meminfo, as `MemTotal:`.
pub fn meminfo(system: &dyn System, field: &str) -> Option<u64> {
    let text = system.text("/proc/meminfo")?;
    let line = text.lines().find_map(|line| line.strip_prefix(field))?;
    Some(line.trim().trim_end_matches("kB").trim().parse::<u64>().ok()? << 10)
}

/// Directories of this process's cgroup and its ancestors for a controller (`None`: the unified hierarchy).
pub(crate) fn cgroup_dirs(system: &dyn System, controller: Option<&str>) -> Vec<String> {
    let groups = system.text("/proc/self/cgroup").unwrap_or_default();
    let wanted = controller.unwrap_or("");
    let Some(path) = groups.lines().find_map(|line| {
        let mut parts = line.splitn(3, ':');
        let (_, names, path) = (parts.next()?, parts.next()?, parts.next()?);
        names.split(',').any(|name| name == wanted).then_some(path)
    }) else {
        return Vec::new();
    };
    let roots: &[String] = &match controller {
        Some(name) => vec![format!("/sys/fs/cgroup/{name}")],
        None => vec!["/sys/fs/cgroup".to_owned(), "/sys/fs/cgroup/unified".to_owned()],
    };
    let mut dirs = Vec::new();
    for root in roots {
        let mut part = path.trim_end_matches('/');
        loop {
            dirs.push(format!("{root}{part}"));
            match part.rfind('/') {
                Some(cut) => part = &part[..cut],
                None => break,
            }
        }
    }
    dirs
}

/// The memory limit of a cgroup of this process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemoryLimit {
    /// The limit's file.
    pub file: String,
    /// Bytes.
    pub limit: u64,
    /// Bytes in use that the kernel cannot take back.
    pub used: u64,
}

/// The memory limits of this process, from its own cgroup to the root.
pub fn memory_limits(system: &dyn System) -> Vec<MemoryLimit> {
    let of = |dir: &str, name: &str, prefix: &str| {
        let file = format!("{dir}/{name}");
        // Version 1 writes "no limit" as a number near 2^63.
        let limit = system.text(&file)?.parse().ok().filter(|&limit: &u64| limit < 1 << 60)?;
        let stat = system.text(&format!("{dir}/memory.stat")).unwrap_or_default();
        let field = |name: &str| -> u64 {
            let line = stat
                .lines()
                .find_map(|line| line.strip_prefix(prefix)?.strip_prefix(name)?.strip_prefix(' '));
            line.and_then(|number| number.parse().ok()).unwrap_or(0)
        };
        Some(MemoryLimit { file, limit, used: field("anon") + field("rss") + field("shmem") })
    };
    let unified = cgroup_dirs(system, None).into_iter().filter_map(|dir| of(&dir, "memory.max", ""));
    let legacy = cgroup_dirs(system, Some("memory"));
    unified.chain(legacy.iter().filter_map(|dir| of(dir, "memory.limit_in_bytes", "total_"))).collect()
}

fn cpu_quota(system: &dyn System) -> Option<f64> {
    let unified = cgroup_dirs(system, None).into_iter().filter_map(|dir| {
        let text = system.text(&format!("{dir}/cpu.max"))?;
        let (quota, period) = text.split_once(' ')?;
        Some(quota.parse::<f64>().ok()? / period.parse::<f64>().ok()?)
    });
    let legacy = cgroup_dirs(system, Some("cpu")).into_iter().filter_map(|dir| {
        let quota = system.number(&format!("{dir}/cpu.cfs_quota_us")).filter(|&quota| quota > 0)?;
        let period = system.number(&format!("{dir}/cpu.cfs_period_us")).filter(|&period| period > 0)?;
        Some(quota as f64 / period as f64)
    });
    unified.chain(legacy).min_by(f64::total_cmp)
}

fn capability(status: &str, bit: u32) -> bool {
    let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    effective.and_then(|hex| u64::from_str_radix(hex.trim(), 16).ok()).is_some_and(|set| set >> bit & 1 == 1)
}

fn io_uring(system: &dyn System) -> IoUring {
    let Err(errno) = system.io_uring() else { return IoUring::Works };
    let filtered = system.text("/proc/self/status").is_some_and(|text| {
        text.lines().any(|line| line.starts_with("Seccomp:") && line.trim_end().ends_with('2'))
    });
    let by = match (errno, system.number("/proc/sys/kernel/io_uring_disabled")) {
        (libc::EPERM, Some(2)) => Refuser::Sysctl,
        (libc::EPERM, Some(1)) => Refuser::SysctlGroup,
        (libc::EPERM | libc::ENOSYS | libc::EACCES, _) if filtered => Refuser::Seccomp,
        (libc::ENOSYS, _) => Refuser::Kernel,
        (libc::ENOMEM, _) => Refuser::Memlock,
        _ => Refuser::Unknown,
    };
    IoUring::Refused { errno, by }
}

fn iommu(system: &dyn System) -> Iommu {
    if system.list("/sys/class/iommu").is_empty() {
        return Iommu::Disabled;
    }
    // The groups show the real state; the command line counts only where there are none.
    let types: Vec<String> = system
        .list("/sys/kernel/iommu_groups")
        .iter()
        .filter_map(|group| system.text(&format!("/sys/kernel/iommu_groups/{group}/type")))
        .collect();
    if types.iter().any(|kind| kind.starts_with("DMA")) {
        return Iommu::Translating;
    }
    if !types.is_empty() {
        return Iommu::PassThrough;
    }
    let line = system.text("/proc/cmdline").unwrap_or_default();
    let has = |word: &str| line.split_whitespace().any(|argument| argument == word);
    if has("iommu=pt") || has("iommu.passthrough=1") { Iommu::PassThrough } else { Iommu::Translating }
}

fn secure_boot(system: &dyn System) -> Option<bool> {
    let bytes =
        system.read("/sys/firmware/efi/efivars/SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c").ok()?;
    // Four bytes of attributes, then the value.
    bytes.get(4).map(|&value| value == 1)
}

fn kernel_config(system: &dyn System, release: &str) -> Option<String> {
    if let Ok(packed) = system.read("/proc/config.gz") {
        let mut text = String::new();
        if flate2::read::GzDecoder::new(packed.as_slice()).read_to_string(&mut text).is_ok() {
            return Some(text);
        }
    }
    [format!("/boot/config-{release}"), format!("/lib/modules/{release}/config")]
        .iter()
        .find_map(|path| system.text(path))
}

fn config_has(text: &str, option: &str) -> bool {
    text.lines().any(|line| line.strip_prefix(option).is_some_and(|rest| rest == "=y" || rest == "=m"))
}

fn driver(system: &dyn System) -> Option<KernelDriver> {
    let words = system.text("/proc/driver/nvidia/version").unwrap_or_default();
    let line = words.lines().next().unwrap_or_default();
    let is_version = |word: &&str| word.contains('.') && word.chars().all(|c| c.is_ascii_digit() || c == '.');
    let version = line.split_whitespace().find(is_version).map(str::to_owned);
    let version = version.or_else(|| system.text("/sys/module/nvidia/version"))?;
    let open = line.contains("Open Kernel Module")
        || system.text("/sys/module/nvidia/license").is_some_and(|text| text.contains("MIT"));
    Some(KernelDriver { version, open })
}

/// Version of the nvidia-fs kernel module, if loaded.
pub(crate) fn nvidia_fs(system: &dyn System) -> Option<String> {
    let text = system
        .text("/proc/driver/nvidia-fs/version")
        .or_else(|| system.text("/sys/module/nvidia_fs/version"));
    text.map(|text| text.trim_start_matches("version:").trim().to_owned())
}

fn rdma(system: &dyn System) -> Rdma {
    let mut rdma = Rdma { devices: system.list("/sys/class/infiniband"), up: 0, down: 0 };
    for device in &rdma.devices {
        let ports = format!("/sys/class/infiniband/{device}/ports");
        for port in system.list(&ports) {
            match system.text(&format!("{ports}/{port}/state")) {
                Some(state) if state.contains("ACTIVE") => rdma.up += 1,
                _ => rdma.down += 1,
            }
        }
    }
    rdma
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::RootedSystem;

    #[test]
    fn all_groups_of_a_process_limit_it() -> std::io::Result<()> {
        let root = tempfile::tempdir()?;
        let write = |path: &str, text: &str| {
            let path = root.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap_or(root.path()))?;
            std::fs::write(path, text)
        };
        write("proc/self/cgroup", "4:memory:/old\n0::/a/b/c\n")?;
        for (group, max) in [("a/b/c", "max\n"), ("a/b", "5000\n"), ("a", "9000\n"), ("other", "1\n")] {
            write(&format!("sys/fs/cgroup/{group}/memory.max"), max)?;
            write(&format!("sys/fs/cgroup/{group}/memory.stat"), "anon 100\nfile 7\nshmem 11\n")?;
        }
        write("sys/fs/cgroup/memory/old/memory.limit_in_bytes", "7000\n")?;
        write("sys/fs/cgroup/memory/old/memory.stat", "rss 1\ntotal_rss 40\ntotal_shmem 2\n")?;
        write("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n")?;
        let system = RootedSystem::new(root.path());
        let found: Vec<_> = memory_limits(&system).iter().map(|one| (one.limit, one.used)).collect();
        assert_eq!(found, [(5000, 111), (9000, 111), (7000, 42)]);
        Ok(())
    }
}
