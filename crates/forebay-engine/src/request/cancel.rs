//! Cancelling a submission: works that have not begun are skipped, works in flight finish.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, Weak};

use forebay_error::{Error, ErrorKind};

use crate::runtime::lock;

/// An owner of works of a submission that have not begun.
pub(crate) trait Cancel: Send + Sync {
    /// Leaves them out. Does not wait for others.
    fn cancel(&self);
}

/// Whether a submission was cancelled, and the result.
#[derive(Default)]
pub(crate) struct Cancellation {
    is_asked: AtomicBool,
    /// Notified when it is.
    listeners: Mutex<Vec<Weak<dyn Cancel>>>,
    /// Entries of which something was left out.
    left_out: Mutex<BTreeSet<u32>>,
}

impl Cancellation {
    pub(crate) fn is_asked(&self) -> bool {
        self.is_asked.load(Ordering::Acquire)
    }

    /// `who` has works of the submission; it is notified at once if the submission was cancelled before.
    pub(crate) fn on_cancel(&self, who: Weak<dyn Cancel>) {
        let mut listeners = lock(&self.listeners);
        if !self.is_asked() {
            return listeners.push(who);
        }
        drop(listeners);
        if let Some(who) = who.upgrade() {
            who.cancel();
        }
    }

    /// Tells everybody.
    pub(crate) fn ask(&self) {
        let mut listeners = lock(&self.listeners);
        self.is_asked.store(true, Ordering::Release);
        let all = std::mem::take(&mut *listeners);
        drop(listeners);
        all.iter().filter_map(Weak::upgrade).for_each(|who| who.cancel());
    }

    /// A part of `entry` will not be moved.
    pub(crate) fn leave_out(&self, entry: u32) {
        lock(&self.left_out).insert(entry);
    }

    /// The entries that are not complete for that reason.
    pub(crate) fn entries(&self) -> Vec<u32> {
        if self.is_asked() { lock(&self.left_out).iter().copied().collect() } else { Vec::new() }
    }
}

/// What such entries come to.
pub(crate) fn cancelled() -> Error {
    Error::new(ErrorKind::Cancelled, "the transfer was cancelled before it was done")
}
