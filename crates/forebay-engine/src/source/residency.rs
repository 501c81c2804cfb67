//! How much of a file is in the page cache.
//!
//! `cachestat` first; where it says EPERM (file neither owned nor writable, the usual container), sampled
//! `preadv2(RWF_NOWAIT)`; `mincore` only where the kernel tells the truth: for files owned or writable.

use std::os::fd::{AsRawFd, RawFd};

use forebay_error::{Error, ErrorKind, Result};

use super::Descriptors;
use crate::runtime::sys;

/// What is known of a range's residency before it is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Warmth {
    /// All samples are in the page cache: take it from there without asking first.
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

const PAGE: u64 = 4096;
const SAMPLES: u64 = 256;

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
    if let Ok(pages) = sys::cachestat(fd, offset, total) {
        return Ok(Residency { cached: (pages * PAGE).min(total), total, method: "cachestat" });
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
    if let Ok(pages) = sys::cachestat(fd, offset, 1) {
        return pages > 0;
    }
    let mut byte = 0u8;
    // SAFETY: one writable byte.
    (unsafe { sys::read_at(fd, &raw mut byte, 1, offset, true) }) == 1
}

/// Whether all of a range is in the page cache, as far as the kernel tells: where it does not count for us, by samples.
pub(crate) fn is_whole(file: &Descriptors, offset: u64, len: u64) -> bool {
    const SPOTS: u64 = 16;
    let fd = file.buffered.as_raw_fd();
    if file.is_memory && has_no_holes(fd) {
        // Counting small pages takes as long as registering them. (What is in swap comes back from there.)
        return true;
    }
    if let Ok(pages) = sys::cachestat(fd, offset, len) {
        return pages * PAGE >= len;
    }
    (0..SPOTS).all(|spot| page(fd, offset + (len - 1) / SPOTS * spot)) && page(fd, offset + len - 1)
}

/// Whether a file has room for each of its bytes.
fn has_no_holes(fd: RawFd) -> bool {
    const BLOCK: u64 = 512;
    sys::stat(fd).is_ok_and(|stat| stat.st_blocks as u64 * BLOCK >= stat.st_size as u64)
}

/// Reads one byte at up to [`SAMPLES`] evenly spread pages without waiting. `None` where the file system cannot.
fn sampled(fd: RawFd, offset: u64, total: u64) -> Option<u64> {
    let pages = total.div_ceil(PAGE);
    let samples = pages.min(SAMPLES);
    let mut hits = 0;
    for sample in 0..samples {
        let at = offset + (u128::from(sample) * u128::from(pages) / u128::from(samples)) as u64 * PAGE;
        let mut byte = 0u8;
        // SAFETY: one writable byte.
        match unsafe { sys::read_at(fd, &raw mut byte, 1, at, true) } {
            1 => hits += 1,
            got if got == -(libc::EOPNOTSUPP as isize) => return None,
            _ => {}
        }
    }
    Some((total as u128 * hits as u128 / samples as u128) as u64)
}

fn mincore(fd: RawFd, offset: u64, total: u64) -> Result<u64> {
    let start = offset / PAGE * PAGE;
    let len = (offset + total - start) as usize;
    // SAFETY: a fresh read-only mapping whose memory is never read.
    let map = unsafe {
        libc::mmap(std::ptr::null_mut(), len, libc::PROT_READ, libc::MAP_SHARED, fd, start as libc::off_t)
    };
    if map == libc::MAP_FAILED {
        return Err(Error::last_os("cannot tell what is in the page cache"));
    }
    let mut pages = vec![0u8; len.div_ceil(PAGE as usize)];
    // SAFETY: `pages` has a byte for each page of the mapping, which is removed right after.
    let rc = unsafe {
        let rc = libc::mincore(map, len, pages.as_mut_ptr());
        libc::munmap(map, len);
        rc
    };
    if rc < 0 {
        return Err(Error::last_os("cannot tell what is in the page cache"));
    }
    Ok((pages.iter().filter(|page| **page & 1 == 1).count() as u64 * PAGE).min(total))
}
