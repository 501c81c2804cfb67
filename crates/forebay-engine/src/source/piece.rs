//! A range of a source with its memory, and the direction of its bytes.

use forebay_gpu::{Access, DeviceRange};
pub use forebay_source::Direction;

/// What a device must be able to do with the source's pages.
pub(crate) const fn access_for(direction: Direction) -> Access {
    match direction {
        Direction::Read => Access::ReadOnly,
        Direction::Write => Access::ReadWrite,
    }
}

/// One piece of a [`Batch`](crate::Batch).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// Offset in the source.
    pub offset: u64,
    /// Address in memory.
    pub address: u64,
    /// Bytes.
    pub len: usize,
}

impl Piece {
    /// The memory.
    pub(crate) const fn memory(&self) -> DeviceRange {
        DeviceRange::new(self.address, self.len)
    }
}
