//! Transfers that belong to a ticket: resolved when the stream has passed them, or can never do so.

use std::sync::{Arc, Mutex, OnceLock};

use forebay_error::Error;
use forebay_gpu::Event;

use super::file_work::ChunkEnd;
use super::stream_state::StreamState;
use crate::request::completion::Completion;
use crate::request::receipt::Moved;
use crate::runtime::lock;

/// Keeps a transfer's result until its stream has passed it.
pub(crate) struct OperationEnd {
    completion: Arc<Completion>,
    entry: u32,
    state: Mutex<EndState>,
    place: OnceLock<StreamPlace>,
}

enum EndState {
    Waiting,
    Known(ChunkEnd, Moved),
    Over,
}

/// The stream, the number that it reaches after the transfer, and an event that tells whether its context still works.
pub(super) struct StreamPlace {
    pub(super) stream: Arc<StreamState>,
    pub(super) last: u32,
    pub(super) health: Arc<dyn Event>,
}

impl OperationEnd {
    /// For entry number `entry`, which is one work of the completion.
    pub(crate) fn new(completion: Arc<Completion>, entry: u32) -> Arc<Self> {
        Arc::new(Self { completion, entry, state: Mutex::new(EndState::Waiting), place: OnceLock::new() })
    }

    pub(super) fn set_place(&self, place: StreamPlace) {
        let _ = self.place.set(place);
    }

    fn swap(&self, to: EndState, when: impl FnOnce(&EndState) -> bool) -> Option<EndState> {
        let mut state = lock(&self.state);
        when(&state).then(|| std::mem::replace(&mut *state, to))
    }

    /// The result is known; the stream has still to copy the bytes, or to go on.
    pub(super) fn result_known(&self, end: ChunkEnd, moved: Moved) {
        self.swap(EndState::Known(end, moved), |state| matches!(state, EndState::Waiting));
    }

    /// The stream has passed the transfer.
    pub(super) fn stream_done(&self) {
        let known = self.swap(EndState::Over, |state| matches!(state, EndState::Known(..)));
        let Some(EndState::Known((good, error), moved)) = known else { return };
        match error {
            None => self.completion.cut(self.entry, good),
            Some(error) => self.completion.fail(self.entry, good, error),
        }
        self.completion.work_done(moved);
    }

    /// The stream never will.
    pub(crate) fn refuse(&self, error: Error) {
        if self.swap(EndState::Over, |state| !matches!(state, EndState::Over)).is_some() {
            self.completion.fail(self.entry, 0, error);
            self.completion.work_done(Moved::default());
        }
    }

    /// Resolves the transfer if it can be resolved now. Called by threads that wait for the ticket.
    pub(crate) fn check(&self) {
        let Some(place) = self.place.get() else { return };
        if place.stream.is_past(place.last) {
            self.stream_done();
        } else if let Err(error) = place.health.is_done() {
            place.stream.kill();
            self.refuse(error.hint("earlier work on the stream failed: look there first"));
        }
    }
}
