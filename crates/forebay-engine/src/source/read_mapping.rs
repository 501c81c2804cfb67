//! Reading cached pages through a mapping, for when read calls of many lanes wait for each other.
//!
//! A read call marks each folio as accessed. The second mark in its life has the kernel move it to the list of active folios,
//! under one lock for all: lanes that read a file of small folios that was just written spend half of their time there. A
//! mapping for random reads leaves no marks. Our code never loads from it (a truncated file would raise SIGBUS): the kernel
//! copies from it by `process_vm_writev` on this process, which returns EFAULT instead. That costs a page fault for each 64 KiB,
//! so calls are faster where no folio is moved. Nothing tells which are: each file's reads are measured.

use std::os::fd::RawFd;
use std::sync::OnceLock;

use forebay_source::HostRange;

use rustix::mm::{Advice, MprotectFlags};

use super::mapping::{copy_by_kernel, leave_page_tables};
use super::read_balance::ReadBalance;
use super::{Descriptors, LOCAL_FILE_SYSTEMS, residency};
use crate::runtime::sys;
use crate::tuning::plan::CHUNK;

/// A file's reads through the page cache.
#[derive(Debug, Default)]
pub(crate) struct CachedReads {
    pub(crate) balance: ReadBalance,
    /// `None`: the file cannot be mapped, or the kernel does not copy for us.
    mapping: OnceLock<Option<ReadMapping>>,
}

impl CachedReads {
    /// Copies cached pages of a file. Fewer bytes than asked for where they are not all there: then a call tells why.
    ///
    /// # Safety
    /// The memory is writable.
    unsafe fn copy(&self, fd: RawFd, memory: HostRange, offset: u64) -> usize {
        let Some(mapping) = self.mapping.get_or_init(|| ReadMapping::new(fd)) else { return 0 };
        // SAFETY: passed on.
        unsafe { mapping.copy(memory, offset) }
    }
}

/// All of a file as it was when this was made.
#[derive(Debug)]
struct ReadMapping {
    start: usize,
    len: usize,
}

impl ReadMapping {
    fn new(fd: RawFd) -> Option<Self> {
        let len = usize::try_from(sys::length(fd).ok()?).ok().filter(|len| *len > 0)?;
        if sys::can_be_sealed(fd) {
            // With a mapping the program could not seal it against writes.
            return None;
        }
        // SAFETY: no address is asked for.
        let start = unsafe { sys::map_file(fd, (0, len), MprotectFlags::READ, std::ptr::null_mut()) }.ok()?;
        // Without the first its pages would be marked when they leave the page tables. A child of fork has no use for it, and would
        // keep the file's space.
        for advice in [Advice::Random, Advice::LinuxDontFork] {
            // SAFETY: our own mapping.
            let _ = unsafe { rustix::mm::madvise(start as *mut _, len, advice) };
        }
        Some(Self { start, len })
    }

    /// # Safety
    /// The memory is writable.
    unsafe fn copy(&self, memory: HostRange, offset: u64) -> usize {
        let Some(at) = usize::try_from(offset).ok().filter(|at| at.saturating_add(memory.len) <= self.len)
        else {
            return 0;
        };
        // SAFETY: the caller vouches for the buffer; the mapping is only read.
        let copied = unsafe { copy_by_kernel(self.start + at, memory.start as usize, memory.len) };
        // SAFETY: within our own mapping of a file.
        unsafe { leave_page_tables(self.start, at, at + memory.len) };
        copied.max(0) as usize
    }
}

impl Drop for ReadMapping {
    fn drop(&mut self) {
        // SAFETY: mapped in `new`; no call uses it any more.
        let _ = unsafe { rustix::mm::munmap(self.start as *mut _, self.len) };
    }
}

impl Descriptors {
    /// The measured reads of this file, for a range that is read by either way.
    pub(crate) fn cached_reads(&self, len: usize) -> Option<&CachedReads> {
        let may = len >= CHUNK as usize
            && self.nature.is_regular
            && LOCAL_FILE_SYSTEMS.contains(&self.nature.magic)
            && self.calls.may_map()
            && !self.reads.is_elsewhere();
        may.then(|| &*self.reads)
    }

    /// Copies a range through the mapping, if all of it is in the page cache. Whether it did.
    ///
    /// # Safety
    /// The memory is writable.
    pub(crate) unsafe fn read_mapped(&self, reads: &CachedReads, memory: HostRange, offset: u64) -> bool {
        // A fault on a hole of a memory file would allocate a page.
        if !residency::is_counted_whole(self, offset, memory.len as u64) {
            return false;
        }
        // SAFETY: passed on.
        unsafe { reads.copy(self.for_pages(), memory, offset) == memory.len }
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

    use super::*;
    use crate::request::file::File;

    const MIB: usize = 1 << 20;

    /// Reads by the mapping. `None`: a call has to.
    fn read(file: &File, offset: u64, len: usize) -> Option<Vec<u8>> {
        let Some(descriptors) = file.descriptors() else { unreachable!() };
        let reads = descriptors.cached_reads(len)?;
        let mut bytes = vec![0; len];
        // SAFETY: all of `bytes`.
        unsafe { descriptors.read_mapped(reads, HostRange::of_mut(&mut bytes), offset) }.then_some(bytes)
    }

    #[test]
    fn the_mapping_gives_the_bytes_that_are_there() {
        let bytes: Vec<u8> = (0..4 * MIB + 5).map(|at| (at / 7) as u8).collect();
        for place in [env!("CARGO_MANIFEST_DIR"), "/dev/shm"] {
            let mut named = tempfile::NamedTempFile::new_in(place).unwrap();
            std::io::Write::write_all(&mut named, &bytes).unwrap();
            let file = File::open(named.path()).unwrap();
            if read(&file, 0, MIB).is_none() {
                println!("skipped: the kernel copies nothing from a mapping of a file in {place}");
                continue;
            }
            for (offset, len) in [(0, bytes.len()), (4097, MIB), (3 * MIB + 5, MIB), (MIB - 1, MIB + 2)] {
                assert!(read(&file, offset as u64, len).unwrap() == bytes[offset..offset + len]);
            }
            assert_eq!(read(&file, 0, CHUNK as usize - 1), None, "short");
            assert_eq!(read(&file, 3 * MIB as u64 + 6, MIB), None, "beyond the end");
            named.as_file().set_len(2 * MIB as u64).unwrap();
            assert_eq!(read(&file, 3 * MIB as u64, MIB), None, "truncated since");
            assert!(read(&file, MIB as u64, MIB).unwrap() == bytes[MIB..2 * MIB]);
            named.as_file().set_len(4 * MIB as u64).unwrap();
            assert_eq!(read(&file, 3 * MIB as u64, MIB), None, "a hole stays one");
        }
    }

    #[test]
    fn a_file_that_may_be_sealed_is_not_mapped() {
        // SAFETY: a fresh descriptor, owned from here on.
        let fd =
            unsafe { OwnedFd::from_raw_fd(libc::memfd_create(c"sealed".as_ptr(), libc::MFD_ALLOW_SEALING)) };
        // SAFETY: its own descriptor.
        assert_eq!(unsafe { libc::ftruncate(fd.as_raw_fd(), MIB as i64) }, 0);
        assert!(ReadMapping::new(fd.as_raw_fd()).is_none());
        // SAFETY: the same.
        assert_eq!(unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_ADD_SEALS, libc::F_SEAL_SEAL) }, 0);
        assert!(ReadMapping::new(fd.as_raw_fd()).is_some());
    }
}
