//! How threads wait: they poll for a while, then nap, then block. How long a copy takes is known before.

use std::convert::Infallible;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use forebay_config::{Objective, allowed_cpus};
use forebay_error::Result;
use forebay_gpu::{Naps, Wait};

use crate::tuning::machine::{
    BRIEF_WAIT, EIGHTH, IDLE, LINK_BYTES_PER_NS, LONG_NAP, LOOK, PATIENCE, SHORT_LOOK, WORTH_SLEEPING,
};
use crate::tuning::mapped::COPY_BYTES;
use crate::tuning::waits::{ASLEEP, ENOUGH_CPUS, LOOKS, NAPS};

/// A poll, and what follows it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WaitPolicy {
    /// How long to poll. Without a poll the driver waits at once.
    pub(crate) poll: Duration,
    /// How the driver waits after that.
    pub(crate) last: Wait,
}

impl WaitPolicy {
    /// Waits in the driver, asleep.
    pub(crate) const BLOCK: Self = Self { poll: Duration::ZERO, last: Wait::Block };
}

/// How the driver waits under an objective; `usual` is for the default one.
pub(crate) fn by_objective(objective: Objective, usual: Wait) -> Wait {
    match objective {
        Objective::Latency => Wait::Spin,
        Objective::Throughput => usual,
        Objective::Cpu => Wait::Block,
    }
}

/// Whether this number of threads may poll at once: not if CPU time is what counts, and only if as many CPUs are left to
/// others.
pub(crate) fn may_poll(objective: Objective, threads: usize) -> bool {
    let cpus = allowed_cpus();
    objective != Objective::Cpu && cpus >= ENOUGH_CPUS && cpus >= 2 * threads
}

/// The least time that a copy of this many bytes takes.
pub(crate) fn expected(len: usize) -> Duration {
    Duration::from_nanos(len as u64 / LINK_BYTES_PER_NS)
}

/// Waits for a copy without keeping a CPU busy, and without oversleeping by more than an eighth.
pub(crate) fn nap(len: usize) -> Wait {
    if len > 2 * COPY_BYTES as usize { Wait::Block } else { Wait::Nap((expected(len) / 8).max(LOOK)) }
}

/// The next nap of a thread that watches others and has seen nothing for this long. `None`: it goes on polling.
pub(crate) fn nap_of_watcher(idle: Duration) -> Option<Duration> {
    let (least, most) = (SHORT_LOOK, IDLE);
    match idle {
        _ if idle < WORTH_SLEEPING => None,
        _ if idle > PATIENCE => Some(LONG_NAP),
        _ => Some((idle / 8).clamp(least, most)),
    }
}

/// Polls for at most `limit`. Returns whether it is done.
pub(crate) fn poll<E>(
    limit: Duration,
    mut is_done: impl FnMut() -> std::result::Result<bool, E>,
) -> std::result::Result<bool, E> {
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

/// Polls a flag as [`poll`] does.
pub(crate) fn poll_flag(limit: Duration, mut is_set: impl FnMut() -> bool) -> bool {
    let Ok(is_set) = poll(limit, || Ok::<_, Infallible>(is_set()));
    is_set
}

/// When a thread found its copy done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PollResult {
    /// At the first look, perhaps late.
    AtOnce,
    /// After this time.
    After(Duration),
    /// Not yet.
    Never,
}

/// Sleeps for `first`, looks, and goes on with short naps, none much longer than an eighth of the time so far.
pub(crate) fn nap_for(first: Duration, mut is_done: impl FnMut() -> Result<bool>) -> Result<PollResult> {
    if is_done()? {
        return Ok(PollResult::AtOnce);
    }
    let naps = Naps::start();
    let start = Instant::now();
    if first >= WORTH_SLEEPING {
        naps.sleep(first);
        if is_done()? {
            return Ok(PollResult::AtOnce);
        }
    }
    for _ in 0..NAPS {
        naps.sleep((start.elapsed() / 8).max(LOOK));
        if is_done()? {
            return Ok(PollResult::After(start.elapsed()));
        }
    }
    Ok(PollResult::Never)
}

/// How long callers' copies took lately, beside others on the link: nanoseconds for 4 KiB.
#[derive(Debug)]
pub(crate) struct CopyPace(AtomicU64);

impl Default for CopyPace {
    fn default() -> Self {
        Self(AtomicU64::new(0))
    }
}

impl CopyPace {
    /// How long to sleep before the first look at a copy of this many bytes.
    pub(crate) fn first_nap(&self, len: usize) -> Duration {
        let takes = self.0.load(Ordering::Relaxed).saturating_mul((len as u64).div_ceil(4096));
        Duration::from_nanos(takes / EIGHTH * ASLEEP).min(5 * BRIEF_WAIT)
    }

    /// Learns from a wait. A copy that was done at the first look may have been done long before: such a wait makes the next
    /// sleep shorter.
    pub(crate) fn learn(&self, len: usize, found: PollResult) {
        let known = self.0.load(Ordering::Relaxed);
        let news = match found {
            PollResult::AtOnce => 0,
            PollResult::After(waited) => waited.as_nanos() as u64 / (len as u64).div_ceil(4096).max(1),
            PollResult::Never => known,
        };
        self.0.store(known - known / EIGHTH + news / EIGHTH, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_polls_where_cpu_time_counts() {
        assert!(!may_poll(Objective::Cpu, 1));
        assert!(!may_poll(Objective::Throughput, allowed_cpus()), "a CPU for each, none for others");
    }

    #[test]
    fn a_poll_ends_at_its_limit_or_when_it_is_done() {
        let start = Instant::now();
        assert!(!poll_flag(Duration::from_millis(5), || false));
        assert!(start.elapsed() >= Duration::from_millis(5));
        let mut looks = 0;
        assert!(poll_flag(Duration::from_mins(1), || {
            looks += 1;
            looks == 3
        }));
        assert!(poll_flag(Duration::ZERO, || true), "it looks at least once");
    }

    #[test]
    fn a_watcher_polls_then_naps_longer_and_longer() {
        let (least, most) = (SHORT_LOOK, IDLE);
        assert_eq!(nap_of_watcher(WORTH_SLEEPING / 2), None);
        assert_eq!(nap_of_watcher(WORTH_SLEEPING), Some((WORTH_SLEEPING / 8).max(least)));
        assert_eq!(nap_of_watcher(Duration::from_secs(1)), Some(most));
        assert_eq!(nap_of_watcher(PATIENCE * 2), Some(LONG_NAP));
    }

    #[test]
    fn a_caller_sleeps_for_less_than_copies_took_lately() {
        let (pace, len) = (CopyPace::default(), 1 << 20);
        assert_eq!(pace.first_nap(len), Duration::ZERO);
        for _ in 0..100 {
            pace.learn(len, PollResult::After(Duration::from_micros(400)));
        }
        let nap = pace.first_nap(len);
        assert!((Duration::from_micros(200)..Duration::from_micros(300)).contains(&nap), "{nap:?}");
        assert!(pace.first_nap(usize::MAX) <= 5 * BRIEF_WAIT, "the sleep has a limit");
        for _ in 0..100 {
            pace.learn(len, PollResult::AtOnce);
        }
        assert!(pace.first_nap(len) < LOOK, "a thread that overslept sleeps less");
    }

    #[test]
    fn a_wait_that_never_ends_is_given_up() {
        assert!(!poll(Duration::from_micros(50), || Ok::<_, Infallible>(false)).unwrap());
        assert!(poll(Duration::ZERO, || Ok::<_, Infallible>(true)).unwrap());
        assert_eq!(nap_for(Duration::ZERO, || Ok(false)).unwrap(), PollResult::Never);
        let mut looks = 0;
        let third = || {
            looks += 1;
            Ok(looks == 3)
        };
        assert!(matches!(nap_for(LOOK, third).unwrap(), PollResult::After(_)));
    }
}
