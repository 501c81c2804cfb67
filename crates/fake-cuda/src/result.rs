//! Results of driver functions: codes and handles.

use std::ffi::c_int;
use std::sync::atomic::{AtomicU64, Ordering};

/// The answer of a driver function; the error is the driver's result code.
pub(crate) type Answer<T = ()> = Result<T, c_int>;

pub(crate) const INVALID_VALUE: c_int = 1;
pub(crate) const OUT_OF_MEMORY: c_int = 2;
pub(crate) const NOT_INITIALIZED: c_int = 3;
pub(crate) const NO_DEVICE: c_int = 100;
pub(crate) const INVALID_DEVICE: c_int = 101;
pub(crate) const INVALID_IMAGE: c_int = 200;
pub(crate) const INVALID_CONTEXT: c_int = 201;
pub(crate) const INVALID_HANDLE: c_int = 400;
pub(crate) const NOT_FOUND: c_int = 500;
pub(crate) const NOT_READY: c_int = 600;
pub(crate) const ILLEGAL_ADDRESS: c_int = 700;
pub(crate) const PEER_ACCESS_ALREADY_ENABLED: c_int = 704;
pub(crate) const ALREADY_REGISTERED: c_int = 712;
pub(crate) const NOT_REGISTERED: c_int = 713;
pub(crate) const NOT_SUPPORTED: c_int = 801;
pub(crate) const CAPTURE_UNSUPPORTED: c_int = 900;
pub(crate) const CAPTURE_INVALIDATED: c_int = 901;
pub(crate) const CAPTURE_IMPLICIT: c_int = 906;
pub(crate) const CAPTURED_EVENT: c_int = 907;
pub(crate) const UNKNOWN: c_int = 999;

/// A handle that no other object has. Looks like a pointer and points nowhere.
pub(crate) fn new_handle() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    0xFA4E_0000_0000 + 0x10 * NEXT.fetch_add(1, Ordering::Relaxed)
}
