//! Threads that run no signal handlers of the program's.

use std::io;
use std::thread::{Builder, JoinHandle};

/// Signals that stay open on our threads: those that a fault of the thread's own raises, which would otherwise end the
/// process without its handlers (crash reporters, sanitizers), and the profilers' clock.
const OPEN: [libc::c_int; 8] = [
    libc::SIGSEGV,
    libc::SIGBUS,
    libc::SIGFPE,
    libc::SIGILL,
    libc::SIGTRAP,
    libc::SIGSYS,
    libc::SIGABRT,
    libc::SIGPROF,
];

/// Starts a thread of ours. A signal to the process goes to one of the program's threads: its handlers never run here, and
/// interrupt none of our calls.
pub fn spawn<T: Send + 'static>(
    name: impl Into<String>,
    body: impl FnOnce() -> T + Send + 'static,
) -> io::Result<JoinHandle<T>> {
    without_signals(|| Builder::new().name(name.into()).spawn(body))
}

/// Does something with all signals blocked on this thread, but those of faults and the profilers' clock. Threads that it starts
/// keep them blocked.
pub fn without_signals<T>(work: impl FnOnce() -> T) -> T {
    // SAFETY: all-zero bytes are a valid signal set; both sets are valid places; the old mask is put back.
    unsafe {
        let (mut closed, mut before): (libc::sigset_t, libc::sigset_t) = std::mem::zeroed();
        libc::sigfillset(&mut closed);
        for signal in OPEN {
            libc::sigdelset(&mut closed, signal);
        }
        libc::pthread_sigmask(libc::SIG_BLOCK, &closed, &mut before);
        let done = work();
        libc::pthread_sigmask(libc::SIG_SETMASK, &before, std::ptr::null_mut());
        done
    }
}
