//! The drop-in libcufile, loaded as any program loads it.

use std::ffi::{c_int, c_uint, c_void};
use std::path::{Path, PathBuf};
use std::ptr::null_mut;
use std::sync::OnceLock;

use crate::bytes::errno;
use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};

/// `CUfileError_t`.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Status {
    pub code: c_int,
    pub driver: c_int,
}

/// `CUfileDescr_t`.
#[repr(C)]
pub struct Descr {
    kind: c_int,
    handle: u64,
    operations: *const c_void,
}

/// `CUfileHandle_t`.
#[derive(Clone, Copy, Debug)]
#[repr(transparent)]
pub struct Handle(*mut c_void);
// SAFETY: it is a name; the library takes it on any thread.
unsafe impl Send for Handle {}
// SAFETY: as above.
unsafe impl Sync for Handle {}

/// `CUfileBatchHandle_t`.
pub type BatchHandle = *mut c_void;

/// `CUfileIOParams_t`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Params {
    mode: c_int,
    base: u64,
    file_offset: i64,
    base_offset: i64,
    size: usize,
    handle: Handle,
    opcode: c_int,
    cookie: usize,
}

/// `CUfileIOEvents_t`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Event {
    pub cookie: usize,
    pub status: c_int,
    pub ret: usize,
}

/// The code of a handle whose file is gone.
pub const INVALID_HANDLE: i32 = 5027;
const COMPLETE: c_int = 0x10;

impl Params {
    pub fn new(
        handle: Handle,
        is_read: bool,
        base: u64,
        size: usize,
        file_offset: u64,
        cookie: usize,
    ) -> Self {
        let opcode = c_int::from(!is_read);
        Self { mode: 1, base, file_offset: file_offset as i64, base_offset: 0, size, handle, opcode, cookie }
    }
}

impl Event {
    /// As the result of a call: bytes, or a negative code.
    pub fn result(&self) -> isize {
        if self.status == COMPLETE { self.ret as isize } else { (self.ret as isize).min(-1) }
    }
}

/// What a call returned: -1 stands for `errno`.
pub fn told(returned: isize) -> isize {
    if returned == -1 { -(errno() as isize) } else { returned }
}

macro_rules! functions {
    ($($name:ident = $symbol:literal ($($type:ty),*) $(-> $result:ty)?;)*) => {
        /// The functions. They may be unwound through: cancelled threads are.
        pub struct CuFile {
            $(pub $name: unsafe extern "C-unwind" fn($($type),*) $(-> $result)?,)*
            _library: Library,
        }

        impl CuFile {
            fn load(path: &Path) -> Result<Self, libloading::Error> {
                // SAFETY: loading it runs only what any program gets.
                let library = unsafe { Library::open(Some(path), RTLD_NOW | RTLD_LOCAL) }?;
                Ok(Self {
                    // SAFETY: the types are those of cufile.h.
                    $($name: unsafe { *library.get(concat!($symbol, "\0").as_bytes())? },)*
                    _library: library,
                })
            }
        }
    };
}

functions! {
    handle_register = "cuFileHandleRegister"(*mut Handle, *mut Descr) -> Status;
    handle_deregister = "cuFileHandleDeregister"(Handle);
    buf_register = "cuFileBufRegister"(u64, usize, c_int) -> Status;
    buf_deregister = "cuFileBufDeregister"(u64) -> Status;
    raw_read = "cuFileRead"(Handle, u64, usize, i64, i64) -> isize;
    raw_write = "cuFileWrite"(Handle, u64, usize, i64, i64) -> isize;
    batch_set_up = "cuFileBatchIOSetUp"(*mut BatchHandle, c_uint) -> Status;
    batch_submit = "cuFileBatchIOSubmit"(BatchHandle, c_uint, *mut Params, c_uint) -> Status;
    batch_status = "cuFileBatchIOGetStatus"(BatchHandle, c_uint, *mut c_uint, *mut Event, *mut libc::timespec) -> Status;
    batch_cancel = "cuFileBatchIOCancel"(BatchHandle) -> Status;
    batch_destroy = "cuFileBatchIODestroy"(BatchHandle);
    read_async = "cuFileReadAsync"(Handle, u64, *mut usize, *mut i64, *mut i64, *mut isize, u64) -> Status;
    write_async = "cuFileWriteAsync"(Handle, u64, *mut usize, *mut i64, *mut i64, *mut isize, u64) -> Status;
}

/// The library built with this program.
pub fn beside(name: &str) -> PathBuf {
    let executable = std::env::current_exe().expect("this program has a path");
    let folder = executable.parent().expect("a program lies in a folder");
    // What this build needed is in `deps`, and newer than a copy beside it.
    let mut places = [folder.join("deps").join(name), folder.join(name)].into_iter();
    places.find(|path| path.exists()).unwrap_or_else(|| panic!("{name} is missing: `make torture` builds it"))
}

/// The library of this process.
pub fn cufile() -> &'static CuFile {
    static LOADED: OnceLock<CuFile> = OnceLock::new();
    LOADED.get_or_init(|| {
        // It looks for the driver once.
        fake_cuda::install().expect("the software GPU can be loaded");
        CuFile::load(&beside("libcufile.so")).expect("libcufile.so can be loaded")
    })
}

impl CuFile {
    /// Registers a descriptor; the code if it is refused.
    pub fn register(&self, fd: c_int) -> Result<Handle, i32> {
        let mut descr = Descr { kind: 1, handle: fd as u64, operations: std::ptr::null() };
        let mut handle = Handle(null_mut());
        // SAFETY: both are valid for the call.
        let status = unsafe { (self.handle_register)(&raw mut handle, &raw mut descr) };
        if status.code == 0 { Ok(handle) } else { Err(status.code) }
    }

    pub fn deregister(&self, handle: Handle) {
        // SAFETY: a handle of `register`.
        unsafe { (self.handle_deregister)(handle) }
    }

    /// Bytes, or a negative code. The memory must be a GPU's, or stay valid for the call.
    pub fn read(&self, handle: Handle, base: u64, size: usize, offset: u64) -> isize {
        // SAFETY: by the caller; memory of the software GPU is looked up by its address.
        told(unsafe { (self.raw_read)(handle, base, size, offset as i64, 0) })
    }

    /// As [`Self::read`].
    pub fn write(&self, handle: Handle, base: u64, size: usize, offset: u64) -> isize {
        // SAFETY: as above.
        told(unsafe { (self.raw_write)(handle, base, size, offset as i64, 0) })
    }

    /// A batch of up to `count` entries.
    pub fn batch(&'static self, count: usize) -> Batch {
        let mut handle = null_mut();
        // SAFETY: the place is valid.
        let status = unsafe { (self.batch_set_up)(&raw mut handle, count as c_uint) };
        assert_eq!(status.code, 0, "cuFileBatchIOSetUp");
        Batch { library: self, handle }
    }

    /// Runs entries as a batch; their results in the order of the entries, or the code of the submission.
    pub fn run_batch(&'static self, entries: &mut [Params]) -> Result<Vec<isize>, i32> {
        for (index, entry) in entries.iter_mut().enumerate() {
            entry.cookie = index;
        }
        let batch = self.batch(entries.len());
        batch.submit(entries)?;
        let mut results = vec![isize::MIN; entries.len()];
        let mut left = entries.len();
        while left > 0 {
            let events = batch.status(1, left, None)?;
            left -= events.len();
            for event in events {
                results[event.cookie] = event.result();
            }
        }
        Ok(results)
    }
}

/// A batch; destroyed when it is dropped.
pub struct Batch {
    library: &'static CuFile,
    handle: BatchHandle,
}

impl Batch {
    pub fn submit(&self, entries: &mut [Params]) -> Result<(), i32> {
        // SAFETY: the entries are valid for the call, which copies them.
        let status = unsafe {
            (self.library.batch_submit)(self.handle, entries.len() as c_uint, entries.as_mut_ptr(), 0)
        };
        if status.code == 0 { Ok(()) } else { Err(status.code) }
    }

    /// At least `least` events, unless the time is over first; at most `most`.
    pub fn status(
        &self,
        least: usize,
        most: usize,
        limit: Option<libc::timespec>,
    ) -> Result<Vec<Event>, i32> {
        let mut events = vec![Event::default(); most.max(1)];
        let mut count = most as c_uint;
        let mut limit = limit;
        let time = limit.as_mut().map_or(null_mut(), std::ptr::from_mut);
        // SAFETY: there is room for `count` events.
        let status = unsafe {
            (self.library.batch_status)(
                self.handle,
                least as c_uint,
                &raw mut count,
                events.as_mut_ptr(),
                time,
            )
        };
        events.truncate(count as usize);
        if status.code == 0 { Ok(events) } else { Err(status.code) }
    }

    pub fn cancel(&self) -> i32 {
        // SAFETY: the batch lives.
        unsafe { (self.library.batch_cancel)(self.handle) }.code
    }
}

impl Drop for Batch {
    fn drop(&mut self) {
        // SAFETY: it is destroyed once.
        unsafe { (self.library.batch_destroy)(self.handle) }
    }
}
