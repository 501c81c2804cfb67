//! One pass: its workers and its figures.

use std::sync::Arc;
use std::time::Instant;

use forebay_engine::{EngineKind, Moved, Session, Way};
use forebay_error::Result;

use super::gather::{self, GatherSource};
use crate::files::empty::empty_bytes;
use crate::files::open::{self, OpenFile, ReadyJob};
use crate::movers::{self, IoFeed, Mover, TransferWay};
use crate::observer::Observer;
use crate::plan::{IoPlan, PassLength, PlanSpec, part};
use crate::report::{
    BucketReport, CpuReport, EngineReport, FileReport, JobReport, Latency, NoteReport, OverTime, Pass,
    RateLimitReport, RefusalReport, ResidencyReport, SteadyReport,
};
use crate::workers::measure::WorkerMeter;
use crate::workers::rate::{RateGate, RateTurn};
use crate::workers::steady::SteadyRate;
use crate::workers::{self, PassObserver, Watched, WorkersDone};
use crate::workload::job::{IoAccess, IoSize};
use crate::workload::{BenchTask, OffsetsIn, Workload};

/// Runs one pass. Returns its figures, and the number of I/Os of each worker.
pub(crate) fn run(
    work: &Workload,
    session: &Session,
    ready: &[ReadyJob<'_>],
    way: TransferWay,
    access: IoAccess,
    length: &PassLength,
    observer: Option<&dyn Observer>,
) -> Result<(Pass, Vec<Vec<Vec<u64>>>)> {
    let before = residencies(ready);
    let state = state(&before);
    let (raw, direct) = if way.raw() { with_raw(work, ready, way, state)? } else { (Vec::new(), false) };
    let ready = if way.raw() { &raw[..] } else { ready };
    let watch = PassObserver {
        total: matches!(length, PassLength::Once).then(|| ready.iter().map(ReadyJob::data_set).sum()),
        time: if let PassLength::For(time) = length { Some(*time) } else { None },
        observer,
    };
    let mapped = Instant::now();
    let maps = match work.task {
        BenchTask::Gather(_) => {
            ready.iter().map(|one| GatherSource::of(session, one)).collect::<Result<Vec<_>>>()?
        }
        _ => Vec::new(),
    };
    let map_ms = (!maps.is_empty()).then(|| mapped.elapsed().as_secs_f64() * 1e3);
    let pinned_before = pinned(session, ready);
    let worked = work_all(&PassOrder { work, session, ready, way, access, length }, &maps, watch)?;
    let pinned_after = pinned(session, ready);
    let mut counts: Vec<Vec<Vec<u64>>> =
        ready.iter().map(|one| vec![Vec::new(); threads(way, one)]).collect();
    for done in &worked.done {
        counts[done.job][done.worker].clone_from(&done.taken);
    }
    let jobs: Vec<_> = ready.iter().map(|one| (one.data_set(), threads(way, one), one.job)).collect();
    let facts = PassFacts { way, access, jobs, depth: pieces(work, ready), state };
    let (mut pass, all) = measured(&facts, worked)?;
    pass.pinned_before = pinned_before;
    pass.pinned_after = pinned_after;
    pass.map_ms = map_ms;
    note_order(&mut pass, work, length);
    if way.raw() {
        pass.engines = vec![raw_engine(work, &all, way, direct, state)];
    }
    pass.files = files(ready, before, residencies(ready), !work.writes());
    Ok((pass, counts))
}

/// What all workers of a pass do.
struct PassOrder<'a> {
    work: &'a Workload,
    session: &'a Session,
    ready: &'a [ReadyJob<'a>],
    way: TransferWay,
    access: IoAccess,
    length: &'a PassLength,
}

/// Has the workers of all jobs do it.
fn work_all(order: &PassOrder<'_>, maps: &[GatherSource], watch: PassObserver<'_>) -> Result<WorkersDone> {
    let PassOrder { work, session, ready, way, access, length } = *order;
    let places = ready
        .iter()
        .enumerate()
        .flat_map(|(job, one)| (0..threads(way, one)).map(move |worker| (job, worker)));
    if let BenchTask::Gather(offsets) = work.task {
        let worker = |place: (usize, usize)| gather::GatherWorker {
            work,
            ready: &ready[place.0],
            pieces: &maps[place.0],
            offsets,
            length,
            place,
        };
        return workers::run(&places.map(worker).collect::<Vec<_>>(), watch);
    }
    let gate = work.rate.map(|rate| Arc::new(RateGate::new(rate)));
    let gate = gate.as_ref();
    let worker = |(job, worker)| TransferWorker {
        gate,
        work,
        session,
        ready: &ready[job],
        way,
        access,
        job,
        worker,
        length,
    };
    workers::run(&places.map(worker).collect::<Vec<_>>(), watch)
}

/// Limits and task of a pass, as its workload has them.
fn note_order(pass: &mut Pass, work: &Workload, length: &PassLength) {
    pass.rate_limit = work.rate.map(RateLimitReport::from);
    if let PassLength::For(time) = length {
        pass.ramp_s = Some(time.ramp.as_secs_f64()).filter(|ramp| *ramp > 0.0);
    }
    if let BenchTask::Gather(offsets) = work.task {
        pass.task = "gather";
        pass.offsets_in = Some(if offsets == OffsetsIn::Gpu { "gpu" } else { "host" });
    }
}

/// The jobs with what raw calls need, and whether those go by O_DIRECT.
fn with_raw<'a>(
    work: &Workload,
    ready: &[ReadyJob<'a>],
    way: TransferWay,
    state: &str,
) -> Result<(Vec<ReadyJob<'a>>, bool)> {
    let mut raw = Vec::new();
    let mut direct = false;
    for job in ready {
        direct = open::direct(work, job, way.xfer, state == "warm");
        raw.push(open::with_raw(work, job, way.xfer, direct)?);
    }
    Ok((raw, direct))
}

/// The description of a pass, without its figures.
pub(crate) struct PassFacts<'a> {
    pub(crate) way: TransferWay,
    pub(crate) access: IoAccess,
    /// Bytes of the data set and threads of each job.
    pub(crate) jobs: Vec<(u64, usize, &'a crate::workload::job::Job)>,
    /// Pieces of a gather.
    pub(crate) depth: Option<usize>,
    pub(crate) state: &'static str,
}

/// The figures of a pass, and the sum of all meters.
pub(crate) fn measured(facts: &PassFacts<'_>, worked: WorkersDone) -> Result<(Pass, WorkerMeter)> {
    let WorkersDone { done, watched, shared } = worked;
    let Watched {
        cpu,
        resident_bytes,
        counters: [before, after],
        counted_from: started,
        steady,
        interrupted,
    } = watched;
    let mut jobs: Vec<Option<WorkerMeter>> = facts.jobs.iter().map(|_| None).collect();
    for one in done {
        match &mut jobs[one.job] {
            Some(sum) => sum.merge(one.meter),
            none => *none = Some(one.meter),
        }
    }
    let mut all = WorkerMeter::new(shared)?;
    all.start(started, started);
    let mut job_reports = Vec::new();
    for ((data_set_bytes, threads, job), meter) in facts.jobs.iter().zip(jobs) {
        let Some(meter) = meter else { continue };
        job_reports.push(JobReport {
            name: job.name.clone(),
            device: job.device.clone(),
            threads: *threads,
            data_set_bytes: *data_set_bytes,
            io_size: job.io.into(),
            ops: meter.ops,
            bytes: meter.bytes,
            seconds: (meter.end - started).as_secs_f64(),
            mean_us: meter.mean_us(),
        });
        all.merge(meter);
    }
    let seconds = (all.end - started).as_secs_f64().max(1e-9);
    let gigabytes = (all.bytes as f64 / 1e9).max(1e-12);
    let PassFacts { way, access, depth, state, .. } = *facts;
    let pass = Pass {
        task: "transfers",
        xfer_type: way.xfer.number(),
        xfer_name: way.xfer.name(),
        io: access.name(),
        bare: way.bare,
        verify_pass: false,
        verified: way.verify,
        interrupted,
        ramp_s: None,
        rate_limit: None,
        steady: steady.map(steady_report),
        threads: facts.jobs.iter().map(|(_, threads, _)| threads).sum(),
        io_depth: depth.or_else(|| (way.xfer.is_batch() || all.depth > 1).then_some(all.depth)),
        io_size: facts.jobs.first().map_or(IoSize::fixed(1), |(.., job)| job.io).into(),
        data_set_bytes: facts.jobs.iter().map(|(bytes, ..)| bytes).sum(),
        bytes: all.bytes,
        ops: all.ops,
        seconds,
        gb_per_s: all.bytes as f64 / 1e9 / seconds,
        gib_per_s: all.bytes as f64 / f64::from(1 << 30) / seconds,
        iops: all.ops as f64 / seconds,
        cpu: CpuReport {
            user_s: cpu.user,
            system_s: cpu.system,
            user_s_per_gb: cpu.user / gigabytes,
            system_s_per_gb: cpu.system / gigabytes,
            one_cpu_user_s: cpu.one.map(|one| one.0),
            one_cpu_system_s: cpu.one.map(|one| one.1),
            others_percent: cpu.others_percent(),
        },
        resident_bytes,
        latency_us: latency(&all),
        over_time: over_time(&all),
        pinned_before: None,
        pinned_after: None,
        map_ms: None,
        offsets_in: None,
        engines: engines(&all),
        refused: refused(&all),
        notes: all.notes().into_iter().map(|one| NoteReport { text: one.text, hint: one.hint }).collect(),
        files: Vec::new(),
        state,
        ceiling: None,
        storage: after.since(&before, facts.jobs.iter().map(|(.., job)| job.target.path()), seconds),
        jobs: job_reports,
    };
    Ok((pass, all))
}

fn steady_report(rate: SteadyRate) -> SteadyReport {
    let SteadyRate { is_steady, spread_percent, bytes_per_s, iops } = rate;
    SteadyReport { is_steady, spread_percent, gb_per_s: bytes_per_s / 1e9, iops }
}

fn latency(meter: &WorkerMeter) -> Latency {
    Latency {
        mean: meter.mean_us(),
        p50: meter.quantile_us(0.5),
        p90: meter.quantile_us(0.9),
        p99: meter.quantile_us(0.99),
        p99_9: meter.quantile_us(0.999),
        max: meter.max_us(),
    }
}

fn refused(meter: &WorkerMeter) -> Vec<RefusalReport> {
    let report = |one: forebay_engine::Refusal| RefusalReport {
        engine: one.engine.name().to_owned(),
        reason: one.reason,
        hint: one.hint,
    };
    meter.refused().into_iter().map(report).collect()
}

/// Pieces of a call, for gathers.
fn pieces(work: &Workload, ready: &[ReadyJob<'_>]) -> Option<usize> {
    let is_gather = matches!(work.task, BenchTask::Gather(_));
    ready.first().filter(|_| is_gather).map(|first| gather::pieces_per_call(work, first))
}

/// Bytes of page cache that this process has pinned: by its sessions, and by raw calls. `None` without a GPU.
pub(crate) fn pinned(session: &Session, ready: &[ReadyJob<'_>]) -> Option<u64> {
    let gpu = ready.iter().find(|one| !one.device.info().is_host)?;
    let raw: u64 = ready
        .iter()
        .flat_map(|one| &one.files)
        .filter_map(|open| Some(open.map.as_ref()?.registered()))
        .sum();
    Some(session.pins(&gpu.device).ok()?.process_bytes + raw)
}

fn threads(way: TransferWay, ready: &ReadyJob<'_>) -> usize {
    if way.xfer.is_batch() { 1 } else { ready.job.workers }
}

/// A worker that moves bytes.
struct TransferWorker<'a> {
    gate: Option<&'a Arc<RateGate>>,
    work: &'a Workload,
    session: &'a Session,
    ready: &'a ReadyJob<'a>,
    way: TransferWay,
    access: IoAccess,
    job: usize,
    worker: usize,
    length: &'a PassLength,
}

impl workers::PassWorker for TransferWorker<'_> {
    type Kept = Box<dyn Mover>;

    fn place(&self) -> (usize, usize) {
        (self.job, self.worker)
    }

    fn set_up(&self) -> Result<Self::Kept> {
        if let Some(node) = self.ready.job.numa {
            crate::workers::numa::pin_thread(node)?;
        }
        movers::build(self.work, self.ready.job, self.session, &self.ready.device, self.way)
    }

    fn work(&self, mover: &mut Self::Kept, meter: &mut WorkerMeter) -> Result<Vec<u64>> {
        let now = Instant::now();
        let turn = |gate: &Arc<RateGate>| RateTurn {
            gate: gate.clone(),
            shared: meter.shared.clone(),
            end: if let PassLength::For(time) = self.length { Some(time.end(now)) } else { None },
        };
        let mut feed = IoFeed::new(self.sources(now), self.gate.map(turn));
        meter.depth = mover.depth();
        mover.run(&mut feed, meter)?;
        meter.end = feed.ended().map_or(meter.end, |ended| meter.end.max(ended));
        Ok(feed.taken())
    }
}

impl TransferWorker<'_> {
    /// The I/Os of this worker: of one part of the data, or of all parts where one thread submits batches.
    fn sources(&self, now: Instant) -> Vec<(Arc<OpenFile>, IoPlan)> {
        let count = self.ready.job.workers;
        let parts = if self.way.xfer.is_batch() { 0..count } else { self.worker..self.worker + 1 };
        parts
            .enumerate()
            .map(|(source, index)| {
                let job = self.ready.job;
                let own = self.ready.files.len() > 1 || count == 1;
                let file = self.ready.files[if self.ready.files.len() > 1 { index } else { 0 }].clone();
                let range = self.ready.range.clone();
                let random = self.access.random();
                let spec = PlanSpec {
                    part: if own || random { range } else { part(&range, job.io.min, index, count) },
                    io: job.io,
                    random,
                    align: self.alignment(),
                    write: self.access.writes(),
                    mix: self.work.mix,
                    seed: self
                        .work
                        .seed
                        .wrapping_mul(0x0100_0193)
                        .wrapping_add((self.job << 16 | index) as u64),
                };
                let plan = match self.length {
                    PassLength::Once => self.once(spec, own),
                    PassLength::For(time) => IoPlan::until(spec, time.end(now)),
                    PassLength::Counts(counts) => {
                        let known = counts.get(self.job).and_then(|job| job.get(self.worker));
                        IoPlan::count(spec, known.and_then(|counts| counts.get(source)).copied().unwrap_or(0))
                    }
                };
                (file, plan)
            })
            .collect()
    }

    /// Once over: random I/O of several workers on one file shares its number of I/Os.
    fn once(&self, spec: PlanSpec, own: bool) -> IoPlan {
        if !spec.random || own {
            return IoPlan::once(spec);
        }
        let all = (spec.part.end - spec.part.start) / spec.io.max;
        let count = self.ready.job.workers as u64;
        IoPlan::count(spec, all.div_ceil(count).max(1))
    }

    fn alignment(&self) -> u64 {
        let io = self.ready.job.io;
        match self.work.align {
            Some(align) => align,
            None if self.work.unaligned => 1,
            None if io.is_fixed() => io.min,
            None => io.min.min(io.step),
        }
    }
}

fn residencies(ready: &[ReadyJob<'_>]) -> Vec<Option<ResidencyReport>> {
    let of = |job: &ReadyJob<'_>| -> Vec<Option<ResidencyReport>> {
        let len = job.range.end - job.range.start;
        job.files
            .iter()
            .map(|open| {
                let found = open.file.residency(job.range.start, len).ok()?;
                Some(ResidencyReport { cached: found.cached, total: found.total, method: found.method })
            })
            .collect()
    };
    ready.iter().flat_map(of).collect()
}

pub(crate) fn state(before: &[Option<ResidencyReport>]) -> &'static str {
    let known: Vec<_> = before.iter().flatten().collect();
    if known.is_empty() {
        return "unknown";
    }
    let cached: u64 = known.iter().map(|one| one.cached).sum();
    let total: u64 = known.iter().map(|one| one.total).sum();
    match cached as f64 / total.max(1) as f64 {
        part if part >= 0.99 => "warm",
        part if part <= 0.01 => "cold",
        _ => "mixed",
    }
}

fn over_time(meter: &WorkerMeter) -> OverTime {
    let buckets = meter.timeline.buckets.iter().map(|bucket| BucketReport {
        ops: bucket.ops,
        bytes: bucket.bytes,
        // The mean over I/Os; of a batch all entries end together.
        mean_us: if bucket.ops == 0 { 0.0 } else { bucket.nanos as f64 / bucket.samples.max(1) as f64 / 1e3 },
        max_us: bucket.longest as f64 / 1e3,
    });
    OverTime { bucket_ms: meter.timeline.width_ms, buckets: buckets.collect() }
}

fn engines(meter: &WorkerMeter) -> Vec<EngineReport> {
    let report = |(engine, moved): &(EngineKind, Moved)| EngineReport {
        engine: meter.title(*engine),
        bytes: moved.total(),
        moved: *moved,
        resident: moved.resident,
    };
    let mut all: Vec<_> = meter.moved().iter().map(report).collect();
    all.sort_by_key(|one| std::cmp::Reverse(one.bytes));
    all
}

/// Bytes moved by raw calls.
fn raw_engine(
    work: &Workload,
    meter: &WorkerMeter,
    way: TransferWay,
    direct: bool,
    state: &str,
) -> EngineReport {
    let bytes = meter.bytes;
    let way = match state {
        _ if work.reads_raw_maps(way.xfer) => Way::Mapped,
        _ if direct => Way::Direct,
        "warm" => Way::Cached,
        _ if way.write => Way::Cached,
        _ => Way::Buffered,
    };
    EngineReport { engine: "raw".to_owned(), bytes, moved: Moved::of(way, bytes), resident: 0 }
}

fn files(
    ready: &[ReadyJob<'_>],
    before: Vec<Option<ResidencyReport>>,
    after: Vec<Option<ResidencyReport>>,
    reads: bool,
) -> Vec<FileReport> {
    ready
        .iter()
        .flat_map(|job| job.files.iter().map(|open| (open, job.range.clone())))
        .zip(before.into_iter().zip(after))
        .map(|((open, range), (before, after))| FileReport {
            path: open.file.name(),
            file_system: open.file.file_system().to_owned(),
            before,
            after,
            empty: open.file.path().filter(|_| reads).and_then(|path| empty_bytes(path, range)),
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::time::Duration;

    use super::*;
    use crate::files::made::MadeFiles;
    use crate::plan::PassTime;
    use crate::workload::job::{Job, JobTarget, Xfer};

    /// Ends the pass at its second look.
    #[derive(Default)]
    struct Impatient(AtomicBool);

    impl Observer for Impatient {
        fn is_stopped(&self) -> bool {
            self.0.swap(true, Ordering::Relaxed)
        }
    }

    /// `-V` reads as many I/Os as were written, also where `--until-steady` has ended the pass.
    #[test]
    fn a_pass_that_ends_early_counts_no_io_that_was_not_done() {
        let directory = tempfile::tempdir().unwrap();
        for xfer in Xfer::ALL {
            let mut job = Job::new(JobTarget::File(directory.path().join("x")));
            (job.io, job.size, job.workers) = ("4K".parse().unwrap(), Some(1 << 20), 3);
            let mut work = Workload::new(vec![job]);
            (work.xfer, work.access) = (xfer, IoAccess::RandWrite);
            let session = Session::with_counters(work.config.clone()).unwrap();
            let device = session.device_named(&work.jobs[0].device).unwrap();
            let ready = open::prepare(&work, &work.jobs[0], device, &mut MadeFiles::new(false)).unwrap();
            let way = TransferWay { xfer, bare: false, write: true, verify: false };
            let length = PassLength::For(PassTime::plain(Duration::from_mins(1)));
            let observer = Impatient::default();
            let (pass, counts) =
                run(&work, &session, &[ready], way, work.access, &length, Some(&observer)).unwrap();
            let counted: u64 = counts.iter().flatten().flatten().sum();
            assert!(pass.ops > 0 && pass.seconds < 30.0, "{xfer:?}: {} in {} s", pass.ops, pass.seconds);
            assert_eq!(counted, pass.ops, "{xfer:?}");
        }
    }
}
