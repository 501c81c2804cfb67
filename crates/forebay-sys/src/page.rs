//! The size of the machine's pages: 4 KiB on x86-64; on aarch64 also 16 or 64 KiB.

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// 0 until a thread has asked.
static KERNEL: AtomicUsize = AtomicUsize::new(0);
/// 0 but in tests.
static ASSUMED: AtomicUsize = AtomicUsize::new(0);

/// Bytes of a page: what mappings, registrations of memory and parts of files are rounded to. A power of two.
pub fn page_size() -> usize {
    match ASSUMED.load(Relaxed) {
        0 => kernel_page(),
        bytes => bytes,
    }
}

/// Bytes of what the kernel counts as a page (`cachestat`, `mincore`, `/proc/self/pagemap`): [`page_size`] but in tests.
pub fn kernel_page() -> usize {
    match KERNEL.load(Relaxed) {
        0 => {
            // SAFETY: asks for a number.
            let asked = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
            let bytes = usize::try_from(asked).unwrap_or(4096);
            KERNEL.store(bytes, Relaxed);
            bytes
        }
        bytes => bytes,
    }
}

/// For tests: the whole process goes on as on a machine with larger pages, which are multiples of the real ones.
///
/// # Panics
/// If it is no power of two, or smaller than the machine's pages.
#[doc(hidden)]
pub fn assume_page_size(bytes: usize) {
    assert!(bytes.is_power_of_two() && bytes >= kernel_page(), "pages of {bytes} bytes");
    ASSUMED.store(bytes, Relaxed);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tests_may_assume_larger_pages_and_the_kernel_counts_its_own() {
        let own = page_size();
        assert!(own.is_power_of_two() && own >= 4096 && own == kernel_page());
        assume_page_size(8 * own);
        assert_eq!((page_size(), kernel_page()), (8 * own, own));
    }
}
