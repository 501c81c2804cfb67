//! Two ways for the same reads, of which nothing tells which is faster: each is measured while it is used.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use crate::tuning::files::{EXPLORE_INTERVAL, SHARES};
use crate::tuning::machine::EIGHTH;

/// A way of a read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReadBy {
    Usual,
    Other,
}

/// Divides reads between the two ways so that both take as long. Both ways wait for resources that reads share, so each read that takes
/// one of them shortens the wait of those that take the other.
#[derive(Debug, Default)]
pub(crate) struct ReadBalance {
    works: AtomicUsize,
    /// How many of [`SHARES`] works go the other way.
    share: AtomicUsize,
    /// Recent nanoseconds for a mebibyte by the usual way and by the other; 0: not known.
    paces: [AtomicU64; 2],
}

impl ReadBalance {
    /// The way of the next work.
    pub(crate) fn next(&self) -> ReadBy {
        let work = self.works.fetch_add(1, Ordering::Relaxed);
        let share = self.share.load(Ordering::Relaxed);
        // Neighbours go different ways: lanes take them at the same time.
        let is_other = if share > 0 {
            work.wrapping_mul(7) % SHARES < share
        } else {
            work % EXPLORE_INTERVAL == EXPLORE_INTERVAL / 2
        };
        if is_other { ReadBy::Other } else { ReadBy::Usual }
    }

    /// A work has taken this long.
    pub(crate) fn learn(&self, way: ReadBy, bytes: usize, took: Duration) {
        let pace = ((took.as_nanos() << 20) / bytes.max(1) as u128).max(1) as u64;
        let known = &self.paces[way as usize];
        let before = known.load(Ordering::Relaxed);
        known.store(
            if before == 0 { pace } else { before - before / EIGHTH + pace / EIGHTH },
            Ordering::Relaxed,
        );
        // Races between lanes only move the share a step more or less.
        let is_trial = way == ReadBy::Other && self.share.load(Ordering::Relaxed) == 0;
        if is_trial || self.works.load(Ordering::Relaxed).is_multiple_of(SHARES / 2) {
            self.move_share();
        }
    }

    fn move_share(&self) {
        let [usual, other] = [0, 1].map(|way: usize| self.paces[way].load(Ordering::Relaxed));
        let share = self.share.load(Ordering::Relaxed);
        let next = if usual == 0 || other == 0 {
            share
        } else if other + other / EIGHTH < usual {
            // Some go on the usual way, and tell how fast that is.
            (share + 1).min(SHARES - 1)
        } else if other > usual {
            share.saturating_sub(1)
        } else {
            share
        };
        self.share.store(next, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: usize = 1 << 20;

    /// Reads `works` mebibytes. The usual way takes a microsecond, and one more for each share that goes it; the other way `other`.
    fn run(balance: &ReadBalance, works: usize, other: u64, waits: u64) -> usize {
        let by_other = |_: &usize| {
            let way = balance.next();
            let usual = (SHARES - balance.share.load(Ordering::Relaxed)) as u64;
            let took = if way == ReadBy::Usual { 1000 + waits * usual } else { other };
            balance.learn(way, MIB, Duration::from_nanos(took));
            way == ReadBy::Other
        };
        (0..works).filter(by_other).count()
    }

    #[test]
    fn the_usual_way_stays_where_it_is_faster() {
        let balance = ReadBalance::default();
        assert_eq!(run(&balance, 640, 1400, 0), 640 / EXPLORE_INTERVAL);
    }

    #[test]
    fn reads_are_divided_so_that_both_ways_take_as_long() {
        let balance = ReadBalance::default();
        run(&balance, 640, 1400, 100);
        let share = balance.share.load(Ordering::Relaxed);
        // 1 000 + 100 × 4 = 1 400.
        assert!((SHARES - 6..=SHARES - 2).contains(&share), "{share}");
        // Nothing waits any more.
        run(&balance, 640, 1400, 0);
        assert_eq!(run(&balance, 640, 1400, 0), 640 / EXPLORE_INTERVAL);
    }
}
