//! Lanes: worker threads that move works of jobs, each with its own io_uring, slots and device streams.
//!
//! A lane keeps many works in flight. A read goes claim → kernel → device copy → done; a write goes the other way
//! round. Copies overlap the kernel's work: the lane waits only when it can start nothing.

pub(crate) mod lanes;
mod slots;
mod worker;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize};
use std::sync::mpsc::Sender;

use forebay_config::{Config, IoBackend};
use forebay_error::{Error, ErrorKind, Result};
use forebay_gpu::Device;

pub use self::lanes::LaneReport;
pub(crate) use self::lanes::Lanes;
use super::job::Queue;
use crate::io::ring::Ring;
use crate::io::wake::Door;
use crate::request::receipt::Note;

/// What became of a lane's start.
struct Started {
    ring: bool,
    notes: Vec<Note>,
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

/// Tells once what became of a lane's start, whatever becomes of its thread.
struct Herald(Option<Sender<Result<Started>>>);

impl Herald {
    fn tell(&mut self, told: Result<Started>) {
        if let Some(tell) = self.0.take() {
            // Whoever started it may have given up.
            let _ = tell.send(told);
        }
    }
}

impl Drop for Herald {
    fn drop(&mut self) {
        self.tell(Err(died()));
    }
}

fn died() -> Error {
    Error::new(ErrorKind::Internal, "a lane died while it started")
}

/// The ring of a lane, or a note why it works without.
fn make_ring(
    backend: IoBackend,
    memory: Option<(*mut u8, usize)>,
    door: &Door,
    notes: &mut Vec<Note>,
) -> Result<Option<Ring>> {
    if backend == IoBackend::Threads {
        return Ok(None);
    }
    match Ring::new(memory, backend == IoBackend::Polled, door.wake(), notes) {
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
