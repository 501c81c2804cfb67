//! How other threads wake a lane, and leave answers for it.

use std::os::fd::{AsRawFd, RawFd};
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::thread::Thread;

use forebay_error::{Error, ErrorKind, Result};

use crate::runtime::lock;
use crate::runtime::owned::Owned;
use crate::runtime::sys;

/// How a lane rests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum WorkerRest {
    Awake,
    /// The lane has nothing under way. It is woken without a descriptor, since a program may close those.
    Asleep,
    /// The lane waits for its ring, where operations are under way. The end of one wakes it, too.
    AtRing,
}

pub(crate) struct WorkerWake {
    rest: AtomicU8,
    thread: OnceLock<Thread>,
    event: WakeEvent,
    /// Answers of sources without a descriptor.
    inbox: Mutex<Vec<(u64, Result<usize>)>>,
}

impl WorkerWake {
    pub(crate) fn new() -> Result<Self> {
        Ok(Self {
            rest: AtomicU8::new(WorkerRest::Awake as u8),
            thread: OnceLock::new(),
            event: WakeEvent::new()?,
            inbox: Mutex::default(),
        })
    }

    /// Makes the calling thread the one to wake.
    pub(crate) fn attach_thread(&self) {
        self.thread.get_or_init(std::thread::current);
    }

    /// Says what the lane is about to do. Threads that have work for it after this wake it.
    pub(crate) fn set(&self, rest: WorkerRest) {
        self.rest.store(rest as u8, Ordering::SeqCst);
    }

    /// Wakes the lane if it rests. Returns whether it did.
    pub(crate) fn wake(&self) -> bool {
        let rest = self.rest.swap(WorkerRest::Awake as u8, Ordering::SeqCst);
        if rest == WorkerRest::AtRing as u8 {
            self.event.signal();
        } else if rest == WorkerRest::Asleep as u8 {
            self.unpark();
        }
        rest != WorkerRest::Awake as u8
    }

    /// Wakes the lane in any state.
    pub(crate) fn wake_always(&self) {
        self.set(WorkerRest::Awake);
        self.unpark();
        self.event.signal();
    }

    fn unpark(&self) {
        if let Some(thread) = self.thread.get() {
            thread.unpark();
        }
    }

    /// The event that a ring reads to be woken.
    pub(crate) fn event(&self) -> &WakeEvent {
        &self.event
    }

    pub(crate) fn answer(&self, user: u64, result: Result<usize>) {
        lock(&self.inbox).push((user, result));
        self.wake();
    }

    /// Takes the answers into an empty vector, whose allocation is used for further ones.
    pub(crate) fn answers(&self, into: &mut Vec<(u64, Result<usize>)>) {
        std::mem::swap(&mut *lock(&self.inbox), into);
    }

    pub(crate) fn has_answers(&self) -> bool {
        !lock(&self.inbox).is_empty()
    }
}

/// An answer that a lane waits for. It comes even where what is to give it panics, or is dropped: nothing writes to the memory any more.
pub(crate) struct DueAnswer {
    wake: Arc<WorkerWake>,
    user: u64,
    is_given: bool,
}

impl DueAnswer {
    pub(crate) const fn new(wake: Arc<WorkerWake>, user: u64) -> Self {
        Self { wake, user, is_given: false }
    }

    pub(crate) fn give(mut self, result: Result<usize>) {
        self.is_given = true;
        self.wake.answer(self.user, result);
    }
}

impl Drop for DueAnswer {
    fn drop(&mut self) {
        if !self.is_given {
            let error = Error::new(ErrorKind::Internal, "a request was not answered");
            self.wake.answer(self.user, Err(error));
        }
    }
}

/// A counter in the kernel that a ring waits for.
pub(crate) struct WakeEvent(Owned);

impl WakeEvent {
    fn new() -> Result<Self> {
        Owned::at_high_number(sys::eventfd()?).map(Self)
    }

    fn signal(&self) {
        let one = 1u64;
        // The program may have closed the number and opened a file under it.
        if self.0.is_ours() {
            // SAFETY: eight readable bytes. The call can only fail if the counter is near overflow: then the lane is
            // awake anyway.
            unsafe { libc::write(self.0.as_raw_fd(), (&raw const one).cast(), 8) };
        }
    }
}

impl AsRawFd for WakeEvent {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}
