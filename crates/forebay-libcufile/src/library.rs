//! NVIDIA's libcufile: found where it lies, loaded by its absolute path, never mistaken for forebay's own.
//!
//! # In which namespace
//! The library must not meet another libcufile. The drop-in of forebay, preloaded, is in front of everything that is
//! looked up by name, and would even be found by NVIDIA's library itself, which calls its own exported functions. Three
//! ways to keep them apart were weighed:
//! - `dlmopen` with a namespace of its own keeps everything apart, and that is too much: in there `dlopen("libcuda.so.1")`
//!   (libcufile loads the driver that way) gives a second driver, which knows no pointer, context or stream of this
//!   process's. glibc allows few namespaces, and each gets a libc with threads' memory of its own.
//! - `RTLD_LOCAL` alone keeps its names from others, but not others' from it.
//! - `RTLD_LOCAL | RTLD_DEEPBIND` lets it find its own names first, then those of its dependencies, and only then the
//!   process's. Libraries that are loaded stay shared, so libcuda is the one already there. This is done, and
//!   only where another libcufile is in front: deep binding also finds libc's `malloc` before an allocator that was
//!   preloaded, and memory of one may end in the `free` of the other. Where both are preloaded it is refused.

use std::ffi::{CStr, CString, OsStr, c_int, c_void};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use forebay_error::{Error, ErrorKind, Result};

use crate::abi::Calls;
use crate::places;

/// What forebay's own libraries export, and NVIDIA's does not (see [`forebay_engine::publish_session`]).
const MARKER: &CStr = c"forebay_session_v1";

/// The loaded library. It stays loaded.
#[derive(Debug)]
pub(super) struct Library {
    pub(super) path: PathBuf,
    pub(super) calls: Calls,
}

impl Library {
    /// Finds and loads it.
    pub(super) fn find() -> Result<Self> {
        let candidates = places::candidates()?;
        let mut refused = None;
        for path in &candidates {
            match Self::load(path) {
                Ok(library) => return Ok(library),
                Err(error) => refused.get_or_insert(error),
            };
        }
        Err(refused.unwrap_or_else(|| {
            Error::new(ErrorKind::Unsupported, "NVIDIA's libcufile is not installed in any usual place")
                .hint("install it (it comes with the CUDA toolkit; pip install nvidia-cufile)")
                .hint("or give its path: FOREBAY_VENDOR_LIBCUFILE=/…/libcufile.so.0")
        }))
    }

    fn load(path: &Path) -> Result<Self> {
        let name = CString::new(path.as_os_str().as_bytes())
            .map_err(|_| Error::new(ErrorKind::InvalidInput, "a path with a NUL byte"))?;
        let handle = open(&name, flags(path)?).map_err(|reason| {
            Error::new(ErrorKind::Unsupported, format!("NVIDIA's libcufile cannot be loaded: {reason}"))
                .with("library", path.display())
                .hint("name another one: FOREBAY_VENDOR_LIBCUFILE=/…/libcufile.so.0")
        })?;
        if !look_up(handle, MARKER).is_null() {
            // SAFETY: opened above, and nothing of it is used.
            unsafe { libc::dlclose(handle) };
            return Err(ours(path));
        }
        // SAFETY: the addresses are those of the library's functions. It is not closed again.
        let calls = unsafe { Calls::load(path, |name| look_up(handle, name)) }?;
        Ok(Self { path: path.to_owned(), calls })
    }
}

fn ours(path: &Path) -> Error {
    Error::new(ErrorKind::Unsupported, "this libcufile is forebay's own, not NVIDIA's")
        .with("library", path.display())
        .hint("name NVIDIA's: FOREBAY_VENDOR_LIBCUFILE=/usr/local/cuda/lib64/libcufile.so.0")
}

fn flags(path: &Path) -> Result<c_int> {
    let plain = libc::RTLD_NOW | libc::RTLD_LOCAL;
    let Some(other) = object_of(look_up(libc::RTLD_DEFAULT, c"cuFileDriverOpen")) else { return Ok(plain) };
    if std::fs::canonicalize(&other.path).is_ok_and(|other| other == path) {
        return Ok(plain);
    }
    match foreign_allocator() {
        None => Ok(plain | libc::RTLD_DEEPBIND),
        Some(allocator) => Err(Error::new(
            ErrorKind::Unsupported,
            "another libcufile and another allocator are both preloaded: NVIDIA's library can be kept apart from one \
             of them only",
        )
        .with("libcufile", other.path.display())
        .with("allocator", allocator.display())
        .hint("take one of the two out of LD_PRELOAD")),
    }
}

/// The object that `malloc` is of, if it is not libc.
fn foreign_allocator() -> Option<PathBuf> {
    let malloc = object_of(look_up(libc::RTLD_DEFAULT, c"malloc"))?;
    let libc = object_of(look_up(libc::RTLD_DEFAULT, c"gnu_get_libc_version"))?;
    (malloc.base != libc.base).then_some(malloc.path)
}

/// A loaded object.
struct Object {
    path: PathBuf,
    base: usize,
}

/// The object that an address lies in.
fn object_of(address: *mut c_void) -> Option<Object> {
    if address.is_null() {
        return None;
    }
    // SAFETY: a zeroed Dl_info is a valid value to overwrite.
    let mut info: libc::Dl_info = unsafe { std::mem::zeroed() };
    // SAFETY: the address is only looked up; `info` is writable.
    if unsafe { libc::dladdr(address, &raw mut info) } == 0 || info.dli_fname.is_null() {
        return None;
    }
    // SAFETY: the name of a loaded object, copied at once.
    let name = unsafe { CStr::from_ptr(info.dli_fname) };
    Some(Object { path: PathBuf::from(OsStr::from_bytes(name.to_bytes())), base: info.dli_fbase as usize })
}

/// Where the object with this code in it lies.
pub(super) fn own_object() -> Option<PathBuf> {
    object_of(own_object as fn() -> Option<PathBuf> as *mut c_void).map(|object| object.path)
}

fn open(name: &CStr, flags: c_int) -> Result<*mut c_void, String> {
    // SAFETY: loading runs the library's constructors; the one that the user installed is trusted with that.
    let handle = unsafe { libc::dlopen(name.as_ptr(), flags) };
    if !handle.is_null() {
        return Ok(handle);
    }
    // SAFETY: the text of this thread's last failure, copied at once.
    let text = unsafe {
        let text = libc::dlerror();
        (!text.is_null()).then(|| CStr::from_ptr(text).to_string_lossy().into_owned())
    };
    Err(text.unwrap_or_else(|| "dlopen failed".to_owned()))
}

fn look_up(handle: *mut c_void, name: &CStr) -> *mut c_void {
    // SAFETY: a live handle (or the default scope) and a C string.
    unsafe { libc::dlsym(handle, name.as_ptr()) }
}
