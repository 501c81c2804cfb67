//! The device copies of one read: by the resident kernel, two pieces at a time, or by the driver.

use forebay_error::Result;
use forebay_gpu::cuda::CallSeries;
use forebay_gpu::{CopyPiece, HostRange};

use super::slot::{SlotRoom, StreamSlot};
use crate::engines::resident::{Posted, ResidentWay};
use crate::tuning::resident::MAX_PIECE;

/// Copies from a slot's memory that are under way. Those that the driver does are waited for on the slot's stream.
pub(super) struct Pieces<'a> {
    slot: &'a StreamSlot,
    room: SlotRoom,
    way: Option<ResidentWay<'a>>,
    posted: [Option<Posted<'a>>; 2],
    /// The mailbox that was used last.
    last: usize,
    /// Bytes that the resident kernel copied.
    pub(super) resident: u64,
    /// The driver copies, too: its calls, until this value goes.
    calls: Option<CallSeries>,
}

impl<'a> Pieces<'a> {
    pub(super) fn new(slot: &'a StreamSlot, room: SlotRoom, way: Option<ResidentWay<'a>>) -> Self {
        Self { slot, room, way, posted: [None, None], last: 1, resident: 0, calls: None }
    }

    /// Whether the driver copies something, so that the slot's stream is to be waited for.
    pub(super) fn is_copying(&self) -> bool {
        self.calls.is_some()
    }

    /// Starts a copy from the slot's memory.
    ///
    /// # Safety
    /// The memory is the transfer's, and nobody writes this part of the slot's, until all is finished.
    pub(super) unsafe fn start(&mut self, piece: CopyPiece) -> Result<()> {
        // SAFETY: passed on.
        if !unsafe { self.post(piece) }? {
            // SAFETY: passed on.
            unsafe { self.copy(piece) }?;
        }
        Ok(())
    }

    /// Posts a piece in the other mailbox than the last one, or in the first if the kernel looks at no other.
    ///
    /// # Safety
    /// As [`Pieces::start`].
    unsafe fn post(&mut self, piece: CopyPiece) -> Result<bool> {
        let Some(way) = &mut self.way else { return Ok(false) };
        // The driver's copies, too, come after the default streams: they do not go there themselves.
        self.slot.resident.come_after(way)?;
        if piece.len > MAX_PIECE as u64 || (way.is_cold && !self.slot.takes_cold(piece)) {
            return Ok(false);
        }
        for turn in [1 - self.last, 0] {
            // SAFETY: passed on.
            unsafe { self.finish(turn) }?;
            let Some(way) = &mut self.way else { return Ok(false) };
            // SAFETY: passed on; the mailbox is free.
            if let Some(posted) = unsafe { self.slot.post(turn == 1, piece, way) }? {
                self.posted[turn] = Some(posted);
                self.last = turn;
                return Ok(true);
            }
            if turn == 0 {
                break;
            }
        }
        Ok(false)
    }

    /// Waits for the piece in a mailbox. What the kernel left is copied by the driver.
    ///
    /// # Safety
    /// As [`Pieces::start`].
    unsafe fn finish(&mut self, turn: usize) -> Result<()> {
        let Some(posted) = self.posted[turn].take() else { return Ok(()) };
        let piece = posted.piece;
        if posted.finish()? {
            self.resident += piece.len;
            return Ok(());
        }
        // SAFETY: passed on.
        unsafe { self.copy(piece) }
    }

    /// Waits for all pieces in mailboxes.
    ///
    /// # Safety
    /// As [`Pieces::start`].
    pub(super) unsafe fn finish_all(&mut self) -> Result<()> {
        // SAFETY: passed on.
        unsafe { self.finish(0) }?;
        // SAFETY: passed on.
        unsafe { self.finish(1) }
    }

    /// # Safety
    /// As [`Pieces::start`].
    unsafe fn copy(&mut self, piece: CopyPiece) -> Result<()> {
        self.calls.get_or_insert_with(CallSeries::begin);
        let host = self.room.byte_at(piece.src);
        // SAFETY: passed on.
        unsafe { self.slot.stream().copy_in(piece.dst, HostRange::new(host, piece.len as usize)) }
    }
}
