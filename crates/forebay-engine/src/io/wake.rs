//! Where others reach a lane: what wakes it, and answers for it.

use std::os::fd::{AsRawFd, RawFd};
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Mutex, OnceLock};
use std::thread::Thread;

use forebay_error::Result;

use crate::runtime::lock::lock;
use crate::runtime::owned::Owned;
use crate::runtime::sys;

/// What a lane does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Rest {
    Awake,
    /// It has nothing under way. No descriptor is needed to wake it: a program may close those.
    Asleep,
    /// It waits for its ring, where something is under way: it comes back for that even if nobody wakes it.
    AtRing,
}

pub(crate) struct Door {
    rest: AtomicU8,
    thread: OnceLock<Thread>,
    wake: Wake,
    /// Answers of sources without a descriptor.
    inbox: Mutex<Vec<(u64, Result<usize>)>>,
}

impl Door {
    pub(crate) fn new() -> Result<Self> {
        Ok(Self {
            rest: AtomicU8::new(Rest::Awake as u8),
            thread: OnceLock::new(),
            wake: Wake::new()?,
            inbox: Mutex::default(),
        })
    }

    /// The calling thread is the lane's.
    pub(crate) fn move_in(&self) {
        self.thread.get_or_init(std::thread::current);
    }

    /// What the lane is about to do. Whoever has work for it after this wakes it.
    pub(crate) fn set(&self, rest: Rest) {
        self.rest.store(rest as u8, Ordering::SeqCst);
    }

    /// Wakes the lane if it rests; whether it did.
    pub(crate) fn rouse(&self) -> bool {
        let rest = self.rest.swap(Rest::Awake as u8, Ordering::SeqCst);
        if rest == Rest::AtRing as u8 {
            self.wake.signal();
        } else if rest == Rest::Asleep as u8 {
            self.unpark();
        }
        rest != Rest::Awake as u8
    }

    /// Wakes the lane, whatever it does.
    pub(crate) fn knock(&self) {
        self.set(Rest::Awake);
        self.unpark();
        self.wake.signal();
    }

    fn unpark(&self) {
        if let Some(thread) = self.thread.get() {
            thread.unpark();
        }
    }

    /// What a ring reads to be woken.
    pub(crate) fn wake(&self) -> &Wake {
        &self.wake
    }

    pub(crate) fn answer(&self, user: u64, result: Result<usize>) {
        lock(&self.inbox).push((user, result));
        self.rouse();
    }

    pub(crate) fn answers(&self) -> Vec<(u64, Result<usize>)> {
        std::mem::take(&mut *lock(&self.inbox))
    }

    pub(crate) fn has_answers(&self) -> bool {
        !lock(&self.inbox).is_empty()
    }
}

/// A counter in the kernel that a ring waits for.
pub(crate) struct Wake(Owned);

impl Wake {
    fn new() -> Result<Self> {
        Owned::apart(sys::eventfd()?).map(Self)
    }

    fn signal(&self) {
        let one = 1u64;
        // Not into what a program opened under this number after it had closed it.
        if self.0.is_ours() {
            // SAFETY: eight readable bytes. The call can only fail if the counter is near overflow: then the lane is
            // awake anyway.
            unsafe { libc::write(self.0.as_raw_fd(), (&raw const one).cast(), 8) };
        }
    }
}

impl AsRawFd for Wake {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}
