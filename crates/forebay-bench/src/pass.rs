//! One pass: workers start together, are measured, and stop.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};

use forebay_engine::Session;
use forebay_error::{Error, ErrorKind, Result};

use crate::job::{Access, Workload};
use crate::measure::{Cpu, Meter, Shared};
use crate::movers::{self, Feed, OpenFile, Way};
use crate::plan::{Plan, PlanSpec, part};
use crate::report::{
    BucketReport, CpuReport, EngineReport, FileReport, JobReport, Latency, NoteReport, OverTime, Pass,
    RefusalReport, ResidencyReport,
};
use crate::run::{Observer, Progress};
use crate::target::{self, Ready};

/// How long a pass goes.
#[derive(Clone, Debug)]
pub(crate) enum Length {
    /// Once over the data.
    Once,
    /// This long.
    For(Duration),
    /// As many I/Os as another pass did, by job, worker and source.
    Counts(Vec<Vec<Vec<u64>>>),
}

/// What the workers report.
enum News {
    /// Ready to begin, or not.
    Ready(Result<()>),
    /// Done: what was measured and how many I/Os were taken from each source.
    Done(usize, usize, Box<Result<(Meter, Vec<u64>)>>),
}

/// Runs one pass. Gives what was measured, and how many I/Os each worker did.
pub(crate) fn run(
    work: &Workload,
    session: &Session,
    ready: &[Ready<'_>],
    way: Way,
    access: Access,
    length: &Length,
    observer: Option<&dyn Observer>,
) -> Result<(Pass, Vec<Vec<Vec<u64>>>)> {
    let before = residencies(ready);
    let state = state(&before);
    let mut raw = Vec::new();
    let mut direct = false;
    if way.raw() {
        for job in ready {
            direct = target::direct(work, job, way.xfer, state == "warm");
            raw.push(target::with_raw(work, job, direct)?);
        }
    }
    let ready = if way.raw() { &raw[..] } else { ready };

    let shared = Arc::new(Shared::default());
    let seats: Vec<(usize, usize)> = ready
        .iter()
        .enumerate()
        .flat_map(|(job, one)| (0..threads(way, one)).map(move |worker| (job, worker)))
        .collect();
    let begin = Barrier::new(seats.len() + 1);
    let end = Barrier::new(seats.len() + 1);
    let (send, receive) = channel();
    let total = match length {
        Length::Once => Some(ready.iter().map(Ready::data_set).sum()),
        _ => None,
    };
    let runtime = if let Length::For(time) = length { Some(*time) } else { None };

    let timed = std::thread::scope(|scope| {
        for (job, worker) in &seats {
            let seat =
                Seat { work, session, ready: &ready[*job], way, access, job: *job, worker: *worker, length };
            let (send, shared, begin, end) = (send.clone(), shared.clone(), &begin, &end);
            let name = format!("bench-{job}.{worker}");
            let spawned = std::thread::Builder::new().name(name).spawn_scoped(scope, move || {
                seat.sit(&send, &shared, begin, end);
            });
            // Barriers are waited on by all seats: without this thread nobody could go on.
            if let Err(error) = spawned {
                return Err(Error::from_io(&error, "cannot start a thread").hint("use fewer threads (-w)"));
            }
        }
        drop(send);
        let ready = wait_ready(&receive, seats.len());
        if ready.is_err() {
            shared.stop.store(true, Ordering::Relaxed);
        }
        let cpu = Cpu::now();
        let started = Instant::now();
        begin.wait();
        let watch = Watch { started, total, runtime, observer: observer.filter(|_| ready.is_ok()) };
        let done = watch.collect(&receive, seats.len(), &shared);
        let cpu = Cpu::now().since(cpu);
        end.wait();
        ready.and(done).map(|done| (done, cpu, started))
    });
    let (done, cpu, started) = timed?;

    let mut counts: Vec<Vec<Vec<u64>>> =
        ready.iter().map(|one| vec![Vec::new(); threads(way, one)]).collect();
    let mut jobs: Vec<Option<Meter>> = ready.iter().map(|_| None).collect();
    for (job, worker, meter, taken) in done {
        counts[job][worker] = taken;
        match &mut jobs[job] {
            Some(sum) => sum.merge(meter),
            none => *none = Some(meter),
        }
    }
    let mut all = Meter::new(shared)?;
    all.start(started);
    let mut job_reports = Vec::new();
    for (one, meter) in ready.iter().zip(jobs) {
        let Some(meter) = meter else { continue };
        job_reports.push(JobReport {
            name: one.job.name.clone(),
            device: one.job.device,
            threads: threads(way, one),
            data_set_bytes: one.data_set(),
            io_size: one.job.io.into(),
            ops: meter.ops,
            bytes: meter.bytes,
            seconds: (meter.end - started).as_secs_f64(),
            mean_us: meter.mean_us(),
        });
        all.merge(meter);
    }
    let seconds = (all.end - started).as_secs_f64().max(1e-9);
    let gigabytes = (all.bytes as f64 / 1e9).max(1e-12);
    let after = residencies(ready);
    let pass = Pass {
        xfer_type: way.xfer.number(),
        xfer_name: way.xfer.name(),
        io: access.name(),
        bare: way.bare,
        verify_pass: false,
        verified: way.verify,
        threads: seats.len(),
        io_depth: way.xfer.is_batch().then(|| ready.first().map_or(1, |one| work.depth(one.job))),
        io_size: ready.first().map_or(crate::IoSize::fixed(1), |one| one.job.io).into(),
        data_set_bytes: ready.iter().map(Ready::data_set).sum(),
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
        },
        latency_us: Latency {
            mean: all.mean_us(),
            p50: all.quantile_us(0.5),
            p90: all.quantile_us(0.9),
            p99: all.quantile_us(0.99),
            p99_9: all.quantile_us(0.999),
            max: all.max_us(),
        },
        over_time: over_time(&all),
        engines: engines(&all, way, direct, state),
        refused: all
            .refused()
            .into_iter()
            .map(|one| RefusalReport {
                engine: one.engine.name().to_owned(),
                reason: one.reason,
                hint: one.hint,
            })
            .collect(),
        notes: all.notes().into_iter().map(|one| NoteReport { text: one.text, hint: one.hint }).collect(),
        files: files(ready, before, after),
        state,
        ceiling: None,
        jobs: job_reports,
    };
    Ok((pass, counts))
}

fn threads(way: Way, ready: &Ready<'_>) -> usize {
    if way.xfer.is_batch() { 1 } else { ready.job.workers }
}

/// One worker's place.
struct Seat<'a> {
    work: &'a Workload,
    session: &'a Session,
    ready: &'a Ready<'a>,
    way: Way,
    access: Access,
    job: usize,
    worker: usize,
    length: &'a Length,
}

impl Seat<'_> {
    fn sit(&self, send: &Sender<News>, shared: &Arc<Shared>, begin: &Barrier, end: &Barrier) {
        let setup = guarded(|| {
            if let Some(node) = self.ready.job.numa {
                crate::numa::pin_thread(node)?;
            }
            let mover = movers::build(self.work, self.ready.job, self.session, &self.ready.device, self.way)?;
            Ok((mover, Meter::new(shared.clone())?))
        });
        let _ = send.send(News::Ready(setup.as_ref().map(|_| ()).map_err(Clone::clone)));
        begin.wait();
        // The mover lives until all are measured: freeing its memory takes time.
        let mut kept = None;
        let result = setup.and_then(|(mover, mut meter)| {
            let mover = kept.insert(mover);
            guarded(|| {
                let now = Instant::now();
                let mut feed = Feed::new(self.sources(now));
                meter.start(now);
                mover.run(&mut feed, &mut meter)?;
                Ok((meter, feed.taken()))
            })
        });
        if result.is_err() {
            shared.stop.store(true, Ordering::Relaxed);
        }
        let _ = send.send(News::Done(self.job, self.worker, Box::new(result)));
        end.wait();
        drop(kept);
    }

    /// The I/Os of this worker: of one part of the data, or of all parts where one thread submits batches.
    fn sources(&self, now: Instant) -> Vec<(Arc<OpenFile>, Plan)> {
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
                    Length::Once => self.once(spec, own),
                    Length::For(time) => Plan::until(spec, now + *time),
                    Length::Counts(counts) => {
                        let known = counts.get(self.job).and_then(|job| job.get(self.worker));
                        Plan::count(spec, known.and_then(|counts| counts.get(source)).copied().unwrap_or(0))
                    }
                };
                (file, plan)
            })
            .collect()
    }

    /// Once over: random I/O of several workers on one file shares its number of I/Os.
    fn once(&self, spec: PlanSpec, own: bool) -> Plan {
        if !spec.random || own {
            return Plan::once(spec);
        }
        let all = (spec.part.end - spec.part.start) / spec.io.max;
        let count = self.ready.job.workers as u64;
        Plan::count(spec, all.div_ceil(count).max(1))
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

/// Turns a panic into an error: the others wait at barriers.
fn guarded<T>(work: impl FnOnce() -> Result<T>) -> Result<T> {
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|_| {
        Err(Error::new(ErrorKind::Internal, "a worker panicked")
            .hint("please report it with the message above"))
    })
}

fn wait_ready(receive: &Receiver<News>, seats: usize) -> Result<()> {
    let mut result = Ok(());
    for _ in 0..seats {
        if let Ok(News::Ready(Err(error))) = receive.recv() {
            result = result.and(Err(error));
        }
    }
    result
}

/// Job, worker, what was measured, and the I/Os taken from each source.
type Finished = (usize, usize, Meter, Vec<u64>);

struct Watch<'a> {
    started: Instant,
    total: Option<u64>,
    runtime: Option<Duration>,
    observer: Option<&'a dyn Observer>,
}

impl Watch<'_> {
    fn collect(&self, receive: &Receiver<News>, seats: usize, shared: &Shared) -> Result<Vec<Finished>> {
        let mut done = Vec::new();
        let mut failed = None;
        let mut left = seats;
        while left > 0 {
            match receive.recv_timeout(Duration::from_millis(200)) {
                Ok(News::Done(job, worker, result)) => {
                    left -= 1;
                    match *result {
                        Ok((meter, taken)) => done.push((job, worker, meter, taken)),
                        Err(error) => {
                            failed.get_or_insert(error);
                        }
                    }
                }
                Ok(News::Ready(_)) => {}
                Err(RecvTimeoutError::Timeout) => {
                    if let Some(observer) = self.observer {
                        observer.progress(Progress {
                            bytes: shared.bytes.load(Ordering::Relaxed),
                            total: self.total,
                            elapsed: self.started.elapsed(),
                            runtime: self.runtime,
                        });
                    }
                }
                Err(RecvTimeoutError::Disconnected) => break,
            }
        }
        failed.map_or(Ok(done), Err)
    }
}

fn residencies(ready: &[Ready<'_>]) -> Vec<Option<ResidencyReport>> {
    let of = |job: &Ready<'_>| -> Vec<Option<ResidencyReport>> {
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

fn state(before: &[Option<ResidencyReport>]) -> &'static str {
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

fn over_time(meter: &Meter) -> OverTime {
    let buckets = meter.timeline.buckets.iter().map(|bucket| BucketReport {
        ops: bucket.ops,
        bytes: bucket.bytes,
        // The mean over I/Os; of a batch all entries end together.
        mean_us: if bucket.ops == 0 { 0.0 } else { bucket.nanos as f64 / bucket.samples.max(1) as f64 / 1e3 },
        max_us: bucket.longest as f64 / 1e3,
    });
    OverTime { bucket_ms: meter.timeline.width_ms, buckets: buckets.collect() }
}

fn engines(meter: &Meter, way: Way, direct: bool, state: &str) -> Vec<EngineReport> {
    if way.raw() {
        let bytes = meter.bytes;
        let cached = !direct && (state == "warm" || way.write);
        return vec![EngineReport {
            engine: "raw".to_owned(),
            bytes,
            cached: if cached { bytes } else { 0 },
            direct: if direct { bytes } else { 0 },
            buffered: if direct || cached { 0 } else { bytes },
            requested: 0,
        }];
    }
    meter
        .moved()
        .iter()
        .map(|(engine, moved)| EngineReport {
            engine: engine.name().to_owned(),
            bytes: moved.total(),
            cached: moved.cached,
            direct: moved.direct,
            buffered: moved.buffered,
            requested: moved.requested,
        })
        .collect()
}

fn files(
    ready: &[Ready<'_>],
    before: Vec<Option<ResidencyReport>>,
    after: Vec<Option<ResidencyReport>>,
) -> Vec<FileReport> {
    ready
        .iter()
        .flat_map(|job| &job.files)
        .zip(before.into_iter().zip(after))
        .map(|(open, (before, after))| FileReport {
            path: open.file.path().map_or_else(String::new, |path| path.display().to_string()),
            file_system: open.file.file_system().to_owned(),
            before,
            after,
        })
        .collect()
}
