//! Locks whose holders may panic: what they guard is whole at every step, so the others go on with it.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Locks, whether or not somebody panicked with the lock.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
