//! Free space of a file system.

use std::ffi::CString;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// Free space at a path.
#[derive(Clone, Copy, Debug)]
pub struct Room {
    /// Bytes.
    pub bytes: u64,
    /// Files, where their number is bounded.
    pub files: Option<u64>,
}

/// Free space at `path`, if its file system counts it.
pub fn room(path: &Path) -> Option<Room> {
    let path = CString::new(path.as_os_str().as_bytes()).ok()?;
    // SAFETY: all-zero bytes are a valid statvfs; the path ends with a zero.
    let found = unsafe {
        let mut found: libc::statvfs = std::mem::zeroed();
        (libc::statvfs(path.as_ptr(), &mut found) == 0 && found.f_blocks > 0).then_some(found)?
    };
    let files = (found.f_files > 0).then_some(found.f_favail);
    Some(Room { bytes: found.f_bavail.saturating_mul(found.f_frsize), files })
}
