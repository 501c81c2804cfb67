//! Ctrl-C and termination as a flag, for commands that clean up.

use std::sync::atomic::{AtomicI32, Ordering};

/// The first signal that came; 0 if none did.
static CAUGHT: AtomicI32 = AtomicI32::new(0);

extern "C" fn catch(signal: libc::c_int) {
    let _ = CAUGHT.compare_exchange(0, signal, Ordering::SeqCst, Ordering::SeqCst);
    forebay_remote::stop::stop_waiting(true);
}

/// From now until it is dropped, the first SIGINT, SIGTERM and SIGHUP set a flag in place of ending the process, and
/// end waits for an NFS server. The second of its kind ends it: the command may be stuck, for example in a pipe that
/// nobody reads.
pub(crate) struct Guard {
    before: [(libc::c_int, libc::sigaction); 3],
}

impl Guard {
    pub(crate) fn new() -> Self {
        CAUGHT.store(0, Ordering::SeqCst);
        forebay_remote::stop::stop_waiting(false);
        let before = [libc::SIGINT, libc::SIGTERM, libc::SIGHUP].map(|signal| {
            // SAFETY: all-zero bytes are a valid sigaction; the handler only stores to atomics; no SA_RESTART, so
            // that waits in system calls end.
            unsafe {
                let mut ours: libc::sigaction = std::mem::zeroed();
                let mut before: libc::sigaction = std::mem::zeroed();
                ours.sa_flags = libc::SA_RESETHAND;
                ours.sa_sigaction = catch as extern "C" fn(libc::c_int) as libc::sighandler_t;
                libc::sigaction(signal, &ours, &mut before);
                // A command started with nohup keeps ignoring hang-ups.
                if before.sa_sigaction == libc::SIG_IGN {
                    libc::sigaction(signal, &before, std::ptr::null_mut());
                }
                (signal, before)
            }
        });
        Self { before }
    }

    /// The signal that came, if one did.
    pub(crate) fn caught() -> Option<libc::c_int> {
        Some(CAUGHT.load(Ordering::SeqCst)).filter(|signal| *signal != 0)
    }
}

/// The exit code after a signal, as shells report it.
pub(crate) fn exit_code(signal: libc::c_int) -> i32 {
    128 + signal
}

impl Drop for Guard {
    fn drop(&mut self) {
        for (signal, before) in &self.before {
            // SAFETY: puts back what sigaction gave in `new`.
            unsafe { libc::sigaction(*signal, before, std::ptr::null_mut()) };
        }
    }
}
