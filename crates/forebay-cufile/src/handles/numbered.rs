//! Registrations with numbers of the program's choice: memory by its first address, streams by their handle.

use std::collections::HashMap;
use std::ffi::c_uint;
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::{Mutex, MutexGuard, PoisonError, RwLock, RwLockWriteGuard};

use forebay_gpu::{Context, MemoryKind};
use forebay_sys::Striped;

use crate::lock;

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

/// Numbers are a program's own addresses and handles: nobody else chooses them, and one multiplication spreads them.
#[derive(Default)]
struct NumberHasher(u64);

impl Hasher for NumberHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write_u64(&mut self, number: u64) {
        // The table looks at the highest bits and at the lowest ones.
        let product = u128::from(number ^ self.0) * 0x9E37_79B9_7F4A_7C15;
        self.0 = product as u64 ^ (product >> 64) as u64;
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_u64(u64::from(*byte));
        }
    }
}

type Numbers<V> = HashMap<u64, V, BuildHasherDefault<NumberHasher>>;

/// Values by their numbers. Every transfer looks here: threads do so in copies of their own, so that none writes what another
/// one reads.
pub(crate) struct NumberTable<V> {
    copies: Striped<RwLock<Numbers<V>>>,
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
        lock(&self.changing)
    }

    fn all(&self) -> impl Iterator<Item = RwLockWriteGuard<'_, Numbers<V>>> {
        self.copies.all().map(|copy| copy.write().unwrap_or_else(PoisonError::into_inner))
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    /// Buckets are chosen by low bits, and told apart by the highest seven.
    #[test]
    fn numbers_that_differ_by_pages_are_spread() {
        let hash = |number: u64| {
            let mut hasher = NumberHasher::default();
            hasher.write_u64(number);
            hasher.finish()
        };
        for step in [256, 4096, 1 << 21, 1 << 30] {
            let hashes: Vec<_> = (0..64).map(|n| hash(0x7F00_0000_0000 + n * step)).collect();
            let different = |part: fn(u64) -> u64| {
                hashes.iter().map(|hash| part(*hash)).collect::<std::collections::HashSet<_>>().len()
            };
            assert!(different(|hash| hash & 127) > 32 && different(|hash| hash >> 57) > 16, "{step}");
        }
    }

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
