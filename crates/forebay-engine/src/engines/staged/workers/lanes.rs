//! The lanes of one device: how they start, take jobs and end.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, OnceLock};
use std::thread::JoinHandle;

use forebay_config::{Config, IoBackend};
use forebay_error::{Error, Result};
use forebay_gpu::Device;

use super::worker::Lane;
use super::{Herald, Shared, Started, died};
use crate::engines::staged::job::{Job, Queue};
use crate::io::wake::Door;
use crate::request::receipt::Note;
use crate::runtime::lock::lock;
use crate::runtime::threads;

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
    shared: Arc<Shared>,
    running: OnceLock<Result<Running>>,
}

/// Lanes of which the first works. The others start when there is work for them: pinning slots is slow, and the driver
/// does it for one thread at a time.
struct Running {
    doors: Vec<Arc<Door>>,
    /// The first lane has a ring.
    ring: bool,
    started: AtomicUsize,
    crew: Mutex<Crew>,
}

/// The threads, and what they have told about their start.
struct Crew {
    threads: Vec<JoinHandle<()>>,
    tell: Sender<Result<Started>>,
    told: Receiver<Result<Started>>,
    heard: usize,
    /// Lanes that work without a ring.
    ringless: usize,
    notes: Vec<Note>,
}

impl Crew {
    fn hear(&mut self, told: Result<Started>) {
        self.heard += 1;
        let notes = match told {
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

    /// Hears all that were told by now.
    fn look(&mut self) {
        while let Ok(told) = self.told.try_recv() {
            self.hear(told);
        }
    }
}

impl Lanes {
    pub(crate) fn new(device: Arc<dyn Device>, config: Config) -> Self {
        let shared = Shared {
            device,
            config,
            queue: Queue::default(),
            stop: AtomicBool::new(false),
            works: AtomicUsize::new(0),
        };
        Self { shared: Arc::new(shared), running: OnceLock::new() }
    }

    /// How many lanes there are or will be.
    pub(crate) fn count(&self) -> usize {
        self.shared.config.effective_lanes()
    }

    /// Whether they move bytes of the host's memory.
    pub(crate) fn are_of_host(&self) -> bool {
        self.shared.device.info().is_host
    }

    /// Lanes that have nothing in hand, at least one: how far a new transfer is worth spreading.
    pub(crate) fn spare(&self) -> usize {
        self.count().saturating_sub(self.shared.works.load(Ordering::Relaxed)).max(1)
    }

    fn running(&self) -> Result<&Running> {
        self.running.get_or_init(|| start(&self.shared)).as_ref().map_err(Error::clone)
    }

    /// Starts all lanes and tells how they work.
    pub(crate) fn report(&self) -> Result<LaneReport> {
        let running = self.running()?;
        self.enlarge(running, self.count())?;
        let mut crew = lock(&running.crew);
        while crew.heard < running.started.load(Ordering::SeqCst) {
            let told = crew.told.recv().unwrap_or_else(|_| Err(died()));
            crew.hear(told);
        }
        let config = &self.shared.config;
        Ok(LaneReport {
            lanes: self.count(),
            slots: config.slots,
            slot_size: config.slot_size,
            backend: if crew.ringless == 0 { "io_uring" } else { "threads" },
            notes: crew.notes.clone(),
        })
    }

    /// What held back the lanes that work by now, and how many of them that were.
    pub(crate) fn notes(&self) -> Result<(Vec<Note>, usize)> {
        let mut crew = lock(&self.running()?.crew);
        crew.look();
        Ok((crew.notes.clone(), crew.heard))
    }

    /// Starts lanes until there are so many.
    fn enlarge(&self, running: &Running, count: usize) -> Result<()> {
        if running.started.load(Ordering::Acquire) >= count {
            return Ok(());
        }
        let mut crew = lock(&running.crew);
        for index in running.started.load(Ordering::Acquire)..count.min(running.doors.len()) {
            let thread = spawn(&self.shared, index, &running.doors[index], crew.tell.clone())?;
            crew.threads.push(thread);
            running.started.store(index + 1, Ordering::Release);
        }
        Ok(())
    }

    /// Whether cold reads are cheap to hand over: with io_uring one lane keeps many in flight.
    pub(crate) fn has_ring(&self) -> Result<bool> {
        Ok(self.running()?.ring)
    }

    pub(crate) fn submit(&self, job: Arc<Job>) -> Result<()> {
        let running = self.running()?;
        let mut wanted = job.plan.len().min(job.width);
        let width = job.width;
        // With fewer lanes it takes longer.
        let _ = self.enlarge(running, wanted);
        self.shared.queue.push(job);
        for door in running.doors.iter().take(width) {
            if wanted == 0 {
                break;
            }
            wanted -= usize::from(door.rouse());
        }
        Ok(())
    }
}

impl Drop for Lanes {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::SeqCst);
        if let Some(Ok(running)) = self.running.get() {
            for door in &running.doors {
                door.knock();
            }
            for thread in lock(&running.crew).threads.drain(..) {
                // A lane that panicked has failed its works already; there is nothing left to tell.
                let _ = thread.join();
            }
        }
    }
}

/// Starts the first lane; all of them where each must have a ring.
fn start(shared: &Arc<Shared>) -> Result<Running> {
    let count = shared.config.effective_lanes();
    let doors: Vec<_> = (0..count).map(|_| Door::new().map(Arc::new)).collect::<Result<_>>()?;
    let must_all = shared.config.io == IoBackend::Ring;
    let started = if must_all { count } else { 1 };
    let (tell, told) = channel();
    let mut crew = Crew { threads: Vec::new(), tell, told, heard: 0, ringless: 0, notes: Vec::new() };
    let mut ring = true;
    let made = (|| {
        for (index, door) in doors.iter().enumerate().take(started) {
            crew.threads.push(spawn(shared, index, door, crew.tell.clone())?);
        }
        for _ in 0..started {
            let first = crew.told.recv().unwrap_or_else(|_| Err(died()))?;
            ring &= first.ring;
            crew.hear(Ok(first));
        }
        Ok(())
    })();
    if let Err(error) = made {
        shared.stop.store(true, Ordering::SeqCst);
        for door in &doors {
            door.knock();
        }
        return Err(error);
    }
    Ok(Running { doors, ring, started: AtomicUsize::new(started), crew: Mutex::new(crew) })
}

fn spawn(
    shared: &Arc<Shared>,
    index: usize,
    door: &Arc<Door>,
    tell: Sender<Result<Started>>,
) -> Result<JoinHandle<()>> {
    let (shared, door) = (shared.clone(), door.clone());
    let name = format!("forebay-{}-{index}", shared.device.info().index);
    threads::spawn(name, move || Lane::main(index, shared, &door, Herald(Some(tell))))
        .map_err(|error| Error::from_io(&error, "cannot start a lane"))
}
