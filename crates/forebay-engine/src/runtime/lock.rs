//! Locks whose holders may panic: the data is consistent at every step, so others go on with it.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Locks, even if a thread panicked with the lock.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
