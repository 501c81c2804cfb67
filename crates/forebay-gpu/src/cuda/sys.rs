//! The part of the CUDA driver API that forebay calls: one table of optional symbols, and the numbers they speak in.
//!
//! Opaque handles (`CUcontext`, `CUstream`, …) are pointers in the C header; on the 64-bit targets that forebay
//! builds for they travel as integers, which keeps our types `Send` without promises.

#![allow(non_snake_case)]

use std::ffi::{CStr, c_char, c_int, c_uchar, c_uint, c_void};

use libloading::os::unix::Library;

use super::error::{CudaFailure, MISSING};

/// A handle that only the driver looks into: context, stream, event, module, function, memory handle.
pub(crate) type Handle = u64;

/// A host function on a stream.
pub(crate) type HostFunction = unsafe extern "C" fn(*mut c_void);

/// Where a virtual-memory allocation lives (`CUmemLocation`).
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct MemLocation {
    pub(crate) kind: c_int,
    pub(crate) id: c_int,
}

/// What a virtual-memory allocation is (`CUmemAllocationProp`).
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct MemProp {
    pub(crate) kind: c_int,
    pub(crate) handle_types: c_int,
    pub(crate) location: MemLocation,
    pub(crate) windows_metadata: u64,
    pub(crate) flags: [u8; 8],
}

/// Access rights to a mapping (`CUmemAccessDesc`).
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct MemAccess {
    pub(crate) location: MemLocation,
    pub(crate) flags: c_int,
}

/// One stream memory operation on a 32-bit word (`CUstreamBatchMemOpParams`: a union of 48 bytes).
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct WordOperation {
    pub(crate) operation: c_uint,
    pub(crate) address: u64,
    pub(crate) value: u64,
    pub(crate) flags: c_uint,
    pub(crate) alias: u64,
    pub(crate) rest: u64,
}

/// `CU_STREAM_MEM_OP_*`.
pub(crate) const OPERATION_WAIT: c_uint = 1;
pub(crate) const OPERATION_WRITE: c_uint = 2;

pub(crate) const SUCCESS: c_int = 0;
pub(crate) const INVALID_VALUE: c_int = 1;
pub(crate) const OUT_OF_MEMORY: c_int = 2;
pub(crate) const INVALID_CONTEXT: c_int = 201;
pub(crate) const INVALID_HANDLE: c_int = 400;
pub(crate) const PEER_ACCESS_ALREADY_ENABLED: c_int = 704;
pub(crate) const CONTEXT_IS_DESTROYED: c_int = 709;
pub(crate) const NOT_SUPPORTED: c_int = 801;
pub(crate) const NOT_READY: c_int = 600;
/// Everything that a stream capture may answer.
pub(crate) const CAPTURE_ERRORS: std::ops::RangeInclusive<c_int> = 900..=908;

pub(crate) const CAPTURE_MODE_RELAXED: c_int = 2;
pub(crate) const STREAM_NON_BLOCKING: c_uint = 1;
pub(crate) const STREAM_WAIT_VALUE_GEQ: c_uint = 0;
/// With a memory barrier before the write.
pub(crate) const STREAM_WRITE_VALUE_DEFAULT: c_uint = 0;
/// The legacy default stream of the current context.
pub(crate) const STREAM_LEGACY: Handle = 1;
/// The calling thread's default stream in the current context.
pub(crate) const STREAM_PER_THREAD: Handle = 2;
/// The greatest of the handles with a meaning of their own: 0 and 1 are the legacy default stream, 2 the
/// per-thread one.
pub(crate) const LAST_DEFAULT_STREAM: Handle = STREAM_PER_THREAD;
pub(crate) const EVENT_BLOCKING_SYNC: c_uint = 1;
pub(crate) const EVENT_DISABLE_TIMING: c_uint = 2;
pub(crate) const HOST_PORTABLE: c_uint = 1;
pub(crate) const HOST_DEVICE_MAP: c_uint = 2;
pub(crate) const HOST_READ_ONLY: c_uint = 8;
pub(crate) const MANAGED_ATTACH_GLOBAL: c_uint = 1;

pub(crate) const MEM_ALLOCATION_PINNED: c_int = 1;
pub(crate) const MEM_LOCATION_DEVICE: c_int = 1;
pub(crate) const MEM_ACCESS_READ_WRITE: c_int = 3;
pub(crate) const MEM_GRANULARITY_MINIMUM: c_int = 0;

pub(crate) const ATTRIBUTE_CAPABILITY_MAJOR: c_int = 75;
pub(crate) const ATTRIBUTE_CAPABILITY_MINOR: c_int = 76;
pub(crate) const ATTRIBUTE_HOST_POINTER_FOR_REGISTERED: c_int = 91;
pub(crate) const ATTRIBUTE_STREAM_MEM_OPS_V1: c_int = 92;
pub(crate) const ATTRIBUTE_HOST_REGISTER: c_int = 99;
pub(crate) const ATTRIBUTE_VIRTUAL_MEMORY: c_int = 102;
pub(crate) const ATTRIBUTE_READ_ONLY_HOST_REGISTER: c_int = 113;
pub(crate) const ATTRIBUTE_FLUSH_WRITES: c_int = 117;
pub(crate) const ATTRIBUTE_WRITES_ORDERING: c_int = 118;
pub(crate) const ATTRIBUTE_64_BIT_STREAM_MEM_OPS: c_int = 122;
pub(crate) const ATTRIBUTE_DMA_BUF: c_int = 124;
/// Of `ATTRIBUTE_WRITES_ORDERING`: what other devices wrote is seen by this one's later work without a flush.
pub(crate) const WRITES_ORDERED_FOR_OWNER: c_int = 100;
/// Of `ATTRIBUTE_FLUSH_WRITES`: `cuFlushGPUDirectRDMAWrites` works.
pub(crate) const FLUSH_BY_HOST: c_int = 1;
pub(crate) const FLUSH_CURRENT_CONTEXT: c_int = 0;
pub(crate) const FLUSH_TO_OWNER: c_int = 100;
pub(crate) const RANGE_HANDLE_DMA_BUF: c_int = 1;

pub(crate) const POINTER_CONTEXT: c_int = 1;
pub(crate) const POINTER_MEMORY_TYPE: c_int = 2;
pub(crate) const POINTER_SYNC_MEMOPS: c_int = 6;
pub(crate) const POINTER_BUFFER_ID: c_int = 7;
pub(crate) const POINTER_IS_MANAGED: c_int = 8;
pub(crate) const POINTER_DEVICE_ORDINAL: c_int = 9;
pub(crate) const POINTER_RANGE_START: c_int = 11;
pub(crate) const POINTER_RANGE_SIZE: c_int = 12;
pub(crate) const POINTER_ACCESS_FLAGS: c_int = 16;
/// Of memory that may be read and written.
pub(crate) const POINTER_ACCESS_READ_WRITE: u64 = 3;

pub(crate) const MEMORY_TYPE_HOST: c_uint = 1;
pub(crate) const MEMORY_TYPE_DEVICE: c_uint = 2;
pub(crate) const MEMORY_TYPE_UNIFIED: c_uint = 4;

/// Makes the table: a field per symbol that may be absent, and a method of the same name that calls it.
macro_rules! symbols {
    ($($name:ident($($argument:ident: $type:ty),*);)*) => {
        /// The driver's functions, each present or not.
        pub(crate) struct Symbols {
            $($name: Option<unsafe extern "C" fn($($type),*) -> c_int>,)*
        }

        impl Symbols {
            /// Looks every name up, except those in `hidden`.
            ///
            /// # Safety
            /// `library` is a CUDA driver (or its double), so that each symbol has the type that the table says,
            /// and stays loaded as long as the table is used.
            pub(crate) unsafe fn load(library: &Library, hidden: &[&str]) -> Self {
                Self {
                    $($name: if hidden.contains(&stringify!($name)) {
                        None
                    } else {
                        // SAFETY: the caller vouches for the library; the signature is the C header's.
                        unsafe { library.get(concat!(stringify!($name), "\0").as_bytes()) }.ok().map(|symbol| *symbol)
                    },)*
                }
            }

            /// The names that the library lacks.
            pub(crate) fn missing(&self) -> Vec<&'static str> {
                let mut missing = Vec::new();
                $(if self.$name.is_none() {
                    missing.push(stringify!($name));
                })*
                missing
            }

            $(
                #[inline]
                #[allow(dead_code, clippy::too_many_arguments)]
                #[doc = concat!("Calls `", stringify!($name), "`.\n\n# Safety\nAs the driver's documentation demands.")]
                pub(crate) unsafe fn $name(&self, $($argument: $type),*) -> Result<(), CudaFailure> {
                    let Some(function) = self.$name else {
                        return Err(CudaFailure { call: stringify!($name), code: MISSING });
                    };
                    // SAFETY: the caller keeps the function's contract.
                    match unsafe { function($($argument),*) } {
                        SUCCESS => Ok(()),
                        code => Err(CudaFailure { call: stringify!($name), code }),
                    }
                }
            )*
        }
    };
}

symbols! {
    cuInit(flags: c_uint);
    cuDriverGetVersion(version: *mut c_int);
    cuGetErrorName(code: c_int, name: *mut *const c_char);
    cuGetErrorString(code: c_int, text: *mut *const c_char);

    cuDeviceGetCount(count: *mut c_int);
    cuDeviceGet(device: *mut c_int, ordinal: c_int);
    cuDeviceGetName(name: *mut c_char, len: c_int, device: c_int);
    cuDeviceGetUuid(uuid: *mut [u8; 16], device: c_int);
    cuDeviceGetUuid_v2(uuid: *mut [u8; 16], device: c_int);
    cuDeviceGetPCIBusId(id: *mut c_char, len: c_int, device: c_int);
    cuDeviceTotalMem_v2(bytes: *mut usize, device: c_int);
    cuDeviceGetAttribute(value: *mut c_int, attribute: c_int, device: c_int);

    cuDeviceCanAccessPeer(can: *mut c_int, device: c_int, peer: c_int);

    cuDevicePrimaryCtxRetain(context: *mut Handle, device: c_int);
    cuDevicePrimaryCtxGetState(device: c_int, flags: *mut c_uint, active: *mut c_int);
    cuCtxGetCurrent(context: *mut Handle);
    cuCtxSetCurrent(context: Handle);
    cuCtxPushCurrent_v2(context: Handle);
    cuCtxPopCurrent_v2(context: *mut Handle);
    cuCtxGetDevice(device: *mut c_int);
    cuCtxGetId(context: Handle, id: *mut u64);
    cuCtxEnablePeerAccess(peer: Handle, flags: c_uint);
    cuThreadExchangeStreamCaptureMode(mode: *mut c_int);

    cuMemGetInfo_v2(free: *mut usize, total: *mut usize);
    cuMemAlloc_v2(address: *mut u64, len: usize);
    cuMemFree_v2(address: u64);
    cuMemAllocManaged(address: *mut u64, len: usize, flags: c_uint);
    cuMemHostAlloc(address: *mut *mut c_void, len: usize, flags: c_uint);
    cuMemFreeHost(address: *mut c_void);
    cuMemHostRegister_v2(address: *mut c_void, len: usize, flags: c_uint);
    cuMemHostUnregister(address: *mut c_void);
    cuMemHostGetDevicePointer_v2(device: *mut u64, address: *mut c_void, flags: c_uint);
    cuMemGetAddressRange_v2(start: *mut u64, len: *mut usize, address: u64);
    cuPointerGetAttributes(count: c_uint, attributes: *const c_int, data: *mut *mut c_void, address: u64);
    cuPointerSetAttribute(value: *const c_void, attribute: c_int, address: u64);
    cuMemGetHandleForAddressRange(handle: *mut c_void, address: u64, len: usize, kind: c_int, flags: u64);
    cuFlushGPUDirectRDMAWrites(target: c_int, scope: c_int);
    cuMemAddressReserve(address: *mut u64, len: usize, alignment: usize, wanted: u64, flags: u64);
    cuMemAddressFree(address: u64, len: usize);
    cuMemCreate(memory: *mut Handle, len: usize, prop: *const MemProp, flags: u64);
    cuMemRelease(memory: Handle);
    cuMemMap(address: u64, len: usize, offset: usize, memory: Handle, flags: u64);
    cuMemUnmap(address: u64, len: usize);
    cuMemSetAccess(address: u64, len: usize, access: *const MemAccess, count: usize);
    cuMemGetAllocationGranularity(granularity: *mut usize, prop: *const MemProp, option: c_int);

    cuMemcpyHtoDAsync_v2(dst: u64, src: *const c_void, len: usize, stream: Handle);
    cuMemcpyDtoHAsync_v2(dst: *mut c_void, src: u64, len: usize, stream: Handle);
    cuMemcpyDtoDAsync_v2(dst: u64, src: u64, len: usize, stream: Handle);
    cuMemsetD8Async(dst: u64, value: c_uchar, len: usize, stream: Handle);

    cuStreamCreate(stream: *mut Handle, flags: c_uint);
    cuStreamDestroy_v2(stream: Handle);
    cuStreamGetCtx(stream: Handle, context: *mut Handle);
    cuStreamGetId(stream: Handle, id: *mut u64);
    cuStreamQuery(stream: Handle);
    cuStreamIsCapturing(stream: Handle, status: *mut c_int);
    cuStreamWaitEvent(stream: Handle, event: Handle, flags: c_uint);
    cuStreamWaitValue32(stream: Handle, address: u64, value: u32, flags: c_uint);
    cuStreamWaitValue32_v2(stream: Handle, address: u64, value: u32, flags: c_uint);
    cuStreamWriteValue32(stream: Handle, address: u64, value: u32, flags: c_uint);
    cuStreamWriteValue32_v2(stream: Handle, address: u64, value: u32, flags: c_uint);
    cuStreamBatchMemOp_v2(stream: Handle, count: c_uint, operations: *mut WordOperation, flags: c_uint);
    cuLaunchHostFunc(stream: Handle, function: HostFunction, data: *mut c_void);

    cuEventCreate(event: *mut Handle, flags: c_uint);
    cuEventDestroy_v2(event: Handle);
    cuEventRecord(event: Handle, stream: Handle);
    cuEventQuery(event: Handle);
    cuEventSynchronize(event: Handle);

    cuModuleLoadData(module: *mut Handle, image: *const c_void);
    cuModuleGetFunction(function: *mut Handle, module: Handle, name: *const c_char);
    cuLaunchKernel(function: Handle, grid_x: c_uint, grid_y: c_uint, grid_z: c_uint, block_x: c_uint,
        block_y: c_uint, block_z: c_uint, shared: c_uint, stream: Handle, parameters: *mut *mut c_void,
        extra: *mut *mut c_void);
}

impl Symbols {
    /// Whether the newer form of the stream wait exists.
    pub(crate) fn has_wait_value_v2(&self) -> bool {
        self.cuStreamWaitValue32_v2.is_some()
    }

    /// Whether several stream memory operations can be queued by one call.
    pub(crate) fn has_word_batches(&self) -> bool {
        self.cuStreamBatchMemOp_v2.is_some()
    }

    /// Whether streams can write words by the newer form, or the older.
    pub(crate) fn has_word_writes(&self) -> (bool, bool) {
        (self.cuStreamWriteValue32_v2.is_some(), self.cuStreamWriteValue32.is_some())
    }

    /// The driver's name of a result code and its words for it, where it has any.
    pub(crate) fn describe(&self, code: c_int) -> (Option<String>, Option<String>) {
        let read = |function: Option<unsafe extern "C" fn(c_int, *mut *const c_char) -> c_int>| {
            let mut text = std::ptr::null();
            // SAFETY: `text` is a valid place for a pointer; the driver accepts any code and, on success, points
            // it to a string that lives as long as the library.
            unsafe {
                let code = function?(code, &raw mut text);
                (code == SUCCESS && !text.is_null())
                    .then(|| CStr::from_ptr(text).to_string_lossy().into_owned())
            }
        };
        (read(self.cuGetErrorName), read(self.cuGetErrorString))
    }
}
