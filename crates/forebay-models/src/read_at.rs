//! The seam between readers and what they read: a length, and bytes at an offset.

use std::os::unix::fs::FileExt;

use forebay_error::{Error, ErrorKind, Result};

/// Something that bytes can be read from at any offset.
pub trait ReadAt {
    /// How many bytes there are.
    fn len(&self) -> Result<u64>;

    /// Fills `into` with the bytes at `offset`. Fewer are an error of kind
    /// [`ShortRead`](forebay_error::ErrorKind::ShortRead).
    fn read_at(&self, offset: u64, into: &mut [u8]) -> Result<()>;

    /// Whether there are no bytes.
    fn is_empty(&self) -> Result<bool> {
        Ok(self.len()? == 0)
    }

    /// The `len` bytes at `offset`, all or an error. Asks for no more memory than there are bytes to fill it.
    fn bytes(&self, offset: u64, len: u64) -> Result<Vec<u8>> {
        if offset.checked_add(len).is_none_or(|end| self.len().is_ok_and(|all| end > all)) {
            return Err(short(offset, len));
        }
        let mut bytes = Vec::new();
        bytes.try_reserve_exact(len as usize).map_err(|_| {
            Error::new(ErrorKind::OutOfMemory, "no host memory for a header").with("bytes", len)
        })?;
        bytes.resize(len as usize, 0);
        self.read_at(offset, &mut bytes)?;
        Ok(bytes)
    }
}

fn short(offset: u64, len: u64) -> Error {
    Error::new(ErrorKind::ShortRead, "the file ended early").with("offset", offset).with("bytes", len)
}

impl ReadAt for [u8] {
    fn len(&self) -> Result<u64> {
        Ok(<[u8]>::len(self) as u64)
    }

    fn read_at(&self, offset: u64, into: &mut [u8]) -> Result<()> {
        let from = usize::try_from(offset)
            .ok()
            .and_then(|start| self.get(start..start.checked_add(into.len())?))
            .ok_or_else(|| short(offset, into.len() as u64))?;
        into.copy_from_slice(from);
        Ok(())
    }
}

impl ReadAt for Vec<u8> {
    fn len(&self) -> Result<u64> {
        ReadAt::len(self.as_slice())
    }

    fn read_at(&self, offset: u64, into: &mut [u8]) -> Result<()> {
        self.as_slice().read_at(offset, into)
    }
}

impl ReadAt for std::fs::File {
    fn len(&self) -> Result<u64> {
        match self.metadata() {
            Ok(about) => Ok(about.len()),
            Err(error) => Err(Error::from_io(&error, "cannot read the file's attributes")),
        }
    }

    fn read_at(&self, offset: u64, into: &mut [u8]) -> Result<()> {
        self.read_exact_at(into, offset).map_err(|error| match error.kind() {
            std::io::ErrorKind::UnexpectedEof => short(offset, into.len() as u64),
            _ => Error::from_io(&error, "cannot read").with("offset", offset),
        })
    }
}

/// By plain reads through the page cache, or requests, on the calling thread.
impl ReadAt for forebay_engine::File {
    fn len(&self) -> Result<u64> {
        forebay_engine::File::len(self)
    }

    fn read_at(&self, offset: u64, into: &mut [u8]) -> Result<()> {
        self.read_host(into, offset)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn asks_for_no_more_than_there_is() {
        let bytes = vec![7_u8; 10];
        assert_eq!(bytes.bytes(4, 6).unwrap(), [7; 6]);
        for (offset, len) in [(4, 7), (11, 0), (u64::MAX, 2), (0, u64::MAX)] {
            assert_eq!(bytes.bytes(offset, len).unwrap_err().kind(), ErrorKind::ShortRead, "{offset} {len}");
        }
    }

    #[test]
    fn engine_files_read_like_files() {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        std::io::Write::write_all(&mut file, b"0123456789").unwrap();
        let opened = forebay_engine::File::open(file.path()).unwrap();
        assert_eq!(opened.bytes(2, 3).unwrap(), b"234");
        let error = ReadAt::read_at(&opened, 8, &mut [0; 3]).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::ShortRead);
    }
}
