//! Files by plain system calls, to measure the engine against.

use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};

use forebay_error::{Error, ErrorKind, Result};
use rustix::fs::{AtFlags, Mode, OFlags, StatxFlags};

/// A file opened for raw I/O.
#[derive(Debug)]
pub(crate) struct RawFile {
    path: PathBuf,
    buffered: OwnedFd,
    direct: Option<OwnedFd>,
    /// Offsets, lengths and addresses of O_DIRECT are multiples of this.
    pub(crate) align: usize,
}

impl RawFile {
    /// Opens `path`; with `direct`, for O_DIRECT, which must then be possible.
    pub(crate) fn open(path: &Path, write: bool, direct: bool) -> Result<Self> {
        let mode = if write { libc::O_RDWR } else { libc::O_RDONLY };
        let buffered = open(path, mode)?;
        let direct = if direct {
            let fd = open(path, mode | libc::O_DIRECT).map_err(|error| {
                if error.errno() != libc::EINVAL {
                    return error;
                }
                Error::new(ErrorKind::Unsupported, "the file system has no O_DIRECT")
                    .with("path", path.display())
                    .hint("use -O 1 (no O_DIRECT), or -x 0 or 4, which go through the page cache here")
            })?;
            Some(fd)
        } else {
            None
        };
        let align = direct.as_ref().map_or(1, alignment);
        Ok(Self { path: path.to_owned(), buffered, direct, align })
    }

    fn failed(&self, doing: &str, offset: u64) -> Error {
        let error = Error::last_os(doing).with("path", self.path.display()).with("offset", offset);
        match error.errno() {
            libc::EINVAL if self.direct.is_some() => {
                error.hint("use I/O sizes and offsets that are multiples of 4K, or -O 1")
            }
            libc::ENOSPC => error.hint("free some space, or use a smaller -s"),
            _ => error,
        }
    }

    /// Reads exactly `len` bytes.
    ///
    /// # Safety
    /// `into` is valid for `len` rounded up to [`RawFile::align`], and aligned to it.
    pub(crate) unsafe fn read(&self, into: *mut u8, len: usize, offset: u64) -> Result<()> {
        let mut done = 0;
        while done < len {
            let here = offset + done as u64;
            let direct = self.direct.as_ref().filter(|_| (here as usize).is_multiple_of(self.align));
            let (fd, ask) = match direct {
                Some(fd) => (fd, (len - done).next_multiple_of(self.align)),
                None => (&self.buffered, len - done),
            };
            // SAFETY: the caller gives `len` rounded up; `done` is a multiple of the alignment while O_DIRECT is used.
            let got = unsafe { libc::pread(fd.as_raw_fd(), into.add(done).cast(), ask, here as i64) };
            match got {
                0 => {
                    return Err(Error::new(ErrorKind::ShortRead, "the file ended early")
                        .with("path", self.path.display())
                        .with("offset", here)
                        .hint("something truncated the file during the run"));
                }
                got if got > 0 => done += got as usize,
                _ if std::io::Error::last_os_error().raw_os_error() == Some(libc::EINTR) => {}
                _ => return Err(self.failed("cannot read", here)),
            }
        }
        Ok(())
    }

    /// Writes exactly `len` bytes; a tail that O_DIRECT cannot write goes through the page cache.
    ///
    /// # Safety
    /// `from` is valid for `len`, and aligned to [`RawFile::align`].
    pub(crate) unsafe fn write(&self, from: *const u8, len: usize, offset: u64) -> Result<()> {
        let mut done = 0;
        while done < len {
            let here = offset + done as u64;
            let whole = (len - done) / self.align * self.align;
            let direct =
                self.direct.as_ref().filter(|_| whole > 0 && (here as usize).is_multiple_of(self.align));
            let (fd, ask) = direct.map_or((&self.buffered, len - done), |fd| (fd, whole));
            // SAFETY: `done + ask` is at most `len`.
            let put = unsafe { libc::pwrite(fd.as_raw_fd(), from.add(done).cast(), ask, here as i64) };
            if put > 0 {
                done += put as usize;
            } else if put == 0 || std::io::Error::last_os_error().raw_os_error() != Some(libc::EINTR) {
                return Err(self.failed("cannot write", here));
            }
        }
        Ok(())
    }
}

fn open(path: &Path, flags: libc::c_int) -> Result<OwnedFd> {
    let flags = OFlags::from_bits_retain(flags as u32) | OFlags::CLOEXEC;
    rustix::fs::open(path, flags, Mode::empty()).map_err(|errno| {
        Error::from_errno(errno.raw_os_error(), "cannot open file").with("path", path.display())
    })
}

/// The alignment that O_DIRECT wants, by statx; 512 where it does not say.
fn alignment(fd: impl AsFd) -> usize {
    let answer = rustix::fs::statx(fd, c"", AtFlags::EMPTY_PATH, StatxFlags::DIOALIGN).ok();
    let told = answer.filter(|answer| answer.stx_mask & StatxFlags::DIOALIGN.bits() != 0);
    told.map_or(512, |answer| answer.stx_dio_offset_align.max(answer.stx_dio_mem_align).max(1) as usize)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[repr(align(4096))]
    struct Page([u8; 8192]);

    #[test]
    fn odd_lengths_round_trip() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("odd");
        std::fs::write(&path, b"").unwrap();
        for direct in [false, true] {
            let Ok(file) = RawFile::open(&path, true, direct) else {
                eprintln!("skipped: no O_DIRECT here");
                continue;
            };
            let mut page = Page([0; 8192]);
            for (index, byte) in page.0.iter_mut().enumerate() {
                *byte = index as u8;
            }
            // SAFETY: the pages are aligned and large enough.
            unsafe { file.write(page.0.as_ptr(), 5000, 0).unwrap() };
            let mut back = Page([0; 8192]);
            // SAFETY: as above.
            unsafe { file.read(back.0.as_mut_ptr(), 5000, 0).unwrap() };
            assert_eq!(back.0[..5000], page.0[..5000]);
            // SAFETY: as above.
            let error = unsafe { file.read(back.0.as_mut_ptr(), 6000, 0) }.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::ShortRead);
        }
    }
}
