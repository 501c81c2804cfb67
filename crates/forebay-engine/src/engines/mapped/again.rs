//! Reading once more, by the lanes, what changed while a device pulled it.
//!
//! The second reading is of one state of the file if no write was under way when it began, and the version was the same
//! before and after. Where nobody can be asked about writes, the file has to be left alone for the settle time before the
//! reading, and again after it: then no write that took less was in the middle of it.

use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use forebay_error::{Error, ErrorKind, Result};

use super::shared::Shared;
use super::transfer::PullJob;
use super::writers::Writers;
use crate::io::plan::Part;
use crate::request::cancel::cancelled;
use crate::request::receipt::{Election, Moved};
use crate::request::ticket::Completion;
use crate::request::transfer::Batch;
use crate::source::piece::Direction;
use crate::source::residency::Warmth;
use crate::source::version::{FileVersion, STEPS};
use crate::source::{Descriptors, Fill};

/// How often it is read until the file holds still.
const TRIES: usize = 3;
/// How often a file that does not hold still is looked at.
pub(super) const PAUSE: Duration = Duration::from_millis(5);
/// So many times the settle time it is waited for before each reading.
const PATIENCE: u32 = 3;

/// What came of it.
pub(super) struct Outcome {
    /// For each entry: good bytes from its start, as far as the parts go.
    pub(super) entries: Vec<Result<u64>>,
    pub(super) moved: Moved,
}

/// A second reading of some parts of a batch. A write is done once: its bytes are what they are.
pub(super) struct Again {
    batch: Arc<Batch>,
    parts: Vec<Part>,
    election: Arc<Election>,
    /// It ends with the cancellation of this.
    whole: Option<Arc<Completion>>,
    tries: usize,
    phase: Phase,
}

enum Phase {
    /// Until the file holds still, or then.
    Waiting(Instant),
    /// `is_sure`: no write was under way when it began.
    Reading { before: FileVersion, is_sure: bool, read: Arc<Completion> },
    /// Until then the version must stay.
    Resting { before: FileVersion, read: Arc<Completion>, until: Instant },
}

impl Again {
    pub(super) fn new(
        shared: &Shared,
        batch: &Arc<Batch>,
        parts: Vec<Part>,
        election: &Arc<Election>,
        whole: Option<Arc<Completion>>,
    ) -> Self {
        let phase = Phase::Waiting(Instant::now() + shared.shelf.settle * PATIENCE);
        Self { batch: batch.clone(), parts, election: election.clone(), whole, tries: 0, phase }
    }

    /// Does it, and waits.
    pub(super) fn finish(mut self, shared: &Shared) -> Outcome {
        loop {
            if let Some(outcome) = self.step(shared) {
                return outcome;
            }
            match &self.phase {
                Phase::Reading { read, .. } => {
                    read.wait(None);
                }
                Phase::Waiting(_) | Phase::Resting { .. } => std::thread::sleep(PAUSE),
            }
        }
    }

    /// Waits for lanes that still write to the caller's memory.
    pub(super) fn abandon(self) {
        if let Phase::Reading { read, .. } = self.phase {
            read.wait(None);
        }
    }

    /// Goes on as far as it can without waiting.
    pub(super) fn step(&mut self, shared: &Shared) -> Option<Outcome> {
        loop {
            let next = match self.go_on(shared) {
                Step::Later => return None,
                Step::Over(outcome) => return Some(outcome),
                Step::Next(next) => next,
                Step::Changed => {
                    self.tries += 1;
                    if self.tries == TRIES {
                        return Some(self.busy());
                    }
                    Phase::Waiting(Instant::now() + shared.shelf.settle * PATIENCE)
                }
            };
            self.phase = next;
        }
    }

    fn go_on(&self, shared: &Shared) -> Step {
        let is_write = self.batch.direction == Direction::Write;
        let is_cancelled = self.whole.as_ref().is_some_and(|whole| whole.is_cancelled());
        if matches!(&self.phase, Phase::Reading { read, .. } if !read.is_done()) {
            return Step::Later;
        }
        // After what was read.
        let Ok(now) = version(&self.batch) else { return Step::Over(self.busy()) };
        match &self.phase {
            // What was read by now may be a mixture.
            _ if is_cancelled && !is_write => Step::Over(self.failed(&cancelled())),
            Phase::Waiting(until) => {
                let is_sure = is_write || self.is_at_rest(shared, &now);
                if is_sure || !now.is_young(shared.shelf.settle) {
                    Step::Next(Phase::Reading { before: now, is_sure, read: self.read(shared) })
                } else if Instant::now() < *until {
                    Step::Later
                } else {
                    Step::Over(self.busy())
                }
            }
            Phase::Reading { read, .. } if is_write => Step::Over(over(read)),
            Phase::Reading { before, .. } | Phase::Resting { before, .. } if now != *before => Step::Changed,
            Phase::Reading { read, is_sure: true, .. } => Step::Over(over(read)),
            Phase::Reading { before, read, .. } => {
                let until = Instant::now() + shared.shelf.settle;
                Step::Next(Phase::Resting { before: *before, read: read.clone(), until })
            }
            Phase::Resting { read, until, .. } if Instant::now() >= *until => Step::Over(over(read)),
            Phase::Resting { .. } => Step::Later,
        }
    }

    /// Whether no write was under way when the file had this version, and the next one is sure to give it another.
    fn is_at_rest(&self, shared: &Shared, version: &FileVersion) -> bool {
        let asked = |file: &Descriptors| shared.shelf.writers(file, version) == Writers::Nobody;
        !version.is_young(STEPS) && descriptors(&self.batch).is_ok_and(asked)
    }

    fn read(&self, shared: &Shared) -> Arc<Completion> {
        let bell = shared.shelf.clone();
        let tell = Box::new(move || bell.bell.ring());
        let (parts, whole) = (&self.parts, self.whole.as_deref());
        shared.stage.submit_parts(&self.batch, Warmth::Mixed, parts, &self.election, Some(tell), whole)
    }

    fn busy(&self) -> Outcome {
        self.failed(
            &Error::new(ErrorKind::Busy, "the file keeps changing while it is read")
                .hint("read it when its writer is done, or read a copy")
                .with("file", self.batch.file.name()),
        )
    }

    fn failed(&self, error: &Error) -> Outcome {
        Outcome { entries: vec![Err(error.clone()); self.batch.pieces.len()], moved: Moved::default() }
    }
}

enum Step {
    Later,
    Next(Phase),
    /// What was read may be a mixture.
    Changed,
    Over(Outcome),
}

fn over(read: &Completion) -> Outcome {
    Outcome { entries: read.results(), moved: read.moved() }
}

fn descriptors(batch: &Batch) -> Result<&Descriptors> {
    match batch.file.source().fill() {
        Fill::Descriptor(file) => Ok(file),
        Fill::Requests(_) => Err(Error::new(ErrorKind::Internal, "only files are pulled")),
    }
}

fn version(batch: &Batch) -> Result<FileVersion> {
    FileVersion::of(descriptors(batch)?.buffered.as_raw_fd())
}

/// A job that is moved again, and its end.
pub(super) struct Redo {
    job: PullJob,
    again: Again,
}

impl Redo {
    pub(super) fn new(shared: &Shared, job: PullJob) -> Self {
        let all = vec![Part::Entries { first: 0, last: job.batch.pieces.len() as u32 }];
        let whole = Some(job.completion.clone());
        let again = Again::new(shared, &job.batch, all, job.completion.election(), whole);
        Self { job, again }
    }

    /// Goes on as far as it can without waiting. Whether it has ended.
    pub(super) fn step(&mut self, shared: &Shared) -> bool {
        let outcome = self.again.step(shared);
        let is_over = outcome.is_some();
        if let Some(outcome) = outcome {
            self.job.end(outcome);
        }
        is_over
    }

    /// Goes on until it has ended.
    pub(super) fn finish(self, shared: &Shared) {
        let Self { job, again } = self;
        job.end(again.finish(shared));
    }

    /// It fails.
    pub(super) fn refuse(self, error: &Error) {
        let Self { job, again } = self;
        again.abandon();
        job.refuse(error);
    }
}
