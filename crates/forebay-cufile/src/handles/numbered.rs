//! What programs register by a number of their own: memory by its first address, streams by their handle.

use std::collections::HashMap;
use std::ffi::c_uint;
use std::sync::{Mutex, MutexGuard, PoisonError, RwLock, RwLockWriteGuard};

use forebay_gpu::{Context, MemoryKind};
use forebay_sys::Striped;

/// Registered memory.
#[derive(Clone, Copy)]
pub(crate) struct RegisteredRange {
    pub(crate) len: usize,
    pub(crate) gpu: Option<usize>,
    pub(crate) kind: MemoryKind,
    pub(crate) context: Context,
}

/// A registered stream. One that is not has no flags.
#[derive(Clone, Copy, Default)]
pub(crate) struct RegisteredStream {
    pub(crate) flags: c_uint,
    /// Its number in the trace.
    pub(crate) group: u32,
}

/// Values by their numbers. Every transfer looks here: threads do so in copies of their own, so that none writes what another
/// one reads.
pub(crate) struct NumberTable<V> {
    copies: Striped<RwLock<HashMap<u64, V>>>,
    changing: Mutex<()>,
}

impl<V> Default for NumberTable<V> {
    fn default() -> Self {
        Self { copies: Striped::default(), changing: Mutex::default() }
    }
}

impl<V: Copy> NumberTable<V> {
    pub(crate) fn get(&self, number: u64) -> Option<V> {
        self.copies.own().read().unwrap_or_else(PoisonError::into_inner).get(&number).copied()
    }

    /// Takes a value in, unless the number has one; whether it did.
    pub(crate) fn insert(&self, number: u64, value: V) -> bool {
        let _changing = self.changing();
        if self.get(number).is_some() {
            return false;
        }
        for mut copy in self.all() {
            copy.insert(number, value);
        }
        true
    }

    pub(crate) fn remove(&self, number: u64) -> Option<V> {
        let _changing = self.changing();
        self.all().map(|mut copy| copy.remove(&number)).last().flatten()
    }

    pub(crate) fn clear(&self) {
        let _changing = self.changing();
        self.all().for_each(|mut copy| copy.clear());
    }

    fn changing(&self) -> MutexGuard<'_, ()> {
        self.changing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn all(&self) -> impl Iterator<Item = RwLockWriteGuard<'_, HashMap<u64, V>>> {
        self.copies.all().map(|copy| copy.write().unwrap_or_else(PoisonError::into_inner))
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn all_threads_see_what_one_changes() {
        let table = NumberTable::default();
        let others = |number| {
            let look = || std::thread::scope(|scope| scope.spawn(|| table.get(number)).join().unwrap());
            let first = look();
            assert!((0..4).all(|_| look() == first));
            first
        };
        assert!(table.insert(7, 'a') && !table.insert(7, 'b') && table.insert(8, 'c'));
        assert_eq!((others(7), others(8), others(9)), (Some('a'), Some('c'), None));
        assert_eq!((table.remove(7), table.remove(7), others(7)), (Some('a'), None, None));
        table.clear();
        assert_eq!((others(8), table.get(8)), (None, None));
    }
}
