//! Transfers of a submission whose ticket somebody holds: resolved when the stream is through, or can never get there.

use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use forebay_error::{Error, Result};
use forebay_gpu::Event;

use super::stream_state::Track;
use crate::request::receipt::Moved;
use crate::request::ticket::Completion;

/// Where a transfer's result waits until its stream is through.
pub(crate) struct Landing {
    completion: Arc<Completion>,
    entry: u32,
    state: Mutex<State>,
    place: OnceLock<Place>,
}

enum State {
    Waiting,
    Told(Result<u64>, Moved),
    Over,
}

/// The stream, the number that it reaches when it is through, and what knows whether its context still works.
pub(super) struct Place {
    pub(super) track: Arc<Track>,
    pub(super) last: u32,
    pub(super) health: Arc<dyn Event>,
}

impl Landing {
    /// For entry number `entry`, which is one work of the completion.
    pub(crate) fn new(completion: Arc<Completion>, entry: u32) -> Arc<Self> {
        Arc::new(Self { completion, entry, state: Mutex::new(State::Waiting), place: OnceLock::new() })
    }

    pub(super) fn put(&self, place: Place) {
        let _ = self.place.set(place);
    }

    fn swap(&self, to: State, when: impl FnOnce(&State) -> bool) -> Option<State> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        when(&state).then(|| std::mem::replace(&mut *state, to))
    }

    /// The result is known; the stream has still to copy the bytes, or to go on.
    pub(super) fn told(&self, result: Result<u64>, moved: Moved) {
        self.swap(State::Told(result, moved), |state| matches!(state, State::Waiting));
    }

    /// The stream is through.
    pub(super) fn landed(&self) {
        let told = self.swap(State::Over, |state| matches!(state, State::Told(..)));
        let Some(State::Told(result, moved)) = told else { return };
        match result {
            Ok(bytes) => self.completion.cut(self.entry, bytes),
            Err(error) => self.completion.fail(self.entry, 0, error),
        }
        self.completion.work_done(moved);
    }

    /// It never will be.
    pub(crate) fn refuse(&self, error: Error) {
        if self.swap(State::Over, |state| !matches!(state, State::Over)).is_some() {
            self.completion.fail(self.entry, 0, error);
            self.completion.work_done(Moved::default());
        }
    }

    /// For whoever waits: resolves what can be resolved.
    pub(crate) fn look(&self) {
        let Some(place) = self.place.get() else { return };
        if place.track.is_past(place.last) {
            self.landed();
        } else if let Err(error) = place.health.is_done() {
            place.track.kill();
            self.refuse(error.hint("earlier work on the stream failed: look there first"));
        }
    }
}
