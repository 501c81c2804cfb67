//! The list that one kernel copies many pieces by.

use std::ops::Range;
use std::sync::Arc;

use forebay_error::Result;
use forebay_gpu::{CopyPiece, Device};

use super::route::inside;
use super::window::Pinned;
use crate::pinned::PinnedPages;
use crate::transfer::{Batch, Direction};

/// Pinned memory of one kernel's list.
pub(super) struct List {
    pages: PinnedPages,
    room: usize,
}

/// What was written down.
#[derive(Clone, Copy, Debug)]
pub(super) struct Written {
    pub(super) count: usize,
    /// The longest piece.
    pub(super) longest: usize,
    pub(super) bytes: u64,
}

impl List {
    /// With room for so many pieces.
    pub(super) fn new(device: &Arc<dyn Device>, room: usize) -> Result<Self> {
        Ok(Self { pages: PinnedPages::new(device, room * size_of::<CopyPiece>())?, room })
    }

    /// Its address for the device.
    pub(super) fn reach(&self) -> u64 {
        self.pages.reach()
    }

    /// Writes down some entries of a batch, as far as the file of `len` bytes has them. Pins of all their windows are held,
    /// and there is room.
    pub(super) fn write(&self, batch: &Batch, entries: Range<u32>, pinned: &Pinned, len: u64) -> Written {
        // Without any window there are no bytes, and nobody reads through the address.
        let first_page = pinned.address(0).unwrap_or_default();
        let mut written = Written { count: entries.len(), longest: 0, bytes: 0 };
        let pieces = &batch.pieces[entries.start as usize..entries.end as usize];
        for (index, piece) in pieces.iter().enumerate() {
            let (start, end) = inside(piece, len);
            let page = first_page + start;
            let (src, dst) = match batch.direction {
                Direction::Read => (page, piece.address),
                Direction::Write => (piece.address, page),
            };
            let len = end - start;
            written.longest = written.longest.max(len as usize);
            written.bytes += len;
            self.set(index, CopyPiece { src, dst, len });
        }
        written
    }

    fn set(&self, index: usize, piece: CopyPiece) {
        assert!(index < self.room, "the list is full");
        #[allow(clippy::cast_ptr_alignment, reason = "the pages are aligned to far more than a piece")]
        // SAFETY: the index is below the room; nobody reads the list before its kernel is queued.
        unsafe {
            self.pages.as_ptr().cast::<CopyPiece>().add(index).write(piece);
        }
    }
}
