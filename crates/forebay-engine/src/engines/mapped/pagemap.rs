//! Which pages of this process's mappings are there, as the kernel tells in `/proc/self/pagemap`.

use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::sync::OnceLock;

use crate::runtime::process::PerProcess;
use crate::runtime::sys;

const PAGE: u64 = 4096;
const PRESENT: u64 = 1 << 63;

/// The open file, and what tells it from another one that got its number.
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
        let (mut page, mut left) = (address / PAGE, (len / PAGE) as usize);
        let mut entries = vec![0u8; left.min(CHUNK) * 8];
        while left > 0 {
            let count = left.min(CHUNK);
            self.file.read_exact_at(&mut entries[..count * 8], page * 8).ok()?;
            let present =
                |entry: &[u8]| entry.try_into().is_ok_and(|bytes| u64::from_le_bytes(bytes) & PRESENT != 0);
            if !entries[..count * 8].chunks_exact(8).all(present) {
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

impl PerProcess for OwnPagemap {
    const NAME: &'static str = "pagemap";
}

fn pagemap() -> Option<&'static Pagemap> {
    OwnPagemap::of_process().0.get_or_init(Pagemap::open).as_ref()
}

/// Whether all pages that have a byte of the range are in the page tables. `None` where the kernel does not tell.
pub(super) fn has_all(address: u64, len: u64) -> Option<bool> {
    let (start, end) = (address / PAGE * PAGE, (address + len).next_multiple_of(PAGE));
    pagemap()?.has_all(start, end - start)
}

/// Whether the kernel tells.
pub(super) fn is_there() -> bool {
    pagemap().is_some()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_ways_to_ask_say_the_same() {
        let pages = sys::Pages::new(64 * PAGE as usize);
        let pages = pages.unwrap();
        let map = Pagemap::open().unwrap();
        // SAFETY: our own memory; small pages, so that each is there or not by itself.
        unsafe { libc::madvise(pages.as_ptr().cast(), pages.len(), libc::MADV_NOHUGEPAGE) };
        for page in (0..64).filter(|page| *page != 40) {
            // SAFETY: inside the pages.
            unsafe { pages.as_ptr().add(page * PAGE as usize).write_volatile(1) };
        }
        let start = pages.as_ptr() as u64;
        for (first, count, expected) in [(0, 40, true), (0, 41, false), (40, 1, false), (41, 23, true)] {
            let (at, len) = (start + first * PAGE, count * PAGE);
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
        assert_eq!(map.has_all(0, PAGE), None);
    }
}
