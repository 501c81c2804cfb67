//! Noticing that this process is a forked child: its parent's threads, and its parent's GPU, are not here.

use std::sync::Once;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::process::process;

/// Counts forks.
#[derive(Debug)]
pub(crate) struct Forks {
    /// How many lie between this process and the first one that asked.
    count: AtomicU64,
    watched: Once,
}

impl Default for Forks {
    fn default() -> Self {
        Self { count: AtomicU64::new(0), watched: Once::new() }
    }
}

extern "C" fn in_child() {
    // It was found before this was installed: here it is only read.
    process().forks.count.fetch_add(1, Ordering::SeqCst);
}

/// The process that something was made in.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Birth(u64);

impl Birth {
    pub(crate) fn here() -> Self {
        let forks = &process().forks;
        // SAFETY: the handler only adds to an atomic number, which is allowed in a child of a threaded process. Where
        // it cannot be installed, children go unnoticed.
        forks.watched.call_once(|| unsafe {
            libc::pthread_atfork(None, None, Some(in_child));
        });
        Self(forks.count.load(Ordering::SeqCst))
    }

    /// Whether no fork lies between this process and the one that the library was loaded in.
    pub(crate) fn is_first(self) -> bool {
        self.0 == 0
    }

    /// Whether the present process is a child of that one.
    pub(crate) fn is_elsewhere(self) -> bool {
        process().forks.count.load(Ordering::Relaxed) != self.0
    }
}
