//! Registering memory, which changes nothing about how bytes move.

use std::ffi::{c_int, c_void};

use forebay_gpu::{DeviceRange, MemoryKind};

use super::guarded;
use crate::abi::{CUfileError, code};
use crate::handles::RegisteredRange;
use crate::library::library;
use crate::meter::meter;
use crate::status::RefusedCall;
use crate::target::{self, PointerTarget};

fn register(memory: DeviceRange) -> Result<(), RefusedCall> {
    let library = library();
    let session = library.ensure_open()?;
    let DeviceRange { start, len } = memory;
    if start == 0 || len == 0 {
        return Err(RefusedCall(code::INVALID_VALUE));
    }
    let target = target::find(session, memory).map_err(|refused| RefusedCall(refused.code))?;
    if target.kind == MemoryKind::Managed {
        return Err(RefusedCall(code::CUDA_MEMORY_TYPE_INVALID));
    }
    library.prepare(session);
    let PointerTarget { gpu, kind, context, .. } = target;
    let is_new = library.buffers.insert(start, RegisteredRange { len, gpu, kind, context });
    let result = if is_new { Ok(()) } else { Err(RefusedCall(code::MEMORY_ALREADY_REGISTERED)) };
    if result.is_ok() && target.gpu.is_some() {
        // Memory of some kinds has no such attribute: then copies are ordered when the program reads and writes.
        let _ = target.device.make_synchronous(start);
    }
    meter().buffer_registered(memory, target.gpu, result);
    result
}

fn deregister(base: *const c_void) -> Result<(), RefusedCall> {
    let library = library();
    if library.is_closed_again() {
        return Err(RefusedCall(code::DRIVER_CLOSING));
    }
    if base.is_null() {
        return Err(RefusedCall(code::INVALID_VALUE));
    }
    let known = library.buffers.remove(base as u64);
    let (len, gpu) = known.map_or((0, None), |range| (range.len, range.gpu));
    let result = known.map(drop).ok_or(RefusedCall(code::MEMORY_NOT_REGISTERED));
    meter().buffer_deregistered(DeviceRange::new(base as u64, len), gpu, result);
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
    guarded(|| register(DeviceRange::new(base as u64, length)))
}

/// Forgets a range of memory.
///
/// # Safety
/// None: the memory is not touched.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn cuFileBufDeregister(base: *const c_void) -> CUfileError {
    guarded(|| deregister(base))
}
