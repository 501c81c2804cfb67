//! How ranges are cut, and how long they wait: each value with its reason.

use std::time::Duration;

/// Bytes of a range: stores answer 8 to 16 MiB best. Below, the time of a round trip shows; above, few connections share the bytes.
pub(crate) const RANGE: u64 = 8 << 20;
/// A range takes the rest with it up to here, in place of a further one of few bytes.
pub(crate) const LONGEST: u64 = 12 << 20;
/// Bytes behind the last request that are asked for where one transfer follows another: the server sends while the reader is between
/// them.
pub(crate) const READ_AHEAD: u64 = 16 << 20;
/// Bytes between two requests that are received and thrown away: a request of its own costs a store some milliseconds of latency.
pub(crate) const GAP: u64 = 128 << 10;
/// How long the first request of a burst waits for its neighbours: a lane starts 32 of them within it.
pub(crate) const BURST: Duration = Duration::from_micros(50);
/// How long requests wait in a range for one that comes before them in it, since anything of the object moved. Lanes start works in
/// order, but one may wait for a slot that is still copied.
pub(crate) const OUT_OF_ORDER: Duration = Duration::from_millis(200);
/// The longest such wait, where the object's other requests move: those that were promised may have been cancelled.
pub(crate) const LONGEST_OUT_OF_ORDER: Duration = Duration::from_secs(2);
/// How long a range waits for requests that were promised, since the last request of its object.
pub(crate) const PROMISED: Duration = Duration::from_secs(2);
/// The longest such wait, where other requests of the object go on: a transfer that was cancelled promised them.
pub(crate) const LONGEST_PROMISED: Duration = Duration::from_secs(10);
/// Bytes between two requests, and bodies of errors, are received here.
pub(crate) const SCRATCH: usize = 64 << 10;
