//! Locks whose holders may panic: the data is consistent at every step, so others go on with it.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Locks, even if a thread panicked with the lock.
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_with_the_lock_leaves_it_to_others() {
        let mutex = Mutex::new(1);
        std::thread::scope(|scope| {
            let held = scope.spawn(|| {
                *lock(&mutex) = 2;
                let _held = lock(&mutex);
                panic!("on purpose");
            });
            held.join().unwrap_err();
        });
        assert!(mutex.is_poisoned());
        assert_eq!(*lock(&mutex), 2);
    }
}
