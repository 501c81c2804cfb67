//! Collects the results of a submission while its works end.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, OnceLock, PoisonError, Weak};
use std::task::Waker;
use std::time::{Duration, Instant};

use forebay_error::{Error, ErrorKind, Result};
use forebay_gpu::Wait;

use crate::request::cancel::{Cancel, Cancellation, cancelled};
use crate::request::copy_order::PriorWork;
use crate::request::file::File;
use crate::request::metrics::RequestCounter;
use crate::request::receipt::{Election, Moved, Note, Receipt};
use crate::request::totals::{MovedSums, Totals};
use crate::runtime::fork::{Birth, from_before};
use crate::runtime::lock;
use crate::runtime::wait;
use forebay_source::LateNote;

/// What lanes fill in while a submission is in flight. Resolves once, when its last work is done.
pub struct Completion {
    /// Bytes that each entry wants.
    wanted: Box<[u64]>,
    /// Bytes from each entry's start that are good: lowered by short reads and errors.
    good: Box<[AtomicU64]>,
    /// Entries that failed, and at which of their bytes.
    errors: Mutex<Vec<(u32, u64, Error)>>,
    allow_short: Vec<bool>,
    left: AtomicUsize,
    moved: MovedSums,
    started: Instant,
    /// As far as it was known at submission; see [`State::election`].
    election: Arc<Election>,
    state: Mutex<State>,
    /// As `state` says; for those who poll.
    done: AtomicBool,
    resolved: Condvar,
    totals: Arc<Totals>,
    cancellation: Cancellation,
    birth: Birth,
    /// Set before it starts, if it is counted.
    counter: OnceLock<RequestCounter>,
    /// Set before it starts, if copies come after other work.
    prior_work: OnceLock<PriorWork>,
    /// Set before it starts, of a file whose server may be silent.
    late_note: OnceLock<LateNote>,
    /// Asked when the last work is done: each says whether there are more, which it has told by [`Completion::expect`].
    looks: Mutex<Vec<LookAgain>>,
}

/// See [`Completion::look_again`].
type LookAgain = Box<dyn FnOnce() -> bool + Send>;

#[derive(Default)]
struct State {
    elapsed: Option<Duration>,
    waker: Option<Waker>,
    /// What the election came to, where that was seen only when the transfer ran.
    election: Option<Arc<Election>>,
    /// Runs once at resolution (tells a stream's server).
    after: Option<Box<dyn FnOnce() + Send>>,
}

/// How much longer than the expected time a waiter polls before it sleeps.
const POLL_MARGIN: Duration = Duration::from_micros(150);

impl Completion {
    pub(crate) fn new(
        wanted: Box<[u64]>,
        works: usize,
        allow_short: Vec<bool>,
        election: Arc<Election>,
        totals: Arc<Totals>,
        after: Option<Box<dyn FnOnce() + Send>>,
    ) -> Arc<Self> {
        let completion = Arc::new(Self {
            good: wanted.iter().map(|len| AtomicU64::new(*len)).collect(),
            wanted,
            errors: Mutex::default(),
            allow_short,
            left: AtomicUsize::new(works),
            moved: MovedSums::default(),
            started: Instant::now(),
            election,
            state: Mutex::new(State { after, ..State::default() }),
            done: AtomicBool::new(false),
            resolved: Condvar::new(),
            totals,
            cancellation: Cancellation::default(),
            birth: Birth::here(),
            counter: OnceLock::new(),
            prior_work: OnceLock::new(),
            late_note: OnceLock::new(),
            looks: Mutex::default(),
        });
        if works == 0 {
            completion.resolve();
        }
        completion
    }

    /// Counts the request when it resolves.
    pub(crate) fn count_with(&self, counter: Option<RequestCounter>) {
        if let Some(counter) = counter {
            let _ = self.counter.set(counter);
        }
    }

    /// Its copies come after this work.
    pub(crate) fn order_after(&self, prior_work: Option<PriorWork>) {
        if let Some(prior_work) = prior_work {
            let _ = self.prior_work.set(prior_work);
        }
    }

    /// The receipt says how long the file's server, if it has one, is silent from now on, and which sites gave the bytes.
    pub(crate) fn keep_late_note(&self, file: &File) {
        if let Some(late_note) = file.source().late_note() {
            let _ = self.late_note.set(late_note);
        }
    }

    /// Whether its copies may begin.
    pub(crate) fn may_copy(&self) -> bool {
        self.prior_work.get().is_none_or(PriorWork::is_done)
    }

    /// Waits until its device copies may begin: they come after other work of the program. An engine calls this before its
    /// first copy, outside of any lock.
    pub fn wait_to_copy(&self) -> Result<()> {
        self.prior_work.get().map_or(Ok(()), |work| work.wait(Wait::Block))
    }

    /// Adds `more` works. The caller still has one work to end, so that the completion cannot resolve meanwhile.
    pub(crate) fn expect(&self, more: usize) {
        self.left.fetch_add(more, Ordering::AcqRel);
    }

    /// Called when the last work is done: are there more?
    pub(crate) fn look_again(&self, look: LookAgain) {
        lock(&self.looks).push(look);
    }

    /// Bytes from the entry's start that are good, as far as is known.
    pub(crate) fn good(&self, entry: u32) -> u64 {
        self.good[entry as usize].load(Ordering::Relaxed)
    }

    /// Sets the good bytes of `entry`, before works start that were not counted at submission.
    pub(crate) fn extend(&self, entry: u32, bytes: u64) {
        self.good[entry as usize].store(bytes, Ordering::Relaxed);
    }

    pub(crate) fn has_failed(&self) -> bool {
        !lock(&self.errors).is_empty()
    }

    /// The election as the transfer was really carried out.
    pub(crate) fn elected(&self, election: Arc<Election>) {
        lock(&self.state).election = Some(election);
    }

    /// Adds a note to the election as it is by now.
    pub(crate) fn note(&self, note: Note) {
        let mut state = lock(&self.state);
        let mut election = Election::clone(state.election.as_ref().unwrap_or(&self.election));
        election.notes.push(note);
        state.election = Some(Arc::new(election));
    }

    /// The election as it is by now.
    pub(crate) fn elected_so_far(&self) -> Arc<Election> {
        lock(&self.state).election.as_ref().unwrap_or(&self.election).clone()
    }

    /// The election at submission.
    pub(crate) fn election(&self) -> &Arc<Election> {
        &self.election
    }

    /// Only the first `bytes` of `entry` are good.
    pub fn cut(&self, entry: u32, bytes: u64) {
        self.good[entry as usize].fetch_min(bytes, Ordering::Relaxed);
    }

    /// `entry` failed `at` bytes from its start.
    pub fn fail(&self, entry: u32, at: u64, error: Error) {
        self.cut(entry, at);
        lock(&self.errors).push((entry, at, error));
    }

    /// Nothing from `at` bytes of `entry` on will be moved for sure: it was cancelled.
    pub fn leave_out(&self, entry: u32, at: u64) {
        self.cut(entry, at);
        self.cancellation.leave_out(entry);
    }

    /// `who` has works of this submission, and leaves out those that have not begun when it is cancelled.
    pub(crate) fn on_cancel(&self, who: Weak<dyn Cancel>) {
        self.cancellation.on_cancel(who);
    }

    /// Whether its caller cancelled it: works that have not begun are skipped.
    pub fn is_cancelled(&self) -> bool {
        self.cancellation.is_asked()
    }

    /// One work is done, having moved `moved`.
    pub fn work_done(&self, moved: Moved) {
        self.moved.add(moved);
        // AcqRel: the thread that resolves sees what the other lanes wrote.
        if self.left.fetch_sub(1, Ordering::AcqRel) == 1 && !self.has_more_works() {
            self.resolve();
        }
    }

    /// Whether more works may join it.
    fn has_more_works(&self) -> bool {
        let looks = std::mem::take(&mut *lock(&self.looks));
        if looks.is_empty() {
            return false;
        }
        // One more than there are, so that none of them resolves it meanwhile.
        self.left.store(1, Ordering::Release);
        let more = looks.into_iter().fold(false, |more, look| look() | more);
        more && (self.left.fetch_sub(1, Ordering::AcqRel) != 1 || self.has_more_works())
    }

    fn resolve(&self) {
        let failed = self.has_failed_entries();
        let moved = self.moved();
        self.totals.add(moved, failed);
        if let Some(text) = self.late_note.get().and_then(|late_note| late_note()) {
            self.note(Note { text, hint: None });
        }
        let mut state = lock(&self.state);
        let elapsed = self.started.elapsed();
        state.elapsed = Some(elapsed);
        let (waker, after) = (state.waker.take(), state.after.take());
        let election = self.counter.get().map(|_| state.election.as_ref().unwrap_or(&self.election).clone());
        drop(state);
        if let Some(counter) = self.counter.get() {
            counter.count(moved, elapsed, !failed, election.as_deref());
            lock(&self.errors).iter().take(1).for_each(|(.., error)| counter.failed(error));
        }
        self.done.store(true, Ordering::Release);
        if let Some(after) = after {
            after();
        }
        self.resolved.notify_all();
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    pub(crate) fn is_done(&self) -> bool {
        self.done.load(Ordering::Acquire)
    }

    /// Whether this is a forked child, and its parent started it.
    pub(super) fn is_elsewhere(&self) -> bool {
        self.birth.is_elsewhere()
    }

    /// Whether it was under way when the process forked, and this is the child: it never resolves here, and its locks may
    /// be locked for ever.
    pub(super) fn is_lost(&self) -> bool {
        self.birth.is_elsewhere() && !self.done.load(Ordering::Acquire)
    }

    /// Waits until resolved. Around the time that it should take the waiter polls: being woken takes long.
    pub(super) fn wait_closely(&self, expected: Duration) {
        if !self.wait(Some(expected / 2))
            && !wait::poll_flag(expected + POLL_MARGIN, || self.done.load(Ordering::Acquire))
        {
            self.wait(None);
        }
    }

    /// Bytes that count, by way. Works end in any order: what some have moved behind the first byte that is missing does not
    /// count.
    pub(crate) fn moved(&self) -> Moved {
        let good = self.good.iter().map(|good| good.load(Ordering::Relaxed)).fold(0, u64::saturating_add);
        self.moved.load().up_to(good)
    }

    /// Waits until resolved, at most `limit`; whether it is.
    pub(crate) fn wait(&self, limit: Option<Duration>) -> bool {
        let deadline = limit.and_then(|limit| Instant::now().checked_add(limit));
        let mut state = lock(&self.state);
        while state.elapsed.is_none() {
            state = match deadline {
                None => self.resolved.wait(state).unwrap_or_else(PoisonError::into_inner),
                Some(deadline) => {
                    let left = deadline.saturating_duration_since(Instant::now());
                    if left.is_zero() {
                        return false;
                    }
                    self.resolved.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0
                }
            };
        }
        true
    }

    /// What each entry came to: its good bytes, and why there are no more, unless the source has no more. What happened
    /// behind a byte that is missing does not matter.
    pub(crate) fn ends(&self) -> Vec<(u64, Option<Error>)> {
        let mut ends: Vec<_> = self.good.iter().map(|good| (good.load(Ordering::Relaxed), None)).collect();
        for entry in self.cancellation.entries() {
            ends[entry as usize].1 = Some(cancelled());
        }
        for (entry, at, error) in lock(&self.errors).iter() {
            let (good, end) = &mut ends[*entry as usize];
            if *at == *good {
                *end = Some(error.clone());
            }
        }
        ends
    }

    pub(crate) fn results(&self) -> Vec<Result<u64>> {
        let asked = self.wanted.iter().zip(&self.allow_short);
        let result =
            |((good, error), (wanted, allow_short)): ((u64, Option<Error>), (&u64, &bool))| match error {
                Some(error) if !(*allow_short && is_short_write(good, &error)) => Err(error),
                None if good != *wanted && !allow_short => Err(short_read(good, *wanted)),
                _ => Ok(good),
            };
        self.ends().into_iter().zip(asked).map(result).collect()
    }

    fn has_failed_entries(&self) -> bool {
        let mut asked = self.wanted.iter().zip(&self.good).zip(&self.allow_short);
        let is_missed = |((wanted, good), allow_short): ((&u64, &AtomicU64), &bool)| {
            !allow_short && good.load(Ordering::Relaxed) < *wanted
        };
        let has_ended = || self.has_failed() || !self.cancellation.entries().is_empty();
        asked.any(is_missed) || has_ended() && self.results().iter().any(Result::is_err)
    }

    /// Notes who is to be woken when it resolves; false if it has.
    pub(super) fn wake_later(&self, waker: &Waker) -> bool {
        let mut state = lock(&self.state);
        let is_pending = state.elapsed.is_none();
        if is_pending {
            state.waker = Some(waker.clone());
        }
        is_pending
    }

    /// What it comes to in a forked child.
    pub(super) fn lost(&self) -> (Vec<Result<u64>>, Receipt) {
        let entries = vec![Err(from_before("this transfer was started")); self.wanted.len()];
        let receipt = Receipt {
            election: self.election.clone(),
            moved: Moved::default(),
            elapsed: self.started.elapsed(),
        };
        (entries, receipt)
    }

    pub(super) fn receipt(&self) -> Receipt {
        let state = lock(&self.state);
        let election = state.election.as_ref().unwrap_or(&self.election).clone();
        let elapsed = state.elapsed.unwrap_or_default();
        drop(state);
        Receipt { election, moved: self.moved(), elapsed }
    }
}

impl Cancel for Completion {
    fn cancel(&self) {
        self.cancellation.ask();
    }
}

/// The error of a read that met the end of its source.
pub(crate) fn short_read(got: u64, wanted: u64) -> Error {
    Error::new(ErrorKind::ShortRead, "the file ended before the requested number of bytes")
        .with("got", got)
        .with("wanted", wanted)
        .hint("read no further than the end of the file; one that shrinks while it is read ends here too")
}

/// Whether this is the end of a write of which a part has found room: the next one, which has none, gets the error.
pub(crate) fn is_short_write(written: u64, error: &Error) -> bool {
    written > 0 && error.kind() == ErrorKind::NoSpace
}
