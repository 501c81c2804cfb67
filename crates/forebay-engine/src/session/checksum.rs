//! Checksums of GPU and host memory.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use forebay_error::Result;
use forebay_gpu::{Checksum, ChecksumPiece, Context, Device, Event, HostRange, Shift, Stream, Wait};

use crate::request::receipt::Note;
use crate::request::transfer::Memory;
use crate::runtime::lock;
use crate::runtime::pinned::PinnedPages;
use crate::runtime::traffic;

/// Most pieces of one kernel.
const ROUND: usize = 16 << 10;
/// A round's share of the pinned memory: its list and its results.
const SHARE: usize = ROUND * (size_of::<ChecksumPiece>() + size_of::<u32>());
/// Rounds under way: one runs on the device while another is prepared and collected here.
const ROUNDS: usize = 2;
/// Shortest piece: a warp sums one, and smaller pieces outnumber the device's warps. Chosen.
const MIN_PIECE_BYTES: u64 = 8 << 10;
/// Longest piece: larger ones leave some warps idle at the end. Chosen.
const MAX_PIECE_BYTES: u64 = 128 << 10;
/// Ranges are cut into about this many pieces, so that all warps have some. Chosen.
const WANTED_PIECES: u64 = 8192;
/// Sleep between two looks at a round.
const NAP: Wait = Wait::Nap(Duration::from_micros(30));
/// Loading kernels waits for all streams. Operations that forebay has queued on streams get this time to end first.
const QUEUED_LIMIT: Duration = Duration::from_secs(1);

/// What makes the checksums of a session.
#[derive(Debug, Default)]
pub(crate) struct Checks {
    slots: Mutex<HashMap<usize, Arc<Mutex<ChecksumSlot>>>>,
    notes: Mutex<Vec<Note>>,
}

/// A range of a device's memory.
#[derive(Clone, Copy, Debug)]
struct Range {
    /// Its place among the caller's.
    index: usize,
    address: u64,
    len: u64,
}

impl Checks {
    /// Notes on what was slower than it could be, and why.
    pub(crate) fn notes(&self) -> Vec<Note> {
        lock(&self.notes).clone()
    }

    /// The checksums of ranges, which may lie on several devices.
    ///
    /// # Safety
    /// The ranges are valid, and nobody writes them, until this returns.
    pub(crate) unsafe fn of(&self, ranges: &[(Memory, usize)]) -> Result<Vec<Checksum>> {
        let mut sums = vec![Checksum::EMPTY; ranges.len()];
        let mut groups: Vec<(&Memory, Vec<Range>)> = Vec::new();
        for (index, (memory, len)) in ranges.iter().enumerate() {
            let (address, len) = (memory.address, *len as u64);
            if len == 0 {
                continue;
            }
            if memory.device.info().is_host {
                // SAFETY: the caller promises the range.
                let bytes = unsafe { std::slice::from_raw_parts(address as *const u8, len as usize) };
                sums[index] = Checksum::of(bytes);
                continue;
            }
            let range = Range { index, address, len };
            match groups.iter_mut().find(|(other, _)| is_same_place(other, memory)) {
                Some((_, group)) => group.push(range),
                None => groups.push((memory, vec![range])),
            }
        }
        for (memory, group) in groups {
            let slot = self.slot(&memory.device)?;
            let mut slot = slot.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some(note) = slot.make_ready(memory.context) {
                lock(&self.notes).push(note);
            }
            // SAFETY: passed on.
            unsafe { slot.run(memory.context, &group, &mut sums) }?;
        }
        Ok(sums)
    }

    /// Makes a device's slot once and keeps it: pinning memory takes longer than most checksums.
    fn slot(&self, device: &Arc<dyn Device>) -> Result<Arc<Mutex<ChecksumSlot>>> {
        let mut slots = lock(&self.slots);
        if let Some(slot) = slots.get(&device.info().index) {
            return Ok(slot.clone());
        }
        let slot = Arc::new(Mutex::new(ChecksumSlot::new(device)?));
        slots.insert(device.info().index, slot.clone());
        Ok(slot)
    }
}

fn is_same_place(one: &Memory, other: &Memory) -> bool {
    one.context == other.context && one.device.info().index == other.device.info().index
}

/// How the bytes of a GPU are summed up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    /// By a kernel, which leaves the checksums of pieces in pinned memory.
    Kernel,
    /// By the CPU, which gets the pieces through pinned memory.
    Copy,
}

/// The stream that checksums run on, and for each of the [`ROUNDS`] the event that follows it.
#[derive(Debug)]
struct ChecksumStream {
    driver_stream: Box<dyn Stream>,
    marks: Vec<Box<dyn Event>>,
}

impl ChecksumStream {
    fn new(device: &dyn Device, context: Context) -> Result<Self> {
        let driver_stream = device.stream(context)?;
        let marks = (0..ROUNDS).map(|_| driver_stream.event()).collect::<Result<_>>()?;
        Ok(Self { driver_stream, marks })
    }
}

/// What checksums of one device's memory need: pinned memory and a stream. One caller at a time uses it.
#[derive(Debug)]
struct ChecksumSlot {
    device: Arc<dyn Device>,
    pages: PinnedPages,
    /// The stream of the primary context, kept between calls.
    stream: Option<ChecksumStream>,
    /// Contexts for which kernels were loaded or tried; in `without`, those where loading failed.
    known: HashSet<Context>,
    without: HashSet<Context>,
}

impl ChecksumSlot {
    fn new(device: &Arc<dyn Device>) -> Result<Self> {
        let pages = PinnedPages::new(device, ROUNDS * SHARE)?;
        Ok(Self {
            device: device.clone(),
            pages,
            stream: None,
            known: HashSet::new(),
            without: HashSet::new(),
        })
    }

    /// Loads the kernels of a context at its first use. A note if that fails.
    fn make_ready(&mut self, context: Context) -> Option<Note> {
        if !self.known.insert(context) {
            return None;
        }
        // Load after the time-out in any case: the streams end later, and the load with them.
        traffic::is_clear_within(QUEUED_LIMIT);
        let error = self.device.kernels(context).err()?;
        self.without.insert(context);
        Some(Note {
            text: format!("checksums of GPU memory are made on the CPU, of copies: {error}"),
            hint: error.hints().first().cloned(),
        })
    }

    /// # Safety
    /// As [`Checks::of`].
    unsafe fn run(&mut self, context: Context, ranges: &[Range], sums: &mut [Checksum]) -> Result<()> {
        let kept = if context == Context::PRIMARY { self.stream.take() } else { None };
        let stream = kept.map_or_else(|| ChecksumStream::new(&*self.device, context), Ok)?;
        let way = if self.without.contains(&context) { Way::Copy } else { Way::Kernel };
        // SAFETY: passed on.
        let done = unsafe { self.rounds(&stream, way, ranges, sums) };
        if done.is_err() {
            // Wait: kernels or copies of it may still run, and use the pinned memory.
            let _ = stream.driver_stream.synchronize(Wait::Block);
        } else if context == Context::PRIMARY {
            self.stream = Some(stream);
        }
        done
    }

    /// # Safety
    /// As [`Checks::of`]. After an error the stream must be waited for.
    unsafe fn rounds(
        &self,
        stream: &ChecksumStream,
        way: Way,
        ranges: &[Range],
        sums: &mut [Checksum],
    ) -> Result<()> {
        let length = match way {
            Way::Kernel => piece_length(ranges.iter().map(|range| range.len).sum()),
            Way::Copy => SHARE as u64,
        };
        let shift = Shift::new(length);
        let mut ahead = Pieces { ranges, length, done: 0 };
        let mut behind = ahead.clone();
        let mut under_way = VecDeque::with_capacity(ROUNDS);
        for round in (0..ROUNDS).cycle() {
            // SAFETY: the round before the last is over, and passed on.
            let count = unsafe { self.queue(stream, way, round, &mut ahead) }?;
            if count > 0 {
                stream.driver_stream.record(&*stream.marks[round])?;
                under_way.push_back((round, count));
            }
            if count > 0 && under_way.len() < ROUNDS {
                continue;
            }
            let Some((round, count)) = under_way.pop_front() else { break };
            stream.marks[round].wait(NAP)?;
            let mut place = 0;
            for (index, piece) in behind.by_ref().take(count) {
                let sum = self.collect(way, round, &mut place, piece);
                sums[index] = sums[index].then_by(sum, &shift);
            }
        }
        Ok(())
    }

    /// Queues as many pieces as a round takes; how many.
    ///
    /// # Safety
    /// As [`Checks::of`], until the round is over; no round that uses the same share is under way.
    unsafe fn queue(
        &self,
        stream: &ChecksumStream,
        way: Way,
        round: usize,
        ahead: &mut Pieces<'_>,
    ) -> Result<usize> {
        let share = round * SHARE;
        let mut count = 0;
        match way {
            Way::Kernel => {
                #[allow(clippy::cast_ptr_alignment, reason = "shares begin at multiples of 16")]
                let list = self.pages.as_ptr().wrapping_add(share).cast::<ChecksumPiece>();
                for (place, (_, piece)) in (0..ROUND).zip(&mut *ahead) {
                    // SAFETY: the list begins the share, which nobody else uses, and has that many places.
                    unsafe { list.add(place).write(piece) };
                    count = place + 1;
                }
                let list = self.pages.reach() + share as u64;
                if count > 0 {
                    // SAFETY: the pages outlive the round; the ranges are the caller's promise.
                    unsafe { stream.driver_stream.checksums(list, count, list + RESULTS as u64) }?;
                }
            }
            Way::Copy => {
                let mut place = 0;
                while let Some((_, piece)) =
                    ahead.clone().next().filter(|(_, next)| place + next.len as usize <= SHARE)
                {
                    let to = self.pages.as_ptr().wrapping_add(share + place);
                    // SAFETY: the piece fits into the rest of the share.
                    unsafe {
                        stream.driver_stream.copy_out(HostRange::new(to, piece.len as usize), piece.address)
                    }?;
                    ahead.next();
                    place += piece.len as usize;
                    count += 1;
                }
            }
        }
        Ok(count)
    }

    /// The checksum of a piece of a round that is over. `place` is how far the round's share was read before.
    fn collect(&self, way: Way, round: usize, place: &mut usize, piece: ChecksumPiece) -> Checksum {
        let share = self.pages.as_ptr().wrapping_add(round * SHARE);
        match way {
            Way::Kernel => {
                #[allow(clippy::cast_ptr_alignment, reason = "results begin at a multiple of 16")]
                let at = share.wrapping_add(RESULTS + *place).cast::<u32>();
                *place += size_of::<u32>();
                // SAFETY: the kernel wrote it, and a round has no more pieces than places.
                Checksum::new(unsafe { at.read() }, piece.len)
            }
            Way::Copy => {
                let len = piece.len as usize;
                // SAFETY: copied to there, within the share.
                let bytes = unsafe { std::slice::from_raw_parts(share.wrapping_add(*place), len) };
                *place += len;
                Checksum::of(bytes)
            }
        }
    }
}

/// Where a share's results begin: behind the list.
const RESULTS: usize = ROUND * size_of::<ChecksumPiece>();

/// As many pieces as keep a device busy, within reason.
fn piece_length(total: u64) -> u64 {
    (total / WANTED_PIECES).next_power_of_two().clamp(MIN_PIECE_BYTES, MAX_PIECE_BYTES)
}

/// Ranges, cut into pieces of one length; the last of each range is shorter.
#[derive(Clone, Debug)]
struct Pieces<'a> {
    ranges: &'a [Range],
    length: u64,
    /// Bytes of the first range that were given out.
    done: u64,
}

impl Iterator for Pieces<'_> {
    /// The range's place among the caller's, and the piece.
    type Item = (usize, ChecksumPiece);

    fn next(&mut self) -> Option<Self::Item> {
        let (range, rest) = self.ranges.split_first()?;
        let len = self.length.min(range.len - self.done);
        let piece = ChecksumPiece { address: range.address + self.done, len };
        self.done += len;
        if self.done == range.len {
            (self.ranges, self.done) = (rest, 0);
        }
        Some((range.index, piece))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_cover_their_ranges_in_order() {
        let ranges = [
            Range { index: 4, address: 1000, len: 25 },
            Range { index: 0, address: 7, len: 10 },
            Range { index: 2, address: 90, len: 1 },
        ];
        let found: Vec<_> = Pieces { ranges: &ranges, length: 10, done: 0 }
            .map(|(index, piece)| (index, piece.address, piece.len))
            .collect();
        assert_eq!(found, [(4, 1000, 10), (4, 1010, 10), (4, 1020, 5), (0, 7, 10), (2, 90, 1)]);
    }

    #[test]
    fn pieces_are_neither_tiny_nor_few() {
        assert_eq!(piece_length(1), 8 << 10);
        assert_eq!(piece_length(5000 * (64 << 10)), 64 << 10);
        assert_eq!(piece_length(1 << 40), 128 << 10);
    }
}
