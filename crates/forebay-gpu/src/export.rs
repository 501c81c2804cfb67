//! Memory that a device lends to others.

use std::os::fd::OwnedFd;

use crate::Context;

/// An allocation of device memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Allocation {
    /// The driver's number for it; none has it again.
    pub id: u64,
    /// Its first address.
    pub start: u64,
    /// Bytes.
    pub len: u64,
    /// The context that it belongs to.
    pub context: Context,
}

impl Allocation {
    /// Whether all of a range lies in it.
    pub fn holds(&self, address: u64, len: u64) -> bool {
        address >= self.start && (address - self.start).checked_add(len).is_some_and(|end| end <= self.len)
    }

    /// Whether a part of the other does.
    pub fn overlaps(&self, other: &Self) -> bool {
        self.start < other.start.saturating_add(other.len)
            && other.start < self.start.saturating_add(self.len)
    }
}

/// Device memory as other devices' drivers take it.
#[derive(Debug)]
pub struct DmaBuf {
    /// The dma-buf.
    pub fd: OwnedFd,
    /// Where the allocation begins in it.
    pub offset: u64,
}
