//! The threads of a device's lanes: how they start, and what they tell of it.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, OnceLock, PoisonError};
use std::thread::JoinHandle;

use forebay_error::{Error, Result};
use forebay_sys::threads;

use super::slots::LanePart;
use super::width::Heard;
use super::worker::Lane;
use super::{LaneShared, LaneStarted, StartReport};
use crate::io::wake::WorkerWake;
use crate::request::receipt::Note;
use crate::runtime::lock::lock;

/// Lanes start when there is work for them.
pub(super) struct LaneThreads {
    /// As many as there may be.
    wakes: Box<[OnceLock<Arc<WorkerWake>>]>,
    /// Lanes that have begun: those of the lowest numbers.
    begun: AtomicUsize,
    /// Those that work, or failed to start.
    reported: AtomicUsize,
    handles: Mutex<Handles>,
    state: Mutex<State>,
    told: Condvar,
}

#[derive(Default)]
struct Handles {
    threads: Vec<JoinHandle<()>>,
    is_stopped: bool,
}

/// What lanes have told.
#[derive(Default)]
struct State {
    /// Whether the first lane has a ring, or why there is no first lane.
    first: Option<Result<bool>>,
    /// Lanes that work without a ring.
    ringless: usize,
    /// Why a lane did not start.
    failed: Option<Error>,
    notes: Vec<Note>,
}

impl State {
    fn add(&mut self, note: Note) {
        if !self.notes.contains(&note) {
            self.notes.push(note);
        }
    }
}

impl LaneThreads {
    pub(super) fn new(most: usize) -> Self {
        Self {
            wakes: (0..most).map(|_| OnceLock::new()).collect(),
            begun: AtomicUsize::new(0),
            reported: AtomicUsize::new(0),
            handles: Mutex::default(),
            state: Mutex::default(),
            told: Condvar::new(),
        }
    }

    /// Lanes that work or failed to start.
    pub(super) fn reported(&self) -> usize {
        self.reported.load(Ordering::Acquire)
    }

    /// How to wake the first `count` lanes, as far as they have begun.
    pub(super) fn wakes(&self, count: usize) -> impl Iterator<Item = &Arc<WorkerWake>> {
        self.wakes.iter().take(count).map_while(OnceLock::get)
    }

    pub(super) fn report(&self, index: usize, told: Result<LaneStarted>) {
        let mut state = lock(&self.state);
        if index == 0 {
            state.first = Some(told.as_ref().map(|started| started.ring).map_err(Error::clone));
        }
        let notes = match told {
            Ok(started) => {
                state.ringless += usize::from(!started.ring);
                started.notes
            }
            Err(error) => {
                let hint = error.hints().first().cloned();
                let note = Note { text: format!("a lane did not start: {error}"), hint };
                state.failed.get_or_insert(error);
                vec![note]
            }
        };
        for note in notes {
            state.add(note);
        }
        self.reported.fetch_add(1, Ordering::AcqRel);
        drop(state);
        self.told.notify_all();
    }

    /// Adds a note after the start.
    pub(super) fn note(&self, note: Note) {
        lock(&self.state).add(note);
    }

    /// What is found in the state, once it is there.
    fn once<T>(&self, find: impl Fn(&Self, &State) -> Option<T>) -> T {
        let mut state = lock(&self.state);
        loop {
            if let Some(found) = find(self, &state) {
                return found;
            }
            state = self.told.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Whether the first lane has a ring. It has begun.
    pub(super) fn first(&self) -> Result<bool> {
        self.once(|_, state| state.first.clone())
    }

    /// Waits for all lanes that have begun. Whether all have rings, or why one did not start.
    pub(super) fn all(&self) -> Result<bool> {
        self.once(|this, state| {
            let error = state.failed.clone();
            let is_all = this.reported() >= this.begun.load(Ordering::SeqCst);
            is_all.then(|| error.map_or(Ok(state.ringless == 0), Err))
        })
    }

    /// What held back the lanes that have started, and a number that grows with those and with notes.
    pub(super) fn notes(&self) -> (Vec<Note>, usize) {
        let notes = lock(&self.state).notes.clone();
        let count = notes.len() + self.reported();
        (notes, count)
    }

    /// Ends all lanes. The stop has been announced.
    pub(super) fn end(&self, waits: bool) {
        let mut handles = lock(&self.handles);
        handles.is_stopped = true;
        let threads = std::mem::take(&mut handles.threads);
        drop(handles);
        for wake in self.wakes(self.wakes.len()) {
            wake.wake_always();
        }
        for thread in threads.into_iter().filter(|_| waits) {
            // A lane that panicked has failed its works already; there is nothing left to tell.
            let _ = thread.join();
        }
    }
}

impl LaneShared {
    /// Starts lanes until there are `count`, all at once. They may not work yet when this returns.
    #[inline]
    pub(super) fn begin(self: &Arc<Self>, count: usize) -> Result<()> {
        let has_enough = self.threads.begun.load(Ordering::Acquire) >= count;
        if has_enough { Ok(()) } else { self.begin_more(count) }
    }

    #[cold]
    fn begin_more(self: &Arc<Self>, count: usize) -> Result<()> {
        let mut handles = lock(&self.threads.handles);
        let begun = self.threads.begun.load(Ordering::Acquire);
        let count = count.min(self.threads.wakes.len());
        if handles.is_stopped || begun >= count {
            return Ok(());
        }
        let memory = LanePart::first(&self.device, count - begun, self.config.slot_size)?;
        for (index, memory) in (begun..count).zip(memory) {
            let wake = Arc::new(WorkerWake::new()?);
            let wake = self.threads.wakes[index].get_or_init(|| wake).clone();
            let report = StartReport { shared: self.clone(), index, told: false };
            let shared = self.clone();
            let name = format!("forebay-{}-{index}", self.device.info().index);
            let body = move || Lane::main(index, shared, memory, &wake, report);
            let thread =
                threads::spawn(name, body).map_err(|error| Error::from_io(&error, "cannot start a lane"))?;
            handles.threads.push(thread);
            self.threads.begun.store(index + 1, Ordering::Release);
        }
        Ok(())
    }

    /// Lanes begin and look for work as a search asks. What it ends with is kept.
    pub(super) fn follow(self: &Arc<Self>, heard: Heard) {
        let (Heard::Trying(width) | Heard::Found(width)) = heard;
        // Fewer lanes are enough, too.
        let _ = self.begin(width);
        for wake in self.threads.wakes(width) {
            wake.wake();
        }
        if heard == Heard::Found(width) {
            self.keep();
        }
    }
}
