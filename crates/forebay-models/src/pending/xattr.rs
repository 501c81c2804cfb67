//! Extended attributes. Errors are errnos; a file system without them has none.

use std::ffi::{CStr, CString};
use std::fs::File as StdFile;
use std::path::Path;

use rustix::fs::{XattrFlags, fgetxattr, fremovexattr, fsetxattr, getxattr, listxattr};
use rustix::io::Errno;

type Sys<T> = Result<T, i32>;

/// The longest value, and the longest list, that the kernel has.
const MAX_BYTES: usize = 64 << 10;

/// Names of the file's attributes.
pub(super) fn names(path: &Path) -> Sys<Vec<CString>> {
    let list = filled(|room| listxattr(path, room))?.unwrap_or_default();
    Ok(list.split(|byte| *byte == 0).filter(|name| !name.is_empty()).flat_map(CString::new).collect())
}

/// The value of one, if the file has it.
pub(super) fn get(path: &Path, name: &CStr) -> Sys<Option<Vec<u8>>> {
    filled(|room| getxattr(path, name, room))
}

/// What a call wrote that returns its length.
fn filled(call: impl FnOnce(&mut [u8]) -> rustix::io::Result<usize>) -> Sys<Option<Vec<u8>>> {
    let mut room = vec![0_u8; MAX_BYTES];
    match call(&mut room) {
        Ok(len) => {
            room.truncate(len);
            Ok(Some(room))
        }
        Err(Errno::NODATA | Errno::OPNOTSUPP | Errno::NOSYS) => Ok(None),
        Err(errno) => Err(errno.raw_os_error()),
    }
}

/// Whether the file has the attribute with this value.
pub(super) fn has(file: &StdFile, name: &CStr, value: &[u8]) -> bool {
    // One byte more than expected, so that a longer value is seen.
    let mut room = vec![0_u8; value.len() + 1];
    fgetxattr(file, name, &mut room[..]).is_ok_and(|len| room[..len] == *value)
}

pub(super) fn set(file: &StdFile, name: &CStr, value: &[u8]) -> Sys<()> {
    fsetxattr(file, name, value, XattrFlags::empty()).map_err(Errno::raw_os_error)
}

/// Takes an attribute away, if the file has it.
pub(super) fn remove(file: &StdFile, name: &CStr) {
    let _ = fremovexattr(file, name);
}
