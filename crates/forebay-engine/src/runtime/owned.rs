//! Descriptors of ours in a process whose program may close them.

use std::mem::ManuallyDrop;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};

use forebay_error::{Error, Result};
use forebay_sys::descriptor_table::HIGH_DESCRIPTOR;

use crate::runtime::sys::{self, Identity};

/// A descriptor of ours, and its file.
///
/// A program may close all descriptors that it does not know (`closefrom`, `close_range`). A number of ours may then become
/// another file's, or the program's own opening of the same file. So the file is compared before the number is used, and the
/// number is closed only if the opening has our mark as well.
#[derive(Debug)]
pub(crate) struct Owned {
    fd: ManuallyDrop<OwnedFd>,
    identity: Identity,
    is_marked: bool,
}

/// The mark of an opening: the signal for asynchronous I/O (`F_SETSIG`), which is the default, set explicitly.
const MARK: i32 = libc::SIGIO;
const F_SETSIG: i32 = 10;
const F_GETSIG: i32 = 11;

impl Owned {
    /// A descriptor whose opening is ours alone.
    pub(crate) fn new(fd: OwnedFd, identity: Identity) -> Self {
        // SAFETY: no pointers are passed.
        let is_marked = unsafe { libc::fcntl(fd.as_raw_fd(), F_SETSIG, MARK) } == 0;
        Self { fd: ManuallyDrop::new(fd), identity, is_marked }
    }

    /// A descriptor that shares the program's opening, which gets no mark.
    pub(crate) fn sharing(fd: OwnedFd, identity: Identity) -> Self {
        Self { fd: ManuallyDrop::new(fd), identity, is_marked: false }
    }

    /// A new descriptor of ours, moved to a high number, away from the program's own.
    pub(crate) fn at_high_number(fd: OwnedFd) -> Result<Self> {
        let fd = move_high(fd);
        let identity = sys::identity(fd.as_raw_fd());
        identity.map(|identity| Self::new(fd, identity)).ok_or_else(lost)
    }

    /// Whether the number still names its file.
    pub(crate) fn is_itself(&self) -> bool {
        sys::identity(self.fd.as_raw_fd()) == Some(self.identity)
    }

    /// Whether it also is our opening.
    pub(crate) fn is_ours(&self) -> bool {
        // SAFETY: no pointers are passed.
        let has_mark = || unsafe { libc::fcntl(self.fd.as_raw_fd(), F_GETSIG) } == MARK;
        self.is_itself() && (!self.is_marked || has_mark())
    }
}

impl AsRawFd for Owned {
    fn as_raw_fd(&self) -> RawFd {
        self.fd.as_raw_fd()
    }
}

impl Drop for Owned {
    fn drop(&mut self) {
        if self.is_ours() {
            // SAFETY: dropped here, once, and not used afterwards.
            unsafe { ManuallyDrop::drop(&mut self.fd) };
        }
    }
}

/// The error for a descriptor of ours that the program closed.
#[cold]
pub(crate) fn lost() -> Error {
    Error::from_errno(libc::EBADF, "a descriptor of forebay's was closed by the program")
        .hint("open the file again; close only your own descriptors (closefrom and close_range take those of libraries, too)")
}

/// The same descriptor under a high number, if the limit of open files allows. Not for files: closing one of their descriptors
/// releases the process's POSIX locks.
pub(crate) fn move_high(fd: OwnedFd) -> OwnedFd {
    rustix::io::fcntl_dupfd_cloexec(&fd, HIGH_DESCRIPTOR).unwrap_or(fd)
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use super::*;

    fn is_open(fd: RawFd) -> bool {
        // SAFETY: no pointers are passed.
        unsafe { libc::fcntl(fd, libc::F_GETFD) >= 0 }
    }

    #[test]
    fn only_our_own_opening_is_closed() {
        let path = std::env::current_exe().unwrap();
        let open = || OwnedFd::from(File::open(&path).unwrap());
        for is_replaced in [false, true] {
            let fd = move_high(open());
            let (number, identity) = (fd.as_raw_fd(), sys::identity(fd.as_raw_fd()).unwrap());
            let owned = Owned::new(fd, identity);
            assert!(owned.is_ours());
            if is_replaced {
                let other = open();
                // SAFETY: no pointers are passed; the number is ours.
                unsafe { libc::dup2(other.as_raw_fd(), number) };
                assert!(owned.is_itself() && !owned.is_ours(), "the program's opening of the same file");
            }
            drop(owned);
            assert_eq!(is_open(number), is_replaced);
            // SAFETY: its owner is gone.
            unsafe { libc::close(number) };
        }
    }
}
