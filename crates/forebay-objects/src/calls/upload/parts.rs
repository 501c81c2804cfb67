//! Where the parts of an object begin and end.

use std::ops::Range;

/// Bytes of the first parts.
pub(super) const FIRST: u64 = 16 << 20;
/// Parts of this size, for objects up to 31 GiB.
const FIRST_COUNT: u64 = 2000;
/// Parts of each further size, which is twice the one before. S3 takes 10 000 parts: 7.8 TiB, of 4 GiB each at the end.
const NEXT_COUNT: u64 = 1000;
/// Parts of an object at most.
const MAX_PARTS: u32 = 10_000;

/// How an object is cut into parts.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct PartSizes {
    /// All parts have this size; `None`: they grow, since nobody knows how long the object will be.
    fixed: Option<u64>,
}

impl PartSizes {
    /// For an object of a known length: the smallest parts that it can have.
    pub(crate) fn of_len(len: u64) -> Self {
        let least = len.div_ceil(u64::from(MAX_PARTS)).next_multiple_of(1 << 20);
        Self { fixed: Some(least.max(FIRST)) }
    }

    /// Bytes of the first part.
    pub(crate) fn first(self) -> u64 {
        self.fixed.unwrap_or(FIRST)
    }

    /// The bytes of a part, of which the first has the number 1.
    pub(crate) fn range(self, number: u32) -> Range<u64> {
        let index = u64::from(number.saturating_sub(1));
        if let Some(size) = self.fixed {
            return index * size..(index + 1) * size;
        }
        let Some(behind) = index.checked_sub(FIRST_COUNT) else {
            return index * FIRST..(index + 1) * FIRST;
        };
        let (size, at) = (behind / NEXT_COUNT + 1, behind % NEXT_COUNT);
        let start = first_of(size) + at * (FIRST << size);
        start..start + (FIRST << size)
    }

    /// The part that a byte is in; `None`: beyond all parts.
    pub(super) fn number_at(self, offset: u64) -> Option<u32> {
        if let Some(size) = self.fixed {
            return u32::try_from(offset / size + 1).ok().filter(|number| *number <= MAX_PARTS);
        }
        if offset < FIRST_COUNT * FIRST {
            return Some((offset / FIRST) as u32 + 1);
        }
        let sizes = (u64::from(MAX_PARTS) - FIRST_COUNT) / NEXT_COUNT;
        let size = (1..=sizes).find(|size| offset < first_of(size + 1))?;
        let index = FIRST_COUNT + (size - 1) * NEXT_COUNT + (offset - first_of(size)) / (FIRST << size);
        Some(index as u32 + 1)
    }
}

/// Where parts of a size begin: 1 has the second one.
fn first_of(size: u64) -> u64 {
    FIRST_COUNT * FIRST + NEXT_COUNT * FIRST * ((1 << size) - 2)
}

/// Ranges of a part that have bytes: in order, apart from each other.
#[derive(Debug, Default)]
pub(super) struct Covered(Vec<Range<usize>>);

impl Covered {
    pub(super) fn add(&mut self, new: Range<usize>) {
        let begin = self.0.partition_point(|range| range.end < new.start);
        let end = self.0.partition_point(|range| range.start <= new.end);
        let start =
            self.0.get(begin).filter(|_| begin < end).map_or(new.start, |first| first.start.min(new.start));
        let stop = self.0[begin..end].last().map_or(new.end, |last| last.end.max(new.end));
        self.0.splice(begin..end, std::iter::once(start..stop));
    }

    /// Whether the first `len` bytes are there.
    pub(super) fn is_whole(&self, len: usize) -> bool {
        self.0.first().is_some_and(|first| first.start == 0 && first.end >= len)
    }

    /// The gaps in the first `len` bytes.
    pub(super) fn holes(&self, len: usize) -> Vec<Range<usize>> {
        let starts = std::iter::once(0).chain(self.0.iter().map(|range| range.end));
        let ends = self.0.iter().map(|range| range.start).chain([len]);
        starts.zip(ends).map(|(start, end)| start..end.min(len)).filter(|hole| !hole.is_empty()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_follow_each_other_and_reach_five_tib() {
        for sizes in [PartSizes::default(), PartSizes::of_len(5 << 40)] {
            let mut end = 0;
            for number in 1..=MAX_PARTS {
                let part = sizes.range(number);
                assert_eq!(part.start, end, "{number}");
                let numbers = (sizes.number_at(part.start), sizes.number_at(part.end - 1));
                assert_eq!(numbers, (Some(number), Some(number)));
                assert!((5 << 20..=5 << 30).contains(&(part.end - part.start)));
                end = part.end;
            }
            assert!(end >= 5 << 40);
            assert_eq!((sizes.number_at(end), sizes.number_at(u64::MAX)), (None, None));
        }
    }

    #[test]
    fn parts_of_a_known_length_are_as_small_as_they_can_be() {
        for (gib, mib) in [(0, 16), (100, 16), (500, 52), (5 << 10, 525)] {
            assert_eq!(PartSizes::of_len(gib << 30).first(), mib << 20, "{gib} GiB");
        }
    }

    #[test]
    fn covered_ranges_join_and_leave_holes() {
        let mut covered = Covered::default();
        assert_eq!(covered.holes(10), std::slice::from_ref(&(0..10)));
        for range in [2..3, 7..9, 5..6] {
            covered.add(range);
        }
        assert_eq!(covered.holes(10), [0..2, 3..5, 6..7, 9..10]);
        covered.add(3..5);
        assert_eq!(covered.holes(8), [0..2, 6..7]);
        covered.add(0..8);
        assert!(covered.is_whole(9) && !covered.is_whole(10));
        covered.add(4..20);
        assert!(covered.is_whole(10) && covered.holes(10).is_empty());
    }
}
