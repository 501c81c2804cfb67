//! A file's pages in this process's address space, for a device to read. The CPU never touches them: a file that is cut
//! short would raise SIGBUS.

use std::fs::File;
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::fs::FileExt;
use std::sync::OnceLock;

use forebay_error::{Error, ErrorKind, Result};
use forebay_gpu::Access;
use rustix::mm::{MprotectFlags, ProtFlags};

use crate::runtime::process::PerProcess;
use crate::runtime::sys::{self, page};

/// Bytes that are registered at once: large enough to be cheap, small enough for the first copy to begin soon.
pub(crate) const WINDOW: u64 = 64 << 20;
/// Marks a page that is there, in an entry of the page map.
const PRESENT: u64 = 1 << 63;
/// What one table of pages covers. A fault brings in pages around it, but none of another table: regions begin with one,
/// so that populating a window touches no other.
const TABLE: usize = 2 << 20;
/// Files beyond this are not mapped: each window costs a little memory, pinned or not.
pub(crate) const MAX_FILE_LEN: u64 = 1 << 40;

/// A MAP_SHARED mapping of a file. (Never MAP_PRIVATE: pinning such pages copies them, or never ends.)
#[derive(Debug)]
pub(crate) struct Region {
    start: usize,
    len: usize,
}

impl Region {
    /// Maps `len` bytes of the file, in whole pages. `from` is the beginning of one.
    pub(crate) fn map(fd: RawFd, (from, len): (u64, u64), access: Access) -> Result<Self> {
        if len == 0 || len > MAX_FILE_LEN {
            return Err(
                Error::new(ErrorKind::InvalidInput, "a file of this length is not mapped").with("bytes", len)
            );
        }
        let len = len.next_multiple_of(page()) as usize;
        let protection = match access {
            Access::ReadOnly => MprotectFlags::READ,
            Access::ReadWrite => MprotectFlags::READ | MprotectFlags::WRITE,
        };
        let start =
            sys::map_aligned(len, TABLE, ProtFlags::empty(), "no addresses to map the file at")? as usize;
        // SAFETY: it takes the place of addresses that were just reserved.
        if let Err(error) = unsafe { sys::map_file(fd, (from, len), protection, start as *mut u8) } {
            // SAFETY: no other code knows the addresses.
            unsafe { libc::munmap(start as *mut _, len) };
            return Err(error);
        }
        // A child of fork must not inherit pages that a device reads by this process's page tables.
        // SAFETY: the range was mapped above.
        unsafe { libc::madvise(start as *mut _, len, libc::MADV_DONTFORK) };
        Ok(Self { start, len })
    }

    /// The address of an offset in it, on the CPU and on the device alike.
    pub(crate) fn address(&self, offset: u64) -> u64 {
        self.start as u64 + offset
    }

    /// Whether all pages of a range are still where they were put: the kernel takes a page out of every address space when
    /// the file loses it, and in a mapping that is never touched none comes back. False where it does not tell.
    pub(crate) fn is_whole(&self, offset: u64, len: u64) -> bool {
        has_all(self.address(offset), len) == Some(true)
    }

    /// Brings a range's pages into the page cache and the page tables. A range that is not in the file any more is an
    /// error here, where the driver's own walk would be slower and its error less precise.
    pub(crate) fn populate(&self, offset: u64, len: usize) -> Result<()> {
        const POPULATE_READ: libc::c_int = 22;
        // SAFETY: `madvise` checks the range; this advice changes no bytes.
        let rc = unsafe { libc::madvise(self.address(offset) as *mut _, len, POPULATE_READ) };
        // Kernels before 5.14 do not know the advice: then the driver faults the pages in.
        if rc < 0 && std::io::Error::last_os_error().raw_os_error() != Some(libc::EINVAL) {
            return Err(Error::last_os("cannot bring the file's pages into memory").with("offset", offset));
        }
        Ok(())
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        // SAFETY: mapped in `map`; pins hold the region until they are unregistered.
        unsafe { libc::munmap(self.start as *mut _, self.len) };
    }
}

// ---- which pages are present, by /proc/self/pagemap --------------------------------------------

/// The open file, and what distinguishes it from another file that reuses its descriptor number.
#[derive(Debug)]
pub(crate) struct Pagemap {
    file: File,
    identity: (u64, u64),
}

impl Pagemap {
    fn open() -> Option<Self> {
        let file = File::open("/proc/self/pagemap").ok()?;
        let stat = sys::stat(file.as_raw_fd()).ok()?;
        Some(Self { file, identity: (stat.st_dev, stat.st_ino) })
    }

    /// Whether all pages of a range of whole pages are in the page tables. `None` where it does not tell.
    fn has_all(&self, address: u64, len: u64) -> Option<bool> {
        // A program may close descriptors that it does not know, and its next file gets the number.
        let stat = sys::stat(self.file.as_raw_fd()).ok()?;
        if (stat.st_dev, stat.st_ino) != self.identity {
            return None;
        }
        sys::has_all_pages(self.file.as_raw_fd(), address, len).or_else(|| self.read_all(address, len))
    }

    /// As [`Pagemap::has_all`], for kernels before 6.7: ten times as long.
    fn read_all(&self, address: u64, len: u64) -> Option<bool> {
        const CHUNK: usize = 8192;
        let size = forebay_sys::kernel_page() as u64;
        let (mut page, mut left) = (address / size, (len / size) as usize);
        let mut entries = vec![0u8; left.min(CHUNK) * 8];
        while left > 0 {
            let count = left.min(CHUNK);
            self.file.read_exact_at(&mut entries[..count * 8], page * 8).ok()?;
            let present = |entry: &[u8; 8]| u64::from_le_bytes(*entry) & PRESENT != 0;
            if !entries[..count * 8].as_chunks().0.iter().all(present) {
                return Some(false);
            }
            page += count as u64;
            left -= count;
        }
        Some(true)
    }
}

/// Opened when first asked. `None` if that failed.
#[derive(Default)]
struct OwnPagemap(OnceLock<Option<Pagemap>>);

// SAFETY: no other kind has the name.
unsafe impl PerProcess for OwnPagemap {
    const NAME: &'static str = "pagemap";
}

fn pagemap() -> Option<&'static Pagemap> {
    OwnPagemap::of_process().0.get_or_init(Pagemap::open).as_ref()
}

/// Whether all pages that have a byte of the range are in the page tables. `None` where the kernel does not tell.
pub(super) fn has_all(address: u64, len: u64) -> Option<bool> {
    let (start, end) = (address / page() * page(), (address + len).next_multiple_of(page()));
    pagemap()?.has_all(start, end - start)
}

/// Whether the kernel tells which pages are there.
pub(super) fn tells_pages() -> bool {
    pagemap().is_some()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_that_the_file_loses_are_missed() {
        for directory in [std::path::Path::new("/dev/shm"), std::path::Path::new(env!("CARGO_MANIFEST_DIR"))]
        {
            let file = tempfile::tempfile_in(directory).unwrap();
            file.write_all_at(&vec![1; 3 << 20], 0).unwrap();
            let region = Region::map(file.as_raw_fd(), (0, 3 << 20), Access::ReadOnly).unwrap();
            region.populate(0, 3 << 20).unwrap();
            assert!(region.is_whole(0, 3 << 20), "{directory:?}");
            let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
            // SAFETY: no pointers are passed.
            if unsafe { libc::fallocate(file.as_raw_fd(), mode, 1 << 20, 4096) } < 0 {
                println!("skipped: no holes in {directory:?}");
                continue;
            }
            assert!(!region.is_whole(0, 3 << 20), "{directory:?}");
            assert!(region.is_whole(2 << 20, 1 << 20), "{directory:?}");
        }
    }

    #[test]
    fn both_ways_to_ask_say_the_same() {
        let pages = sys::Pages::new(64 * page() as usize);
        let owner = pages.unwrap();
        let pages = owner.range();
        let map = Pagemap::open().unwrap();
        // SAFETY: our own memory; small pages, so that each is there or not by itself.
        unsafe { libc::madvise(pages.start.cast(), pages.len, libc::MADV_NOHUGEPAGE) };
        for index in (0..64).filter(|index| *index != 40) {
            // SAFETY: inside the pages.
            unsafe { pages.start.add(index * page() as usize).write_volatile(1) };
        }
        let start = pages.address();
        for (first, count, expected) in [(0, 40, true), (0, 41, false), (40, 1, false), (41, 23, true)] {
            let (at, len) = (start + first * page(), count * page());
            assert_eq!(map.read_all(at, len), Some(expected), "{first} {count}");
            assert_eq!(map.has_all(at, len), Some(expected), "{first} {count}");
            // Parts of pages count as pages.
            assert_eq!(has_all(at + 100, len - 200), Some(expected), "{first} {count}");
        }
    }

    #[test]
    fn a_strangers_file_with_the_number_is_not_asked() {
        let other = tempfile::tempfile().unwrap();
        other.write_all_at(&[0xFF; 4096], 0).unwrap();
        let stat = sys::stat(std::fs::File::open("/proc/self/pagemap").unwrap().as_raw_fd()).unwrap();
        let map = Pagemap { file: other, identity: (stat.st_dev, stat.st_ino) };
        assert_eq!(map.has_all(0, page()), None);
    }
}
