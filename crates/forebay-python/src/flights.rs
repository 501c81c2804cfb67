//! All flights (transfers of one call, see [`Flight`]) of a process, and the two threads that serve them: one looks whether they
//! have landed, one runs Python's callbacks.

use std::collections::VecDeque;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};

use pyo3::prelude::*;

use crate::data_files::OpenFiles;
use crate::future::Flight;
use crate::wait;
use forebay_engine::threads;
pub(crate) use forebay_sys::lock;

/// What one process has in flight. A forked child makes its own: it has none of its parent's threads, and their locks may be
/// locked for ever.
pub(crate) struct Flights {
    process: u32,
    /// Flights to look at. Its thread never runs Python's code, which may wait for other flights to be looked at.
    watched: FlightQueue,
    /// Flights that landed. Its thread releases their memory and runs their callbacks.
    told: FlightQueue,
    /// What its data sets have open.
    pub(crate) files: OpenFiles,
    count: AtomicUsize,
    is_closing: AtomicBool,
    drained: (Mutex<()>, Condvar),
}

static CURRENT: AtomicPtr<Flights> = AtomicPtr::new(ptr::null_mut());

impl Flights {
    /// The flights of this process.
    pub(crate) fn here() -> &'static Self {
        let known = CURRENT.load(Ordering::Acquire);
        // SAFETY: the stored value was leaked, so it lives for ever.
        match unsafe { known.as_ref() } {
            Some(flights) if flights.is_here() => return flights,
            _ => {}
        }
        let new = Box::into_raw(Box::new(Self {
            process: std::process::id(),
            watched: FlightQueue::new("forebay-python", Flight::look),
            told: FlightQueue::new("forebay-told", Flight::tell),
            files: OpenFiles::default(),
            count: AtomicUsize::new(0),
            is_closing: AtomicBool::new(false),
            drained: (Mutex::new(()), Condvar::new()),
        }));
        match CURRENT.compare_exchange(known, new, Ordering::AcqRel, Ordering::Acquire) {
            // SAFETY: just made, and never freed.
            Ok(_) => unsafe { &*new },
            Err(other) => {
                // SAFETY: just made, and nobody else has seen it; `other` is another thread's, and never freed.
                unsafe {
                    drop(Box::from_raw(new));
                    &*other
                }
            }
        }
    }

    /// Whether they belong to this process, not to the one that it was forked from.
    pub(crate) fn is_here(&self) -> bool {
        self.process == std::process::id()
    }

    /// Counts a flight that begins; [`Flights::count_out`] ends it. False if none may begin any more.
    pub(crate) fn count_in(&self) -> bool {
        // Count first: a thread that closes either sees the count, or this thread sees `is_closing`.
        self.count.fetch_add(1, Ordering::SeqCst);
        let is_open = !self.is_closing.load(Ordering::SeqCst);
        if !is_open {
            self.count_out();
        }
        is_open
    }

    pub(crate) fn count_out(&self) {
        if self.count.fetch_sub(1, Ordering::SeqCst) == 1 {
            let _guard = lock(&self.drained.0);
            self.drained.1.notify_all();
        }
    }

    /// Queues a flight to be looked at.
    pub(crate) fn watch(&'static self, flight: Arc<Flight>) {
        self.watched.call(flight);
    }

    /// Queues a flight whose callbacks are to run.
    pub(crate) fn tell(&'static self, flight: Arc<Flight>) {
        self.told.call(flight);
    }
}

/// Flights that wait for a thread.
struct FlightQueue {
    name: &'static str,
    serve: fn(&Arc<Flight>),
    queue: Mutex<QueueState>,
    signal: Condvar,
}

#[derive(Default)]
struct QueueState {
    flights: VecDeque<Arc<Flight>>,
    has_thread: bool,
}

impl FlightQueue {
    fn new(name: &'static str, serve: fn(&Arc<Flight>)) -> Self {
        Self { name, serve, queue: Mutex::default(), signal: Condvar::new() }
    }

    fn call(&'static self, flight: Arc<Flight>) {
        let mut queue = lock(&self.queue);
        if !queue.has_thread {
            let thread = threads::spawn(self.name, || self.run());
            queue.has_thread = thread.is_ok();
        }
        if !queue.has_thread {
            // Without a thread of ours the calling thread serves.
            drop(queue);
            return (self.serve)(&flight);
        }
        queue.flights.push_back(flight);
        drop(queue);
        self.signal.notify_one();
    }

    fn run(&self) {
        loop {
            let mut queue = lock(&self.queue);
            while queue.flights.is_empty() {
                queue = self.signal.wait(queue).unwrap_or_else(PoisonError::into_inner);
            }
            let flight = queue.flights.pop_front();
            drop(queue);
            if let Some(flight) = flight {
                (self.serve)(&flight);
            }
        }
    }
}

/// Waits until no transfer is in flight, and lets none start: called when the interpreter ends.
#[pyfunction]
#[pyo3(name = "_drain")]
pub(crate) fn drain(py: Python<'_>) -> PyResult<()> {
    let here = Flights::here();
    here.is_closing.store(true, Ordering::SeqCst);
    wait::patiently(py, None, |limit| {
        let guard = lock(&here.drained.0);
        let busy = |(): &mut ()| here.count.load(Ordering::SeqCst) > 0;
        drop(here.drained.1.wait_timeout_while(guard, limit, busy));
        here.count.load(Ordering::SeqCst) == 0
    })
    .map(|_| ())
}
