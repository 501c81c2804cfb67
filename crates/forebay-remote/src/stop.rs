//! The end of all waiting for servers.

use std::cell::Cell;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use forebay_error::{Error, ErrorKind, Result};

/// Waits look at least this often whether they are to stop.
pub const SLICE: Duration = Duration::from_millis(100);

/// Whether nobody is to wait for servers any more.
static STOPPED: AtomicBool = AtomicBool::new(false);

thread_local! {
    /// Until when this thread waits nevertheless.
    static PATIENT_UNTIL: Cell<Option<Instant>> = const { Cell::new(None) };
}

/// Has all that waits for a server, in this process, end with an error soon, and later calls at once; `false` takes it
/// back. A handler of a signal may call it.
pub fn stop_waiting(stop: bool) {
    STOPPED.store(stop, Relaxed);
}

/// Whether waiting is to stop.
pub fn is_stopped() -> bool {
    STOPPED.load(Relaxed) && PATIENT_UNTIL.get().is_none_or(|until| Instant::now() >= until)
}

/// Cleans up at a server: this thread waits for it that long even where waiting is to stop.
pub fn patiently<T>(patience: Duration, clean_up: impl FnOnce() -> T) -> T {
    struct Before(Option<Instant>);
    impl Drop for Before {
        fn drop(&mut self) {
            PATIENT_UNTIL.set(self.0);
        }
    }
    let _before = Before(PATIENT_UNTIL.replace(Some(Instant::now() + patience)));
    clean_up()
}

/// Until when this thread waits even where waiting is to stop: for threads that wait for it.
pub fn patient_until() -> Option<Instant> {
    PATIENT_UNTIL.get()
}

/// What waiting ends with when it is to stop.
pub fn stopped() -> Error {
    Error::new(ErrorKind::Cancelled, "interrupted while waiting for the server")
}

/// Sleeps; an error if waiting is to stop.
pub fn sleep(time: Duration) -> Result<()> {
    let until = Instant::now() + time;
    loop {
        if is_stopped() {
            return Err(stopped());
        }
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Ok(());
        }
        std::thread::sleep(left.min(SLICE));
    }
}
