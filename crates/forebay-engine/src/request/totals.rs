//! Running totals: requests, errors, bytes by way.

use std::sync::atomic::{AtomicU64, Ordering};

use forebay_sys::Striped;

use crate::request::receipt::{Moved, Way};

/// Running totals of a session for one engine.
#[derive(Debug, Default)]
pub(crate) struct Totals(Striped<Counts>);

/// What some threads counted.
#[derive(Debug, Default)]
struct Counts {
    requests: AtomicU64,
    errors: AtomicU64,
    moved: MovedSums,
}

impl Totals {
    pub(crate) fn add(&self, moved: Moved, failed: bool) {
        let counts = self.0.own();
        counts.requests.fetch_add(1, Ordering::Relaxed);
        if failed {
            counts.errors.fetch_add(1, Ordering::Relaxed);
        }
        counts.moved.add(moved);
    }

    /// Requests so far.
    pub(crate) fn requests(&self) -> u64 {
        self.0.all().map(|counts| counts.requests.load(Ordering::Relaxed)).sum()
    }

    /// Those with an error.
    pub(crate) fn errors(&self) -> u64 {
        self.0.all().map(|counts| counts.errors.load(Ordering::Relaxed)).sum()
    }

    /// Bytes by way.
    pub(crate) fn moved(&self) -> Moved {
        self.0.all().map(|counts| counts.moved.load()).fold(Moved::default(), Moved::plus)
    }
}

/// Running sums of bytes by way.
#[derive(Debug, Default)]
pub(super) struct MovedSums {
    ways: [AtomicU64; Way::COUNT],
    resident: AtomicU64,
}

impl MovedSums {
    pub(super) fn add(&self, moved: Moved) {
        let add = |sum: &AtomicU64, bytes| {
            if bytes > 0 {
                sum.fetch_add(bytes, Ordering::Relaxed);
            }
        };
        self.ways.iter().zip(moved.as_array()).for_each(|(sum, bytes)| add(sum, *bytes));
        add(&self.resident, moved.resident);
    }

    pub(super) fn load(&self) -> Moved {
        let ways = self.ways.each_ref().map(|sum| sum.load(Ordering::Relaxed));
        Moved::from_ways(ways).by_resident(self.resident.load(Ordering::Relaxed))
    }
}
