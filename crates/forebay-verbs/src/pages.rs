//! Memory of this process alone.

use std::ptr;

use forebay_error::{Error, Result};
use forebay_sys::HostRange;

/// Whole pages that a forked child does not get: what a device writes there is this process's on every kernel
/// ([`crate::Domain::copies_at_fork`]).
#[derive(Debug)]
pub struct Pages {
    memory: HostRange,
    /// The process that has them: in a child something else may be there.
    process: u32,
}

impl Pages {
    /// Room for at least one byte, all zero.
    pub fn new(len: usize) -> Result<Self> {
        let (protection, flags) =
            (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        let error = || Error::last_os("cannot allocate memory for RDMA").with("bytes", len);
        // SAFETY: new memory at an address of the kernel's choice.
        let start = unsafe { libc::mmap(ptr::null_mut(), len, protection, flags, -1, 0) };
        if start == libc::MAP_FAILED {
            return Err(error());
        }
        let pages = Self { memory: HostRange::new(start.cast(), len), process: std::process::id() };
        // SAFETY: the mapping that was just made, whole.
        if unsafe { libc::madvise(start, len, libc::MADV_DONTFORK) } != 0 {
            return Err(error());
        }
        Ok(pages)
    }

    /// All of it.
    pub const fn range(&self) -> HostRange {
        self.memory
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        if self.process == std::process::id() {
            // SAFETY: the mapping that `new` made, whole.
            unsafe { libc::munmap(self.memory.start.cast(), self.memory.len) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What the kernel says of a page: whether one is there.
    fn is_mapped(at: *mut u8) -> bool {
        // SAFETY: only asks.
        unsafe { libc::msync(at.cast(), 1, libc::MS_ASYNC) == 0 }
    }

    #[test]
    fn a_child_has_none_of_it_and_unmaps_nothing_else() {
        let mut pages = Pages::new(10_000).unwrap();
        assert!(is_mapped(pages.memory.start) && pages.range().len == 10_000);
        // SAFETY: the child calls functions that are safe after a fork only, and ends.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let is_gone = !is_mapped(pages.memory.start);
            let (fixed, at) = (libc::MAP_FIXED | libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, pages.memory.start);
            // SAFETY: nothing is there; the drop is the one to be tested.
            let is_kept = unsafe {
                libc::mmap(at.cast(), 4096, libc::PROT_READ, fixed, -1, 0);
                ptr::drop_in_place(&raw mut pages);
                is_mapped(at)
            };
            // SAFETY: ends the child.
            unsafe { libc::_exit(i32::from(!(is_gone && is_kept))) };
        }
        let mut status = -1;
        // SAFETY: the child is ours.
        unsafe { libc::waitpid(child, &raw mut status, 0) };
        assert_eq!(status, 0);
    }
}
