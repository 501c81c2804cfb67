//! Threads that sleep until they are woken.

use std::sync::{Condvar, Mutex};
use std::time::Duration;

use crate::runtime::lock;

/// Counts wakes, so that one between looking and sleeping is not lost.
#[derive(Debug, Default)]
pub(crate) struct WakeQueue {
    wakes: Mutex<u64>,
    changed: Condvar,
}

impl WakeQueue {
    /// Wakes all threads that sleep here.
    pub(crate) fn wake(&self) {
        *lock(&self.wakes) += 1;
        self.changed.notify_all();
    }

    /// Wakes so far.
    pub(crate) fn count(&self) -> u64 {
        *lock(&self.wakes)
    }

    /// Sleeps until there were more wakes than `seen`, at most `limit`.
    pub(crate) fn wait(&self, seen: u64, limit: Duration) {
        let wakes = lock(&self.wakes);
        let _ = self.changed.wait_timeout_while(wakes, limit, |wakes| *wakes == seen);
    }
}
