//! Descriptors of files, opened by us or shared with the caller.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::path::Path;

use forebay_error::{Error, Result};

use super::idle::KeptDescriptor;
use crate::runtime::owned::{Owned, lost};
use crate::runtime::sys;

/// A descriptor that files are read and written by.
#[derive(Debug)]
pub(crate) enum Fd {
    /// Of a file that we opened by its path.
    Own(Owned),
    /// Of a file that the caller has open too: closed when that releases no lock.
    Kept(KeptDescriptor),
}

impl Fd {
    /// An error if the program closed it.
    pub(crate) fn check(&self) -> Result<()> {
        let is_itself = match self {
            Self::Own(fd) => fd.is_itself(),
            Self::Kept(kept) => kept.is_itself(),
        };
        if is_itself { Ok(()) } else { Err(lost()) }
    }

    /// Whether it shares the opening of the caller's descriptor.
    pub(super) fn is_shared(&self) -> bool {
        matches!(self, Self::Kept(kept) if kept.is_shared())
    }
}

impl AsFd for Fd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: we close it no earlier than the borrow ends. The program may (see `Owned`): the number then is closed or another file's,
        // and what borrows it only passes it to calls of the kernel's, which fail with EBADF or are found out by `Fd::check`.
        unsafe { BorrowedFd::borrow_raw(self.as_raw_fd()) }
    }
}

impl AsRawFd for Fd {
    fn as_raw_fd(&self) -> RawFd {
        match self {
            Self::Own(fd) => fd.as_raw_fd(),
            Self::Kept(kept) => kept.as_raw_fd(),
        }
    }
}

/// Shares the caller's opening of a file that cannot be opened again.
pub(super) fn duplicate(fd: RawFd) -> Result<OwnedFd> {
    // SAFETY: no pointers are passed.
    let copy = unsafe { libc::fcntl(fd, libc::F_DUPFD_CLOEXEC, FIRST_FREE) };
    if copy < 0 {
        return Err(Error::last_os("cannot duplicate the descriptor").with("fd", fd));
    }
    // SAFETY: the descriptor is new and ours alone.
    Ok(unsafe { OwnedFd::from_raw_fd(copy) })
}

/// Numbers below this are standard input, output and error, even where those are closed.
const FIRST_FREE: RawFd = 3;

/// Opens a file again that the caller has open as `fd`, with a number of at least [`FIRST_FREE`]. Or an errno.
///
/// The low numbers are taken before: to move one up later it would have to be closed, which releases the process's POSIX
/// locks on the file.
pub(super) fn reopen(fd: RawFd, flags: i32) -> std::result::Result<OwnedFd, i32> {
    let _placeholders = placeholders();
    // The thread's own table: the main thread, which /proc/self stands for, may have ended or have another.
    let path = format!("/proc/thread-self/fd/{fd}");
    let opened = sys::open(Path::new(&path), flags, 0)?;
    if opened.as_raw_fd() >= FIRST_FREE {
        return Ok(opened);
    }
    // Another thread has just closed a low number.
    // SAFETY: no pointers are passed.
    let moved = unsafe { libc::fcntl(opened.as_raw_fd(), libc::F_DUPFD_CLOEXEC, FIRST_FREE) };
    let errno = std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO);
    // Never closed: that would release locks.
    std::mem::forget(opened);
    if moved < 0 {
        return Err(errno);
    }
    // SAFETY: the descriptor is new and ours alone.
    Ok(unsafe { OwnedFd::from_raw_fd(moved) })
}

/// Descriptors that take the free low numbers.
fn placeholders() -> Vec<OwnedFd> {
    // SAFETY: no pointers are passed.
    let is_taken = |fd| unsafe { libc::fcntl(fd, libc::F_GETFD) } >= 0;
    let mut held = Vec::new();
    while !(0..FIRST_FREE).all(is_taken) && held.len() < FIRST_FREE as usize {
        let Ok(placeholder) = sys::eventfd() else { break };
        held.push(placeholder);
    }
    held
}
