//! Latencies, throughput over time, CPU time.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use forebay_engine::{Election, EngineKind, Moved, Note, Receipt, Refusal};
use forebay_error::{Error, ErrorKind, Result};
use hdrhistogram::Histogram;

use super::live::{LiveMeter, LiveSum};

/// Buckets of a timeline at most. They are 100 ms wide at first; where more are needed they become twice as wide.
const BUCKETS: usize = 600;

/// One bucket of a [`LatencyTimeline`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct LatencyBucket {
    pub(crate) ops: u64,
    pub(crate) bytes: u64,
    pub(crate) nanos: u64,
    pub(crate) samples: u64,
    pub(crate) longest: u64,
}

impl LatencyBucket {
    fn add(&mut self, other: Self) {
        self.ops += other.ops;
        self.bytes += other.bytes;
        self.nanos += other.nanos;
        self.samples += other.samples;
        self.longest = self.longest.max(other.longest);
    }
}

/// Latency and bytes over time, in at most 600 buckets: their width doubles as the run goes on.
#[derive(Clone, Debug)]
pub(crate) struct LatencyTimeline {
    pub(crate) width_ms: u64,
    pub(crate) buckets: Vec<LatencyBucket>,
}

impl LatencyTimeline {
    fn new() -> Self {
        Self { width_ms: 100, buckets: Vec::new() }
    }

    fn add(&mut self, at: Duration, bucket: LatencyBucket) {
        let mut index = at.as_millis() as u64 / self.width_ms;
        while index as usize >= BUCKETS {
            self.coarsen();
            index = at.as_millis() as u64 / self.width_ms;
        }
        let index = index as usize;
        if self.buckets.len() <= index {
            self.buckets.resize(index + 1, LatencyBucket::default());
        }
        self.buckets[index].add(bucket);
    }

    fn coarsen(&mut self) {
        self.width_ms *= 2;
        self.buckets = self
            .buckets
            .chunks(2)
            .map(|pair| {
                let mut sum = pair[0];
                if let Some(second) = pair.get(1) {
                    sum.add(*second);
                }
                sum
            })
            .collect();
    }

    fn merge(&mut self, mut other: Self) {
        while self.width_ms < other.width_ms {
            self.coarsen();
        }
        while other.width_ms < self.width_ms {
            other.coarsen();
        }
        if self.buckets.len() < other.buckets.len() {
            self.buckets.resize(other.buckets.len(), LatencyBucket::default());
        }
        for (mine, theirs) in self.buckets.iter_mut().zip(other.buckets) {
            mine.add(theirs);
        }
    }
}

/// Shared between the workers and the thread that waits for them.
#[derive(Debug, Default)]
pub(crate) struct SharedMeter {
    /// The progress of each worker.
    live: Mutex<Vec<Arc<LiveMeter>>>,
    /// Set when the pass is to end: a worker failed, or the run is interrupted.
    pub(crate) stop: AtomicBool,
    /// Set when the pass ends before its time.
    is_cut: AtomicBool,
}

impl SharedMeter {
    /// Ends the pass before its time.
    pub(super) fn cut(&self) {
        self.is_cut.store(true, Ordering::Relaxed);
        self.stop.store(true, Ordering::Relaxed);
    }

    pub(super) fn is_cut(&self) -> bool {
        self.is_cut.load(Ordering::Relaxed)
    }

    pub(crate) fn is_stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    /// The progress of all workers.
    pub(super) fn sum(&self) -> LiveSum {
        LiveSum::of(self.live.lock().unwrap_or_else(PoisonError::into_inner).iter().map(|one| &**one))
    }

    fn meter(&self) -> Arc<LiveMeter> {
        let meter = Arc::new(LiveMeter::new());
        self.live.lock().unwrap_or_else(PoisonError::into_inner).push(meter.clone());
        meter
    }
}

/// The figures of one worker.
#[derive(Debug)]
pub(crate) struct WorkerMeter {
    histogram: Histogram<u64>,
    pub(crate) timeline: LatencyTimeline,
    pub(crate) ops: u64,
    pub(crate) bytes: u64,
    /// I/Os that its thread keeps in flight.
    pub(crate) depth: usize,
    nanos: u64,
    samples: u64,
    moved: Vec<(EngineKind, Moved)>,
    elections: Vec<Arc<Election>>,
    /// When counting begins.
    begin: Instant,
    /// When the last I/O ended, counted or not.
    pub(crate) end: Instant,
    live: Arc<LiveMeter>,
    pub(crate) shared: Arc<SharedMeter>,
}

impl WorkerMeter {
    pub(crate) fn new(shared: Arc<SharedMeter>) -> Result<Self> {
        let histogram = Histogram::new(3)
            .map_err(|error| Error::new(ErrorKind::Internal, format!("cannot make a histogram: {error}")))?;
        let now = Instant::now();
        Ok(Self {
            histogram,
            timeline: LatencyTimeline::new(),
            ops: 0,
            bytes: 0,
            depth: 1,
            nanos: 0,
            samples: 0,
            moved: Vec::new(),
            elections: Vec::new(),
            begin: now,
            end: now,
            live: shared.meter(),
            shared,
        })
    }

    /// The worker begins now. I/Os that end before `counted_from` do not count.
    pub(crate) fn start(&mut self, now: Instant, counted_from: Instant) {
        self.begin = counted_from;
        self.end = now;
    }

    /// Whether the pass is to end.
    pub(crate) fn stopped(&self) -> bool {
        self.shared.is_stopped()
    }

    /// `ops` I/Os that were begun together at `started` are done now.
    pub(crate) fn done(&mut self, started: Instant, ops: u64, bytes: u64) {
        self.done_at(Instant::now(), started, ops, bytes);
    }

    /// The same of I/Os that ended at `now`. For one by the engine that is when its bytes had arrived, before the engine counted them.
    pub(crate) fn done_at(&mut self, now: Instant, started: Instant, ops: u64, bytes: u64) {
        let nanos = (now - started).as_nanos() as u64;
        self.live.done(nanos, ops, bytes);
        self.end = now;
        if now < self.begin {
            return;
        }
        // The histogram grows by itself: recording cannot fail.
        let _ = self.histogram.record(nanos.max(1));
        self.timeline.add(
            now.saturating_duration_since(self.begin),
            LatencyBucket { ops, bytes, nanos, samples: 1, longest: nanos },
        );
        self.ops += ops;
        self.bytes += bytes;
        self.nanos += nanos;
        self.samples += 1;
    }

    /// Adds the receipt of the last counted operation.
    pub(crate) fn receipt(&mut self, receipt: &Receipt) {
        if self.end < self.begin {
            return;
        }
        // A transfer that several engines shared counts for each of them, whatever name its receipt has.
        for (engine, moved) in receipt.moved.by_engine(receipt.engine().for_the_rest()) {
            self.add(engine, moved);
        }
        if !self.elections.contains(&receipt.election) && self.elections.len() < 64 {
            self.elections.push(receipt.election.clone());
        }
    }

    fn add(&mut self, engine: EngineKind, moved: Moved) {
        match self.moved.iter_mut().find(|(known, _)| *known == engine) {
            Some((_, sum)) => *sum = sum.plus(moved),
            None => self.moved.push((engine, moved)),
        }
    }

    /// Adds the figures of another worker.
    pub(crate) fn merge(&mut self, other: Self) {
        // Every field is named, so that a new one is not left out.
        let Self {
            histogram,
            timeline,
            ops,
            bytes,
            depth,
            nanos,
            samples,
            moved,
            elections,
            begin: _,
            end,
            live: _,
            shared: _,
        } = other;
        // Both histograms resize by themselves: adding cannot fail.
        let _ = self.histogram.add(&histogram);
        self.timeline.merge(timeline);
        self.ops += ops;
        self.bytes += bytes;
        self.depth = self.depth.max(depth);
        self.nanos += nanos;
        self.samples += samples;
        self.end = self.end.max(end);
        for (engine, moved) in moved {
            self.add(engine, moved);
        }
        for election in elections {
            if !self.elections.contains(&election) {
                self.elections.push(election);
            }
        }
    }

    /// Mean latency in microseconds.
    pub(crate) fn mean_us(&self) -> f64 {
        if self.samples == 0 { 0.0 } else { self.nanos as f64 / self.samples as f64 / 1e3 }
    }

    /// A quantile of the latency in microseconds.
    pub(crate) fn quantile_us(&self, quantile: f64) -> f64 {
        if self.samples == 0 { 0.0 } else { self.histogram.value_at_quantile(quantile) as f64 / 1e3 }
    }

    /// The longest latency in microseconds.
    pub(crate) fn max_us(&self) -> f64 {
        self.timeline.buckets.iter().map(|bucket| bucket.longest).max().unwrap_or(0) as f64 / 1e3
    }

    /// Bytes per engine and way.
    pub(crate) fn moved(&self) -> &[(EngineKind, Moved)] {
        &self.moved
    }

    /// An engine's name, with the mode that it worked in.
    pub(crate) fn title(&self, engine: EngineKind) -> String {
        let election = self.elections.iter().find(|election| election.engine == engine);
        election.map_or_else(|| engine.to_string(), |election| election.title().into_owned())
    }

    /// Better engines that were refused, each once.
    pub(crate) fn refused(&self) -> Vec<Refusal> {
        distinct(self.elections.iter().flat_map(|election| election.refused.iter()))
    }

    /// Reasons why the engine was slower, each once.
    pub(crate) fn notes(&self) -> Vec<Note> {
        distinct(self.elections.iter().flat_map(|election| election.notes.iter()))
    }
}

fn distinct<'a, T: Clone + PartialEq + 'a>(items: impl Iterator<Item = &'a T>) -> Vec<T> {
    let mut kept: Vec<T> = Vec::new();
    for item in items {
        if !kept.contains(item) {
            kept.push(item.clone());
        }
    }
    kept
}

/// CPU time of this process.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Cpu {
    pub(crate) user: f64,
    pub(crate) system: f64,
    /// Everything on the one CPU that the process may use: user, then system with interrupts.
    pub(crate) one: Option<(f64, f64)>,
    /// Seconds of all CPUs of the machine: those of programs and other guests, then all that passed.
    machine: Option<(f64, f64)>,
}

/// Less than this of the machine's CPU time, in seconds, is too coarse in ticks of 10 ms.
const MIN_MACHINE_SECONDS: f64 = 0.2;

impl Cpu {
    /// So far.
    pub(crate) fn now() -> Self {
        // SAFETY: all-zero bytes are a valid rusage, and getrusage writes one.
        let usage = unsafe {
            let mut usage: libc::rusage = std::mem::zeroed();
            libc::getrusage(libc::RUSAGE_SELF, &mut usage);
            usage
        };
        let seconds = |time: libc::timeval| time.tv_sec as f64 + time.tv_usec as f64 / 1e6;
        let stat = std::fs::read_to_string("/proc/stat").unwrap_or_default();
        let one = only_cpu().and_then(|cpu| line_of(&stat, cpu));
        Self { user: seconds(usage.ru_utime), system: seconds(usage.ru_stime), one, machine: machine(&stat) }
    }

    /// Since an earlier reading.
    pub(crate) fn since(self, earlier: Self) -> Self {
        let less = |now: Option<(f64, f64)>, then: Option<(f64, f64)>| {
            now.zip(then).map(|(now, then)| (now.0 - then.0, now.1 - then.1))
        };
        Self {
            user: self.user - earlier.user,
            system: self.system - earlier.system,
            one: less(self.one, earlier.one),
            machine: less(self.machine, earlier.machine),
        }
    }

    /// CPU use of other programs and other guests of the host, in percent of all CPUs.
    pub(crate) fn others_percent(self) -> Option<f64> {
        let (busy, all) = self.machine.filter(|(_, all)| *all >= MIN_MACHINE_SECONDS)?;
        Some(((busy - self.user - self.system) * 100.0 / all).clamp(0.0, 100.0))
    }
}

/// The CPU that this thread is pinned to; `None` where it may use several.
fn only_cpu() -> Option<usize> {
    // SAFETY: all-zero bytes are an empty mask, and the size passed is its own.
    unsafe {
        let mut mask: libc::cpu_set_t = std::mem::zeroed();
        if libc::sched_getaffinity(0, size_of::<libc::cpu_set_t>(), &mut mask) != 0
            || libc::CPU_COUNT(&mask) != 1
        {
            return None;
        }
        (0..libc::CPU_SETSIZE as usize).find(|cpu| libc::CPU_ISSET(*cpu, &mask))
    }
}

/// Seconds of a line of /proc/stat: user nice system idle iowait irq softirq steal. Later fields are counted in these.
fn seconds_of(stat: &str, name: &str) -> Option<[f64; 8]> {
    let line = stat.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '))?;
    // SAFETY: the call takes a number.
    let per_second = unsafe { libc::sysconf(libc::_SC_CLK_TCK) } as f64;
    let mut words = line.split_whitespace().map_while(|word| word.parse::<f64>().ok());
    let mut seconds = [0.0; 8];
    for one in &mut seconds {
        *one = words.next()? / per_second;
    }
    Some(seconds)
}

/// Seconds in user mode and in the kernel of a CPU's line of /proc/stat.
fn line_of(stat: &str, cpu: usize) -> Option<(f64, f64)> {
    let [user, nice, system, _, _, irq, softirq, _] = seconds_of(stat, &format!("cpu{cpu}"))?;
    Some((user + nice, system + irq + softirq))
}

/// Seconds of all CPUs: those that programs and other guests of the host used, without interrupts, which a run causes, too;
/// then all.
fn machine(stat: &str) -> Option<(f64, f64)> {
    let all = seconds_of(stat, "cpu")?;
    let [user, nice, system, .., steal] = all;
    Some((user + nice + system + steal, all.iter().sum()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cpus_line() {
        let stat = "cpu  9 9 9 9 9 9 9 9\ncpu1 100 20 30 800 50 5 15 7 0 0\ncpu10 1 1 1 1 1 1 1 1\n";
        // SAFETY: the call takes a number.
        let per_second = unsafe { libc::sysconf(libc::_SC_CLK_TCK) } as f64;
        let (user, system) = line_of(stat, 1).unwrap();
        assert!((user * per_second - 120.0).abs() < 1e-6 && (system * per_second - 50.0).abs() < 1e-6);
        assert_eq!(line_of(stat, 2), None);
    }

    /// Of two CPUs a second passed; this process used 0.5 s of the 1.5 s that programs and other guests used.
    #[test]
    fn what_others_used() {
        // SAFETY: the call takes a number.
        let tick = unsafe { libc::sysconf(libc::_SC_CLK_TCK) } as u64;
        let stat = |second: u64| {
            let (used, idle) = (tick * second / 2, tick * second * 2 / 5);
            let irq = tick * second / 20;
            format!("cpu  {used} 0 {used} {idle} 0 {irq} {irq} {used} 0 0\ncpu0 1 1 1 1 1 1 1 1\n")
        };
        let cpu = Cpu { user: 0.25, system: 0.25, one: None, machine: machine(&stat(1)) };
        let percent = cpu.since(Cpu { machine: machine(&stat(0)), ..Cpu::default() }).others_percent();
        assert!((percent.unwrap() - 50.0).abs() < 1.0, "{percent:?}");
        let short = Cpu { machine: Some((0.0, 0.1)), ..cpu };
        assert_eq!(short.others_percent(), None);
    }

    #[test]
    fn timelines_keep_their_sums_when_they_coarsen() {
        let mut line = LatencyTimeline::new();
        let mut other = LatencyTimeline::new();
        for second in 0..200 {
            line.add(
                Duration::from_secs(second),
                LatencyBucket { ops: 1, bytes: 2, nanos: 3, samples: 1, longest: second },
            );
        }
        other.add(
            Duration::from_millis(10),
            LatencyBucket { ops: 1, bytes: 2, nanos: 3, samples: 1, longest: 500 },
        );
        line.merge(other);
        assert!(line.buckets.len() <= BUCKETS && line.width_ms == 400);
        assert_eq!(line.buckets.iter().map(|b| b.ops).sum::<u64>(), 201);
        assert_eq!(line.buckets[0].longest, 500);
    }

    #[test]
    fn meters_add_up() {
        let shared = Arc::new(SharedMeter::default());
        let mut a = WorkerMeter::new(shared.clone()).unwrap();
        let mut b = WorkerMeter::new(shared.clone()).unwrap();
        a.done(Instant::now(), 1, 10);
        b.done(Instant::now(), 2, 20);
        a.merge(b);
        assert_eq!((a.ops, a.bytes, a.samples), (3, 30, 2));
        assert_eq!(shared.sum().bytes, 30);
        a.done(Instant::now().checked_sub(Duration::from_millis(3)).unwrap(), 1, 1);
        assert!(a.quantile_us(1.0) >= 2990.0 && a.quantile_us(1.0) <= a.max_us() * 1.01);
    }
}
