//! Short polls before a sleep, where waking up takes longer than what is waited for.

use std::hint::spin_loop;
use std::time::{Duration, Instant};

use forebay_config::{Objective, allowed_cpus};

/// With fewer CPUs a thread that polls keeps others from working.
const ENOUGH_CPUS: usize = 8;
/// Pauses between two looks at the clock: about a microsecond.
const PAUSES: u32 = 16;

/// Whether so many threads may poll at once: not if CPU time is what counts, and only if as many CPUs are left to
/// others.
pub(crate) fn is_affordable(objective: Objective, threads: usize) -> bool {
    let cpus = allowed_cpus();
    objective != Objective::Cpu && cpus >= ENOUGH_CPUS && cpus >= 2 * threads
}

/// Polls until `done`, at most `limit`; whether it came to be.
pub(crate) fn until(limit: Duration, mut done: impl FnMut() -> bool) -> bool {
    let start = Instant::now();
    loop {
        if done() {
            return true;
        }
        if start.elapsed() >= limit {
            return false;
        }
        for _ in 0..PAUSES {
            spin_loop();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_counts_cpu_time_never_polls() {
        assert!(!is_affordable(Objective::Cpu, 1));
        assert!(!is_affordable(Objective::Throughput, allowed_cpus()), "a CPU for each, none for others");
    }

    #[test]
    fn a_poll_ends_at_its_limit_or_when_it_is_done() {
        let start = Instant::now();
        assert!(!until(Duration::from_millis(5), || false));
        assert!(start.elapsed() >= Duration::from_millis(5));
        let mut looks = 0;
        assert!(until(Duration::from_mins(1), || {
            looks += 1;
            looks == 3
        }));
        assert!(until(Duration::ZERO, || true), "it looks at least once");
    }
}
