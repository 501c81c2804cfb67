//! Ctrl-C and termination as a flag, for commands that clean up.

use std::sync::atomic::{AtomicBool, Ordering};

static CAUGHT: AtomicBool = AtomicBool::new(false);

extern "C" fn catch(_: libc::c_int) {
    CAUGHT.store(true, Ordering::SeqCst);
}

/// From now until it is dropped, the first SIGINT, SIGTERM and SIGHUP set a flag in place of ending the process. The
/// second of its kind ends it: the command may be stuck, for example in a pipe that nobody reads.
pub(crate) struct Guard {
    before: [(libc::c_int, libc::sigaction); 3],
}

impl Guard {
    pub(crate) fn new() -> Self {
        CAUGHT.store(false, Ordering::SeqCst);
        let before = [libc::SIGINT, libc::SIGTERM, libc::SIGHUP].map(|signal| {
            // SAFETY: all-zero bytes are a valid sigaction; the handler only stores to an atomic; no SA_RESTART, so
            // that waits in system calls end.
            unsafe {
                let mut ours: libc::sigaction = std::mem::zeroed();
                let mut before: libc::sigaction = std::mem::zeroed();
                ours.sa_flags = libc::SA_RESETHAND;
                ours.sa_sigaction = catch as extern "C" fn(libc::c_int) as libc::sighandler_t;
                libc::sigaction(signal, &ours, &mut before);
                // A command that was told to ignore hang-ups (nohup) goes on ignoring them.
                if before.sa_sigaction == libc::SIG_IGN {
                    libc::sigaction(signal, &before, std::ptr::null_mut());
                }
                (signal, before)
            }
        });
        Self { before }
    }

    /// Whether a signal came.
    pub(crate) fn caught() -> bool {
        CAUGHT.load(Ordering::SeqCst)
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        for (signal, before) in &self.before {
            // SAFETY: puts back what sigaction gave in `new`.
            unsafe { libc::sigaction(*signal, before, std::ptr::null_mut()) };
        }
    }
}
