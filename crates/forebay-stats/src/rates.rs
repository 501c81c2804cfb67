//! Averages over the last full second, from sums that were written down when seconds began.

use crate::layout::{CounterRegion, IoSums, Shard, TICKS, Tick};
use crate::snapshot::Rate;

const SECOND: u64 = 1_000_000_000;

/// The counts in a stretch of time.
pub(crate) struct RateWindow {
    pub(crate) sums: Box<Shard<u64>>,
    seconds: f64,
}

/// The last full second. Where nothing happened in it but something in the present one, the present one so far.
pub(crate) fn window(region: &CounterRegion<u64>, now_sums: &Shard<u64>, now: u64) -> RateWindow {
    let present = now / SECOND + 1;
    let written = region.header.ticks as usize;
    let tick = |back: usize| -> Option<&Tick<u64>> {
        written.checked_sub(back).map(|number| &region.ticks[number % TICKS])
    };
    let full = |sums: Box<Shard<u64>>| RateWindow { sums, seconds: 1.0 };
    let nothing = full(now_sums.since(now_sums));
    let (Some(last), before) = (tick(1), tick(2)) else { return nothing };
    if last.second.wrapping_add(1) == present {
        return full(now_sums.since(&last.sums));
    }
    if last.second != present {
        return nothing;
    }
    match before {
        Some(before) if before.second.wrapping_add(1) == present => full(last.sums.since(&before.sums)),
        _ => {
            let nanos = now.saturating_sub(last.time).max(1_000_000);
            RateWindow { sums: now_sums.since(&last.sums), seconds: nanos as f64 / SECOND as f64 }
        }
    }
}

impl RateWindow {
    pub(crate) fn per_second(&self, count: u64) -> f64 {
        count as f64 / self.seconds
    }

    pub(crate) fn rate(&self, sums: &IoSums<u64>) -> Rate {
        let ops = sums.ok.wrapping_add(sums.err);
        Rate {
            bytes_per_s: self.per_second(sums.bytes),
            ops_per_s: self.per_second(ops),
            latency_us: if ops == 0 { 0.0 } else { sums.nanos as f64 / 1e3 / ops as f64 },
            utilization_percent: sums.nanos as f64 / SECOND as f64 / self.seconds * 100.0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::zeroed;

    /// `bytes` were counted before each of these moments, and `bytes` now.
    fn per_second(ticks: &[(u64, u64)], bytes: u64, now: u64) -> f64 {
        let mut region: Box<CounterRegion<u64>> = zeroed();
        region.header.ticks = ticks.len() as u64;
        for (index, (time, bytes)) in ticks.iter().enumerate() {
            let tick = &mut region.ticks[index % TICKS];
            (tick.second, tick.time) = (time / SECOND + 1, *time);
            tick.sums.batch.bytes[0] = *bytes;
        }
        let mut sums: Box<Shard<u64>> = zeroed();
        sums.batch.bytes[0] = bytes;
        let window = window(&region, &sums, now);
        window.per_second(window.sums.batch.bytes[0])
    }

    #[test]
    fn the_last_full_second_counts() {
        let ticks: Vec<_> = (0..7).map(|second| (second * SECOND + 5, second * 100)).collect();
        let close = |rate: f64, expected: f64| assert!((rate - expected).abs() < 1e-6, "{rate} {expected}");
        // The second that runs has 50 bytes so far; the one before had 100.
        close(per_second(&ticks, 650, 6 * SECOND + SECOND / 2), 100.0);
        // Nothing came since: the last tick's second is the full one.
        close(per_second(&ticks, 650, 7 * SECOND + SECOND / 2), 50.0);
        close(per_second(&ticks, 650, 8 * SECOND + SECOND / 2), 0.0);
        // The first second of all, and the first one after a pause.
        close(per_second(&[(10 * SECOND, 0)], 50, 10 * SECOND + SECOND / 2), 100.0);
        close(per_second(&[(2 * SECOND, 0), (10 * SECOND, 7)], 57, 10 * SECOND + SECOND / 2), 100.0);
        close(per_second(&[], 50, SECOND), 0.0);
    }
}
