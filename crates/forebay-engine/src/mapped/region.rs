//! A file's pages in this process's address space, for a device to read. The CPU never touches them: a file that is cut
//! short would raise SIGBUS.

use std::os::fd::RawFd;

use forebay_error::{Error, ErrorKind, Result};
use forebay_gpu::Access;

const PAGE: u64 = 4096;
/// Files beyond this are not mapped: the address space is finite.
const LONGEST: u64 = 16 << 40;

/// A MAP_SHARED mapping of a whole file. (Never MAP_PRIVATE: pinning such pages copies them, or never ends.)
#[derive(Debug)]
pub(crate) struct Region {
    start: usize,
    len: usize,
}

impl Region {
    /// Maps the first `len` bytes of the file, in whole pages.
    pub(crate) fn map(fd: RawFd, len: u64, access: Access) -> Result<Self> {
        if len == 0 || len > LONGEST {
            return Err(
                Error::new(ErrorKind::Unsupported, "a file of this length is not mapped").with("bytes", len)
            );
        }
        let len = len.next_multiple_of(PAGE) as usize;
        let protection = match access {
            Access::ReadOnly => libc::PROT_READ,
            Access::ReadWrite => libc::PROT_READ | libc::PROT_WRITE,
        };
        let flags = libc::MAP_SHARED | libc::MAP_NORESERVE;
        // SAFETY: a fresh mapping; no address is asked for.
        let start = unsafe { libc::mmap(std::ptr::null_mut(), len, protection, flags, fd, 0) };
        if start == libc::MAP_FAILED {
            return Err(Error::last_os("cannot map the file").with("bytes", len));
        }
        // A child of fork must not inherit pages that a device reads by this process's page tables.
        // SAFETY: the range was mapped above.
        unsafe { libc::madvise(start, len, libc::MADV_DONTFORK) };
        Ok(Self { start: start as usize, len })
    }

    /// The address of a file offset, on the CPU and on the device alike.
    pub(crate) fn address(&self, offset: u64) -> u64 {
        self.start as u64 + offset
    }

    /// Brings a range's pages into the page cache and the page tables. A range that is not in the file any more is an
    /// error here, where the driver's own walk would be slower and say less.
    pub(crate) fn populate(&self, offset: u64, len: usize) -> Result<()> {
        const POPULATE_READ: libc::c_int = 22;
        // SAFETY: `madvise` checks the range; this advice changes no bytes.
        let rc = unsafe { libc::madvise(self.address(offset) as *mut _, len, POPULATE_READ) };
        // Kernels before 5.14 do not know the advice: then the driver faults the pages in.
        if rc < 0 && std::io::Error::last_os_error().raw_os_error() != Some(libc::EINVAL) {
            return Err(Error::last_os("cannot bring the file's pages into memory").with("offset", offset));
        }
        Ok(())
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        // SAFETY: mapped in `map`; pins hold the region until they are unregistered.
        unsafe { libc::munmap(self.start as *mut _, self.len) };
    }
}
