//! Hidden names, and what dead saves left under them.

use std::ffi::{CString, OsStr};
use std::io::Read;
use std::os::unix::ffi::OsStrExt;

use forebay_error::{Error, Result};

use super::sys;
use super::target::Target;

/// Hexadecimal digits at the end of a hidden name.
const DIGITS: usize = 16;
/// As much of a target's name as leaves room for the rest within the 255 bytes of a name.
const MAX_NAME_PART: usize = 200;

/// What all hidden names for this target begin with.
fn prefix(name: &CString) -> Vec<u8> {
    let name = name.as_bytes();
    let cut = match std::str::from_utf8(name) {
        Ok(text) => &name[..text.floor_char_boundary(MAX_NAME_PART)],
        Err(_) => &name[..name.len().min(MAX_NAME_PART)],
    };
    [b".", cut, b".forebay-"].concat()
}

/// A hidden name that nobody else uses.
pub(super) fn new_name(target: &CString) -> Result<CString> {
    let mut random = [0; DIGITS / 2];
    std::fs::File::open("/dev/urandom")
        .and_then(|mut source| source.read_exact(&mut random))
        .map_err(|error| Error::from_io(&error, "cannot get random numbers"))?;
    let mut name = prefix(target);
    name.extend_from_slice(format!("{:016x}", u64::from_ne_bytes(random)).as_bytes());
    CString::new(name).map_err(|_| Error::from_errno(libc::EINVAL, "cannot name the file"))
}

/// Removes hidden files of this target that no living process holds. What cannot be removed stays: saving comes first.
pub(super) fn remove(target: &Target) {
    let prefix = prefix(&target.name);
    let Ok(entries) = std::fs::read_dir(sys::proc_path(&target.folder)).or_else(|_| {
        std::fs::read_dir(target.sibling(&target.name).parent().unwrap_or(OsStr::new(".").as_ref()))
    }) else {
        return;
    };
    for entry in entries.flatten() {
        let name = entry.file_name();
        let Some(digits) = name.as_bytes().strip_prefix(prefix.as_slice()) else { continue };
        let is_ours = digits.len() == DIGITS && digits.iter().all(u8::is_ascii_hexdigit);
        if !is_ours || !entry.file_type().is_ok_and(|kind| kind.is_file()) {
            continue;
        }
        let Ok(name) = CString::new(name.as_bytes()) else { continue };
        let Ok(file) = sys::open_existing(&target.folder, &name) else { continue };
        // The lock is free when its holder is gone; the name may have become another file's since.
        if sys::try_lock(&file) && sys::is_called(&file, &target.folder, &name) {
            let _ = sys::unlink(&target.folder, &name);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_fit_and_differ() {
        for target in ["a", &"é".repeat(127), &"x".repeat(255)] {
            let target = CString::new(target).unwrap();
            let (one, other) = (new_name(&target).unwrap(), new_name(&target).unwrap());
            assert_ne!(one, other);
            assert!(one.as_bytes().len() <= 255);
            assert!(one.to_str().unwrap().starts_with('.'));
        }
    }
}
