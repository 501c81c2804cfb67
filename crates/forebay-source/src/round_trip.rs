//! Round trips to servers: sources report each to the counters of the process.

use std::sync::OnceLock;
use std::time::Duration;

/// Counts a round trip that took so long.
type Count = Box<dyn Fn(Duration) + Send + Sync>;

static COUNT: OnceLock<Count> = OnceLock::new();

/// From now on round trips are counted by this function, which is called on the threads of sources and must not wait. The first
/// one stays.
pub fn count_round_trips(count: impl Fn(Duration) + Send + Sync + 'static) {
    let _ = COUNT.set(Box::new(count));
}

/// A source calls this when a server has answered a call: `took` is the time since it was sent.
#[inline]
pub fn round_trip(took: Duration) {
    if let Some(count) = COUNT.get() {
        count(took);
    }
}
