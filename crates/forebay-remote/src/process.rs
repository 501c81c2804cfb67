//! The process that made something: threads and connections are of that process alone.

use std::sync::atomic::{AtomicPtr, Ordering};

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

/// A value for each process, a static: a forked child begins with one of its own, since the locks of its parent's may be held for ever.
pub struct OfProcess<T: Send + Sync + 'static> {
    /// That of the process that was the last to ask for it; the others are never freed.
    current: AtomicPtr<(ProcessId, T)>,
}

impl<T: Send + Sync + 'static> OfProcess<T> {
    /// Nothing yet.
    #[expect(clippy::new_without_default, reason = "it is a static")]
    pub const fn new() -> Self {
        Self { current: AtomicPtr::new(std::ptr::null_mut()) }
    }

    /// This process's, if it has asked for it.
    pub fn known(&self) -> Option<&'static T> {
        // SAFETY: null, or what `get` has leaked.
        let found: Option<&'static (ProcessId, T)> = unsafe { self.current.load(Ordering::Acquire).as_ref() };
        found.filter(|(process, _)| process.is_current()).map(|(_, value)| value)
    }

    /// This process's.
    pub fn get(&self) -> &'static T
    where
        T: Default,
    {
        let process = ProcessId::current();
        loop {
            // Before the look: what another thread puts there meanwhile is found in the next turn.
            let before = self.current.load(Ordering::Acquire);
            if let Some(found) = self.known() {
                return found;
            }
            let new = Box::into_raw(Box::new((process, T::default())));
            if self.current.compare_exchange(before, new, Ordering::AcqRel, Ordering::Acquire).is_err() {
                // SAFETY: it was made above, and no other thread has seen it.
                drop(unsafe { Box::from_raw(new) });
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;

    #[test]
    fn a_child_has_a_value_of_its_own() {
        static VALUE: OfProcess<Mutex<u8>> = OfProcess::new();
        assert!(VALUE.known().is_none());
        let held = VALUE.get().lock().unwrap();
        // SAFETY: the child takes a free lock and ends.
        match unsafe { libc::fork() } {
            0 => {
                let is_free = VALUE.get().try_lock().is_ok();
                // SAFETY: it ends the child, and runs no handlers of the parent's.
                unsafe { libc::_exit(i32::from(!is_free)) };
            }
            child => {
                let mut status = 0;
                // SAFETY: the child was made above; the status is writable.
                assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
                assert_eq!(status, 0);
            }
        }
        assert!(std::ptr::eq(VALUE.known().unwrap(), VALUE.get()));
        drop(held);
    }
}
