//! The GPU as a program of the CUDA runtime sees it: the primary context, current on every thread that calls.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::ffi::{c_int, c_uint};
use std::sync::atomic::{AtomicBool, Ordering};

use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};

use crate::options::Memory;

const ATTACH_GLOBAL: c_uint = 1;
const NON_BLOCKING: c_uint = 1;
const DISABLE_TIMING: c_uint = 2;
const PAGE: usize = 4096;

macro_rules! driver {
    ($driver:ident { $($name:ident: fn($($argument:ty),*);)* }) => {
        #[allow(non_snake_case)]
        #[derive(Debug)]
        struct $driver { $($name: unsafe extern "C" fn($($argument),*) -> c_int,)* }

        impl $driver {
            fn load(library: &libloading::os::unix::Library, path: &str) -> Result<Self, String> {
                // SAFETY: the types are those of the driver API.
                Ok(Self { $($name: *unsafe { library.get(concat!(stringify!($name), "\0").as_bytes()) }
                    .map_err(|error| format!("{path}: no {}: {error}", stringify!($name)))?,)* })
            }
        }
    };
}
pub(crate) use driver;

driver! { Driver {
    cuInit: fn(c_uint);
    cuDeviceGet: fn(*mut c_int, c_int);
    cuDevicePrimaryCtxRetain: fn(*mut usize, c_int);
    cuCtxSetCurrent: fn(usize);
    cuMemAlloc_v2: fn(*mut usize, usize);
    cuMemAllocManaged: fn(*mut usize, usize, c_uint);
    cuMemFree_v2: fn(usize);
    cuStreamCreate: fn(*mut usize, c_uint);
    cuStreamDestroy_v2: fn(usize);
    cuStreamSynchronize: fn(usize);
    cuEventCreate: fn(*mut usize, c_uint);
    cuEventRecord: fn(usize, usize);
    cuEventSynchronize: fn(usize);
    cuMemsetD8Async: fn(usize, u8, usize, usize);
    cuMemcpyHtoDAsync_v2: fn(usize, *const u8, usize, usize);
    cuMemcpyDtoHAsync_v2: fn(*mut u8, usize, usize, usize);
} }

/// The driver and the primary context of one device, retained for the life of the process.
#[derive(Debug)]
pub(crate) struct Gpu {
    driver: Driver,
    context: usize,
}

/// Memory for requests.
#[derive(Debug)]
pub(crate) struct Buffer {
    pub(crate) address: usize,
    pub(crate) len: usize,
    kind: Memory,
}

impl Gpu {
    /// Loads the driver and makes the context current here.
    pub(crate) fn open(ordinal: c_int) -> Result<Self, String> {
        let (library, path) = open_driver()?;
        let driver = Driver::load(&library, &path)?;
        std::mem::forget(library);
        let (mut device, mut context) = (0, 0);
        // SAFETY: all pointers are to live places of the right type.
        unsafe {
            done("cuInit", (driver.cuInit)(0))?;
            done("cuDeviceGet", (driver.cuDeviceGet)(&raw mut device, ordinal))?;
            done("cuDevicePrimaryCtxRetain", (driver.cuDevicePrimaryCtxRetain)(&raw mut context, device))?;
        }
        let gpu = Self { driver, context };
        gpu.enter()?;
        Ok(gpu)
    }

    /// Makes the context current on this thread.
    pub(crate) fn enter(&self) -> Result<(), String> {
        // SAFETY: the context is retained.
        done("cuCtxSetCurrent", unsafe { (self.driver.cuCtxSetCurrent)(self.context) })
    }

    pub(crate) fn allocate(&self, kind: Memory, len: usize) -> Result<Buffer, String> {
        let mut address = 0;
        // SAFETY: a valid place for an address; a layout that is not empty.
        unsafe {
            match kind {
                Memory::Device => done("cuMemAlloc", (self.driver.cuMemAlloc_v2)(&raw mut address, len))?,
                Memory::Managed => {
                    let answer = (self.driver.cuMemAllocManaged)(&raw mut address, len, ATTACH_GLOBAL);
                    done("cuMemAllocManaged", answer)?;
                }
                Memory::Host => address = alloc_zeroed(layout(len)?) as usize,
            }
        }
        if address == 0 {
            return Err(format!("cannot allocate {len} bytes"));
        }
        Ok(Buffer { address, len, kind })
    }

    /// Frees memory that nothing uses any more.
    pub(crate) fn free(&self, buffer: &Buffer) -> Result<(), String> {
        // SAFETY: the address and length come from `allocate`; every buffer is freed once.
        unsafe {
            if buffer.kind == Memory::Host {
                dealloc(buffer.address as *mut u8, layout(buffer.len)?);
                return Ok(());
            }
            done("cuMemFree", (self.driver.cuMemFree_v2)(buffer.address))
        }
    }

    /// A stream as `cudaStreamCreate` makes it, or one that has nothing to do with the default stream.
    pub(crate) fn stream(&self, alone: bool) -> Result<usize, String> {
        let mut stream = 0;
        let flags = if alone { NON_BLOCKING } else { 0 };
        // SAFETY: a valid place for a handle.
        done("cuStreamCreate", unsafe { (self.driver.cuStreamCreate)(&raw mut stream, flags) })?;
        Ok(stream)
    }

    pub(crate) fn destroy(&self, stream: usize) -> Result<(), String> {
        // SAFETY: a stream of ours, destroyed once.
        done("cuStreamDestroy", unsafe { (self.driver.cuStreamDestroy_v2)(stream) })
    }

    pub(crate) fn synchronize(&self, stream: usize) -> Result<(), String> {
        // SAFETY: a live stream.
        done("cuStreamSynchronize", unsafe { (self.driver.cuStreamSynchronize)(stream) })
    }

    /// Keeps the legacy default stream full until `stop`; how many pieces of work it did.
    pub(crate) fn keep_busy(&self, stop: &AtomicBool) -> Result<u64, String> {
        /// About 20 µs of an H200.
        const PIECE: usize = 64 << 20;
        const IN_FLIGHT: usize = 8;
        self.enter()?;
        let buffer = self.allocate(Memory::Device, PIECE)?;
        let mut events = [0; IN_FLIGHT];
        for event in &mut events {
            // SAFETY: a valid place for a handle.
            done("cuEventCreate", unsafe { (self.driver.cuEventCreate)(event, DISABLE_TIMING) })?;
        }
        let mut count = 0;
        while !stop.load(Ordering::Relaxed) {
            let event = events[count as usize % IN_FLIGHT];
            // SAFETY: live events, and memory that is freed after the last piece of work.
            unsafe {
                done("cuEventSynchronize", (self.driver.cuEventSynchronize)(event))?;
                done("cuMemsetD8Async", (self.driver.cuMemsetD8Async)(buffer.address, 0, PIECE, 0))?;
                done("cuEventRecord", (self.driver.cuEventRecord)(event, 0))?;
            }
            count += 1;
        }
        self.synchronize(0)?;
        self.free(&buffer)?;
        Ok(count)
    }

    /// Copies `from` to `at..` of the buffer, and waits.
    pub(crate) fn put(&self, buffer: &Buffer, at: usize, from: &[u8], stream: usize) -> Result<(), String> {
        if at + from.len() > buffer.len {
            return Err("the copy is longer than the buffer".to_owned());
        }
        let to = buffer.address + at;
        // SAFETY: the range lies in the buffer, and the copy is done before `from` goes.
        unsafe {
            if buffer.kind == Memory::Host {
                std::ptr::copy_nonoverlapping(from.as_ptr(), to as *mut u8, from.len());
                return Ok(());
            }
            done(
                "cuMemcpyHtoDAsync",
                (self.driver.cuMemcpyHtoDAsync_v2)(to, from.as_ptr(), from.len(), stream),
            )?;
        }
        self.synchronize(stream)
    }

    /// Copies `at..` of the buffer to `to`, and waits.
    pub(crate) fn get(&self, buffer: &Buffer, at: usize, to: &mut [u8], stream: usize) -> Result<(), String> {
        if at + to.len() > buffer.len {
            return Err("the copy is longer than the buffer".to_owned());
        }
        let from = buffer.address + at;
        // SAFETY: as in `put`.
        unsafe {
            if buffer.kind == Memory::Host {
                std::ptr::copy_nonoverlapping(from as *const u8, to.as_mut_ptr(), to.len());
                return Ok(());
            }
            let answer = (self.driver.cuMemcpyDtoHAsync_v2)(to.as_mut_ptr(), from, to.len(), stream);
            done("cuMemcpyDtoHAsync", answer)?;
        }
        self.synchronize(stream)
    }
}

/// The driver's library and its path: the system's, or what `FOREBAY_LIBCUDA` names.
pub(crate) fn open_driver() -> Result<(Library, String), String> {
    let path = std::env::var("FOREBAY_LIBCUDA").ok().filter(|path| !path.is_empty());
    let path = path.unwrap_or_else(|| "libcuda.so.1".to_owned());
    // SAFETY: loading runs the constructors of the system's driver, or of the one that the user named.
    let library = unsafe { Library::open(Some(&path), RTLD_NOW | RTLD_LOCAL) }
        .map_err(|_| format!("cannot load the CUDA driver {path}"))?;
    Ok((library, path))
}

fn layout(len: usize) -> Result<Layout, String> {
    Layout::from_size_align(len, PAGE).map_err(|error| error.to_string())
}

pub(crate) fn done(call: &str, code: c_int) -> Result<(), String> {
    if code == 0 { Ok(()) } else { Err(format!("{call}: the CUDA driver refused (code={code})")) }
}
