//! All flights of a process, and the two threads that look after them.

use std::collections::VecDeque;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use pyo3::prelude::*;

use crate::data_files::OpenFiles;
use crate::future::Flight;
use crate::wait;
use forebay_engine::threads;

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Nothing panics while it holds one; if it did, what it guards would still be whole.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What one process has in flight. A forked child has none of its parent's threads, and locks that they may have held:
/// it begins with a new one.
pub(crate) struct Flights {
    process: u32,
    /// Those to look at: never runs Python's code, which may wait for others to be looked at.
    watched: Line,
    /// Those that landed, whose memory is let go and whose callbacks are called.
    told: Line,
    /// What its data sets have open.
    pub(crate) files: OpenFiles,
    count: AtomicUsize,
    is_closing: AtomicBool,
    drained: (Mutex<()>, Condvar),
}

static HERE: AtomicPtr<Flights> = AtomicPtr::new(ptr::null_mut());

impl Flights {
    /// This process's.
    pub(crate) fn here() -> &'static Self {
        let known = HERE.load(Ordering::Acquire);
        // SAFETY: what is stored there was leaked, so it lives for ever.
        match unsafe { known.as_ref() } {
            Some(flights) if flights.is_here() => return flights,
            _ => {}
        }
        let new = Box::into_raw(Box::new(Self {
            process: std::process::id(),
            watched: Line::new("forebay-python", Flight::look),
            told: Line::new("forebay-told", Flight::tell),
            files: OpenFiles::default(),
            count: AtomicUsize::new(0),
            is_closing: AtomicBool::new(false),
            drained: (Mutex::new(()), Condvar::new()),
        }));
        match HERE.compare_exchange(known, new, Ordering::AcqRel, Ordering::Acquire) {
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

    /// Whether they are this process's, not those of the process that it was forked from.
    pub(crate) fn is_here(&self) -> bool {
        self.process == std::process::id()
    }

    /// One more, which [`Flights::arrive`] ends; false if none may start any more.
    pub(crate) fn depart(&self) -> bool {
        // Count first: a thread that closes either sees the count, or this thread sees `is_closing`.
        self.count.fetch_add(1, Ordering::SeqCst);
        let is_open = !self.is_closing.load(Ordering::SeqCst);
        if !is_open {
            self.arrive();
        }
        is_open
    }

    pub(crate) fn arrive(&self) {
        if self.count.fetch_sub(1, Ordering::SeqCst) == 1 {
            let _guard = lock(&self.drained.0);
            self.drained.1.notify_all();
        }
    }

    /// Has a flight looked at soon.
    pub(crate) fn watch(&'static self, flight: Arc<Flight>) {
        self.watched.call(flight);
    }

    /// Has a flight's end told soon.
    pub(crate) fn tell(&'static self, flight: Arc<Flight>) {
        self.told.call(flight);
    }
}

/// Flights that wait for a thread.
struct Line {
    name: &'static str,
    serve: fn(&Arc<Flight>),
    queue: Mutex<Queue>,
    signal: Condvar,
}

#[derive(Default)]
struct Queue {
    flights: VecDeque<Arc<Flight>>,
    has_thread: bool,
}

impl Line {
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
