//! Descriptors of forebay's in a process whose program may close them.

use std::mem::ManuallyDrop;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

use forebay_config::files::APART;
use forebay_error::{Error, Result};

use crate::runtime::sys::{self, Identity};

/// A descriptor of ours, and what it was opened of.
///
/// A program may close all descriptors that it does not know (`closefrom`, `close_range`), and a number of ours be another
/// file's afterwards, or the program's own opening of the same file. So its file is looked at before the number is used,
/// and it is closed only if the opening bears our mark as well.
#[derive(Debug)]
pub(crate) struct Owned {
    fd: ManuallyDrop<OwnedFd>,
    identity: Identity,
    is_marked: bool,
}

/// The mark of an opening: a signal that it would send if somebody asked for any (`F_SETSIG`). It is the usual one, which
/// openings have without being told.
const MARK: i32 = libc::SIGIO;
const F_SETSIG: i32 = 10;
const F_GETSIG: i32 = 11;

impl Owned {
    /// One whose opening is ours alone.
    pub(crate) fn new(fd: OwnedFd, identity: Identity) -> Self {
        // SAFETY: no pointers are passed.
        let is_marked = unsafe { libc::fcntl(fd.as_raw_fd(), F_SETSIG, MARK) } == 0;
        Self { fd: ManuallyDrop::new(fd), identity, is_marked }
    }

    /// One that shares the opening of somebody else, who would see the mark.
    pub(crate) fn sharing(fd: OwnedFd, identity: Identity) -> Self {
        Self { fd: ManuallyDrop::new(fd), identity, is_marked: false }
    }

    /// One of nothing that has a number yet, moved to where the program's own are not.
    pub(crate) fn apart(fd: OwnedFd) -> Result<Self> {
        let fd = apart(fd);
        let identity = sys::identity(fd.as_raw_fd());
        identity.map(|identity| Self::new(fd, identity)).ok_or_else(lost)
    }

    /// Whether the number still is of the file that it was of.
    pub(crate) fn is_itself(&self) -> bool {
        sys::identity(self.fd.as_raw_fd()) == Some(self.identity)
    }

    /// Whether it is our opening, too.
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

/// The error where the program closed what is ours.
#[cold]
pub(crate) fn lost() -> Error {
    Error::from_errno(libc::EBADF, "a descriptor of forebay's was closed by the program")
        .hint("open the file again; close only your own descriptors (closefrom and close_range take those of libraries, too)")
}

/// The same descriptor under a high number, where the limit of open files has any. Not for files, of which closing a descriptor takes
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
            let fd = apart(open());
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
            // SAFETY: it is nobody's any more.
            unsafe { libc::close(number) };
        }
    }
}
