//! Waiting with the GIL released, and with an eye on Ctrl-C.

use std::time::{Duration, Instant};

use pyo3::prelude::*;

/// How often a waiter looks for signals.
pub(crate) const LOOK: Duration = Duration::from_millis(50);

/// Calls `step` without the GIL, each time for at most the given while, until it says true or `limit` is over. False if
/// it never did. An exception of a signal handler ends the wait.
pub(crate) fn patiently(
    py: Python<'_>,
    limit: Option<Duration>,
    step: impl Fn(Duration) -> bool + Sync,
) -> PyResult<bool> {
    let deadline = limit.and_then(|limit| Instant::now().checked_add(limit));
    loop {
        let left = deadline.map_or(LOOK, |deadline| deadline.saturating_duration_since(Instant::now()));
        if py.detach(|| step(left.min(LOOK))) {
            return Ok(true);
        }
        py.check_signals()?;
        if left.is_zero() {
            return Ok(false);
        }
    }
}
