//! Memory that a device lends to others.

use std::os::fd::OwnedFd;

use crate::{Context, DeviceRange};

/// An allocation of device memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Allocation {
    /// The driver's number for it; none has it again.
    pub id: u64,
    /// Its memory.
    pub range: DeviceRange,
    /// The context that it belongs to.
    pub context: Context,
}

/// Device memory as other devices' drivers take it.
#[derive(Debug)]
pub struct DmaBuf {
    /// The dma-buf.
    pub fd: OwnedFd,
    /// Where the allocation begins in it.
    pub offset: u64,
}
