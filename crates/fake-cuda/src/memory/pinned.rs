//! Pages of a file that a GPU has pinned.
//!
//! A real GPU holds on to the physical pages that a mapping had when it was registered. Bytes written into them in
//! place, it sees. A page that leaves the file (truncated, punched out, or replaced by a write past the page cache)
//! stays the GPU's own: it reads the old bytes from then on, and nothing tells it.
//!
//! The kernel shows which pages of a mapping are still those: `/proc/self/pagemap`. They are read and written by
//! `process_vm_readv` and `process_vm_writev`, where a page that goes away meanwhile is an error and not a SIGBUS. For
//! the others there is a snapshot, as fresh as the last look. Two limits: a file system with large pages of its own
//! (ext4, xfs) drops the mapping of a large one as a whole, so that a page may be taken for lost that only its neighbour
//! is; and a loss is noticed at the device's next look, unless the CPU has touched the page again before that.
//!
//! A real GPU's pin also keeps the kernel from moving a page to another frame; locked memory it moves all the same, to
//! have large pages free. So a page in another frame that has the bytes of the last look is taken for moved, not for
//! lost. One that was also written meanwhile is still taken for lost.

use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::sync::{Arc, LazyLock, Mutex, PoisonError};

use super::pages::MappedPages;
use crate::result::{Answer, INVALID_VALUE, UNKNOWN};

const PAGE: usize = 4096;
/// A pagemap entry's "is there", "is on its way from one frame to another", and its frame (0 without privilege).
const PRESENT: u64 = 1 << 63;
const MOVING: u64 = 1 << 62;
const FRAME: u64 = (1 << 55) - 1;

static PAGEMAP: LazyLock<Option<File>> = LazyLock::new(|| File::open("/proc/self/pagemap").ok());

/// Pinned pages, and the state of each.
#[derive(Debug)]
pub(crate) struct PinnedFilePages {
    address: u64,
    len: usize,
    known: Mutex<PageStates>,
}

#[derive(Debug)]
struct PageStates {
    snapshot: MappedPages,
    /// The pagemap's entry of each page when it was pinned.
    entries: Vec<u64>,
    /// Pages that were seen missing, or in another frame.
    lost: Vec<bool>,
}

impl PinnedFilePages {
    /// Pins `address..address + len`, whole pages. A page that cannot be had (beyond the file's end) is refused.
    pub(crate) fn new(address: u64, len: usize) -> Answer<Arc<Self>> {
        let snapshot = MappedPages::usable(len)?;
        // Keeps the kernel from unmapping what nobody touches. A limit may forbid it; then that is a rare chance.
        // SAFETY: only a hint about a range of addresses; whatever is mapped there stays what it is.
        unsafe { libc::mlock(address as *const _, len) };
        let pinned = read_pages(address, snapshot.address, len).and_then(|read| match read {
            all if all == len => Ok(entries(address, len / PAGE)),
            _ => Err(INVALID_VALUE),
        });
        if pinned.is_err() {
            unlock(address, len);
        }
        let entries = pinned?;
        let lost = vec![false; len / PAGE];
        Ok(Arc::new(Self { address, len, known: Mutex::new(PageStates { snapshot, entries, lost }) }))
    }

    /// What the GPU reads from `at` on, which lies inside as a whole.
    ///
    /// # Safety
    /// `into` has room for `len` bytes.
    pub(crate) unsafe fn read(&self, at: usize, into: *mut u8, len: usize) -> Answer {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        for run in self.live(&mut known, at, len) {
            let mut from = run.start;
            while from < run.end {
                let place = known.snapshot.address + from as u64;
                let read = read_pages(self.address + from as u64, place, run.end - from)?;
                // What went away just now is skipped: its snapshot stays.
                from = if read > 0 { from + read } else { next_page(from) };
            }
        }
        // SAFETY: inside the snapshot; the caller promises the other end.
        unsafe { std::ptr::copy_nonoverlapping((known.snapshot.address as *const u8).add(at), into, len) };
        Ok(())
    }

    /// Writes as the GPU does. Pages that the file lost change too, but nobody sees that except the GPU.
    ///
    /// # Safety
    /// `from` has `len` bytes.
    pub(crate) unsafe fn write(&self, at: usize, from: *const u8, len: usize) -> Answer {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        // Compares with the snapshot, so before that changes.
        let live = self.live(&mut known, at, len);
        // SAFETY: inside the snapshot; the caller promises the other end.
        unsafe { std::ptr::copy_nonoverlapping(from, (known.snapshot.address as *mut u8).add(at), len) };
        for run in live {
            let mut next = run.start;
            while next < run.end {
                let place = known.snapshot.address + next as u64;
                let written = write_pages(self.address + next as u64, place, run.end - next)?;
                next = if written > 0 { next + written } else { next_page(next) };
            }
        }
        Ok(())
    }

    /// The parts of `at..at + len` whose pages are still those that were pinned.
    fn live(&self, known: &mut PageStates, at: usize, len: usize) -> Vec<Range<usize>> {
        let pages = at / PAGE..(at + len).div_ceil(PAGE);
        let now = entries(self.address + (pages.start * PAGE) as u64, pages.len());
        let mut runs: Vec<Range<usize>> = Vec::new();
        for (page, entry) in pages.zip(now) {
            if !known.is_live(page, entry, self.address) {
                continue;
            }
            let part = at.max(page * PAGE)..(at + len).min((page + 1) * PAGE);
            match runs.last_mut() {
                Some(last) if last.end == part.start => last.end = part.end,
                _ => runs.push(part),
            }
        }
        runs
    }
}

impl Drop for PinnedFilePages {
    fn drop(&mut self) {
        unlock(self.address, self.len);
    }
}

impl PageStates {
    /// Whether a page of the mapping at `address` is still the one that was pinned.
    fn is_live(&mut self, page: usize, now: u64, address: u64) -> bool {
        let was = self.entries[page] & FRAME;
        let is_missing = now & (PRESENT | MOVING) == 0;
        let is_elsewhere = was != 0 && now & MOVING == 0 && now & FRAME != was;
        if !is_missing && is_elsewhere && !self.lost[page] && self.has_bytes_of(page, address) {
            self.entries[page] = now;
            return true;
        }
        // For good: nothing keeps the lost frame from coming back as a new page of the same file.
        self.lost[page] |= is_missing || is_elsewhere;
        !self.lost[page]
    }

    /// Whether the mapping's page has the bytes of the last look.
    fn has_bytes_of(&self, page: usize, address: u64) -> bool {
        let (at, mut now) = ((page * PAGE) as u64, [0u8; PAGE]);
        let read = read_pages(address + at, now.as_mut_ptr() as u64, PAGE);
        // SAFETY: a page of the snapshot, which only the holder of the lock writes.
        let before = unsafe { std::slice::from_raw_parts((self.snapshot.address + at) as *const u8, PAGE) };
        matches!(read, Ok(PAGE)) && now == before
    }
}

fn unlock(address: u64, len: usize) {
    // SAFETY: as for mlock; a range that is not mapped any more is only refused.
    unsafe { libc::munlock(address as *const _, len) };
}

fn next_page(at: usize) -> usize {
    (at / PAGE + 1) * PAGE
}

/// The pagemap's entries of `count` pages. Where it cannot be read all pages are said to be there.
fn entries(address: u64, count: usize) -> Vec<u64> {
    let mut bytes = vec![0u8; count * 8];
    let read = PAGEMAP
        .as_ref()
        .is_some_and(|file| file.read_exact_at(&mut bytes, address / PAGE as u64 * 8).is_ok());
    if !read {
        return vec![PRESENT; count];
    }
    bytes
        .as_chunks::<8>()
        .0
        .iter()
        .map(|entry| entry.iter().rev().fold(0, |all, &byte| all << 8 | u64::from(byte)))
        .collect()
}

fn vector(address: u64, len: usize) -> libc::iovec {
    libc::iovec { iov_base: address as *mut _, iov_len: len }
}

/// How many of the bytes were moved: fewer where a page is missing.
fn moved(answer: isize) -> Answer<usize> {
    match usize::try_from(answer) {
        Ok(count) => Ok(count),
        Err(_) if std::io::Error::last_os_error().raw_os_error() == Some(libc::EFAULT) => Ok(0),
        // A container that forbids the call: the fake cannot be honest there.
        Err(_) => Err(UNKNOWN),
    }
}

/// Reads mapped pages at `from` to our own memory at `to`.
fn read_pages(from: u64, to: u64, len: usize) -> Answer<usize> {
    let (local, remote) = (vector(to, len), vector(from, len));
    // SAFETY: `to` is memory of ours of that length; the kernel checks the other end.
    moved(unsafe { libc::process_vm_readv(libc::getpid(), &raw const local, 1, &raw const remote, 1, 0) })
}

/// Writes our own memory at `from` to mapped pages at `to`.
fn write_pages(to: u64, from: u64, len: usize) -> Answer<usize> {
    let (local, remote) = (vector(from, len), vector(to, len));
    // SAFETY: `from` is memory of ours of that length; the kernel checks the other end.
    moved(unsafe { libc::process_vm_writev(libc::getpid(), &raw const local, 1, &raw const remote, 1, 0) })
}

#[cfg(test)]
mod tests {
    use std::os::fd::FromRawFd;

    use super::*;

    const LEN: usize = 8 * PAGE;

    /// A file in memory, whose page number `n` is full of `n`, and a mapping of it.
    fn mapped() -> (File, u64) {
        // SAFETY: a C string; the file owns the descriptor.
        let file = unsafe { File::from_raw_fd(libc::memfd_create(c"pinned".as_ptr(), 0)) };
        for page in 0..LEN / PAGE {
            file.write_all_at(&[page as u8; PAGE], (page * PAGE) as u64).expect("written");
        }
        let (access, fd) = (libc::PROT_READ | libc::PROT_WRITE, std::os::fd::AsRawFd::as_raw_fd(&file));
        // SAFETY: a mapping at an address of the kernel's choice.
        let address = unsafe { libc::mmap(std::ptr::null_mut(), LEN, access, libc::MAP_SHARED, fd, 0) };
        assert_ne!(address, libc::MAP_FAILED);
        (file, address as u64)
    }

    fn read(pinned: &PinnedFilePages, at: usize, len: usize) -> Vec<u8> {
        let mut bytes = vec![0xEE; len];
        // SAFETY: as many bytes as asked for.
        unsafe { pinned.read(at, bytes.as_mut_ptr(), len) }.expect("read");
        bytes
    }

    #[test]
    fn pinned_pages_outlive_what_the_file_does() {
        let (file, address) = mapped();
        let pinned = PinnedFilePages::new(address, LEN).expect("pinned");
        assert_eq!(read(&pinned, 2 * PAGE - 1, 2), [1, 2]);
        file.write_all_at(&[77], 2 * PAGE as u64).expect("written");
        assert_eq!(read(&pinned, 2 * PAGE - 1, 2), [1, 77], "in place");
        file.set_len(3 * PAGE as u64).expect("cut");
        assert_eq!(read(&pinned, 3 * PAGE - 1, 2), [2, 3], "the truncated bytes are still there");
        file.set_len(LEN as u64).expect("grown");
        file.write_all_at(&[99; PAGE], 3 * PAGE as u64).expect("written");
        assert_eq!(read(&pinned, 3 * PAGE, 1), [3], "and is not what grew back");
        // As if unmapped, but so that nothing else comes to lie there.
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED;
        // SAFETY: two bytes; the mapping is ours, and no reference to it is held.
        unsafe {
            libc::mmap(address as *mut _, LEN, libc::PROT_NONE, flags, -1, 0);
            pinned.write(5 * PAGE - 1, [8u8, 9].as_ptr(), 2).expect("written");
        }
        assert_eq!(read(&pinned, 5 * PAGE - 1, 2), [8, 9], "lost pages take writes");
    }

    #[test]
    fn a_page_that_the_kernel_moves_is_not_lost() {
        let (file, address) = mapped();
        let pinned = PinnedFilePages::new(address, LEN).expect("pinned");
        let move_page = |page: usize| pinned.known.lock().expect("no panic").entries[page] ^= 1;
        move_page(2);
        // SAFETY: one byte; mapped by us.
        unsafe { pinned.write(2 * PAGE, [8u8].as_ptr(), 1) }.expect("written");
        let mut byte = [0];
        file.read_exact_at(&mut byte, 2 * PAGE as u64).expect("read");
        assert_eq!(byte, [8], "the file has it");
        move_page(2);
        assert_eq!(read(&pinned, 2 * PAGE, 2), [8, 2], "and is known to have it when the page moves again");
        move_page(4);
        file.write_all_at(&[99; PAGE], 4 * PAGE as u64).expect("written");
        assert_eq!(read(&pinned, 4 * PAGE, 1), [4], "another page with other bytes");
        drop(pinned);
        // SAFETY: mapped by us.
        unsafe { libc::munmap(address as *mut _, LEN) };
    }

    #[test]
    fn pages_beyond_the_end_are_refused() {
        let (file, address) = mapped();
        file.set_len((LEN - PAGE) as u64).expect("cut");
        assert_eq!(PinnedFilePages::new(address, LEN).err(), Some(INVALID_VALUE));
        let part = PinnedFilePages::new(address, LEN - PAGE).expect("pinned");
        // SAFETY: one byte; mapped by us.
        unsafe { part.write(PAGE + 3, [5u8].as_ptr(), 1) }.expect("written");
        let mut byte = [0];
        file.read_exact_at(&mut byte, PAGE as u64 + 3).expect("read");
        assert_eq!(byte, [5], "the file has it");
        drop(part);
        // SAFETY: mapped by us.
        unsafe { libc::munmap(address as *mut _, LEN) };
    }
}
