//! The report in the layout that gdscheck's users and their scripts know.
//!
//! Every line is true here: "compat" stands where bytes were moved through host memory and compared, "Unsupported"
//! where a direct path is missing or nothing was moved.

use std::fmt::Write;

use forebay_ways::EngineKind;

use crate::cufile::{LibcufileFacts, library};
use crate::engines::{EngineState, ways};
use crate::exercise::ExerciseTarget;
use crate::machine::nvidia_fs;
use crate::report::{CheckReport, FileTest, Overall};
use crate::storage::DiskKind;
use crate::system::System;

/// Reports are built in memory, where writing cannot fail.
macro_rules! line {
    ($out:expr, $($arg:tt)*) => {{ let _ = writeln!($out, $($arg)*); }};
}

fn heading(out: &mut String, title: &str) {
    let bar = "=".repeat(title.len());
    line!(out, " {bar}\n {title}\n {bar}");
}

/// The lines of `-v`.
fn version(nvidia_fs: Option<&str>, own: Option<&str>, libcufile: Option<&LibcufileFacts>) -> String {
    let mut out = String::new();
    line!(out, " GDS release version: forebay {}", crate::VERSION);
    let theirs = libcufile
        .map(|library| library.version.clone().unwrap_or_else(|| format!("unknown ({})", library.path)));
    let library = match (own, theirs) {
        (Some(path), None) => format!("forebay {} ({path})", crate::VERSION),
        (Some(path), Some(theirs)) => format!("forebay {} ({path}); NVIDIA's {theirs}", crate::VERSION),
        (None, Some(theirs)) => theirs,
        (None, None) => "not installed".to_owned(),
    };
    line!(out, " nvidia_fs version:  {} libcufile version: {library}", nvidia_fs.unwrap_or("not loaded"));
    out
}

/// The lines of `-v` for a machine; `own` is forebay's libcufile, where it lies beside the program.
pub fn installed_versions(system: &dyn System, own: Option<&str>) -> String {
    version(nvidia_fs(system).as_deref(), own, library(system).as_ref())
}

/// The lines of `-f`.
pub fn file(test: &FileTest) -> String {
    let mut out = String::new();
    match (&test.read, &test.error) {
        (Some(read), _) => {
            let target = match &read.target {
                ExerciseTarget::Bar(name) => name.clone(),
                ExerciseTarget::Gpu(index) => format!("GPU {index}"),
                ExerciseTarget::Host => "host memory (no GPU)".to_owned(),
            };
            line!(out, " GDS register success");
            line!(
                out,
                " {}: read {} bytes to {target} by {}: {}; bytes compared",
                test.path,
                read.bytes,
                read.engine,
                ways(read.moved)
            );
        }
        (None, error) => {
            let (text, fix) = error.as_ref().map_or(("", None), |e| (e.text.as_str(), e.fix.as_deref()));
            line!(out, " GDS register error: {}: {text}", test.path);
            if let Some(fix) = fix {
                line!(out, " hint: {fix}");
            }
        }
    }
    out
}

/// gdscheck's platform report.
pub fn platform(report: &CheckReport) -> String {
    let mut out = version(
        report.machine.nvidia_fs.as_deref(),
        report.own_libcufile.as_deref(),
        report.libcufile.as_ref(),
    );
    line!(out, " Platform: {}", report.machine.arch);
    heading(&mut out, "ENVIRONMENT:");
    environment(&mut out, report);
    heading(&mut out, "DRIVER CONFIGURATION:");
    drivers(&mut out, report);
    heading(&mut out, "CUFILE CONFIGURATION:");
    configuration(&mut out, report);
    heading(&mut out, "GPU INFO:");
    gpus(&mut out, report);
    heading(&mut out, "PLATFORM INFO:");
    platform_info(&mut out, report);
    out
}

fn environment(out: &mut String, report: &CheckReport) {
    if let Some(path) = &report.cufile.path {
        line!(out, " cufile.json : {path}");
    }
    for (name, value) in &report.machine.environment {
        line!(out, " {name} : {value}");
    }
}

/// Whether a place of this kind and file system belongs to a row.
type Belongs = fn(DiskKind, &str) -> bool;

const ROWS: [(&str, Belongs); 14] = [
    ("NVMe", |kind, _| matches!(kind, DiskKind::Nvme | DiskKind::NvmeMultipath)),
    ("NVMeOF", |kind, _| kind == DiskKind::NvmeOf),
    ("SCSI", |kind, _| kind == DiskKind::Scsi),
    ("Virtio", |kind, _| kind == DiskKind::Virtio),
    ("Software RAID", |kind, _| kind == DiskKind::Md),
    ("Device mapper", |kind, _| kind == DiskKind::DeviceMapper),
    ("Memory (tmpfs)", |kind, _| kind == DiskKind::Memory),
    ("ScaleFlux CSD", |_, _| false),
    ("NVMesh", |_, _| false),
    ("DDN EXAScaler", |_, fs| fs == "lustre"),
    ("IBM Spectrum Scale", |_, fs| fs == "gpfs"),
    ("NFS", |_, fs| fs.starts_with("nfs")),
    ("BeeGFS", |_, fs| fs == "beegfs"),
    ("WekaFS", |_, fs| fs == "wekafs"),
];

/// The lines of `-V`: the modes of each kind of target.
pub fn targets(report: &CheckReport) -> String {
    let mut out = String::new();
    heading(&mut out, "DRIVER CONFIGURATION:");
    drivers(&mut out, report);
    out
}

/// The modes that moved bytes in the places of a row, best first, as gdscheck writes them since 1.16: `p2pdma, compat`.
/// Its third, `nvfs`, needs NVIDIA's kernel module, which forebay does not use.
fn modes(report: &CheckReport, wanted: Belongs) -> String {
    // Transfers to a GPU count; those to host memory only on a machine without GPU.
    let has_gpu = report.gpus.iter().any(|gpu| gpu.index.is_some());
    let counts = |target: &ExerciseTarget| matches!(target, ExerciseTarget::Gpu(_)) == has_gpu;
    let is_here = |path: &str| {
        report.places.iter().any(|place| place.path == path && wanted(place.kind, &place.file_system))
    };
    let moved = |by: fn(EngineKind) -> bool| {
        report.verdicts.iter().any(|verdict| {
            counts(&verdict.target)
                && verdict.state == EngineState::Works
                && verdict.engine.parse().is_ok_and(by)
                && is_here(&verdict.place)
        })
    };
    let by_drive = |kind: EngineKind| kind == EngineKind::P2p;
    let by_cpu = |kind: EngineKind| kind.is_forebays() && !kind.is_direct();
    let modes = [("p2pdma", moved(by_drive)), ("compat", moved(by_cpu))];
    let modes: Vec<_> = modes.into_iter().filter_map(|(mode, has_moved)| has_moved.then_some(mode)).collect();
    if modes.is_empty() { "Unsupported".to_owned() } else { modes.join(", ") }
}

fn drivers(out: &mut String, report: &CheckReport) {
    let nvme = modes(report, |kind, _| matches!(kind, DiskKind::Nvme | DiskKind::NvmeMultipath));
    let p2pdma = if nvme.starts_with("p2pdma") { "Supported" } else { "Unsupported" };
    line!(out, " NVMe P2PDMA        : {p2pdma}");
    for (name, wanted) in ROWS {
        line!(out, " {name:<18} : {}", modes(report, wanted));
    }
    let rdma = &report.machine.rdma;
    line!(out, " Userspace RDMA     : Unsupported");
    line!(out, " --Mellanox PeerDirect : Disabled");
    line!(out, " --rdma library        : Not Loaded (libcufile_rdma.so)");
    let devices = if rdma.devices.is_empty() { "none".to_owned() } else { rdma.devices.join(" ") };
    line!(out, " --rdma devices        : Not configured (present: {devices})");
    line!(out, " --rdma_device_status  : Up: {} Down: {}", rdma.up, rdma.down);
}

fn configuration(out: &mut String, report: &CheckReport) {
    // gdscheck leaves the blank before the colon out of these.
    const TIGHT: [&str; 5] = [
        "fs.lustre.posix_gds_min_kb",
        "fs.beegfs.posix_gds_min_kb",
        "fs.weka.rdma_write_support",
        "fs.gpfs.gds_write_support",
        "fs.gpfs.gds_async_support",
    ];
    for (name, value) in &report.cufile.values {
        let blank = if TIGHT.contains(name) { "" } else { " " };
        line!(out, " {name}{blank}: {value}");
    }
}

fn gpus(out: &mut String, report: &CheckReport) {
    let offered: Vec<_> = report.gpus.iter().filter(|gpu| gpu.index.is_some()).collect();
    let bar = report.verdicts.iter().find_map(|verdict| match &verdict.target {
        ExerciseTarget::Bar(name) => Some(name),
        _ => None,
    });
    if let Some(name) = bar {
        line!(out, " GPUs were left out: only {name} was asked for");
    } else if offered.is_empty() {
        line!(out, " no GPU: the CUDA driver is missing or offers none");
    }
    for gpu in offered {
        let index = gpu.index.unwrap_or_default();
        let bar = gpu.bar1_mib.map_or_else(|| "unknown".to_owned(), |mib| mib.to_string());
        let worked = |engine: EngineKind| {
            let mut mine = report.verdicts.iter().filter(|v| v.target == ExerciseTarget::Gpu(index));
            mine.any(|v| v.engine == engine.name() && v.state == EngineState::Works)
        };
        let (staged, mapped) = (EngineKind::Staged, EngineKind::Mapped);
        let supports = match (worked(staged), worked(mapped)) {
            (true, false) => format!("supports compat ({staged}, exercised; no direct path)"),
            (true, true) => format!("supports compat ({staged} and {mapped}, exercised; no direct path)"),
            (false, _) => "nothing could be exercised".to_owned(),
        };
        let iommu = match gpu.iommu_group.as_deref() {
            None => "Disabled",
            Some("identity") => "Pass-through",
            Some(_) => "Enabled",
        };
        line!(
            out,
            " GPU index {index} {} bar:1 bar size (MiB):{bar} {supports}, IOMMU State: {iommu}",
            gpu.name
        );
    }
}

fn platform_info(out: &mut String, report: &CheckReport) {
    let machine = &report.machine;
    line!(out, " IOMMU: {}", machine.iommu.word());
    for bridge in report.gpus.iter().flat_map(|gpu| &gpu.acs) {
        line!(out, " Found ACS enabled for switch {bridge}");
    }
    let driver = match &machine.driver {
        None => "Not installed".to_owned(),
        Some(driver) => {
            let kind = if driver.open { "Open" } else { "Proprietary" };
            format!("Installed(Nvidia {kind} Driver {})", driver.version)
        }
    };
    line!(out, " Nvidia Driver Info Status: {driver}");
    match report.gpus.iter().map(|gpu| gpu.driver_api).max().filter(|&version| version > 0) {
        Some(version) => line!(out, " Cuda Driver Version Installed:  {version}"),
        None => line!(out, " Cuda Driver Version Installed:  none"),
    }
    let product = machine.product.as_deref().unwrap_or("unknown");
    line!(out, " Platform: {product}, Arch: {}(Linux {})", machine.arch, machine.kernel);
    match report.overall {
        Overall::Usable => line!(out, " Platform verification succeeded"),
        Overall::Degraded => line!(out, " Platform verification: degraded, see the findings below"),
        Overall::Unusable => {
            line!(out, " Platform verification error:");
            let worst =
                report.findings.first().map_or("the file could not be read", |finding| finding.text.as_str());
            line!(out, " {worst}");
        }
    }
}
