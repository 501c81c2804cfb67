//! What all calls to an endpoint share beside its connections: how many ranges are under way, pauses that the server asks for, and the
//! clock by which something goes on later.

mod budget;
mod clock;
mod durations;
mod turns;

use std::sync::Arc;
use std::time::Instant;

#[doc(hidden)]
pub use budget::give_up_after;
pub(crate) use budget::{Budget, DEADLINE, deadline};
pub(crate) use clock::go_on_at;
pub(crate) use durations::Durations;
pub(crate) use turns::{MOST_RANGES, Turns, UnderWay};

/// What waits for a turn, or for a time.
pub(crate) trait Paced: Send + Sync {
    /// It may go on: it has a turn, or the clock has this time, for which it was put there. Must not wait.
    fn go_on(self: Arc<Self>, time: Option<Instant>);
}
