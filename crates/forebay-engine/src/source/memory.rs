//! A source without a file descriptor: bytes in memory, delivered by a thread of its own. The contract suite runs over it,
//! as it will over sources on a network.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use forebay_error::{Error, ErrorKind, Result};

use super::{Answer, Fill, Request, Requests, Source, StateToken};
use crate::runtime::lock;
use crate::source::piece::Direction;
use forebay_sys::threads;

type Bytes = Arc<Mutex<Vec<u8>>>;

/// Bytes in memory behind a worker thread that answers each request after a delay.
pub struct MemorySource {
    bytes: Bytes,
    queue: Mutex<Sender<(Request, Answer)>>,
    writes: AtomicU64,
}

impl MemorySource {
    /// A source with these bytes; each answer comes `delay` after its request reached the worker.
    pub fn new(bytes: Vec<u8>, delay: Duration) -> Self {
        let bytes: Bytes = Arc::new(Mutex::new(bytes));
        let (queue, requests) = channel::<(Request, Answer)>();
        let shared = Arc::clone(&bytes);
        // The thread ends when the source, and with it the sender, is dropped.
        // Without a thread nothing answers, and requests fail.
        let _ = threads::spawn("forebay-memory", move || {
            for (request, done) in requests {
                if !delay.is_zero() {
                    thread::sleep(delay);
                }
                done(Ok(serve(&shared, &request)));
            }
        });
        Self { bytes, queue: Mutex::new(queue), writes: AtomicU64::new(0) }
    }

    /// A copy of the bytes as they are now.
    pub fn snapshot(&self) -> Vec<u8> {
        lock(&self.bytes).clone()
    }
}

fn serve(bytes: &Bytes, request: &Request) -> usize {
    let mut bytes = lock(bytes);
    let start = request.offset as usize;
    if request.direction == Direction::Write && bytes.len() < start + request.memory.len {
        bytes.resize(start + request.memory.len, 0);
    }
    let len = bytes.len().saturating_sub(start).min(request.memory.len);
    if len > 0 {
        // SAFETY: the lane keeps the memory valid and untouched until the answer.
        let buffer = unsafe { request.memory.first(len).bytes_mut() };
        match request.direction {
            Direction::Read => buffer.copy_from_slice(&bytes[start..start + len]),
            Direction::Write => bytes[start..start + len].copy_from_slice(buffer),
        }
    }
    len
}

impl fmt::Debug for MemorySource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemorySource").finish_non_exhaustive()
    }
}

impl Requests for MemorySource {
    fn start(&self, request: Request, done: Answer) {
        if request.direction == Direction::Write {
            self.writes.fetch_add(1, Ordering::AcqRel);
        }
        let queue = lock(&self.queue);
        if let Err(refused) = queue.send((request, done)) {
            let (_, done) = refused.0;
            done(Err(Error::new(ErrorKind::Internal, "the memory source's worker is gone")));
        }
    }
}

impl Source for MemorySource {
    fn name(&self) -> String {
        "memory".to_owned()
    }

    fn len(&self) -> Result<u64> {
        Ok(lock(&self.bytes).len() as u64)
    }

    fn fill(&self) -> Fill<'_> {
        Fill::Requests(self)
    }

    /// How often it was written. Nothing else tells its states apart, and no other process has it.
    fn state(&self) -> Result<Option<StateToken>> {
        Ok(Some(StateToken::new(&self.writes.load(Ordering::Acquire).to_le_bytes())))
    }

    fn sync(&self) -> Result<()> {
        Ok(())
    }
}
