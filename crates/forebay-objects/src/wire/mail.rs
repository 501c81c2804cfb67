//! What other threads have for a thread of the network.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use super::poller::Waker;
use crate::lock;

/// The mailbox of a thread.
#[derive(Debug)]
pub(super) struct Mailbox {
    resumed: Mutex<Vec<u64>>,
    /// The thread waits, or is about to.
    is_asleep: AtomicBool,
    waker: Mutex<Waker>,
}

impl Mailbox {
    pub(super) fn new(waker: Waker) -> Self {
        Self { resumed: Mutex::default(), is_asleep: AtomicBool::new(false), waker: Mutex::new(waker) }
    }

    /// The thread made its descriptors anew.
    pub(super) fn replace(&self, waker: Waker) {
        *lock(&self.waker) = waker;
    }

    /// Has the thread look at what there is to do.
    pub(super) fn wake(&self) {
        if self.is_asleep.swap(false, Ordering::SeqCst) {
            lock(&self.waker).wake();
        }
    }

    /// The call of this connection goes on.
    pub(super) fn resume(&self, token: u64) {
        lock(&self.resumed).push(token);
        self.wake();
    }

    /// Takes the tokens of connections that go on.
    pub(super) fn take(&self, tokens: &mut Vec<u64>) {
        std::mem::swap(&mut *lock(&self.resumed), tokens);
    }

    /// The thread is about to wait: what comes from now on wakes it. It looks once more before it waits.
    pub(super) fn sleeps(&self) {
        self.is_asleep.store(true, Ordering::SeqCst);
    }

    pub(super) fn is_awake(&self) {
        self.is_asleep.store(false, Ordering::SeqCst);
    }

    pub(super) fn has_mail(&self) -> bool {
        !lock(&self.resumed).is_empty()
    }
}
