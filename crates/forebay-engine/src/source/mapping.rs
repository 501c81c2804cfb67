//! Writing to files of memory file systems from many threads at once.
//!
//! `pwrite` holds the inode's lock while it copies, so only one thread writes to a tmpfs file at a time. Pages that are
//! there already can be written through a shared mapping without that lock. Our code never stores to the
//! mapping (a truncated file would raise SIGBUS): the kernel copies to it by `process_vm_writev` on this process, which
//! returns EFAULT instead.

use std::os::fd::RawFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use forebay_source::HostRange;
use forebay_sys::page_size;
use rustix::fs::{Timespec, Timestamps, UTIME_NOW, UTIME_OMIT, futimens};
use rustix::mm::{Advice, MprotectFlags};

use super::preallocation::{Preallocation, Room, WriteIntent};
use crate::runtime::lock;
use crate::runtime::sys;
use crate::source::piece::Piece;
use crate::tuning::machine::HUGE_PAGE;

/// The result of a write to a memory file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MemoryWrite {
    /// This number of bytes was written.
    Done(usize),
    /// Nothing yet: `pwrite` may write this number of its bytes.
    ByCalls(usize),
    /// There is no room for its first byte: this errno.
    NoRoom(i32),
}

/// The mapping of one file, grown as the file grows.
#[derive(Debug, Default)]
pub(crate) struct WriteMapping {
    map: Mutex<Option<Arc<FileMapping>>>,
    allocation: Arc<Preallocation>,
}

#[derive(Debug)]
struct FileMapping {
    start: usize,
    len: usize,
    /// A bit for each block that was written.
    visited: Box<[AtomicU64]>,
}

impl FileMapping {
    /// Whether a part of the range is written for the first time.
    fn is_first_visit(&self, start: usize, end: usize) -> bool {
        let visit = |block: usize| {
            let bit = 1 << (block % 64);
            self.visited[block / 64].fetch_or(bit, Ordering::Relaxed) & bit == 0
        };
        // No short cut: each block is marked.
        (start / HUGE_PAGE..end.div_ceil(HUGE_PAGE)).fold(false, |is_first, block| visit(block) | is_first)
    }

    /// Most files are written once; blocks that are written again stay mapped.
    fn let_go(&self, start: usize, end: usize) {
        // SAFETY: within our own mapping of a file.
        unsafe { leave_page_tables(self.start, start, end) };
    }
}

impl Drop for FileMapping {
    fn drop(&mut self) {
        // SAFETY: mapped in `WriteMapping::covering`; no call uses it any more, since each holds an Arc.
        let _ = unsafe { rustix::mm::munmap(self.start as *mut _, self.len) };
    }
}

impl WriteMapping {
    /// Writes as much as there is room for. If it is `large` enough to gain by it, through the mapping. A `part` of what a job
    /// writes waits for the room of all before it.
    ///
    /// # Safety
    /// The memory is readable.
    pub(crate) unsafe fn write(
        &self,
        fd: RawFd,
        memory: HostRange,
        offset: u64,
        (is_part, is_large): (bool, bool),
    ) -> MemoryWrite {
        let end = offset + memory.len as u64;
        let map = if is_large && !sys::is_sealed(fd) { self.covering(fd, end as usize) } else { None };
        if map.is_none() && !is_part {
            return MemoryWrite::ByCalls(memory.len);
        }
        let (writer, reach) = match self.allocation.enter(fd, (offset, end), map.is_some()) {
            Room::Mapped(writer, reach) => (Some(writer), reach),
            Room::ByCalls(reach) => (None, reach),
            Room::None(errno) => return MemoryWrite::NoRoom(errno),
        };
        let most = (reach - offset) as usize;
        let (Some(map), Some(_writer)) = (map, writer) else { return MemoryWrite::ByCalls(most) };
        // SAFETY: the caller vouches for the buffer; the mapping is the file's.
        let written = unsafe { copy_by_kernel(memory.start as usize, map.start + offset as usize, most) };
        if map.is_first_visit(offset as usize, reach as usize) {
            map.let_go(offset as usize, reach as usize);
        }
        if written > 0 { MemoryWrite::Done(written as usize) } else { MemoryWrite::ByCalls(most) }
    }

    /// A job is about to write these pieces: as long as the intent lives pages are allocated ahead.
    pub(crate) fn intend(&self, pieces: &[Piece]) -> WriteIntent {
        self.allocation.intend(pieces)
    }

    /// Whether `pwrite` would have to wait for a lane that allocates.
    pub(crate) fn is_making_room(&self) -> bool {
        self.allocation.is_busy()
    }

    /// The mapping, at least `end` bytes long.
    fn covering(&self, fd: RawFd, end: usize) -> Option<Arc<FileMapping>> {
        let mut current = lock(&self.map);
        if let Some(map) = &*current
            && map.len >= end
        {
            return Some(map.clone());
        }
        // Pages beyond the file's end are not used, but save mapping a growing file anew each time.
        let len = end.max(sys::length(fd).ok()? as usize).checked_next_power_of_two()?.max(1 << 30);
        let access = MprotectFlags::READ | MprotectFlags::WRITE;
        // Not if it is not opened for reading and writing, sealed, or there is no address space.
        // SAFETY: no address is asked for.
        let start = unsafe { sys::map_file(fd, (0, len), access, std::ptr::null_mut()) }.ok()?;
        let visited = (0..len.div_ceil(64 * HUGE_PAGE)).map(|_| AtomicU64::new(0)).collect();
        let map = Arc::new(FileMapping { start, len, visited });
        *current = Some(map.clone());
        Some(map)
    }
}

/// Has the kernel copy between a mapping of a file and other memory of this process, either way. Both sides are checked page by page:
/// a page that the file does not have any more ends the copy, where a load or store of ours would raise SIGBUS. Bytes, or below 0.
///
/// # Safety
/// `from..from+len` may be read and `to..to+len` written, as far as they are there.
pub(super) unsafe fn copy_by_kernel(from: usize, to: usize, len: usize) -> isize {
    let local = libc::iovec { iov_base: from as *mut _, iov_len: len };
    let remote = libc::iovec { iov_base: to as *mut _, iov_len: len };
    // SAFETY: as promised by the caller.
    unsafe { libc::process_vm_writev(libc::getpid(), &local, 1, &remote, 1, 0) }
}

/// Takes the pages from `from` to `to` of a mapping out of the page tables; the file keeps them. Lanes do this together several times as
/// fast as the thread that closes the file.
///
/// # Safety
/// The pages lie within a shared mapping of a file that begins at `start`, into which no reference of Rust's points.
pub(super) unsafe fn leave_page_tables(start: usize, from: usize, to: usize) {
    let page = page_size();
    let (from, to) = (from / page * page, to.next_multiple_of(page));
    // SAFETY: as promised by the caller.
    let _ = unsafe { rustix::mm::madvise((start + from) as *mut _, to - from, Advice::LinuxDontNeed) };
}

/// Sets the time of the last change: memory file systems do not notice writes through a mapping.
pub(crate) fn touch(fd: RawFd) {
    let at = |tv_nsec| Timespec { tv_sec: 0, tv_nsec };
    let times = Timestamps { last_access: at(UTIME_OMIT), last_modification: at(UTIME_NOW) };
    // A file that one may write but does not own refuses this only for set times.
    let _ = futimens(sys::borrow(fd), &times);
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd;

    use super::*;

    /// Pages of a mapping that are in the page tables.
    fn mapped(map: &FileMapping) -> usize {
        let maps = std::fs::read_to_string("/proc/self/smaps").unwrap();
        let head = format!("{:x}-", map.start);
        let rss = maps
            .lines()
            .skip_while(|line| !line.starts_with(&head))
            .find_map(|line| line.strip_prefix("Rss:"));
        rss.unwrap().trim().trim_end_matches(" kB").parse::<usize>().unwrap() * 1024 / page_size()
    }

    #[test]
    fn pages_that_are_written_once_do_not_stay_mapped() {
        let file = tempfile::tempfile_in("/dev/shm").unwrap();
        let (mapping, data, fd) = (WriteMapping::default(), vec![7u8; 4 << 20], file.as_raw_fd());
        let len = data.len();
        // SAFETY: all of `data`.
        let write = |offset| unsafe { mapping.write(fd, HostRange::of(&data), offset, (false, true)) };
        assert_eq!(write(100), MemoryWrite::Done(len));
        let map = mapping.covering(fd, len).unwrap();
        assert_eq!(mapped(&map), 0);
        assert_eq!(write(200), MemoryWrite::Done(len));
        assert_eq!(mapped(&map), len / page_size() + 1, "and stay when they are written again");
        assert_eq!(
            std::fs::read(format!("/proc/self/fd/{fd}")).unwrap()[100..],
            *[data, vec![7; 100]].concat()
        );
        assert!(!map.is_first_visit(1 << 20, 2 << 20) && map.is_first_visit(5 << 20, (6 << 20) + 1));
        assert!(!map.is_first_visit(6 << 20, 8 << 20));
    }
}
