//! Long warm reads on the caller's thread. Where callers are about as many as CPUs, lanes would move no more and wake up for each.

use std::collections::VecDeque;

use forebay_config::CachePolicy;
use forebay_error::Result;
use forebay_gpu::{Event, Wait};

use super::Attempt;
use super::slot::StreamSlot;
use crate::io::plan::aligned_out;
use crate::io::segment::Segment;
use crate::request::receipt::Moved;
use crate::request::transfer::Transfer;
use crate::source::Descriptors;
use crate::source::piece::Direction;
use crate::source::residency::Warmth;
use crate::tuning::callers::{LONG_BYTES, LONG_LAST, LONG_PART};

/// The longest alignment with which a part fits in a buffer.
pub(super) const LONGEST_ALIGN: u64 = ((LONG_BYTES - LONG_PART) / 2) as u64;

/// Reads part after part into the slot's two long buffers, in turns: one is filled while the other is copied. Copies are waited for by
/// events: streams that share a connection wait for each other's copies before they write words.
pub(super) fn read(
    slot: &StreamSlot,
    transfer: &Transfer,
    file: &Descriptors,
    (policy, align): (CachePolicy, u64),
    wait: Wait,
) -> Result<Attempt> {
    let Transfer { offset, len, .. } = *transfer;
    // Lanes have memory already.
    let Ok(first) = slot.long(0) else { return Ok(Attempt::Busy) };
    let second = if len > LONG_PART { slot.long(1).unwrap_or(first) } else { first };
    let buffers = if std::ptr::eq(first, second) { 1 } else { 2 };
    let (mut good, mut moved, mut copying) = (0, Moved::default(), VecDeque::<&dyn Event>::new());
    for buffer in [first, second].into_iter().cycle() {
        if copying.len() == buffers
            && let Some(end) = copying.pop_front()
        {
            end.wait(wait)?;
        }
        let (part, start) = (LONG_PART.min(len - good), offset + good as u64);
        let (first, _) = aligned_out(start, start + part as u64, align);
        let mut got = 0;
        for (from, to) in shares(start, start + part as u64, align) {
            let window = aligned_out(from, to, align);
            let host = buffer.pages.as_ptr().wrapping_add((window.0 - first) as usize);
            let address = transfer.memory.address + (from - offset);
            let mut segment = Segment::whole(from, (to - from) as usize, address).in_window(window, host);
            if !segment.read_cached(file, align, policy, Warmth::Warm) {
                segment.run_blocking(Direction::Read, file, align)?;
            }
            let found = segment.good();
            if found > 0 {
                // SAFETY: the buffer is not written before its copy has ended; the caller vouched for the memory.
                unsafe { slot.stream().copy_in(segment.address, segment.wanted(), found) }?;
            }
            got += found;
            moved = moved.plus(segment.moved());
            if found < segment.len {
                break;
            }
        }
        if got > 0 {
            slot.stream().record(buffer.end.as_ref())?;
            copying.push_back(buffer.end.as_ref());
        }
        good += got;
        if got < part || good == len {
            break;
        }
    }
    for end in copying {
        end.wait(wait)?;
    }
    Ok(Attempt::Done(good, moved))
}

/// A part is read in two shares: most of it is copied while its last [`LONG_LAST`] bytes are read, and the caller waits for the copy of
/// those alone.
fn shares(start: u64, end: u64, align: u64) -> impl Iterator<Item = (u64, u64)> {
    let is_long = end - start > 2 * LONG_LAST;
    let cut = if is_long { (end - LONG_LAST) & !(align - 1) } else { start };
    [(start, cut), (cut, end)].into_iter().filter(|(from, to)| from < to)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_share_is_short_and_begins_where_reads_may() {
        const MIB: u64 = 1 << 20;
        let cut = |start, end| shares(start, end, 4096).collect::<Vec<_>>();
        assert_eq!(cut(0, 4 * MIB), [(0, 3 * MIB), (3 * MIB, 4 * MIB)]);
        assert_eq!(cut(5, 4 * MIB + 5), [(5, 3 * MIB), (3 * MIB, 4 * MIB + 5)]);
        assert_eq!(cut(4096, 2 * MIB), [(4096, 2 * MIB)], "short already");
        assert_eq!(cut(7, 7 + 2 * MIB + 1), [(7, MIB), (MIB, 2 * MIB + 8)]);
    }
}
