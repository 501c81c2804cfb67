//! Reads and writes in the order of a stream.

use std::collections::HashMap;
use std::ffi::c_uint;
use std::sync::{PoisonError, RwLock, RwLockWriteGuard};

use forebay_trace::Api;

use crate::abi::{CUfileError, CUfileHandle, CUstream, STREAM_ALL, code};
use crate::library::{guarded, library};
use crate::status::Refused;

/// Registered streams with their flags.
#[derive(Default)]
pub(crate) struct Streams(RwLock<HashMap<usize, c_uint>>);

impl Streams {
    fn writing(&self) -> RwLockWriteGuard<'_, HashMap<usize, c_uint>> {
        self.0.write().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn clear(&self) {
        self.writing().clear();
    }
}

fn register(stream: CUstream, flags: c_uint) -> Result<(), Refused> {
    let library = library();
    library.ensure_open()?;
    let mut streams = library.streams.writing();
    if flags & !STREAM_ALL != 0 || streams.contains_key(&(stream as usize)) {
        return Err(Refused(code::INVALID_VALUE));
    }
    streams.insert(stream as usize, flags);
    Ok(())
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuFileStreamRegister(stream: CUstream, flags: c_uint) -> CUfileError {
    guarded(|| register(stream, flags))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuFileStreamDeregister(stream: CUstream) -> CUfileError {
    guarded(|| {
        library().streams.writing().remove(&(stream as usize)).map(drop).ok_or(Refused(code::INVALID_VALUE))
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuFileReadAsync(
    _: CUfileHandle,
    _: *mut std::ffi::c_void,
    _: *mut usize,
    _: *mut i64,
    _: *mut i64,
    _: *mut isize,
    _: CUstream,
) -> CUfileError {
    let _ = Api::ReadAsync;
    CUfileError::new(code::ASYNC_NOT_SUPPORTED)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuFileWriteAsync(
    _: CUfileHandle,
    _: *mut std::ffi::c_void,
    _: *mut usize,
    _: *mut i64,
    _: *mut i64,
    _: *mut isize,
    _: CUstream,
) -> CUfileError {
    CUfileError::new(code::ASYNC_NOT_SUPPORTED)
}
