//! Transfers in flight.
//!
//! A [`Flight`] is what one call started: tickets of the engine and what owns their memory. It is looked after by one
//! thread of ours, which the engine wakes when a ticket is resolved: so a future that nobody waits for, or that was
//! dropped, still keeps its memory until its last byte has moved, and then tells whoever asked to be told.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant};

use forebay_engine::{Receipt as One, Ticket};
use forebay_error::{Error, ErrorKind};
use pyo3::prelude::*;

use crate::error::{OrRaise, raise};
use crate::receipt::Receipt;
use crate::wait;

type Outcome = Result<(Vec<One>, Duration), Error>;

/// What one call started.
pub(crate) struct Flight {
    state: Mutex<State>,
    landed: Condvar,
    started: Instant,
}

struct State {
    /// Those not resolved yet. Empty and without an outcome: not begun.
    tickets: Vec<Ticket>,
    receipts: Vec<One>,
    error: Option<Error>,
    outcome: Option<Outcome>,
    /// Owns the memory until the outcome is known.
    keep: Option<Py<PyAny>>,
    callbacks: Vec<Py<PyAny>>,
    is_cancelled: bool,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Nothing panics while it holds one; if it did, what it guards would still be whole.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Flight {
    /// A flight that has not begun, whose memory `keep` owns.
    pub(crate) fn new(keep: Py<PyAny>) -> Arc<Self> {
        IN_FLIGHT.fetch_add(1, Ordering::AcqRel);
        Arc::new(Self {
            state: Mutex::new(State {
                tickets: Vec::new(),
                receipts: Vec::new(),
                error: None,
                outcome: None,
                keep: Some(keep),
                callbacks: Vec::new(),
                is_cancelled: false,
            }),
            landed: Condvar::new(),
            started: Instant::now(),
        })
    }

    /// Begins, or ends at once with the error.
    pub(crate) fn begin(self: &Arc<Self>, tickets: Result<Vec<Ticket>, Error>) {
        let mut state = lock(&self.state);
        match tickets {
            Ok(tickets) => state.tickets = tickets,
            Err(error) => state.error = Some(error),
        }
        if state.is_cancelled {
            state.tickets.iter().for_each(Ticket::cancel);
        }
        drop(state);
        Watcher::call(self.clone());
    }

    /// Asks every ticket; ends when all are resolved.
    fn look(self: &Arc<Self>) {
        let waker = Waker::from(self.clone());
        let mut context = Context::from_waker(&waker);
        let mut state = lock(&self.state);
        if state.outcome.is_some() {
            return;
        }
        let mut waiting = Vec::new();
        for mut ticket in std::mem::take(&mut state.tickets) {
            match Pin::new(&mut ticket).poll(&mut context) {
                Poll::Pending => waiting.push(ticket),
                Poll::Ready(outcome) => match outcome.into_result() {
                    Ok((receipt, ())) => state.receipts.push(receipt),
                    Err(error) => state.error = state.error.take().or(Some(error)),
                },
            }
        }
        state.tickets = waiting;
        if state.tickets.is_empty() {
            self.land(state);
        }
    }

    fn land(self: &Arc<Self>, mut state: MutexGuard<'_, State>) {
        let receipts = std::mem::take(&mut state.receipts);
        state.outcome = Some(match state.error.take() {
            Some(error) => Err(error),
            None => Ok((receipts, self.started.elapsed())),
        });
        let (keep, callbacks) = (state.keep.take(), std::mem::take(&mut state.callbacks));
        drop(state);
        self.landed.notify_all();
        let told = Python::try_attach(|py| {
            drop(keep);
            let future = (!callbacks.is_empty()).then(|| Py::new(py, Future(self.clone())));
            if let Some(Ok(future)) = future {
                for callback in &callbacks {
                    call(py, callback, &future);
                }
            }
        });
        if told.is_none() {
            // The interpreter is gone, and its objects with it.
        }
        if IN_FLIGHT.fetch_sub(1, Ordering::AcqRel) == 1 {
            let _guard = lock(&DRAINED.0);
            DRAINED.1.notify_all();
        }
    }

    fn wait_timeout(&self, limit: Duration) -> bool {
        let state = lock(&self.state);
        let waited = self.landed.wait_timeout_while(state, limit, |state| state.outcome.is_none());
        waited.unwrap_or_else(PoisonError::into_inner).0.outcome.is_some()
    }

    /// Waits with the GIL released; the receipt, or the first error. `None` if `limit` is over.
    pub(crate) fn result(&self, py: Python<'_>, limit: Option<Duration>) -> PyResult<Option<Receipt>> {
        if !wait::patiently(py, limit, |limit| self.wait_timeout(limit))? {
            return Ok(None);
        }
        match &lock(&self.state).outcome {
            Some(Ok((parts, elapsed))) => Ok(Some(Receipt::of(parts.clone(), *elapsed))),
            Some(Err(error)) => Err(raise(error)),
            None => Ok(None),
        }
    }

    /// As [`Flight::result`] without a limit; on Ctrl-C gives up what has not started, and waits for what is in the air.
    pub(crate) fn finish(&self, py: Python<'_>) -> PyResult<Receipt> {
        match self.result(py, None) {
            Ok(Some(receipt)) => Ok(receipt),
            Ok(None) => Err(raise(&Error::new(ErrorKind::Internal, "a transfer ended without a result"))),
            Err(error) => {
                self.cancel();
                // What is in the air lands within a moment; storage that hangs is not waited for.
                py.detach(|| self.wait_timeout(Duration::from_secs(5)));
                Err(error)
            }
        }
    }

    /// Gives up what has not started.
    fn cancel(&self) {
        let mut state = lock(&self.state);
        state.is_cancelled = true;
        state.tickets.iter().for_each(Ticket::cancel);
    }
}

impl Wake for Flight {
    fn wake(self: Arc<Self>) {
        Watcher::call(self);
    }
}

fn call(py: Python<'_>, callback: &Py<PyAny>, future: &Py<Future>) {
    if let Err(error) = callback.call1(py, (future,)) {
        // As concurrent.futures does: the callback's own fault, told and not passed on.
        error.write_unraisable(py, Some(callback.bind(py)));
    }
}

// ---- the thread that looks after flights --------------------------------------------------------------------------

static IN_FLIGHT: AtomicUsize = AtomicUsize::new(0);
static DRAINED: (Mutex<()>, Condvar) = (Mutex::new(()), Condvar::new());
static WATCHER: Watcher =
    Watcher { queue: Mutex::new(VecDeque::new()), bell: Condvar::new(), process: AtomicU32::new(0) };

struct Watcher {
    queue: Mutex<VecDeque<Arc<Flight>>>,
    bell: Condvar,
    /// The process whose thread serves the queue: a forked child has none of its parent's threads.
    process: AtomicU32,
}

impl Watcher {
    /// Has the thread look at a flight soon.
    fn call(flight: Arc<Flight>) {
        let own = std::process::id();
        if WATCHER.process.swap(own, Ordering::AcqRel) != own {
            lock(&WATCHER.queue).clear();
            let thread = std::thread::Builder::new().name("forebay-python".to_owned()).spawn(Self::serve);
            if thread.is_err() {
                // No thread to be had: whoever starts a flight looks after all.
                WATCHER.process.store(0, Ordering::Release);
                return flight.look();
            }
        }
        lock(&WATCHER.queue).push_back(flight);
        WATCHER.bell.notify_one();
    }

    fn serve() {
        loop {
            let mut queue = lock(&WATCHER.queue);
            while queue.is_empty() {
                queue = WATCHER.bell.wait(queue).unwrap_or_else(PoisonError::into_inner);
            }
            let flight = queue.pop_front();
            drop(queue);
            if let Some(flight) = flight {
                flight.look();
            }
        }
    }
}

/// Waits until no transfer is in flight: called when the interpreter ends.
#[pyfunction]
#[pyo3(name = "_drain")]
pub(crate) fn drain(py: Python<'_>) -> PyResult<()> {
    wait::patiently(py, None, |limit| {
        let guard = lock(&DRAINED.0);
        let busy = |(): &mut ()| IN_FLIGHT.load(Ordering::Acquire) > 0;
        drop(DRAINED.1.wait_timeout_while(guard, limit, busy));
        IN_FLIGHT.load(Ordering::Acquire) == 0
    })
    .map(|_| ())
}

// ---- Python's side ------------------------------------------------------------------------------------------------

/// A transfer in flight. Waited for with `result()`, asked with `done()`, or awaited. Dropping it neither stops the
/// transfer nor frees the memory under it.
#[pyclass(frozen, module = "forebay")]
pub(crate) struct Future(pub(crate) Arc<Flight>);

#[pymethods]
impl Future {
    /// Waits, at most `timeout` seconds, and gives the receipt; raises what went wrong, or TimeoutError.
    #[pyo3(signature = (timeout=None))]
    fn result(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<Receipt> {
        let limit =
            timeout.map(|seconds| Duration::try_from_secs_f64(seconds.max(0.0)).unwrap_or(Duration::MAX));
        let timed_out = || {
            Error::new(ErrorKind::Timeout, "the transfer is not done yet")
                .hint("wait longer, or without a timeout")
        };
        self.0.result(py, limit)?.ok_or_else(timed_out).or_raise()
    }

    /// Whether it is resolved.
    fn done(&self) -> bool {
        lock(&self.0.state).outcome.is_some()
    }

    /// Waits, at most `timeout` seconds, and gives what went wrong, or None.
    #[pyo3(signature = (timeout=None))]
    fn exception(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<Option<Py<PyAny>>> {
        match self.result(py, timeout) {
            Ok(_) => Ok(None),
            Err(error) if self.done() => Ok(Some(error.into_value(py).into_any())),
            Err(error) => Err(error),
        }
    }

    /// Gives up what has not started; what is in the air lands. True unless it was resolved already.
    fn cancel(&self) -> bool {
        self.0.cancel();
        !self.done()
    }

    /// Has `callback(future)` called when it is resolved, from a thread of forebay's; at once if it is already.
    fn add_done_callback(slf: &Bound<'_, Self>, callback: Py<PyAny>) {
        let mut state = lock(&slf.get().0.state);
        if state.outcome.is_none() {
            state.callbacks.push(callback);
        } else {
            drop(state);
            call(slf.py(), &callback, &slf.clone().unbind());
        }
    }

    fn __await__<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        slf.py().import("forebay._awaiting")?.call_method1("awaiter", (slf,))
    }

    fn __repr__(&self) -> &'static str {
        match &lock(&self.0.state).outcome {
            None => "<forebay.Future: in flight>",
            Some(Ok(_)) => "<forebay.Future: done>",
            Some(Err(_)) => "<forebay.Future: failed>",
        }
    }
}
