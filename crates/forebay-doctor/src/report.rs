//! The whole report as data.

use std::io::ErrorKind;

use forebay_config::{Config, elsewhere};
use forebay_gpu::DeviceName;
use serde::Serialize;

use crate::cufile::{CufileConfig, LibcufileFacts, library};
use crate::direct::{self, BarMemory, DriveRoute};
use crate::engines::{EngineState, Verdict, by_drive, by_server, verdicts};
use crate::exercise::{
    DriverOffer, Exercise, ExerciseResult, ExerciseTarget, FileRead, Hinted, InPlace, LaneFacts, PinBudget,
    ServerAnswers,
};
use crate::facts::{ExerciseResults, Facts};
use crate::finding::{Finding, Severity};
use crate::gpu::{self, GpuFacts};
use crate::machine::MachineFacts;
use crate::rules::findings;
use crate::storage::{self, StoragePlace};
use crate::system::System;

/// The things to examine.
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
    /// Everything examined works (0).
    Usable,
    /// It works, but slower than it could (1).
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
    /// The bytes read, if it worked.
    pub read: Option<FileRead>,
    /// Why it failed.
    pub error: Option<Hinted>,
}

/// The whole report.
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
    /// Each memory with each place.
    pub routes: Vec<DriveRoute>,
    /// Engines per target and place.
    pub verdicts: Vec<Verdict>,
    /// Answers of the servers of NFS mounts.
    pub servers: Vec<ServerAnswers>,
    /// Findings, worst first.
    pub findings: Vec<Finding>,
    /// The register test, if asked for.
    pub file: Option<FileTest>,
}

/// Reads the machine, and tries every engine that can be tried.
pub fn examine(
    system: &dyn System,
    exercise: &dyn Exercise,
    options: &CheckOptions,
) -> Result<CheckReport, Hinted> {
    let offered = exercise.offered();
    let bar = check_device(exercise, options, &offered)?;
    let places = find_places(system, options)?;
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
    let known = KnownHardware {
        machine: &machine,
        library: library.as_ref(),
        gpus: &gpus,
        places: &places,
        routes: &routes,
    };
    let (lanes, verdicts) = try_targets(exercise, &targets, &known);
    let servers = ask_servers(exercise, &places);
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
        tried: Some(ExerciseResults { lanes: &lanes, verdicts: &verdicts, servers: &servers, file_was_read }),
        process: None,
        log: None,
        benches: &[],
    });
    let overall = overall(&found, &verdicts, file.as_ref());
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
        verdicts,
        servers,
        findings: found,
        file,
    })
}

/// Fails if the device that was asked for is missing. Returns the target, if it is memory in a PCI BAR.
fn check_device(
    exercise: &dyn Exercise,
    options: &CheckOptions,
    offered: &DriverOffer,
) -> Result<Option<ExerciseTarget>, Hinted> {
    match &options.device {
        Some(DeviceName::Bar(name)) => exercise.bar(name).map(Some),
        Some(DeviceName::Index(index)) => {
            // On a machine without GPU, device 0 is host memory, as everywhere in forebay.
            let is_known = offered.gpus.iter().any(|gpu| gpu.index == Some(*index))
                || (offered.gpus.is_empty() && *index == 0);
            if is_known { Ok(None) } else { Err(no_such_device(*index, offered.gpus.len())) }
        }
        None => Ok(None),
    }
}

/// The places to look at. Fails if one of those asked for does not exist.
fn find_places(system: &dyn System, options: &CheckOptions) -> Result<Vec<StoragePlace>, Hinted> {
    let found = storage::probe(system, &options.paths, options.file.as_deref());
    found.into_iter().map(|place| place.map_err(|path| missing(&path))).collect()
}

/// The error for a place that does not exist.
pub(crate) fn missing(path: &str) -> Hinted {
    let refused = std::fs::metadata(path).is_err_and(|error| error.kind() == ErrorKind::PermissionDenied);
    if refused {
        return Hinted::new(format!("this user may not look at {path}"))
            .fix("check owner and mode of the directories above it: ls -ld, or run it as root");
    }
    let fix = elsewhere::repository_hint(path.as_ref());
    Hinted::new(format!("no such file or directory: {path}"))
        .fix(fix.unwrap_or_else(|| "give directories or files that exist".to_owned()))
}

/// The facts read from the machine before anything is tried.
struct KnownHardware<'a> {
    machine: &'a MachineFacts,
    library: Option<&'a LibcufileFacts>,
    gpus: &'a [GpuFacts],
    places: &'a [StoragePlace],
    routes: &'a [DriveRoute],
}

/// The lanes of each target, or why it has none.
type LaneResults = Vec<Result<LaneFacts, (ExerciseTarget, Hinted)>>;

/// Tries every target at every place.
fn try_targets(
    exercise: &dyn Exercise,
    targets: &[ExerciseTarget],
    known: &KnownHardware<'_>,
) -> (LaneResults, Vec<Verdict>) {
    let (mut lanes, mut all) = (Vec::new(), Vec::new());
    for target in targets {
        let started = exercise.lanes(target.clone());
        for place in known.places {
            all.extend(try_place(exercise, target, place, started.as_ref().err(), known));
        }
        lanes.push(started.map_err(|why| (target.clone(), why)));
    }
    (lanes, all)
}

/// Tries one target at one place. With `no_lanes`, the reason why the target has none, nothing is tried.
fn try_place(
    exercise: &dyn Exercise,
    target: &ExerciseTarget,
    place: &StoragePlace,
    no_lanes: Option<&Hinted>,
    known: &KnownHardware<'_>,
) -> Vec<Verdict> {
    let exercised = match no_lanes {
        None => exercise.exercise(target.clone(), place),
        Some(why) => ExerciseResult::skipped(target.clone(), why.clone()),
    };
    let in_place = matches!(target, ExerciseTarget::Gpu(_)).then(|| match no_lanes {
        None => exercise.read_in_place(target.clone(), place),
        Some(why) => InPlace::Skipped(why.clone()),
    });
    let gpu = known.gpus.iter().find(|gpu| gpu.index.map(ExerciseTarget::Gpu).as_ref() == Some(target));
    let route = gpu.and_then(|gpu| {
        known.routes.iter().find(|route| route.memory == gpu.pci && route.place == place.path)
    });
    let mut all = verdicts(known.machine, known.library, gpu, place, exercised, in_place, route);
    match target {
        _ if no_lanes.is_some() => {}
        ExerciseTarget::Gpu(_) if matches!(place.file_system.as_str(), "nfs" | "nfs4") => {
            let tried = exercise.read_by_server(target.clone(), place);
            all.extend(tried.map(|tried| by_server(target.clone(), place, tried)));
        }
        ExerciseTarget::Bar(_) => {
            all.push(by_drive(place, exercise.exercise_by_drive(target.clone(), place)));
        }
        ExerciseTarget::Gpu(_) | ExerciseTarget::Host => {}
    }
    all
}

/// Asks the server of each NFS mount once.
fn ask_servers(exercise: &dyn Exercise, places: &[StoragePlace]) -> Vec<ServerAnswers> {
    let mut all: Vec<ServerAnswers> = Vec::new();
    for place in places.iter().filter(|place| place.nfs.is_some()) {
        if all.iter().all(|known| known.mount_point != place.mount_point) {
            all.extend(exercise.ask_server(place));
        }
    }
    all
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

/// Reads a file of the user.
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
