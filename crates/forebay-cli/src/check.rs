//! `forebay check`, also as `gdscheck`: what this machine can do, what it cannot, why, and what to type.

use std::io::Write;
use std::path::PathBuf;

use clap::Args;
use forebay_doctor::exercise::{Exercise, ExerciseTarget, Hinted};
use forebay_doctor::topology::Topology;
use forebay_doctor::{
    CheckOptions, CheckReport, LiveExercise, RealSystem, RootedSystem, examine, gdscheck, gpu, live, render,
    test_file,
};
use forebay_gpu::{DeviceName, Devices};

/// Tell what this machine can do, what not, why, and what to type; writes probes of 8 MiB, and removes them
///
/// Engines are tried for real: in each place a probe file of 8 MiB is written (never over a file), read back to each
/// device and compared. Where this user may not write, a file that is there is read. `forebay doctor` tries nothing.
/// The server of an NFS mount is asked besides which ports it takes calls from, and whether it takes RDMA.
/// Exit code: 0 all usable, 1 degraded, 2 cannot run.
#[derive(Args, Clone, Debug, Default)]
pub(crate) struct CheckArgs {
    /// Directories or files to try; by default the working directory, /tmp and the mounted file systems
    #[arg(value_name = "PATH", value_parser = crate::names::source_text())]
    pub(crate) paths: Vec<String>,

    /// Platform report (the default)
    #[arg(short = 'p', long)]
    pub(crate) platform: bool,

    /// Read this file through a session and say how that went; with -p also where nothing may be written
    #[arg(short = 'f', long, value_name = "FILE", value_parser = crate::names::source_text())]
    pub(crate) file: Option<String>,

    /// Print versions
    #[arg(short = 'v', long)]
    pub(crate) versions: bool,

    /// Print how bytes reach each kind of target: file systems, drives, RDMA
    #[arg(short = 'V', long)]
    pub(crate) targets: bool,

    /// Print GPUs, drives and network cards, and how far they are from each other on the PCI bus; tries nothing
    #[arg(short = 't', long)]
    pub(crate) topology: bool,

    /// Say what this one directory can do for `forebay serve s3`, also between two mounts of it; tries files in its .forebay, and removes them
    #[arg(long, value_name = "OTHER_MOUNT", num_args = 0..=1, conflicts_with_all = ["topology", "file", "targets", "device", "versions"])]
    pub(crate) gateway: Option<Vec<PathBuf>>,

    /// With --topology: another machine's root (/host in a pod), or a saved copy of its /sys
    #[arg(long, value_name = "DIR", requires = "topology", value_parser = crate::names::source())]
    pub(crate) root: Option<PathBuf>,

    /// Only this GPU (0 is host memory on a machine without GPU), or p2pmem:PCI-ADDRESS
    #[arg(short = 'd', long, value_name = "DEVICE", value_parser = crate::load::parse::<DeviceName>)]
    pub(crate) device: Option<DeviceName>,

    /// Print the report as JSON (docs/reference/check.md)
    #[arg(long)]
    pub(crate) json: bool,

    /// The least that makes the exit code other than 0; `blocks` for nodes that may well have no GPU
    #[arg(long, value_name = "SEVERITY", value_enum, default_value_t = FailOn::Slower)]
    pub(crate) fail_on: FailOn,
}

/// The severity that makes the exit code other than 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum FailOn {
    /// Something does not work.
    Blocks,
    /// The same, or something is slower than it could be.
    #[default]
    Slower,
}

impl FailOn {
    /// The exit code of a command whose worst finding has this one.
    pub(crate) fn code(self, code: i32) -> i32 {
        if self == Self::Blocks && code == 1 { 0 } else { code }
    }
}

/// Runs the command and returns its exit code.
pub(crate) fn run(args: &CheckArgs, out: &mut dyn Write, err: &mut dyn Write) -> i32 {
    // Only writing can fail, and the stream remembers that.
    print(args, out, err).unwrap_or(1)
}

fn print(args: &CheckArgs, out: &mut dyn Write, err: &mut dyn Write) -> std::io::Result<i32> {
    if args.topology {
        return print_topology(args, out, err);
    }
    let whole_report = args.platform || args.json || !args.paths.is_empty();
    if args.versions && !whole_report && !args.targets && args.file.is_none() {
        write!(out, "{}", gdscheck::installed_versions(&RealSystem, own_libcufile().as_deref()))?;
        return Ok(0);
    }
    let mut asked = args.paths.iter().chain(&args.file);
    if let Some(error) = asked.find_map(|path| crate::nfs::not_a_path("check", path.as_ref())) {
        return refuse(err, &Hinted::from(&error));
    }
    let live = LiveExercise::open();
    if let Some(path) = args.file.as_deref().filter(|_| !whole_report && !args.targets) {
        let target = match target(args, &live) {
            Ok(target) => target,
            Err(why) => return refuse(err, &why),
        };
        let test = test_file(&live, target, path);
        write!(out, "{}", gdscheck::file(&test))?;
        return Ok(if test.error.is_some() { 2 } else { 0 });
    }
    let options = CheckOptions {
        device: args.device.clone(),
        paths: args.paths.clone(),
        file: args.file.clone(),
        own_libcufile: own_libcufile(),
    };
    let report = match examine(&RealSystem, &live, &options) {
        Ok(report) => report,
        Err(why) => return refuse(err, &why),
    };
    if args.targets && !args.json {
        let file = report.file.as_ref().map(gdscheck::file).unwrap_or_default();
        write!(out, "{}{file}", gdscheck::targets(&report))?;
    } else if args.json {
        serde_json::to_writer_pretty(&mut *out, &report)?;
        writeln!(out)?;
    } else {
        write!(out, "{}", text(&report))?;
    }
    Ok(args.fail_on.code(report.exit_code))
}

fn print_topology(args: &CheckArgs, out: &mut dyn Write, err: &mut dyn Write) -> std::io::Result<i32> {
    let topology = match &args.root {
        Some(root) if !root.join("sys").is_dir() => {
            let why = Hinted::new(format!("no root of a machine: {}", root.display()));
            return refuse(err, &why.fix("name a directory that has sys in it"));
        }
        Some(root) => {
            let system = RootedSystem::new(root);
            Topology::probe(&system, &gpu::by_files(&system).gpus)
        }
        None => Topology::probe(&RealSystem, &live::offered(&Devices::discover()).gpus),
    };
    if args.json {
        serde_json::to_writer_pretty(&mut *out, &topology)?;
        writeln!(out)?;
    } else {
        write!(out, "{}", topology.text())?;
    }
    Ok(0)
}

/// forebay's libcufile, where `forebay run` would find it.
fn own_libcufile() -> Option<String> {
    crate::run::dropin::find(None).ok().map(|path| path.display().to_string())
}

fn text(report: &CheckReport) -> String {
    let file = report.file.as_ref().map(gdscheck::file).unwrap_or_default();
    format!("{}{file}\n{}", gdscheck::platform(report), render::text(report))
}

/// Where the register test reads to: the GPU asked for, else the first, else host memory.
fn target(args: &CheckArgs, live: &LiveExercise) -> Result<ExerciseTarget, Hinted> {
    let count = live.offered().gpus.len();
    match args.device.clone().unwrap_or_default() {
        DeviceName::Bar(name) => live.bar(&name),
        DeviceName::Index(0) if count == 0 => Ok(ExerciseTarget::Host),
        DeviceName::Index(index) if index < count => Ok(ExerciseTarget::Gpu(index)),
        DeviceName::Index(index) => Err(forebay_doctor::report::no_such_device(index, count)),
    }
}

pub(crate) fn refuse(err: &mut dyn Write, why: &Hinted) -> std::io::Result<i32> {
    writeln!(err, "error: {}", why.text)?;
    if let Some(fix) = &why.fix {
        writeln!(err, "hint: {fix}")?;
    }
    Ok(2)
}
