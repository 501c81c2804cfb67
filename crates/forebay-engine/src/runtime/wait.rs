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

/// Of the time that copies took lately a caller sleeps so much before its first look: five eighths.
const ASLEEP: (u64, u64) = (5, 8);
/// How much of what was learnt a new wait replaces: an eighth.
const NEWS: u64 = 8;
/// A shorter sleep before the first look loses more by being woken late than it saves.
const WORTH_SLEEPING: Duration = Duration::from_micros(100);
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
    /// At the first look, perhaps long after it was.
    AtOnce,
    /// After so long.
    After(Duration),
    /// Not by now.
    Never,
}

/// Sleeps for `first`, looks, and goes on with short naps, none much longer than an eighth of the time so far.
pub(crate) fn nap_for(first: Duration, mut is_done: impl FnMut() -> Result<bool>) -> Result<Found> {
    if is_done()? {
        return Ok(Found::AtOnce);
    }
    let naps = Naps::start();
    let start = Instant::now();
    if first >= WORTH_SLEEPING {
        naps.sleep(first);
        if is_done()? {
            return Ok(Found::AtOnce);
        }
    }
    for _ in 0..NAPS {
        naps.sleep((start.elapsed() / 8).max(NAP));
        if is_done()? {
            return Ok(Found::After(start.elapsed()));
        }
    }
    Ok(Found::Never)
}

/// How long copies of callers take lately, many of them sharing a link: nanoseconds for 4 KiB.
#[derive(Debug)]
pub(crate) struct Pace(AtomicU64);

impl Default for Pace {
    fn default() -> Self {
        Self(AtomicU64::new(0))
    }
}

impl Pace {
    /// How long to sleep before the first look at a copy of so many bytes.
    pub(crate) fn first_nap(&self, len: usize) -> Duration {
        let takes = self.0.load(Ordering::Relaxed).saturating_mul((len as u64).div_ceil(4096));
        Duration::from_nanos(takes / ASLEEP.1 * ASLEEP.0).min(HORIZON)
    }

    /// Takes in how long one was waited for. One that was done at the first look may have been done long before: what is
    /// learnt from sleeping too long must not make the next sleep longer.
    pub(crate) fn learn(&self, len: usize, found: Found) {
        let known = self.0.load(Ordering::Relaxed);
        let news = match found {
            Found::AtOnce => 0,
            Found::After(waited) => waited.as_nanos() as u64 / (len as u64).div_ceil(4096).max(1),
            Found::Never => known,
        };
        self.0.store(known - known / NEWS + news / NEWS, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_caller_sleeps_for_less_than_copies_took_lately() {
        let (pace, len) = (Pace::default(), 1 << 20);
        assert_eq!(pace.first_nap(len), Duration::ZERO);
        for _ in 0..100 {
            pace.learn(len, Found::After(Duration::from_micros(400)));
        }
        let nap = pace.first_nap(len);
        assert!((Duration::from_micros(200)..Duration::from_micros(300)).contains(&nap), "{nap:?}");
        assert!(pace.first_nap(usize::MAX) <= HORIZON, "nobody sleeps for ever");
        for _ in 0..100 {
            pace.learn(len, Found::AtOnce);
        }
        assert!(pace.first_nap(len) < NAP, "who overslept sleeps less");
    }

    #[test]
    fn a_wait_that_never_ends_is_given_up() {
        assert!(!poll(Duration::from_micros(50), || Ok(false)).unwrap());
        assert!(poll(Duration::ZERO, || Ok(true)).unwrap());
        assert_eq!(nap_for(Duration::ZERO, || Ok(false)).unwrap(), Found::Never);
        let mut looks = 0;
        let third = || {
            looks += 1;
            Ok(looks == 3)
        };
        assert!(matches!(nap_for(NAP, third).unwrap(), Found::After(_)));
    }
}
