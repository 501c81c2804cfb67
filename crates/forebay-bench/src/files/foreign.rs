//! Looks into a file before it is overwritten: bytes of earlier runs, or somebody's data?

use std::fs::File as StdFile;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use forebay_engine::File;
use forebay_error::{Error, ErrorKind, Result};
use forebay_gpu::{pattern_word, unmixed_word};

use crate::workload::job::Job;
use crate::workload::{Foreign, Workload};

/// Bytes checked from the first data on, and before the end.
const EDGE: u64 = 1 << 20;
/// Blocks in between, and bytes of each.
const BLOCKS: u64 = 64;
const BLOCK: u64 = 64 << 10;
/// The difference between neighbours of the pattern before they are mixed.
const STEP: u64 = 0x9E37_79B9_7F4A_7C15;
/// Bytes of one number of the pattern.
const WORD: usize = 8;
/// At most one byte in 8 may be unrecognised.
const MOST_OTHERS: usize = 8;

/// Looks into the files that will be written. The warning, if there is one to give; the error, if they must not be.
pub(crate) fn guard(work: &Workload) -> Result<Option<String>> {
    if !work.writes() || work.foreign == Foreign::Overwrite {
        return Ok(None);
    }
    let found = |path: PathBuf| foreign_byte(&path).map(|offset| (path, offset));
    let found: Vec<_> = work.jobs.iter().flat_map(Job::paths).filter_map(found).collect();
    let Some((path, offset)) = found.first() else { return Ok(None) };
    if work.foreign == Foreign::Warn {
        let more = if found.len() > 1 { format!(" and {} more", found.len() - 1) } else { String::new() };
        return Ok(Some(format!("{}{more} held data that no run had written: overwritten", path.display())));
    }
    Err(Error::new(
        ErrorKind::InvalidInput,
        "the file holds data that no run has written: they would be lost",
    )
    .with("path", path.display())
    .with("offset", offset)
    .hint("name another file, or add --overwrite"))
}

/// Whether a sample of the file has anything but zeros and the pattern. The run itself reports files that cannot be
/// opened or read.
fn foreign_byte(path: &Path) -> Option<u64> {
    let about = std::fs::metadata(path).ok().filter(|about| about.is_file() && about.len() > 0)?;
    let len = about.len();
    let (file, engine) = (StdFile::open(path).ok()?, File::open(path).ok()?);
    advise(&file, 0..0, libc::POSIX_FADV_RANDOM);
    places(&file, len)
        .into_iter()
        .find(|place| {
            let was_cached =
                engine.residency(place.start, place.end - place.start).is_ok_and(|found| found.cached > 0);
            let mut bytes = vec![0; (place.end - place.start) as usize];
            let is_foreign = file.read_exact_at(&mut bytes, place.start).is_ok() && !is_ours(&bytes);
            if !was_cached {
                // This check must not change the page cache.
                advise(&file, place.clone(), libc::POSIX_FADV_DONTNEED);
            }
            is_foreign
        })
        .map(|place| place.start)
}

fn advise(file: &StdFile, range: std::ops::Range<u64>, advice: libc::c_int) {
    let (start, len) = (range.start as libc::off_t, (range.end - range.start) as libc::off_t);
    // SAFETY: no pointers are passed.
    unsafe { libc::posix_fadvise(file.as_raw_fd(), start, len, advice) };
}

/// The parts to look at: the first data, the end, and blocks with data anywhere between. All of a small file.
fn places(file: &StdFile, len: u64) -> Vec<std::ops::Range<u64>> {
    let sample = EDGE * 2 + BLOCK * BLOCKS;
    let piece = |start: u64, len_of: u64| start..start.saturating_add(len_of).min(len);
    if len <= sample {
        return (0..len.div_ceil(EDGE)).map(|n| piece(n * EDGE, EDGE)).collect();
    }
    let mut places = vec![piece(len - EDGE, EDGE)];
    places.extend(data_from(file, 0).map(|start| piece(start, EDGE)));
    let stretch = len / BLOCKS;
    places.extend((0..BLOCKS).filter_map(|n| {
        // One block in each stretch; where that is a hole, the data behind it.
        let within = pattern_word(len, n * WORD as u64) % stretch;
        data_from(file, (n * stretch + within) / BLOCK * BLOCK).map(|start| piece(start, BLOCK))
    }));
    places.retain(|place| place.start < place.end);
    places
}

/// The first data at or behind `offset`; `offset` itself where the file system does not tell.
fn data_from(file: &StdFile, offset: u64) -> Option<u64> {
    // SAFETY: no pointers are passed; all reads of this descriptor name their offset.
    let found = unsafe { libc::lseek(file.as_raw_fd(), offset as libc::off_t, libc::SEEK_DATA) };
    match u64::try_from(found) {
        Ok(found) => Some(found),
        Err(_) if std::io::Error::last_os_error().raw_os_error() == Some(libc::ENXIO) => None,
        Err(_) => Some(offset),
    }
}

/// Whether these are zeros and pieces of the pattern, of any key, from any offset on, at any byte: what `-V`, `-R` and
/// `-F` write, one over another. Pieces too short to recognise count as their neighbours do.
fn is_ours(bytes: &[u8]) -> bool {
    let word = |at: usize| -> Option<u64> {
        bytes.get(at..at + WORD).and_then(|bytes| bytes.try_into().ok()).map(u64::from_le_bytes)
    };
    let goes_on = |at: usize| match (word(at), word(at + WORD)) {
        (Some(one), Some(next)) => unmixed_word(next).wrapping_sub(unmixed_word(one)) == STEP,
        _ => false,
    };
    let (mut at, mut ours, mut others) = (0, 0, 0);
    while at < bytes.len() && others <= bytes.len() / MOST_OTHERS {
        let start = at;
        while goes_on(at) {
            at += WORD;
        }
        if at > start {
            at += WORD;
            ours += at - start;
        } else {
            others += usize::from(bytes[at] != 0);
            at += 1;
        }
    }
    others <= ours / MOST_OTHERS
}

#[cfg(test)]
mod tests {
    use forebay_gpu::fill_pattern;

    use super::*;

    fn pattern(key: u64, offset: u64, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        fill_pattern(&mut bytes, key, offset);
        bytes
    }

    #[test]
    fn what_runs_write_is_ours() {
        for len in [100, 4096, 99_999] {
            for offset in [0, 8, 13] {
                assert!(is_ours(&pattern(9, offset, len + 16)), "{len} {offset}");
            }
        }
        assert!(is_ours(&[0; 5000]));
        // Random buffers of odd sizes, side by side and with zeros between them.
        let parts: Vec<u8> =
            [777, 99, 4097, 40].iter().flat_map(|len| pattern(*len as u64, 0, *len)).collect();
        assert!(is_ours(&parts));
        let parts: Vec<u8> = [777, 99, 4097]
            .iter()
            .flat_map(|len| [pattern(*len as u64, 0, *len), vec![0; 100]].concat())
            .collect();
        assert!(is_ours(&parts));
        // One over another, from the middle of a word to the middle of a word.
        let mut over = pattern(1, 0, 1000);
        over[203..307].copy_from_slice(&pattern(2, 0, 104));
        over[310..407].copy_from_slice(&pattern(2, 0, 97));
        assert!(is_ours(&over));
    }

    #[test]
    fn other_data_are_not() {
        for other in [&b"x"[..], b"hello, world\n", &[1; 4096], &[0xFF; 16]] {
            assert!(!is_ours(other), "{other:?}");
            for (before, behind) in [(0, 0), (500, 0), (500, 500), (0, 500)] {
                assert!(!is_ours(&[&vec![0; before], other, &vec![0; behind]].concat()), "{other:?}");
            }
        }
        let mut one = pattern(3, 0, 4096);
        one[1000..2000].fill(b'x');
        assert!(!is_ours(&one));
    }

    #[test]
    fn a_large_file_is_looked_at_where_it_has_data() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let len = 1 << 30;
        file.as_file().set_len(len).unwrap();
        assert_eq!(foreign_byte(file.path()), None);
        for (offset, seen) in [(0, 0), (len - 7, len - EDGE), (777 << 20, 777 << 20)] {
            file.as_file().write_all_at(b"hello", offset).unwrap();
            assert_eq!(foreign_byte(file.path()), Some(seen), "{offset}");
            file.as_file().write_all_at(&[0; 5], offset).unwrap();
            assert_eq!(foreign_byte(file.path()), None);
        }
    }
}
