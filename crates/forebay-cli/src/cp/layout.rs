//! Finds the data of a file, and splits it into buffers.

use std::ops::Range;
use std::os::fd::RawFd;

use forebay_engine::ReadPiece;

/// Pieces of one buffer: files of many small pieces make few calls, too.
const MAX_PIECES: usize = 1024;

/// The parts of a file's first `len` bytes that are no holes: all of them where the file system reports no holes, or
/// there is no file to ask.
pub(super) fn data(fd: Option<RawFd>, len: u64) -> Vec<Range<u64>> {
    let mut ranges = Vec::new();
    let mut at = 0;
    while at < len {
        let ask = |at, whence| fd.map_or(Err(libc::EINVAL), |fd| seek(fd, at, whence));
        let start = match ask(at, libc::SEEK_DATA) {
            Ok(start) => start.min(len),
            Err(libc::ENXIO) => break,
            Err(_) => at,
        };
        let end = ask(start, libc::SEEK_HOLE).ok().filter(|end| *end > start).unwrap_or(len).min(len);
        if start < end {
            ranges.push(start..end);
        }
        at = end;
    }
    ranges
}

/// Our own descriptor: nobody else uses its position.
fn seek(fd: RawFd, at: u64, whence: libc::c_int) -> Result<u64, i32> {
    // SAFETY: no pointers are passed.
    let found = unsafe { libc::lseek(fd, at as libc::off_t, whence) };
    u64::try_from(found).map_err(|_| std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO))
}

/// The pieces of each buffer of `room` bytes, in order.
pub(super) fn loads(ranges: Vec<Range<u64>>, room: usize) -> Vec<Vec<ReadPiece>> {
    let mut loads = Vec::new();
    let mut pieces: Vec<ReadPiece> = Vec::new();
    for mut range in ranges {
        while range.start < range.end {
            let filled = pieces.last().map_or(0, |piece| piece.range.end);
            if filled == room || pieces.len() == MAX_PIECES {
                loads.push(std::mem::take(&mut pieces));
                continue;
            }
            let take = (range.end - range.start).min((room - filled) as u64);
            pieces.push(ReadPiece { offset: range.start, range: filled..filled + take as usize });
            range.start += take;
        }
    }
    if !pieces.is_empty() {
        loads.push(pieces);
    }
    loads
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd;
    use std::os::unix::fs::FileExt;
    use std::slice::from_ref;

    use super::*;

    #[test]
    fn data_and_holes_of_files() {
        let file = tempfile::tempfile_in("/dev/shm").unwrap();
        let len = (1 << 20) + 5;
        file.set_len(len).unwrap();
        let found = || data(Some(file.as_raw_fd()), len);
        assert_eq!(found(), []);
        file.write_all_at(&[1], 70_000).unwrap();
        assert_eq!(found(), from_ref(&(69_632..73_728)));
        file.write_all_at(&[1], len - 1).unwrap();
        assert_eq!(found(), [69_632..73_728, 1 << 20..len]);
        // A pipe has no holes.
        let (pipe, _) = std::io::pipe().unwrap();
        for fd in [Some(pipe.as_raw_fd()), None] {
            assert_eq!(data(fd, 77), from_ref(&(0..77)));
        }
    }

    #[test]
    fn loads_fill_their_buffers_in_order() {
        let told = |ranges: &[Range<u64>], room| {
            let piece = |piece: ReadPiece| (piece.offset, piece.range);
            let load = |load: Vec<ReadPiece>| load.into_iter().map(piece).collect::<Vec<_>>();
            loads(ranges.to_vec(), room).into_iter().map(load).collect::<Vec<_>>()
        };
        assert!(told(&[], 10).is_empty());
        assert_eq!(told(from_ref(&(0..25)), 10), [[(0, 0..10)], [(10, 0..10)], [(20, 0..5)]]);
        assert_eq!(
            told(&[3..5, 8..10, 100..108], 10),
            [vec![(3, 0..2), (8, 2..4), (100, 4..10)], vec![(106, 0..2)]]
        );
        let many: Vec<_> = (0..3000).map(|at| 2 * at..2 * at + 1).collect();
        assert_eq!(told(&many, 1 << 20).iter().map(Vec::len).collect::<Vec<_>>(), [1024, 1024, 952]);
    }
}
