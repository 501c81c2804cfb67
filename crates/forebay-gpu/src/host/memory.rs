//! Page-aligned host memory, from the heap or as a mapping of its own.

use std::alloc::{Layout, alloc_zeroed, dealloc};

use forebay_error::{Error, ErrorKind, Result};

use crate::{AllocationKind, DeviceRange};

/// The alignment of all that is allocated here: enough for O_DIRECT on every drive that is common.
const ALIGNMENT: usize = 4096;
/// Bytes before each heap block that hold its length, so that it can be freed by its address alone.
const HEADER: usize = ALIGNMENT;

/// Blocks from this length on have huge pages, where the system gives them.
const HUGE: usize = 2 << 20;

/// Allocates zeroed host memory. [`AllocationKind::Device`] is plain heap memory here, or a mapping where it is long.
pub(crate) fn allocate(kind: AllocationKind, len: usize) -> Result<u64> {
    if len == 0 {
        return Err(Error::new(ErrorKind::InvalidInput, "cannot allocate 0 bytes"));
    }
    match kind {
        AllocationKind::Device if len >= HUGE => allocate_huge(len),
        AllocationKind::Device | AllocationKind::HostHeap => allocate_heap(len),
        AllocationKind::HostMap => allocate_map(len),
        AllocationKind::Virtual | AllocationKind::PinnedHost | AllocationKind::Managed => {
            Err(Error::new(ErrorKind::Unsupported, format!("host memory has no {kind:?} allocations"))
                .hint("use a GPU (-d 0), or -m 0, 3 or 4"))
        }
    }
}

/// Frees what [`allocate`] gave.
///
/// # Safety
/// As [`crate::Device::free_kind`]. The length matters only to [`AllocationKind::HostMap`].
pub(crate) unsafe fn free(kind: AllocationKind, memory: DeviceRange) {
    let DeviceRange { start: address, len } = memory;
    if address == 0 {
        return;
    }
    // SAFETY: the caller promises that the memory came from the matching call and is unused.
    unsafe {
        match kind {
            AllocationKind::HostMap => {
                libc::munmap(address as *mut _, len);
            }
            AllocationKind::Device => free_device(address),
            _ => free_heap(address),
        }
    }
}

fn layout(len: usize) -> Result<Layout> {
    len.checked_add(HEADER)
        .and_then(|whole| Layout::from_size_align(whole, ALIGNMENT).ok())
        .ok_or_else(|| out_of_memory(len))
}

fn allocate_heap(len: usize) -> Result<u64> {
    let layout = layout(len)?;
    // SAFETY: the layout is not empty.
    let block = unsafe { alloc_zeroed(layout) } as usize;
    if block == 0 {
        return Err(out_of_memory(len));
    }
    // SAFETY: the header lies in the block and is aligned.
    unsafe { (block as *mut usize).write(len) };
    Ok((block + HEADER) as u64)
}

/// A mapping of huge pages. They come when they are first written: not all of a long block may be. 64 MiB took 67 ms in pages of 4 KiB.
fn allocate_huge(len: usize) -> Result<u64> {
    let whole = len.checked_add(HEADER).ok_or_else(|| out_of_memory(len))?;
    let block = allocate_map(whole)?;
    // SAFETY: the mapping is ours, and the header lies in it. Where the system refuses, pages are small.
    unsafe {
        libc::madvise(block as *mut _, whole, libc::MADV_HUGEPAGE);
        (block as *mut usize).write(len);
    }
    Ok(block + HEADER as u64)
}

/// # Safety
/// `address` came from [`allocate_huge`] or [`allocate_heap`] for device memory.
unsafe fn free_device(address: u64) {
    let block = address - HEADER as u64;
    // SAFETY: the header was written at allocation.
    let len = unsafe { (block as *const usize).read() };
    // SAFETY: passed on; the mapping is of this length.
    unsafe {
        if len >= HUGE {
            libc::munmap(block as *mut _, len + HEADER);
        } else {
            free_heap(address);
        }
    }
}

/// # Safety
/// `address` came from [`allocate_heap`].
unsafe fn free_heap(address: u64) {
    let block = address as usize - HEADER;
    // SAFETY: the header was written at allocation.
    let len = unsafe { (block as *mut usize).read() };
    if let Ok(layout) = layout(len) {
        // SAFETY: the same layout as at allocation.
        unsafe { dealloc(block as *mut u8, layout) };
    }
}

fn allocate_map(len: usize) -> Result<u64> {
    // SAFETY: an anonymous mapping at an address of the kernel's choice touches nothing that exists.
    let address = unsafe {
        libc::mmap(
            std::ptr::null_mut(),
            len,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
            -1,
            0,
        )
    };
    if address == libc::MAP_FAILED { Err(out_of_memory(len)) } else { Ok(address as u64) }
}

#[cold]
fn out_of_memory(len: usize) -> Error {
    Error::new(ErrorKind::OutOfMemory, "not enough host memory")
        .with("asked", len)
        .hint("use fewer or smaller buffers; free -g shows what is available")
}

/// One value of /proc/meminfo in bytes, 0 where it cannot be read.
pub(super) fn meminfo(name: &str) -> u64 {
    let text = forebay_config::files::read_kernel_text("/proc/meminfo").unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    let kib = line.and_then(|rest| rest.split_whitespace().next()?.parse::<u64>().ok());
    kib.unwrap_or(0) * 1024
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn memory_of_any_length_is_aligned_zeroed_and_freed() {
        for len in [1, HUGE - 1, HUGE, HUGE + 1, 9_000_001] {
            for kind in [AllocationKind::Device, AllocationKind::HostHeap, AllocationKind::HostMap] {
                let start = allocate(kind, len).unwrap();
                assert_eq!(start % ALIGNMENT as u64, 0, "{kind:?} {len}");
                // SAFETY: allocated above, and nobody else's.
                let bytes = unsafe { std::slice::from_raw_parts_mut(start as *mut u8, len) };
                assert!(bytes.iter().all(|byte| *byte == 0), "{kind:?} {len}");
                bytes.fill(7);
                // SAFETY: the same kind and length as at allocation.
                unsafe { free(kind, DeviceRange::new(start, len)) };
            }
        }
        // The length may be unknown where memory of the device is freed.
        let start = allocate(AllocationKind::Device, HUGE).unwrap();
        // SAFETY: as above.
        unsafe { free(AllocationKind::Device, DeviceRange::new(start, 0)) };
    }
}
