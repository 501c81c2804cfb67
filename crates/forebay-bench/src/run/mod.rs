//! Running a workload: passes in turn, medians at the end.

mod ceiling;
mod directory;
mod gather;
mod open_cost;
mod transfers;

use std::sync::Arc;
use std::time::Duration;

use directory::Listing;
use forebay_engine::Session;
use forebay_error::{Error, ErrorKind, Result};
use forebay_gpu::{Context, Device};
pub use open_cost::ROUNDS;

use crate::files::made::MadeFiles;
use crate::files::open::{self, ReadyJob};
use crate::files::{cache, foreign};
use crate::movers::TransferWay;
use crate::observer::Observer;
use crate::plan::{PassLength, PassTime};
use crate::report::{BenchReport, DeviceReport, MachineReport, Medians, Pass, Ratio, TypeSummary, VERSION};
use crate::workload::job::{IoAccess, Job, Xfer};
use crate::workload::{BenchTask, Workload};

/// Length of gathers by default.
const GATHER_TIME: Duration = Duration::from_secs(3);
/// How long a run waits for a steady rate if nothing is said.
const STEADY_TIME: Duration = Duration::from_mins(1);

/// Runs a workload on a session of its own, which `forebay stats` sees.
///
/// ```
/// use forebay_bench::{Job, JobTarget, Silent, Workload, run};
/// # let directory = tempfile::tempdir().unwrap();
/// # let path = directory.path().join("data");
/// # std::fs::write(&path, vec![7; 1 << 20]).unwrap();
/// let mut job = Job::new(JobTarget::File(path));
/// job.io = "64K".parse().unwrap();
/// let report = run(&Workload::new(vec![job]), &Silent).unwrap();
/// assert_eq!(report.passes[0].bytes, 1 << 20);
/// ```
pub fn run(work: &Workload, observer: &dyn Observer) -> Result<BenchReport> {
    work.check()?;
    let session = Session::with_counters(work.config.clone())?;
    run_on(work, &session, observer)
}

/// Starts the device's lanes and compiles its kernels, so that the first pass does not pay for it.
fn warm_up(work: &Workload, session: &Session, device: &Arc<dyn Device>) -> Result<()> {
    if !work.bare && work.types().iter().any(|xfer| xfer.uses_engine()) {
        // An engine that this device cannot have is known before a file is touched.
        session.elect(device)?;
    }
    session.report(device)?;
    // Where kernels cannot run, copies replace them; the passes report it.
    let _ = device.kernels(Context::PRIMARY);
    Ok(())
}

/// Runs a workload on this session. The workload's own options of a session are not used.
pub fn run_on(work: &Workload, session: &Session, observer: &dyn Observer) -> Result<BenchReport> {
    work.check()?;
    let mut report = BenchReport {
        version: VERSION,
        release: env!("CARGO_PKG_VERSION"),
        machine: MachineReport::this(),
        devices: Vec::new(),
        passes: Vec::new(),
        summary: Vec::new(),
        open_cost: None,
        interrupted: false,
        warnings: Vec::new(),
    };
    let mut made = MadeFiles::new(work.unlink);
    let devices = devices(work, session, &mut report)?;
    check_memory(work, &devices)?;
    report.warnings.extend(warnings(work));
    report.warnings.extend(foreign::guard(work)?);
    match work.task {
        BenchTask::Transfers | BenchTask::Gather(_) => {
            transfers(work, session, devices, observer, (&mut report, &mut made))?;
        }
        BenchTask::Files { make } => {
            let listing = Listing::prepare(work, &work.jobs[0], make, (&mut made, observer))?;
            for _ in 0..work.repeat {
                if observer.is_stopped() {
                    report.interrupted = true;
                    break;
                }
                listing.settle_cache(work)?;
                if work.trim {
                    session.trim();
                }
                let pass = directory::pass(work, session, &devices[0], &listing, observer)?;
                keep(pass, observer, &mut report);
            }
        }
        BenchTask::OpenCost => {
            report.open_cost = Some(open_cost::measure(session, &devices[0], &work.jobs[0], work.repeat)?);
        }
    }
    summarise(&mut report, &work.types());
    let notes = [
        cache::note(work, &report),
        cache::empty_note(&report),
        cache::busy_note(&report),
        late_note(work, &report),
    ];
    report.warnings.extend(notes.into_iter().flatten());
    report.warnings.extend(made.remove());
    Ok(report)
}

/// Takes a pass into the report, unless it was interrupted before its first I/O.
fn keep(pass: Pass, observer: &dyn Observer, report: &mut BenchReport) {
    report.interrupted |= pass.interrupted;
    if pass.interrupted && pass.ops == 0 {
        return;
    }
    observer.pass(&pass);
    report.passes.push(pass);
}

/// The jobs' devices, warmed up and described.
fn devices(work: &Workload, session: &Session, report: &mut BenchReport) -> Result<Vec<Arc<dyn Device>>> {
    let mut devices = Vec::new();
    for job in &work.jobs {
        let device = session.device_named(&job.device)?;
        if device.info().is_host {
            let why = session.devices().missing.as_ref().map_or(String::new(), |error| format!(" ({error})"));
            let warning = format!("no GPU in use{why}: -d {} is host memory", job.device);
            if !report.warnings.contains(&warning) {
                report.warnings.push(warning);
            }
        }
        let described = DeviceReport::from(device.info());
        if !report.devices.iter().any(|known| known.uuid == described.uuid) {
            report.devices.push(described);
        }
        warm_up(work, session, &device)?;
        devices.push(device);
    }
    Ok(devices)
}

/// Fails if the workers' buffers need more host memory than there is: the kernel would grant each of them, and then
/// kill a process.
fn check_memory(work: &Workload, devices: &[Arc<dyn Device>]) -> Result<()> {
    let of = |xfer: Xfer| {
        let jobs = work
            .jobs
            .iter()
            .zip(devices)
            .filter(|(job, device)| !xfer.uses_engine() || job.memory.is_host() || device.info().is_host);
        let buffers = |job: &Job| if xfer.is_batch() { work.depth(job) } else { job.workers };
        jobs.map(|(job, _)| (buffers(job) as u64).saturating_mul(job.io.max)).fold(0, u64::saturating_add)
    };
    let needed = work.types().into_iter().map(of).max().unwrap_or(0);
    let Some(available) = available_memory().filter(|available| *available < needed) else { return Ok(()) };
    Err(Error::new(ErrorKind::OutOfMemory, "the buffers need more host memory than there is")
        .with("needed", needed)
        .with("available", available)
        .hint("use a smaller I/O size (-i) or fewer threads (-w)"))
}

/// Available host memory in bytes, where the kernel shows it.
fn available_memory() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    line.split_whitespace().next()?.parse::<u64>().ok()?.checked_mul(1024)
}

/// Notes on the figures.
fn warnings(work: &Workload) -> Vec<String> {
    let mut warnings = Vec::new();
    let is_gather = matches!(work.task, BenchTask::Gather(_));
    if work.nvlinks {
        warnings.push(
            "-p (enable_nvlinks) changed nothing: forebay does not route transfers over NVLink".to_owned(),
        );
    }
    if work.verify {
        let what = if is_gather {
            "each call's pieces (beyond 16 MiB a sample of 4096 of them) are checked inside the timed part: figures are lower for it"
        } else {
            "the bytes are generated or checked inside the timed part: figures are lower for it"
        };
        warnings.push(what.to_owned());
    }
    if is_gather {
        for warning in work.jobs.iter().filter_map(|job| gather::cap(work, job.io.min)) {
            if !warnings.contains(&warning) {
                warnings.push(warning);
            }
        }
    }
    warnings
}

/// A run by time that takes this much longer than asked gets a note.
const LATE: f64 = 1.5;

/// A note on a run by time that took longer: I/Os in flight at its end are waited for, and count.
fn late_note(work: &Workload, report: &BenchReport) -> Option<String> {
    let asked = work.runtime?.as_secs_f64();
    let timed = report.passes.iter().filter(|pass| !pass.verify_pass);
    let longest = timed.max_by(|one, other| one.seconds.total_cmp(&other.seconds))?;
    (longest.seconds > asked * LATE + 1.0).then(|| {
        format!(
            "the run took {:.1} s instead of {asked} s: what was in flight at its end was waited for; a smaller -B or --batches, or \
             a smaller -i, has less in flight",
            longest.seconds
        )
    })
}

/// Has the engine find out whether the device reads these files in place, once and outside of the clock. Cold files
/// stay cold: the attempt reads a page.
fn try_a_page(work: &Workload, session: &Session, ready: &ReadyJob<'_>) {
    for open in ready.files.iter().filter(|_| !ready.device.info().is_host) {
        // A file with its first page in the page cache counts as warm.
        let is_warm = open.file.residency(0, 1).is_ok_and(|found| found.cached > 0);
        if is_warm || work.only_mapped() {
            // The passes report a refusal.
            let _ = session.probe_mapped(&open.file, &ready.device);
        }
    }
}

/// All passes over the jobs' files.
fn transfers(
    work: &Workload,
    session: &Session,
    devices: Vec<Arc<dyn Device>>,
    observer: &dyn Observer,
    (report, made): (&mut BenchReport, &mut MadeFiles),
) -> Result<()> {
    let ready = work.jobs.iter().zip(devices).map(|(job, device)| open::prepare(work, job, device, made));
    let ready = ready.collect::<Result<Vec<_>>>()?;
    if !work.bare {
        for one in &ready {
            try_a_page(work, session, one);
        }
    }
    for round in 0..work.repeat {
        for (index, xfer) in work.types().iter().enumerate() {
            if observer.is_stopped() {
                report.interrupted = true;
                return Ok(());
            }
            let first = round == 0 && index == 0;
            one(work, session, &ready, *xfer, first, observer, report)?;
        }
    }
    Ok(())
}

/// How long a timed pass goes.
fn length(work: &Workload) -> PassLength {
    let time = match (work.task, work.runtime, work.steady_percent) {
        (_, Some(time), _) => time,
        (_, None, Some(_)) => STEADY_TIME,
        (BenchTask::Gather(_), None, None) if !gather::is_once(work) => GATHER_TIME,
        _ => return PassLength::Once,
    };
    PassLength::For(PassTime { ramp: work.ramp, time, steady_percent: work.steady_percent })
}

/// Whether the pass measures pinned pages: a file too fresh to be pinned would make it useless.
fn wants_pins(work: &Workload, way: TransferWay) -> bool {
    let is_engine = !way.raw() && way.xfer.uses_engine();
    let asked = work.repeat > 1 || work.trim || work.only_mapped();
    let is_gather = matches!(work.task, BenchTask::Gather(_));
    (is_engine && asked && (!way.write || work.only_mapped())) || is_gather
}

/// Waits for files too fresh to be pinned, outside of the clock, where the pass measures pins.
fn rest(work: &Workload, session: &Session, ready: &[ReadyJob<'_>], way: TransferWay) -> Result<()> {
    if !wants_pins(work, way) || ready.iter().all(|one| one.device.info().is_host) {
        return Ok(());
    }
    let files: Vec<_> = ready.iter().flat_map(|one| &one.files).map(|open| &open.file).collect();
    cache::wait_settled(session, &files)
}

/// One timed pass, and the reading pass of `-V` after a writing one.
fn one(
    work: &Workload,
    session: &Session,
    ready: &[ReadyJob<'_>],
    xfer: Xfer,
    first: bool,
    observer: &dyn Observer,
    report: &mut BenchReport,
) -> Result<()> {
    let way = TransferWay { xfer, bare: work.bare, write: work.writes(), verify: work.verify };
    cache::settle_cache(work, ready)?;
    if work.trim {
        session.trim();
    }
    rest(work, session, ready, way)?;
    if observer.is_stopped() {
        report.interrupted = true;
        return Ok(());
    }
    let access = if matches!(work.task, BenchTask::Gather(_)) { IoAccess::RandRead } else { work.access };
    let (mut pass, counts) =
        transfers::run(work, session, ready, way, access, &length(work), Some(observer))?;
    if work.ceiling && !pass.interrupted {
        pass.ceiling = ceiling::measure(work, session, ready, way, &pass, first, observer)?;
    }
    keep(pass, observer, report);
    report.interrupted |= observer.is_stopped();
    if work.verify && work.access.writes() && !report.interrupted {
        observer.verifying();
        let way = TransferWay { write: false, ..way };
        rest(work, session, ready, way)?;
        let length = PassLength::Counts(counts);
        let (mut pass, _) =
            transfers::run(work, session, ready, way, work.access.reading(), &length, Some(observer))?;
        pass.verify_pass = true;
        keep(pass, observer, report);
    }
    Ok(())
}

fn summarise(report: &mut BenchReport, types: &[Xfer]) {
    let mut summary: Vec<TypeSummary> = Vec::new();
    for xfer in types {
        if report.passes.is_empty() || summary.iter().any(|known| known.xfer_type == xfer.number()) {
            continue;
        }
        let of: Vec<&Pass> = report
            .passes
            .iter()
            .filter(|pass| pass.xfer_type == xfer.number() && !pass.verify_pass)
            .collect();
        summary.push(TypeSummary {
            xfer_type: xfer.number(),
            xfer_name: xfer.name(),
            rounds: of.len(),
            medians: Medians::of(&of),
            ratio: None,
        });
    }
    if let [rest @ .., last] = &mut summary[..] {
        let divide = |a: f64, b: f64| if b > 0.0 { a / b } else { 0.0 };
        for one in rest {
            let ratio = |figure: fn(&Medians) -> f64| divide(figure(&one.medians), figure(&last.medians));
            one.ratio = Some(Ratio {
                against: last.xfer_type,
                gb_per_s: ratio(|medians| medians.gb_per_s),
                mean_us: ratio(|medians| medians.mean_us),
                user_cpu: ratio(|medians| medians.user_s_per_gb),
                cpu: ratio(|medians| medians.user_s_per_gb + medians.system_s_per_gb),
                cache_beside_drive: cache::differs(&report.passes, one.xfer_type, last.xfer_type),
            });
        }
    }
    report.summary = summary;
}

impl BenchReport {
    /// The pass in the middle of a type's timed passes by throughput: the one to print where one line is wanted.
    pub fn middle(&self, xfer_type: usize) -> Option<&Pass> {
        let mut of: Vec<&Pass> =
            self.passes.iter().filter(|pass| pass.xfer_type == xfer_type && !pass.verify_pass).collect();
        of.sort_by(|a, b| a.gb_per_s.total_cmp(&b.gb_per_s));
        of.get(of.len() / 2).copied()
    }
}
