//! A batch of which parts are copied in place, how it ends, and how it is read again if the file changed meanwhile.

use std::collections::VecDeque;
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use forebay_error::{Error, ErrorKind, Result};

use super::eligibility::Reason;
use super::gather::{CopyList, ListContents};
use super::reclaimer::Pin;
use super::region::WINDOW;
use super::route::RouteSpan;
use super::state::{MappedState, in_place, writers_note};
use super::window::{PinnedFile, WindowAnswer};
use crate::io::plan::Part;
use crate::request::cancel::cancelled;
use crate::request::completion::Completion;
use crate::request::receipt::{Election, Moved, Way};
use crate::request::transfer::Batch;
use crate::runtime::lock;
use crate::source::Descriptors;
use crate::source::piece::Direction;
use crate::source::residency::Warmth;
use crate::source::version::{FileVersion, STEPS};
use crate::source::writers::Writers;

/// Readings of a file that changes each time, before the transfer fails.
const MAX_READINGS: usize = 3;
/// Sleep between two looks at a file that changes.
pub(super) const PAUSE: Duration = Duration::from_millis(5);
/// Most settle times to wait for a file to rest before each reading.
const SETTLE_TIMES: u32 = 3;

/// A batch on its way.
#[derive(Clone)]
pub(crate) struct MappedJob {
    pub(crate) batch: Arc<Batch>,
    /// Index of its first entry in the completion.
    pub(crate) base: u32,
    /// Counts one work for the whole job.
    pub(crate) completion: Arc<Completion>,
}

impl MappedJob {
    /// Fails all its entries.
    pub(crate) fn refuse(&self, error: &Error) {
        for entry in 0..self.batch.pieces.len() as u32 {
            self.completion.fail(self.base + entry, 0, error.clone());
        }
        self.completion.work_done(Moved::default());
    }

    /// Ends the job after its bytes were moved a second time.
    pub(super) fn end(&self, SecondOutcome { entries, moved }: SecondOutcome) {
        self.take_over(entries);
        self.completion.work_done(moved);
    }

    /// Takes over what the lanes report of its entries.
    fn take_over(&self, entries: Vec<(u64, Option<Error>)>) {
        for (entry, (good, error)) in (self.base..).zip(entries) {
            match error {
                None => self.completion.cut(entry, good),
                Some(error) => self.completion.fail(entry, good, error),
            }
        }
    }
}

/// A batch of which parts are copied in place.
pub(super) struct InPlaceTransfer {
    pub(super) job: MappedJob,
    pub(super) pinned: Arc<PinnedFile>,
    pub(super) version: FileVersion,
    pub(super) todo: VecDeque<RouteSpan>,
    /// The ranges copied in place, in case they must be moved again.
    pub(super) copied: Vec<Part>,
    /// Held until the last copy is done.
    pub(super) pins: Vec<Arc<Pin>>,
    pub(super) in_flight: usize,
    /// See [`BatchRoute::cover`](super::route::BatchRoute::cover).
    pub(super) cover: u64,
    pub(super) bytes: u64,
    /// The resident kernel copied them.
    pub(super) by_resident: bool,
    pub(super) error: Option<Error>,
    /// The lanes' part, once windows that readers pay for are registered: lanes could start no copies meanwhile.
    pub(super) held: Vec<Part>,
    /// The lanes' part, and why.
    pub(super) rest: Vec<Arc<Completion>>,
    pub(super) rest_bytes: u64,
    pub(super) reason: Option<Reason>,
    /// Entries that the end of the file cuts, and where.
    pub(super) cuts: Vec<(u32, u64)>,
    /// Ranges cancelled before they began.
    pub(super) left_out: Vec<Part>,
}

impl InPlaceTransfer {
    /// Nothing more is started; bytes not moved yet fail with the rest.
    pub(super) fn fail(&mut self, error: Error) {
        self.error.get_or_insert(error);
        self.copied.extend(self.todo.drain(..).map(RouteSpan::part));
    }

    /// Starts nothing more of a cancelled transfer.
    pub(super) fn leave_out(&mut self) {
        self.left_out.extend(self.todo.drain(..).map(RouteSpan::part));
    }

    /// Whether windows that entries wait for are pinned by now, as they are from then on. Why they never will be.
    pub(super) fn admit(&mut self, waits: Option<(u32, u32)>) -> std::result::Result<bool, Reason> {
        for window in waits.into_iter().flat_map(|(first, last)| first..=last) {
            match self.pinned.answer(window as usize) {
                WindowAnswer::Ready(pin) => self.hold(pin)?,
                WindowAnswer::Pending(_) => return Ok(false),
                WindowAnswer::No(reason) => return Err(reason),
            }
        }
        Ok(true)
    }

    /// Keeps a window pinned until the last copy is done. One that was not pinned when this began is looked at, should
    /// that be in doubt: the file may have lost it since it was.
    pub(super) fn hold(&mut self, pin: Arc<Pin>) -> std::result::Result<(), Reason> {
        if self.pins.iter().any(|held| Arc::ptr_eq(held, &pin)) {
            return Ok(());
        }
        if self.pinned.is_watched() && !pin.is_whole() {
            return Err(Reason::new(
                "a write that was in progress when its pages were pinned has ended since",
            ));
        }
        self.pins.push(pin);
        Ok(())
    }

    /// Takes the entries that come next and are ready, and writes them down: as many as there is room for, and not many
    /// more than `most` bytes.
    pub(super) fn fill(&mut self, list: &CopyList, most: u64) -> ListContents {
        let mut written = ListContents::default();
        let mut admitted = None;
        while let Some(RouteSpan::Entries { first, last, waits }) = self.todo.front().copied() {
            if waits != admitted && self.admit(waits) != Ok(true) {
                break;
            }
            admitted = waits;
            let limits = (self.version.len, most);
            let stop = list.add(&mut written, &self.job.batch, first..last, &self.pinned, limits);
            if stop == first {
                break;
            }
            self.todo.pop_front();
            match self.copied.last_mut() {
                Some(Part::Entries { last, .. }) if *last == first => *last = stop,
                _ => self.copied.push(Part::Entries { first, last: stop }),
            }
            if stop < last {
                self.todo.push_front(RouteSpan::Entries { first: stop, last, waits });
                break;
            }
        }
        written
    }

    /// Takes the next entries that cannot be copied in place, with the following ones in the same state: entries that
    /// wait for the same windows, or ranges.
    pub(super) fn take_alike(&mut self) -> Vec<Part> {
        let Some(front) = self.todo.pop_front() else { return Vec::new() };
        let mut parts = vec![front.part()];
        let pinned = &self.pinned;
        let is_alike = |span: &mut RouteSpan| match (front, *span) {
            (RouteSpan::Entries { waits, .. }, RouteSpan::Entries { waits: theirs, .. }) => theirs == waits,
            (RouteSpan::Range { .. }, RouteSpan::Range { start, .. }) => {
                matches!(pinned.answer((start / WINDOW) as usize), WindowAnswer::No(_))
            }
            _ => false,
        };
        while let Some(span) = self.todo.pop_front_if(is_alike) {
            parts.push(span.part());
        }
        parts
    }

    pub(super) fn is_over(&self) -> bool {
        self.held.is_empty()
            && self.todo.is_empty()
            && self.in_flight == 0
            && self.rest.iter().all(|rest| rest.is_done())
    }

    /// Whether the bytes copied in place are the file's.
    pub(super) fn is_good(&self) -> bool {
        if self.copied.is_empty() {
            return true;
        }
        let Ok(file) = descriptors(&self.job.batch) else { return false };
        match self.job.batch.direction {
            Direction::Read => {
                FileVersion::of(file.buffered.as_raw_fd()).is_ok_and(|now| now == self.version)
            }
            Direction::Write => self.pinned.touch(file.buffered.as_raw_fd()).is_some(),
        }
    }

    /// The end: tells the completion. Bytes that are not good must be moved again.
    #[must_use]
    pub(super) fn conclude(self, state: &MappedState, is_good: bool) -> Option<RepeatedJob> {
        let Self {
            job,
            pinned,
            copied,
            pins,
            cover,
            bytes,
            by_resident,
            error,
            rest,
            rest_bytes,
            reason,
            cuts,
            left_out,
            ..
        } = self;
        drop(pins);
        if cover > 0 {
            lock(&pinned.credit).uncover(cover);
        }
        leave_out_parts(&job, &left_out);
        if error.is_none() && !is_good {
            if job.completion.is_cancelled() {
                leave_out_parts(&job, &copied);
                job.completion.work_done(Moved::default());
                return None;
            }
            if let Some(file) = job.batch.file.descriptors() {
                state.cache.discard_changed(file, &pinned);
            }
            elect(state, &job, (0, Writers::Nobody), rest_bytes + bytes, Some(Reason::new(CHANGED)));
            return Some(RepeatedJob::new(state, job));
        }
        for (entry, bytes) in cuts {
            job.completion.cut(job.base + entry, bytes);
        }
        let mut staged = Moved::default();
        for rest in &rest {
            job.take_over(rest.ends());
            staged = staged.plus(rest.moved());
        }
        let bytes = if error.is_some() { 0 } else { bytes };
        if let Some(error) = error {
            fail_parts(&job, &copied, &error.with("file", job.batch.file.name()));
        }
        elect(state, &job, (bytes, pinned.suspects()), rest_bytes, reason);
        let completion = job.completion.clone();
        // A caller that finds the transfer resolved finds its file released.
        drop((job, pinned));
        let resident = if by_resident { bytes } else { 0 };
        completion.work_done(staged.plus(Moved::of(Way::Mapped, bytes).by_resident(resident)));
        None
    }
}

/// Why the ranges copied in place are read once more.
pub(super) const CHANGED: &str = "the file changed before it was all read in place: it was read again";

/// Writes down how the batch was divided.
pub(super) fn elect(
    state: &MappedState,
    job: &MappedJob,
    (copied, writers): (u64, Writers),
    rest: u64,
    reason: Option<Reason>,
) {
    let base = job.completion.election();
    if rest == 0 && copied > 0 {
        // All alike: made once.
        return job.completion.elected(state.whole_election(base, writers));
    }
    let mut notes = if rest > 0 { state.stage.notes().unwrap_or_default().0 } else { Vec::new() };
    notes.extend(writers_note(writers).filter(|_| copied > 0).cloned());
    job.completion.elected(in_place(base, copied, rest, reason, notes));
}

fn leave_out_parts(job: &MappedJob, parts: &[Part]) {
    each_entry(job, parts, |entry, at| job.completion.leave_out(entry, at));
}

fn fail_parts(job: &MappedJob, parts: &[Part], error: &Error) {
    each_entry(job, parts, |entry, at| job.completion.fail(entry, at, error.clone()));
}

/// Calls `tell` with each entry that parts belong to, as the completion numbers them, and where the part begins in it.
fn each_entry(job: &MappedJob, parts: &[Part], mut tell: impl FnMut(u32, u64)) {
    for part in parts {
        match *part {
            Part::Range { entry, start, .. } => {
                tell(job.base + entry, start - job.batch.pieces[entry as usize].offset);
            }
            Part::Entries { first, last } => (first..last).for_each(|entry| tell(job.base + entry, 0)),
        }
    }
}

// ---- reading again ----------------------------------------------------------------------------------------------
//
// What changed while a device read it in place is read again by the lanes. The second reading is of one state of the file
// if no write was under way when it began, and the version was the same before and after. Where the kernel does not tell of
// writes, the file has to be left alone for the settle time before the reading, and again after it: then no write that took
// less was in the middle of it.

/// The result of the second reading.
pub(super) struct SecondOutcome {
    /// For each entry: good bytes from its start, as far as the parts go, and why there are no more.
    pub(super) entries: Vec<(u64, Option<Error>)>,
    pub(super) moved: Moved,
}

/// A second reading of some parts of a batch. A write is repeated once: its bytes do not change.
pub(super) struct SecondRead {
    batch: Arc<Batch>,
    parts: Vec<Part>,
    election: Arc<Election>,
    /// The request that this belongs to: cancelling it ends this transfer.
    whole: Option<Arc<Completion>>,
    tries: usize,
    phase: ReadPhase,
}

enum ReadPhase {
    /// Until the file rests, or until this time.
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
        let phase = ReadPhase::Waiting(Instant::now() + state.cache.settle * SETTLE_TIMES);
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

    /// Continues as far as it can without waiting.
    pub(super) fn step(&mut self, state: &MappedState) -> Option<SecondOutcome> {
        loop {
            let next = match self.go_on(state) {
                ReadStep::Later => return None,
                ReadStep::Over(outcome) => return Some(outcome),
                ReadStep::Next(next) => next,
                ReadStep::Changed => {
                    self.tries += 1;
                    if self.tries == MAX_READINGS {
                        return Some(self.busy());
                    }
                    ReadPhase::Waiting(Instant::now() + state.cache.settle * SETTLE_TIMES)
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
        // After the bytes read.
        let Ok(now) = version(&self.batch) else { return ReadStep::Over(self.busy()) };
        match &self.phase {
            // The bytes read so far may mix two states of the file.
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
        let entries = vec![(0, Some(error.clone())); self.batch.pieces.len()];
        SecondOutcome { entries, moved: Moved::default() }
    }
}

enum ReadStep {
    Later,
    Next(ReadPhase),
    /// The bytes read may mix two states of the file.
    Changed,
    Over(SecondOutcome),
}

fn over(read: &Completion) -> SecondOutcome {
    SecondOutcome { entries: read.ends(), moved: read.moved() }
}

fn descriptors(batch: &Batch) -> Result<&Descriptors> {
    batch.file.descriptors().ok_or_else(|| Error::new(ErrorKind::Internal, "only files are copied"))
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

    /// Continues as far as it can without waiting. Returns whether it has ended.
    pub(super) fn step(&mut self, state: &MappedState) -> bool {
        let outcome = self.again.step(state);
        let is_over = outcome.is_some();
        if let Some(outcome) = outcome {
            self.job.end(outcome);
        }
        is_over
    }

    /// Carries the second transfer on to its end.
    pub(super) fn finish(self, state: &MappedState) {
        let Self { job, again } = self;
        job.end(again.finish(state));
    }

    /// Fails the job.
    pub(super) fn refuse(self, error: &Error) {
        let Self { job, again } = self;
        again.abandon();
        job.refuse(error);
    }
}
