//! The C interface of libcufile as far as the benchmark uses it: layouts, numbers and the library's functions.
//!
//! Pointers that only the library looks into travel as integers.

use std::ffi::c_int;
use std::mem::{offset_of, size_of};
use std::path::Path;

use libloading::os::unix::{Library as Object, RTLD_LOCAL, RTLD_NOW};

/// `CUfileError_t`: 8 bytes, returned in a register.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct Answer {
    pub(crate) err: c_int,
    pub(crate) cu_err: c_int,
}

/// `CUfileDescr_t` with a descriptor in its union.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct Descr {
    pub(crate) kind: c_int,
    pub(crate) padding: c_int,
    pub(crate) fd: c_int,
    pub(crate) rest_of_union: c_int,
    pub(crate) fs_ops: usize,
}

/// `CUfileIOParams_t`: one entry of a batch.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Entry {
    pub(crate) mode: c_int,
    pub(crate) base: usize,
    pub(crate) file_offset: i64,
    pub(crate) base_offset: i64,
    pub(crate) size: usize,
    pub(crate) file: usize,
    pub(crate) opcode: c_int,
    pub(crate) cookie: usize,
}

/// `CUfileIOEvents_t`: the result of an entry.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Event {
    pub(crate) cookie: usize,
    pub(crate) status: c_int,
    pub(crate) ret: usize,
}

const _: () = {
    assert!(size_of::<Answer>() == 8);
    assert!(size_of::<Descr>() == 24 && offset_of!(Descr, fd) == 8 && offset_of!(Descr, fs_ops) == 16);
    assert!(size_of::<Entry>() == 64 && offset_of!(Entry, base) == 8 && offset_of!(Entry, file_offset) == 16);
    assert!(offset_of!(Entry, base_offset) == 24 && offset_of!(Entry, size) == 32);
    assert!(
        offset_of!(Entry, file) == 40 && offset_of!(Entry, opcode) == 48 && offset_of!(Entry, cookie) == 56
    );
    assert!(size_of::<Event>() == 24 && offset_of!(Event, status) == 8 && offset_of!(Event, ret) == 16);
};

pub(crate) const KIND_FD: c_int = 1;
pub(crate) const MODE_BATCH: c_int = 1;
pub(crate) const OPCODE_READ: c_int = 0;
pub(crate) const OPCODE_WRITE: c_int = 1;
pub(crate) const STATUS_COMPLETE: c_int = 0x10;

/// The signature of cuFileRead and cuFileWrite.
pub(crate) type Transfer = unsafe extern "C" fn(usize, usize, usize, i64, i64) -> isize;
/// The signature of cuFileReadAsync and cuFileWriteAsync.
pub(crate) type TransferAsync =
    unsafe extern "C" fn(usize, usize, *mut usize, *mut i64, *mut i64, *mut isize, usize) -> Answer;

macro_rules! functions {
    ($($field:ident = $name:literal: $signature:ty;)*) => {
        /// A loaded libcufile. It is never unloaded.
        #[derive(Debug)]
        pub(crate) struct Library {
            $(pub(crate) $field: $signature,)*
        }

        impl Library {
            pub(crate) fn open(path: &Path) -> Result<Self, String> {
                // SAFETY: loading runs the constructors of a library that the user named.
                let object = unsafe { Object::open(Some(path), RTLD_NOW | RTLD_LOCAL) }
                    .map_err(|error| format!("cannot load {}: {}", path.display(), reason(&error)))?;
                let library = Self {
                    // SAFETY: the types are those of the public C interface.
                    $($field: *unsafe { object.get::<$signature>($name) }.map_err(|error| {
                        format!("{}: no {}: {error}", path.display(), stringify!($field))
                    })?,)*
                };
                std::mem::forget(object);
                Ok(library)
            }
        }
    };
}

functions! {
    get_version = b"cuFileGetVersion\0": unsafe extern "C" fn(*mut c_int) -> Answer;
    driver_open = b"cuFileDriverOpen\0": unsafe extern "C" fn() -> Answer;
    driver_close = b"cuFileDriverClose_v2\0": unsafe extern "C" fn() -> Answer;
    handle_register = b"cuFileHandleRegister\0": unsafe extern "C" fn(*mut usize, *mut Descr) -> Answer;
    handle_deregister = b"cuFileHandleDeregister\0": unsafe extern "C" fn(usize);
    buf_register = b"cuFileBufRegister\0": unsafe extern "C" fn(usize, usize, c_int) -> Answer;
    buf_deregister = b"cuFileBufDeregister\0": unsafe extern "C" fn(usize) -> Answer;
    read = b"cuFileRead\0": Transfer;
    write = b"cuFileWrite\0": Transfer;
    batch_set_up = b"cuFileBatchIOSetUp\0": unsafe extern "C" fn(*mut usize, u32) -> Answer;
    batch_submit = b"cuFileBatchIOSubmit\0": unsafe extern "C" fn(usize, u32, *mut Entry, u32) -> Answer;
    batch_get_status = b"cuFileBatchIOGetStatus\0":
        unsafe extern "C" fn(usize, u32, *mut u32, *mut Event, *mut libc::timespec) -> Answer;
    batch_destroy = b"cuFileBatchIODestroy\0": unsafe extern "C" fn(usize);
    read_async = b"cuFileReadAsync\0": TransferAsync;
    write_async = b"cuFileWriteAsync\0": TransferAsync;
    stream_register = b"cuFileStreamRegister\0": unsafe extern "C" fn(usize, u32) -> Answer;
    stream_deregister = b"cuFileStreamDeregister\0": unsafe extern "C" fn(usize) -> Answer;
}

impl Library {
    /// What the library says of itself: 1150 is 1.15.
    pub(crate) fn version(&self) -> Result<i32, String> {
        let mut version = 0;
        // SAFETY: a valid place for an int.
        unsafe { (self.get_version)(&raw mut version) }.done("cuFileGetVersion")?;
        Ok(version)
    }

    pub(crate) fn open_driver(&self) -> Result<(), String> {
        // SAFETY: takes nothing.
        unsafe { (self.driver_open)() }.done("cuFileDriverOpen")
    }

    pub(crate) fn close_driver(&self) -> Result<(), String> {
        // SAFETY: takes nothing; all requests are done.
        unsafe { (self.driver_close)() }.done("cuFileDriverClose_v2")
    }

    /// A handle for a descriptor that stays open until the handle is deregistered.
    pub(crate) fn register(&self, fd: c_int) -> Result<usize, String> {
        let mut descr = Descr { kind: KIND_FD, padding: 0, fd, rest_of_union: 0, fs_ops: 0 };
        let mut handle = 0;
        // SAFETY: both point to live values of the interface's layout.
        unsafe { (self.handle_register)(&raw mut handle, &raw mut descr) }.done("cuFileHandleRegister")?;
        Ok(handle)
    }

    pub(crate) fn deregister(&self, handle: usize) {
        // SAFETY: the handle is registered, and no request uses it any more.
        unsafe { (self.handle_deregister)(handle) }
    }
}

impl Answer {
    pub(crate) fn done(self, call: &str) -> Result<(), String> {
        if self.err == 0 && self.cu_err == 0 {
            return Ok(());
        }
        Err(format!("{call}: {} (err={}, cu_err={})", meaning(self.err), self.err, self.cu_err))
    }
}

/// Why the linker refused.
fn reason(error: &libloading::Error) -> String {
    std::error::Error::source(error).map_or_else(|| error.to_string(), ToString::to_string)
}

/// Words for the codes that a benchmark meets.
pub(crate) fn meaning(code: i32) -> String {
    let text = match code {
        0 => "success",
        5001 => "the driver is not initialised",
        5008 => "I/O on this file is not supported",
        5011 => "CUDA failed",
        5018 => "not a kind of file it takes",
        5019 => "not a way of opening it takes",
        5022 => "invalid arguments",
        5023 => "the memory is registered already",
        5024 => "the memory is not registered",
        5027 => "the file is not registered",
        5028 => "the file is registered already",
        5030 => "internal error",
        5035 | 5040 => "the batch was not taken",
        5037 => "the batch is full",
        5038 => "streams are not supported",
        5039 => "the batch was not set up",
        5041 => "no status of the batch",
        5044 => "I/O error",
        _ if (1..4096).contains(&code) => return std::io::Error::from_raw_os_error(code).to_string(),
        _ => "error of another kind",
    };
    text.to_owned()
}
