//! Observers of a run.

use std::time::Duration;

use crate::report::Pass;

/// How far a pass has come.
#[derive(Clone, Copy, Debug)]
pub struct Progress {
    /// Bytes moved so far.
    pub bytes: u64,
    /// Bytes in all, if the pass goes once over the data.
    pub total: Option<u64>,
    /// Time since the begin of the timed part.
    pub elapsed: Duration,
    /// How long it will run at most, if that is fixed.
    pub runtime: Option<Duration>,
    /// Whether what moves now is not counted (`--ramp`).
    pub is_ramp: bool,
    /// Bytes per second, over the last second.
    pub bytes_per_s: f64,
    /// I/Os per second, over the last second.
    pub iops: f64,
    /// 99 of 100 latencies of the last second are not longer, in microseconds.
    pub p99_us: f64,
}

/// Observes a run.
pub trait Observer: Sync {
    /// Several times a second while bytes move.
    fn progress(&self, progress: Progress) {
        let _ = progress;
    }

    /// Asked several times a second while bytes move, and between passes: whether the run is to end now, with the figures
    /// until then.
    fn is_stopped(&self) -> bool {
        false
    }

    /// The reading pass of `-V` begins.
    fn verifying(&self) {}

    /// A pass is done.
    fn pass(&self, pass: &Pass) {
        let _ = pass;
    }
}

/// An observer that does nothing.
#[derive(Clone, Copy, Debug, Default)]
pub struct Silent;

impl Observer for Silent {}

/// An observer of which only the wish to end is asked.
pub(crate) struct Muted<'a>(pub(crate) &'a dyn Observer);

impl Observer for Muted<'_> {
    fn is_stopped(&self) -> bool {
        self.0.is_stopped()
    }
}
