//! Streams that wait for a transfer, and driver calls that wait for all streams.
//!
//! Unregistering memory, freeing it and loading kernels wait until the device has done all that it has to do, and hold up
//! other calls meanwhile (measured with driver 580). What a user's stream waits for at a [`Courier`](crate::stream_order) is
//! CPU work alone, so such a call ends in any case; but it takes as long as the streams do. So none is begun while
//! operations are queued, for as long as that is bearable. Queueing never waits.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use crate::runtime::lock::lock;
use crate::runtime::process::PerProcess;

/// A program that always has something queued is not considered for longer.
const PATIENCE: Duration = Duration::from_secs(10);
/// How long to sleep between looks.
const LOOK: Duration = Duration::from_millis(2);

/// The traffic of the process.
#[derive(Debug, Default)]
pub(crate) struct Traffic {
    /// Operations that are queued on streams.
    queued: AtomicUsize,
    /// Since when no call found none of them.
    busy: Mutex<Option<Instant>>,
}

impl PerProcess for Traffic {
    const NAME: &'static str = "traffic";
}

fn traffic() -> &'static Traffic {
    Traffic::of_process()
}

/// An operation is queued on a stream.
#[derive(Debug)]
pub(crate) struct Queued(());

/// For an operation, before it is queued.
pub(crate) fn queue() -> Queued {
    traffic().queued.fetch_add(1, Ordering::SeqCst);
    Queued(())
}

impl Drop for Queued {
    fn drop(&mut self) {
        traffic().queued.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Whether operations are queued on streams.
pub(crate) fn is_queued() -> bool {
    traffic().queued.load(Ordering::SeqCst) > 0
}

/// Whether a call that waits for all streams should be made now.
fn is_clear() -> bool {
    let mut busy = lock(&traffic().busy);
    if traffic().queued.load(Ordering::SeqCst) == 0 {
        *busy = None;
        return true;
    }
    busy.get_or_insert_with(Instant::now).elapsed() > PATIENCE
}

/// Waits until a call that waits for all streams should be made, at most `limit`; whether it should.
pub(crate) fn is_clear_within(limit: Duration) -> bool {
    let begun = Instant::now();
    while !is_clear() {
        if begun.elapsed() >= limit {
            return false;
        }
        std::thread::sleep(LOOK);
    }
    true
}

/// Carries out a call that waits for all streams: at once if nothing is queued, otherwise on a thread of its own when
/// that is over.
pub(crate) fn when_clear(call: impl FnOnce() + Send + 'static) {
    if is_clear_within(Duration::ZERO) {
        return call();
    }
    let later = move || {
        while !is_clear_within(PATIENCE) {}
        call();
    };
    // Without a thread the call is dropped unmade: memory stays pinned as long as the process.
    let _ = crate::runtime::threads::spawn("forebay-later", later);
}
