//! Reading once more, by the lanes, what changed while a device pulled it.
//!
//! The second reading is of one state of the file if no write was under way when it began, and the version was the same
//! before and after. Where nobody can be asked about writes, the file has to be left alone for the settle time before the
//! reading, and again after it: then no write that took less was in the middle of it.

use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use forebay_error::{Error, ErrorKind, Result};

use super::state::MappedState;
use super::transfer::MappedJob;
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
pub(super) struct SecondOutcome {
    /// For each entry: good bytes from its start, as far as the parts go.
    pub(super) entries: Vec<Result<u64>>,
    pub(super) moved: Moved,
}

/// A second reading of some parts of a batch. A write is done once: its bytes are what they are.
pub(super) struct SecondRead {
    batch: Arc<Batch>,
    parts: Vec<Part>,
    election: Arc<Election>,
    /// It ends with the cancellation of this.
    whole: Option<Arc<Completion>>,
    tries: usize,
    phase: ReadPhase,
}

enum ReadPhase {
    /// Until the file holds still, or then.
    Waiting(Instant),
    /// `is_sure`: no write was under way when it began.
    Reading { before: FileVersion, is_sure: bool, read: Arc<Completion> },
    /// Until then the version must stay.
    Resting { before: FileVersion, read: Arc<Completion>, until: Instant },
}

impl SecondRead {
    pub(super) fn new(
        state: &MappedState,
        batch: &Arc<Batch>,
        parts: Vec<Part>,
        election: &Arc<Election>,
        whole: Option<Arc<Completion>>,
    ) -> Self {
        let phase = ReadPhase::Waiting(Instant::now() + state.cache.settle * PATIENCE);
        Self { batch: batch.clone(), parts, election: election.clone(), whole, tries: 0, phase }
    }

    /// Does it, and waits.
    pub(super) fn finish(mut self, state: &MappedState) -> SecondOutcome {
        loop {
            if let Some(outcome) = self.step(state) {
                return outcome;
            }
            match &self.phase {
                ReadPhase::Reading { read, .. } => {
                    read.wait(None);
                }
                ReadPhase::Waiting(_) | ReadPhase::Resting { .. } => std::thread::sleep(PAUSE),
            }
        }
    }

    /// Waits for lanes that still write to the caller's memory.
    pub(super) fn abandon(self) {
        if let ReadPhase::Reading { read, .. } = self.phase {
            read.wait(None);
        }
    }

    /// Goes on as far as it can without waiting.
    pub(super) fn step(&mut self, state: &MappedState) -> Option<SecondOutcome> {
        loop {
            let next = match self.go_on(state) {
                ReadStep::Later => return None,
                ReadStep::Over(outcome) => return Some(outcome),
                ReadStep::Next(next) => next,
                ReadStep::Changed => {
                    self.tries += 1;
                    if self.tries == TRIES {
                        return Some(self.busy());
                    }
                    ReadPhase::Waiting(Instant::now() + state.cache.settle * PATIENCE)
                }
            };
            self.phase = next;
        }
    }

    fn go_on(&self, state: &MappedState) -> ReadStep {
        let is_write = self.batch.direction == Direction::Write;
        let is_cancelled = self.whole.as_ref().is_some_and(|whole| whole.is_cancelled());
        if matches!(&self.phase, ReadPhase::Reading { read, .. } if !read.is_done()) {
            return ReadStep::Later;
        }
        // After what was read.
        let Ok(now) = version(&self.batch) else { return ReadStep::Over(self.busy()) };
        match &self.phase {
            // What was read by now may be a mixture.
            _ if is_cancelled && !is_write => ReadStep::Over(self.failed(&cancelled())),
            ReadPhase::Waiting(until) => {
                let is_sure = is_write || self.is_at_rest(state, &now);
                if is_sure || !now.is_young(state.cache.settle) {
                    ReadStep::Next(ReadPhase::Reading { before: now, is_sure, read: self.read(state) })
                } else if Instant::now() < *until {
                    ReadStep::Later
                } else {
                    ReadStep::Over(self.busy())
                }
            }
            ReadPhase::Reading { read, .. } if is_write => ReadStep::Over(over(read)),
            ReadPhase::Reading { before, .. } | ReadPhase::Resting { before, .. } if now != *before => {
                ReadStep::Changed
            }
            ReadPhase::Reading { read, is_sure: true, .. } => ReadStep::Over(over(read)),
            ReadPhase::Reading { before, read, .. } => {
                let until = Instant::now() + state.cache.settle;
                ReadStep::Next(ReadPhase::Resting { before: *before, read: read.clone(), until })
            }
            ReadPhase::Resting { read, until, .. } if Instant::now() >= *until => ReadStep::Over(over(read)),
            ReadPhase::Resting { .. } => ReadStep::Later,
        }
    }

    /// Whether no write was under way when the file had this version, and the next one is sure to give it another.
    fn is_at_rest(&self, state: &MappedState, version: &FileVersion) -> bool {
        let asked = |file: &Descriptors| state.cache.writers(file, version) == Writers::Nobody;
        !version.is_young(STEPS) && descriptors(&self.batch).is_ok_and(asked)
    }

    fn read(&self, state: &MappedState) -> Arc<Completion> {
        let wake_queue = state.cache.clone();
        let tell = Box::new(move || wake_queue.wake_queue.wake());
        let (parts, whole) = (&self.parts, self.whole.as_deref());
        state.stage.submit_parts(&self.batch, Warmth::Mixed, parts, &self.election, Some(tell), whole)
    }

    fn busy(&self) -> SecondOutcome {
        self.failed(
            &Error::new(ErrorKind::Busy, "the file keeps changing while it is read")
                .hint("read it when its writer is done, or read a copy")
                .with("file", self.batch.file.name()),
        )
    }

    fn failed(&self, error: &Error) -> SecondOutcome {
        SecondOutcome { entries: vec![Err(error.clone()); self.batch.pieces.len()], moved: Moved::default() }
    }
}

enum ReadStep {
    Later,
    Next(ReadPhase),
    /// What was read may be a mixture.
    Changed,
    Over(SecondOutcome),
}

fn over(read: &Completion) -> SecondOutcome {
    SecondOutcome { entries: read.results(), moved: read.moved() }
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
pub(super) struct RepeatedJob {
    job: MappedJob,
    again: SecondRead,
}

impl RepeatedJob {
    pub(super) fn new(state: &MappedState, job: MappedJob) -> Self {
        let all = vec![Part::Entries { first: 0, last: job.batch.pieces.len() as u32 }];
        let whole = Some(job.completion.clone());
        let again = SecondRead::new(state, &job.batch, all, job.completion.election(), whole);
        Self { job, again }
    }

    /// Goes on as far as it can without waiting. Whether it has ended.
    pub(super) fn step(&mut self, state: &MappedState) -> bool {
        let outcome = self.again.step(state);
        let is_over = outcome.is_some();
        if let Some(outcome) = outcome {
            self.job.end(outcome);
        }
        is_over
    }

    /// Goes on until it has ended.
    pub(super) fn finish(self, state: &MappedState) {
        let Self { job, again } = self;
        job.end(again.finish(state));
    }

    /// It fails.
    pub(super) fn refuse(self, error: &Error) {
        let Self { job, again } = self;
        again.abandon();
        job.refuse(error);
    }
}
