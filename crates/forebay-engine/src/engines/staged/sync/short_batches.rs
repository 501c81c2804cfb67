//! Short batches (few small pieces), copied by the resident kernel: the submitting thread posts each piece in a mailbox of its own and
//! waits for all of them. When the submission returns nothing of it is in flight.

use std::collections::VecDeque;
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use forebay_error::Result;
use forebay_gpu::{Context, CopyPiece, DeviceRange, HostRange};

use super::Callers;
use super::slot::StreamSlot;
use crate::engines::resident::{CallerWait, Posted, ResidentWay};
use crate::request::copy_order::CopyOrder;
use crate::request::receipt::{Moved, Way};
use crate::request::transfer::Batch;
use crate::source::piece::Direction;
use crate::tuning::callers::{PART, STREAM_SLOTS};
use crate::tuning::machine::HUGE_PAGE;
use crate::tuning::plan::{CELL, SHORT_BATCH};

/// Where a piece's bytes begin in the slot.
const ALIGN: usize = 64;

/// Whether a batch of pieces of these lengths is short: few small ones.
fn is_short_batch(lengths: impl ExactSizeIterator<Item = usize>) -> bool {
    let is_small = |len: usize| (1..=CELL).contains(&len);
    let add = |sum: usize, len: usize| is_small(len).then_some(sum + len);
    (1..=SHORT_BATCH).contains(&lengths.len())
        && lengths.into_iter().try_fold(0, add).is_some_and(|sum| sum <= PART as usize)
}

/// A short batch that lanes have. Its pieces count as copies until it is dropped. What the kernel copies writes nothing that all callers
/// look at.
pub(crate) struct ShortBatch {
    callers: Arc<Callers>,
    pieces: usize,
}

impl ShortBatch {
    pub(crate) fn begin(callers: &Arc<Callers>, batch: &Batch) -> Self {
        let (callers, pieces) = (callers.clone(), batch.pieces.len());
        callers.short_pieces.fetch_add(pieces, Ordering::Relaxed);
        Self { callers, pieces }
    }
}

impl Drop for ShortBatch {
    fn drop(&mut self) {
        self.callers.short_pieces.fetch_sub(self.pieces, Ordering::Relaxed);
    }
}

impl Callers {
    /// Whether a warm batch may be one for [`Callers::read_short_batch`].
    pub(crate) fn may_read_short_batch(&self, batch: &Batch) -> bool {
        batch.direction == Direction::Read
            && !self.device.info().is_host
            && is_short_batch(batch.pieces.iter().map(|piece| piece.len))
            && batch.file.descriptors().is_some()
    }

    /// Whether callers were many when the last of them looked.
    pub(crate) fn were_many(&self) -> bool {
        self.are_many.load(Ordering::Relaxed)
    }

    /// The order of a submission's copies, if callers are many and share the question, and nothing stands on the default streams.
    pub(crate) fn shared_order(&self, context: Context) -> Result<Option<CopyOrder>> {
        if !self.were_many() {
            return Ok(None);
        }
        self.slots.resident_of(context).find_clear()
    }

    /// Reads a batch whose copies come after nothing. `None`: it is to be read another way, wholly.
    ///
    /// # Safety
    /// The pieces' memory is valid.
    pub(crate) unsafe fn read_short_batch(&self, batch: &Batch) -> Result<Option<Moved>> {
        let Some(file) = batch.file.descriptors() else { return Ok(None) };
        if file.check().is_err() {
            return Ok(None);
        }
        let pieces = &batch.pieces;
        // Its pieces are copied at once, as those of as many callers would be. So are those of batches that lanes have: their threads
        // wait for them, and would come here too.
        let copies = self.active.load(Ordering::Relaxed) + self.short_pieces.load(Ordering::Relaxed);
        if !self.are_many(copies + pieces.len()) {
            return Ok(None);
        }
        let work = |slot: &StreamSlot| {
            let (callers, _active) = self.enter();
            let Some(way) = self.way_of_short_batch(slot, callers) else { return Ok(false) };
            let now = Instant::now();
            if !pieces.iter().all(|piece| slot.is_kernels_memory(piece.memory(), now)) {
                return Ok(false);
            }
            let all = pieces.iter().map(|piece| piece.len.next_multiple_of(ALIGN)).sum();
            // Lanes have memory already.
            let Ok(room) = slot.room(all) else { return Ok(false) };
            let mut at = 0;
            let read = |index: usize| {
                let piece = &pieces[index];
                let (host, src) = (room.host.wrapping_add(at), room.reach + at as u64);
                at += piece.len.next_multiple_of(ALIGN);
                let fd = file.buffered.as_raw_fd();
                // SAFETY: all pieces have room in the slot, each its own. Memory files know no reads that do not wait, and never do.
                let got = unsafe {
                    file.calls.read(fd, HostRange::new(host, piece.len), piece.offset, !file.is_memory)
                };
                let is_whole = got == piece.len as isize;
                is_whole.then_some(CopyPiece { src, dst: piece.address, len: piece.len as u64 })
            };
            // SAFETY: the slot is ours, and its pieces lie side by side; the caller vouched for the memory.
            unsafe { self.copy_short_batch(slot, way, (pieces.len(), callers), read) }
        };
        let bytes: usize = pieces.iter().map(|piece| piece.len).sum();
        let moved = Moved::of(Way::Cached, bytes as u64).by_resident(bytes as u64);
        let done = self.slots.with_any(batch.memory.context, work)?;
        Ok(done.unwrap_or(false).then_some(moved))
    }

    /// Copies pieces of a batch from registered pages, beside `others` that wait for batches of theirs. Whether all were copied; if
    /// not they are to be copied another way, wholly.
    ///
    /// # Safety
    /// The pages stay registered until this returns; the pieces' memory is valid.
    pub(crate) unsafe fn pull_short_batch(
        &self,
        context: Context,
        others: usize,
        pieces: impl ExactSizeIterator<Item = CopyPiece> + Clone,
    ) -> Result<bool> {
        // One kernel for the batch is as quick, until callers fight for the driver's lock.
        let copies = self.active.load(Ordering::Relaxed) + 1 + others;
        if !is_short_batch(pieces.clone().map(|piece| piece.len as usize)) || !self.are_many(copies) {
            return Ok(false);
        }
        let work = |slot: &StreamSlot| {
            let (callers, _active) = self.enter();
            let Some(way) = self.way_of_short_batch(slot, callers) else { return Ok(false) };
            let (mut known, now) = (pieces.clone(), Instant::now());
            if !known
                .all(|piece| slot.is_kernels_memory(DeviceRange::new(piece.dst, piece.len as usize), now))
            {
                return Ok(false);
            }
            let mut pieces = pieces;
            let count = pieces.len();
            // SAFETY: as promised by the caller.
            unsafe { self.copy_short_batch(slot, way, (count, callers), |_| pieces.next()) }
        };
        Ok(self.slots.with_any(context, work)?.unwrap_or(false))
    }

    /// The way of the pieces beside those of this number of callers, if there is one now.
    fn way_of_short_batch(&self, slot: &StreamSlot, callers: usize) -> Option<ResidentWay<'static>> {
        let wait = CallerWait::new(self.objective, callers, self.cpus, false);
        slot.resident.way(CELL, None, (wait, false))
    }

    /// Posts `count` pieces beside those of other callers, each when `ready` has made it so, and waits for them. Whether all were made
    /// ready and copied.
    ///
    /// # Safety
    /// As `Resident::post`, for each piece.
    unsafe fn copy_short_batch(
        &self,
        slot: &StreamSlot,
        mut way: ResidentWay<'_>,
        (count, callers): (usize, usize),
        mut ready: impl FnMut(usize) -> Option<CopyPiece>,
    ) -> Result<bool> {
        // Callers share half of the places: the others are for those who come.
        let share = (STREAM_SLOTS / 2 / callers).max(1);
        let spare = self.slots.spare(count.min(share) - 1);
        let mailboxes: Vec<_> =
            std::iter::once(slot.mailbox()).chain(spare.iter().map(|(at, _)| *at)).collect();
        let (mut posted, mut result) = (VecDeque::with_capacity(mailboxes.len()), Ok(true));
        for index in 0..count {
            if posted.len() == mailboxes.len()
                && let Some(first) = posted.pop_front()
            {
                result = end(result, first);
            }
            let Some(piece) = matches!(result, Ok(true)).then(|| ready(index)).flatten() else {
                result = result.map(|_| false);
                break;
            };
            // SAFETY: passed on; the mailbox is this slot's, or of a place that is held.
            match unsafe { slot.resident.post(mailboxes[index % mailboxes.len()], piece, &mut way) } {
                Ok(Some(piece)) => posted.push_back(piece),
                Ok(None) => result = Ok(false),
                Err(error) => result = Err(error),
            }
        }
        // Both ends of the posted requests are in use, whatever the state of the rest.
        posted.into_iter().fold(result, end)
    }
}

/// Ends a piece: waits for it, or withdraws it if another one was not copied.
fn end(result: Result<bool>, piece: Posted<'_>) -> Result<bool> {
    let is_good = matches!(result, Ok(true));
    let ended = if is_good { piece.finish() } else { piece.withdraw() };
    result.and_then(|all| ended.map(|this| all && this))
}

const _: () = assert!(PART as usize + SHORT_BATCH * ALIGN <= HUGE_PAGE);
