//! Types and numbers of the cuFile interface, version 1.15.
//!
//! Layouts are facts of the interface; `tests/library/header_layout.rs` compares them with C compilers' answers.

#![allow(missing_docs, reason = "the header `include/cufile.h` describes each name")]

use std::ffi::{c_int, c_uint, c_void};

/// The result of a call: a code of ours (0 or 50xx) and the driver's, which is 0 unless ours is 5011.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CUfileError {
    pub err: c_int,
    pub cu_err: c_int,
}

/// Codes of [`CUfileError::err`].
pub mod code {
    use std::ffi::c_int;

    pub const SUCCESS: c_int = 0;
    pub const DRIVER_NOT_INITIALIZED: c_int = 5001;
    pub const DRIVER_CLOSING: c_int = 5006;
    pub const IO_NOT_SUPPORTED: c_int = 5008;
    pub const CUDA_DRIVER_ERROR: c_int = 5011;
    pub const CUDA_POINTER_INVALID: c_int = 5012;
    pub const CUDA_MEMORY_TYPE_INVALID: c_int = 5013;
    pub const CUDA_POINTER_RANGE_ERROR: c_int = 5014;
    pub const INVALID_MAPPING_RANGE: c_int = 5017;
    pub const INVALID_FILE_TYPE: c_int = 5018;
    pub const INVALID_FILE_OPEN_FLAG: c_int = 5019;
    pub const INVALID_VALUE: c_int = 5022;
    pub const MEMORY_ALREADY_REGISTERED: c_int = 5023;
    pub const MEMORY_NOT_REGISTERED: c_int = 5024;
    pub const PERMISSION_DENIED: c_int = 5025;
    pub const DRIVER_ALREADY_OPEN: c_int = 5026;
    pub const HANDLE_NOT_REGISTERED: c_int = 5027;
    pub const HANDLE_ALREADY_REGISTERED: c_int = 5028;
    pub const DEVICE_NOT_FOUND: c_int = 5029;
    pub const INTERNAL_ERROR: c_int = 5030;
    pub const GETNEWFD_FAILED: c_int = 5031;
    pub const ASYNC_NOT_SUPPORTED: c_int = 5038;
    pub const INTERNAL_BATCH_SUBMIT_ERROR: c_int = 5040;
    pub const INTERNAL_BATCH_GETSTATUS_ERROR: c_int = 5041;
    pub const INTERNAL_BATCH_CANCEL_ERROR: c_int = 5042;
    pub const NOMEM_ERROR: c_int = 5043;
    pub const IO_ERROR: c_int = 5044;
    pub const INVALID_CONTEXT_ERROR: c_int = 5047;
}

/// A registered file, as the program sees it.
pub type CUfileHandle = *mut c_void;
/// A batch, as the program sees it.
pub type CUfileBatchHandle = *mut c_void;
/// A stream of the driver API.
pub type CUstream = *mut c_void;

/// The type of handle: a descriptor.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct CUfileDescr {
    pub kind: c_int,
    pub handle: DescrHandle,
    pub fs_ops: *const c_void,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub union DescrHandle {
    pub fd: c_int,
    pub handle: *mut c_void,
}

pub const HANDLE_TYPE_OPAQUE_FD: c_int = 1;
pub const HANDLE_TYPE_USERSPACE_FS: c_int = 3;

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct NvfsProps {
    pub major_version: c_uint,
    pub minor_version: c_uint,
    pub poll_thresh_size: usize,
    pub max_direct_io_size: usize,
    pub dstatusflags: c_uint,
    pub dcontrolflags: c_uint,
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct CUfileDrvProps {
    pub nvfs: NvfsProps,
    pub fflags: c_uint,
    pub max_device_cache_size: c_uint,
    pub per_buffer_cache_size: c_uint,
    pub max_device_pinned_mem_size: c_uint,
    pub max_batch_io_size: c_uint,
    pub max_batch_io_timeout_msecs: c_uint,
}

/// Bits of `dcontrolflags`.
pub const CONTROL_USE_POLL_MODE: c_uint = 1 << 0;
pub const CONTROL_ALLOW_COMPAT_MODE: c_uint = 1 << 1;
/// Bits of `fflags`: dynamic routing, batches, streams, parallel I/O.
pub const FEATURES: c_uint = 0xF;
pub const FEATURE_STREAMS: c_uint = 1 << 2;
pub const FEATURE_PARALLEL_IO: c_uint = 1 << 3;

#[repr(C)]
#[derive(Clone, Copy)]
pub struct CUfileIOParams {
    pub mode: c_int,
    pub batch: BatchParams,
    pub fh: CUfileHandle,
    pub opcode: c_int,
    pub cookie: *mut c_void,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct BatchParams {
    pub base: *mut c_void,
    pub file_offset: i64,
    pub buffer_offset: i64,
    pub size: usize,
}

pub const OPCODE_READ: c_int = 0;
pub const OPCODE_WRITE: c_int = 1;
pub const BATCH_MODE: c_int = 1;

#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CUfileIOEvents {
    pub cookie: *mut c_void,
    pub status: c_int,
    pub ret: usize,
}

pub const STATUS_COMPLETE: c_int = 0x10;
pub const STATUS_FAILED: c_int = 0x40;

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct CUfileIOVec {
    pub base: *mut c_void,
    pub len: usize,
}

/// Flags of a registered stream.
pub const STREAM_FIXED_BUF_OFFSET: c_uint = 1;
pub const STREAM_FIXED_FILE_OFFSET: c_uint = 2;
pub const STREAM_FIXED_FILE_SIZE: c_uint = 4;
pub const STREAM_ALL: c_uint = 0xF;

const _: () = {
    assert!(size_of::<CUfileError>() == 8);
    assert!(size_of::<CUfileDescr>() == 24);
    assert!(size_of::<CUfileDrvProps>() == 56);
    assert!(size_of::<CUfileIOParams>() == 64);
    assert!(size_of::<CUfileIOEvents>() == 24);
    assert!(size_of::<CUfileIOVec>() == 16);
};
