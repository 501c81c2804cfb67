//! Registered files.

use std::collections::HashMap;
use std::ffi::c_int;
use std::os::fd::RawFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use forebay_engine::File;
use forebay_stats::{FileCounter, Op};

use crate::abi::{
    CUfileDescr, CUfileError, CUfileHandle, HANDLE_TYPE_OPAQUE_FD, HANDLE_TYPE_USERSPACE_FS, code,
};
use crate::library::{Library, guarded, guarded_plain, library};
use crate::status::{Refused, code_of};
use crate::table::{Kind, Table, Unknown};

/// A file that a program registered.
pub(crate) struct Registered {
    /// `None` for a file system in user space, which can be registered but not used.
    pub(crate) file: Option<File>,
    pub(crate) fd: RawFd,
    /// Device and inode, as the descriptor had them.
    identity: (u64, u64),
    pub(crate) can_read: bool,
    pub(crate) can_write: bool,
    pub(crate) is_direct: bool,
    pub(crate) counter: FileCounter,
    /// Its number in the trace.
    pub(crate) traced: u32,
}

/// All of them.
pub(crate) struct Files {
    table: Table<Registered>,
    by_fd: Mutex<HashMap<RawFd, usize>>,
}

impl Files {
    pub(crate) fn new() -> Self {
        Self { table: Table::new(Kind::Files), by_fd: Mutex::default() }
    }

    fn by_fd(&self) -> MutexGuard<'_, HashMap<RawFd, usize>> {
        self.by_fd.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The file of a handle, for a call that answers with a code.
    pub(crate) fn get(&self, handle: CUfileHandle) -> Result<Arc<Registered>, Refused> {
        self.table.get(handle).map_err(|_| Refused(code::HANDLE_NOT_REGISTERED))
    }

    /// The file of a handle, for a call that answers with an errno.
    pub(crate) fn get_for_io(&self, handle: CUfileHandle) -> Result<Arc<Registered>, c_int> {
        self.table.get(handle).map_err(|unknown| match unknown {
            Unknown::Gone => code::HANDLE_NOT_REGISTERED,
            Unknown::Garbage => libc::EINVAL,
        })
    }

    fn insert(&self, file: Registered) -> Result<CUfileHandle, Refused> {
        let fd = file.fd;
        let mut by_fd = self.by_fd();
        if fd >= 0 && by_fd.contains_key(&fd) {
            return Err(Refused(code::HANDLE_ALREADY_REGISTERED));
        }
        let handle = self.table.insert(Arc::new(file)).ok_or(Refused(code::NOMEM_ERROR))?;
        if fd >= 0 {
            by_fd.insert(fd, handle as usize);
        }
        Ok(handle)
    }

    fn remove(&self, handle: CUfileHandle) -> Option<Arc<Registered>> {
        let mut by_fd = self.by_fd();
        let file = self.table.remove(handle).ok()?;
        by_fd.remove(&file.fd);
        Some(file)
    }

    /// Whether any of them is in use by a transfer.
    pub(crate) fn is_busy(&self) -> bool {
        self.table.any(|file| Arc::strong_count(file) > 1)
    }

    pub(crate) fn clear(&self) {
        let mut by_fd = self.by_fd();
        by_fd.clear();
        self.table.clear();
    }
}

/// The open flags of a descriptor.
fn flags_of(fd: RawFd) -> Result<c_int, Refused> {
    // SAFETY: no pointers are passed.
    let flags = unsafe { libc::fcntl(fd, libc::F_GETFL) };
    if flags < 0 { Err(Refused(code::INVALID_VALUE)) } else { Ok(flags) }
}

/// Device and inode of a descriptor's file.
fn identity(stat: &libc::stat) -> (u64, u64) {
    (stat.st_dev, stat.st_ino)
}

fn stat_of(fd: RawFd) -> Option<libc::stat> {
    // SAFETY: zero is a valid value of this plain struct.
    let mut stat: libc::stat = unsafe { std::mem::zeroed() };
    // SAFETY: `stat` is a valid place.
    (unsafe { libc::fstat(fd, &raw mut stat) } == 0).then_some(stat)
}

impl Registered {
    /// Whether the descriptor is still the file's: a program may have closed it too early.
    pub(crate) fn is_itself(&self) -> bool {
        self.fd < 0 || stat_of(self.fd).is_some_and(|stat| identity(&stat) == self.identity)
    }
}

/// Only regular files and block devices can be registered. Gives device and inode.
fn check_type(fd: RawFd) -> Result<(u64, u64), Refused> {
    let stat = stat_of(fd).ok_or(Refused(code::INVALID_VALUE))?;
    match stat.st_mode & libc::S_IFMT {
        libc::S_IFREG | libc::S_IFBLK => Ok(identity(&stat)),
        _ => Err(Refused(code::INVALID_FILE_TYPE)),
    }
}

fn open_descriptor(library: &Library, fd: RawFd) -> Result<Registered, Refused> {
    let flags = flags_of(fd)?;
    let identity = check_type(fd)?;
    if flags & libc::O_APPEND != 0 || flags & libc::O_PATH != 0 {
        return Err(Refused(code::INVALID_FILE_OPEN_FLAG));
    }
    if library.files.by_fd().contains_key(&fd) {
        return Err(Refused(code::HANDLE_ALREADY_REGISTERED));
    }
    // SAFETY: the interface demands that the descriptor stays open until the handle is deregistered.
    let file = unsafe { File::adopt(fd) }.map_err(|error| {
        library.log().error("file", &error);
        Refused(code_of(&error))
    })?;
    let name = file.name();
    let (can_read, can_write) = file.access();
    Ok(Registered {
        fd,
        identity,
        can_read,
        can_write,
        is_direct: flags & libc::O_DIRECT != 0,
        counter: FileCounter::new(&name),
        traced: library.meter().traced_file(&name),
        file: Some(file),
    })
}

/// Flags and size of a descriptor's file, for the trace.
fn described(fd: RawFd) -> (c_int, u64) {
    (flags_of(fd).unwrap_or(0), stat_of(fd).map_or(0, |stat| stat.st_size as u64))
}

fn register(handle: *mut CUfileHandle, description: *const CUfileDescr) -> Result<(), Refused> {
    let library = library();
    let session = library.ensure_open()?;
    library.prepare(session);
    if handle.is_null() || description.is_null() {
        return Err(Refused(code::INVALID_VALUE));
    }
    // SAFETY: the caller's description, checked not to be null. Its `fs_ops` may be garbage: it is read for the one
    // type that has it.
    let (kind, fd) = unsafe { ((*description).kind, (*description).handle.fd) };
    let started = library.meter().begin_call();
    let opened = match kind {
        HANDLE_TYPE_OPAQUE_FD => open_descriptor(library, fd),
        // SAFETY: as above.
        HANDLE_TYPE_USERSPACE_FS if !unsafe { (*description).fs_ops }.is_null() => Ok(Registered {
            file: None,
            fd: -1,
            identity: (0, 0),
            can_read: true,
            can_write: true,
            is_direct: false,
            counter: FileCounter::new("a file system in user space"),
            traced: 0,
        }),
        _ => Err(Refused(code::IO_NOT_SUPPORTED)),
    };
    let registered = opened.and_then(|file| {
        let traced = file.traced;
        library.files.insert(file).map(|handle| (handle, traced))
    });
    let (flags, size) =
        if library.meter().is_tracing() && registered.is_ok() { described(fd) } else { (0, 0) };
    let known = registered.as_ref().map(|known| known.1).map_err(|refused| *refused);
    library.meter().file_registered(started, known, flags, size);
    // SAFETY: checked not to be null.
    unsafe { *handle = registered?.0 };
    Ok(())
}

fn deregister(handle: CUfileHandle) {
    let library = library();
    let file = library.files.remove(handle);
    library.meter().count(Op::HandleDeregister, file.is_some());
    if let Some(file) = file {
        library.meter().file_deregistered(file.traced);
    }
}

/// Registers a descriptor.
///
/// # Safety
/// `handle` is a valid place and `description` a valid description (or null, which is an error); the descriptor stays
/// open until it is deregistered and all transfers that use it are over.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn cuFileHandleRegister(
    handle: *mut CUfileHandle,
    description: *mut CUfileDescr,
) -> CUfileError {
    guarded(|| register(handle, description))
}

/// Forgets a file. Its descriptor stays open, and must until the transfers that use it are over.
///
/// # Safety
/// None: handles are checked.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn cuFileHandleDeregister(handle: CUfileHandle) {
    guarded_plain(|| deregister(handle));
}
