//! Pages that the fake maps.

use crate::result::{Answer, INVALID_VALUE, OUT_OF_MEMORY};

/// Pages mapped by us, unmapped when dropped.
#[derive(Debug)]
pub(crate) struct MappedPages {
    pub(crate) address: u64,
    pub(crate) len: usize,
}

impl MappedPages {
    /// Zeroed memory that can be read and written.
    pub(crate) fn usable(len: usize) -> Answer<Self> {
        Self::map(len, libc::PROT_READ | libc::PROT_WRITE)
    }

    /// Addresses that nobody may touch.
    pub(crate) fn forbidden(len: usize) -> Answer<Self> {
        Self::map(len, libc::PROT_NONE)
    }

    fn map(len: usize, protection: i32) -> Answer<Self> {
        if len == 0 {
            return Err(INVALID_VALUE);
        }
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        // SAFETY: an anonymous mapping at an address of the kernel's choice touches nothing that exists.
        let address = unsafe { libc::mmap(std::ptr::null_mut(), len, protection, flags, -1, 0) };
        if address == libc::MAP_FAILED {
            Err(OUT_OF_MEMORY)
        } else {
            Ok(Self { address: address as u64, len })
        }
    }
}

impl Drop for MappedPages {
    fn drop(&mut self) {
        // SAFETY: mapped by us and unmapped once.
        unsafe { libc::munmap(self.address as *mut _, self.len) };
    }
}
