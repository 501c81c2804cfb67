//! Registered memory. Registering changes nothing about how bytes move: the range is remembered and checked.

use std::collections::HashMap;
use std::ffi::{c_int, c_void};
use std::sync::{PoisonError, RwLock, RwLockWriteGuard};

use forebay_gpu::MemoryKind;

use crate::abi::{CUfileError, code};
use crate::library::{guarded, library};
use crate::status::Refused;
use crate::target::{self, Target};

/// What a program registered.
#[derive(Clone, Copy)]
struct Registered {
    len: usize,
    gpu: Option<usize>,
}

/// Registered ranges by their first address.
#[derive(Default)]
pub(crate) struct Buffers(RwLock<HashMap<u64, Registered>>);

impl Buffers {
    fn writing(&self) -> RwLockWriteGuard<'_, HashMap<u64, Registered>> {
        self.0.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// The length that was registered for this first address.
    pub(crate) fn len_at(&self, base: u64) -> Option<usize> {
        self.0.read().unwrap_or_else(PoisonError::into_inner).get(&base).map(|range| range.len)
    }

    pub(crate) fn clear(&self) {
        self.writing().clear();
    }

    fn register(&self, base: u64, len: usize, target: &Target) -> Result<(), Refused> {
        let mut ranges = self.writing();
        if ranges.contains_key(&base) {
            return Err(Refused(code::MEMORY_ALREADY_REGISTERED));
        }
        ranges.insert(base, Registered { len, gpu: target.gpu });
        Ok(())
    }
}

fn register(base: *const c_void, len: usize) -> Result<(), Refused> {
    let library = library();
    let session = library.ensure_open()?;
    if base.is_null() || len == 0 {
        return Err(Refused(code::INVALID_VALUE));
    }
    let target = target::find(session, base as u64, len).map_err(|refused| Refused(refused.code))?;
    if target.kind == MemoryKind::Managed {
        return Err(Refused(code::CUDA_MEMORY_TYPE_INVALID));
    }
    library.prepare(session);
    let result = library.buffers.register(base as u64, len, &target);
    if result.is_ok() && target.gpu.is_some() {
        // Memory of some kinds has no such attribute: then copies are ordered when the program reads and writes.
        let _ = target.memory.device.make_synchronous(base as u64);
    }
    library.meter().buffer_registered(base as u64, len, target.gpu, result);
    result
}

fn deregister(base: *const c_void) -> Result<(), Refused> {
    let library = library();
    if library.is_closed_again() {
        return Err(Refused(code::DRIVER_CLOSING));
    }
    if base.is_null() {
        return Err(Refused(code::INVALID_VALUE));
    }
    let known = library.buffers.writing().remove(&(base as u64));
    let (len, gpu) = known.map_or((0, None), |range| (range.len, range.gpu));
    let result = known.map(drop).ok_or(Refused(code::MEMORY_NOT_REGISTERED));
    library.meter().buffer_deregistered(base as u64, len, gpu, result);
    result
}

/// Remembers a range of memory.
///
/// # Safety
/// None: the memory is not touched.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn cuFileBufRegister(
    base: *const c_void,
    length: usize,
    _flags: c_int,
) -> CUfileError {
    guarded(|| register(base, length))
}

/// Forgets a range of memory.
///
/// # Safety
/// None: the memory is not touched.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn cuFileBufDeregister(base: *const c_void) -> CUfileError {
    guarded(|| deregister(base))
}
