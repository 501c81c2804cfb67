//! What workers have done so far, for those who look on: each worker counts in a place of its own, and nobody waits.

use std::sync::atomic::{AtomicU64, Ordering};

/// Places of each power of two: a quantile is at most an eighth too high.
const PARTS: usize = 8;
/// Latencies from 2^40 ns on (18 minutes) are one.
const PLACES: usize = 38 * PARTS;

/// One worker's I/Os. Only the worker's thread writes.
#[derive(Debug)]
pub(crate) struct LiveMeter {
    ops: AtomicU64,
    bytes: AtomicU64,
    latencies: [AtomicU64; PLACES],
}

/// What a thread's own counter had, and `more`. No other thread writes there.
fn add(to: &AtomicU64, more: u64) {
    to.store(to.load(Ordering::Relaxed).wrapping_add(more), Ordering::Relaxed);
}

impl LiveMeter {
    pub(crate) const fn new() -> Self {
        Self {
            ops: AtomicU64::new(0),
            bytes: AtomicU64::new(0),
            latencies: [const { AtomicU64::new(0) }; PLACES],
        }
    }

    /// Counts `ops` I/Os that took `nanos` together.
    pub(crate) fn done(&self, nanos: u64, ops: u64, bytes: u64) {
        add(&self.ops, ops);
        add(&self.bytes, bytes);
        add(&self.latencies[place(nanos)], 1);
    }
}

/// The sum of several workers' counters at one moment, or what came between two.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LiveSum {
    pub(crate) ops: u64,
    pub(crate) bytes: u64,
    latencies: Box<[u64]>,
}

impl LiveSum {
    pub(crate) fn of<'a>(meters: impl Iterator<Item = &'a LiveMeter>) -> Self {
        let mut sum = Self { ops: 0, bytes: 0, latencies: vec![0; PLACES].into() };
        for meter in meters {
            sum.ops += meter.ops.load(Ordering::Relaxed);
            sum.bytes += meter.bytes.load(Ordering::Relaxed);
            for (all, one) in sum.latencies.iter_mut().zip(&meter.latencies) {
                *all += one.load(Ordering::Relaxed);
            }
        }
        sum
    }

    /// What came since `earlier`.
    pub(crate) fn since(&self, earlier: &Self) -> Self {
        let pairs = self.latencies.iter().zip(&earlier.latencies);
        Self {
            ops: self.ops - earlier.ops,
            bytes: self.bytes - earlier.bytes,
            latencies: pairs.map(|(now, then)| now - then).collect(),
        }
    }

    /// A quantile of the latency in microseconds; 0 without I/Os.
    pub(crate) fn quantile_us(&self, quantile: f64) -> f64 {
        let all: u64 = self.latencies.iter().sum();
        let wanted = (all as f64 * quantile).ceil() as u64;
        let mut seen = 0;
        for (place, count) in self.latencies.iter().enumerate() {
            seen += count;
            if seen >= wanted && seen > 0 {
                return above(place) as f64 / 1e3;
            }
        }
        0.0
    }
}

/// Where a latency is counted: by its highest bit, and the three below.
fn place(nanos: u64) -> usize {
    let bits = nanos.bit_width() as usize;
    let shift = bits.saturating_sub(4);
    (shift * PARTS + (nanos >> shift) as usize).min(PLACES - 1)
}

/// The end of the range of latencies that are counted there.
fn above(place: usize) -> u64 {
    if place < 2 * PARTS {
        return place as u64;
    }
    let shift = place / PARTS - 1;
    (((place - shift * PARTS) as u64 + 1) << shift) - 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn latencies_are_counted_within_an_eighth() {
        let mut last = 0;
        for nanos in (0..2000).chain((1..30).map(|bit| 1000 << bit)) {
            let (place, above) = (place(nanos), above(place(nanos)));
            assert!(place >= last && above >= nanos && above <= nanos + nanos / 8, "{nanos} {place} {above}");
            last = place;
        }
        assert_eq!(place(u64::MAX), PLACES - 1);
    }

    #[test]
    fn sums_differences_and_quantiles() {
        let meters = [LiveMeter::new(), LiveMeter::new()];
        let sum = || LiveSum::of(meters.iter());
        let before = sum();
        assert!(before.quantile_us(0.99) < f64::EPSILON);
        for step in 1..=200 {
            meters[step % 2].done(if step <= 196 { 1000 } else { 1_000_000 }, 2, 4096);
        }
        let came = sum().since(&before);
        assert_eq!((came.ops, came.bytes), (400, 200 * 4096));
        assert!(came.quantile_us(0.5) < 1.2 && came.quantile_us(0.99) > 999.0);
        assert!(sum().since(&sum()).quantile_us(0.99) < f64::EPSILON);
    }
}
