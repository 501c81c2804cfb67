//! Cutting transfers into pieces of work: pure arithmetic, tested by properties.
//!
//! Reads are cut at multiples of the chunk size in *file* offsets, so that every inner cut is aligned for O_DIRECT and
//! only the outermost edges may be unaligned (they are read aligned-out into a slot). Writes never read-modify-write:
//! their unaligned head and tail are pieces of their own, which go through the page cache. Entries that are neighbours in
//! the file are cut together: see [`run`].

mod run;

use std::ops::Range;

pub(crate) use self::run::are_many_small;
use crate::source::piece::{Direction, Piece};
pub(crate) use crate::tuning::plan::CELL;
use crate::tuning::plan::{CHUNK, MIN_PACK_PIECES};

/// Most pieces of a pack: bounds the kernel's list beside each slot.
pub(crate) const MAX_PACK_PIECES: usize = 2 * MIN_PACK_PIECES;

/// Limits of a plan.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// Bytes of a work at most, which are those of a slot where it needs one: a power of two.
    pub(crate) slot: usize,
    /// Lanes that may help; 0: none has to, since the source moves the bytes.
    pub(crate) lanes: usize,
    /// Alignment for O_DIRECT, a power of two, at most [`CELL`] / 2.
    pub(crate) align: u64,
    /// Whether neighbours are moved together, through a slot.
    pub(crate) merge: bool,
}

/// Works in a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PlanSpan {
    /// File range `start..end` of an entry in chunks.
    Chunks { entry: u32, start: u64, end: u64, chunk: u64 },
    /// Entries `first..last`, small ones, as one work.
    Pack { first: u32, last: u32 },
    /// File range `start..end` of neighbours `first..last`, as one work.
    Run { first: u32, last: u32, start: u64, end: u64 },
}

/// A part of a batch, for plans that leave the rest to another engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// File range `start..end` of an entry; both ends are aligned or the entry's own.
    Range {
        /// Its number in the batch.
        entry: u32,
        /// Offset in the source.
        start: u64,
        /// Offset behind it.
        end: u64,
    },
    /// Entries `first..last`, whole.
    Entries {
        /// The first.
        first: u32,
        /// The one behind the last.
        last: u32,
    },
}

/// One piece of work for a lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Work {
    /// File range `start..end` of an entry; it fits into a slot when aligned out.
    Chunk { entry: u32, start: u64, end: u64 },
    /// Whole entries `first..last`; together they fit into a slot when each is aligned out.
    Pack { first: u32, last: u32 },
    /// File range `start..end` of neighbours `first..last`, two or more, each of which has bytes there; it fits into a
    /// slot when aligned out.
    Run { first: u32, last: u32, start: u64, end: u64 },
}

impl Work {
    /// The entries that it has bytes of.
    pub(crate) fn entries(self) -> Range<u32> {
        match self {
            Self::Chunk { entry, .. } => entry..entry + 1,
            Self::Pack { first, last } | Self::Run { first, last, .. } => first..last,
        }
    }
}

/// The works of a batch, computed on demand: memory is needed for spans only, also for a terabyte.
#[derive(Clone, Debug, Default)]
pub(crate) struct Plan {
    spans: Vec<PlanSpan>,
    /// Works up to and including each span.
    until: Vec<usize>,
}

/// The range that must be read to get `start..end` with aligned offsets.
pub(crate) fn aligned_out(start: u64, end: u64, align: u64) -> (u64, u64) {
    (start & !(align - 1), end.next_multiple_of(align))
}

impl Plan {
    pub(crate) fn new(pieces: &[Piece], direction: Direction, limits: Limits) -> Self {
        let mut plan = Self::default();
        plan.entries(pieces, 0..pieces.len() as u32, direction, limits);
        plan
    }

    /// The plan of some parts of a batch.
    pub(crate) fn of_parts(pieces: &[Piece], direction: Direction, parts: &[Part], limits: Limits) -> Self {
        let mut plan = Self::default();
        for part in parts {
            match *part {
                Part::Range { entry, start, end } => plan.chunks(entry, start, end, limits),
                Part::Entries { first, last } => plan.entries(pieces, first..last, direction, limits),
            }
        }
        plan
    }

    /// A plan of one work, which another plan made.
    pub(crate) fn of_work(work: Work) -> Self {
        let mut plan = Self::default();
        plan.push(
            match work {
                Work::Chunk { entry, start, end } => {
                    PlanSpan::Run { first: entry, last: entry + 1, start, end }
                }
                Work::Pack { first, last } => PlanSpan::Pack { first, last },
                Work::Run { first, last, start, end } => PlanSpan::Run { first, last, start, end },
            },
            1,
        );
        plan
    }

    fn entries(&mut self, pieces: &[Piece], entries: Range<u32>, direction: Direction, limits: Limits) {
        let mut pack = PendingPack::default();
        let pack_most = if limits.lanes > 1 {
            entries.len().div_ceil(limits.lanes).clamp(MIN_PACK_PIECES, MAX_PACK_PIECES)
        } else {
            MAX_PACK_PIECES
        };
        let alone = pieces.len() == 1;
        let of = |range: &Range<u32>| &pieces[range.start as usize..range.end as usize];
        let total = if alone { 0 } else { of(&entries).iter().map(|piece| piece.len as u64).sum() };
        // Entries before this are known not to be neighbours.
        let mut known = entries.start;
        let mut next = entries.start;
        while next < entries.end {
            let entry = next;
            if entry == known {
                let (last, is_run) = run::neighbours(pieces, &(entry..entries.end), direction, limits);
                known = last;
                if is_run {
                    self.close(&mut pack);
                    self.run(pieces, entry..last, total, direction, limits);
                    next = last;
                    continue;
                }
            }
            next += 1;
            let piece = &pieces[entry as usize];
            let (start, end) = (piece.offset, piece.offset + piece.len as u64);
            let (low, high) = aligned_out(start, end, limits.align);
            let room = (high - low) as usize;
            if !alone && room <= CELL {
                if pack.count == pack_most || pack.bytes + room > limits.slot {
                    self.close(&mut pack);
                }
                pack.add(entry, room);
                continue;
            }
            self.close(&mut pack);
            match direction {
                Direction::Read => self.chunks(entry, start, end, limits),
                Direction::Write => self.write(entry, start, end, limits),
            }
        }
        self.close(&mut pack);
    }

    /// Cuts a write into head, aligned middle and tail.
    fn write(&mut self, entry: u32, start: u64, end: u64, limits: Limits) {
        let (low, high) = (start.next_multiple_of(limits.align), end & !(limits.align - 1));
        if low >= high {
            return self.chunks(entry, start, end, limits);
        }
        for (from, to) in [(start, low), (low, high), (high, end)] {
            if from < to {
                self.chunks(entry, from, to, limits);
            }
        }
    }

    fn chunks(&mut self, entry: u32, start: u64, end: u64, limits: Limits) {
        let chunk = chunk_size(end - start, limits);
        let count = if start == end { 1 } else { (end - (start & !(chunk - 1))).div_ceil(chunk) as usize };
        self.push(PlanSpan::Chunks { entry, start, end, chunk }, count);
    }

    fn close(&mut self, pack: &mut PendingPack) {
        if pack.count > 0 {
            self.push(PlanSpan::Pack { first: pack.first, last: pack.first + pack.count as u32 }, 1);
        }
        *pack = PendingPack::default();
    }

    fn push(&mut self, span: PlanSpan, works: usize) {
        self.until.push(self.len() + works);
        self.spans.push(span);
    }

    /// Number of works.
    pub(crate) fn len(&self) -> usize {
        self.until.last().copied().unwrap_or(0)
    }

    /// Work number `index`, if there is one.
    pub(crate) fn work(&self, index: usize) -> Option<Work> {
        let at = self.until.partition_point(|until| *until <= index);
        let before = if at == 0 { 0 } else { self.until[at - 1] };
        Some(match *self.spans.get(at)? {
            PlanSpan::Pack { first, last } => Work::Pack { first, last },
            PlanSpan::Run { first, last, start, end } if last - first == 1 => {
                Work::Chunk { entry: first, start, end }
            }
            PlanSpan::Run { first, last, start, end } => Work::Run { first, last, start, end },
            PlanSpan::Chunks { entry, start, end, chunk } => {
                let base = (start & !(chunk - 1)) + (index - before) as u64 * chunk;
                Work::Chunk { entry, start: start.max(base), end: end.min(base + chunk) }
            }
        })
    }
}

#[derive(Default)]
struct PendingPack {
    first: u32,
    count: usize,
    bytes: usize,
}

impl PendingPack {
    fn add(&mut self, entry: u32, room: usize) {
        if self.count == 0 {
            self.first = entry;
        }
        self.count += 1;
        self.bytes += room;
    }
}

/// Chunks large enough to be cheap, small enough to keep every lane busy: a power of two within the slot.
fn chunk_size(len: u64, limits: Limits) -> u64 {
    let spread = (len / (limits.lanes as u64 * 2).max(1)).max(1).next_power_of_two();
    spread.clamp(CHUNK.max(limits.align).min(limits.slot as u64), limits.slot as u64)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn limits() -> impl Strategy<Value = Limits> {
        (16u32..=22, 0usize..=8, 9u32..=12, any::<bool>()).prop_map(|(slot, lanes, align, merge)| Limits {
            merge,
            slot: 1 << slot,
            lanes,
            align: 1 << align,
        })
    }

    /// Anywhere, or one after the other with a gap now and then.
    fn pieces() -> impl Strategy<Value = Vec<Piece>> {
        let len = prop_oneof![0usize..300, 1usize..200_000, 1usize..20_000_000];
        let apart = prop::collection::vec((0u64..1 << 40, len), 1..600).prop_map(|pairs| {
            pairs.into_iter().map(|(offset, len)| Piece { offset, address: 0, len }).collect()
        });
        prop_oneof![apart, neighbours()]
    }

    fn neighbours() -> impl Strategy<Value = Vec<Piece>> {
        let len = prop_oneof![0usize..3, 1usize..200, 1usize..300_000, 1usize..6_000_000];
        let gap = prop_oneof![4 => Just(0u64), 1 => 0u64..10_000];
        let most = prop_oneof![1usize..20, 1usize..3000];
        (0u64..100_000, most).prop_flat_map(move |(start, most)| {
            prop::collection::vec((gap.clone(), len.clone()), most).prop_map(move |pairs| {
                let mut offset = start;
                let mut place = |(gap, len): (u64, usize)| {
                    let piece = Piece { offset: offset + gap, address: 0, len };
                    offset = piece.offset + len as u64;
                    piece
                };
                pairs.into_iter().map(&mut place).collect()
            })
        })
    }

    /// Every work as (entry, start, end).
    fn ranges(plan: &Plan, pieces: &[Piece]) -> Vec<(u32, u64, u64)> {
        (0..plan.len())
            .flat_map(|index| match plan.work(index).unwrap() {
                Work::Chunk { entry, start, end } => vec![(entry, start, end)],
                Work::Run { first, last, start, end } => (first..last)
                    .map(|entry| {
                        let piece = pieces[entry as usize];
                        (entry, start.max(piece.offset), end.min(piece.offset + piece.len as u64))
                    })
                    .collect(),
                Work::Pack { first, last } => (first..last)
                    .map(|entry| {
                        let piece = pieces[entry as usize];
                        (entry, piece.offset, piece.offset + piece.len as u64)
                    })
                    .collect(),
            })
            .collect()
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(200))]

        #[test]
        fn works_cover_every_piece_once(pieces in pieces(), limits in limits(), write in any::<bool>()) {
            let direction = if write { Direction::Write } else { Direction::Read };
            let plan = Plan::new(&pieces, direction, limits);
            let ranges = ranges(&plan, &pieces);
            let mut at = ranges.iter().peekable();
            for (index, piece) in pieces.iter().enumerate() {
                let mut next = piece.offset;
                while let Some((_, start, end)) = at.next_if(|(entry, _, _)| *entry == index as u32) {
                    prop_assert_eq!(*start, next);
                    prop_assert!(end >= start);
                    next = *end;
                }
                prop_assert_eq!(next, piece.offset + piece.len as u64);
            }
            prop_assert!(at.next().is_none());
            prop_assert!(plan.work(plan.len()).is_none());
        }

        #[test]
        fn works_fit_into_a_slot_and_inner_cuts_are_aligned(
            pieces in pieces(), limits in limits(), write in any::<bool>()
        ) {
            let direction = if write { Direction::Write } else { Direction::Read };
            let plan = Plan::new(&pieces, direction, limits);
            for index in 0..plan.len() {
                match plan.work(index).unwrap() {
                    Work::Chunk { entry, start, end } => {
                        let (low, high) = aligned_out(start, end, limits.align);
                        prop_assert!((high - low) as usize <= limits.slot);
                        let piece = pieces[entry as usize];
                        prop_assert!(start == piece.offset || start % limits.align == 0);
                        prop_assert!(end == piece.offset + piece.len as u64 || end % limits.align == 0);
                    }
                    Work::Run { first, last, start, end } => {
                        prop_assert!((2..=MAX_PACK_PIECES).contains(&((last - first) as usize)));
                        let (low, high) = aligned_out(start, end, limits.align);
                        prop_assert!((high - low) as usize <= limits.slot);
                        // Each has bytes there, and a write has bytes for all of it.
                        let mut next = start;
                        for piece in &pieces[first as usize..last as usize] {
                            let until = piece.offset + piece.len as u64;
                            prop_assert!(piece.offset < end && until > start);
                            prop_assert!(piece.offset <= next || !write);
                            next = until;
                        }
                        prop_assert!(next >= end);
                    }
                    Work::Pack { first, last } => {
                        prop_assert!((last - first) as usize <= MAX_PACK_PIECES);
                        let bytes: u64 = pieces[first as usize..last as usize]
                            .iter()
                            .map(|piece| {
                                let (low, high) =
                                    aligned_out(piece.offset, piece.offset + piece.len as u64, limits.align);
                                high - low
                            })
                            .sum();
                        prop_assert!(bytes as usize <= limits.slot);
                    }
                }
            }
        }

        #[test]
        fn unaligned_edges_of_writes_are_shorter_than_the_alignment(
            offset in 0u64..1 << 30, len in 1usize..10_000_000, limits in limits()
        ) {
            let piece = Piece { offset, address: 0, len };
            let plan = Plan::new(&[piece], Direction::Write, limits);
            for (_, start, end) in ranges(&plan, &[piece]) {
                let aligned = start % limits.align == 0 && end % limits.align == 0;
                prop_assert!(aligned || end - start < 2 * limits.align);
            }
        }
    }

    /// Where no lane has to help, the works are as long as they may be.
    #[test]
    fn what_a_source_cuts_by_itself_is_one_work() {
        let pieces = [Piece { offset: 4096, address: 0, len: (16 << 20) - 4096 }];
        let limits = |lanes| Limits { slot: 16 << 20, lanes, align: 512, merge: false };
        assert_eq!(Plan::new(&pieces, Direction::Read, limits(0)).len(), 1);
        assert_eq!(Plan::new(&pieces, Direction::Read, limits(1)).len(), 2);
    }

    #[test]
    fn a_batch_of_small_pieces_is_packs() {
        let pieces: Vec<_> = (0..1000).map(|i| Piece { offset: i * 4096, address: 0, len: 4096 }).collect();
        let plan = Plan::new(
            &pieces,
            Direction::Read,
            Limits { slot: 4 << 20, lanes: 1, align: 4096, merge: false },
        );
        assert_eq!(plan.len(), 4);
        assert!(plan.spans.iter().all(|span| matches!(span, PlanSpan::Pack { .. })));
    }

    #[test]
    fn neighbours_share_reads_and_writes() {
        // 5000 tensors of 4 KiB to 300 KiB, none of them aligned.
        let mut offset = 1234;
        let mut next = |index: usize| {
            let piece = Piece { offset, address: 0, len: 4096 + index * 7919 % 300_000 };
            offset += piece.len as u64;
            piece
        };
        let pieces: Vec<_> = (0..5000).map(&mut next).collect();
        let chunks = (offset - 1234).div_ceil(4 << 20) as usize;
        for direction in [Direction::Read, Direction::Write] {
            let limits = Limits { slot: 4 << 20, lanes: 2, align: 4096, merge: true };
            let plan = Plan::new(&pieces, direction, limits);
            assert!(plan.len() <= chunks + 3, "{} for {chunks}", plan.len());
            // Only the ends of the whole are unaligned.
            let borders = (0..plan.len()).map(|index| match plan.work(index).unwrap() {
                Work::Run { start, end, .. } | Work::Chunk { start, end, .. } => (start, end),
                Work::Pack { .. } => panic!("a pack"),
            });
            let unaligned = borders.filter(|(start, end)| (start | end) % 4096 != 0).count();
            assert_eq!(unaligned, 2, "{direction:?}");
            assert!(Plan::new(&pieces, direction, Limits { merge: false, ..limits }).len() >= 5000 / 2);
        }
    }

    #[test]
    fn small_neighbours_are_read_a_slot_at_a_time() {
        let works = |len: usize, direction| {
            let piece = |at| Piece { offset: (at * len) as u64, address: 0, len };
            let pieces: Vec<_> = (0..(16 << 20) / len).map(piece).collect();
            let limits = Limits { slot: 4 << 20, lanes: 8, align: 4096, merge: true };
            Plan::new(&pieces, direction, limits).len()
        };
        assert_eq!(works(96 << 10, Direction::Read), 4);
        assert_eq!(works(1 << 20, Direction::Read), 16, "spread over the lanes");
        assert_eq!(works(64 << 10, Direction::Write), 16, "as many lanes write");
    }

    #[test]
    fn pieces_of_a_byte_make_progress() {
        let pieces: Vec<_> = (0..200_000).map(|at| Piece { offset: 3 + at, address: 0, len: 1 }).collect();
        for direction in [Direction::Read, Direction::Write] {
            let limits = Limits { slot: 4 << 20, lanes: 2, align: 4096, merge: true };
            let plan = Plan::new(&pieces, direction, limits);
            assert!(plan.len() <= 200_000 / MAX_PACK_PIECES + 3, "{}", plan.len());
        }
    }

    #[test]
    fn a_tebibyte_costs_one_span() {
        let piece = Piece { offset: 0, address: 0, len: 1 << 40 };
        let plan = Plan::new(
            &[piece],
            Direction::Read,
            Limits { slot: 4 << 20, lanes: 8, align: 4096, merge: false },
        );
        assert_eq!(plan.len(), 1 << 18);
        assert_eq!(plan.spans.len(), 1);
    }
}
