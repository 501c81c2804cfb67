//! Long warm reads on the caller's thread. Where callers are about as many as CPUs, lanes would move no more and wake up for each.

use forebay_config::CachePolicy;
use forebay_error::Result;

use super::Attempt;
use super::signal::CopyWait;
use super::slot::StreamSlot;
use crate::io::plan::aligned_out;
use crate::io::segment::Segment;
use crate::request::receipt::Moved;
use crate::request::transfer::Transfer;
use crate::source::Descriptors;
use crate::source::piece::Direction;
use crate::source::residency::Warmth;
use crate::tuning::callers::{LONG_PART, SLOT_BYTES};

/// Bytes of a half of the slot: one is filled while the other is copied.
const HALF: usize = SLOT_BYTES / 2;

/// The longest alignment with which a part fits in a half.
pub(super) const LONGEST_ALIGN: u64 = ((HALF - LONG_PART) / 2) as u64;

/// Reads part after part into the halves of the slot in turns.
pub(super) fn read(
    slot: &StreamSlot,
    transfer: &Transfer,
    file: &Descriptors,
    (policy, align): (CachePolicy, u64),
    wait: CopyWait<'_>,
) -> Result<Attempt> {
    let Transfer { offset, len, .. } = *transfer;
    let (mut done, mut moved, mut ends) = (0, Moved::default(), [None; 2]);
    for turn in 0.. {
        if done >= len {
            break;
        }
        let part = LONG_PART.min(len - done);
        if let Some(end) = ends[turn % 2] {
            slot.wait_for(end)?;
        }
        let start = offset + done as u64;
        let window = aligned_out(start, start + part as u64, align);
        let host = slot.pages.as_ptr().wrapping_add(turn % 2 * HALF);
        let mut segment =
            Segment::whole(start, part, transfer.memory.address + done as u64).in_window(window, host);
        if !segment.read_cached(file, align, policy, Warmth::Warm) {
            segment.run_blocking(Direction::Read, file, align)?;
        }
        let got = segment.good();
        if got > 0 {
            // SAFETY: the half is not written before its copy's end is reached; the caller vouched for the memory.
            unsafe { slot.stream().copy_in(segment.address, segment.wanted(), got) }?;
            ends[turn % 2] = slot.name_end()?;
            if ends[turn % 2].is_none() {
                slot.wait(wait)?;
            }
        }
        done += got;
        moved = moved.plus(segment.moved());
        if got < part {
            break;
        }
    }
    slot.wait(wait)?;
    Ok(Attempt::Done(done, moved))
}
