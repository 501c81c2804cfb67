//! A file whose server may place its bytes.

use std::sync::Arc;

use forebay_error::{Error, Result};

use crate::request::file::File;
use crate::runtime::sys;

/// A file on a server that may place its bytes.
#[derive(Clone)]
pub(super) struct ServerFile {
    pub(super) file: Arc<forebay_nfs::File>,
    /// The file as the kernel has it, where it is on a mount.
    pub(super) mounted: Option<File>,
}

impl ServerFile {
    /// What this host's kernel has of the file and its server has not goes there, and is durable.
    pub(super) fn settle(&self) -> Result<()> {
        self.mounted.as_ref().map_or(Ok(()), File::sync)
    }

    /// Bytes of the file as they come the other way.
    pub(super) fn held(&self, len: usize, offset: u64) -> Result<Vec<u8>> {
        let Some(fd) = self.mounted.as_ref().and_then(File::raw_fd) else { return self.by_host(len, offset) };
        let mut bytes = vec![0; len];
        // SAFETY: the bytes are this function's own.
        let got = unsafe { sys::read_at(fd, bytes.as_mut_ptr(), len, offset, false) };
        if got < 0 {
            return Err(Error::from_errno(-got as i32, "cannot read the file"));
        }
        bytes.truncate(got as usize);
        Ok(bytes)
    }

    /// Bytes of the file, from its server into host memory.
    pub(super) fn by_host(&self, len: usize, offset: u64) -> Result<Vec<u8>> {
        let mut bytes = vec![0; len];
        let got = self.file.read_at(&mut bytes, offset)?;
        bytes.truncate(got);
        Ok(bytes)
    }
}
