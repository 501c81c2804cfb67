//! The test file: made, opened, cached and dropped.

use std::fs::{File, OpenOptions};
use std::io::Result;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;

use forebay_gpu::{fill_pattern, first_mismatch};

use crate::options::Options;

const CHUNK: u64 = 4 << 20;

/// The file twice: as the library gets it, and through the page cache for ourselves.
#[derive(Debug)]
pub(crate) struct TestFile {
    pub(crate) handed_over: File,
    pub(crate) plain: File,
    /// Bytes that the run uses.
    pub(crate) size: u64,
}

impl TestFile {
    pub(crate) fn open(options: &Options) -> Result<Self> {
        let mut how = OpenOptions::new();
        how.read(true).write(options.writes()).create(options.writes());
        let plain = how.open(&options.file)?;
        let handed_over =
            how.custom_flags(if options.direct { libc::O_DIRECT } else { 0 }).open(&options.file)?;
        let size = options.size.unwrap_or(plain.metadata()?.len());
        Ok(Self { handed_over, plain, size })
    }

    /// Reads the file into the page cache.
    pub(crate) fn warm(&self, alive: impl Fn()) -> Result<()> {
        let mut bytes = vec![0; CHUNK as usize];
        let mut at = 0;
        while at < self.size {
            let count = self.plain.read_at(&mut bytes, at)?;
            if count == 0 {
                break;
            }
            at += count as u64;
            alive();
        }
        Ok(())
    }

    /// Writes the file back and asks the kernel to forget its pages.
    pub(crate) fn drop_pages(&self) -> Result<()> {
        // Only for writing matters what this answers: a read-only file system may refuse.
        let _ = self.plain.sync_all();
        // SAFETY: a call on a descriptor of ours.
        match unsafe { libc::posix_fadvise(self.plain.as_raw_fd(), 0, 0, libc::POSIX_FADV_DONTNEED) } {
            0 => Ok(()),
            code => Err(std::io::Error::from_raw_os_error(code)),
        }
    }

    /// Bytes of the file in the page cache; `None` if the kernel does not tell.
    pub(crate) fn cached(&self) -> Option<u64> {
        let len = self.size as usize;
        let fd = self.plain.as_raw_fd();
        // SAFETY: a new mapping that nothing touches; it is unmapped below.
        let map = unsafe { libc::mmap(std::ptr::null_mut(), len, libc::PROT_READ, libc::MAP_SHARED, fd, 0) };
        if map == libc::MAP_FAILED {
            return None;
        }
        let mut pages = vec![0u8; len.div_ceil(4096)];
        // SAFETY: the mapping has `len` bytes and the vector a byte for each of its pages.
        let failed = unsafe { libc::mincore(map, len, pages.as_mut_ptr()) } != 0;
        // SAFETY: unmaps the mapping made above.
        unsafe { libc::munmap(map, len) };
        let resident = pages.iter().filter(|page| **page & 1 == 1).count() as u64;
        (!failed).then_some((resident * 4096).min(self.size))
    }
}

/// Writes the pattern to a file of `size` bytes unless it is there already (both its ends are looked at).
pub(crate) fn make(path: &Path, size: u64, key: u64) -> Result<()> {
    let file = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path)?;
    if file.metadata()?.len() == size && is_pattern(&file, 0, size, key)? {
        let at = size.saturating_sub(CHUNK);
        if is_pattern(&file, at, size, key)? {
            return Ok(());
        }
    }
    file.set_len(size)?;
    let mut bytes = vec![0; CHUNK as usize];
    let mut at = 0;
    while at < size {
        let part = &mut bytes[..CHUNK.min(size - at) as usize];
        fill_pattern(part, key, at);
        file.write_all_at(part, at)?;
        at += part.len() as u64;
    }
    file.sync_all()
}

fn is_pattern(file: &File, at: u64, size: u64, key: u64) -> Result<bool> {
    let mut bytes = vec![0; CHUNK.min(size - at) as usize];
    file.read_exact_at(&mut bytes, at)?;
    Ok(first_mismatch(&bytes, key, at).is_none())
}
