//! Files of known bytes, and the calls on them that are nobody's but the attack's own.

use std::fs::{File, OpenOptions};
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;

use crate::random::mix;

const fn word(key: u64, number: u64) -> u64 {
    mix(key).wrapping_add(number).wrapping_mul(0xD1B5_4A32_D192_ED03)
}

/// The bytes of `key` from offset `at` on.
pub fn pattern(key: u64, at: u64, len: usize) -> Vec<u8> {
    let first = at / 8;
    let mut bytes: Vec<u8> = Vec::with_capacity(len + 16);
    for number in first..(at + len as u64).div_ceil(8) {
        bytes.extend_from_slice(&word(key, number).to_le_bytes());
    }
    bytes.drain(..(at % 8) as usize);
    bytes.truncate(len);
    bytes
}

/// Where these bytes differ first from those of `key` at offset `at`.
pub fn difference(bytes: &[u8], key: u64, at: u64) -> Option<usize> {
    let want = pattern(key, at, bytes.len());
    if bytes == want { None } else { bytes.iter().zip(&want).position(|(found, want)| found != want) }
}

/// A new file of known bytes.
pub fn make(path: &Path, key: u64, len: u64) {
    const PART: u64 = 4 << 20;
    let file = File::create(path).expect("a new file");
    for at in (0..len).step_by(PART as usize) {
        file.write_all_at(&pattern(key, at, PART.min(len - at) as usize), at).expect("room for a file");
    }
}

/// Opens a file for reading and writing, with these flags more.
pub fn open(path: &Path, flags: i32) -> std::io::Result<File> {
    OpenOptions::new().read(true).write(true).custom_flags(flags).open(path)
}

/// Where a whole file differs first from what it should be.
pub fn file_difference(path: &Path, key: u64, len: u64) -> Option<String> {
    let found = match std::fs::read(path) {
        Ok(found) => found,
        Err(error) => return Some(format!("{}: {error}", path.display())),
    };
    if found.len() as u64 != len {
        return Some(format!("{} has {} bytes, not {len}", path.display(), found.len()));
    }
    difference(&found, key, 0).map(|at| format!("{}: byte {at} is wrong", path.display()))
}

/// Makes the pages of a file cold.
pub fn forget_pages(file: &File) {
    let _ = file.sync_data();
    // SAFETY: no pointers are passed.
    unsafe { libc::posix_fadvise(file.as_raw_fd(), 0, 0, libc::POSIX_FADV_DONTNEED) };
}

/// Closes a descriptor by its number, of any owner.
pub fn close(fd: RawFd) {
    // SAFETY: whose descriptor it is, is the attack's business.
    unsafe { libc::close(fd) };
}

/// The errno of this thread's last call.
pub fn errno() -> i32 {
    std::io::Error::last_os_error().raw_os_error().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_is_the_same_as_in_the_whole() {
        let whole = pattern(7, 0, 100);
        for at in 0..50 {
            assert_eq!(pattern(7, at as u64, 33), whole[at..at + 33]);
        }
        assert_eq!(difference(&whole[3..], 7, 3), None);
        assert_eq!(difference(&[&whole[..9], &[whole[9] ^ 1]].concat(), 7, 0), Some(9));
    }
}
