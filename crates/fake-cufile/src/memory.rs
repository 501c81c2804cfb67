//! The software GPU's memory, by the driver that the process has loaded.

use std::ffi::{CString, c_int};
use std::sync::OnceLock;

use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};

/// A driver loaded now would not know this process's memory.
const RTLD_NOLOAD: c_int = libc::RTLD_NOLOAD;

type Peek = unsafe extern "C" fn(u64, *mut u8, usize, c_int) -> c_int;
type GetCurrent = unsafe extern "C" fn(*mut u64) -> c_int;

pub(crate) struct Driver {
    peek: Peek,
    current: GetCurrent,
}

/// The driver, if the process has one.
pub(crate) fn driver() -> Option<&'static Driver> {
    static DRIVER: OnceLock<Option<Driver>> = OnceLock::new();
    DRIVER
        .get_or_init(|| {
            let name = std::env::var("FOREBAY_LIBCUDA").ok()?;
            CString::new(name.as_str()).ok()?;
            // SAFETY: nothing is loaded, only found.
            let library = unsafe { Library::open(Some(&name), RTLD_NOW | RTLD_LOCAL | RTLD_NOLOAD) }.ok()?;
            // SAFETY: these are functions of fake-cuda with these types.
            let (peek, current) = unsafe {
                (
                    *library.get::<Peek>(b"fake_cuda_peek\0").ok()?,
                    *library.get::<GetCurrent>(b"cuCtxGetCurrent\0").ok()?,
                )
            };
            std::mem::forget(library);
            Some(Driver { peek, current })
        })
        .as_ref()
}

impl Driver {
    /// Whether a context is current on this thread.
    pub(crate) fn has_context(&self) -> bool {
        let mut context = 0;
        // SAFETY: the place is writable.
        unsafe { (self.current)(&raw mut context) == 0 && context != 0 }
    }

    /// Copies to device memory; false if it does not know that range.
    pub(crate) fn put(&self, address: u64, bytes: &[u8]) -> bool {
        // SAFETY: the bytes are readable, and only read.
        unsafe { (self.peek)(address, bytes.as_ptr().cast_mut(), bytes.len(), 1) == 0 }
    }

    /// Copies from device memory.
    pub(crate) fn get(&self, address: u64, bytes: &mut [u8]) -> bool {
        // SAFETY: the bytes are writable.
        unsafe { (self.peek)(address, bytes.as_mut_ptr(), bytes.len(), 0) == 0 }
    }
}
