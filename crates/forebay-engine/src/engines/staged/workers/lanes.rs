//! The lanes of one device: how many there are, and how they take jobs.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, TryLockError};
use std::time::{Duration, Instant};

use forebay_config::{Config, IoBackend};
use forebay_error::{Error, Result};
use forebay_gpu::Device;
use forebay_sys::threads;

use super::slots::LanePart;
use super::threads::LaneThreads;
use super::worker::Lane;
use super::{LaneShared, StartReport};
use crate::engines::staged::job::{Job, WorkQueue};
use crate::engines::staged::width::{Meter, SourceKind};
use crate::request::receipt::Note;
use crate::runtime::lock;
use crate::tuning::lanes::COLD_LANES;

/// A lane's turn to pin memory. However it ends, also by a panic, the lanes that wait for it are woken.
pub(super) struct PinTurn<'a> {
    shared: &'a LaneShared,
    held: Option<MutexGuard<'a, ()>>,
}

impl Drop for PinTurn<'_> {
    fn drop(&mut self) {
        // First: who wakes up finds it free.
        self.held = None;
        self.shared.wake_waiting();
    }
}

/// How lanes of a device work, for reports.
#[derive(Clone, Debug)]
pub struct LaneReport {
    /// Worker threads that reads of the page cache use now.
    pub lanes: usize,
    /// The most that there may be.
    pub most: usize,
    /// Slots per lane.
    pub slots: usize,
    /// Bytes per slot.
    pub slot_size: usize,
    /// `io_uring` or `threads`.
    pub backend: &'static str,
    /// The measurements, by kind of source.
    pub measured: Vec<LaneWidth>,
    /// What held the lanes back, with hints.
    pub notes: Vec<Note>,
}

/// The number of lanes that turned out to be best.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LaneWidth {
    /// For what.
    pub source: &'static str,
    /// How many.
    pub lanes: usize,
    /// The most that there may be.
    pub most: usize,
    /// Bytes per second with them.
    pub rate: f64,
}

impl LaneWidth {
    pub(crate) fn of(meter: &Meter, kind: SourceKind) -> Option<Self> {
        let (lanes, rate) = meter.found()?;
        Some(Self { source: kind.name(), lanes, most: meter.most(), rate })
    }

    pub(crate) fn note(&self) -> Note {
        Note { text: self.to_string(), hint: None }
    }
}

impl std::fmt::Display for LaneWidth {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { source, lanes, most, rate } = self;
        let why = if lanes < most { "more give nothing" } else { "all that may be" };
        write!(f, "{source}: {lanes} of {most} lanes ({:.1} GB/s; {why})", rate / 1e9)
    }
}

/// The lanes of one device; threads start with the first jobs.
pub(crate) struct Lanes {
    shared: Arc<LaneShared>,
    /// Whether the first lane has a ring, or each where each must have one.
    ring: OnceLock<Result<bool>>,
}

impl Lanes {
    pub(crate) fn new(device: Arc<dyn Device>, config: Config) -> Self {
        Self { shared: Arc::new(LaneShared::new(device, config)), ring: OnceLock::new() }
    }

    /// Lanes that warm reads use, as far as is known now.
    pub(crate) fn count(&self) -> usize {
        self.meter(SourceKind::Cache).width()
    }

    pub(crate) fn meter(&self, kind: SourceKind) -> &Arc<Meter> {
        &self.shared.meters[kind as usize]
    }

    /// Whether they move bytes of the host's memory.
    pub(crate) fn are_of_host(&self) -> bool {
        self.shared.device.info().is_host
    }

    /// Whether any lane works.
    pub(crate) fn are_busy(&self) -> bool {
        self.shared.works.load(Ordering::Relaxed) > 0
    }

    /// How many of `width` lanes have no work, at least one: a new transfer is spread over that many.
    pub(crate) fn spare(&self, width: usize) -> usize {
        width.saturating_sub(self.shared.works.load(Ordering::Relaxed)).max(1)
    }

    /// Starts `count` lanes, if that many do not work yet. Does not wait for them.
    pub(crate) fn begin(&self, count: usize) {
        // The first job meets the error.
        let _ = self.shared.begin(count);
    }

    /// As [`Lanes::begin`], for reads that are to come: lanes get what those need while they have nothing to do.
    pub(crate) fn expect(&self, count: usize) {
        self.shared.expects.store(true, Ordering::Relaxed);
        self.begin(count);
    }

    /// Whether there is a ring: with it one lane keeps many cold reads in flight. Starts the first lane.
    pub(crate) fn has_ring(&self) -> Result<bool> {
        self.ring.get_or_init(|| self.start()).clone()
    }

    fn start(&self) -> Result<bool> {
        let shared = &self.shared;
        let must_all = shared.config.io == IoBackend::Ring;
        let started = shared.begin(if must_all { self.count() } else { 1 });
        let ring =
            started.and_then(|()| if must_all { shared.threads.all() } else { shared.threads.first() });
        if ring.is_err() {
            shared.stop.store(true, Ordering::SeqCst);
            shared.threads.end(false);
        }
        ring
    }

    /// Starts the lanes that are usual and tells how they work.
    pub(crate) fn report(&self) -> Result<LaneReport> {
        self.has_ring()?;
        self.shared.begin(self.count())?;
        // Notes tell which did not start.
        let has_rings = self.shared.threads.all().unwrap_or(true) && self.has_ring()?;
        let config = &self.shared.config;
        Ok(LaneReport {
            lanes: self.count(),
            most: self.meter(SourceKind::Cache).most(),
            slots: config.slots,
            slot_size: config.slot_size,
            backend: if has_rings { "io_uring" } else { "threads" },
            measured: SourceKind::ALL.into_iter().filter_map(|kind| self.measured(kind)).collect(),
            notes: self.shared.threads.notes().0,
        })
    }

    /// The result for a kind of source.
    pub(crate) fn measured(&self, kind: SourceKind) -> Option<LaneWidth> {
        LaneWidth::of(self.meter(kind), kind)
    }

    /// What held the lanes back that have started, and the number of those.
    pub(crate) fn notes(&self) -> Result<(Vec<Note>, usize)> {
        self.has_ring()?;
        Ok(self.shared.threads.notes())
    }

    pub(crate) fn submit(&self, job: Arc<Job>) -> Result<()> {
        let width = job.width.lanes();
        let mut wanted = job.plan.len().min(width);
        // Those that the job needs start together. Fewer lanes are enough, too.
        let _ = self.shared.begin(wanted);
        self.has_ring()?;
        self.shared.push(job);
        for wake in self.shared.threads.wakes(width) {
            if wanted == 0 {
                break;
            }
            wanted -= usize::from(wake.wake());
        }
        Ok(())
    }
}

impl LaneShared {
    pub(super) fn new(device: Arc<dyn Device>, config: Config) -> Self {
        let (start, most) = (config.effective_lanes(), (config.most_lanes(), config.lanes_limit()));
        let meter = |kind| {
            let start = if kind == SourceKind::Drive { COLD_LANES.min(start) } else { start };
            Arc::new(Meter::new(start, most, config.lanes > 0))
        };
        Self {
            device,
            queue: WorkQueue::default(),
            stop: AtomicBool::new(false),
            closed: OnceLock::new(),
            works: AtomicUsize::new(0),
            growing: Mutex::new(()),
            waiting_to_grow: Mutex::default(),
            expects: AtomicBool::new(false),
            meters: SourceKind::ALL.map(meter),
            threads: LaneThreads::new(most.1),
            config,
        }
    }

    /// Adds a job for the lanes.
    pub(super) fn push(&self, job: Arc<Job>) {
        self.queue.push(job);
        if let Some(error) = self.closed.get() {
            self.queue.refuse(error);
        }
    }

    /// Waits, unless all lanes are to end.
    pub(super) fn pause(&self, length: Duration) {
        let until = Instant::now() + length;
        while !self.stop.load(Ordering::SeqCst)
            && let Some(left) = until.checked_duration_since(Instant::now())
        {
            std::thread::park_timeout(left);
        }
    }

    /// The first lane is gone for good, without which some jobs have none: all that waits ends with this error, and all that
    /// comes.
    pub(super) fn close(&self, error: Error) {
        self.queue.refuse(self.closed.get_or_init(|| error));
    }

    /// Starts lanes until there are `count`, all at once. They may not work yet when this returns.
    #[inline]
    pub(super) fn begin(self: &Arc<Self>, count: usize) -> Result<()> {
        if self.threads.has_begun(count) { Ok(()) } else { self.begin_more(count) }
    }

    #[cold]
    fn begin_more(self: &Arc<Self>, count: usize) -> Result<()> {
        let parts = |lanes| LanePart::first(&self.device, lanes, self.config.slot_size);
        self.threads.begin(count, parts, |index, memory, wake| {
            let (shared, report) =
                (self.clone(), StartReport { shared: self.clone(), index, is_sent: false });
            let name = format!("forebay-{}-{index}", self.device.info().index);
            threads::spawn(name, move || Lane::main(index, &shared, memory, &wake, report))
                .map_err(|error| Error::from_io(&error, "cannot start a lane"))
        })
    }

    /// Lanes begin and look for work as a search asks.
    pub(super) fn follow(self: &Arc<Self>, width: usize) {
        // Fewer lanes are enough, too.
        let _ = self.begin(width);
        for wake in self.threads.wakes(width) {
            wake.wake();
        }
    }

    /// Wakes the lane behind this one, the first behind the last.
    pub(super) fn wake_next(&self, index: usize) {
        let mut wakes = self.threads.wakes(usize::MAX);
        let first = wakes.next();
        if let Some(next) = wakes.nth(index).or(first) {
            next.wake();
        }
    }

    /// The turn to pin memory, if no other lane has it.
    pub(super) fn take_turn(&self) -> Option<PinTurn<'_>> {
        let held = match self.growing.try_lock() {
            Ok(held) => held,
            // Of a lane that died.
            Err(TryLockError::Poisoned(held)) => held.into_inner(),
            Err(TryLockError::WouldBlock) => return None,
        };
        Some(PinTurn { shared: self, held: Some(held) })
    }

    /// The lane will be woken when another one has pinned its memory.
    pub(super) fn wait_for_turn(&self, index: usize) {
        let mut waiting = lock(&self.waiting_to_grow);
        if !waiting.contains(&index) {
            waiting.push(index);
        }
    }

    pub(super) fn is_waiting_for_turn(&self, index: usize) -> bool {
        lock(&self.waiting_to_grow).contains(&index)
    }

    /// Wakes those that wait for a turn. One of them is next, the others wait again. Where other lanes have got work by then none of
    /// them pins any beside it: a lane gets its memory with its first work.
    fn wake_waiting(&self) {
        let waiting = std::mem::take(&mut *lock(&self.waiting_to_grow));
        for lane in waiting {
            if let Some(wake) = self.threads.wakes(usize::MAX).nth(lane) {
                wake.wake();
            }
        }
    }
}

impl Drop for Lanes {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::SeqCst);
        self.shared.threads.end(true);
    }
}
