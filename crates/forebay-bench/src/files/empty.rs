//! Finds holes, and blocks that were allocated and never written. Reads of either bring zeros and
//! reach no drive, at any speed.

use std::fs::File;
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::path::Path;

/// `FS_IOC_FIEMAP`, which libc does not name.
const FIEMAP: libc::Ioctl = 0xC020_660B_u32 as libc::Ioctl;
/// Dirty pages are written first: until then blocks that were only allocated count as such.
const FLAG_SYNC: u32 = 1;
const EXTENT_LAST: u32 = 1;
const EXTENT_UNWRITTEN: u32 = 0x800;
/// Extents per call.
const EXTENTS: usize = 128;

#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Extent {
    logical: u64,
    physical: u64,
    length: u64,
    reserved: [u64; 2],
    flags: u32,
    more: [u32; 3],
}

#[repr(C)]
struct Map {
    start: u64,
    length: u64,
    flags: u32,
    mapped: u32,
    count: u32,
    reserved: u32,
    extents: [Extent; EXTENTS],
}

/// Bytes of `range` that the file at `path` does not hold; `None` where its file system cannot say.
pub fn empty_bytes(path: &Path, range: Range<u64>) -> Option<u64> {
    let file = File::open(path).ok()?;
    if !file.metadata().ok()?.is_file() || range.is_empty() {
        return None;
    }
    match by_extents(&file, &range, 0) {
        // Blocks that were allocated and then written count once their pages are on the drive.
        Some(empty) if empty > 0 => by_extents(&file, &range, FLAG_SYNC),
        Some(empty) => Some(empty),
        None => by_holes(&file, &range),
    }
}

/// By the file's extents: gaps between them, and unwritten extents.
fn by_extents(file: &File, range: &Range<u64>, flags: u32) -> Option<u64> {
    let mut at = range.start;
    let mut held = 0;
    loop {
        let mut map = Map {
            start: at,
            length: range.end - at,
            flags,
            mapped: 0,
            count: EXTENTS as u32,
            reserved: 0,
            extents: [Extent::default(); EXTENTS],
        };
        // SAFETY: the call reads the head and writes as many extents as `count` says that there is room for.
        if unsafe { libc::ioctl(file.as_raw_fd(), FIEMAP, &mut map) } != 0 {
            return None;
        }
        let extents = map.extents.get(..map.mapped as usize)?;
        for one in extents.iter().filter(|one| one.flags & EXTENT_UNWRITTEN == 0) {
            held += (one.logical + one.length).min(range.end).saturating_sub(one.logical.max(at));
        }
        let next = extents.last().map(|one| (one.logical + one.length, one.flags & EXTENT_LAST != 0));
        match next {
            Some((end, false)) if end > at && end < range.end => at = end,
            _ => return Some((range.end - range.start).saturating_sub(held)),
        }
    }
}

/// By `lseek`, where the file system reports no extents.
fn by_holes(file: &File, range: &Range<u64>) -> Option<u64> {
    let seek = |at: u64, whence| {
        // SAFETY: no pointers are passed.
        let found = unsafe { libc::lseek(file.as_raw_fd(), at as libc::off_t, whence) };
        match u64::try_from(found) {
            Ok(found) => Some(found),
            // No hole, or no data, follows.
            Err(_) if std::io::Error::last_os_error().raw_os_error() == Some(libc::ENXIO) => Some(range.end),
            Err(_) => None,
        }
    };
    let mut at = range.start;
    let mut empty = 0;
    while at < range.end {
        let data = seek(at, libc::SEEK_DATA)?.min(range.end);
        empty += data.saturating_sub(at);
        at = if data < range.end { seek(data, libc::SEEK_HOLE)?.max(data + 1) } else { range.end };
    }
    Some(empty)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt;
    use std::path::PathBuf;

    use super::*;

    const MIB: u64 = 1 << 20;

    /// A folder that is rarely on tmpfs.
    fn build_folder() -> PathBuf {
        std::env::current_exe().unwrap().parent().unwrap().to_owned()
    }

    /// A MiB of data, one that is allocated only, one of data, and a hole, on a disk and in memory.
    #[test]
    fn holes_and_blocks_without_data_are_found() {
        let memory = PathBuf::from("/dev/shm");
        for folder in [build_folder(), memory] {
            let Ok(folder) = tempfile::tempdir_in(folder) else { continue };
            let path = folder.path().join("x");
            let file = File::create(&path).unwrap();
            file.set_len(4 * MIB).unwrap();
            // SAFETY: no pointers are passed.
            let allocated = unsafe {
                libc::fallocate(file.as_raw_fd(), libc::FALLOC_FL_KEEP_SIZE, MIB as i64, MIB as i64)
            };
            for at in [0, 2 * MIB] {
                file.write_all_at(&vec![7; MIB as usize], at).unwrap();
            }
            let found = |range| empty_bytes(&path, range);
            if found(3 * MIB..4 * MIB) != Some(MIB) {
                println!("skipped: {} tells of no holes", folder.path().display());
                continue;
            }
            assert_eq!((found(0..MIB), found(2 * MIB..3 * MIB)), (Some(0), Some(0)));
            assert_eq!(found(MIB / 2..3 * MIB + MIB / 2), Some(MIB + MIB / 2));
            if allocated == 0 {
                file.write_all_at(&vec![7; MIB as usize], MIB).unwrap();
                assert_eq!(found(0..4 * MIB), Some(MIB), "it is written now, and still dirty");
            }
        }
    }

    #[test]
    fn many_extents_are_told_in_several_calls() {
        let folder = tempfile::tempdir_in(build_folder()).unwrap();
        let path = folder.path().join("x");
        let file = File::create(&path).unwrap();
        let count = 3 * EXTENTS as u64;
        file.set_len(count * 8192).unwrap();
        for index in 0..count {
            file.write_all_at(&[1; 4096], index * 8192).unwrap();
        }
        assert_eq!(empty_bytes(&path, 0..count * 8192), Some(count * 4096));
    }

    #[test]
    fn what_is_no_file_is_not_known() {
        for path in ["/dev/null", "/dev/zero", "/no/such/file"] {
            assert_eq!(empty_bytes(Path::new(path), 0..4096), None);
        }
    }
}
