//! Streams that wait for a transfer, and driver calls that wait for all streams: never both at once.
//!
//! Unregistering memory, freeing it and loading kernels wait until the device has done all that it has to do, and hold up
//! other calls meanwhile (measured with driver 580). A user's stream that waits at a [`Gate`](crate::gate::Gate) is never
//! done before the transfer is: so nothing of that kind is begun while a gate is closed, and no gate is closed
//! while something of that kind is under way.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::process::process;

#[derive(Debug, Default)]
struct State {
    /// Gates that streams wait at.
    gates: usize,
    /// Calls that wait for all streams.
    drains: usize,
}

/// The traffic of the process.
#[derive(Debug, Default)]
pub(crate) struct Traffic {
    state: Mutex<State>,
    changed: Condvar,
}

fn state() -> MutexGuard<'static, State> {
    process().traffic.state.lock().unwrap_or_else(PoisonError::into_inner)
}

fn changed() -> &'static Condvar {
    &process().traffic.changed
}

/// A stream waits, or is about to.
#[derive(Debug)]
pub(crate) struct Waiting(());

/// A call that waits for all streams is under way.
#[derive(Debug)]
pub(crate) struct Draining(());

/// For a gate, before it is closed.
pub(crate) fn wait() -> Waiting {
    let mut state =
        changed().wait_while(state(), |state| state.drains > 0).unwrap_or_else(PoisonError::into_inner);
    state.gates += 1;
    Waiting(())
}

/// For a call that waits for all streams. `None` if some stream waits for longer than `limit`.
pub(crate) fn drain(limit: Duration) -> Option<Draining> {
    let waited = changed().wait_timeout_while(state(), limit, |state| state.gates > 0);
    let (mut state, _) = waited.unwrap_or_else(PoisonError::into_inner);
    if state.gates > 0 {
        return None;
    }
    state.drains += 1;
    Some(Draining(()))
}

impl Drop for Waiting {
    fn drop(&mut self) {
        state().gates -= 1;
        changed().notify_all();
    }
}

impl Drop for Draining {
    fn drop(&mut self) {
        state().drains -= 1;
        changed().notify_all();
    }
}

/// Carries out a call that waits for all streams: at once if none waits for a transfer, otherwise on a thread of its own
/// when that is over.
pub(crate) fn when_clear(call: impl FnOnce() + Send + 'static) {
    if let Some(draining) = drain(Duration::ZERO) {
        call();
        return drop(draining);
    }
    let later = move || {
        let draining = loop {
            if let Some(draining) = drain(Duration::from_hours(1)) {
                break draining;
            }
        };
        call();
        drop(draining);
    };
    // Without a thread the call is dropped unmade: memory stays pinned as long as the process.
    let _ = std::thread::Builder::new().name("forebay-later".to_owned()).spawn(later);
}
