//! A transfer to make: a range of a source and a range of memory.

use std::marker::PhantomData;
use std::mem::ManuallyDrop;
use std::ops::Deref;
use std::sync::Arc;

use forebay_gpu::{Context, Device};

use crate::request::file::File;
use crate::source::piece::{Direction, Piece};

/// Memory on a device, by address.
#[derive(Clone, Debug)]
pub struct Memory {
    /// The device it belongs to (the host device for host memory).
    pub device: Arc<dyn Device>,
    /// The context that copies must run in.
    pub context: Context,
    /// Its first address.
    pub address: u64,
}

impl Memory {
    /// Memory of `device` in its primary context.
    pub fn new(device: Arc<dyn Device>, address: u64) -> Self {
        Self { device, context: Context::PRIMARY, address }
    }
}

/// A source range ⇄ a memory range.
#[derive(Clone, Debug)]
pub struct Transfer {
    /// The source.
    pub file: File,
    /// Offset in it.
    pub offset: u64,
    /// The memory.
    pub memory: Memory,
    /// Bytes.
    pub len: usize,
    /// Which way.
    pub direction: Direction,
    /// A read that meets the end of the source, and a write of which only a part finds room, are no errors. The result is
    /// the bytes moved from the transfer's start without a gap: see [`Receipt::bytes`](crate::Receipt::bytes).
    /// A file that shrinks and grows meanwhile may end in the middle of a read; nothing behind that place counts.
    pub allow_short: bool,
}

/// A transfer of a file and a device that others own. Making one counts no new owners: threads that share a file would fight
/// over the place where that is counted.
#[derive(Debug)]
pub struct BorrowedTransfer<'a> {
    transfer: ManuallyDrop<Transfer>,
    owners: PhantomData<(&'a File, &'a Arc<dyn Device>)>,
}

impl<'a> BorrowedTransfer<'a> {
    /// Of a range of the file and memory of the device, at this address of this context. See [`Transfer`].
    pub fn new(
        (file, offset): (&'a File, u64),
        (device, context, address): (&'a Arc<dyn Device>, Context, u64),
        (len, direction, allow_short): (usize, Direction, bool),
    ) -> Self {
        // SAFETY: copies that are never dropped, nor given away as owned values, of what lives for longer.
        let (file, device) = unsafe { (std::ptr::read(file), std::ptr::read(device)) };
        let memory = Memory { device, context, address };
        let transfer = Transfer { file, offset, memory, len, direction, allow_short };
        Self { transfer: ManuallyDrop::new(transfer), owners: PhantomData }
    }
}

impl Deref for BorrowedTransfer<'_> {
    type Target = Transfer;
    fn deref(&self) -> &Transfer {
        &self.transfer
    }
}

/// Many pieces of one source and one memory in one direction: the cheap form of many transfers.
#[derive(Clone, Debug)]
pub struct Batch {
    /// The source.
    pub file: File,
    /// Device and context of all addresses in `pieces`; its own address is not used.
    pub memory: Memory,
    /// Which way.
    pub direction: Direction,
    /// The pieces; each has its own result. Reads must not overlap in memory. Small ones cost least in the order of the
    /// file: neighbours share a kernel call.
    pub pieces: Vec<Piece>,
    /// As [`Transfer::allow_short`], for each piece.
    pub allow_short: bool,
}

impl Transfer {
    pub(crate) fn piece(&self) -> Piece {
        Piece { offset: self.offset, address: self.memory.address, len: self.len }
    }
}

impl Batch {
    /// A transfer as a batch of one piece.
    pub(crate) fn of(transfer: &Transfer) -> Self {
        Self {
            file: transfer.file.clone(),
            memory: transfer.memory.clone(),
            direction: transfer.direction,
            pieces: vec![transfer.piece()],
            allow_short: transfer.allow_short,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_borrowed_transfer_owns_nothing() {
        let temporary = tempfile::NamedTempFile::new().unwrap();
        let file = File::open(temporary.path()).unwrap();
        let device = forebay_gpu::host::device();
        let owners = || (Arc::strong_count(file.source()), Arc::strong_count(&device));
        let before = owners();
        let range = (7, Direction::Read, true);
        let owned = {
            let borrowed = BorrowedTransfer::new((&file, 5), (&device, Context::PRIMARY, 64), range);
            assert_eq!(owners(), before);
            assert_eq!((borrowed.offset, borrowed.memory.address, borrowed.len), (5, 64, 7));
            borrowed.clone()
        };
        assert_eq!(owners(), (before.0 + 2, before.1 + 1), "the handle of a file counts twice");
        drop(owned);
        assert_eq!(owners(), before);
    }
}
