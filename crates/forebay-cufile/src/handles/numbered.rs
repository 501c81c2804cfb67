//! What programs register by a number of their own: memory by its first address, streams by their handle.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::ffi::c_uint;
use std::sync::{PoisonError, RwLock, RwLockWriteGuard};

/// Registered memory.
#[derive(Clone, Copy, Default)]
pub(crate) struct RegisteredRange {
    pub(crate) len: usize,
    pub(crate) gpu: Option<usize>,
}

/// A registered stream. One that is not has no flags.
#[derive(Clone, Copy, Default)]
pub(crate) struct RegisteredStream {
    pub(crate) flags: c_uint,
    /// Its number in the trace.
    pub(crate) group: u32,
}

/// Values by their numbers.
#[derive(Default)]
pub(crate) struct NumberTable<V>(RwLock<HashMap<u64, V>>);

impl<V: Copy> NumberTable<V> {
    fn writing(&self) -> RwLockWriteGuard<'_, HashMap<u64, V>> {
        self.0.write().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn get(&self, number: u64) -> Option<V> {
        self.0.read().unwrap_or_else(PoisonError::into_inner).get(&number).copied()
    }

    /// Takes a value in, unless the number has one; whether it did.
    pub(crate) fn insert(&self, number: u64, value: V) -> bool {
        match self.writing().entry(number) {
            Entry::Occupied(_) => false,
            Entry::Vacant(place) => {
                place.insert(value);
                true
            }
        }
    }

    pub(crate) fn remove(&self, number: u64) -> Option<V> {
        self.writing().remove(&number)
    }

    pub(crate) fn clear(&self) {
        self.writing().clear();
    }
}
