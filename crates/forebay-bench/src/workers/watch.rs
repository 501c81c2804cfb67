//! The thread that waits for the workers looks on meanwhile: it tells how far they are, and ends the pass early.

use std::collections::VecDeque;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use super::PassObserver;
use super::live::LiveSum;
use super::measure::{Cpu, SharedMeter};
use super::steady::{SteadyRate, SteadyWatch};
use crate::counters::Counters;
use crate::observer::Progress;

/// Time between two looks.
pub(super) const LOOK: Duration = Duration::from_millis(100);
/// Looks that live rates are over: a second.
const WINDOW: usize = 10;

/// One pass, as it is watched.
pub(super) struct PassWatch<'a> {
    watch: PassObserver<'a>,
    shared: &'a SharedMeter,
    started: Instant,
    /// When counting begins: after the ramp.
    counted_from: Instant,
    /// CPU time by then.
    cpu: Cpu,
    /// Counters of drives and mounts by then.
    counters: Counters,
    steady: Option<SteadyWatch>,
    looks: VecDeque<(Instant, LiveSum)>,
    is_counting: bool,
    /// The greatest resident memory of the looks while counting.
    resident_bytes: u64,
}

/// The result of a watched pass.
pub(crate) struct Watched {
    /// CPU time of the counted part.
    pub(crate) cpu: Cpu,
    /// The greatest resident memory in the counted part.
    pub(crate) resident_bytes: u64,
    /// Counters of drives and mounts when counting began, and at the end.
    pub(crate) counters: [Counters; 2],
    /// When counting began.
    pub(crate) counted_from: Instant,
    /// The last seconds of a pass that ran until they were alike.
    pub(crate) steady: Option<SteadyRate>,
    /// Whether it was ended before its time.
    pub(crate) interrupted: bool,
}

impl<'a> PassWatch<'a> {
    /// The workers begin now.
    pub(super) fn begin(watch: PassObserver<'a>, shared: &'a SharedMeter) -> Self {
        let (counters, cpu) = (Counters::now(), Cpu::now());
        let started = Instant::now();
        let ramp = watch.time.map_or(Duration::ZERO, |time| time.ramp);
        Self {
            watch,
            shared,
            started,
            counted_from: started + ramp,
            cpu,
            counters,
            steady: watch.time.and_then(|time| time.steady_percent).map(SteadyWatch::new),
            looks: VecDeque::with_capacity(WINDOW + 1),
            is_counting: ramp.is_zero(),
            resident_bytes: 0,
        }
    }

    /// How long to wait for workers until the next look.
    pub(super) fn pause(&self) -> Duration {
        if self.is_counting {
            LOOK
        } else {
            LOOK.min(self.counted_from.saturating_duration_since(Instant::now()))
        }
    }

    /// Looks at what the workers have done.
    pub(super) fn look(&mut self) {
        let now = Instant::now();
        if !self.is_counting && now >= self.counted_from {
            (self.counters, self.cpu) = (Counters::now(), Cpu::now());
            self.is_counting = true;
        }
        if self.is_counting {
            self.resident_bytes = self.resident_bytes.max(resident_bytes());
        }
        let Some(observer) = self.watch.observer else { return };
        if observer.is_stopped() {
            self.shared.cut();
        }
        let sum = self.shared.sum();
        if let Some(steady) = self.steady.as_mut().filter(|_| self.is_counting) {
            steady.look(now, &sum);
            if steady.rate().is_some_and(|rate| rate.is_steady) {
                self.shared.stop.store(true, Ordering::Relaxed);
            }
        }
        observer.progress(self.progress(now, &sum));
        if self.looks.len() == WINDOW {
            self.looks.pop_front();
        }
        self.looks.push_back((now, sum));
    }

    /// How far the pass is, with the rates of the last second.
    fn progress(&self, now: Instant, sum: &LiveSum) -> Progress {
        let (bytes, mut bytes_per_s, mut iops, mut p99_us) = (sum.bytes, 0.0, 0.0, 0.0);
        if let Some((then, before)) = self.looks.front() {
            let (came, seconds) =
                (sum.since(before), now.saturating_duration_since(*then).as_secs_f64().max(1e-3));
            (bytes_per_s, iops) = (came.bytes as f64 / seconds, came.ops as f64 / seconds);
            p99_us = came.quantile_us(0.99);
        }
        Progress {
            bytes,
            total: self.watch.total,
            elapsed: now.saturating_duration_since(self.started),
            runtime: self.watch.time.map(|time| time.ramp + time.time),
            is_ramp: !self.is_counting,
            bytes_per_s,
            iops,
            p99_us,
        }
    }

    /// The workers are done.
    pub(super) fn end(self) -> Watched {
        Watched {
            cpu: Cpu::now().since(self.cpu),
            resident_bytes: self.resident_bytes.max(resident_bytes()),
            counters: [self.counters, Counters::now()],
            counted_from: self.counted_from,
            steady: self.steady.and_then(|steady| steady.rate()),
            interrupted: self.shared.is_cut(),
        }
    }
}

/// Resident memory of this process; 0 where the kernel does not say.
fn resident_bytes() -> u64 {
    let text = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages = text.split(' ').nth(1).and_then(|pages| pages.parse::<u64>().ok());
    pages.unwrap_or(0) * forebay_sys::kernel_page() as u64
}
