//! Threads that run no signal handlers of the program's.

use std::io;
use std::thread::{Builder, JoinHandle};

use crate::runtime::sys;

/// Signals that our threads do not block: those that a fault of the thread itself raises, since crash reporters and sanitizers
/// handle them, and the profilers' clock.
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

/// Prepares a thread of ours that works for a device: it runs on CPUs near the device, and its short waits are short.
pub(crate) fn settle(numa_node: Option<u32>) {
    if let Some(node) = numa_node {
        sys::bind_to_node(node);
    }
    // SAFETY: no pointers are passed; the timer slack is the thread's own.
    unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, 1, 0, 0, 0) };
}

/// Does something with all signals but [`OPEN`] blocked on this thread. Threads that it starts keep them blocked.
pub(crate) fn without_signals<T>(work: impl FnOnce() -> T) -> T {
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
