//! Small synchronous transfers on the caller's thread: one system call, without a caller slot.

use std::sync::Arc;

use forebay_error::Result;

use super::{P2p, rules, settle};
use crate::engines::Known;
use crate::engines::staged::job::DirectMover as _;
use crate::engines::staged::sync::Attempt;
use crate::io::segment::Segment;
use crate::request::completion::is_short_write;
use crate::request::receipt::{Moved, Refusal, Way};
use crate::request::transfer::Transfer;
use crate::source::Descriptors;
use crate::source::piece::{Direction, Piece};

/// The outcome of an attempt.
pub(super) enum Attempted {
    /// Bytes that are good, and how they went.
    Done(usize, Moved),
    /// The engine does not take the transfer.
    Refused(Arc<Refusal>),
    /// No caller slot is free for the bytes to stage: the lanes do it.
    Busy,
}

impl P2p {
    /// Moves a small transfer. Unaligned ends are staged.
    ///
    /// # Safety
    /// The transfer's memory is valid.
    pub(super) unsafe fn run_here(&self, transfer: &Transfer, known: &Known<'_>) -> Result<Attempted> {
        let (file, alignment) = match rules(known) {
            Ok(ruled) => ruled,
            Err(refusal) => return Ok(Attempted::Refused(refusal)),
        };
        let piece = transfer.piece();
        let Some((low, high)) = alignment.middle(&piece) else {
            return Ok(Attempted::Refused(super::nothing_aligned(alignment)));
        };
        let left = transfer.len as u64 - (high - low);
        if self.forbids(left, None) {
            return Ok(Attempted::Refused(super::partly_aligned(alignment, left)));
        }
        let address = piece.address + (low - piece.offset);
        let middle = Piece { offset: low, address, len: (high - low) as usize };
        let key = match self.check(&transfer.file, file, transfer.direction, middle) {
            Ok(key) => key,
            Err(refusal) => return Ok(Attempted::Refused(refusal)),
        };
        if transfer.direction == Direction::Write {
            settle(address);
        }
        let mover = super::Reached { key, only: self.is_all() };
        let mut segment = placed(&middle);
        if left == 0 {
            return self.move_middle(&mut segment, transfer, file, alignment.offset, mover);
        }
        // SAFETY: passed on.
        unsafe { self.run_parts(transfer, file, segment, known, alignment.offset, mover) }
    }

    fn move_middle(
        &self,
        segment: &mut Segment,
        transfer: &Transfer,
        file: &Descriptors,
        align: u64,
        mover: super::Reached,
    ) -> Result<Attempted> {
        let done = segment.run_blocking(transfer.direction, file, align);
        match (done, segment.refused) {
            (Ok(()), _) => Ok(Attempted::Done(segment.good(), segment.moved())),
            (Err(error), None) if transfer.allow_short && is_short_write(segment.good() as u64, &error) => {
                Ok(Attempted::Done(segment.good(), segment.moved()))
            }
            (Err(error), None) => Err(error),
            (Err(error), Some(errno)) => match mover.refused(errno, transfer.direction) {
                Some(refusal) => Ok(Attempted::Refused(refusal)),
                None => Err(error.with("device", &self.device.info().name)),
            },
        }
    }

    /// Head, middle and tail one after the other.
    ///
    /// # Safety
    /// As [`P2p::run_here`].
    unsafe fn run_parts(
        &self,
        transfer: &Transfer,
        file: &Descriptors,
        mut segment: Segment,
        known: &Known<'_>,
        align: u64,
        mover: super::Reached,
    ) -> Result<Attempted> {
        let (start, end) = (transfer.offset, transfer.offset + transfer.len as u64);
        let (low, high) = (segment.start, segment.start + segment.len as u64);
        let (mut good, mut moved) = (0, Moved::default());
        for (from, to) in [(start, low), (low, high), (high, end)].into_iter().filter(|(from, to)| from < to)
        {
            let ran = if from == low && to == high {
                self.move_middle(&mut segment, transfer, file, align, mover)
            } else {
                let mut part = transfer.clone();
                part.memory.address += from - start;
                (part.offset, part.len) = (from, (to - from) as usize);
                // Memory in a BAR has no default streams.
                // SAFETY: a part of what the caller vouched for.
                unsafe { self.callers.run(&part, known, align) }.map(|ran| match ran {
                    Attempt::Done(good, moved) => Attempted::Done(good, moved),
                    Attempt::Busy => Attempted::Busy,
                })
            };
            let (part_good, part_moved) = match ran {
                Ok(Attempted::Done(good, moved)) => (good, moved),
                Err(error) if transfer.allow_short && is_short_write(good as u64, &error) => break,
                other => return other,
            };
            good += part_good;
            moved = moved.plus(part_moved);
            if (part_good as u64) < to - from {
                break;
            }
        }
        Ok(Attempted::Done(good, moved))
    }
}

/// An aligned piece as a segment in the device's memory.
fn placed(piece: &Piece) -> Segment {
    Segment { way: Way::Drive, ..Segment::whole(piece.offset, piece.len, piece.address) }
}
