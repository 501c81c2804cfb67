//! Descriptors of forebay's in a process whose program may close them.

use std::mem::ManuallyDrop;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

use forebay_error::{Error, Result};

use crate::sys::{self, Identity};

/// A descriptor of ours, and what it was opened of.
///
/// A program may close all descriptors that it does not know (`closefrom`, `close_range`), and a number of ours be another
/// file's afterwards. So its file is looked at before the number is used, and what is another file's is not closed.
#[derive(Debug)]
pub(crate) struct Owned {
    fd: ManuallyDrop<OwnedFd>,
    identity: Identity,
}

impl Owned {
    pub(crate) fn new(fd: OwnedFd, identity: Identity) -> Self {
        Self { fd: ManuallyDrop::new(fd), identity }
    }

    /// One of nothing that has a number yet, moved to where the program's own are not.
    pub(crate) fn apart(fd: OwnedFd) -> Result<Self> {
        let fd = apart(fd);
        let identity = sys::identity(fd.as_raw_fd());
        identity.map(|identity| Self::new(fd, identity)).ok_or_else(lost)
    }

    /// Whether the number still is what it was.
    pub(crate) fn is_itself(&self) -> bool {
        sys::identity(self.fd.as_raw_fd()) == Some(self.identity)
    }
}

impl AsRawFd for Owned {
    fn as_raw_fd(&self) -> RawFd {
        self.fd.as_raw_fd()
    }
}

impl Drop for Owned {
    fn drop(&mut self) {
        if self.is_itself() {
            // SAFETY: dropped here, once, and not used afterwards.
            unsafe { ManuallyDrop::drop(&mut self.fd) };
        }
    }
}

/// The error where the program closed what is ours.
#[cold]
pub(crate) fn lost() -> Error {
    Error::from_errno(libc::EBADF, "a descriptor of forebay's was closed by the program")
        .hint("open the file again; close only your own descriptors (closefrom and close_range take those of libraries, too)")
}

/// Numbers from here on are hardly ever another file's: the kernel gives out the lowest that is free.
pub(crate) const APART: RawFd = 512;

/// The same under a high number, where the limit of open files has any. Not for files, of which closing a descriptor takes
/// the process's POSIX locks.
pub(crate) fn apart(fd: OwnedFd) -> OwnedFd {
    // SAFETY: no pointers are passed.
    let moved = unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_DUPFD_CLOEXEC, APART) };
    if moved < 0 {
        return fd;
    }
    // SAFETY: the descriptor is new and ours alone.
    unsafe { OwnedFd::from_raw_fd(moved) }
}
