//! Sets of numbers as ranges.

/// Disjoint ranges in order, with gaps between them.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Ranges(pub(super) Vec<(u64, u64)>);

impl Ranges {
    /// Those that hold the same values, given in any order.
    pub(super) fn of(ranges: impl Iterator<Item = (u64, u64)>) -> Self {
        let mut all: Vec<_> = ranges.collect();
        all.sort_unstable();
        let mut ranges: Vec<(u64, u64)> = Vec::new();
        for (start, end) in all {
            match ranges.last_mut() {
                Some((_, reached)) if start <= *reached => *reached = end.max(*reached),
                _ => ranges.push((start, end)),
            }
        }
        Self(ranges)
    }

    pub(super) fn insert(&mut self, start: u64, end: u64) {
        // Ranges that touch it are joined with it.
        let first = self.0.partition_point(|(_, reached)| *reached < start);
        let last = self.0.partition_point(|(begin, _)| *begin <= end);
        let joined = self.0[first..last]
            .iter()
            .fold((start, end), |(from, to), (begin, reached)| (from.min(*begin), to.max(*reached)));
        self.0.splice(first..last, [joined]);
    }

    /// The first value of `start..end` that is in none of them.
    pub(super) fn first_gap(&self, start: u64, end: u64) -> Option<u64> {
        let gap = self.end_of(start).unwrap_or(start);
        (gap < end).then_some(gap)
    }

    /// The end of the range that holds `at`.
    fn end_of(&self, at: u64) -> Option<u64> {
        self.holding(at).map(|(_, end)| end)
    }

    /// The range that holds `at`.
    pub(super) fn holding(&self, at: u64) -> Option<(u64, u64)> {
        let index = self.0.partition_point(|(_, end)| *end <= at);
        self.0.get(index).filter(|(start, _)| *start <= at).copied()
    }

    /// The start of the first range that begins in `start..end`.
    pub(super) fn first_in(&self, start: u64, end: u64) -> Option<u64> {
        let index = self.0.partition_point(|(begin, _)| *begin < start);
        self.0.get(index).map(|(begin, _)| *begin).filter(|begin| *begin < end)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn ranges_are_sets(inserted in prop::collection::vec((0u64..40, 0u64..9), 0..12), asked in 0u64..45) {
            let mut ranges = Ranges::default();
            let mut set = std::collections::BTreeSet::new();
            for (start, len) in inserted {
                ranges.insert(start, start + len + 1);
                set.extend(start..=start + len);
            }
            prop_assert!(ranges.0.windows(2).all(|pair| pair[0].1 < pair[1].0));
            let end = set.contains(&asked).then(|| (asked..=u64::MAX).find(|at| !set.contains(at)).unwrap());
            prop_assert_eq!(ranges.end_of(asked), end);
            let gap = (asked..50).find(|at| !set.contains(at));
            prop_assert_eq!(ranges.first_gap(asked, 50), gap);
            prop_assert_eq!(Ranges::of(set.iter().rev().map(|at| (*at, at + 1))), ranges);
        }
    }
}
