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
    /// How long it will run, if that is fixed.
    pub runtime: Option<Duration>,
}

/// Observes a run.
pub trait Observer: Sync {
    /// Several times a second while bytes move.
    fn progress(&self, progress: Progress) {
        let _ = progress;
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
