//! Registered files.

use std::cell::RefCell;
use std::collections::{HashMap, HashSet};
use std::ffi::c_int;
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use forebay_engine::File;
use forebay_stats::FileCounter;
use forebay_sys::threads;

use super::table::{HandleKind, HandleTable, OwnedByFew, UnknownHandle};
use crate::abi::{CUfileHandle, code};
use crate::lock;
use crate::status::RefusedCall;

/// A file that a program registered.
pub(crate) struct RegisteredFile {
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
pub(crate) struct RegisteredFiles {
    table: HandleTable<RegisteredFile>,
    by_fd: Mutex<HashMap<RawFd, usize>>,
    /// Handles that were given up, until the program gives them back.
    given_up: Mutex<HashSet<usize>>,
    /// Whether a thread looks after those whose descriptor the program closed. Changes under the lock of `by_fd`.
    is_watched: AtomicBool,
}

/// How often it looks. What it finds closed twice in a row is forgotten.
const LOOK: Duration = Duration::from_secs(5);

impl RegisteredFiles {
    pub(crate) fn new() -> Self {
        Self {
            table: HandleTable::new(HandleKind::Files),
            by_fd: Mutex::default(),
            given_up: Mutex::default(),
            is_watched: AtomicBool::new(false),
        }
    }

    /// The file of a handle, for a call that answers with a code.
    pub(crate) fn get(&self, handle: CUfileHandle) -> Result<Arc<RegisteredFile>, RefusedCall> {
        self.table.get(handle).map_err(|_| RefusedCall(code::HANDLE_NOT_REGISTERED))
    }

    /// The file of a handle, for a call that answers with an errno.
    pub(crate) fn get_for_io(&self, handle: CUfileHandle) -> Result<Arc<RegisteredFile>, c_int> {
        self.table.get(handle).map_err(Self::errno_of)
    }

    /// The same for calls that many threads make again and again.
    pub(crate) fn get_often(&self, handle: CUfileHandle) -> Result<Arc<OwnedByFew<RegisteredFile>>, c_int> {
        self.table.get_often(handle).map_err(Self::errno_of)
    }

    fn errno_of(unknown: UnknownHandle) -> c_int {
        match unknown {
            UnknownHandle::Gone => code::HANDLE_NOT_REGISTERED,
            UnknownHandle::Garbage => libc::EINVAL,
        }
    }

    pub(crate) fn insert(&'static self, file: RegisteredFile) -> Result<CUfileHandle, RefusedCall> {
        let fd = file.fd;
        self.give_up(fd);
        let mut by_fd = lock(&self.by_fd);
        if fd >= 0 && by_fd.contains_key(&fd) {
            return Err(RefusedCall(code::HANDLE_ALREADY_REGISTERED));
        }
        let handle = self.table.insert(Arc::new(file)).ok_or(RefusedCall(code::NOMEM_ERROR))?;
        if fd >= 0 {
            by_fd.insert(fd, handle as usize);
            if !self.is_watched.load(Ordering::Relaxed) {
                let thread = threads::spawn("forebay-handles", || self.watch());
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
            // Look in place: a clone held here would keep the library from closing.
            self.table.any(|file| {
                if !file.is_itself() {
                    found.borrow_mut().insert(file.fd);
                }
                false
            });
            let found = found.into_inner();
            suspects.intersection(&found).for_each(|fd| self.give_up(*fd));
            suspects = found;
            let by_fd = lock(&self.by_fd);
            if by_fd.is_empty() {
                self.is_watched.store(false, Ordering::Relaxed);
                return;
            }
        }
    }

    /// Whether the descriptor is registered.
    pub(crate) fn has(&self, fd: RawFd) -> bool {
        self.give_up(fd);
        lock(&self.by_fd).contains_key(&fd)
    }

    /// Forgets the file that a descriptor was of before the program closed it: the number is another one's by now.
    fn give_up(&self, fd: RawFd) {
        let mut by_fd = lock(&self.by_fd);
        let Some(handle) = by_fd.get(&fd).copied() else { return };
        let handle = handle as CUfileHandle;
        if self.table.get(handle).is_ok_and(|old| !old.is_itself()) {
            by_fd.remove(&fd);
            lock(&self.given_up).insert(handle as usize);
            // Its transfers end as they began.
            drop(self.table.remove(handle));
        }
    }

    /// Whether a handle is the program's still, but its file was given up.
    pub(crate) fn is_given_up(&self, handle: CUfileHandle) -> bool {
        lock(&self.given_up).contains(&(handle as usize))
    }

    pub(crate) fn remove(&self, handle: CUfileHandle) -> Option<Arc<RegisteredFile>> {
        lock(&self.given_up).remove(&(handle as usize));
        let mut by_fd = lock(&self.by_fd);
        let file = self.table.remove(handle).ok()?;
        if by_fd.get(&file.fd) == Some(&(handle as usize)) {
            by_fd.remove(&file.fd);
        }
        Some(file)
    }

    /// Whether any of them is in use by a transfer.
    pub(crate) fn is_busy(&self) -> bool {
        self.table.is_used()
    }

    pub(crate) fn clear(&self) {
        let mut by_fd = lock(&self.by_fd);
        by_fd.clear();
        lock(&self.given_up).clear();
        self.table.clear();
    }
}

impl RegisteredFile {
    /// Whether the descriptor is still the file's: a program may have closed it too early, or given its number to another
    /// file. Bytes are moved by descriptors of our own; this only tells the program.
    pub(crate) fn is_itself(&self) -> bool {
        self.file.as_ref().is_none_or(|file| file.is_behind(self.fd))
    }
}
