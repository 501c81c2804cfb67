//! Entries that are neighbours in the file: one range for many addresses, instead of a call for each.

use std::ops::Range;

use super::{Limits, MAX_PACK_PIECES, Plan, PlanSpan, chunk_size};
use crate::source::piece::{Direction, Piece};
use crate::tuning::plan::{CELL, MAX_SMALL_RUN_MEAN, SHORT_BATCH};

fn end_of(piece: &Piece) -> u64 {
    piece.offset + piece.len as u64
}

/// The end of the entries from `first` on that are neighbours, and whether they become a run of their own.
pub(super) fn neighbours(
    pieces: &[Piece],
    entries: &Range<u32>,
    direction: Direction,
    limits: Limits,
) -> (u32, bool) {
    // Bytes that are read between two of them cost less than another call, which takes as long as 2 to 5 KB more of warm pages.
    // Writes must leave such bytes alone.
    let gap = if direction == Direction::Read { limits.align } else { 0 };
    // Larger entries are cut by themselves.
    let fits = |piece: &Piece| (1..=limits.slot).contains(&piece.len);
    let mut last = entries.start as usize;
    let mut bytes = 0;
    loop {
        bytes += pieces[last].len as u64;
        let next = last + 1;
        if next >= entries.end as usize || !limits.merge || !fits(&pieces[last]) || !fits(&pieces[next]) {
            break;
        }
        let distance = pieces[next].offset.checked_sub(end_of(&pieces[last]));
        if distance.is_none_or(|distance| distance > gap) {
            break;
        }
        last = next;
    }
    let count = last - entries.start as usize + 1;
    (last as u32 + 1, count > 1 && bytes >= CELL as u64)
}

/// Whether these are many small pieces, as the tensors of a model may be: a program is likely to allocate their memory meanwhile, which
/// waits for the driver's lock.
pub(crate) fn are_many_small(pieces: &[Piece]) -> bool {
    let bytes: usize = pieces.iter().map(|piece| piece.len).sum();
    pieces.len() >= SHORT_BATCH && bytes <= pieces.len() * MAX_SMALL_RUN_MEAN
}

impl Plan {
    /// Cuts neighbours at aligned offsets of the file, wherever their own borders are. The unaligned head and tail of a
    /// write are works of their own.
    pub(super) fn run(
        &mut self,
        pieces: &[Piece],
        entries: Range<u32>,
        total: u64,
        direction: Direction,
        limits: Limits,
    ) {
        let run = &pieces[entries.start as usize..entries.end as usize];
        let (Some(head), Some(tail)) = (run.first(), run.last()) else { return };
        let (start, end) = (head.offset, end_of(tail));
        let (low, high) = (start.next_multiple_of(limits.align), end & !(limits.align - 1));
        let is_one_launch_each = direction == Direction::Read && are_many_small(run);
        let chunk = if is_one_launch_each { limits.slot as u64 } else { chunk_size(total, limits) };
        if direction == Direction::Write && low < high {
            for (from, to) in [(start, low), (low, high), (high, end)] {
                self.cut(run, entries.start, (from, to), chunk, limits);
            }
        } else {
            self.cut(run, entries.start, (start, end), chunk, limits);
        }
    }

    /// Cuts `start..stop` of neighbours, the first of which is entry number `base`.
    fn cut(&mut self, run: &[Piece], base: u32, (mut start, stop): (u64, u64), chunk: u64, limits: Limits) {
        let floor = |offset: u64| offset & !(limits.align - 1);
        let mut first = run.partition_point(|piece| end_of(piece) <= start);
        while start < stop && first < run.len() {
            start = start.max(run[first].offset);
            let mut end = stop.min(floor(start) + chunk);
            let mut last = first + run[first..].partition_point(|piece| piece.offset < end);
            if last - first > MAX_PACK_PIECES {
                let border = run[first + MAX_PACK_PIECES].offset;
                end = if floor(border) > start { floor(border) } else { border };
                last = first + run[first..].partition_point(|piece| piece.offset < end);
            }
            // A gap may follow the last of them.
            end = end.min(end_of(&run[last - 1]));
            self.push(PlanSpan::Run { first: base + first as u32, last: base + last as u32, start, end }, 1);
            start = end;
            first += run[first..].partition_point(|piece| end_of(piece) <= start);
        }
    }
}
