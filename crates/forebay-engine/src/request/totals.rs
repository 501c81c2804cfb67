//! Running totals: requests, errors, bytes by way.

use std::sync::atomic::{AtomicU64, Ordering};

use forebay_sys::Striped;

use crate::request::receipt::Moved;

/// Running totals of a session for one engine.
#[derive(Debug, Default)]
pub(crate) struct Totals(Striped<Counts>);

/// What some threads counted.
#[derive(Debug, Default)]
struct Counts {
    requests: AtomicU64,
    errors: AtomicU64,
    moved: [AtomicU64; 9],
}

impl Totals {
    pub(crate) fn add(&self, moved: Moved, failed: bool) {
        let counts = self.0.own();
        counts.requests.fetch_add(1, Ordering::Relaxed);
        if failed {
            counts.errors.fetch_add(1, Ordering::Relaxed);
        }
        add_moved(&counts.moved, moved);
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
        self.0.all().map(|counts| load_moved(&counts.moved)).fold(Moved::default(), Moved::plus)
    }
}

/// Adds to sums by way.
pub(super) fn add_moved(to: &[AtomicU64; 9], moved: Moved) {
    let Moved { cached, direct, buffered, requested, mapped, peer, placed, rdma, resident } = moved;
    let ways = [cached, direct, buffered, requested, mapped, peer, placed, rdma, resident];
    for (counter, bytes) in to.iter().zip(ways) {
        if bytes > 0 {
            counter.fetch_add(bytes, Ordering::Relaxed);
        }
    }
}

/// Such sums.
pub(super) fn load_moved(from: &[AtomicU64; 9]) -> Moved {
    let [cached, direct, buffered, requested, mapped, peer, placed, rdma, resident] =
        from.each_ref().map(|counter| counter.load(Ordering::Relaxed));
    Moved { cached, direct, buffered, requested, mapped, peer, placed, rdma, resident }
}
