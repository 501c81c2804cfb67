//! Batches: submissions of entries in flight, and the events that they become.

use std::collections::VecDeque;
use std::ffi::c_int;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant};

use forebay_engine::{Direction, Outcome, Piece, Ticket};
use forebay_error::ErrorKind;
use forebay_gpu::MemoryKind;
use forebay_trace::{Api, CallFlags};

use crate::abi::{STATUS_COMPLETE, STATUS_FAILED};
use crate::handles::RegisteredFile;
use crate::lock;
use crate::log::logged_errno;
use crate::meter::{BatchDone, CallStart, Transferred, engine_of, meter};

/// A wait with a submission that wakes nobody (`is_driven`) spins this long before it sleeps. Chosen.
const SPIN_TIME: Duration = Duration::from_micros(200);
/// Sleep between two looks at such a submission after that. Chosen.
const SLEEP_TIME: Duration = Duration::from_micros(50);

/// A batch of the program.
pub(crate) struct CufileBatch {
    /// Most entries at a time.
    pub(crate) room: usize,
    state: Arc<BatchState>,
    /// Its number in the trace.
    pub(crate) number: u32,
}

#[derive(Default)]
struct BatchState {
    inner: Mutex<BatchProgress>,
    changed: Condvar,
}

#[derive(Default)]
struct BatchProgress {
    /// Submissions in flight; `None` where one is resolved.
    flying: Vec<Option<Submission>>,
    /// Places of submissions that say they are resolved.
    woken: Vec<usize>,
    /// Entries in flight.
    left: usize,
    /// What the program has not asked for yet.
    events: VecDeque<BatchEvent>,
}

/// An event for the program; moved between threads, since the cookie is only a number to us.
#[derive(Clone, Copy)]
pub(crate) struct BatchEvent {
    pub(crate) cookie: usize,
    pub(crate) status: c_int,
    pub(crate) ret: usize,
}

/// A submission of some entries.
pub(crate) struct Submission {
    pub(crate) ticket: Ticket,
    /// Nobody wakes us: it is to be looked at.
    pub(crate) is_driven: bool,
    pub(crate) entries: Vec<BatchEntry>,
    pub(crate) file: Arc<RegisteredFile>,
    pub(crate) direction: Direction,
    pub(crate) kind: MemoryKind,
    pub(crate) gpu: Option<usize>,
    pub(crate) begun: CallStart,
    pub(crate) group: u32,
}

pub(crate) struct BatchEntry {
    pub(crate) cookie: usize,
    pub(crate) piece: Piece,
}

/// Tells a batch that one of its submissions is resolved.
struct SubmissionWaker {
    state: Arc<BatchState>,
    place: usize,
}

impl Wake for SubmissionWaker {
    fn wake(self: Arc<Self>) {
        self.state.lock().woken.push(self.place);
        self.state.changed.notify_all();
    }
}

impl BatchState {
    fn lock(&self) -> MutexGuard<'_, BatchProgress> {
        lock(&self.inner)
    }

    /// Collects resolved entries.
    fn collect(self: &Arc<Self>, inner: &mut BatchProgress) {
        while let Some(place) = inner.woken.pop() {
            self.look(inner, place);
        }
    }

    /// Looks at the submissions that wake nobody (`is_driven`). True if one of them is still not resolved.
    fn look_at_driven(self: &Arc<Self>, inner: &mut BatchProgress) -> bool {
        let mut any = false;
        for place in 0..inner.flying.len() {
            let Some(flying) = &inner.flying[place] else { continue };
            if !flying.is_driven {
                continue;
            }
            if flying.ticket.is_done() || !flying.ticket.is_driven() {
                self.look(inner, place);
            } else {
                any = true;
            }
        }
        any
    }

    /// Takes in the submission at this place if it is resolved; otherwise sees to it that we hear of it.
    fn look(self: &Arc<Self>, inner: &mut BatchProgress, place: usize) {
        let Some(mut flying) = inner.flying.get_mut(place).and_then(Option::take) else { return };
        let waker = Waker::from(Arc::new(SubmissionWaker { state: self.clone(), place }));
        match Pin::new(&mut flying.ticket).poll(&mut Context::from_waker(&waker)) {
            Poll::Pending => {
                flying.is_driven = false;
                inner.flying[place] = Some(flying);
            }
            Poll::Ready(outcome) => {
                inner.left -= flying.entries.len();
                flying.push_events(&outcome, &mut inner.events);
            }
        }
    }
}

impl Submission {
    /// Waits for the submission, drops its events, and returns how many entries it had.
    fn wait_and_count(mut self) -> usize {
        self.ticket.wait_timeout(Duration::MAX);
        if let Poll::Ready(outcome) = Pin::new(&mut self.ticket).poll(&mut Context::from_waker(Waker::noop()))
        {
            self.push_events(&outcome, &mut VecDeque::new());
        }
        self.entries.len()
    }

    /// Appends an event for each entry of an outcome, and counts and traces them.
    fn push_events(&self, outcome: &Outcome, events: &mut VecDeque<BatchEvent>) {
        let meter = meter();
        meter.receipt(&outcome.receipt);
        let (mut bytes, mut failed) = (0, 0);
        for (entry, result) in self.entries.iter().zip(&outcome.entries) {
            let result = result.as_ref().map(|bytes| *bytes).map_err(|error| match error.kind() {
                // As the program wished.
                ErrorKind::Cancelled => error.errno(),
                _ => logged_errno(error),
            });
            events.push_back(BatchEvent::of(entry.cookie, result));
            bytes += result.unwrap_or(0);
            failed += u64::from(result.is_err());
        }
        let ok = self.entries.len() as u64 - failed;
        let reads = self.direction == Direction::Read;
        let latency = outcome.receipt.elapsed;
        meter.batch_done(&BatchDone { latency, file: &self.file, reads, bytes, ok, failed });
        if meter.is_tracing() {
            self.trace(outcome);
        }
    }

    fn trace(&self, outcome: &Outcome) {
        let engine = engine_of(&outcome.receipt);
        let api = if self.direction == Direction::Read { Api::BatchRead } else { Api::BatchWrite };
        for (entry, result) in self.entries.iter().zip(&outcome.entries) {
            let latency = outcome.receipt.elapsed;
            let done = Transferred {
                api,
                begun: self.begun,
                file: &self.file,
                kind: self.kind,
                gpu: self.gpu,
                offset: entry.piece.offset as i64,
                size: entry.piece.len,
                address: entry.piece.address,
                group: self.group,
                flags: CallFlags::default(),
                result: result.as_ref().map(|bytes| *bytes).map_err(forebay_error::Error::errno),
                engine,
            };
            meter().traced(&done, latency);
        }
    }
}

impl BatchEvent {
    pub(crate) fn of(cookie: usize, result: Result<u64, c_int>) -> Self {
        match result {
            Ok(bytes) => Self { cookie, status: STATUS_COMPLETE, ret: bytes as usize },
            Err(errno) => Self { cookie, status: STATUS_FAILED, ret: (-(errno as isize)) as usize },
        }
    }
}

impl CufileBatch {
    pub(crate) fn new(room: usize, number: u32) -> Self {
        Self { room, state: Arc::default(), number }
    }

    /// Admits entries if there is room: those that failed at once, and `entries` that will be submitted.
    pub(crate) fn admit(&self, failed: Vec<BatchEvent>, entries: usize) -> bool {
        let mut progress = self.state.lock();
        if progress.left + progress.events.len() + failed.len() + entries > self.room {
            return false;
        }
        progress.events.extend(failed);
        progress.left += entries;
        drop(progress);
        // Somebody may be waiting for events already.
        self.state.changed.notify_all();
        true
    }

    /// Collects the results of submitted entries.
    pub(crate) fn submitted(&self, begun: Result<Submission, (Vec<BatchEntry>, c_int)>) {
        let mut progress = self.state.lock();
        match begun {
            Ok(submission) => {
                let free = progress.flying.iter().position(Option::is_none);
                let place = free.unwrap_or_else(|| {
                    progress.flying.push(None);
                    progress.flying.len() - 1
                });
                let is_driven = submission.is_driven;
                progress.flying[place] = Some(submission);
                if !is_driven {
                    self.state.look(&mut progress, place);
                }
            }
            Err((entries, errno)) => {
                progress.left -= entries.len();
                progress.events.extend(entries.iter().map(|entry| BatchEvent::of(entry.cookie, Err(errno))));
            }
        }
        drop(progress);
        // There may be events now, or something to look at.
        self.state.changed.notify_all();
    }

    /// Takes in what is over, without waiting.
    pub(crate) fn look(&self) {
        let mut inner = self.state.lock();
        self.state.collect(&mut inner);
        self.state.look_at_driven(&mut inner);
    }

    /// Waits for all that is in flight: the program may free its memory.
    pub(crate) fn drain(&self) {
        drop(self.wait_until(None, |inner| inner.left == 0));
    }

    /// Cancels entries that have not begun, waits for those that have, and drops all events, fetched or not.
    pub(crate) fn cancel(&self) {
        // Cancel without the lock: the thread that resolves a submission takes it.
        let flying = std::mem::take(&mut self.state.lock().flying);
        flying.iter().flatten().for_each(|flying| flying.ticket.cancel());
        for flying in flying.into_iter().flatten() {
            let entries = flying.wait_and_count();
            self.state.lock().left -= entries;
        }
        // What another thread is submitting meanwhile.
        let mut inner = self.wait_until(None, |inner| inner.left == 0);
        inner.events.clear();
        drop(inner);
        self.state.changed.notify_all();
    }

    /// Waits until `least` events are there or the time is up; without a limit only as long as some are in flight. Takes
    /// at most `most`.
    pub(crate) fn events(&self, least: usize, most: usize, limit: Option<Duration>) -> Vec<BatchEvent> {
        let deadline = limit.and_then(|limit| Instant::now().checked_add(limit));
        let mut inner = self.wait_until(deadline, |inner| {
            inner.events.len() >= least || (inner.left == 0 && limit.is_none())
        });
        let count = inner.events.len().min(most);
        inner.events.drain(..count).collect()
    }

    /// Collects resolved entries until this is so, or the time is up.
    fn wait_until(
        &self,
        deadline: Option<Instant>,
        is_so: impl Fn(&BatchProgress) -> bool,
    ) -> MutexGuard<'_, BatchProgress> {
        let begun = Instant::now();
        let mut inner = self.state.lock();
        loop {
            self.state.collect(&mut inner);
            let driven = self.state.look_at_driven(&mut inner);
            let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
            if is_so(&inner) || left.is_some_and(|left| left.is_zero()) {
                return inner;
            }
            let pause = if driven { Some(SLEEP_TIME) } else { None };
            inner = match (left, pause) {
                (_, Some(_)) if begun.elapsed() < SPIN_TIME => {
                    drop(inner);
                    std::hint::spin_loop();
                    self.state.lock()
                }
                (None, None) => self.state.changed.wait(inner).unwrap_or_else(PoisonError::into_inner),
                (left, pause) => {
                    let pause = pause.into_iter().chain(left).min().unwrap_or(SLEEP_TIME);
                    self.state.changed.wait_timeout(inner, pause).unwrap_or_else(PoisonError::into_inner).0
                }
            };
        }
    }
}
