//! Registering files.

use std::ffi::c_int;
use std::os::fd::RawFd;

use forebay_engine::File;
use forebay_stats::{FileCounter, Op};

use super::{guarded, guarded_plain};
use crate::abi::{
    CUfileDescr, CUfileError, CUfileHandle, HANDLE_TYPE_OPAQUE_FD, HANDLE_TYPE_USERSPACE_FS, code,
};
use crate::handles::RegisteredFile;
use crate::library::{CufileLibrary, library};
use crate::log::log_error;
use crate::meter::meter;
use crate::status::{RefusedCall, code_of};

/// The open flags of a descriptor.
fn flags_of(fd: RawFd) -> Result<c_int, RefusedCall> {
    // SAFETY: no pointers are passed.
    let flags = unsafe { libc::fcntl(fd, libc::F_GETFL) };
    if flags < 0 { Err(RefusedCall(code::INVALID_VALUE)) } else { Ok(flags) }
}

fn stat_of(fd: RawFd) -> Option<libc::stat> {
    // SAFETY: zero is a valid value of this plain struct.
    let mut stat: libc::stat = unsafe { std::mem::zeroed() };
    // SAFETY: `stat` is a valid place.
    (unsafe { libc::fstat(fd, &raw mut stat) } == 0).then_some(stat)
}

/// Only regular files and block devices can be registered.
fn check_type(fd: RawFd) -> Result<(), RefusedCall> {
    let stat = stat_of(fd).ok_or(RefusedCall(code::INVALID_VALUE))?;
    match stat.st_mode & libc::S_IFMT {
        libc::S_IFREG | libc::S_IFBLK => Ok(()),
        _ => Err(RefusedCall(code::INVALID_FILE_TYPE)),
    }
}

fn open_descriptor(library: &CufileLibrary, fd: RawFd) -> Result<RegisteredFile, RefusedCall> {
    let flags = flags_of(fd)?;
    check_type(fd)?;
    if flags & libc::O_APPEND != 0 || flags & libc::O_PATH != 0 {
        return Err(RefusedCall(code::INVALID_FILE_OPEN_FLAG));
    }
    if library.files.has(fd) {
        return Err(RefusedCall(code::HANDLE_ALREADY_REGISTERED));
    }
    // SAFETY: the interface demands that the descriptor is open.
    let file = unsafe { File::adopt(fd) }.map_err(|error| {
        log_error("file", &error);
        RefusedCall(code_of(&error))
    })?;
    let name = file.name();
    let (can_read, can_write) = file.access();
    Ok(RegisteredFile {
        fd,
        can_read,
        can_write,
        is_direct: flags & libc::O_DIRECT != 0,
        counter: FileCounter::new(&name),
        traced: meter().traced_file(&name),
        file: Some(file),
    })
}

/// Flags and size of a descriptor's file, for the trace.
fn described(fd: RawFd) -> (c_int, u64) {
    (flags_of(fd).unwrap_or(0), stat_of(fd).map_or(0, |stat| stat.st_size as u64))
}

fn register(handle: *mut CUfileHandle, description: *const CUfileDescr) -> Result<(), RefusedCall> {
    let library = library();
    let session = library.ensure_open()?;
    library.prepare(session);
    if handle.is_null() || description.is_null() {
        return Err(RefusedCall(code::INVALID_VALUE));
    }
    // SAFETY: the caller's description, checked not to be null. Its `fs_ops` may be garbage: it is read for the one
    // type that has it.
    let (kind, fd) = unsafe { ((*description).kind, (*description).handle.fd) };
    let started = meter().begin_call();
    let opened = match kind {
        HANDLE_TYPE_OPAQUE_FD => open_descriptor(library, fd),
        // SAFETY: as above.
        HANDLE_TYPE_USERSPACE_FS if !unsafe { (*description).fs_ops }.is_null() => Ok(RegisteredFile {
            file: None,
            fd: -1,
            can_read: true,
            can_write: true,
            is_direct: false,
            counter: FileCounter::new("a file system in user space"),
            traced: 0,
        }),
        _ => Err(RefusedCall(code::IO_NOT_SUPPORTED)),
    };
    let registered = opened.and_then(|file| {
        let traced = file.traced;
        library.files.insert(file).map(|handle| (handle, traced))
    });
    let (flags, size) = if meter().is_tracing() && registered.is_ok() { described(fd) } else { (0, 0) };
    let known = registered.as_ref().map(|known| known.1).map_err(|refused| *refused);
    meter().file_registered(started, known, flags, size);
    // SAFETY: checked not to be null.
    unsafe { *handle = registered?.0 };
    Ok(())
}

fn deregister(handle: CUfileHandle) {
    let library = library();
    let file = library.files.remove(handle);
    meter().count(Op::HandleDeregister, file.is_some());
    if let Some(file) = file {
        meter().file_deregistered(file.traced);
    }
}

/// Registers a descriptor.
///
/// # Safety
/// `handle` is a valid place and `description` a valid description (or null, which is an error).
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn cuFileHandleRegister(
    handle: *mut CUfileHandle,
    description: *mut CUfileDescr,
) -> CUfileError {
    guarded(|| register(handle, description))
}

/// Forgets a file. Its descriptor stays open; transfers that use the file go on.
///
/// # Safety
/// None: handles are checked.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn cuFileHandleDeregister(handle: CUfileHandle) {
    guarded_plain(|| deregister(handle));
}
