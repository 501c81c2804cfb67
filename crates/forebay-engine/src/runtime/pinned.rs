//! Host memory that a device reaches.

use std::mem::ManuallyDrop;
use std::sync::Arc;

use forebay_error::Result;
use forebay_gpu::Device;

use crate::runtime::sys::Pages;
use crate::runtime::traffic;

/// Pages of our own, pinned for every context of a device.
#[derive(Debug)]
pub(crate) struct PinnedPages {
    pages: ManuallyDrop<Pages>,
    device: Arc<dyn Device>,
    reach: u64,
}

impl PinnedPages {
    /// `len` bytes or more, zeroed.
    pub(crate) fn new(device: &Arc<dyn Device>, len: usize) -> Result<Self> {
        let pages = Pages::new(len)?;
        touch(pages.as_ptr(), pages.len());
        // SAFETY: the pages live until they are unpinned: see `drop`.
        let reach = unsafe { device.pin(pages.as_ptr(), pages.len()) }?;
        Ok(Self { pages: ManuallyDrop::new(pages), device: device.clone(), reach })
    }

    /// Their address for the CPU.
    pub(crate) fn as_ptr(&self) -> *mut u8 {
        self.pages.as_ptr()
    }

    /// Their bytes.
    pub(crate) fn len(&self) -> usize {
        self.pages.len()
    }

    /// Their address for the device.
    pub(crate) fn reach(&self) -> u64 {
        self.reach
    }
}

/// Allocates the memory now, in huge pages where the kernel has them: O_DIRECT and the driver then handle one of them instead
/// of 512 small ones. A kernel without this call allocates it when the pages are pinned.
pub(super) fn touch(start: *mut u8, len: usize) {
    // SAFETY: the range is our own mapping; its bytes stay as they are.
    unsafe { libc::madvise(start.cast(), len, libc::MADV_POPULATE_WRITE) };
}

/// Lets the kernel have the memory again. It is zero when it is used next.
pub(super) fn give_back(start: *mut u8, len: usize) {
    // SAFETY: the range is our own mapping, which nobody uses.
    unsafe { libc::madvise(start.cast(), len, libc::MADV_DONTNEED) };
}

impl Drop for PinnedPages {
    fn drop(&mut self) {
        // SAFETY: taken out once, here.
        let pages = unsafe { ManuallyDrop::take(&mut self.pages) };
        let device = self.device.clone();
        // Unpinning waits for all streams, one of which may wait for this thread.
        traffic::when_clear(move || {
            // SAFETY: pinned in `new`; owners wait for their copies before they drop their memory.
            unsafe { device.unpin(pages.as_ptr()) };
        });
    }
}
