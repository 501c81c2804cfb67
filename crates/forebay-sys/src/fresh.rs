//! Memory that a program has allocated and not used yet: the kernel gives it its pages when they are first written.

use crate::kernel_page;

/// `MADV_POPULATE_WRITE`, which not every libc names.
const POPULATE_WRITE: libc::c_int = 23;

/// Gives the pages within this memory to a program that has not used them, in one call: half the cost of a fault for each, and those who
/// fill the memory do not wait for it. Memory in use is left as it is, but for one look. What the kernel refuses, it does by faults.
///
/// # Safety
/// The memory is mapped, and may be written.
pub unsafe fn populate(start: *mut u8, len: usize) {
    let page = kernel_page();
    let begin = start.addr().next_multiple_of(page);
    let end = (start.addr() + len) & !(page - 1);
    if begin >= end {
        return;
    }
    // One page of it stands for all.
    let middle = (begin + (end - begin) / 2) & !(page - 1);
    let mut is_there = 0_u8;
    let at = |address: usize| start.with_addr(address).cast();
    // SAFETY: the page is mapped, and the result is writable.
    let asked = unsafe { libc::mincore(at(middle), page, &raw mut is_there) };
    if asked == 0 && is_there & 1 == 0 {
        // SAFETY: the caller promises memory that may be written; no bytes of it change.
        let _ = unsafe { libc::madvise(at(begin), end - begin, POPULATE_WRITE) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Pages of a mapping that are there.
    fn resident(start: *mut u8, pages: usize) -> usize {
        let mut there = vec![0; pages];
        // SAFETY: the mapping has these pages.
        assert_eq!(unsafe { libc::mincore(start.cast(), pages * kernel_page(), there.as_mut_ptr()) }, 0);
        there.iter().filter(|page| **page & 1 == 1).count()
    }

    #[test]
    fn whole_pages_of_unused_memory_are_there() {
        let (page, pages) = (kernel_page(), 16);
        let (access, kind) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: a new mapping.
        let start =
            unsafe { libc::mmap(std::ptr::null_mut(), pages * page, access, kind, -1, 0) }.cast::<u8>();
        // SAFETY: the last page of the mapping.
        let refused = unsafe { libc::madvise(start.add(15 * page).cast(), page, POPULATE_WRITE) } != 0;
        if refused || resident(start, pages) == 0 {
            println!("skip: the kernel does not populate memory (before Linux 5.14, or qemu-user)");
            return;
        }
        let pages = pages - 1;
        // SAFETY: of that mapping, which no other thread uses.
        unsafe {
            populate(start.add(1), 10);
            populate(start.add(page - 1), page);
            assert_eq!(resident(start, pages), 0, "parts of pages");
            populate(start.add(1), 4 * page);
            assert_eq!(resident(start, pages), 3);
            start.add(8 * page).write(7);
            populate(start.add(7 * page), 3 * page);
            assert_eq!((resident(start, pages), start.add(8 * page).read()), (4, 7), "memory in use");
            libc::munmap(start.cast(), (pages + 1) * page);
        }
    }
}
