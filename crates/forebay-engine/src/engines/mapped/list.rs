//! The list that one kernel copies many pieces by.

use std::ops::Range;
use std::sync::Arc;

use forebay_error::Result;
use forebay_gpu::{CopyPiece, Device};

use super::route::inside;
use super::window::Pinned;
use crate::request::transfer::Batch;
use crate::runtime::pinned::PinnedPages;
use crate::source::piece::Direction;

/// Longer pieces are cut: a block of the kernel takes one, and all should be busy for about as long.
const CUT: u64 = 64 << 10;

/// Pinned memory of one kernel's list.
pub(super) struct List {
    pages: PinnedPages,
    room: usize,
}

/// What was written down.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
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
        let mut written = Written::default();
        let last = entries.end;
        let stop = self.add(&mut written, batch, entries, pinned, (len, u64::MAX));
        assert!(stop == last, "the list is full");
        written
    }

    /// As [`List::write`], behind what is written down already, as long as there is room and there are fewer than `most`
    /// bytes. The first entry that is left.
    pub(super) fn add(
        &self,
        written: &mut Written,
        batch: &Batch,
        entries: Range<u32>,
        pinned: &Pinned,
        (len, most): (u64, u64),
    ) -> u32 {
        // Without any window there are no bytes, and nobody reads through the address.
        let first_page = pinned.address(0).unwrap_or_default();
        for entry in entries.clone() {
            let piece = &batch.pieces[entry as usize];
            let (start, end) = inside(piece, len);
            let cuts = (end - start).div_ceil(CUT) as usize;
            if written.count + cuts > self.room || written.bytes >= most {
                return entry;
            }
            let (page, memory) = (first_page + start, piece.address);
            for from in (0..end - start).step_by(CUT as usize) {
                let (src, dst) = match batch.direction {
                    Direction::Read => (page + from, memory + from),
                    Direction::Write => (memory + from, page + from),
                };
                let len = CUT.min(end - start - from);
                written.longest = written.longest.max(len as usize);
                self.set(written.count, CopyPiece { src, dst, len });
                written.count += 1;
            }
            written.bytes += end - start;
        }
        entries.end
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
