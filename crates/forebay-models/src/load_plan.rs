//! Which tensors of a model are read together, so that some are read while others are made.

use std::ops::Range;

/// Where a tensor lies in its file: offset and bytes.
pub type Extent = (u64, u64);

/// How much is read together. Groups are read beside each other: by many jobs in flight lanes move 5 % more than by one.
#[derive(Clone, Debug)]
pub struct LoadLimits {
    /// Bytes of a window of registered pages. Groups end where one does: of less than a window neither of two groups has enough for
    /// it to be worth registering.
    pub window: u64,
    /// Bytes of a group.
    pub group: u64,
    /// Tensors of a group.
    pub tensors: usize,
    /// Tensors of at most this many bytes on average take longer to make than to read, or not much less: they are read in groups of
    /// few lanes' slots as they are made. 200 large ones are made in 7 ms, and beside copies, which take the driver's lock too, in 35.
    pub small_tensor: u64,
    /// Bytes of a group of small tensors.
    pub small_group: u64,
    /// Bytes of a group that is cast: the tensors as they are in the file are needed beside the result for a while.
    pub cast: u64,
    /// A group takes at least this much of its last window: less would not be worth registering.
    pub window_percent: u64,
}

impl Default for LoadLimits {
    fn default() -> Self {
        const WINDOW: u64 = 64 << 20;
        Self {
            window: WINDOW,
            group: 8 * WINDOW,
            tensors: 16384,
            small_tensor: 512 << 10,
            small_group: 16 << 20,
            cast: 256 << 20,
            window_percent: 25,
        }
    }
}

/// A read of a load: neighbouring tensors together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoadPlan {
    /// Bytes of all tensors.
    pub bytes: u64,
    /// Whether tensors are so small that each group is read as soon as it is made.
    pub are_small: bool,
    /// Of each run, the tensors of its groups.
    pub groups: Vec<Vec<Range<usize>>>,
}

impl LoadLimits {
    /// Divides runs into groups. A run is of one file for one device, in the file's order.
    pub fn plan(&self, runs: &[Vec<Extent>], casts: bool) -> LoadPlan {
        let bytes = runs.iter().map(|run| total(run)).sum();
        let count: usize = runs.iter().map(Vec::len).sum();
        let are_small = bytes <= self.small_tensor.saturating_mul(count as u64);
        let groups = runs.iter().map(|run| self.groups(run, casts, are_small)).collect();
        LoadPlan { bytes, are_small, groups }
    }

    fn groups(&self, run: &[Extent], casts: bool, are_small: bool) -> Vec<Range<usize>> {
        if casts {
            return self.by_size(run, self.cast);
        }
        let bytes = total(run);
        let spans = |(first, last): (&Extent, &Extent)| end(last) - first.0 == bytes;
        // More than a window, and nothing lies between them in the file.
        if bytes > self.window && run.first().zip(run.last()).is_some_and(spans) {
            return self.by_window(run, if are_small { self.small_group } else { self.group });
        }
        self.by_size(run, self.group)
    }

    fn by_size(&self, run: &[Extent], limit: u64) -> Vec<Range<usize>> {
        let (mut groups, mut first, mut bytes) = (Vec::new(), 0, 0);
        for (at, (_, nbytes)) in run.iter().enumerate() {
            if at > first && (bytes + nbytes > limit || at - first >= self.tensors) {
                groups.push(first..at);
                (first, bytes) = (at, 0);
            }
            bytes += nbytes;
        }
        if first < run.len() {
            groups.push(first..run.len());
        }
        groups
    }

    /// Neighbours, divided where windows end, about every `span` bytes. One that lies in two belongs to the later, whose group
    /// finds the earlier one registered; so that it is, a group has enough of its last window.
    fn by_window(&self, run: &[Extent], span: u64) -> Vec<Range<usize>> {
        let part = span.min(self.window);
        let (mut groups, mut first) = (Vec::new(), 0);
        while first < run.len() {
            let mut cut = first;
            while cut < run.len() {
                let stop = (end(&run[cut]) / span + 1) * span;
                cut += run[cut..].partition_point(|extent| end(extent) <= stop);
                let taken = end(&run[cut - 1]).saturating_sub(run[first].0.max(stop - part));
                if 100 * taken >= self.window_percent * part {
                    break;
                }
            }
            groups.push(first..cut);
            first = cut;
        }
        groups
    }
}

/// The offset behind it.
fn end((offset, nbytes): &Extent) -> u64 {
    offset + nbytes
}

fn total(run: &[Extent]) -> u64 {
    run.iter().map(|(_, nbytes)| nbytes).sum()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn neighbours(start: u64, sizes: &[u64]) -> Vec<Extent> {
        let mut at = start;
        let place = |nbytes: &u64| {
            at += nbytes;
            (at - nbytes, *nbytes)
        };
        sizes.iter().map(place).collect()
    }

    #[test]
    fn groups_end_by_bytes_and_by_number() {
        let limits = LoadLimits { group: 100, tensors: 3, cast: 20, ..LoadLimits::default() };
        let run = neighbours(8, &[60, 30, 30, 0, 0, 0, 200, 1]);
        let plan = limits.plan(std::slice::from_ref(&run), false);
        assert_eq!((plan.bytes, plan.groups), (321, vec![vec![0..2, 2..5, 5..6, 6..7, 7..8]]));
        assert_eq!(limits.plan(&[run], true).groups, [[0..1, 1..2, 2..3, 3..6, 6..7, 7..8]]);
        assert_eq!(limits.plan(&[Vec::new()], false).groups, [Vec::new()]);
    }

    #[test]
    fn tensors_are_small_on_average_of_all_runs() {
        let limits = LoadLimits { small_tensor: 10, ..LoadLimits::default() };
        assert!(limits.plan(&[neighbours(0, &[1, 1]), neighbours(0, &[28])], false).are_small);
        assert!(!limits.plan(&[neighbours(0, &[1, 1]), neighbours(0, &[29])], false).are_small);
    }

    proptest! {
        /// So that the engine registers it for the earlier of the two, and the later one finds it.
        #[test]
        fn groups_have_enough_of_the_window_that_they_share_with_the_next(
            start in prop::sample::select(vec![8, 1000, (64 << 20) - 5, 64 << 20]),
            sizes in prop::collection::vec(prop_oneof![Just(0), Just(4096), 0..1_u64 << 20, Just(20 << 20), Just(300 << 20)], 1..500),
        ) {
            let (limits, run) = (LoadLimits::default(), neighbours(start, &sizes));
            let groups = limits.by_window(&run, limits.window);
            prop_assert!(groups.iter().all(|group| !group.is_empty()));
            prop_assert_eq!(groups.iter().cloned().flatten().collect::<Vec<_>>(), (0..run.len()).collect::<Vec<_>>());
            for pair in groups.windows(2) {
                let (begin, stop) = (run[pair[0].start].0, end(&run[pair[0].end - 1]));
                let window = (stop - 1) / limits.window * limits.window;
                prop_assert!(100 * (stop - begin.max(window)) >= limits.window_percent * limits.window);
                prop_assert!(end(&run[pair[1].start]) / limits.window > (stop - 1) / limits.window);
            }
        }
    }
}
