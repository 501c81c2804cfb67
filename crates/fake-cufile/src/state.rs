//! The state of the fake: its options, files and counts.

use std::collections::{HashMap, HashSet};
use std::ffi::c_int;
use std::sync::{Condvar, Mutex, MutexGuard, OnceLock, PoisonError};

/// Reads that took each way, and calls by name.
#[derive(Default)]
pub(crate) struct State {
    pub(crate) words: String,
    pub(crate) users: usize,
    /// Descriptors by handle.
    pub(crate) files: HashMap<usize, c_int>,
    pub(crate) descriptors: HashSet<c_int>,
    pub(crate) next: usize,
    pub(crate) statistics: c_int,
    pub(crate) reads: u64,
    pub(crate) calls: HashMap<&'static str, u64>,
    /// Calls made on a thread without a CUDA context.
    pub(crate) without_context: u64,
    /// Calls that hang now.
    pub(crate) hanging: u64,
    /// Raised to let those that hang go on.
    pub(crate) releases: u64,
}

static CHANGED: Condvar = Condvar::new();

fn shared() -> &'static Mutex<State> {
    static STATE: OnceLock<Mutex<State>> = OnceLock::new();
    STATE.get_or_init(|| {
        let words = std::env::var("FAKE_CUFILE").unwrap_or_default();
        Mutex::new(State { words, ..State::default() })
    })
}

pub(crate) fn state() -> MutexGuard<'static, State> {
    shared().lock().unwrap_or_else(PoisonError::into_inner)
}

/// Does not return until it is released.
pub(crate) fn hang() {
    let mut state = state();
    let before = state.releases;
    state.hanging += 1;
    while state.releases == before {
        state = CHANGED.wait(state).unwrap_or_else(PoisonError::into_inner);
    }
    state.hanging -= 1;
}

pub(crate) fn release() {
    state().releases += 1;
    CHANGED.notify_all();
}

impl State {
    /// Whether a word is set.
    pub(crate) fn has(&self, word: &str) -> bool {
        self.words.split(',').any(|other| other.trim() == word)
    }

    /// The number of a word that has one.
    pub(crate) fn number(&self, word: &str) -> Option<c_int> {
        self.words
            .split(',')
            .find_map(|other| other.trim().strip_prefix(word)?.strip_prefix('=')?.parse().ok())
    }

    pub(crate) fn count(&mut self, call: &'static str) {
        *self.calls.entry(call).or_default() += 1;
    }
}
