//! Hidden names, and what dead saves left under them.

use std::ffi::CString;
use std::fs::File as StdFile;
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use forebay_error::{Error, Result};

use super::sys;
use super::target::Target;

/// Hexadecimal digits at the end of a hidden name.
const DIGITS: usize = 16;
/// As much of a target's name as leaves room for the rest within the 255 bytes of a name.
const MAX_NAME_PART: usize = 200;

/// What stands before them.
const MARK: &[u8] = b".forebay-";

/// What all hidden names for this target begin with.
fn prefix(name: &CString) -> Vec<u8> {
    let name = name.as_bytes();
    let cut = match std::str::from_utf8(name) {
        Ok(text) => &name[..text.floor_char_boundary(MAX_NAME_PART)],
        Err(_) => &name[..name.len().min(MAX_NAME_PART)],
    };
    [b".", cut, MARK].concat()
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
    let folder = || target.sibling(&target.name).parent().unwrap_or(Path::new(".")).to_owned();
    remove_some(&target.folder, folder, &prefix(&target.name));
}

/// The same for all targets in a folder.
pub(super) fn remove_all(path: &Path) {
    if let Ok(folder) = sys::open_folder(path) {
        remove_some(&folder, || path.to_owned(), b".");
    }
}

/// The same for names that begin with this; an end of a target's name may follow.
fn remove_some(folder: &StdFile, path: impl FnOnce() -> PathBuf, prefix: &[u8]) {
    let entries = std::fs::read_dir(sys::proc_path(folder)).or_else(|_| std::fs::read_dir(path()));
    let Ok(entries) = entries else { return };
    for entry in entries.flatten() {
        let name = entry.file_name();
        if !is_hidden(name.as_bytes(), prefix) || !entry.file_type().is_ok_and(|kind| kind.is_file()) {
            continue;
        }
        let Ok(name) = CString::new(name.as_bytes()) else { continue };
        let Ok(file) = sys::open_existing(folder, &name) else { continue };
        // The lock is free when its holder is gone; the name may have become another file's since.
        if sys::try_lock(&file) && sys::is_called(&file, folder, &name) {
            let _ = sys::unlink(folder, &name);
        }
    }
}

/// Whether a name is a hidden one, and what stands before its digits begins and ends as it must.
fn is_hidden(name: &[u8], prefix: &[u8]) -> bool {
    let Some((before, digits)) = name.len().checked_sub(DIGITS).map(|at| name.split_at(at)) else {
        return false;
    };
    let has_prefix = before.starts_with(prefix) && (before.len() == prefix.len() || prefix == b".");
    has_prefix && before.ends_with(MARK) && digits.iter().all(u8::is_ascii_hexdigit)
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

    #[test]
    fn hidden_names_are_known() {
        for (name, prefix, expected) in [
            (".a.forebay-0123456789abcdef", ".a.forebay-", true),
            (".b.forebay-0123456789abcdef", ".a.forebay-", false),
            (".a.b.forebay-0123456789abcdef", ".a.forebay-", false),
            (".b.forebay-0123456789abcdef", ".", true),
            (".b.forebay-0123456789abcdeg", ".", false),
            (".b.forebay-notes", ".", false),
            ("b.forebay-0123456789abcdef", ".", false),
            ("0123456789abcdef", ".", false),
            ("x", ".", false),
        ] {
            assert_eq!(is_hidden(name.as_bytes(), prefix.as_bytes()), expected, "{name} {prefix}");
        }
    }
}
