//! The threads of a device's lanes: how they start, and what they tell of it.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, OnceLock, PoisonError};
use std::thread::JoinHandle;

use forebay_error::{Error, Result};

use super::slots::LanePart;
use crate::io::wake::WorkerWake;
use crate::request::receipt::Note;
use crate::runtime::lock;

/// What a lane tells after its start.
pub(super) struct LaneStarted {
    pub(super) ring: bool,
    pub(super) notes: Vec<Note>,
}

/// Lanes start when there is work for them.
pub(super) struct LaneThreads {
    /// As many as there may be.
    wakes: Box<[OnceLock<Arc<WorkerWake>>]>,
    /// Those that take works, or are about to for the first time.
    living: Box<[AtomicBool]>,
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
            living: (0..most).map(|_| AtomicBool::new(false)).collect(),
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

    /// A lane takes works, perhaps in place of one that died.
    pub(super) fn lives(&self, index: usize) {
        self.living[index].store(true, Ordering::SeqCst);
    }

    /// A lane takes no works any more.
    pub(super) fn is_gone(&self, index: usize) {
        self.living[index].store(false, Ordering::SeqCst);
    }

    /// Whether any of the first `count` lanes takes works.
    pub(super) fn any_lives(&self, count: usize) -> bool {
        self.living.iter().take(count).any(|lives| lives.load(Ordering::SeqCst))
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

    /// The entry in the state, once it exists.
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

    /// Whether `count` lanes have begun.
    #[inline]
    pub(super) fn has_begun(&self, count: usize) -> bool {
        self.begun.load(Ordering::Acquire) >= count.min(self.wakes.len())
    }

    /// Starts lanes until there are `count`: `parts` makes the memory of those that are missing, `spawn` a thread.
    pub(super) fn begin(
        &self,
        count: usize,
        parts: impl FnOnce(usize) -> Result<Vec<LanePart>>,
        spawn: impl Fn(usize, LanePart, Arc<WorkerWake>) -> Result<JoinHandle<()>>,
    ) -> Result<()> {
        let mut handles = lock(&self.handles);
        let begun = self.begun.load(Ordering::Acquire);
        let count = count.min(self.wakes.len());
        if handles.is_stopped || begun >= count {
            return Ok(());
        }
        for (index, memory) in (begun..count).zip(parts(count - begun)?) {
            let wake = Arc::new(WorkerWake::new()?);
            let wake = self.wakes[index].get_or_init(|| wake).clone();
            self.lives(index);
            handles.threads.push(spawn(index, memory, wake)?);
            self.begun.store(index + 1, Ordering::Release);
        }
        Ok(())
    }

    /// Ends all lanes. The stop has been announced. A lane that does this, as the last owner, waits for none.
    pub(super) fn end(&self, waits: bool) {
        let mut handles = lock(&self.handles);
        handles.is_stopped = true;
        // Otherwise the last owner waits for them: their memory is unpinned before it goes on.
        let threads = if waits { std::mem::take(&mut handles.threads) } else { Vec::new() };
        drop(handles);
        for wake in self.wakes(self.wakes.len()) {
            wake.wake_always();
        }
        let here = std::thread::current().id();
        if threads.iter().any(|thread| thread.thread().id() == here) {
            return;
        }
        for thread in threads {
            // A lane that panicked has failed its works already; there is nothing left to tell.
            let _ = thread.join();
        }
    }
}
