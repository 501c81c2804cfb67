//! Counts forks.

use std::sync::Once;
use std::sync::atomic::{AtomicU64, Ordering};

static FORKS: AtomicU64 = AtomicU64::new(0);

/// Begins to count. Forks before the first call are not counted.
pub fn watch() {
    extern "C" fn in_child() {
        FORKS.fetch_add(1, Ordering::SeqCst);
    }
    static ONCE: Once = Once::new();
    // SAFETY: the handler only adds to an atomic number, which is allowed in a child of a threaded process. Where it
    // cannot be installed, children go unnoticed.
    ONCE.call_once(|| unsafe {
        libc::pthread_atfork(None, None, Some(in_child));
    });
}

/// How many forks lie between the process that began to count and this one.
#[inline]
pub fn count() -> u64 {
    FORKS.load(Ordering::Relaxed)
}
