//! Initialising, devices, names of results.

use std::ffi::{CStr, c_char, c_int, c_uint};

use crate::entry::export;
use crate::result::{INVALID_VALUE, NO_DEVICE, NOT_INITIALIZED};
use crate::state::state;

const VERSION: c_int = 13_000;

/// Copies a text into a C buffer.
///
/// # Safety
/// `to` has `len` bytes.
unsafe fn put_text(to: *mut c_char, len: c_int, text: &str) {
    let count = text.len().min((len.max(1) - 1) as usize);
    // SAFETY: the caller promises room for `len` bytes.
    unsafe {
        std::ptr::copy_nonoverlapping(text.as_ptr().cast(), to, count);
        to.add(count).write(0);
    }
}

/// The names of results that forebay may print.
const RESULTS: &[(c_int, &CStr, &CStr)] = &[
    (0, c"CUDA_SUCCESS", c"no error"),
    (1, c"CUDA_ERROR_INVALID_VALUE", c"invalid argument"),
    (2, c"CUDA_ERROR_OUT_OF_MEMORY", c"out of memory"),
    (3, c"CUDA_ERROR_NOT_INITIALIZED", c"initialization error"),
    (100, c"CUDA_ERROR_NO_DEVICE", c"no CUDA-capable device is detected"),
    (101, c"CUDA_ERROR_INVALID_DEVICE", c"invalid device ordinal"),
    (200, c"CUDA_ERROR_INVALID_IMAGE", c"device kernel image is invalid"),
    (201, c"CUDA_ERROR_INVALID_CONTEXT", c"invalid device context"),
    (214, c"CUDA_ERROR_ECC_UNCORRECTABLE", c"uncorrectable ECC error encountered"),
    (218, c"CUDA_ERROR_INVALID_PTX", c"a PTX JIT compilation failed"),
    (400, c"CUDA_ERROR_INVALID_HANDLE", c"invalid resource handle"),
    (500, c"CUDA_ERROR_NOT_FOUND", c"named symbol not found"),
    (600, c"CUDA_ERROR_NOT_READY", c"device not ready"),
    (700, c"CUDA_ERROR_ILLEGAL_ADDRESS", c"an illegal memory access was encountered"),
    (704, c"CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED", c"peer access is already enabled"),
    (
        712,
        c"CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED",
        c"part or all of the requested memory range is already mapped",
    ),
    (
        713,
        c"CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED",
        c"pointer does not correspond to a registered memory region",
    ),
    (719, c"CUDA_ERROR_LAUNCH_FAILED", c"unspecified launch failure"),
    (800, c"CUDA_ERROR_NOT_PERMITTED", c"operation not permitted"),
    (801, c"CUDA_ERROR_NOT_SUPPORTED", c"operation not supported"),
    (
        803,
        c"CUDA_ERROR_SYSTEM_DRIVER_MISMATCH",
        c"system has unsupported display driver / cuda driver combination",
    ),
    (900, c"CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED", c"operation not permitted when stream is capturing"),
    (
        901,
        c"CUDA_ERROR_STREAM_CAPTURE_INVALIDATED",
        c"operation failed due to a previous error during capture",
    ),
    (
        907,
        c"CUDA_ERROR_CAPTURED_EVENT",
        c"operation not permitted on an event last recorded in a capturing stream",
    ),
    (999, c"CUDA_ERROR_UNKNOWN", c"unknown error"),
];

/// Every attribute has a value; most of them are "no".
pub(crate) fn attribute(attribute: c_int) -> c_int {
    match attribute {
        // Compute capability 9.0.
        75 => 9,
        // Stream memory operations, 64-bit ones, read-only registration, virtual memory, host registration, unified
        // addressing, managed memory, pools, host pointers for registered memory,
        // a flush of what other devices write.
        92 | 93 | 94 | 122 | 123 | 113 | 102 | 99 | 41 | 83 | 115 | 91 | 117 => 1,
        // Threads in a block; multiprocessors.
        1 => 1024,
        16 => 132,
        _ => 0,
    }
}

export! {
    fn cuInit(flags: c_uint) {
        if flags != 0 {
            return Err(INVALID_VALUE);
        }
        let mut state = state();
        if state.gpus.is_empty() {
            return Err(NO_DEVICE);
        }
        state.initialised = true;
        drop(state);
        crate::entry::initialised();
        Ok(())
    }

    fn cuDriverGetVersion(version: *mut c_int) {
        version.write(VERSION);
        Ok(())
    }

    fn cuGetErrorName(code: c_int, name: *mut *const c_char) {
        let found = RESULTS.iter().find(|result| result.0 == code).ok_or(INVALID_VALUE)?;
        name.write(found.1.as_ptr());
        Ok(())
    }

    fn cuGetErrorString(code: c_int, text: *mut *const c_char) {
        let found = RESULTS.iter().find(|result| result.0 == code).ok_or(INVALID_VALUE)?;
        text.write(found.2.as_ptr());
        Ok(())
    }

    fn cuDeviceGetCount(count: *mut c_int) {
        let state = state();
        if !state.initialised {
            return Err(NOT_INITIALIZED);
        }
        count.write(state.gpus.len() as c_int);
        Ok(())
    }

    fn cuDeviceGet(device: *mut c_int, ordinal: c_int) {
        state().gpu(ordinal)?;
        device.write(ordinal);
        Ok(())
    }

    fn cuDeviceGetName(name: *mut c_char, len: c_int, device: c_int) {
        state().gpu(device)?;
        put_text(name, len, "Fake GPU");
        Ok(())
    }

    fn cuDeviceGetUuid(uuid: *mut [u8; 16], device: c_int) {
        state().gpu(device)?;
        let mut bytes = *b"fake-cuda-gpu-00";
        bytes[15] += device as u8;
        uuid.write(bytes);
        Ok(())
    }

    fn cuDeviceGetUuid_v2(uuid: *mut [u8; 16], device: c_int) {
        match cuDeviceGetUuid(uuid, device) {
            0 => Ok(()),
            code => Err(code),
        }
    }

    fn cuDeviceGetPCIBusId(id: *mut c_char, len: c_int, device: c_int) {
        state().gpu(device)?;
        put_text(id, len, &format!("FA4E:{:02X}:00.0", 0x1B + device));
        Ok(())
    }

    fn cuDeviceTotalMem_v2(bytes: *mut usize, device: c_int) {
        bytes.write(state().gpu(device)?.total);
        Ok(())
    }

    fn cuDeviceCanAccessPeer(can: *mut c_int, device: c_int, peer: c_int) {
        state().gpu(device)?;
        state().gpu(peer)?;
        can.write(c_int::from(device != peer));
        Ok(())
    }

    fn cuDeviceGetAttribute(value: *mut c_int, name: c_int, device: c_int) {
        state().gpu(device)?;
        let other = state().attributes.get(&name).copied();
        value.write(other.unwrap_or_else(|| attribute(name)));
        Ok(())
    }
}
