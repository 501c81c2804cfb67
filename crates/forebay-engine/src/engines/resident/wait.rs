//! How callers wait for what another thread or the device does next: they poll, then let others run, then sleep.

use std::time::{Duration, Instant};

use forebay_config::Objective;
use forebay_gpu::Naps;

use crate::tuning::machine::{LONGEST_NAP, LOOK, POLL};
use crate::tuning::resident::{CROWDED_POLL, LONE_LOOKS};
use crate::tuning::waits::LOOKS;

/// How a caller waits.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CallerWait {
    /// Looks before anything else is done.
    looks: u32,
    /// Others run between two of them: there is one CPU.
    is_lone: bool,
    poll: Duration,
    yields: Duration,
}

/// A wait that has begun.
pub(super) struct Waiting {
    wait: CallerWait,
    /// When a pause was first needed: most waits need none, and no clock.
    started: Option<Instant>,
    naps: Option<Naps>,
}

impl CallerWait {
    /// Of a caller that gives up before it would sleep.
    pub(super) const POLL: Self =
        Self { looks: LOOKS, is_lone: false, poll: Duration::MAX, yields: Duration::ZERO };

    /// The wait of one of some callers on some CPUs. Where callers keep all of them busy the launcher, and what else the program
    /// does, needs one, too.
    pub(crate) fn new(objective: Objective, callers: usize, cpus: usize, is_cold: bool) -> Self {
        let is_crowded = callers >= cpus;
        let (poll, yields) = match objective {
            // Another thread needs the CPU.
            _ if cpus == 1 => (Duration::ZERO, LOOK),
            Objective::Latency if is_crowded => (POLL, Duration::MAX),
            Objective::Latency => (Duration::MAX, Duration::ZERO),
            Objective::Throughput if is_cold => (LOOK, Duration::ZERO),
            Objective::Throughput if is_crowded => (CROWDED_POLL, 10 * POLL),
            Objective::Throughput => (POLL, Duration::ZERO),
            Objective::Cpu => (Duration::ZERO, Duration::ZERO),
        };
        let is_lone = cpus == 1;
        // A look with its pause takes some 40 ns.
        Self { looks: if is_lone { LONE_LOOKS } else { LOOKS }, is_lone, poll, yields }
    }

    /// The same for a wait of unknown length: after `busy` it sleeps, whatever the objective.
    pub(super) fn at_most(self, busy: Duration) -> Self {
        Self { poll: self.poll.min(busy), yields: self.yields.min(busy), ..self }
    }

    pub(super) fn start(self) -> Waiting {
        Waiting { wait: self, started: None, naps: None }
    }
}

impl Waiting {
    /// How often to look before the next [`Waiting::rest`].
    pub(super) fn looks(&self) -> u32 {
        self.wait.looks
    }

    /// Between two looks.
    pub(super) fn pause(&self) {
        if self.wait.is_lone { std::thread::yield_now() } else { std::hint::spin_loop() }
    }

    /// The time since the first call.
    pub(super) fn elapsed(&mut self) -> Duration {
        self.started.get_or_insert_with(Instant::now).elapsed()
    }

    /// The pause before the next looks: none, yield, or sleep.
    pub(super) fn rest(&mut self, elapsed: Duration) {
        let CallerWait { poll, yields, .. } = self.wait;
        if elapsed < poll {
            return;
        }
        if elapsed < poll.saturating_add(yields) {
            std::thread::yield_now();
        } else {
            let nap = (elapsed / 8).clamp(LOOK, LONGEST_NAP);
            self.naps.get_or_insert_with(Naps::start).sleep(nap);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn on_one_cpu_others_run_before_the_clock_is_asked() {
        for objective in [Objective::Latency, Objective::Throughput, Objective::Cpu] {
            let waiting = CallerWait::new(objective, 4, 1, true).start();
            assert!(waiting.looks() > 1 && waiting.wait.is_lone);
            assert!(!CallerWait::new(objective, 4, 2, true).is_lone);
        }
    }
}
