//! Lanes: worker threads that move works of jobs, each with its own io_uring, slots and device streams.
//!
//! A lane keeps many works in flight. A read goes claim → kernel → device copy → done; a write goes the other way
//! round. Copies overlap the kernel's work: the lane waits only when it can start nothing.

mod arena;
mod job;
mod ring;
mod worker;

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, OnceLock};
use std::thread::JoinHandle;

use forebay_config::{Config, IoBackend};
use forebay_error::{Error, ErrorKind, Result};
use forebay_gpu::Device;

use self::job::Queue;
pub(crate) use self::job::{Job, JobParts};
use self::worker::Lane;
use crate::lock::lock;
use crate::receipt::Note;
use crate::sys::EventFd;

/// What became of a lane's start.
struct Started {
    ring: bool,
    notes: Vec<Note>,
}

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

/// Where others reach a lane.
pub(crate) struct Door {
    wake: EventFd,
    sleeping: AtomicBool,
    /// Answers of sources without a descriptor.
    inbox: Mutex<Vec<(u64, Result<usize>)>>,
}

impl Door {
    fn new() -> Result<Self> {
        Ok(Self { wake: EventFd::new()?, sleeping: AtomicBool::new(false), inbox: Mutex::default() })
    }

    /// Wakes the lane if it sleeps; whether it did.
    fn rouse(&self) -> bool {
        let slept = self.sleeping.swap(false, Ordering::SeqCst);
        if slept {
            self.wake.signal();
        }
        slept
    }

    fn answer(&self, user: u64, result: Result<usize>) {
        lock(&self.inbox).push((user, result));
        self.rouse();
    }
}

/// What the lanes of a device share.
pub(crate) struct Shared {
    pub(crate) device: Arc<dyn Device>,
    pub(crate) config: Config,
    queue: Queue,
    stop: AtomicBool,
    /// Works that lanes have in hand.
    works: AtomicUsize,
}

/// The lanes of one device; threads start with the first job.
pub(crate) struct Lanes {
    shared: Arc<Shared>,
    running: OnceLock<Result<Running>>,
}

struct Running {
    doors: Vec<Arc<Door>>,
    threads: Mutex<Vec<JoinHandle<()>>>,
    report: LaneReport,
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

    /// Starts the lanes if need be and tells how they work.
    pub(crate) fn report(&self) -> Result<&LaneReport> {
        Ok(&self.running()?.report)
    }

    /// Whether cold reads are cheap to hand over: with io_uring one lane keeps many in flight.
    pub(crate) fn has_ring(&self) -> Result<bool> {
        Ok(self.running()?.report.backend == "io_uring")
    }

    pub(crate) fn submit(&self, job: Arc<Job>) -> Result<()> {
        let running = self.running()?;
        let mut wanted = job.plan.len().min(job.width);
        let width = job.width;
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
                door.sleeping.store(false, Ordering::SeqCst);
                door.wake.signal();
            }
            for thread in lock(&running.threads).drain(..) {
                // A lane that panicked has failed its works already; there is nothing left to tell.
                let _ = thread.join();
            }
        }
    }
}

fn start(shared: &Arc<Shared>) -> Result<Running> {
    let count = shared.config.effective_lanes();
    let (tell, told): (Sender<Result<Started>>, Receiver<Result<Started>>) = channel();
    let mut doors: Vec<Arc<Door>> = Vec::new();
    let mut threads = Vec::new();
    let give_up = |doors: &[Arc<Door>]| {
        shared.stop.store(true, Ordering::SeqCst);
        for door in doors {
            door.wake.signal();
        }
    };
    for index in 0..count {
        let door = Arc::new(Door::new().inspect_err(|_| give_up(&doors))?);
        doors.push(door.clone());
        let (shared, tell) = (shared.clone(), tell.clone());
        let thread = std::thread::Builder::new()
            .name(format!("forebay-{}-{index}", shared.device.info().index))
            .spawn(move || Lane::main(index, shared, &door, tell))
            .map_err(|error| Error::from_io(&error, "cannot start a lane"))
            .inspect_err(|_| give_up(&doors))?;
        threads.push(thread);
    }
    drop(tell);
    let started: Vec<_> = told.iter().collect();
    if let Some(error) = started.iter().find_map(|lane| lane.as_ref().err()) {
        give_up(&doors);
        return Err(error.clone());
    }
    let started: Vec<_> = started.into_iter().flatten().collect();
    if started.len() < count {
        return Err(Error::new(ErrorKind::Internal, "a lane died while it started"));
    }
    let mut notes: Vec<Note> = Vec::new();
    for note in started.iter().flat_map(|lane| &lane.notes) {
        if !notes.contains(note) {
            notes.push(note.clone());
        }
    }
    let backend = if started.iter().all(|lane| lane.ring) { "io_uring" } else { "threads" };
    let config = &shared.config;
    let report =
        LaneReport { lanes: count, slots: config.slots, slot_size: config.slot_size, backend, notes };
    Ok(Running { doors, threads: Mutex::new(threads), report })
}

/// The ring of a lane, or a note why it works without.
fn make_ring(
    backend: IoBackend,
    memory: (*mut u8, usize),
    door: &Door,
    notes: &mut Vec<Note>,
) -> Result<Option<ring::Ring>> {
    if backend == IoBackend::Threads {
        return Ok(None);
    }
    match ring::Ring::new(memory, &door.wake, notes) {
        Ok(ring) => Ok(Some(ring)),
        Err(error) if backend == IoBackend::Ring => Err(error),
        Err(error) => {
            notes.push(Note {
                text: format!("cold reads use threads with preadv: {}", error.message()),
                hint: error.hints().first().cloned(),
            });
            Ok(None)
        }
    }
}
