//! Pages that the fake maps.

use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use crate::result::{Answer, INVALID_VALUE, OUT_OF_MEMORY};

/// Pages mapped by us, unmapped when dropped.
#[derive(Debug)]
pub(crate) struct MappedPages {
    pub(crate) address: u64,
    pub(crate) len: usize,
    /// What the pages are of, where others may have them too.
    file: Option<OwnedFd>,
}

impl MappedPages {
    /// Zeroed memory that can be given to other devices: what they write is seen here, and they keep it after it was freed.
    pub(crate) fn shared(len: usize) -> Answer<Self> {
        let len = len.checked_next_multiple_of(4096).ok_or(INVALID_VALUE)?;
        // SAFETY: a name that ends with zero; the descriptor is new and ours alone.
        let file = unsafe {
            let fd = libc::memfd_create(c"fake-cuda".as_ptr(), libc::MFD_CLOEXEC);
            if fd < 0 || len == 0 {
                return Err(OUT_OF_MEMORY);
            }
            OwnedFd::from_raw_fd(fd)
        };
        // SAFETY: no pointers are passed.
        if unsafe { libc::ftruncate(file.as_raw_fd(), len as i64) } != 0 {
            return Err(OUT_OF_MEMORY);
        }
        let mut pages = Self::map(len, libc::PROT_READ | libc::PROT_WRITE, file.as_raw_fd())?;
        pages.file = Some(file);
        Ok(pages)
    }

    /// A descriptor of the pages, for the caller to close.
    pub(crate) fn export(&self) -> Option<i32> {
        // SAFETY: no pointers are passed.
        let fd = unsafe { libc::fcntl(self.file.as_ref()?.as_raw_fd(), libc::F_DUPFD_CLOEXEC, 3) };
        (fd >= 0).then_some(fd)
    }

    /// Zeroed memory that can be read and written.
    pub(crate) fn usable(len: usize) -> Answer<Self> {
        let pages = Self::map(len, libc::PROT_READ | libc::PROT_WRITE, -1)?;
        // Tests touch much new memory: one fault for 2 MiB in place of 512. A kernel without huge pages has small ones.
        // SAFETY: our own mapping, whose bytes the advice does not change.
        unsafe { libc::madvise(pages.address as *mut _, len, libc::MADV_HUGEPAGE) };
        Ok(pages)
    }

    /// Addresses that nobody may touch.
    pub(crate) fn forbidden(len: usize) -> Answer<Self> {
        Self::map(len, libc::PROT_NONE, -1)
    }

    fn map(len: usize, protection: i32, file: i32) -> Answer<Self> {
        if len == 0 {
            return Err(INVALID_VALUE);
        }
        let own = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        let flags = if file < 0 { own } else { libc::MAP_SHARED };
        // SAFETY: a new mapping at an address of the kernel's choice touches nothing that exists.
        let address = unsafe { libc::mmap(std::ptr::null_mut(), len, protection, flags, file, 0) };
        if address == libc::MAP_FAILED {
            Err(OUT_OF_MEMORY)
        } else {
            Ok(Self { address: address as u64, len, file: None })
        }
    }
}

impl Drop for MappedPages {
    fn drop(&mut self) {
        // SAFETY: mapped by us and unmapped once.
        unsafe { libc::munmap(self.address as *mut _, self.len) };
    }
}
