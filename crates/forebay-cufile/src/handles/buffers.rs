//! Registered memory: ranges that are remembered, and checked.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::{PoisonError, RwLock, RwLockWriteGuard};

use crate::abi::code;
use crate::status::RefusedCall;

/// What a program registered.
#[derive(Clone, Copy)]
pub(crate) struct RegisteredRange {
    pub(crate) len: usize,
    pub(crate) gpu: Option<usize>,
}

/// Registered ranges by their first address.
#[derive(Default)]
pub(crate) struct RegisteredBuffers(RwLock<HashMap<u64, RegisteredRange>>);

impl RegisteredBuffers {
    fn writing(&self) -> RwLockWriteGuard<'_, HashMap<u64, RegisteredRange>> {
        self.0.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// The length that was registered for this first address.
    pub(crate) fn len_at(&self, base: u64) -> Option<usize> {
        self.0.read().unwrap_or_else(PoisonError::into_inner).get(&base).map(|range| range.len)
    }

    pub(crate) fn clear(&self) {
        self.writing().clear();
    }

    pub(crate) fn insert(&self, base: u64, range: RegisteredRange) -> Result<(), RefusedCall> {
        match self.writing().entry(base) {
            Entry::Occupied(_) => Err(RefusedCall(code::MEMORY_ALREADY_REGISTERED)),
            Entry::Vacant(place) => {
                place.insert(range);
                Ok(())
            }
        }
    }

    pub(crate) fn remove(&self, base: u64) -> Option<RegisteredRange> {
        self.writing().remove(&base)
    }
}
