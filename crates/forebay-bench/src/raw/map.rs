//! A file's pages, registered with a device by raw calls, to measure the engine `mapped` against.

use std::ops::Range;
use std::os::fd::AsRawFd;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use forebay_error::{Error, ErrorKind, Result};
use forebay_gpu::{Access, Device, HostRange};
use forebay_sys::page_size;

/// Bytes registered by one call.
pub(crate) const WINDOW: usize = 64 << 20;
/// `MADV_POPULATE_READ`, which not every libc names.
const POPULATE_READ: libc::c_int = 22;

/// A shared read-only mapping of a file. The first thread that needs a window registers it, in order; all stay
/// registered until it is dropped.
#[derive(Debug)]
pub(crate) struct RawMap {
    device: Arc<dyn Device>,
    start: usize,
    mapped: usize,
    len: u64,
    /// The range that may be registered, in whole pages.
    range: Range<usize>,
    /// Registered so far: from the range's start to here.
    end: Mutex<usize>,
}

impl RawMap {
    /// Maps the file; registers nothing yet.
    pub(crate) fn new(path: &Path, range: &Range<u64>, device: &Arc<dyn Device>) -> Result<Self> {
        device.can_register(Access::ReadOnly).map_err(|error| match error.hints() {
            [] => error.hint("use a GPU (-d), or leave out --engine mapped and --gather"),
            _ => error,
        })?;
        let failed =
            |error: &std::io::Error, doing: &str| Error::from_io(error, doing).with("path", path.display());
        let file = std::fs::File::open(path).map_err(|error| failed(&error, "cannot open file"))?;
        let len = file.metadata().map_err(|error| failed(&error, "cannot open file"))?.len();
        if range.is_empty() || range.end > len {
            return Err(Error::new(ErrorKind::InvalidInput, "the range goes beyond the end of the file")
                .with("path", path.display()));
        }
        let mapped = (len as usize).next_multiple_of(page_size());
        let flags = libc::MAP_SHARED | libc::MAP_NORESERVE;
        // SAFETY: a fresh mapping of a length that is not 0; no address is asked for.
        let start =
            unsafe { libc::mmap(std::ptr::null_mut(), mapped, libc::PROT_READ, flags, file.as_raw_fd(), 0) };
        if start == libc::MAP_FAILED {
            return Err(Error::last_os("cannot map the file").with("path", path.display()));
        }
        let first = range.start as usize / page_size() * page_size();
        Ok(Self {
            device: device.clone(),
            start: start as usize,
            mapped,
            len,
            range: first..(range.end as usize).next_multiple_of(page_size()),
            end: Mutex::new(first),
        })
    }

    fn end(&self) -> MutexGuard<'_, usize> {
        self.end.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Registers the windows before file offset `end` that are not registered yet. An earlier copy continues meanwhile:
    /// one thread that does both in turn is faster than two, which wait for each other in the driver.
    pub(crate) fn register_until(&self, end: u64) -> Result<()> {
        let mut reached = self.end();
        while (*reached as u64) < end.min(self.range.end as u64) {
            let next = ((*reached / WINDOW + 1) * WINDOW).min(self.range.end);
            let (address, len) = ((self.start + *reached) as *mut u8, next - *reached);
            // SAFETY: `madvise` checks the range; this advice changes no bytes.
            let done = unsafe { libc::madvise(address.cast(), len, POPULATE_READ) };
            // Kernels before 5.14 do not know the advice: then the driver faults the pages in.
            if done < 0 && std::io::Error::last_os_error().raw_os_error() != Some(libc::EINVAL) {
                return Err(Error::last_os("cannot bring the file's pages into memory"));
            }
            // SAFETY: mapped by `RawMap::new` until `drop`, which unregisters first.
            unsafe { self.device.register(HostRange::new(address, len), Access::ReadOnly)? };
            *reached = next;
        }
        Ok(())
    }

    /// Address of a file offset, for the device.
    pub(crate) fn address(&self, offset: u64) -> u64 {
        self.start as u64 + offset
    }

    /// Bytes of the file.
    pub(crate) const fn len(&self) -> u64 {
        self.len
    }

    /// Bytes registered so far.
    pub(crate) fn registered(&self) -> u64 {
        (*self.end() - self.range.start) as u64
    }
}

/// The windows of `start..end`, cut at multiples of a window.
fn windows(start: usize, end: usize) -> impl Iterator<Item = Range<usize>> {
    let mut at = start;
    std::iter::from_fn(move || {
        let next = ((at / WINDOW + 1) * WINDOW).min(end);
        let window = at..next;
        at = next;
        (!window.is_empty()).then_some(window)
    })
}

impl Drop for RawMap {
    fn drop(&mut self) {
        let end = *self.end();
        let mut is_free = true;
        for window in windows(self.range.start, end) {
            // SAFETY: registered in the same windows; movers wait for their copies before they release it.
            is_free &= unsafe { self.device.unregister((self.start + window.start) as *mut u8).is_ok() };
        }
        // Pages that the device may still read stay mapped.
        if is_free {
            // SAFETY: mapped in `RawMap::new`, and nothing uses it any more.
            unsafe { libc::munmap(self.start as *mut libc::c_void, self.mapped) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_tile_the_range() {
        for (start, end) in [(0, WINDOW), (4096, 3 * WINDOW + 4096), (WINDOW - 4096, WINDOW + 4096)] {
            let mut next = start;
            for window in windows(start, end) {
                assert_eq!(window.start, next);
                assert!(window.start / WINDOW == (window.end - 1) / WINDOW);
                next = window.end;
            }
            assert_eq!(next, end);
        }
    }

    #[test]
    fn host_memory_registers_nothing() {
        let device = forebay_gpu::host::device();
        assert!(RawMap::new(Path::new("/proc/self/exe"), &(0..1), &device).is_err());
    }
}
