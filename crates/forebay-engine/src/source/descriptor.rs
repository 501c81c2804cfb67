//! Descriptors, and whose they are.

use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::path::Path;

use super::idle::Kept;
use crate::sys::{self, EventFd};

/// A descriptor that files are read and written by.
#[derive(Debug)]
pub(crate) enum Fd {
    /// Ours alone.
    Own(OwnedFd),
    /// Ours, of a file that somebody else has open too: closed when that can take no lock from him.
    Kept(Kept),
    /// The caller's, who keeps it open.
    Callers(RawFd),
}

impl Fd {
    pub(crate) fn is_ours(&self) -> bool {
        !matches!(self, Self::Callers(_))
    }
}

impl AsRawFd for Fd {
    fn as_raw_fd(&self) -> RawFd {
        match self {
            Self::Own(fd) => fd.as_raw_fd(),
            Self::Kept(kept) => kept.as_raw_fd(),
            Self::Callers(fd) => *fd,
        }
    }
}

/// Numbers below this are standard input, output and error, even where those are closed.
const LEAST: RawFd = 3;

/// Opens a file again that somebody has open as `fd`, with a number of at least [`LEAST`]. Or an errno.
///
/// A low number is not moved up afterwards, since closing it would take the process's POSIX locks on the file: the low
/// numbers are taken before.
pub(super) fn reopen(fd: RawFd, flags: i32) -> Result<OwnedFd, i32> {
    let _placeholders = placeholders();
    // The thread's own table: the main thread, which /proc/self stands for, may have ended or have another.
    let path = format!("/proc/thread-self/fd/{fd}");
    let opened = sys::open(Path::new(&path), flags, 0)?;
    if opened.as_raw_fd() >= LEAST {
        return Ok(opened);
    }
    // Another thread has closed a low number just now.
    // SAFETY: no pointers are passed.
    let moved = unsafe { libc::fcntl(opened.as_raw_fd(), libc::F_DUPFD_CLOEXEC, LEAST) };
    let errno = std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO);
    // Never closed, for the sake of the locks.
    std::mem::forget(opened);
    if moved < 0 {
        return Err(errno);
    }
    // SAFETY: the descriptor is new and ours alone.
    Ok(unsafe { OwnedFd::from_raw_fd(moved) })
}

/// Descriptors of nothing that take the low numbers that are free.
fn placeholders() -> Vec<EventFd> {
    // SAFETY: no pointers are passed.
    let is_taken = |fd| unsafe { libc::fcntl(fd, libc::F_GETFD) } >= 0;
    let mut held = Vec::new();
    while !(0..LEAST).all(is_taken) && held.len() < LEAST as usize {
        let Ok(placeholder) = EventFd::new() else { break };
        held.push(placeholder);
    }
    held
}
