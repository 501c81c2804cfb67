//! Transfers in flight.
//!
//! A [`Flight`] is what one call started: tickets of the engine and what owns their memory. It is looked after by a
//! thread of ours, which the engine wakes when a ticket is resolved: so a future that nobody waits for, or that was
//! dropped, still keeps its memory until its last byte has moved. Another thread of ours then runs callbacks: they
//! may start transfers and wait for them.

use std::pin::Pin;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, TryLockError};
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant};

use forebay_engine::{File as Engine, Receipt as One, Ticket};
use forebay_error::{Error, ErrorKind};
use pyo3::prelude::*;

use crate::data_files::OpenFile;
use crate::error::{OrRaise, invalid, raise};
use crate::flights::{Flights, lock};
use crate::receipt::Receipt;
use crate::wait;

type Outcome = Result<(Vec<One>, Duration), Error>;

/// What one call started.
pub(crate) struct Flight {
    /// The process's flights that it is one of.
    home: &'static Flights,
    state: Mutex<State>,
    landed: Condvar,
    started: Instant,
}

struct State {
    /// Tickets that are not resolved yet, each with its number. None of them, and no outcome: not begun.
    tickets: Vec<(usize, Ticket)>,
    receipts: Vec<One>,
    error: Option<Error>,
    outcome: Option<Outcome>,
    /// Owns the memory until the outcome is known.
    keep: Option<Py<PyAny>>,
    /// Open until then.
    files: Files,
    callbacks: Vec<Py<PyAny>>,
    is_cancelled: bool,
    /// All tickets are resolved.
    is_landing: bool,
    /// The holder of the [`Future`] drops `keep`, not our thread.
    is_held: bool,
}

/// What the entries of a flight's tickets are of.
pub(crate) enum Files {
    /// All of one file, of which this is the name: it is not held open, so that it is closed when the ticket resolves.
    /// And, where errors name the piece, the owners of each ticket's entries.
    One(String, Vec<EntryOwners>),
    /// Of files of a data set, each with the number of its entries, which follow each other.
    Set(Vec<(usize, Arc<OpenFile>)>),
}

/// Which entries of a batch are of which piece of a call: the first entry of each piece with the piece's number.
#[derive(Default)]
pub(crate) struct EntryOwners(Vec<(usize, usize)>);

impl EntryOwners {
    /// Entries from `first` on are of the piece of this number.
    pub(crate) fn add(&mut self, first: usize, number: usize) {
        self.0.push((first, number));
    }

    /// The number of the piece that an entry is of.
    fn of(&self, entry: usize) -> Option<usize> {
        let behind = self.0.partition_point(|(first, _)| *first <= entry);
        behind.checked_sub(1).map(|at| self.0[at].1)
    }
}

impl Files {
    fn of_set(&self) -> &[(usize, Arc<OpenFile>)] {
        match self {
            Self::One(..) => &[],
            Self::Set(files) => files,
        }
    }

    /// The error of a file of a data set that changed while it was read.
    fn changed(&self) -> Option<Error> {
        self.of_set().iter().find_map(|(_, file)| file.check().err())
    }

    /// The error of a ticket's entry with its piece and the name of its file: the end of a file is met where that is no
    /// longer known.
    fn named(&self, ticket: usize, mut entry: usize, error: Error) -> Error {
        let is_short = error.kind() == ErrorKind::ShortRead;
        match self {
            Self::One(name, owners) => {
                let error = if is_short { error.with("file", name) } else { error };
                match owners.get(ticket).and_then(|owners| owners.of(entry)) {
                    Some(piece) => error.with("piece", piece),
                    None => error,
                }
            }
            Self::Set(_) if !is_short => error,
            Self::Set(files) => {
                let owner = files.iter().find(|(entries, _)| {
                    let is_here = entry < *entries;
                    entry = entry.saturating_sub(*entries);
                    is_here
                });
                owner.map_or(error, |(_, file)| file.changed())
            }
        }
    }
}

impl Flight {
    /// A flight of one file that has not begun, whose memory `keep` owns. None starts once the interpreter ends.
    pub(crate) fn new(file: &Engine, keep: Py<PyAny>) -> PyResult<Arc<Self>> {
        Self::behind(Vec::new(), Files::One(file.name(), Vec::new()), keep)
    }

    /// As [`Flight::new`], for the next part of a transfer of which others have landed. It holds files open until it lands.
    pub(crate) fn behind(receipts: Vec<One>, files: Files, keep: Py<PyAny>) -> PyResult<Arc<Self>> {
        let home = Flights::here();
        if !home.count_in() {
            let error = Error::new(ErrorKind::Cancelled, "the interpreter is ending: no transfer starts now");
            return Err(raise(&error.hint("join the thread that reads and writes before the program ends")));
        }
        Ok(Arc::new(Self {
            home,
            state: Mutex::new(State {
                tickets: Vec::new(),
                receipts,
                error: None,
                outcome: None,
                keep: Some(keep),
                files,
                callbacks: Vec::new(),
                is_cancelled: false,
                is_landing: false,
                is_held: false,
            }),
            landed: Condvar::new(),
            started: Instant::now(),
        }))
    }

    /// Begins, or ends at once with the error.
    pub(crate) fn begin(self: &Arc<Self>, tickets: Result<Vec<Ticket>, Error>) {
        let mut state = lock(&self.state);
        match tickets {
            Ok(tickets) => state.tickets = tickets.into_iter().enumerate().collect(),
            Err(error) => state.error = Some(error),
        }
        if state.is_cancelled {
            state.tickets.iter().for_each(|(_, ticket)| ticket.cancel());
        }
        drop(state);
        self.home.watch(self.clone());
    }

    /// Asks every ticket; ends when all are resolved.
    pub(crate) fn look(self: &Arc<Self>) {
        let waker = Waker::from(self.clone());
        let mut context = Context::from_waker(&waker);
        let mut state = lock(&self.state);
        if state.is_landing {
            return;
        }
        let mut waiting = Vec::new();
        for (number, mut ticket) in std::mem::take(&mut state.tickets) {
            match Pin::new(&mut ticket).poll(&mut context) {
                Poll::Pending => waiting.push((number, ticket)),
                Poll::Ready(outcome) => match outcome.entries.iter().position(Result::is_err) {
                    None => state.receipts.push(outcome.receipt),
                    Some(entry) => {
                        let error = outcome.into_result().err();
                        let error = error.map(|error| state.files.named(number, entry, error));
                        state.error = state.error.take().or(error);
                    }
                },
            }
        }
        state.tickets = waiting;
        if state.tickets.is_empty() {
            self.land(state);
        }
    }

    fn land(self: &Arc<Self>, mut state: MutexGuard<'_, State>) {
        state.is_landing = true;
        let files = std::mem::replace(&mut state.files, Files::Set(Vec::new()));
        let is_elsewhere = files.of_set().iter().any(|(_, file)| file.is_elsewhere());
        if state.error.is_some() || !is_elsewhere {
            let changed = if state.error.is_some() { None } else { files.changed() };
            return self.end(state, files, changed);
        }
        drop(state);
        let flight = self.clone();
        let check = move || {
            let changed = files.changed();
            flight.end(lock(&flight.state), files, changed);
        };
        // A silent server holds up this flight alone, and nobody who asks for its state.
        if let Err(error) = forebay_engine::threads::spawn("forebay-state", check) {
            let error = Error::from_io(&error, "cannot start a thread");
            self.end(lock(&self.state), Files::Set(Vec::new()), Some(error));
        }
    }

    fn end(self: &Arc<Self>, mut state: MutexGuard<'_, State>, files: Files, changed: Option<Error>) {
        let receipts = std::mem::take(&mut state.receipts);
        let error = state.error.take().or(changed);
        state.outcome = Some(match error {
            Some(error) => Err(error),
            None => Ok((receipts, self.started.elapsed())),
        });
        drop(state);
        drop(files);
        self.landed.notify_all();
        self.home.tell(self.clone());
    }

    /// Lets go of the memory and calls who asked for it. Runs Python's code, so never on the thread that looks.
    pub(crate) fn tell(self: &Arc<Self>) {
        let state = lock(&self.state);
        let is_awaited = (state.keep.is_some() && !state.is_held) || !state.callbacks.is_empty();
        drop(state);
        if is_awaited {
            // Without an interpreter its objects are gone, too.
            let _told = Python::try_attach(|py| self.tell_python(py));
        }
        self.home.count_out();
    }

    fn tell_python(self: &Arc<Self>, py: Python<'_>) {
        // Take with the GIL: a thread that waited finds the memory either still here, or free.
        let mut state = lock(&self.state);
        let (keep, callbacks) = (state.keep.take(), std::mem::take(&mut state.callbacks));
        drop(state);
        drop(keep);
        let future = (!callbacks.is_empty()).then(|| Py::new(py, Future(self.clone())));
        if let Some(Ok(future)) = future {
            for callback in &callbacks {
                call(py, callback, &future);
            }
        }
    }

    /// Leaves it to the [`Future`], when it is asked for its result or dropped, to release the memory: for callers who
    /// hold that themselves and are busy. A thread of ours that waits for the GIL makes each call slower that releases it.
    pub(crate) fn hold(&self) {
        lock(&self.state).is_held = true;
    }

    /// The end of [`Flight::hold`]. Called with the GIL.
    fn end_hold(&self) {
        // One of the process that this one was forked from never changes here.
        let Some(mut state) = self.state().filter(|_| self.home.is_here()) else { return };
        let was_held = std::mem::replace(&mut state.is_held, false);
        let keep = if was_held && state.outcome.is_some() { state.keep.take() } else { None };
        drop(state);
        drop(keep);
    }

    /// What it is now. A flight of the process that this one was forked from never changes here, and its lock may be a
    /// thread's that is not here.
    fn state(&self) -> Option<MutexGuard<'_, State>> {
        if self.home.is_here() {
            return Some(lock(&self.state));
        }
        match self.state.try_lock() {
            Ok(state) => Some(state),
            Err(TryLockError::Poisoned(state)) => Some(state.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    fn is_done(&self) -> bool {
        self.state().is_some_and(|state| state.outcome.is_some())
    }

    /// An exception if it can never end in this process.
    fn check_process(&self) -> PyResult<()> {
        if self.home.is_here() || self.is_done() {
            return Ok(());
        }
        Err(invalid(
            "the transfer belongs to the process that was forked: only that one can wait for it",
            "start it anew in the child",
        ))
    }

    fn wait_timeout(&self, limit: Duration) -> bool {
        let Some(state) = self.state() else { return false };
        let waited = self.landed.wait_timeout_while(state, limit, |state| state.outcome.is_none());
        waited.unwrap_or_else(std::sync::PoisonError::into_inner).0.outcome.is_some()
    }

    /// Waits with the GIL released for what it comes to. `None` if `limit` is over; an exception only of a signal's
    /// handler, or of a flight that is not this process's.
    fn outcome(&self, py: Python<'_>, limit: Option<Duration>) -> PyResult<Option<Outcome>> {
        self.check_process()?;
        if !wait::patiently(py, limit, |limit| self.wait_timeout(limit))? {
            return Ok(None);
        }
        let Some(mut state) = self.state() else { return Ok(None) };
        let (outcome, keep) = (state.outcome.clone(), state.keep.take());
        drop(state);
        // The thread that waited may use the memory at once: forebay must not hold it any longer.
        drop(keep);
        Ok(outcome)
    }

    /// Waits as [`Flight::outcome`]; the receipt, or the first error.
    fn result(&self, py: Python<'_>, limit: Option<Duration>) -> PyResult<Option<Receipt>> {
        match self.outcome(py, limit)? {
            Some(Ok((parts, elapsed))) => Ok(Some(Receipt::of(parts, elapsed))),
            Some(Err(error)) => Err(raise(&error)),
            None => Ok(None),
        }
    }

    /// As [`Flight::result`] without a limit; on Ctrl-C cancels parts that have not started, and waits for those in
    /// flight.
    pub(crate) fn finish(&self, py: Python<'_>) -> PyResult<Receipt> {
        self.finished(py).map(|(receipts, elapsed)| Receipt::of(receipts, elapsed))
    }

    /// As [`Flight::finish`], for [`Flight::behind`].
    pub(crate) fn finish_part(&self, py: Python<'_>) -> PyResult<Vec<One>> {
        self.finished(py).map(|(receipts, _)| receipts)
    }

    fn finished(&self, py: Python<'_>) -> PyResult<(Vec<One>, Duration)> {
        match self.outcome(py, None) {
            Ok(Some(outcome)) => outcome.or_raise(),
            Ok(None) => Err(raise(&Error::new(ErrorKind::Internal, "a transfer ended without a result"))),
            Err(error) => {
                self.cancel();
                // Parts in flight finish within a moment; storage that hangs is not waited for.
                py.detach(|| self.wait_timeout(Duration::from_secs(5)));
                Err(error)
            }
        }
    }

    /// Cancels parts that have not started.
    fn cancel(&self) {
        // One of the process that this one was forked from has nothing here to give up.
        let Some(mut state) = self.state().filter(|_| self.home.is_here()) else { return };
        state.is_cancelled = true;
        state.tickets.iter().for_each(|(_, ticket)| ticket.cancel());
    }
}

impl Wake for Flight {
    fn wake(self: Arc<Self>) {
        self.home.watch(self);
    }
}

fn call(py: Python<'_>, callback: &Py<PyAny>, future: &Py<Future>) {
    if let Err(error) = callback.call1(py, (future,)) {
        // As concurrent.futures does: the callback's own fault, told and not passed on.
        error.write_unraisable(py, Some(callback.bind(py)));
    }
}

// ---- Python's side ------------------------------------------------------------------------------------------------

fn limit_of(timeout: Option<f64>) -> Option<Duration> {
    timeout.map(|seconds| Duration::try_from_secs_f64(seconds.max(0.0)).unwrap_or(Duration::MAX))
}

fn timed_out() -> Error {
    Error::new(ErrorKind::Timeout, "the transfer is not done yet").hint("wait longer, or without a timeout")
}

/// A transfer in flight. Waited for with `result()`, asked with `done()`, or awaited. Dropping it neither stops the
/// transfer nor frees the memory under it.
#[pyclass(frozen, module = "forebay")]
pub(crate) struct Future(pub(crate) Arc<Flight>);

impl Drop for Future {
    fn drop(&mut self) {
        self.0.end_hold();
    }
}

#[pymethods]
impl Future {
    /// Waits, at most `timeout` seconds, and gives the receipt; raises what went wrong, or TimeoutError.
    #[pyo3(signature = (timeout=None))]
    fn result(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<Receipt> {
        self.0.result(py, limit_of(timeout))?.ok_or_else(timed_out).or_raise()
    }

    /// Whether it is resolved.
    fn done(&self) -> bool {
        self.0.is_done()
    }

    /// Waits, at most `timeout` seconds, and gives what went wrong, or None.
    #[pyo3(signature = (timeout=None))]
    fn exception(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<Option<Py<PyAny>>> {
        match self.0.outcome(py, limit_of(timeout))? {
            Some(Ok(_)) => Ok(None),
            Some(Err(error)) => Ok(Some(raise(&error).into_value(py).into_any())),
            None => Err(raise(&timed_out())),
        }
    }

    /// Cancels parts that have not started; those in flight finish. True unless it was resolved already.
    fn cancel(&self) -> bool {
        self.0.cancel();
        !self.done()
    }

    /// Has `callback(future)` called when it is resolved, from a thread of forebay's; at once if it is already.
    fn add_done_callback(slf: &Bound<'_, Self>, callback: Py<PyAny>) -> PyResult<()> {
        let flight = &slf.get().0;
        flight.check_process()?;
        match flight.state() {
            Some(mut state) if state.outcome.is_none() => state.callbacks.push(callback),
            state => {
                drop(state);
                call(slf.py(), &callback, &slf.clone().unbind());
            }
        }
        Ok(())
    }

    fn __await__<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        slf.py().import("forebay._awaiting")?.call_method1("awaiter", (slf,))
    }

    fn __repr__(&self) -> &'static str {
        match self.0.state().as_ref().and_then(|state| state.outcome.as_ref()) {
            None => "<forebay.Future: in flight>",
            Some(Ok(_)) => "<forebay.Future: done>",
            Some(Err(_)) => "<forebay.Future: failed>",
        }
    }
}
