//! Writing to files of memory file systems from many threads at once.
//!
//! `pwrite` holds the inode's lock while it copies, so only one thread writes to a tmpfs file at a time. Pages that are
//! there already can be written through a shared mapping without that lock. The mapping is never touched by the CPU
//! directly (a truncated file would raise SIGBUS): the kernel copies to it by `process_vm_writev` on this very
//! process, which answers EFAULT instead.

use std::os::fd::RawFd;
use std::sync::{Arc, Mutex};

use super::room::{Intent, Room};
use crate::fork::Birth;
use crate::lock::lock;
use crate::sys;
use crate::transfer::Piece;

/// The mapping of one file, grown as the file grows.
#[derive(Debug)]
pub(crate) struct Mapping {
    map: Mutex<Option<Arc<Map>>>,
    room: Arc<Room>,
    birth: Birth,
}

impl Default for Mapping {
    fn default() -> Self {
        Self { map: Mutex::default(), room: Arc::default(), birth: Birth::here() }
    }
}

#[derive(Debug)]
struct Map {
    start: usize,
    len: usize,
}

impl Drop for Map {
    fn drop(&mut self) {
        // SAFETY: mapped in `Mapping::covering`; no call uses it any more, since each holds an Arc.
        unsafe { libc::munmap(self.start as *mut _, self.len) };
    }
}

impl Mapping {
    /// Bytes written, or 0 or less if the file cannot be written this way (then `pwrite` tells why).
    ///
    /// # Safety
    /// `buffer..buffer+len` is readable.
    pub(crate) unsafe fn write(&self, fd: RawFd, buffer: *const u8, len: usize, offset: u64) -> isize {
        let end = offset + len as u64;
        // In a forked child the lock may be another thread's that is not there.
        if self.birth.is_elsewhere() {
            return 0;
        }
        let Some(map) = self.covering(fd, end as usize) else { return 0 };
        let Some(_writer) = self.room.enter(fd, offset, end) else { return 0 };
        let local = libc::iovec { iov_base: buffer as *mut _, iov_len: len };
        let remote = libc::iovec { iov_base: (map.start + offset as usize) as *mut _, iov_len: len };
        // SAFETY: the caller vouches for the buffer; the remote side is checked by the kernel page by page.
        unsafe { libc::process_vm_writev(libc::getpid(), &local, 1, &remote, 1, 0) }
    }

    /// A job is about to write these pieces: as long as the intent lives there is room made for them.
    /// Not in a forked child, where the room's lock may be another thread's that is not there.
    pub(crate) fn intend(&self, pieces: &[Piece]) -> Option<Intent> {
        (!self.birth.is_elsewhere()).then(|| self.room.intend(pieces))
    }

    /// Whether `pwrite` would have to wait for a lane that makes room.
    pub(crate) fn is_making_room(&self) -> bool {
        !self.birth.is_elsewhere() && self.room.is_busy()
    }

    /// The mapping, at least `end` bytes long.
    fn covering(&self, fd: RawFd, end: usize) -> Option<Arc<Map>> {
        let mut current = lock(&self.map);
        if let Some(map) = &*current
            && map.len >= end
        {
            return Some(map.clone());
        }
        // Beyond the file's end there is nothing to touch, but a file that grows need not be mapped anew each time.
        let len = end.max(sys::length(fd).ok()? as usize).checked_next_power_of_two()?.max(1 << 30);
        // SAFETY: a fresh mapping; no address is asked for.
        let start = unsafe {
            let access = libc::PROT_READ | libc::PROT_WRITE;
            libc::mmap(std::ptr::null_mut(), len, access, libc::MAP_SHARED | libc::MAP_NORESERVE, fd, 0)
        };
        if start == libc::MAP_FAILED {
            // Not opened for reading and writing, sealed, or no address space.
            return None;
        }
        let map = Arc::new(Map { start: start as usize, len });
        *current = Some(map.clone());
        Some(map)
    }
}

/// Sets the time of the last change: memory file systems do not notice writes through a mapping.
pub(crate) fn touch(fd: RawFd) {
    let times = [
        libc::timespec { tv_sec: 0, tv_nsec: libc::UTIME_OMIT },
        libc::timespec { tv_sec: 0, tv_nsec: libc::UTIME_NOW },
    ];
    // SAFETY: two readable times. A file that one may write but does not own refuses this only for set times.
    unsafe { libc::futimens(fd, times.as_ptr()) };
}
