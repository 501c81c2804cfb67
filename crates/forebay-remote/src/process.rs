//! The process that made something: threads and connections are of that process alone.

use forebay_error::{Error, ErrorKind, Result};
use forebay_sys::forks;

/// A process, by the number of forks before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProcessId(u64);

impl ProcessId {
    /// This process.
    pub fn current() -> Self {
        forks::watch();
        Self(forks::count())
    }

    /// Whether it is this process, and no parent of it.
    pub fn is_current(self) -> bool {
        self.0 == forks::count()
    }

    /// An error in a child of it.
    pub fn check(self) -> Result<()> {
        if self.is_current() {
            return Ok(());
        }
        Err(Error::new(ErrorKind::Unsupported, "the file was opened before the process forked")
            .hint("open it anew in the child"))
    }
}
