//! Something that threads sleep on until it is rung.

use std::sync::{Condvar, Mutex};
use std::time::Duration;

use crate::runtime::lock::lock;

/// Counts how often it was rung, so that a ring between looking and sleeping is not lost.
#[derive(Debug, Default)]
pub(crate) struct Bell {
    rung: Mutex<u64>,
    changed: Condvar,
}

impl Bell {
    pub(crate) fn ring(&self) {
        *lock(&self.rung) += 1;
        self.changed.notify_all();
    }

    /// How often it was rung so far.
    pub(crate) fn count(&self) -> u64 {
        *lock(&self.rung)
    }

    /// Sleeps until it was rung more often than `seen`, at most `limit`.
    pub(crate) fn wait(&self, seen: u64, limit: Duration) {
        let rung = lock(&self.rung);
        let _ = self.changed.wait_timeout_while(rung, limit, |rung| *rung == seen);
    }
}
