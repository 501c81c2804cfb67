//! Findings about the environment: what is so, how bad it is, what to type.

use forebay_config::Config;
use serde::Serialize;

use crate::cufile::CufileConfig;
use crate::engines::{EngineState, Verdict, size, udev_refusal};
use crate::exercise::{ExerciseTarget, Exercised, Hinted, LaneFacts, Offered};
use crate::gpu::GpuFacts;
use crate::machine::{IoUring, Iommu, MachineFacts, Refuser};
use crate::render::counted;
use crate::storage::{DiskKind, StoragePlace, Udev};

/// How bad it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// As it should be.
    Ok,
    /// Worth knowing; costs nothing now.
    Info,
    /// Works, but slower or with less than it could.
    Degraded,
    /// Does not work.
    Blocking,
}

impl Severity {
    /// For people.
    pub const fn label(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Info => "info",
            Self::Degraded => "degraded",
            Self::Blocking => "blocking",
        }
    }
}

/// Something that was found out.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// Stable name of the rule, for programs.
    pub id: &'static str,
    /// How bad it is.
    pub severity: Severity,
    /// What is so.
    pub text: String,
    /// What to type, if anything helps.
    pub fix: Option<String>,
}

/// All that the rules look at.
pub(crate) struct Evidence<'a> {
    pub machine: &'a MachineFacts,
    pub offered: &'a Offered,
    pub gpus: &'a [GpuFacts],
    pub places: &'a [StoragePlace],
    pub lanes: &'a [Result<LaneFacts, (ExerciseTarget, Hinted)>],
    pub verdicts: &'a [Verdict],
    pub config: &'a Result<Config, Hinted>,
    pub cufile: &'a CufileConfig,
    pub has_library: bool,
    pub file_was_read: bool,
}

struct Findings(Vec<Finding>);

impl Findings {
    fn add(&mut self, id: &'static str, severity: Severity, text: impl Into<String>, fix: Option<&str>) {
        self.0.push(Finding { id, severity, text: text.into(), fix: fix.map(str::to_owned) });
    }

    fn hinted(&mut self, id: &'static str, severity: Severity, hinted: &Hinted) {
        self.add(id, severity, hinted.text.clone(), hinted.fix.as_deref());
    }
}

/// All findings, worst first.
pub(crate) fn findings(evidence: &Evidence<'_>) -> Vec<Finding> {
    let mut found = Findings(Vec::new());
    if let Err(why) = evidence.config {
        found.hinted("config-invalid", Severity::Blocking, why);
    }
    device_findings(evidence, &mut found);
    transfer_findings(evidence, &mut found);
    io_findings(evidence, &mut found);
    memory_findings(evidence, &mut found);
    environment_findings(evidence, &mut found);
    bus_findings(evidence, &mut found);
    libcufile_findings(evidence, &mut found);
    let mut all = found.0;
    all.sort_by_key(|finding| std::cmp::Reverse(finding.severity));
    all
}

fn device_findings(evidence: &Evidence<'_>, found: &mut Findings) {
    for gpu in evidence.gpus.iter().filter(|gpu| gpu.maker == "AMD" && gpu.index.is_none()) {
        let text = format!("AMD GPU at {}: forebay {} knows NVIDIA GPUs only", gpu.pci, crate::VERSION);
        found.add("gpu-amd", Severity::Info, text, None);
    }
    let hidden: Vec<&GpuFacts> =
        evidence.gpus.iter().filter(|g| g.maker == "NVIDIA" && g.index.is_none()).collect();
    let Some(why) = &evidence.offered.missing else {
        let names: Vec<&str> = evidence.offered.gpus.iter().map(|gpu| gpu.name.as_str()).collect();
        found.add("gpu", Severity::Ok, format!("the GPU driver offers {}", names.join(", ")), None);
        for gpu in hidden {
            let text = format!("the driver does not offer the GPU at {}", gpu.pci);
            found.add("gpu-hidden", Severity::Info, text, Some("check CUDA_VISIBLE_DEVICES and nvidia-smi"));
        }
        return;
    };
    match hidden.first() {
        Some(gpu) if evidence.machine.driver.is_some() => {
            let text = format!(
                "an NVIDIA GPU ({}) and its kernel driver are here, but CUDA is not usable: {}",
                gpu.pci, why.text
            );
            let fix = if evidence.machine.container.is_some() {
                "start the container with the driver's libraries: docker run --gpus all …"
            } else {
                why.fix
                    .as_deref()
                    .unwrap_or("install the driver's libraries: apt install libnvidia-compute-<version>")
            };
            found.add("no-cuda", Severity::Degraded, text, Some(fix));
        }
        Some(gpu) => {
            let text =
                format!("an NVIDIA GPU ({}) is here, but its driver is not loaded: {}", gpu.pci, why.text);
            found.add(
                "no-driver",
                Severity::Degraded,
                text,
                Some("install the driver: apt install nvidia-open, then reboot"),
            );
        }
        None => {
            let text = format!(
                "no GPU: the PCI bus shows none, and the CUDA driver is missing or offers none ({}); transfers end in host memory",
                why.text
            );
            let fix = if evidence.machine.container.is_some() {
                "if the host has a GPU: docker run --gpus all …"
            } else {
                "use a machine with an NVIDIA GPU; forebay works with host memory until then"
            };
            found.add("no-gpu", Severity::Degraded, text, Some(fix));
        }
    }
}

fn target_name(target: &ExerciseTarget) -> String {
    match target {
        ExerciseTarget::Bar(name) => name.clone(),
        ExerciseTarget::Gpu(index) => format!("GPU {index}"),
        ExerciseTarget::Host => "host memory".to_owned(),
    }
}

fn transfer_findings(evidence: &Evidence<'_>, found: &mut Findings) {
    let exercised: Vec<&Verdict> =
        evidence.verdicts.iter().filter(|verdict| verdict.exercise.is_some()).collect();
    let works = |verdict: &&Verdict| matches!(verdict.state, EngineState::Works | EngineState::Partly);
    if !exercised.iter().any(works) && !evidence.file_was_read {
        let text = if evidence.places.is_empty() {
            "no place to read or write was found"
        } else {
            "no engine moved any byte anywhere"
        };
        found.add(
            "nothing-works",
            Severity::Blocking,
            text,
            Some("forebay check -f FILE reads one of your files"),
        );
    }
    for verdict in exercised {
        let name = format!("{} to {} at {}", verdict.engine, target_name(&verdict.target), verdict.place);
        let place = evidence.places.iter().find(|place| place.path == verdict.place);
        let asked = place.is_some_and(|place| place.asked);
        let reason =
            verdict.reasons.iter().find(|reason| reason.text.contains("failed")).or(verdict.reasons.first());
        let (why, fix) = reason.map_or(("", None), |reason| (reason.text.as_str(), reason.fix.as_deref()));
        match verdict.state {
            EngineState::Fails if asked => {
                found.add("engine-fails", Severity::Blocking, format!("{name}: {why}"), fix);
            }
            EngineState::Fails | EngineState::Partly => {
                found.add("engine-fails", Severity::Degraded, format!("{name}: {why}"), fix);
            }
            EngineState::NotExercised => {
                let severity = if asked { Severity::Degraded } else { Severity::Info };
                found.add("not-exercised", severity, format!("{name} not exercised: {why}"), fix);
            }
            EngineState::Works | EngineState::Refused => {}
        }
    }
    let in_place = evidence.verdicts.iter().filter(|verdict| verdict.engine == "mapped");
    for verdict in in_place.filter(|verdict| verdict.state == EngineState::Fails) {
        let Some(why) = verdict.reasons.first() else { continue };
        let name = format!("{} to {} at {}", verdict.engine, target_name(&verdict.target), verdict.place);
        // Other engines move the bytes all the same.
        found.add("engine-fails", Severity::Degraded, format!("{name}: {}", why.text), why.fix.as_deref());
    }
    for failed in evidence.lanes.iter().filter_map(|lanes| lanes.as_ref().err()) {
        let hinted = Hinted {
            text: format!("no lanes for {}: {}", target_name(&failed.0), failed.1.text),
            fix: failed.1.fix.clone(),
        };
        found.hinted("no-lanes", Severity::Blocking, &hinted);
    }
    // What was found out about io_uring and RLIMIT_MEMLOCK tells the same with its cause.
    let explained = evidence.machine.io_uring != IoUring::Works || memlock_short(evidence).is_some();
    let mut seen: Vec<&Hinted> = Vec::new();
    for note in evidence.lanes.iter().filter_map(|lanes| lanes.as_ref().ok()).flat_map(|lanes| &lanes.notes) {
        if !explained && !seen.contains(&note) {
            seen.push(note);
            found.hinted("engine-note", Severity::Degraded, note);
        }
    }
}

fn io_findings(evidence: &Evidence<'_>, found: &mut Findings) {
    match &evidence.machine.io_uring {
        IoUring::Works => found.add("io-uring", Severity::Ok, "io_uring is allowed", None),
        IoUring::Refused { errno, by } => {
            let (who, fix) = match by {
                Refuser::Sysctl => {
                    ("kernel.io_uring_disabled is 2", "sudo sysctl -w kernel.io_uring_disabled=0")
                }
                Refuser::SysctlGroup => (
                    "kernel.io_uring_disabled is 1 and this user is not in kernel.io_uring_group",
                    "sudo sysctl -w kernel.io_uring_group=$(id -g)",
                ),
                Refuser::Seccomp => (
                    "a seccomp filter forbids it (Docker's default profile does)",
                    "docker run --security-opt seccomp=unconfined … or a profile that allows io_uring_setup, io_uring_enter, io_uring_register",
                ),
                Refuser::Kernel => ("this kernel has no io_uring", "use a kernel with CONFIG_IO_URING=y"),
                Refuser::Memlock => ("RLIMIT_MEMLOCK is too small for it", "ulimit -l unlimited"),
                Refuser::Unknown => {
                    ("the reason is not visible from here", "ask for io_uring in the security policy (LSM)")
                }
            };
            let text = format!(
                "io_uring is not allowed (errno {errno}): {who}; cold reads go by threads with preadv"
            );
            found.add("io-uring", Severity::Degraded, text, Some(fix));
        }
    }
    let mut named: Vec<&str> = Vec::new();
    for verdict in evidence.verdicts {
        let Some(exercised) = &verdict.exercise else { continue };
        let Some(place) = evidence.places.iter().find(|place| place.path == verdict.place) else { continue };
        if named.contains(&place.path.as_str()) {
            continue;
        }
        named.push(&place.path);
        place_findings(place, exercised, found);
    }
}

fn place_findings(place: &StoragePlace, exercised: &Exercised, found: &mut Findings) {
    let at = format!("{} ({})", place.path, place.file_system);
    match (exercised.alignment, &exercised.direct_refused) {
        (Some((memory, offset)), _) => {
            let text =
                format!("{at}: O_DIRECT works with memory aligned to {memory} and offsets to {offset} bytes");
            found.add("o-direct", Severity::Ok, text, None);
        }
        (None, Some(why)) if place.kind == DiskKind::Memory => {
            found.add(
                "o-direct",
                Severity::Ok,
                format!("{at}: memory, O_DIRECT is not needed ({why})"),
                None,
            );
        }
        (None, Some(why)) => {
            let text = format!("{at}: no O_DIRECT ({why}); cold reads go through the page cache");
            found.add(
                "o-direct",
                Severity::Degraded,
                text,
                Some("use a file system with O_DIRECT for large cold reads (ext4, xfs)"),
            );
        }
        (None, None) => {}
    }
    match exercised.residency.as_deref() {
        Some("mincore") => found.add(
            "residency",
            Severity::Info,
            format!(
                "{at}: page-cache residency by mincore, which tells the truth only for own or writable files"
            ),
            Some("use kernel 6.5 or later for cachestat"),
        ),
        Some(method) => {
            let text = format!("{at}: page-cache residency by {method}");
            found.add("residency", Severity::Ok, text, None);
        }
        None => {}
    }
}

/// Bytes of the slots of one device's lanes: a process usually moves bytes to one device.
fn lane_memory(evidence: &Evidence<'_>) -> Option<u64> {
    let config = evidence.config.as_ref().ok()?;
    Some((config.most_lanes() * config.slots * config.slot_size) as u64)
}

/// RLIMIT_MEMLOCK, if io_uring's buffers do not fit in it.
fn memlock_short(evidence: &Evidence<'_>) -> Option<u64> {
    let machine = evidence.machine;
    let limit = machine.memlock.filter(|_| !machine.ipc_lock && machine.io_uring == IoUring::Works)?;
    (limit < lane_memory(evidence)?).then_some(limit)
}

fn memory_findings(evidence: &Evidence<'_>, found: &mut Findings) {
    let machine = evidence.machine;
    let Some(need) = lane_memory(evidence) else { return };
    let slots = size(need);
    match (machine.memlock, memlock_short(evidence)) {
        // Without io_uring nothing is registered with the kernel.
        _ if machine.io_uring != IoUring::Works => {}
        (_, Some(limit)) => {
            let text = format!(
                "RLIMIT_MEMLOCK is {}, the lanes' io_uring buffers are {slots}: some are used without registration",
                size(limit)
            );
            let fix = "ulimit -l unlimited; in Docker: --ulimit memlock=-1; or a memlock line in /etc/security/limits.conf";
            found.add("memlock", Severity::Degraded, text, Some(fix));
        }
        (Some(limit), None) if !machine.ipc_lock => {
            let text = format!("RLIMIT_MEMLOCK ({}) suffices for the lanes' buffers ({slots})", size(limit));
            found.add("memlock", Severity::Ok, text, None);
        }
        _ => found.add("memlock", Severity::Ok, "RLIMIT_MEMLOCK does not bind this process", None),
    }
    if let Some(limit) = machine.memory_limit.filter(|limit| machine.memory.is_none_or(|all| *limit < all)) {
        // Page cache that this cgroup reads is charged to it too.
        let tight = limit < 4 * need;
        let severity = if tight { Severity::Degraded } else { Severity::Info };
        let text = format!(
            "the cgroup's memory limit is {}; page cache and slots ({}) count towards it",
            size(limit),
            size(need)
        );
        let fix = if tight {
            Some("raise the limit (docker run --memory, resources.limits.memory), or lower FOREBAY_SLOTS")
        } else {
            None
        };
        found.add("memory-limit", severity, text, fix);
    }
    if let Some(quota) = machine.cpu_quota.filter(|quota| *quota < machine.cpus as f64) {
        let text = format!("the cgroup allows {quota:.1} CPUs at a time, the affinity mask {}", machine.cpus);
        found.add("cpu-quota", Severity::Info, text, Some("set FOREBAY_LANES to half of the CPUs allowed"));
    }
}

fn environment_findings(evidence: &Evidence<'_>, found: &mut Findings) {
    let machine = evidence.machine;
    if !machine.proc_readable {
        let text = "/proc does not show this process: mounts and residency cannot be told";
        found.add("proc", Severity::Degraded, text, Some("mount -t proc proc /proc"));
    }
    if let Some(name) = &machine.container {
        found.add("container", Severity::Info, format!("signs of a container ({name})"), None);
    }
    if machine.wsl {
        found.add(
            "wsl",
            Severity::Info,
            "Windows Subsystem for Linux: drives are virtual, no direct path is possible",
            None,
        );
    }
    if machine.secure_boot == Some(true) && machine.nvidia_fs.is_none() && evidence.has_library {
        let text = "Secure Boot is on: an nvidia-fs module without a trusted signature does not load (forebay needs none)";
        found.add(
            "secure-boot",
            Severity::Info,
            text,
            Some("mokutil --sb-state; sign the module if you need it"),
        );
    }
    if !evidence.cufile.ignored.is_empty() || evidence.cufile.error.is_some() {
        let path = evidence.cufile.path.as_deref().unwrap_or_default();
        if let Some(error) = &evidence.cufile.error {
            found.add("cufile-json", Severity::Info, format!("{error}: libcufile's defaults hold"), None);
        }
        for key in &evidence.cufile.ignored {
            let text = format!("{path}: libcufile ignores {key}");
            found.add("cufile-json", Severity::Info, text, None);
        }
    }
}

fn bus_findings(evidence: &Evidence<'_>, found: &mut Findings) {
    let machine = evidence.machine;
    for gpu in evidence.gpus.iter().filter(|gpu| gpu.index.is_some()) {
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
                found.add("pcie-width", Severity::Degraded, text, Some(&fix));
            }
            Some(link) if link.width > 0 && link.speed != link.max_speed => {
                let text = format!(
                    "{name}: PCIe link at {}, could be {} (idle GPUs lower it)",
                    link.speed, link.max_speed
                );
                let fix =
                    format!("look again under load: cat /sys/bus/pci/devices/{}/current_link_speed", gpu.pci);
                found.add("pcie-speed", Severity::Info, text, Some(&fix));
            }
            Some(link) if link.width > 0 => {
                let lanes = counted(link.width as usize, "lane");
                let text = format!("{name}: PCIe link at {} with {lanes}, all it can", link.speed);
                found.add("pcie-link", Severity::Ok, text, None);
            }
            _ => found.add(
                "pcie-link",
                Severity::Info,
                format!("{name}: the PCIe link cannot be read here"),
                None,
            ),
        }
        for place in evidence.places {
            if let (Some(a), Some(b)) = (gpu.numa_node, place.numa_node)
                && a != b
            {
                let text = format!(
                    "{name} is on NUMA node {a}, {} ({}) on node {b}",
                    place.path,
                    place.kind.label()
                );
                found.add(
                    "numa",
                    Severity::Info,
                    text,
                    Some(&format!("numactl --cpunodebind={a} --membind={a} COMMAND")),
                );
            }
        }
        if let [first, ..] = gpu.acs.as_slice() {
            found.add(
                "acs",
                Severity::Info,
                format!("{name}: ACS redirects peer-to-peer requests at bridge {first}"),
                None,
            );
        }
    }
    if machine.iommu == Iommu::Translating {
        let text =
            "the IOMMU translates: transfers through host memory work, peer-to-peer ones are slow or fail";
        found.add("iommu", Severity::Info, text, Some("iommu=pt on the kernel command line"));
    }
}

fn libcufile_findings(evidence: &Evidence<'_>, found: &mut Findings) {
    if !evidence.has_library {
        return;
    }
    // Without a database all places fail alike: one finding.
    let no_database = evidence.places.first().is_some_and(|place| place.udev == Udev::NoDatabase);
    let refused =
        evidence.places.iter().filter(|place| place.kind != DiskKind::Memory).filter_map(udev_refusal);
    for why in refused.take(if no_database { 1 } else { usize::MAX }) {
        found.hinted("udev", Severity::Info, &why);
    }
}
