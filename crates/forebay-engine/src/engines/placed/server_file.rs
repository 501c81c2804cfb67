//! A file whose bytes a server may place.

use std::sync::Arc;

use forebay_error::{Error, Result};
use forebay_source::{HostRange, Place};

use crate::request::file::File;
use crate::runtime::sys;

/// A file whose bytes a server may place.
#[derive(Clone)]
pub(super) struct ServerFile {
    pub(super) place: Arc<dyn Place>,
    /// As the program has it.
    pub(super) file: File,
    /// It is on a mount of the kernel's.
    pub(super) is_mounted: bool,
}

impl ServerFile {
    /// Writes the kernel's dirty pages of the file to its server, durably.
    pub(super) fn settle(&self) -> Result<()> {
        if self.is_mounted { self.file.sync() } else { Ok(()) }
    }

    /// Bytes of the file, read the other way.
    pub(super) fn held(&self, len: usize, offset: u64) -> Result<Vec<u8>> {
        let Some(fd) = self.file.raw_fd().filter(|_| self.is_mounted) else {
            return self.by_host(len, offset);
        };
        let mut bytes = vec![0; len];
        // SAFETY: the bytes are this function's own.
        let got = unsafe { sys::read_at(fd, HostRange::of_mut(&mut bytes[..len]), offset, false) };
        if got < 0 {
            return Err(Error::from_errno(-got as i32, "cannot read the file"));
        }
        bytes.truncate(got as usize);
        Ok(bytes)
    }

    /// Bytes of the file, from its server into host memory.
    pub(super) fn by_host(&self, len: usize, offset: u64) -> Result<Vec<u8>> {
        let mut bytes = vec![0; len];
        let got = self.place.read_at(&mut bytes, offset)?;
        bytes.truncate(got);
        Ok(bytes)
    }
}
