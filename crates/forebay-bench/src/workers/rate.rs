//! `--rate`: I/Os begin no faster than at a rate that all workers share.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use super::measure::SharedMeter;
use crate::workload::RateLimit;

/// I/Os that are late by more than this are not caught up with: a stall is not followed by a burst.
const CATCH_UP: Duration = Duration::from_millis(100);
/// Longest sleep without a look at whether the pass was stopped.
const LOOK: Duration = Duration::from_millis(50);

/// When the next I/O of any worker may begin.
#[derive(Debug)]
pub(crate) struct RateGate {
    limit: RateLimit,
    since: Instant,
    /// Nanoseconds from `since`.
    next: AtomicU64,
}

impl RateGate {
    pub(crate) fn new(limit: RateLimit) -> Self {
        Self { limit, since: Instant::now(), next: AtomicU64::new(0) }
    }

    /// Takes the next turn for an I/O of `bytes`: when it may begin.
    fn turn(&self, bytes: usize, now: Instant) -> Instant {
        let seconds = match self.limit {
            RateLimit::Bytes(rate) => bytes as f64 / rate as f64,
            RateLimit::Ios(rate) => 1.0 / rate as f64,
        };
        let cost = (seconds * 1e9) as u64;
        let earliest = now.saturating_duration_since(self.since).saturating_sub(CATCH_UP).as_nanos() as u64;
        let mut at = self.next.load(Ordering::Relaxed);
        loop {
            let due = at.max(earliest);
            // The slowest rates ask for more nanoseconds than there are.
            let next = due.saturating_add(cost);
            match self.next.compare_exchange_weak(at, next, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => return self.since + Duration::from_nanos(due),
                Err(other) => at = other,
            }
        }
    }
}

/// A worker at the gate.
pub(crate) struct RateTurn {
    pub(crate) gate: Arc<RateGate>,
    pub(crate) shared: Arc<SharedMeter>,
    /// When no more I/Os begin.
    pub(crate) end: Option<Instant>,
}

impl RateTurn {
    /// Waits until an I/O of `bytes` may begin; `false`: the pass ends before.
    pub(crate) fn wait(&self, bytes: usize) -> bool {
        let due = self.gate.turn(bytes, Instant::now());
        loop {
            let now = Instant::now();
            if self.shared.is_stopped() || self.end.is_some_and(|end| now >= end) {
                return false;
            }
            let left = due.saturating_duration_since(now);
            if left.is_zero() {
                return true;
            }
            std::thread::sleep(left.min(LOOK));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn turns_are_apart_by_the_rate_and_a_stall_is_not_made_up_for() {
        let gate = RateGate::new(RateLimit::Bytes(1000));
        let start = gate.since;
        let turn = |bytes, ms| (gate.turn(bytes, start + Duration::from_millis(ms)) - start).as_millis();
        assert_eq!([turn(500, 0), turn(100, 0), turn(100, 0)], [0, 500, 600]);
        // The next was due at 700 ms; at 5 s only the last 100 ms are made up for.
        assert_eq!([turn(50, 5000), turn(50, 5000), turn(50, 5000)], [4900, 4950, 5000]);
        let gate = RateGate::new(RateLimit::Ios(10));
        let turn = |bytes| (gate.turn(bytes, gate.since) - gate.since).as_millis();
        assert_eq!([turn(1), turn(1 << 30), turn(0)], [0, 100, 200]);
        let gate = RateGate::new(RateLimit::Bytes(1));
        assert_eq!(gate.turn(1 << 40, gate.since), gate.since);
        assert!((0..3).all(|_| gate.turn(1 << 40, gate.since) > gate.since));
    }
}
