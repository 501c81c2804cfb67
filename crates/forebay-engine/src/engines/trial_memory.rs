//! Device memory that engines keep for trials.

use std::sync::Arc;

use forebay_error::Result;
use forebay_gpu::{Allocation, Device};

/// Device memory, for as long as it is ours: a program may reset its device, and have other memory at the same address then.
pub(crate) struct TrialMemory {
    pub(crate) device: Arc<dyn Device>,
    pub(crate) start: u64,
    /// As the driver told. `None` of memory that no reset takes.
    allocation: Option<Allocation>,
}

impl TrialMemory {
    pub(crate) fn new(device: &Arc<dyn Device>, len: usize) -> Result<Self> {
        let (start, is_gpu) = (device.allocate(len)?, !device.info().is_host && !device.info().is_bar);
        let allocation = device.allocation(start);
        if let (true, Err(error)) = (is_gpu, &allocation) {
            // Nobody could tell later whose it is.
            // SAFETY: allocated above, and not used.
            unsafe { device.free(start) };
            return Err(error.clone());
        }
        Ok(Self { device: device.clone(), start, allocation: allocation.ok() })
    }

    /// Whether it is still there.
    pub(crate) fn is_there(&self) -> bool {
        self.device.allocation(self.start).ok() == self.allocation
    }
}

impl Drop for TrialMemory {
    fn drop(&mut self) {
        if self.is_there() {
            // SAFETY: allocated in `new`, and still that; all calls on it have ended.
            unsafe { self.device.free(self.start) };
        }
    }
}
