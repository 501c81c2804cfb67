//! Streams that wait for a transfer, and driver calls that wait for all streams.
//!
//! Unregistering memory, freeing it and loading kernels wait until the device is idle, and hold up other calls meanwhile
//! (measured with driver 580). In [`stream_order`](crate::stream_order) streams wait for the CPU alone, so such a call ends, but
//! as late as the streams do. So none begins while operations are queued, up to a limit. Queueing never waits.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use crate::runtime::lock;
use crate::runtime::process::PerProcess;
use crate::tuning::machine::{LONG_NAP, PATIENCE};

/// The traffic of the process.
#[derive(Debug, Default)]
pub(crate) struct Traffic {
    /// Operations that are queued on streams.
    queued: AtomicUsize,
    /// When a call first found some queued, since none were.
    busy: Mutex<Option<Instant>>,
}

// SAFETY: no other kind has the name.
unsafe impl PerProcess for Traffic {
    const NAME: &'static str = "traffic";
}

fn traffic() -> &'static Traffic {
    Traffic::of_process()
}

/// Counts a queued operation as long as it lives.
#[derive(Debug)]
pub(crate) struct QueuedOperation(());

/// Counts an operation, before it is queued.
pub(crate) fn queue() -> QueuedOperation {
    traffic().queued.fetch_add(1, Ordering::SeqCst);
    QueuedOperation(())
}

impl Drop for QueuedOperation {
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

/// Waits at most `limit` until a call that waits for all streams should be made. Returns whether it should.
pub(crate) fn is_clear_within(limit: Duration) -> bool {
    let begun = Instant::now();
    while !is_clear() {
        if begun.elapsed() >= limit {
            return false;
        }
        std::thread::sleep(LONG_NAP);
    }
    true
}

/// Makes a call that waits for all streams: at once if nothing is queued, otherwise later on a thread of its own.
pub(crate) fn when_clear(call: impl FnOnce() + Send + 'static) {
    if is_clear_within(Duration::ZERO) {
        return call();
    }
    let later = move || {
        while !is_clear_within(PATIENCE) {}
        call();
    };
    // Without a thread the call is never made: memory stays pinned as long as the process.
    let _ = forebay_sys::threads::spawn("forebay-later", later);
}
