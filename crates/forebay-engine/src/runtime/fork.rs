//! Forked children. A child has its parent's memory, but none of its threads, not its GPU, and locks that may never be
//! unlocked. So it gets a [`Process`](crate::runtime::process) of its own; here is how what was made before the fork knows that.

use std::fmt;
use std::mem::ManuallyDrop;
use std::ops::{Deref, DerefMut};

use forebay_error::{Error, ErrorKind};

use crate::runtime::process::process;

/// The process that something was made in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Birth(usize);

impl Birth {
    pub(crate) fn here() -> Self {
        // The address of what a process has once: it is never freed, so no two have the same.
        Self(std::ptr::from_ref(process()) as usize)
    }

    /// Whether the present process is a child of that one.
    pub(crate) fn is_elsewhere(self) -> bool {
        self != Self::here()
    }
}

/// Something whose end needs the process that it was made in: its threads, its GPU. A forked child leaks it.
pub struct Native<T> {
    birth: Birth,
    value: ManuallyDrop<T>,
}

impl<T> Native<T> {
    /// Belongs to the present process from now on.
    pub fn new(value: T) -> Self {
        Self { birth: Birth::here(), value: ManuallyDrop::new(value) }
    }

    /// Whether this is a child of the process that it was made in.
    pub fn is_elsewhere(&self) -> bool {
        self.birth.is_elsewhere()
    }
}

impl<T> Deref for Native<T> {
    type Target = T;
    fn deref(&self) -> &T {
        &self.value
    }
}

impl<T> DerefMut for Native<T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.value
    }
}

impl<T> Drop for Native<T> {
    fn drop(&mut self) {
        if !self.is_elsewhere() {
            // SAFETY: dropped here, once, and not used afterwards.
            unsafe { ManuallyDrop::drop(&mut self.value) };
        }
    }
}

impl<T: fmt::Debug> fmt::Debug for Native<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.value.fmt(f)
    }
}

/// Why something of the parent's does not work here.
#[cold]
pub(crate) fn from_before(what: &str) -> Error {
    Error::new(ErrorKind::Unsupported, format!("{what} before the process forked"))
        .hint("make it anew in the child; or start children by exec (Python: spawn or forkserver)")
}
