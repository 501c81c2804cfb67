//! The lanes of one device: how they start, take jobs and end.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, OnceLock};
use std::thread::JoinHandle;

use forebay_config::{Config, IoBackend};
use forebay_error::{Error, Result};
use forebay_gpu::Device;

use super::worker::Lane;
use super::{LaneShared, LaneStarted, StartReport, died};
use crate::engines::staged::job::{Job, WorkQueue};
use crate::io::wake::WorkerWake;
use crate::request::receipt::Note;
use crate::runtime::lock::lock;
use forebay_sys::threads;

/// How lanes of a device work, for reports.
#[derive(Clone, Debug)]
pub struct LaneReport {
    /// Worker threads.
    pub lanes: usize,
    /// Slots per lane.
    pub slots: usize,
    /// Bytes per slot.
    pub slot_size: usize,
    /// `io_uring` or `threads`.
    pub backend: &'static str,
    /// What held the lanes back, with hints.
    pub notes: Vec<Note>,
}

/// The lanes of one device; threads start with the first jobs.
pub(crate) struct Lanes {
    shared: Arc<LaneShared>,
    started: OnceLock<Result<StartedLanes>>,
}

/// Lanes of which the first works. The others start when there is work for them: pinning takes 4 ms a lane, and the driver
/// serves one thread at a time.
struct StartedLanes {
    wakes: Vec<Arc<WorkerWake>>,
    /// The first lane has a ring.
    ring: bool,
    count: AtomicUsize,
    threads: Mutex<LaneThreads>,
}

/// The threads, and the reports of their start.
struct LaneThreads {
    handles: Vec<JoinHandle<()>>,
    report: Sender<Result<LaneStarted>>,
    reports: Receiver<Result<LaneStarted>>,
    reported: usize,
    /// Lanes that work without a ring.
    ringless: usize,
    notes: Vec<Note>,
}

impl LaneThreads {
    fn add(&mut self, report: Result<LaneStarted>) {
        self.reported += 1;
        let notes = match report {
            Ok(started) => {
                self.ringless += usize::from(!started.ring);
                started.notes
            }
            Err(error) => {
                let hint = error.hints().first().cloned();
                vec![Note { text: format!("a lane did not start: {error}"), hint }]
            }
        };
        for note in notes {
            if !self.notes.contains(&note) {
                self.notes.push(note);
            }
        }
    }

    /// Takes in the reports that have arrived.
    fn collect(&mut self) {
        while let Ok(report) = self.reports.try_recv() {
            self.add(report);
        }
    }
}

impl Lanes {
    pub(crate) fn new(device: Arc<dyn Device>, config: Config) -> Self {
        let shared = LaneShared {
            device,
            config,
            queue: WorkQueue::default(),
            stop: AtomicBool::new(false),
            works: AtomicUsize::new(0),
        };
        Self { shared: Arc::new(shared), started: OnceLock::new() }
    }

    /// Lanes that work or will start.
    pub(crate) fn count(&self) -> usize {
        self.shared.config.effective_lanes()
    }

    /// Whether they move bytes of the host's memory.
    pub(crate) fn are_of_host(&self) -> bool {
        self.shared.device.info().is_host
    }

    /// Whether any lane works.
    pub(crate) fn are_busy(&self) -> bool {
        self.shared.works.load(Ordering::Relaxed) > 0
    }

    /// Lanes without work, at least one: a new transfer is spread over that many.
    pub(crate) fn spare(&self) -> usize {
        self.count().saturating_sub(self.shared.works.load(Ordering::Relaxed)).max(1)
    }

    fn started(&self) -> Result<&StartedLanes> {
        self.started.get_or_init(|| start(&self.shared)).as_ref().map_err(Error::clone)
    }

    /// Starts all lanes and tells how they work.
    pub(crate) fn report(&self) -> Result<LaneReport> {
        let lanes = self.started()?;
        self.enlarge(lanes, self.count())?;
        let mut threads = lock(&lanes.threads);
        while threads.reported < lanes.count.load(Ordering::SeqCst) {
            let report = threads.reports.recv().unwrap_or_else(|_| Err(died()));
            threads.add(report);
        }
        let config = &self.shared.config;
        Ok(LaneReport {
            lanes: self.count(),
            slots: config.slots,
            slot_size: config.slot_size,
            backend: if threads.ringless == 0 { "io_uring" } else { "threads" },
            notes: threads.notes.clone(),
        })
    }

    /// What held the lanes back that have started, and the number of those.
    pub(crate) fn notes(&self) -> Result<(Vec<Note>, usize)> {
        let mut threads = lock(&self.started()?.threads);
        threads.collect();
        Ok((threads.notes.clone(), threads.reported))
    }

    /// Starts lanes until there are `count`.
    fn enlarge(&self, lanes: &StartedLanes, count: usize) -> Result<()> {
        if lanes.count.load(Ordering::Acquire) >= count {
            return Ok(());
        }
        let mut threads = lock(&lanes.threads);
        for index in lanes.count.load(Ordering::Acquire)..count.min(lanes.wakes.len()) {
            let thread = spawn(&self.shared, index, &lanes.wakes[index], threads.report.clone())?;
            threads.handles.push(thread);
            lanes.count.store(index + 1, Ordering::Release);
        }
        Ok(())
    }

    /// Whether the first lane has a ring: with it one lane keeps many cold reads in flight.
    pub(crate) fn has_ring(&self) -> Result<bool> {
        Ok(self.started()?.ring)
    }

    pub(crate) fn submit(&self, job: Arc<Job>) -> Result<()> {
        let lanes = self.started()?;
        let mut wanted = job.plan.len().min(job.width);
        let width = job.width;
        // Fewer lanes are enough, too.
        let _ = self.enlarge(lanes, wanted);
        self.shared.queue.push(job);
        for wake in lanes.wakes.iter().take(width) {
            if wanted == 0 {
                break;
            }
            wanted -= usize::from(wake.wake());
        }
        Ok(())
    }
}

impl Drop for Lanes {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::SeqCst);
        if let Some(Ok(lanes)) = self.started.get() {
            for wake in &lanes.wakes {
                wake.wake_always();
            }
            for thread in lock(&lanes.threads).handles.drain(..) {
                // A lane that panicked has failed its works already; there is nothing left to tell.
                let _ = thread.join();
            }
        }
    }
}

/// Starts the first lane, or all of them where each must have a ring.
fn start(shared: &Arc<LaneShared>) -> Result<StartedLanes> {
    let count = shared.config.effective_lanes();
    let wakes: Vec<_> = (0..count).map(|_| WorkerWake::new().map(Arc::new)).collect::<Result<_>>()?;
    let must_all = shared.config.io == IoBackend::Ring;
    let started = if must_all { count } else { 1 };
    let (report, reports) = channel();
    let mut threads =
        LaneThreads { handles: Vec::new(), report, reports, reported: 0, ringless: 0, notes: Vec::new() };
    let mut ring = true;
    let made = (|| {
        for (index, wake) in wakes.iter().enumerate().take(started) {
            threads.handles.push(spawn(shared, index, wake, threads.report.clone())?);
        }
        for _ in 0..started {
            let first = threads.reports.recv().unwrap_or_else(|_| Err(died()))?;
            ring &= first.ring;
            threads.add(Ok(first));
        }
        Ok(())
    })();
    if let Err(error) = made {
        shared.stop.store(true, Ordering::SeqCst);
        for wake in &wakes {
            wake.wake_always();
        }
        return Err(error);
    }
    Ok(StartedLanes { wakes, ring, count: AtomicUsize::new(started), threads: Mutex::new(threads) })
}

fn spawn(
    shared: &Arc<LaneShared>,
    index: usize,
    wake: &Arc<WorkerWake>,
    report: Sender<Result<LaneStarted>>,
) -> Result<JoinHandle<()>> {
    let (shared, wake) = (shared.clone(), wake.clone());
    let name = format!("forebay-{}-{index}", shared.device.info().index);
    threads::spawn(name, move || Lane::main(index, shared, &wake, StartReport(Some(report))))
        .map_err(|error| Error::from_io(&error, "cannot start a lane"))
}
