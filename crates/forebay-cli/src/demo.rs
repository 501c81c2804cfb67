//! `forebay demo`: the main job on a temporary file.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use forebay_bench::text::bytes;
use forebay_bench::{IoAccess, IoSize, Job, JobTarget, MemoryType, Observer, Pass, Progress, Workload, Xfer};
use forebay_config::{Config, allowed_cpus};
use forebay_engine::{File, Session};
use forebay_error::{Error, ErrorKind, Result};
use forebay_gpu::{DeviceInfo, DeviceName};

use crate::console::{Console, Failure, ProgressLine};
use crate::interrupt::Guard;
use crate::load::size;

/// Writes and reads a temporary file over every engine that works here, warm and cold, and verifies the bytes.
#[derive(Args, Clone, Debug)]
pub(crate) struct Demo {
    /// Size of the file
    #[arg(long, value_name = "SIZE", value_parser = size, env = "FOREBAY_DEMO_SIZE", default_value = "1G")]
    size: u64,
    /// Directory for the file [default: $TMPDIR, or /tmp]
    #[arg(long, value_name = "DIRECTORY", value_parser = crate::names::target())]
    dir: Option<PathBuf>,
    /// GPU index (0 is host memory on a machine without GPU), or p2pmem:PCI-ADDRESS
    #[arg(short = 'd', long, value_name = "DEVICE", default_value_t, value_parser = crate::load::parse::<DeviceName>)]
    device: DeviceName,
}

/// A row of the table before it is run.
struct Row {
    work: &'static str,
    load: Workload,
    cold: bool,
}

/// The temporary file, removed at the end.
struct Scratch(PathBuf);

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

/// Runs the command.
pub(crate) fn run(args: &Demo, console: &Console<'_>) -> Result<i32, Failure> {
    if args.size < 16 << 20 {
        return Err(Failure::usage(
            Error::new(ErrorKind::InvalidInput, "the demo's file is too small")
                .hint("use --size 16M or more"),
        ));
    }
    let session = Session::with_config(Config::from_env()?)?;
    let device = session.device_named(&args.device)?;
    let info = device.info().clone();
    let is_bar = matches!(args.device, DeviceName::Bar(_));
    let directory = args.dir.clone().unwrap_or_else(std::env::temp_dir);
    let guard = Guard::new();
    let scratch = Scratch(directory.join(format!("forebay-demo-{}", std::process::id())));
    make(&scratch.0, args.size)?;
    let file = File::open(&scratch.0)?;
    let file_system = file.file_system().to_owned();
    drop(file);

    say_device(&session, &info, is_bar, console);
    console.line(format!(
        "file: {} of {} on {file_system}, {} CPUs\n",
        scratch.0.display(),
        bytes(args.size),
        allowed_cpus()
    ));
    drop(session);
    console.line(format!(
        "{:<34} {:<13} {:<6} {:>8} {:>8} {:>6} {:>9}  bytes",
        "work", "engine", "state", "GB/s", "ceiling", "%", "CPU s/GB"
    ));
    let mut advice: Vec<String> = Vec::new();
    let live = ProgressLine::new("demo");
    for row in rows(args, &scratch.0, info.is_host, is_bar) {
        if let Some(signal) = Guard::caught() {
            return Err(Failure::interrupted(signal, "the temporary file is removed"));
        }
        match measure(&row, &live, &mut advice) {
            Ok(text) => console.line(text),
            // tmpfs is never cold, and has no O_DIRECT everywhere: the other rows suffice.
            Err(error) if row.cold && matches!(error.kind(), ErrorKind::Busy | ErrorKind::Unsupported) => {
                console.line(format!("{:<34} not here: {error}", row.work));
            }
            Err(error) => return Err(error.into()),
        }
    }
    drop(scratch);
    drop(guard);
    if info.is_host {
        advice.insert(0, "a GPU with its driver: `forebay check` tells what is missing".to_owned());
    }
    say_advice(&advice, console);
    Ok(0)
}

fn say_device(session: &Session, info: &DeviceInfo, is_bar: bool, console: &Console<'_>) {
    if info.is_host {
        let why = session.devices().missing.as_ref().map_or(String::new(), |error| format!(": {error}"));
        console.line(format!("no GPU here{why}"));
        console.line(
            "so the device is host memory: engine and file system are real, the copy to a GPU is not there",
        );
    } else if is_bar {
        console.line(format!("memory in a PCI BAR: {}", info.name));
    } else {
        console.line(format!("GPU {}: {} ({})", info.index, info.name, info.pci));
    }
}

fn say_advice(advice: &[String], console: &Console<'_>) {
    console.line("\nwhat would make it faster:");
    for one in advice {
        console.line(format!("- {one}"));
    }
    if advice.is_empty() {
        console.line("- nothing that forebay knows of");
    }
}

fn rows(args: &Demo, path: &Path, host: bool, is_bar: bool) -> Vec<Row> {
    let threads = allowed_cpus().clamp(1, 4);
    let large = (args.size / threads as u64 / 2).next_power_of_two().clamp(1 << 20, 16 << 20);
    let load = |memory: MemoryType, access: IoAccess, io: u64| {
        let mut job = Job::new(JobTarget::File(path.into()));
        job.device = args.device.clone();
        job.workers = threads;
        job.io = IoSize::fixed(io);
        job.size = Some(args.size);
        job.memory = memory;
        let mut work = Workload::new(vec![job]);
        work.access = access;
        work.ceiling = true;
        work.config = Config::from_env().unwrap_or_default();
        work
    };
    let (device, heap) = (MemoryType::Device, MemoryType::Heap);
    let mut rows = Vec::new();
    let mut push = |work, load: Workload| rows.push(Row { work, cold: load.drop_cache, load });
    let name = |gpu: &'static str, plain: &'static str| if host || is_bar { plain } else { gpu };
    push(name("write, GPU to file", "write, memory to file"), load(device, IoAccess::Write, large));
    if !host {
        push("write, host memory to file", load(heap, IoAccess::Write, large));
    }
    let mut cold = load(device, IoAccess::Read, large);
    cold.drop_cache = true;
    push(name("read, file to GPU", "read, file to memory"), cold.clone());
    let mut classic = cold;
    classic.xfer = Xfer::CpuGpu;
    push("  the classic way (-x 2)", classic);
    let mut warm = load(device, IoAccess::Read, large);
    warm.warm = true;
    push(name("read, file to GPU", "read, file to memory"), warm.clone());
    if !host {
        // The last of three passes in one session: by then pages that may be pinned are pinned.
        let mut again = warm.clone();
        again.repeat = 3;
        push(name("read again, file to GPU", "read again, file to memory"), again);
        let mut warm = load(heap, IoAccess::Read, large);
        warm.warm = true;
        push("read, file to host memory", warm);
    }
    let mut classic = warm;
    classic.xfer = Xfer::CpuCachedGpu;
    push("  the classic way (-x 4)", classic);
    let mut random = load(device, IoAccess::RandRead, 4096);
    random.xfer = Xfer::Batch;
    random.batch = Some(256);
    random.jobs[0].workers = 1;
    random.runtime = Some(Duration::from_secs(1));
    random.warm = true;
    push("random 4 KiB reads, batches of 256", random);
    rows
}

/// Fills the file with zeros, so that its blocks are there.
fn make(path: &Path, len: u64) -> Result<()> {
    let explain = |error: Error| match error.kind() {
        ErrorKind::NoSpace => error.hint("use a smaller --size, or another --dir"),
        _ => error.hint("use another --dir"),
    };
    fs::OpenOptions::new().write(true).create_new(true).open(path).map_err(|error| {
        let folder = path.parent().unwrap_or(path);
        explain(Error::from_io(&error, "cannot create a file in the folder").with("path", folder.display()))
    })?;
    let file = File::options().read(true).write(true).open(path)?;
    file.preallocate(len).map_err(|error| if error.hints().is_empty() { explain(error) } else { error })
}

/// Measures a row, then checks the bytes of the same work.
fn measure(row: &Row, live: &ProgressLine, advice: &mut Vec<String>) -> Result<String> {
    let watcher = Watcher { live };
    let mut check = row.load.clone();
    check.ceiling = false;
    check.verify = true;
    check.runtime = None;
    forebay_bench::run(&check, &watcher)?;
    let report = forebay_bench::run(&row.load, &watcher)?;
    // A writing row was preceded by a written pass, so that its blocks were there; now its own way is read back.
    if row.load.access.writes() {
        forebay_bench::run(&check, &watcher)?;
    }
    live.clear();
    let Some(pass) = report.passes.last() else {
        return Err(Error::new(ErrorKind::Internal, "a row of the demo was not measured"));
    };
    for (text, hint) in pass.notes.iter().map(|note| (note.text.clone(), &note.hint)).chain(
        // Leave out reasons that nobody can change: of `mapped`, a write or too few reads so far; and that a row is
        // cold which was made cold.
        pass.refused
            .iter()
            .filter(|one| one.engine != "mapped" || (one.hint.is_some() && pass.state != "cold"))
            .map(|one| (format!("engine {}: {}", one.engine, one.reason), &one.hint)),
    ) {
        let one = hint.as_ref().map_or(text.clone(), |hint| format!("{text}\n  hint: {hint}"));
        if !advice.contains(&one) {
            advice.push(one);
        }
    }
    Ok(line(row.work, pass))
}

fn line(work: &str, pass: &Pass) -> String {
    let engines: Vec<&str> = pass.engines.iter().map(|one| one.engine.as_str()).collect();
    let (ceiling, percent) = match &pass.ceiling {
        Some(ceiling) => (format!("{:.2}", ceiling.gb_per_s), format!("{:.0}", ceiling.percent)),
        None => ("–".to_owned(), "–".to_owned()),
    };
    format!(
        "{work:<34} {:<13} {:<6} {:>8.2} {ceiling:>8} {percent:>6} {:>9.3}  verified",
        engines.join("+"),
        if pass.io.ends_with("WRITE") { "–" } else { pass.state },
        pass.gb_per_s,
        pass.cpu.user_s_per_gb + pass.cpu.system_s_per_gb
    )
}

struct Watcher<'a> {
    live: &'a ProgressLine,
}

impl Observer for Watcher<'_> {
    fn progress(&self, progress: Progress) {
        let part = progress.total.map(|total| progress.bytes as f64 / total.max(1) as f64);
        self.live.show(progress.bytes, part, progress.elapsed);
    }
}
