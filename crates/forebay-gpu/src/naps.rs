//! Short sleeps that end when they should.

use std::ffi::c_int;
use std::marker::PhantomData;
use std::time::Duration;

/// The timer slack of a thread that naps, in nanoseconds.
const SLACK: c_int = 1;

/// While this lives, short sleeps of the calling thread end on time: its timer slack (50 µs, as a rule), which would make
/// them long, is put aside. Dropping it puts the slack back.
#[derive(Debug)]
pub struct Naps {
    /// What the thread had; `None` if it had no more than we need.
    before: Option<c_int>,
    /// Bound to the thread whose slack it is.
    _thread: PhantomData<*const ()>,
}

impl Naps {
    /// Puts the thread's slack aside.
    #[must_use]
    pub fn start() -> Self {
        // SAFETY: no pointers are passed; the slack is the thread's own.
        let before = unsafe { libc::prctl(libc::PR_GET_TIMERSLACK, 0, 0, 0, 0) };
        // An unknown value cannot be restored.
        let before = (before > SLACK).then_some(before);
        if before.is_some() {
            set(SLACK);
        }
        Self { before, _thread: PhantomData }
    }

    /// Sleeps.
    pub fn sleep(&self, length: Duration) {
        std::thread::sleep(length);
    }
}

impl Drop for Naps {
    fn drop(&mut self) {
        if let Some(before) = self.before {
            set(before);
        }
    }
}

fn set(slack: c_int) {
    // SAFETY: no pointers are passed; the slack is the thread's own.
    unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, slack, 0, 0, 0) };
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slack() -> c_int {
        // SAFETY: no pointers are passed.
        unsafe { libc::prctl(libc::PR_GET_TIMERSLACK, 0, 0, 0, 0) }
    }

    #[test]
    fn the_slack_is_put_aside_and_back() {
        set(40_000);
        let outer = Naps::start();
        assert_eq!(slack(), SLACK);
        drop(Naps::start());
        assert_eq!(slack(), SLACK, "the inner one found nothing to put aside");
        drop(outer);
        assert_eq!(slack(), 40_000);
    }
}
