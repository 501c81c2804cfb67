//! Registered files.

use std::cell::RefCell;
use std::collections::{HashMap, HashSet};
use std::ffi::c_int;
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use forebay_engine::{File, threads};
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
    /// Handles that were given up, until the program gives them back.
    given_up: Mutex<HashSet<usize>>,
    /// Whether a thread looks after those whose descriptor the program closed. Changes under the lock of `by_fd`.
    is_watched: AtomicBool,
}

/// How often it looks. What it finds closed twice in a row is forgotten.
const LOOK: Duration = Duration::from_secs(5);

impl Files {
    pub(crate) fn new() -> Self {
        Self {
            table: Table::new(Kind::Files),
            by_fd: Mutex::default(),
            given_up: Mutex::default(),
            is_watched: AtomicBool::new(false),
        }
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
        self.give_up(fd);
        let mut by_fd = self.by_fd();
        if fd >= 0 && by_fd.contains_key(&fd) {
            return Err(Refused(code::HANDLE_ALREADY_REGISTERED));
        }
        let handle = self.table.insert(Arc::new(file)).ok_or(Refused(code::NOMEM_ERROR))?;
        if fd >= 0 {
            by_fd.insert(fd, handle as usize);
            if !self.is_watched.load(Ordering::Relaxed) {
                let thread = threads::spawn("forebay-handles", || library().files.watch());
                // Without a thread a file that is closed under its handle stays open until that is given back.
                self.is_watched.store(thread.is_ok(), Ordering::Relaxed);
            }
        }
        Ok(handle)
    }

    /// The thread's life: our descriptors must not keep a file open for ever that the program closed, and forgot.
    fn watch(&self) {
        let mut suspects = HashSet::new();
        loop {
            std::thread::sleep(LOOK);
            let found = RefCell::new(HashSet::new());
            // In place: who holds one as his own keeps the library from being closed.
            self.table.any(|file| {
                if !file.is_itself() {
                    found.borrow_mut().insert(file.fd);
                }
                false
            });
            let found = found.into_inner();
            suspects.intersection(&found).for_each(|fd| self.give_up(*fd));
            suspects = found;
            let by_fd = self.by_fd();
            if by_fd.is_empty() {
                self.is_watched.store(false, Ordering::Relaxed);
                return;
            }
        }
    }

    /// Whether the descriptor is registered.
    fn has(&self, fd: RawFd) -> bool {
        self.give_up(fd);
        self.by_fd().contains_key(&fd)
    }

    /// Forgets the file that a descriptor was of before the program closed it: the number is another one's by now.
    fn give_up(&self, fd: RawFd) {
        let mut by_fd = self.by_fd();
        let Some(handle) = by_fd.get(&fd).copied() else { return };
        let handle = handle as CUfileHandle;
        if self.table.get(handle).is_ok_and(|old| !old.is_itself()) {
            by_fd.remove(&fd);
            self.given_up().insert(handle as usize);
            // Its transfers end as they began.
            drop(self.table.remove(handle));
        }
    }

    fn given_up(&self) -> MutexGuard<'_, HashSet<usize>> {
        self.given_up.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether a handle is the program's still, but its file was given up.
    pub(crate) fn is_given_up(&self, handle: CUfileHandle) -> bool {
        self.given_up().contains(&(handle as usize))
    }

    fn remove(&self, handle: CUfileHandle) -> Option<Arc<Registered>> {
        self.given_up().remove(&(handle as usize));
        let mut by_fd = self.by_fd();
        let file = self.table.remove(handle).ok()?;
        if by_fd.get(&file.fd) == Some(&(handle as usize)) {
            by_fd.remove(&file.fd);
        }
        Some(file)
    }

    /// Whether any of them is in use by a transfer.
    pub(crate) fn is_busy(&self) -> bool {
        self.table.any(|file| Arc::strong_count(file) > 1)
    }

    pub(crate) fn clear(&self) {
        let mut by_fd = self.by_fd();
        by_fd.clear();
        self.given_up().clear();
        self.table.clear();
    }
}

/// The open flags of a descriptor.
fn flags_of(fd: RawFd) -> Result<c_int, Refused> {
    // SAFETY: no pointers are passed.
    let flags = unsafe { libc::fcntl(fd, libc::F_GETFL) };
    if flags < 0 { Err(Refused(code::INVALID_VALUE)) } else { Ok(flags) }
}

fn stat_of(fd: RawFd) -> Option<libc::stat> {
    // SAFETY: zero is a valid value of this plain struct.
    let mut stat: libc::stat = unsafe { std::mem::zeroed() };
    // SAFETY: `stat` is a valid place.
    (unsafe { libc::fstat(fd, &raw mut stat) } == 0).then_some(stat)
}

impl Registered {
    /// Whether the descriptor is still the file's: a program may have closed it too early, or given its number to another
    /// file. Bytes are moved by descriptors of our own; this only tells the program.
    pub(crate) fn is_itself(&self) -> bool {
        self.file.as_ref().is_none_or(|file| file.is_behind(self.fd))
    }
}

/// Only regular files and block devices can be registered.
fn check_type(fd: RawFd) -> Result<(), Refused> {
    let stat = stat_of(fd).ok_or(Refused(code::INVALID_VALUE))?;
    match stat.st_mode & libc::S_IFMT {
        libc::S_IFREG | libc::S_IFBLK => Ok(()),
        _ => Err(Refused(code::INVALID_FILE_TYPE)),
    }
}

fn open_descriptor(library: &Library, fd: RawFd) -> Result<Registered, Refused> {
    let flags = flags_of(fd)?;
    check_type(fd)?;
    if flags & libc::O_APPEND != 0 || flags & libc::O_PATH != 0 {
        return Err(Refused(code::INVALID_FILE_OPEN_FLAG));
    }
    if library.files.has(fd) {
        return Err(Refused(code::HANDLE_ALREADY_REGISTERED));
    }
    // SAFETY: the interface demands that the descriptor is open.
    let file = unsafe { File::adopt(fd) }.map_err(|error| {
        library.log().error("file", &error);
        Refused(code_of(&error))
    })?;
    let name = file.name();
    let (can_read, can_write) = file.access();
    Ok(Registered {
        fd,
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
