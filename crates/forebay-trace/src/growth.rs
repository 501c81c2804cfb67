//! The trace's file as memory: steps of 4 MiB, each allocated on storage before anybody may write to it.

use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicPtr, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use forebay_error::{Error, ErrorKind, Result};
use forebay_sys::HeldFile;
use rustix::fs::FallocateFlags;
use rustix::io::Errno;
use rustix::process::{Resource, getrlimit};

/// Bytes of a step.
pub(crate) const STEP: usize = 4 << 20;
/// Steps of the longest trace: 64 GiB, a thousand million calls.
const MAX_STEPS: usize = 16_384;

/// The mapped steps of a file.
#[derive(Debug)]
pub(crate) struct Steps {
    file: HeldFile,
    table: Box<[AtomicPtr<u8>]>,
    /// How many are made; growing and cutting happen under this lock.
    made: Mutex<usize>,
}

impl Steps {
    /// None yet.
    pub(crate) fn of(file: File) -> Self {
        let table = (0..MAX_STEPS).map(|_| AtomicPtr::new(ptr::null_mut())).collect();
        Self { file: HeldFile::new(file), table, made: Mutex::new(0) }
    }

    /// The memory of a step, if it is made. It stays mapped as long as `self` lives.
    pub(crate) fn get(&self, index: usize) -> Option<NonNull<u8>> {
        NonNull::new(self.table.get(index)?.load(Ordering::Acquire))
    }

    /// Makes all steps up to `index`, unless `stop` says that it is over.
    pub(crate) fn make(&self, index: usize, stop: impl Fn() -> bool) -> Result<()> {
        let mut made = self.lock();
        while *made <= index {
            if stop() {
                return Err(Error::new(ErrorKind::Cancelled, "the trace is closed"));
            }
            let place = self.table.get(*made).ok_or_else(|| {
                Error::new(ErrorKind::NoSpace, "the trace is full: 64 GiB")
                    .hint("trace a shorter part of the work")
            })?;
            let offset = (*made * STEP) as u64;
            self.allocate(offset)?;
            place.store(self.map(offset)?.as_ptr(), Ordering::Release);
            *made += 1;
        }
        Ok(())
    }

    /// Has the kernel make the pages of a step now, so that writers do not wait for them.
    pub(crate) fn populate(&self, index: usize) {
        const MADV_POPULATE_WRITE: libc::c_int = 23;
        if let Some(base) = self.get(index) {
            // SAFETY: the range is one of our mappings; the advice changes no content. Kernels before 5.14 refuse it,
            // and writers then make the pages.
            unsafe { libc::madvise(base.as_ptr().cast(), STEP, MADV_POPULATE_WRITE) };
        }
    }

    /// Cuts what lies beyond `bytes`. Nobody may write there any more.
    pub(crate) fn cut(&self, bytes: u64) {
        let made = self.lock();
        if bytes < (*made * STEP) as u64
            && let Some(file) = self.file.get()
        {
            // A tail of zeros does no harm where this fails.
            let _ = file.set_len(bytes);
        }
    }

    fn file(&self) -> Result<&File> {
        self.file.get().ok_or_else(|| {
            Error::from_errno(libc::EBADF, "the trace's descriptor was closed by the program").hint(
                "close only your own descriptors (closefrom and close_range take those of libraries, too)",
            )
        })
    }

    fn lock(&self) -> MutexGuard<'_, usize> {
        self.made.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Storage for a step, for certain: writing to a mapping of a full disk would end the process with SIGBUS.
    fn allocate(&self, offset: u64) -> Result<()> {
        let file = self.file()?;
        let end = offset + STEP as u64;
        if end > file_limit() {
            // Growing beyond the limit would end the process with SIGXFSZ.
            return Err(Error::new(ErrorKind::NoSpace, "the trace reaches the limit for files")
                .hint("ulimit -f unlimited"));
        }
        loop {
            match rustix::fs::fallocate(file, FallocateFlags::empty(), offset, STEP as u64) {
                Ok(()) => return Ok(()),
                Err(Errno::INTR) => {}
                Err(Errno::OPNOTSUPP | Errno::NOSYS) => return self.fill(offset),
                Err(errno) => {
                    return Err(Error::from_errno(errno.raw_os_error(), "cannot grow the trace").hint("df ."));
                }
            }
        }
    }

    /// Zeros written in place of an allocation, where the file system has none.
    fn fill(&self, offset: u64) -> Result<()> {
        let (file, zeros) = (self.file()?, vec![0; 256 << 10]);
        for at in (0..STEP).step_by(zeros.len()) {
            file.write_all_at(&zeros, offset + at as u64)
                .map_err(|error| Error::from_io(&error, "cannot grow the trace").hint("df ."))?;
        }
        Ok(())
    }

    fn map(&self, offset: u64) -> Result<NonNull<u8>> {
        let file = self.file()?;
        // SAFETY: a new mapping at a place of the kernel's choice, of a range that the file has.
        let base = unsafe {
            libc::mmap(
                ptr::null_mut(),
                STEP,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED,
                file.as_raw_fd(),
                offset as libc::off_t,
            )
        };
        if base == libc::MAP_FAILED {
            return Err(Error::last_os("cannot map the trace")
                .hint("put it on a local file system, for example /tmp"));
        }
        NonNull::new(base.cast()).ok_or_else(|| Error::new(ErrorKind::Internal, "a mapping at address 0"))
    }
}

impl Drop for Steps {
    fn drop(&mut self) {
        for step in &self.table {
            let base = step.load(Ordering::Relaxed);
            if !base.is_null() {
                // SAFETY: mapped in `map` with this length, and nobody can reach `self` any more.
                unsafe { libc::munmap(base.cast(), STEP) };
            }
        }
    }
}

/// The longest file that this process may write.
fn file_limit() -> u64 {
    getrlimit(Resource::Fsize).current.unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zeros_serve_where_there_is_no_fallocate() {
        let file = tempfile::tempfile().unwrap();
        let steps = Steps::of(file);
        steps.fill(STEP as u64).unwrap();
        assert_eq!(steps.file.get().unwrap().metadata().unwrap().len(), 2 * STEP as u64);
    }

    #[test]
    fn the_longest_trace_has_an_end() {
        let file = tempfile::tempfile().unwrap();
        let steps = Steps { file: HeldFile::new(file), table: Box::new([]), made: Mutex::new(0) };
        assert_eq!(steps.make(0, || false).unwrap_err().kind(), ErrorKind::NoSpace);
    }
}
