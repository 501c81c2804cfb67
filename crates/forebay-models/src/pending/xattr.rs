//! Extended attributes. Errors are errnos; a file system without them has none.

use std::ffi::{CStr, CString};
use std::fs::File as StdFile;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use super::sys::last_errno;

type Sys<T> = Result<T, i32>;

/// The longest value, and the longest list, that the kernel has.
const MAX_BYTES: usize = 64 << 10;

/// Names of the file's attributes.
pub(super) fn names(path: &Path) -> Sys<Vec<CString>> {
    // SAFETY: the path is NUL-terminated; at most the given length is written.
    let list = filled(path, |path, room, len| unsafe { libc::listxattr(path, room.cast(), len) })?;
    let list = list.unwrap_or_default();
    Ok(list.split(|byte| *byte == 0).filter(|name| !name.is_empty()).flat_map(CString::new).collect())
}

/// The value of one, if the file has it.
pub(super) fn get(path: &Path, name: &CStr) -> Sys<Option<Vec<u8>>> {
    // SAFETY: path and name are NUL-terminated; at most the given length is written.
    filled(path, |path, room, len| unsafe { libc::getxattr(path, name.as_ptr(), room.cast(), len) })
}

/// What a call wrote that returns its length.
fn filled(path: &Path, call: impl Fn(*const libc::c_char, *mut u8, usize) -> isize) -> Sys<Option<Vec<u8>>> {
    let path = CString::new(path.as_os_str().as_bytes()).map_err(|_| libc::EINVAL)?;
    let mut room = vec![0_u8; MAX_BYTES];
    match usize::try_from(call(path.as_ptr(), room.as_mut_ptr(), room.len())) {
        Ok(len) => {
            room.truncate(len);
            Ok(Some(room))
        }
        Err(_) => match last_errno() {
            libc::ENODATA | libc::EOPNOTSUPP | libc::ENOSYS => Ok(None),
            errno => Err(errno),
        },
    }
}

/// Whether the file has the attribute with this value.
pub(super) fn has(file: &StdFile, name: &CStr, value: &[u8]) -> bool {
    // One byte more than expected, so that a longer value is seen.
    let mut room = vec![0_u8; value.len() + 1];
    // SAFETY: the name is NUL-terminated; at most the given length is written.
    let len =
        unsafe { libc::fgetxattr(file.as_raw_fd(), name.as_ptr(), room.as_mut_ptr().cast(), room.len()) };
    usize::try_from(len).is_ok_and(|len| room[..len] == *value)
}

pub(super) fn set(file: &StdFile, name: &CStr, value: &[u8]) -> Sys<()> {
    // SAFETY: the name is NUL-terminated; the value is read only.
    let rc =
        unsafe { libc::fsetxattr(file.as_raw_fd(), name.as_ptr(), value.as_ptr().cast(), value.len(), 0) };
    if rc == 0 { Ok(()) } else { Err(last_errno()) }
}

/// Takes an attribute away, if the file has it.
pub(super) fn remove(file: &StdFile, name: &CStr) {
    // SAFETY: the name is NUL-terminated.
    unsafe { libc::fremovexattr(file.as_raw_fd(), name.as_ptr()) };
}
