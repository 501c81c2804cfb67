//! Long warm reads on the caller's thread. Where callers are about as many as CPUs, lanes would move no more and wake up for each.

use forebay_config::{CachePolicy, Objective};
use forebay_error::Result;
use forebay_gpu::{Event, Wait};

use super::Attempt;
use super::slot::StreamSlot;
use crate::io::plan::aligned_out;
use crate::io::segment::Segment;
use crate::request::receipt::Moved;
use crate::request::transfer::Transfer;
use crate::runtime::wait::{self, CopyPace, PollResult};
use crate::source::Descriptors;
use crate::source::piece::Direction;
use crate::source::residency::Warmth;
use crate::tuning::callers::{LONG_HALF, LONG_PART};

/// The longest alignment with which a part fits in a half.
pub(super) const LONGEST_ALIGN: u64 = ((LONG_HALF - LONG_PART) / 2) as u64;

/// How to wait for a part's copy. By events: streams that share a connection wait for each other's copies before they write
/// words.
pub(super) struct PartWait<'a> {
    pub(super) objective: Objective,
    pub(super) pace: &'a CopyPace,
}

impl PartWait<'_> {
    fn wait(&self, end: &dyn Event) -> Result<()> {
        match self.objective {
            Objective::Cpu => return end.wait(Wait::Block),
            Objective::Latency => return end.wait(Wait::Spin),
            Objective::Throughput => {}
        }
        let found = wait::nap_for(self.pace.first_nap(LONG_PART), || end.is_done())?;
        self.pace.learn(LONG_PART, found);
        if found == PollResult::Never { end.wait(Wait::Block) } else { Ok(()) }
    }
}

/// Reads part after part into the halves of the slot's long buffer, in turns: one is filled while the other is copied.
pub(super) fn read(
    slot: &StreamSlot,
    transfer: &Transfer,
    file: &Descriptors,
    (policy, align): (CachePolicy, u64),
    wait: &PartWait<'_>,
) -> Result<Attempt> {
    let Transfer { offset, len, .. } = *transfer;
    // Lanes have memory already.
    let Ok(long) = slot.long() else { return Ok(Attempt::Busy) };
    let (mut good, mut moved, mut copying) = (0, Moved::default(), [None; 2]);
    for half in [0, 1].into_iter().cycle() {
        if let Some(end) = copying[half] {
            wait.wait(end)?;
        }
        let (part, start) = (LONG_PART.min(len - good), offset + good as u64);
        let window = aligned_out(start, start + part as u64, align);
        let host = long.pages.as_ptr().wrapping_add(half * LONG_HALF);
        let address = transfer.memory.address + good as u64;
        let mut segment = Segment::whole(start, part, address).in_window(window, host);
        if !segment.read_cached(file, align, policy, Warmth::Warm) {
            segment.run_blocking(Direction::Read, file, align)?;
        }
        let got = segment.good();
        if got > 0 {
            // SAFETY: the half is not written before its copy has ended; the caller vouched for the memory.
            unsafe { slot.stream().copy_in(segment.address, segment.wanted(), got) }?;
            slot.stream().record(long.ends[half].as_ref())?;
            copying[half] = Some(long.ends[half].as_ref());
        }
        good += got;
        moved = moved.plus(segment.moved());
        if got < part || good == len {
            break;
        }
    }
    for end in copying.into_iter().flatten() {
        wait.wait(end)?;
    }
    Ok(Attempt::Done(good, moved))
}
