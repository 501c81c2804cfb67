//! How much of a file is in the page cache.
//!
//! `cachestat` first; where it says EPERM (file neither owned nor writable, the usual container), sampled
//! `preadv2(RWF_NOWAIT)`; `mincore` only where the kernel tells the truth: for files owned or writable.

use std::num::NonZeroU64;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::atomic::Ordering::Relaxed;
use std::time::Instant;

use forebay_config::CachePolicy;
use forebay_error::{Error, ErrorKind, Result};
use forebay_source::HostRange;
use rustix::fs::{Advice, fadvise};

use super::Descriptors;
use crate::runtime::sys;
use crate::tuning::callers::PART;
use crate::tuning::files::{TRUSTED, WARMTH_SAMPLES};
use crate::tuning::machine::{BRIEF_WAIT, MANY, WORTH_SLEEPING};

/// The residency of a range before a read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Warmth {
    /// All samples are in the page cache: read from there without asking first.
    Warm,
    /// None is.
    Cold,
    /// Some are: ask for each segment. Reading without asking would not wait, but it would start reading cold pages
    /// into the cache.
    Mixed,
}

/// What part of a range is in the page cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Residency {
    /// Bytes in the page cache.
    pub cached: u64,
    /// Bytes in the range, up to the end of the file.
    pub total: u64,
    /// How it was found.
    pub method: &'static str,
}

impl Residency {
    /// `cached / total`; 1 for an empty range.
    pub fn fraction(&self) -> f64 {
        if self.total == 0 { 1.0 } else { self.cached as f64 / self.total as f64 }
    }
}

impl Descriptors {
    /// Whether the page at `offset` is in the page cache. After a run of hits the file counts as warm and the kernel is not
    /// asked, until a read misses.
    pub(crate) fn is_resident(&self, offset: u64) -> bool {
        let hits = self.hits.load(Relaxed);
        if hits >= TRUSTED {
            return true;
        }
        let hit = page(self.buffered.as_raw_fd(), offset);
        // Races between threads only make the run of hits a little shorter or longer.
        if hit {
            self.hits.store(hits + 1, Relaxed);
        } else {
            self.missed();
        }
        hit
    }

    /// A read without waiting found bytes missing. Threads that read a cold file write nothing here.
    pub(crate) fn missed(&self) {
        if self.hits.load(Relaxed) > 0 {
            self.hits.store(0, Relaxed);
        }
    }

    /// What the first page says of a small read on the caller's thread.
    pub(crate) fn warmth_of_small(&self, offset: u64, len: u64, policy: CachePolicy) -> Warmth {
        if self.is_memory {
            Warmth::Warm
        } else if policy == CachePolicy::Bypass || !self.is_resident(offset) {
            Warmth::Cold
        } else if len > PART {
            Warmth::Mixed
        } else {
            Warmth::Warm
        }
    }

    /// What a few samples of `ranges` (offset, length) say.
    pub(crate) fn warmth(&self, ranges: impl ExactSizeIterator<Item = (u64, u64)>) -> Warmth {
        if self.is_memory {
            return Warmth::Warm;
        }
        let single = ranges.len() == 1;
        let step = ranges.len().div_ceil(WARMTH_SAMPLES).max(1);
        let (mut warm, mut cold) = (false, false);
        let fd = self.buffered.as_raw_fd();
        let mut sample = |offset| if page(fd, offset) { warm = true } else { cold = true };
        for (offset, len) in ranges.step_by(step) {
            sample(offset);
            if single && len > sys::page() {
                let parts = WARMTH_SAMPLES as u64;
                (1..=parts).for_each(|part| sample(offset + (len - 1) / parts * part));
            }
        }
        match (warm, cold) {
            (true, false) => Warmth::Warm,
            (false, true) => Warmth::Cold,
            _ => Warmth::Mixed,
        }
    }
}

pub(crate) fn measure(file: &Descriptors, offset: u64, len: u64) -> Result<Residency> {
    let fd = file.buffered.as_raw_fd();
    let end = sys::length(fd)?.min(offset.saturating_add(len));
    let total = end.saturating_sub(offset);
    if file.is_memory {
        return Ok(Residency { cached: total, total, method: "memory" });
    }
    if total == 0 {
        return Ok(Residency { cached: 0, total, method: "empty range" });
    }
    if let Ok(cached) = sys::cachestat(fd, offset, total) {
        return Ok(Residency { cached: cached.min(total), total, method: "cachestat" });
    }
    if let Some(cached) = sampled(fd, offset, total) {
        return Ok(Residency { cached, total, method: "preadv2(RWF_NOWAIT), sampled" });
    }
    if !sys::owns_or_writes(fd) {
        // For other users' files the kernel answers "all resident".
        return Err(Error::new(
            ErrorKind::Unsupported,
            "cannot tell what is in the page cache of another user's file",
        ));
    }
    mincore(fd, offset, total).map(|cached| Residency { cached, total, method: "mincore" })
}

/// Whether the page at `offset` is in the page cache. Beyond the end of the file nothing is.
pub(crate) fn page(fd: RawFd, offset: u64) -> bool {
    if let Ok(cached) = sys::cachestat(fd, offset, 1) {
        return cached > 0;
    }
    let mut byte = 0u8;
    // SAFETY: one writable byte.
    (unsafe { sys::read_at(fd, HostRange::new(&raw mut byte, 1), offset, true) }) == 1
}

/// Whether all of a range is in the page cache: as the kernel counts, or by samples where it does not count for us.
pub(crate) fn is_whole(file: &Descriptors, offset: u64, len: u64) -> bool {
    let fd = file.buffered.as_raw_fd();
    if file.is_memory && has_no_holes(fd) {
        // Counting small pages takes as long as registering them. (What is in swap comes back from there.)
        return true;
    }
    if let Ok(cached) = sys::cachestat(fd, offset, len) {
        return cached >= len;
    }
    let samples = 4 * WARMTH_SAMPLES as u64;
    (0..samples).all(|spot| page(fd, offset + (len - 1) / samples * spot)) && page(fd, offset + len - 1)
}

/// Whether all of a range is in the page cache by the kernel's count. `false` if the kernel does not count for us.
pub(crate) fn is_counted_whole(file: &Descriptors, offset: u64, len: u64) -> bool {
    let fd = file.buffered.as_raw_fd();
    if file.is_memory {
        return has_no_holes(fd);
    }
    sys::cachestat(fd, offset, len).is_ok_and(|cached| cached >= len)
}

/// Whether a file has room for each of its bytes.
fn has_no_holes(fd: RawFd) -> bool {
    const BLOCK: u64 = 512;
    sys::stat(fd).is_ok_and(|stat| stat.st_blocks as u64 * BLOCK >= stat.st_size as u64)
}

/// Reads one byte at up to [`MANY`] evenly spread pages without waiting, the last page first, so that the kernel
/// does not read ahead of the next one. `None` where the file system cannot.
fn sampled(fd: RawFd, offset: u64, total: u64) -> Option<u64> {
    let pages = total.div_ceil(sys::page());
    let samples = pages.min(MANY as u64);
    let (mut hits, mut missed) = (0, Vec::new());
    for sample in (0..samples).rev() {
        let at = offset + (u128::from(sample) * u128::from(pages) / u128::from(samples)) as u64 * sys::page();
        let mut byte = 0u8;
        let before = blocks_read();
        // SAFETY: one writable byte.
        match unsafe { sys::read_at(fd, HostRange::new(&raw mut byte, 1), at, true) } {
            // A page that is missing may be read so soon that the same call finds it.
            1 if blocks_read() == before => hits += 1,
            got if got == -(libc::EOPNOTSUPP as isize) => return None,
            _ => missed.push(at),
        }
    }
    give_back(fd, &missed);
    Some((total as u128 * hits as u128 / samples as u128) as u64)
}

/// Drops pages that were not cached before they were looked at: the kernel began to read them, and the next look, or the
/// caller, would find them. What a slow drive has not brought within [`BRIEF_WAIT`] stays.
fn give_back(fd: RawFd, pages: &[u64]) {
    let is_there = |at: u64| {
        let mut byte = 0u8;
        // SAFETY: one writable byte.
        (unsafe { sys::read_at(fd, HostRange::new(&raw mut byte, 1), at, true) }) != -(libc::EAGAIN as isize)
    };
    wait_for_pages(pages, is_there);
    let page = sys::page();
    for at in pages {
        // Where it fails, and where a page is still being read, it stays.
        let _ = fadvise(sys::borrow(fd), *at / page * page, NonZeroU64::new(page), Advice::DontNeed);
    }
}

/// Waits until pages that are being read are there, for at most [`BRIEF_WAIT`]. Their reads are under way together.
fn wait_for_pages(pages: &[u64], is_there: impl Fn(u64) -> bool) {
    let begun = Instant::now();
    for at in pages {
        while !is_there(*at) {
            if begun.elapsed() >= BRIEF_WAIT {
                return;
            }
            std::thread::sleep(WORTH_SLEEPING);
        }
    }
}

/// Blocks that this thread asked of drives since it began; a constant where the kernel does not count.
fn blocks_read() -> libc::c_long {
    // SAFETY: all-zero bytes are a valid rusage, and the call writes only that.
    unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        libc::getrusage(libc::RUSAGE_THREAD, &raw mut usage);
        usage.ru_inblock
    }
}

fn mincore(fd: RawFd, offset: u64, total: u64) -> Result<u64> {
    let page = forebay_sys::kernel_page() as u64;
    let start = offset / page * page;
    let len = (offset + total - start) as usize;
    // Without access: in a program that locks its memory the kernel would read all of a mapping's pages.
    // SAFETY: a fresh mapping whose memory is never touched.
    let map = unsafe {
        libc::mmap(std::ptr::null_mut(), len, libc::PROT_NONE, libc::MAP_SHARED, fd, start as libc::off_t)
    };
    if map == libc::MAP_FAILED {
        return Err(Error::last_os("cannot tell what is in the page cache"));
    }
    let mut pages = vec![0u8; len.div_ceil(page as usize)];
    // SAFETY: `pages` has a byte for each page of the mapping, which is removed right after.
    let rc = unsafe {
        let rc = libc::mincore(map, len, pages.as_mut_ptr());
        libc::munmap(map, len);
        rc
    };
    if rc < 0 {
        return Err(Error::last_os("cannot tell what is in the page cache"));
    }
    Ok((pages.iter().filter(|page| **page & 1 == 1).count() as u64 * page).min(total))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_drive_that_does_not_answer_is_waited_for_once() {
        let begun = Instant::now();
        wait_for_pages(&[0; MANY], |_| false);
        assert!((BRIEF_WAIT..10 * BRIEF_WAIT).contains(&begun.elapsed()), "{:?}", begun.elapsed());
    }

    /// What a user sees who does not own the file: looking at a cold file twice finds it cold, and leaves it cold.
    #[test]
    fn samples_leave_no_pages_behind() {
        for len in [1 << 20, 16 << 20] {
            let file = tempfile::NamedTempFile::new().unwrap();
            std::fs::write(file.path(), vec![1; len as usize]).unwrap();
            let fd = file.as_file().as_raw_fd();
            let drop = || {
                file.as_file().sync_all().unwrap();
                // SAFETY: no pointers are passed.
                unsafe { libc::posix_fadvise(fd, 0, 0, libc::POSIX_FADV_DONTNEED) };
            };
            assert_eq!(sampled(fd, 0, len).unwrap_or(len), len, "just written");
            drop();
            match sys::cachestat(fd, 0, len) {
                Ok(0) => {}
                other => return println!("skipped: the file cannot be made cold here: {other:?}"),
            }
            for look in 0..3 {
                match sampled(fd, 0, len) {
                    Some(cached) => assert_eq!(cached, 0, "look {look}"),
                    None => return println!("skipped: no RWF_NOWAIT here"),
                }
            }
            assert!(
                sys::cachestat(fd, 0, len).unwrap() <= 4 * sys::page(),
                "the kernel reads ahead at the start of a file only"
            );
        }
    }
}
