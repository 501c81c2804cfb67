//! A batch of which some parts are pulled, and how it ends.

use std::collections::VecDeque;
use std::sync::Arc;

use forebay_error::{Error, Result};

use super::again::{Outcome, Redo};
use super::eligibility::Reason;
use super::in_place;
use super::list::{List, Written};
use super::pin::Pin;
use super::pin_cache::Answer;
use super::route::Span;
use super::shared::{Shared, note_change, still_is};
use super::window::{Pinned, WINDOW};
use super::writers::Writers;
use crate::io::plan::Part;
use crate::request::receipt::Moved;
use crate::request::ticket::Completion;
use crate::request::transfer::Batch;
use crate::source::Fill;
use crate::source::version::FileVersion;

/// A batch on its way.
#[derive(Clone)]
pub(crate) struct PullJob {
    pub(crate) batch: Arc<Batch>,
    /// Index of its first entry in the completion.
    pub(crate) base: u32,
    /// Counts one work for the whole job.
    pub(crate) completion: Arc<Completion>,
}

impl PullJob {
    /// Fails all its entries.
    pub(crate) fn refuse(&self, error: &Error) {
        for entry in 0..self.batch.pieces.len() as u32 {
            self.completion.fail(self.base + entry, 0, error.clone());
        }
        self.completion.work_done(Moved::default());
    }

    /// Its end, after it was moved again.
    pub(super) fn end(&self, Outcome { entries, moved }: Outcome) {
        self.take_over(entries);
        self.completion.work_done(moved);
    }

    /// Takes over what the lanes report of its entries.
    fn take_over(&self, entries: Vec<Result<u64>>) {
        for (entry, result) in (self.base..).zip(entries) {
            match result {
                Ok(good) => self.completion.cut(entry, good),
                Err(error) => self.completion.fail(entry, 0, error),
            }
        }
    }
}

/// A batch of which some parts are pulled.
pub(super) struct Pull {
    pub(super) job: PullJob,
    pub(super) pinned: Arc<Pinned>,
    pub(super) version: FileVersion,
    pub(super) todo: VecDeque<Span>,
    /// What was pulled, should it have to be moved again.
    pub(super) pulled: Vec<Part>,
    /// Held until the last copy has landed.
    pub(super) pins: Vec<Arc<Pin>>,
    pub(super) in_flight: usize,
    pub(super) bytes: u64,
    pub(super) error: Option<Error>,
    /// What is left to the lanes, and why.
    pub(super) rest: Vec<Arc<Completion>>,
    pub(super) rest_bytes: u64,
    pub(super) reason: Option<Reason>,
    /// Entries that the end of the file cuts, and where.
    pub(super) cuts: Vec<(u32, u64)>,
    /// What was cancelled before it began.
    pub(super) left_out: Vec<Part>,
}

impl Pull {
    /// Nothing more is started; what was not moved yet fails with the rest.
    pub(super) fn fail(&mut self, error: Error) {
        self.error.get_or_insert(error);
        self.pulled.extend(self.todo.drain(..).map(Span::part));
    }

    /// It was cancelled: nothing more is started.
    pub(super) fn leave_out(&mut self) {
        self.left_out.extend(self.todo.drain(..).map(Span::part));
    }

    /// Whether windows that entries wait for are pinned by now, as they are from then on. Why they never will be.
    pub(super) fn admit(&mut self, waits: Option<(u32, u32)>) -> std::result::Result<bool, Reason> {
        for window in waits.into_iter().flat_map(|(first, last)| first..=last) {
            match self.pinned.answer(window as usize) {
                Answer::Ready(pin) => self.hold(pin)?,
                Answer::Pending(_) => return Ok(false),
                Answer::No(reason) => return Err(reason),
            }
        }
        Ok(true)
    }

    /// Keeps a window pinned until the last copy has landed. One that was not pinned when this began is looked at, should
    /// that be in doubt: the file may have lost it since it was.
    pub(super) fn hold(&mut self, pin: Arc<Pin>) -> std::result::Result<(), Reason> {
        if self.pins.iter().any(|held| Arc::ptr_eq(held, &pin)) {
            return Ok(());
        }
        if self.pinned.is_watched() && !pin.is_whole() {
            return Err(Reason::new("a write that was under way when its pages were pinned has ended since"));
        }
        self.pins.push(pin);
        Ok(())
    }

    /// Takes the entries that come next and are ready, and writes them down: as many as there is room for, and not many
    /// more than so many bytes.
    pub(super) fn fill(&mut self, list: &List, most: u64) -> Written {
        let mut written = Written::default();
        let mut admitted = None;
        while let Some(Span::Entries { first, last, waits }) = self.todo.front().copied() {
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
            match self.pulled.last_mut() {
                Some(Part::Entries { last, .. }) if *last == first => *last = stop,
                _ => self.pulled.push(Part::Entries { first, last: stop }),
            }
            if stop < last {
                self.todo.push_front(Span::Entries { first: stop, last, waits });
                break;
            }
        }
        written
    }

    /// Takes what comes next and cannot be pulled, with all behind it of which the same is known: entries that wait for the
    /// same windows, or ranges.
    pub(super) fn take_alike(&mut self) -> Vec<Part> {
        let Some(front) = self.todo.pop_front() else { return Vec::new() };
        let mut parts = vec![front.part()];
        let pinned = &self.pinned;
        let is_alike = |span: &mut Span| match (front, *span) {
            (Span::Entries { waits, .. }, Span::Entries { waits: theirs, .. }) => theirs == waits,
            (Span::Range { .. }, Span::Range { start, .. }) => {
                matches!(pinned.answer((start / WINDOW) as usize), Answer::No(_))
            }
            _ => false,
        };
        while let Some(span) = self.todo.pop_front_if(is_alike) {
            parts.push(span.part());
        }
        parts
    }

    pub(super) fn is_over(&self) -> bool {
        self.todo.is_empty() && self.in_flight == 0 && self.rest.iter().all(|rest| rest.is_done())
    }

    /// Whether what was pulled is the file's.
    pub(super) fn is_good(&self) -> bool {
        self.pulled.is_empty() || still_is(&self.job.batch, &self.pinned, &self.version)
    }

    /// The end: tells the completion. What is not good has to be moved again.
    #[must_use]
    pub(super) fn conclude(self, shared: &Shared, is_good: bool) -> Option<Redo> {
        let Self {
            job, pinned, pulled, pins, bytes, error, rest, rest_bytes, reason, cuts, left_out, ..
        } = self;
        drop(pins);
        leave_out_parts(&job, &left_out);
        if error.is_none() && !is_good {
            if job.completion.is_cancelled() {
                leave_out_parts(&job, &pulled);
                job.completion.work_done(Moved::default());
                return None;
            }
            if let Fill::Descriptor(file) = job.batch.file.source().fill() {
                note_change(&shared.shelf, file, &pinned);
            }
            elect(shared, &job, (0, Writers::Nobody), rest_bytes + bytes, Some(Reason::new(CHANGED)));
            return Some(Redo::new(shared, job));
        }
        for (entry, bytes) in cuts {
            job.completion.cut(job.base + entry, bytes);
        }
        let mut staged = Moved::default();
        for rest in &rest {
            job.take_over(rest.results());
            staged = staged.plus(rest.moved());
        }
        let bytes = if error.is_some() { 0 } else { bytes };
        if let Some(error) = error {
            fail_parts(&job, &pulled, &error.with("file", job.batch.file.name()));
        }
        elect(shared, &job, (bytes, pinned.suspects()), rest_bytes, reason);
        let completion = job.completion.clone();
        // Whoever finds the transfer resolved finds its file let go.
        drop((job, pinned));
        completion.work_done(staged.plus(Moved { mapped: bytes, ..Moved::default() }));
        None
    }
}

/// Why what was pulled is read once more.
pub(super) const CHANGED: &str = "the file changed while it was read in place: it was read again";

/// Writes down how the batch was divided.
pub(super) fn elect(
    shared: &Shared,
    job: &PullJob,
    (pulled, writers): (u64, Writers),
    rest: u64,
    reason: Option<Reason>,
) {
    let base = job.completion.election();
    if rest == 0 && pulled > 0 {
        // All alike: made once.
        return job.completion.elected(shared.wholly_pulled(base, writers));
    }
    let mut notes = if rest > 0 { shared.stage.notes().unwrap_or_default().0 } else { Vec::new() };
    notes.extend(writers.note().filter(|_| pulled > 0));
    job.completion.elected(in_place(base, pulled, rest, reason, notes));
}

fn leave_out_parts(job: &PullJob, parts: &[Part]) {
    each_entry(job, parts, |entry, at| job.completion.leave_out(entry, at));
}

fn fail_parts(job: &PullJob, parts: &[Part], error: &Error) {
    each_entry(job, parts, |entry, at| job.completion.fail(entry, at, error.clone()));
}

/// Calls `tell` with each entry that parts belong to, as the completion numbers them, and where the part begins in it.
fn each_entry(job: &PullJob, parts: &[Part], mut tell: impl FnMut(u32, u64)) {
    for part in parts {
        match *part {
            Part::Range { entry, start, .. } => {
                tell(job.base + entry, start - job.batch.pieces[entry as usize].offset);
            }
            Part::Entries { first, last } => (first..last).for_each(|entry| tell(job.base + entry, 0)),
        }
    }
}
