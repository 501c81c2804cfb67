//! Host memory that is registered for one operation, by a key that ends with it.

use std::ptr;

use crc_fast::CrcAlgorithm::Crc64Nvme;
use forebay_error::Result;
use forebay_source::{Direction, HostRange};
use forebay_verbs::{Access, Domain, Local, Memory, Pages, Region, Remote};

/// The caller's memory, or pages in its place.
pub(super) struct HostRegion {
    // Ends before the pages do.
    region: Region,
    /// In place of memory that the device would lose at a fork.
    copy: Option<Pages>,
    memory: HostRange,
}

impl HostRegion {
    /// Registers memory that the server writes (a read of the object) or reads.
    ///
    /// # Safety
    /// The memory is valid, and this operation's alone, until the region has ended.
    pub(super) unsafe fn new(domain: &dyn Domain, memory: HostRange, direction: Direction) -> Result<Self> {
        let copy = if domain.copies_at_fork() { None } else { Some(Pages::new(memory.len)?) };
        let place = copy.as_ref().map_or(memory, |pages| pages.range().first(memory.len));
        let access = match direction {
            Direction::Read => Access::WRITE | Access::REMOTE_WRITE,
            Direction::Write => Access::READ | Access::REMOTE_READ,
        };
        if copy.is_some() && direction == Direction::Write {
            // SAFETY: both have that many bytes; nobody changes those of the caller.
            unsafe { ptr::copy_nonoverlapping(memory.start, place.start, memory.len) };
        }
        // SAFETY: as the caller promises; the pages are this region's.
        let region = unsafe { domain.register(Memory::Host(place), access) }?;
        Ok(Self { region, copy, memory })
    }

    /// How the server names it.
    pub(super) fn remote(&self) -> Remote {
        Remote { key: self.region.remote_key(), address: self.region.memory().start }
    }

    /// All of it, for operations of this side.
    pub(super) fn local(&self) -> Result<Local<'_>> {
        self.region.range(0, self.memory.len)
    }

    /// Ends the key. After an error the server still reaches the memory, by the connections of its domain.
    pub(super) fn end(&mut self) -> Result<()> {
        self.region.try_release()
    }

    /// Brings bytes of a read to the caller's memory: all of them are there, and the key has ended. False: their checksum is not this one.
    pub(super) fn deliver(&self, sum: Option<u64>) -> bool {
        if let Some(pages) = &self.copy {
            // SAFETY: both have that many bytes, and the caller's memory is this operation's.
            unsafe { ptr::copy_nonoverlapping(pages.range().start, self.memory.start, self.memory.len) };
        }
        // SAFETY: the memory is this operation's, and valid until that has ended; the key has ended, so nobody writes it.
        let bytes = || unsafe { std::slice::from_raw_parts(self.memory.start, self.memory.len) };
        sum.is_none_or(|sum| sum == crc_fast::checksum(Crc64Nvme, bytes()))
    }
}
