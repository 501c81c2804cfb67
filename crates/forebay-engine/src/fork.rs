//! Noticing that this process is a forked child: its parent's threads, and its parent's GPU, are not here.

use std::sync::Once;
use std::sync::atomic::{AtomicU64, Ordering};

/// How many forks lie between this process and the first one that asked.
static FORKS: AtomicU64 = AtomicU64::new(0);

extern "C" fn in_child() {
    FORKS.fetch_add(1, Ordering::SeqCst);
}

/// The process that something was made in.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Birth(u64);

impl Birth {
    pub(crate) fn here() -> Self {
        static ONCE: Once = Once::new();
        // SAFETY: the handler only adds to an atomic number, which is allowed in a child of a threaded process. Where
        // it cannot be installed, children go unnoticed.
        ONCE.call_once(|| unsafe {
            libc::pthread_atfork(None, None, Some(in_child));
        });
        Self(FORKS.load(Ordering::SeqCst))
    }

    /// Whether no fork lies between this process and the one that the library was loaded in.
    pub(crate) fn is_first(self) -> bool {
        self.0 == 0
    }

    /// Whether the present process is a child of that one.
    pub(crate) fn is_elsewhere(self) -> bool {
        FORKS.load(Ordering::Relaxed) != self.0
    }
}
