//! A mover moves the I/Os of one worker in one way.

use std::sync::Arc;
use std::time::Instant;

use forebay_error::Result;

use crate::files::open::OpenFile;
use crate::plan::{IoOp, IoPlan};
use crate::workers::measure::WorkerMeter;
use crate::workers::rate::RateTurn;
use crate::workload::job::Xfer;

/// The I/Os of one worker; batches take them from several files in turn.
pub(crate) struct IoFeed {
    sources: Vec<(Arc<OpenFile>, IoPlan)>,
    turn: usize,
    taken: Vec<u64>,
    rate: Option<RateTurn>,
    /// When the pass ended, if the rate allowed no more I/O until then.
    ended: Option<Instant>,
}

impl IoFeed {
    pub(crate) fn new(sources: Vec<(Arc<OpenFile>, IoPlan)>, rate: Option<RateTurn>) -> Self {
        let taken = vec![0; sources.len()];
        Self { sources, turn: 0, taken, rate, ended: None }
    }

    /// Whether [`next`](Self::next) may wait.
    pub(super) const fn is_limited(&self) -> bool {
        self.rate.is_some()
    }

    /// The next I/O and its file, when the rate allows it. `now`: see [`IoPlan::next`]. It counts as taken and must be done:
    /// `-V` reads as many as were taken.
    pub(super) fn next(&mut self, now: Instant) -> Option<(Arc<OpenFile>, IoOp)> {
        for _ in 0..self.sources.len() {
            let turn = self.turn;
            self.turn = (turn + 1) % self.sources.len();
            if let Some(op) = self.sources[turn].1.next(now) {
                if self.rate.as_ref().is_some_and(|rate| !rate.wait(op.len)) {
                    self.ended = Some(Instant::now());
                    return None;
                }
                self.taken[turn] += 1;
                return Some((self.sources[turn].0.clone(), op));
            }
        }
        None
    }

    /// When the pass ended, if the last wait for the rate lasted until then. That wait is a part of the pass.
    pub(crate) const fn ended(&self) -> Option<Instant> {
        self.ended
    }

    /// How many I/Os were taken from each source.
    pub(crate) fn taken(self) -> Vec<u64> {
        self.taken
    }
}

/// A way to move bytes.
pub(crate) trait Mover {
    /// Moves until the feed ends.
    fn run(&mut self, feed: &mut IoFeed, meter: &mut WorkerMeter) -> Result<()>;

    /// I/Os that it keeps in flight at most.
    fn depth(&self) -> usize {
        1
    }
}

/// How the raw calls of a pass go.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TransferWay {
    /// The transfer type.
    pub(crate) xfer: Xfer,
    /// Raw calls in place of the engine.
    pub(crate) bare: bool,
    /// Whether the pass writes.
    pub(crate) write: bool,
    /// Whether bytes are checked or carry the pattern.
    pub(crate) verify: bool,
}

impl TransferWay {
    /// Whether raw files are needed.
    pub(crate) const fn raw(self) -> bool {
        self.bare || !self.xfer.uses_engine()
    }
}
