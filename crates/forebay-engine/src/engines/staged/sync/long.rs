//! Long warm reads on the caller's thread. Where callers are about as many as CPUs, lanes would move no more and wake up for each.

use std::collections::VecDeque;

use forebay_config::CachePolicy;
use forebay_error::Result;
use forebay_gpu::{Event, Naps, Wait};

use super::Attempt;
use super::slot::StreamSlot;
use crate::io::plan::aligned_out;
use crate::io::segment::Segment;
use crate::request::receipt::Moved;
use crate::request::transfer::Transfer;
use crate::runtime::wait;
use crate::source::Descriptors;
use crate::source::piece::Direction;
use crate::source::residency::Warmth;
use crate::tuning::callers::LONG_PART;
use crate::tuning::plan::CELL;

/// The longest alignment with which a part fits in a buffer.
pub(super) const LONGEST_ALIGN: u64 = (CELL / 2) as u64;

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
    let (mut good, mut moved, mut copying) = (0, Moved::default(), VecDeque::<(&dyn Event, usize)>::new());
    for buffer in [first, second].into_iter().cycle() {
        if copying.len() == buffers
            && let Some((end, bytes)) = copying.pop_front()
        {
            wait_for(end, bytes, wait)?;
        }
        let (part, start) = (LONG_PART.min(len - good), offset + good as u64);
        let end = start + part as u64;
        let address = transfer.memory.address + good as u64;
        let mut segment = Segment::whole(start, part, address)
            .in_window(aligned_out(start, end, align), buffer.pages.as_ptr());
        if !segment.read_cached(file, align, policy, Warmth::Warm) {
            segment.run_blocking(Direction::Read, file, align)?;
        }
        let got = segment.good();
        moved = moved.plus(segment.moved());
        if got > 0 {
            // SAFETY: the buffer is not written before its copy has ended; the caller vouched for the memory.
            unsafe { slot.stream().copy_in(address, segment.wanted().first(got)) }?;
            slot.stream().record(buffer.end.as_ref())?;
            copying.push_back((buffer.end.as_ref(), got));
        }
        good += got;
        if got < part || good == len {
            break;
        }
    }
    for (end, bytes) in copying {
        wait_for(end, bytes, wait)?;
    }
    Ok(Attempt::Done(good, moved))
}

/// Waits for the copy of a part. Before it can be done nobody polls: that takes the driver's lock, which those need who start copies.
fn wait_for(end: &dyn Event, bytes: usize, wait: Wait) -> Result<()> {
    if matches!(wait, Wait::SpinThenBlock(_)) && !end.is_done()? {
        Naps::start().sleep(wait::expected(bytes));
    }
    end.wait(wait)
}
