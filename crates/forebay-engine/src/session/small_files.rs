//! Small warm files, each opened for one read: four system calls a file, where an open [`File`](crate::File) costs ten.

use std::os::fd::AsRawFd;
use std::path::Path;
use std::time::Instant;

use forebay_config::CachePolicy;
use forebay_error::Result;

use super::Session;
use super::request::check_offset;
use crate::request::receipt::{EngineKind, Moved, Receipt, Way};
use crate::request::transfer::Memory;
use crate::runtime::sys;
use crate::source::piece::{Direction, Piece};
use crate::source::version::FileVersion;

/// Pieces of a file that [`Session::read_small_files`] opens.
#[derive(Clone, Copy, Debug)]
pub struct SmallFile<'a> {
    /// Its path.
    pub path: &'a Path,
    /// What to read of it.
    pub pieces: &'a [Piece],
}

impl Session {
    /// Reads files from the page cache into host memory, on this thread. `is_expected` is asked of each file, by its number,
    /// before it is read. Whether each was read whole, and the receipt of those that were. The others (cold ones, those that
    /// are not as expected, changed meanwhile or cannot be opened) are the caller's to read otherwise: there it sees why.
    ///
    /// # Safety
    /// All memory is valid, and nobody else uses it, until this returns.
    pub unsafe fn read_small_files(
        &self,
        memory: &Memory,
        files: &[SmallFile<'_>],
        is_expected: impl Fn(usize, &FileVersion) -> bool,
    ) -> Result<(Vec<bool>, Option<Receipt>)> {
        let began = Instant::now();
        let engines = self.engines_of(&memory.device)?;
        let election = engines.election(None)?;
        let is_for_us = election.engine == EngineKind::Host && self.config().cache != CachePolicy::Bypass;
        let mut moved = Moved::default();
        let mut done = vec![false; files.len()];
        for (number, file) in files.iter().enumerate().filter(|_| is_for_us) {
            for piece in file.pieces {
                check_offset(piece.offset, piece.len)?;
            }
            // SAFETY: passed on.
            done[number] = unsafe { read_whole(file, |version| is_expected(number, version)) };
            if done[number] {
                moved[Way::Cached] += file.pieces.iter().map(|piece| piece.len as u64).sum::<u64>();
            }
        }
        if !done.contains(&true) {
            return Ok((done, None));
        }
        let read = files.iter().zip(&done).filter(|(_, done)| **done);
        let pieces = read.flat_map(|(file, _)| file.pieces.iter().copied());
        let counter = self.counter_of(Direction::Read, memory.device.as_ref(), pieces);
        let elapsed = began.elapsed();
        engines.totals.add(moved, false);
        if let Some(counter) = counter {
            counter.count(moved, elapsed, true, Some(election.as_ref()));
        }
        Ok((done, Some(Receipt { election, moved, elapsed })))
    }
}

/// # Safety
/// As [`Session::read_small_files`].
unsafe fn read_whole(file: &SmallFile<'_>, is_expected: impl FnOnce(&FileVersion) -> bool) -> bool {
    // What became a pipe is not waited for.
    let flags = libc::O_RDONLY | libc::O_NONBLOCK | libc::O_NOCTTY;
    let Ok(opened) = sys::open(file.path, flags, 0) else { return false };
    let fd = opened.as_raw_fd();
    let Some(before) = FileVersion::of(fd).ok().filter(is_expected) else { return false };
    let is_read = file.pieces.iter().all(|piece| {
        // SAFETY: passed on.
        let got = unsafe { sys::read_at(fd, piece.memory().as_host(), piece.offset, true) };
        got == piece.len as isize
    });
    is_read && FileVersion::of(fd).is_ok_and(|after| after == before)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt;
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_file_that_is_changed_in_place_while_it_is_read_is_left_to_the_caller() {
        let file = tempfile::NamedTempFile::new().unwrap();
        file.as_file().write_all_at(b"before", 0).unwrap();
        // Two ticks of the clock of file times.
        std::thread::sleep(Duration::from_millis(30));
        let (session, mut bytes) = (Session::open().unwrap(), [0u8; 6]);
        let pieces = [Piece { offset: 0, address: bytes.as_mut_ptr() as u64, len: bytes.len() }];
        let memory = Memory::new(forebay_gpu::host::device(), 0);
        let files = [SmallFile { path: file.path(), pieces: &pieces }];
        let read = |meanwhile: &dyn Fn()| {
            let is_expected = |_: usize, _: &FileVersion| {
                meanwhile();
                true
            };
            // SAFETY: the bytes live, and are looked at only below.
            let (done, receipt) = unsafe { session.read_small_files(&memory, &files, is_expected) }.unwrap();
            assert_eq!(done[0], receipt.is_some());
            done[0]
        };
        assert!(read(&|| {}));
        assert!(!read(&|| file.as_file().write_all_at(b"behind", 0).unwrap()), "it may hold parts of both");
        assert!(read(&|| {}));
        assert_eq!(&bytes, b"behind");
    }
}
