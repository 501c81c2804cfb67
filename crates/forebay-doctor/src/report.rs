//! The whole report as data.

use forebay_config::Config;
use forebay_gpu::DeviceName;
use serde::Serialize;

use crate::cufile::{CufileConfig, LibcufileFacts, library};
use crate::direct::{self, BarMemory, DriveRoute};
use crate::engines::{EngineState, Verdict, by_drive, by_server, verdicts};
use crate::exercise::{Exercise, ExerciseTarget, Exercised, FileRead, Hinted, InPlace, LaneFacts, PinBudget};
use crate::facts::{Facts, Tried};
use crate::finding::{Finding, Severity};
use crate::gpu::{self, GpuFacts};
use crate::machine::MachineFacts;
use crate::rules::findings;
use crate::storage::{self, StoragePlace};
use crate::system::System;

/// What to look at.
#[derive(Clone, Debug, Default)]
pub struct CheckOptions {
    /// Only this GPU, or this memory in a PCI BAR.
    pub device: Option<DeviceName>,
    /// Directories or files; empty looks for mounted file systems.
    pub paths: Vec<String>,
    /// A file of the user, read where nothing may be written.
    pub file: Option<String>,
    /// forebay's own libcufile, where it was found.
    pub own_libcufile: Option<String>,
}

/// How usable forebay is here; also the exit code.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Overall {
    /// All that was looked at works (0).
    Usable,
    /// It works with less than it could (1).
    Degraded,
    /// It cannot run (2).
    Unusable,
}

impl Overall {
    /// The process's exit code.
    pub const fn exit_code(self) -> i32 {
        match self {
            Self::Usable => 0,
            Self::Degraded => 1,
            Self::Unusable => 2,
        }
    }
}

/// The result of the register test of a file.
#[derive(Clone, Debug, Serialize)]
pub struct FileTest {
    /// The file.
    pub path: String,
    /// What was read, if it worked.
    pub read: Option<FileRead>,
    /// Why it failed.
    pub error: Option<Hinted>,
}

/// Everything that was found out.
#[derive(Clone, Debug, Serialize)]
pub struct CheckReport {
    /// Name and version of this schema.
    pub schema: &'static str,
    /// Version of forebay.
    pub version: &'static str,
    /// How usable forebay is here.
    pub overall: Overall,
    /// 0, 1 or 2.
    pub exit_code: i32,
    /// The machine.
    pub machine: MachineFacts,
    /// libcufile's configuration.
    pub cufile: CufileConfig,
    /// NVIDIA's library, if it is there.
    pub libcufile: Option<LibcufileFacts>,
    /// forebay's own, where it lies beside the program.
    pub own_libcufile: Option<String>,
    /// GPUs, offered by the driver or only seen on the bus.
    pub gpus: Vec<GpuFacts>,
    /// The places.
    pub places: Vec<StoragePlace>,
    /// The lanes of each target.
    pub lanes: Vec<LaneFacts>,
    /// How much page cache may be pinned for GPUs.
    pub pin_budget: Option<PinBudget>,
    /// Memory that drives might reach by themselves.
    pub memories: Vec<BarMemory>,
    /// Each of it with each place.
    pub routes: Vec<DriveRoute>,
    /// Engines per target and place.
    pub verdicts: Vec<Verdict>,
    /// What else was found out, worst first.
    pub findings: Vec<Finding>,
    /// The register test, if asked for.
    pub file: Option<FileTest>,
}

/// Looks at the machine and tries what can be tried.
pub fn examine(
    system: &dyn System,
    exercise: &dyn Exercise,
    options: &CheckOptions,
) -> Result<CheckReport, Hinted> {
    let offered = exercise.offered();
    let mut bar = None;
    if let Some(DeviceName::Bar(name)) = &options.device {
        bar = Some(exercise.bar(name)?);
    } else if let Some(DeviceName::Index(index)) = options.device {
        // On a machine without GPU, device 0 is host memory, as everywhere in forebay.
        let known = offered.gpus.iter().any(|gpu| gpu.index == Some(index))
            || (offered.gpus.is_empty() && index == 0);
        if !known {
            return Err(no_such_device(index, offered.gpus.len()));
        }
    }
    let mut places = Vec::new();
    for place in storage::probe(system, &options.paths, options.file.as_deref()) {
        places.push(place.map_err(|path| {
            Hinted::new(format!("no such file or directory: {path}"))
                .fix("give directories or files that exist")
        })?);
    }
    let machine = MachineFacts::probe(system);
    let mut gpus = gpu::probe(system, &offered.gpus);
    match options.device {
        Some(DeviceName::Index(index)) if !offered.gpus.is_empty() => {
            gpus.retain(|gpu| gpu.index == Some(index));
        }
        Some(DeviceName::Bar(_)) => gpus.clear(),
        _ => {}
    }
    let library = library(system);
    let (memories, routes) = direct::routes(system, &machine, &gpus, &places);
    let cufile = CufileConfig::probe(system);
    let config = Config::from_lookup(|name| system.env(name)).map_err(|error| Hinted::from(&error));

    let on_gpus = gpus.iter().filter_map(|gpu| gpu.index).map(ExerciseTarget::Gpu);
    let targets: Vec<ExerciseTarget> = on_gpus.chain(bar).chain([ExerciseTarget::Host]).collect();
    let mut lanes = Vec::new();
    let mut all = Vec::new();
    for target in &targets {
        let started = exercise.lanes(target.clone());
        let gpu = gpus.iter().find(|gpu| gpu.index.map(ExerciseTarget::Gpu).as_ref() == Some(target));
        for place in &places {
            let exercised = match &started {
                Ok(_) => exercise.exercise(target.clone(), place),
                Err(why) => Exercised::skipped(target.clone(), why.clone()),
            };
            let in_place = matches!(target, ExerciseTarget::Gpu(_)).then(|| match &started {
                Ok(_) => exercise.read_in_place(target.clone(), place),
                Err(why) => InPlace::Skipped(why.clone()),
            });
            let route = gpu.and_then(|gpu| {
                routes.iter().find(|route| route.memory == gpu.pci && route.place == place.path)
            });
            all.extend(verdicts(&machine, library.as_ref(), gpu, place, exercised, in_place, route));
            if let (ExerciseTarget::Gpu(_), Ok(_)) = (target, &started)
                && matches!(place.file_system.as_str(), "nfs" | "nfs4")
                && let Some(tried) = exercise.read_by_server(target.clone(), place)
            {
                all.push(by_server(target.clone(), place, tried));
            }
            if let (ExerciseTarget::Bar(_), Ok(_)) = (target, &started) {
                all.push(by_drive(place, exercise.exercise_by_drive(target.clone(), place)));
            }
        }
        lanes.push(started.map_err(|why| (target.clone(), why)));
    }
    let pin_budget = targets.first().and_then(|target| exercise.pin_budget(target.clone()));
    let file = options.file.as_deref().map(|path| test_file(exercise, targets[0].clone(), path));
    let file_was_read = file.as_ref().is_some_and(|file| file.read.is_some());
    let found = findings(&Facts {
        system,
        machine: &machine,
        offered: &offered,
        gpus: &gpus,
        places: &places,
        config: &config,
        cufile: &cufile,
        library: library.as_ref(),
        tried: Some(Tried { lanes: &lanes, verdicts: &all, file_was_read }),
        process: None,
        log: None,
        benches: &[],
    });
    let overall = overall(&found, &all, file.as_ref());
    Ok(CheckReport {
        schema: "forebay.check/3",
        version: crate::VERSION,
        overall,
        exit_code: overall.exit_code(),
        machine,
        cufile,
        libcufile: library,
        own_libcufile: options.own_libcufile.clone(),
        gpus,
        places,
        lanes: lanes.into_iter().filter_map(Result::ok).collect(),
        pin_budget,
        memories,
        routes,
        verdicts: all,
        findings: found,
        file,
    })
}

/// The error for a device index that `count` GPUs do not have.
pub fn no_such_device(index: usize, count: usize) -> Hinted {
    let why = Hinted::new(format!("no such device: -d {index}; this machine has {count} usable GPU(s)"));
    match count {
        0 => why.fix("use -d 0 for host memory, or leave -d out"),
        1 => why.fix("use -d 0"),
        _ => why.fix(format!("use -d 0 to -d {}", count - 1)),
    }
}

/// Reads a file of the user for real.
pub fn test_file(exercise: &dyn Exercise, target: ExerciseTarget, path: &str) -> FileTest {
    match exercise.read_file(target, path) {
        Ok(read) => FileTest { path: path.to_owned(), read: Some(read), error: None },
        Err(error) => FileTest { path: path.to_owned(), read: None, error: Some(error) },
    }
}

fn overall(findings: &[Finding], verdicts: &[Verdict], file: Option<&FileTest>) -> Overall {
    if file.is_some_and(|file| file.error.is_some()) {
        return Overall::Unusable;
    }
    match findings.iter().map(|finding| finding.severity).max() {
        Some(Severity::Blocks) => Overall::Unusable,
        Some(Severity::Slower) => Overall::Degraded,
        _ if verdicts
            .iter()
            .any(|verdict| matches!(verdict.state, EngineState::Fails | EngineState::Partly)) =>
        {
            Overall::Degraded
        }
        _ => Overall::Usable,
    }
}
