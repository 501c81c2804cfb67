//! Failing, and hanging, on command.

use std::ffi::c_int;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Calls that hang, and how often all were released.
static HANGING: Mutex<(u64, u64)> = Mutex::new((0, 0));
static LET_GO: Condvar = Condvar::new();

fn hanging_calls() -> MutexGuard<'static, (u64, u64)> {
    HANGING.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Hangs that long, or until [`let_go`].
pub(crate) fn hang(time: Duration) {
    let mut calls = hanging_calls();
    calls.0 += 1;
    let turn = calls.1;
    let waited = LET_GO.wait_timeout_while(calls, time, |calls| calls.1 == turn);
    waited.unwrap_or_else(PoisonError::into_inner).0.0 -= 1;
}

/// How many calls hang now.
pub(crate) fn hanging() -> u64 {
    hanging_calls().0
}

/// Lets all that hang go on.
pub(crate) fn let_go() {
    hanging_calls().1 += 1;
    LET_GO.notify_all();
}

/// "The call after the next `after` ones fails with `code`, and so do `times - 1` more" (0: all of them).
#[derive(Clone, Debug)]
pub(crate) struct DriverFault {
    pub(crate) name: String,
    pub(crate) code: c_int,
    pub(crate) after: u64,
    pub(crate) times: u64,
}

impl DriverFault {
    /// Reads `name:code[@after=N][@times=M],…`. Parts that cannot be parsed are reported and left out.
    pub(crate) fn parse_list(text: &str) -> Vec<Self> {
        let parse = |part: &&str| {
            let fault = Self::parse(part);
            if fault.is_none() {
                eprintln!("fake-cuda: cannot read the fault `{part}` (name:code[@after=N][@times=M])");
            }
            fault
        };
        let parts: Vec<&str> = text.split(',').map(str::trim).filter(|part| !part.is_empty()).collect();
        parts.iter().filter_map(parse).collect()
    }

    fn parse(text: &str) -> Option<Self> {
        let mut parts = text.split('@');
        let (name, code) = parts.next()?.rsplit_once(':')?;
        let mut fault = Self { name: name.to_owned(), code: code.parse().ok()?, after: 0, times: 1 };
        for part in parts {
            match part.split_once('=')? {
                ("after", value) => fault.after = value.parse().ok()?,
                ("times", value) => fault.times = value.parse().ok()?,
                _ => return None,
            }
        }
        Some(fault)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn faults_are_read() {
        let faults =
            DriverFault::parse_list("cuInit:100, cuMemAlloc_v2:2@after=3@times=0,nonsense,async:copy:700");
        let read: Vec<_> = faults.iter().map(|f| (f.name.as_str(), f.code, f.after, f.times)).collect();
        assert_eq!(read, [("cuInit", 100, 0, 1), ("cuMemAlloc_v2", 2, 3, 0), ("async:copy", 700, 0, 1)]);
    }
}
