//! Registered streams.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::ffi::c_uint;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{PoisonError, RwLock, RwLockWriteGuard};

use crate::abi::{CUstream, code};
use crate::status::RefusedCall;

/// Registered streams with their flags.
#[derive(Default)]
pub(crate) struct RegisteredStreams {
    known: RwLock<HashMap<usize, RegisteredStream>>,
    /// Transfers that are queued or under way.
    pub(crate) flying: AtomicUsize,
}

#[derive(Clone, Copy)]
pub(crate) struct RegisteredStream {
    pub(crate) flags: c_uint,
    /// Its number in the trace.
    pub(crate) group: u32,
}

impl RegisteredStreams {
    fn writing(&self) -> RwLockWriteGuard<'_, HashMap<usize, RegisteredStream>> {
        self.known.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// A stream's flags, none for one that was not registered.
    pub(crate) fn get(&self, stream: CUstream) -> RegisteredStream {
        let streams = self.known.read().unwrap_or_else(PoisonError::into_inner);
        streams.get(&(stream as usize)).copied().unwrap_or(RegisteredStream { flags: 0, group: 0 })
    }

    /// Takes a stream in, unless it is known.
    pub(crate) fn insert(&self, stream: CUstream, known: RegisteredStream) -> Result<(), RefusedCall> {
        match self.writing().entry(stream as usize) {
            Entry::Occupied(_) => Err(RefusedCall(code::INVALID_VALUE)),
            Entry::Vacant(place) => {
                place.insert(known);
                Ok(())
            }
        }
    }

    pub(crate) fn remove(&self, stream: CUstream) -> Option<RegisteredStream> {
        self.writing().remove(&(stream as usize))
    }

    pub(crate) fn clear(&self) {
        self.writing().clear();
    }

    /// Whether transfers are queued or under way.
    pub(crate) fn are_busy(&self) -> bool {
        self.flying.load(Ordering::SeqCst) > 0
    }
}
