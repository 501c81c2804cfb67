//! A range of a source beside its memory, and which way its bytes go.

use forebay_gpu::Access;

/// Which way bytes go.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Direction {
    /// From the source to memory.
    Read,
    /// From memory to the source.
    Write,
}

impl Direction {
    /// What a device must be able to do with the source's pages.
    pub(crate) const fn access(self) -> Access {
        match self {
            Self::Read => Access::ReadOnly,
            Self::Write => Access::ReadWrite,
        }
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
