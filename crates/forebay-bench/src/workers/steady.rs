//! `--until-steady`: whether the rate of a pass still changes.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use super::live::LiveSum;

/// The rate is steady when this many seconds in a row are alike.
const SECONDS: usize = 5;

/// The last seconds of a pass, and how far apart they are.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct SteadyRate {
    /// Whether they are as close as was asked for.
    pub(crate) is_steady: bool,
    /// Greatest distance of a second from their mean, in percent of it.
    pub(crate) spread_percent: f64,
    /// Their bytes a second.
    pub(crate) bytes_per_s: f64,
    /// Their I/Os a second.
    pub(crate) iops: f64,
}

/// Watches a pass second by second.
pub(crate) struct SteadyWatch {
    percent: f64,
    /// When the last second began, and the counts by then.
    last: Option<(Instant, LiveSum)>,
    /// Bytes and I/Os a second.
    seconds: VecDeque<(f64, f64)>,
}

impl SteadyWatch {
    pub(crate) const fn new(percent: f64) -> Self {
        Self { percent, last: None, seconds: VecDeque::new() }
    }

    /// Takes the counts of `now`. It ignores the time before the first call.
    pub(crate) fn look(&mut self, now: Instant, sum: &LiveSum) {
        let Some((began, before)) = &self.last else {
            self.last = Some((now, sum.clone()));
            return;
        };
        let time = now.saturating_duration_since(*began);
        if time < Duration::from_secs(1) {
            return;
        }
        let came = sum.since(before);
        let per_second = |count: u64| count as f64 / time.as_secs_f64();
        if self.seconds.len() == SECONDS {
            self.seconds.pop_front();
        }
        self.seconds.push_back((per_second(came.bytes), per_second(came.ops)));
        self.last = Some((now, sum.clone()));
    }

    /// The last five seconds; `None` before there are as many.
    pub(crate) fn rate(&self) -> Option<SteadyRate> {
        if self.seconds.len() < SECONDS {
            return None;
        }
        let mean = |of: fn(&(f64, f64)) -> f64| self.seconds.iter().map(of).sum::<f64>() / SECONDS as f64;
        let (bytes, iops) = (mean(|one| one.0), mean(|one| one.1));
        let far = self.seconds.iter().map(|one| (one.0 - bytes).abs()).fold(0.0, f64::max);
        let spread = if bytes > 0.0 { far / bytes * 100.0 } else { 100.0 };
        Some(SteadyRate {
            is_steady: spread <= self.percent,
            spread_percent: spread,
            bytes_per_s: bytes,
            iops,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::live::LiveMeter;
    use super::*;

    #[test]
    fn five_seconds_that_are_alike_are_steady() {
        let (meter, begin) = (LiveMeter::new(), Instant::now());
        let mut watch = SteadyWatch::new(5.0);
        let mut second = 0;
        let mut after = |bytes: u64| {
            meter.done(1, 10, bytes);
            watch.look(begin + Duration::from_secs(second), &LiveSum::of(std::iter::once(&meter)));
            second += 1;
            watch.rate()
        };
        // What came before the first look does not count.
        for bytes in [9999, 500, 1000, 1030, 990] {
            assert_eq!(after(bytes), None);
        }
        assert!(!after(1000).unwrap().is_steady, "with the slow first second");
        let steady = after(980).unwrap();
        assert!(steady.is_steady && (steady.bytes_per_s - 1000.0).abs() < 1e-6 && steady.iops > 9.9);
        assert!((steady.spread_percent - 3.0).abs() < 1e-6, "{steady:?}");
        assert!(!after(1200).unwrap().is_steady);
    }
}
