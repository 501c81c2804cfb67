//! How busy a thread is, and whether another one would find a CPU.

use std::time::{Duration, Instant};

/// The shortest time that is looked at: 4 GiB into a GPU take half a second.
const WINDOW: Duration = Duration::from_millis(25);
/// A thread is busy that waits for less than this part of the time.
const BUSY: f64 = 0.1;
/// It has a CPU of its own where it runs for more than this part of the time that it does not wait.
const RUNS: f64 = 0.8;

/// The load of a thread.
#[derive(Debug)]
pub(super) struct Load {
    since: Instant,
    /// How long it waited since then.
    waited: Duration,
    ran: Duration,
    /// Seconds that all CPUs together were idle until then, unless the last window was a light one.
    idle: Option<f64>,
}

/// What a look at it says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LoadLevel {
    /// It waits.
    Light,
    /// It hardly waits.
    Busy,
    /// The same, and CPUs were idle meanwhile: this many.
    WantsHelp(usize),
}

impl Load {
    pub(super) fn new() -> Self {
        Self { since: Instant::now(), waited: Duration::ZERO, ran: ran(), idle: idle() }
    }

    /// It waited for so long.
    pub(super) fn waited(&mut self, time: Duration) {
        self.waited += time;
    }

    /// The load since the last look; `None`: that is too short a time.
    pub(super) fn look(&mut self, now: Instant) -> Option<LoadLevel> {
        let elapsed = now.saturating_duration_since(self.since);
        if elapsed < WINDOW {
            return None;
        }
        let (ran, elapsed) = (ran(), elapsed.as_secs_f64());
        let own = ran.saturating_sub(self.ran).as_secs_f64();
        let waited = self.waited.as_secs_f64();
        (self.since, self.waited, self.ran) = (now, Duration::ZERO, ran);
        if waited > elapsed * BUSY {
            self.idle = None;
            return Some(LoadLevel::Light);
        }
        // A thread that others keep from running gets no more done by another thread.
        let idle = if own > (elapsed - waited) * RUNS { idle() } else { None };
        let before = std::mem::replace(&mut self.idle, idle);
        let cpus = idle.zip(before).map_or(0.0, |(idle, before)| (idle - before) / elapsed);
        Some(if cpus >= 1.0 { LoadLevel::WantsHelp(cpus as usize) } else { LoadLevel::Busy })
    }
}

/// How long this thread ran.
fn ran() -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the value is writable.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut time) };
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// Seconds that the CPUs of this machine were idle, in hundredths. `/proc/stat` has it, too, and takes a millisecond where
/// there are hundreds of CPUs.
fn idle() -> Option<f64> {
    std::fs::read_to_string("/proc/uptime").ok()?.split_whitespace().nth(1)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_that_waits_is_light_and_one_that_runs_is_busy() {
        let mut load = Load::new();
        let begin = load.since;
        assert_eq!(load.look(begin + WINDOW / 2), None);
        load.waited(WINDOW / 2);
        assert_eq!(load.look(begin + WINDOW), Some(LoadLevel::Light));
        // It neither waited nor ran: other threads have the CPUs.
        assert_eq!(load.look(begin + WINDOW * 2), Some(LoadLevel::Busy));
        assert!(load.idle.is_none() && idle().is_some());
    }
}
