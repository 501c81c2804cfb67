//! Host memory that a device reaches.

use std::mem::ManuallyDrop;
use std::sync::Arc;

use forebay_error::Result;
use forebay_gpu::{Device, HostRange};

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
        touch(pages.range());
        // SAFETY: the pages live until they are unpinned: see `drop`.
        let reach = unsafe { device.pin(pages.range()) }?;
        Ok(Self { pages: ManuallyDrop::new(pages), device: device.clone(), reach })
    }

    /// The pages' address for the CPU.
    pub(crate) fn as_ptr(&self) -> *mut u8 {
        self.pages.range().start
    }

    /// The pages' length in bytes.
    pub(crate) fn len(&self) -> usize {
        self.pages.range().len
    }

    /// The pages' address for the device.
    pub(crate) fn reach(&self) -> u64 {
        self.reach
    }
}

/// Allocates new memory, which is zero and stays so, now: in huge pages where the kernel has them: O_DIRECT and the driver then handle one of them instead
/// of 512 small ones. By stores, not by `MADV_POPULATE_WRITE`, which holds the lock of the address space for the whole range:
/// threads that start and memory that is allocated on the device meanwhile, which map something, wait for it (twelve threads of 4 MiB
/// each: 7 ms in place of 1, and 30 ms for 200 tensors in place of 7).
pub(super) fn touch(memory: HostRange) {
    for at in (0..memory.len).step_by(forebay_sys::page_size()) {
        // SAFETY: the range is our own mapping, which nobody uses yet.
        unsafe { memory.start.add(at).write_volatile(0) };
    }
}

/// Lets the kernel have the memory again. It is zero when it is used next.
pub(super) fn give_back(memory: HostRange) {
    // SAFETY: the range is our own mapping, which nobody uses.
    unsafe { libc::madvise(memory.start.cast(), memory.len, libc::MADV_DONTNEED) };
}

impl Drop for PinnedPages {
    fn drop(&mut self) {
        // SAFETY: taken out once, here.
        let pages = unsafe { ManuallyDrop::take(&mut self.pages) };
        let device = self.device.clone();
        // Unpinning waits for all streams, one of which may wait for this thread.
        traffic::when_clear(move || {
            // SAFETY: pinned in `new`; owners wait for their copies before they drop their memory.
            unsafe { device.unpin(pages.range().start) };
        });
    }
}
