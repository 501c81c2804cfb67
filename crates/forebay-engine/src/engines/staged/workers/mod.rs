//! Lanes: worker threads that move works of jobs, each with its own io_uring, slots and device streams.
//!
//! A lane keeps many works in flight. A read goes claim → kernel → device copy → done; a write goes the other way
//! round. Copies overlap the kernel's work. The lane waits only when it can start nothing.

pub(crate) mod lanes;
mod slots;
mod threads;
mod worker;

use std::sync::atomic::{AtomicBool, AtomicUsize};
use std::sync::{Arc, Mutex, OnceLock};

use forebay_config::{Config, IoBackend};
use forebay_error::{Error, ErrorKind, Result};
use forebay_gpu::Device;
use forebay_source::HostRange;

pub(crate) use self::lanes::Lanes;
pub use self::lanes::{LaneReport, LaneWidth};
use self::threads::{LaneStarted, LaneThreads};
use super::job::WorkQueue;
use super::width::{Meter, SourceKind};
use crate::io::ring::Ring;
use crate::io::wake::WorkerWake;
use crate::request::receipt::Note;

/// What the lanes of a device share.
pub(crate) struct LaneShared {
    pub(crate) device: Arc<dyn Device>,
    pub(crate) config: Config,
    queue: WorkQueue,
    stop: AtomicBool,
    /// Why no job is taken any more.
    closed: OnceLock<Error>,
    /// Works under way in lanes.
    works: AtomicUsize,
    /// Held by the lane that pins more memory, so that it can read while it copies. One at a time does: the others go on meanwhile.
    growing: Mutex<()>,
    /// Lanes that sleep until they may.
    waiting_to_grow: Mutex<Vec<usize>>,
    /// Large reads were announced: lanes that have nothing to do get ready for them.
    expects: AtomicBool,
    /// One for each [`SourceKind`].
    meters: [Arc<Meter>; SourceKind::ALL.len()],
    threads: LaneThreads,
}

/// Reports a lane's start exactly once, even if its thread panics.
struct StartReport {
    shared: Arc<LaneShared>,
    index: usize,
    is_sent: bool,
}

impl StartReport {
    fn send(&mut self, told: Result<LaneStarted>) {
        if !std::mem::replace(&mut self.is_sent, true) {
            self.shared.threads.report(self.index, told);
        }
    }
}

impl Drop for StartReport {
    fn drop(&mut self) {
        self.send(Err(died()));
    }
}

fn died() -> Error {
    Error::new(ErrorKind::Internal, "a lane died while it started")
}

/// The ring of a lane, or a note why it works without.
fn make_ring(
    backend: IoBackend,
    memory: Option<HostRange>,
    wake: &WorkerWake,
    notes: &mut Vec<Note>,
) -> Result<Option<Ring>> {
    if backend == IoBackend::Threads {
        return Ok(None);
    }
    match Ring::new(memory, backend == IoBackend::Polled, wake.event(), notes) {
        Ok(ring) => Ok(Some(ring)),
        Err(error) if matches!(backend, IoBackend::Ring | IoBackend::Polled) => Err(error),
        Err(error) => {
            notes.push(Note {
                text: format!("cold reads use threads with preadv: {}", error.message()),
                hint: error.hints().first().cloned(),
            });
            Ok(None)
        }
    }
}
