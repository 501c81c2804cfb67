//! Errors of forebay as the interface tells them: a code in [`CUfileError`], or −1 with `errno`.

use std::ffi::c_int;

use forebay_error::{Error, ErrorKind};

use crate::abi::{CUfileError, code};

impl CUfileError {
    /// All is well.
    pub const SUCCESS: Self = Self::new(code::SUCCESS);

    /// A code of ours; the driver's is 0, as programs demand on anything but a driver error.
    pub const fn new(err: c_int) -> Self {
        Self { err, cu_err: 0 }
    }
}

/// Why a call was refused: a code of the interface (50xx), for [`CUfileError`] or `errno`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RefusedCall(pub c_int);

impl From<RefusedCall> for CUfileError {
    fn from(refused: RefusedCall) -> Self {
        Self::new(refused.0)
    }
}

/// What a code of the interface, or an errno, means.
pub fn reason_of(errno: c_int) -> String {
    let text = match errno {
        code::DRIVER_NOT_INITIALIZED => "the driver is not open",
        code::DRIVER_CLOSING => "driver shutdown in progress",
        code::IO_NOT_SUPPORTED => "GPUDirect Storage not supported on current file",
        code::CUDA_DRIVER_ERROR => "CUDA Driver API error",
        code::CUDA_POINTER_INVALID => "invalid device pointer",
        code::CUDA_MEMORY_TYPE_INVALID => "invalid pointer memory type",
        code::CUDA_POINTER_RANGE_ERROR => "pointer range exceeds allocated address range",
        code::INVALID_MAPPING_RANGE => "access beyond mapped size",
        code::INVALID_FILE_TYPE => "unsupported file type",
        code::INVALID_FILE_OPEN_FLAG => "unsupported file open flags",
        code::INVALID_VALUE => "invalid arguments",
        code::MEMORY_ALREADY_REGISTERED => "device pointer already registered",
        code::MEMORY_NOT_REGISTERED => "device pointer lookup failure",
        code::PERMISSION_DENIED => "driver or file access error",
        code::DRIVER_ALREADY_OPEN => "driver is already open",
        code::HANDLE_NOT_REGISTERED => "file descriptor is not registered",
        code::HANDLE_ALREADY_REGISTERED => "file descriptor is already registered",
        code::DEVICE_NOT_FOUND => "GPU device not found",
        code::INTERNAL_ERROR => "internal error",
        code::GETNEWFD_FAILED => "failed to obtain new file descriptor",
        code::ASYNC_NOT_SUPPORTED => "cuFile stream operation not supported",
        code::INTERNAL_BATCH_SUBMIT_ERROR => "batch submit internal error - retry later",
        code::INTERNAL_BATCH_GETSTATUS_ERROR => "batch get status internal error - retry later",
        code::INTERNAL_BATCH_CANCEL_ERROR => "batch cancel internal error - retry later",
        code::NOMEM_ERROR => "cufile no memory error - retry later",
        code::IO_ERROR => "cufile io error",
        code::INVALID_CONTEXT_ERROR => "cufile invalid context error",
        _ => {
            let text = std::io::Error::from_raw_os_error(errno).to_string();
            return text.replace("os error ", "");
        }
    };
    format!("{text} ({errno})")
}

/// The code that says most of what an error says.
pub fn code_of(error: &Error) -> c_int {
    match error.kind() {
        ErrorKind::PermissionDenied | ErrorKind::ReadOnly => code::PERMISSION_DENIED,
        ErrorKind::IsDirectory => code::INVALID_FILE_TYPE,
        ErrorKind::InvalidInput => code::INVALID_VALUE,
        ErrorKind::Unsupported | ErrorKind::Strict => code::IO_NOT_SUPPORTED,
        ErrorKind::OutOfMemory | ErrorKind::DeviceOutOfMemory => code::NOMEM_ERROR,
        ErrorKind::TooManyFiles => code::GETNEWFD_FAILED,
        ErrorKind::DeviceLost => code::CUDA_DRIVER_ERROR,
        ErrorKind::DriverMissing | ErrorKind::NotFound => code::DEVICE_NOT_FOUND,
        ErrorKind::Io | ErrorKind::ShortRead | ErrorKind::NoSpace | ErrorKind::Corrupt => code::IO_ERROR,
        _ => code::INTERNAL_ERROR,
    }
}

/// The result of a call that has nothing else to tell.
pub fn answer(result: Result<(), RefusedCall>) -> CUfileError {
    result.map_or_else(CUfileError::from, |()| CUfileError::SUCCESS)
}

/// Sets the calling thread's `errno`.
pub fn set_errno(errno: c_int) {
    // SAFETY: glibc and musl give a valid place of this thread.
    unsafe { *libc::__errno_location() = errno };
}

/// The result of a read or write: bytes, or −1 with `errno`.
pub fn bytes_or_errno(result: Result<usize, c_int>) -> isize {
    match result {
        Ok(bytes) => bytes as isize,
        Err(errno) => {
            set_errno(errno);
            -1
        }
    }
}
