//! How long a copy takes is known before: how to wait for it.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use forebay_error::Result;
use forebay_gpu::{Naps, Wait};

/// Copies of more than this take longer than the driver's own sleep is late.
const LONG: usize = 128 << 20;
/// Bytes that a device copies in a microsecond, as long as nothing else is known.
const BYTES_PER_MICROSECOND: usize = 50_000;
/// The shortest nap that is worth its system calls.
const NAP: Duration = Duration::from_micros(20);
/// Naps of a caller before its wait is left to the driver, which also knows errors: some milliseconds.
const NAPS: u32 = 32;
/// Looks of a polling thread between looks at the clock.
const LOOKS: u32 = 16;

/// What a link may be thought to carry, in bytes per microsecond.
const SLOWEST: u64 = 1_000;
const FASTEST: u64 = 1_000_000;
/// How much faster a link is taken to be after a copy was done when it was due, and how much slower after one was not:
/// about one copy in eight is not.
const FASTER: u64 = 128;
const SLOWER: u64 = 16;
/// From the start of a copy to its first byte, and from its last to the word that tells.
const LATENCY: Duration = Duration::from_micros(5);
/// Nobody sleeps longer before the first look.
const HORIZON: Duration = Duration::from_millis(500);

/// The least time that a copy of so many bytes takes.
pub(crate) fn expected(len: usize) -> Duration {
    Duration::from_micros((len / BYTES_PER_MICROSECOND) as u64)
}

/// Waits for a copy without keeping a CPU busy, and without oversleeping by more than an eighth.
pub(crate) fn nap(len: usize) -> Wait {
    if len > LONG { Wait::Block } else { Wait::Nap((expected(len) / 8).max(NAP)) }
}

/// Polls for at most `limit`; whether it is done.
pub(crate) fn poll(limit: Duration, mut is_done: impl FnMut() -> Result<bool>) -> Result<bool> {
    if is_done()? {
        return Ok(true);
    }
    let start = Instant::now();
    while start.elapsed() < limit {
        for _ in 0..LOOKS {
            std::hint::spin_loop();
            if is_done()? {
                return Ok(true);
            }
        }
    }
    Ok(false)
}

/// When a wait found its copy done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Found {
    /// At the first look.
    Due,
    Late,
    /// Not by now.
    Never,
}

/// Sleeps until `due`, looks, and goes on with short naps, none much longer than an eighth of the time so far.
pub(crate) fn nap_until(due: Instant, mut is_done: impl FnMut() -> Result<bool>) -> Result<Found> {
    if is_done()? {
        return Ok(Found::Due);
    }
    let naps = Naps::start();
    let start = Instant::now();
    let first = due.saturating_duration_since(start);
    if !first.is_zero() {
        naps.sleep(first);
        if is_done()? {
            return Ok(Found::Due);
        }
    }
    for _ in 0..NAPS {
        naps.sleep((start.elapsed() / 8).max(NAP));
        if is_done()? {
            return Ok(Found::Late);
        }
    }
    Ok(Found::Never)
}

/// A link that copies share: when each should be done. Its rate is learnt from copies that were done when they were due,
/// or were not.
#[derive(Debug)]
pub(crate) struct Pace {
    clock: Instant,
    /// Bytes per microsecond.
    rate: AtomicU64,
    /// When all copies so far should be done: nanoseconds of the clock.
    busy_until: AtomicU64,
}

impl Default for Pace {
    fn default() -> Self {
        let rate = AtomicU64::new(BYTES_PER_MICROSECOND as u64);
        Self { clock: Instant::now(), rate, busy_until: AtomicU64::new(0) }
    }
}

impl Pace {
    /// A copy was queued behind the others: when it should be done.
    pub(crate) fn queue(&self, len: usize) -> Instant {
        let now = self.clock.elapsed().as_nanos() as u64;
        let rate = self.rate.load(Ordering::Relaxed).max(1);
        let takes = (len as u64).saturating_mul(1000) / rate;
        let latest = now + HORIZON.as_nanos() as u64;
        let after = |until: u64| until.max(now).saturating_add(takes).min(latest);
        let until = self
            .busy_until
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |until| Some(after(until)))
            .unwrap_or(now);
        self.clock + Duration::from_nanos(after(until)) + LATENCY
    }

    /// Takes in whether a copy was done when it was due.
    pub(crate) fn learn(&self, found: Found) {
        let rate = self.rate.load(Ordering::Relaxed);
        let next = match found {
            Found::Due => rate + rate / FASTER,
            Found::Late | Found::Never => rate - rate / SLOWER,
        };
        self.rate.store(next.clamp(SLOWEST, FASTEST), Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_are_due_one_after_the_other() {
        let pace = Pace::default();
        let before = Instant::now();
        let len = 50 << 20;
        let (first, second) = (pace.queue(len), pace.queue(len));
        let each = Duration::from_nanos((len as u64) * 1000 / BYTES_PER_MICROSECOND as u64);
        assert!(first >= before + each && second + LATENCY >= first + each, "{first:?} {second:?}");
        assert!(pace.queue(usize::MAX) <= Instant::now() + HORIZON + LATENCY, "nobody sleeps for ever");
    }

    #[test]
    fn the_rate_settles_where_most_copies_are_done_in_time() {
        let pace = Pace::default();
        // A link of 10 000 bytes per microsecond.
        for _ in 0..5000 {
            let rate = pace.rate.load(Ordering::Relaxed);
            pace.learn(if rate <= 10_000 { Found::Due } else { Found::Late });
        }
        let rate = pace.rate.load(Ordering::Relaxed);
        assert!((9_000..=10_100).contains(&rate), "{rate}");
    }

    #[test]
    fn a_wait_that_never_ends_is_given_up() {
        assert!(!poll(Duration::from_micros(50), || Ok(false)).unwrap());
        assert!(poll(Duration::ZERO, || Ok(true)).unwrap());
        assert_eq!(nap_until(Instant::now(), || Ok(false)).unwrap(), Found::Never);
        let mut looks = 0;
        let third = || {
            looks += 1;
            Ok(looks == 3)
        };
        assert_eq!(nap_until(Instant::now() + NAP, third).unwrap(), Found::Late);
    }
}
