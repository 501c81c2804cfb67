//! Copies owner, mode, access list and attributes from a file to its replacement.

use std::ffi::{CStr, CString};
use std::fs::File as StdFile;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use super::sys;
use super::target::Target;
use super::xattr;

/// A file's POSIX access list. The group bits of the mode are its mask then, not what the group may do.
const ACL: &CStr = c"system.posix_acl_access";
/// Said of the bytes, and no longer true of others.
const OF_THE_BYTES: [&[u8]; 3] = [b"security.capability", b"security.ima", b"security.evm"];

/// Gives `new` what the replaced file has, but gives no user more rights than before. Returns what could not be kept.
pub(super) fn take_over(target: &Target, old: &StdFile, new: &StdFile) -> Result<Vec<&'static str>, i32> {
    let about = old.metadata().map_err(|error| error.raw_os_error().unwrap_or(libc::EIO))?;
    // Where /proc is hidden, the name has to do.
    let by_proc = sys::proc_path(old);
    let path = if by_proc.exists() { by_proc } else { target.path.clone() };
    let mut notes = Vec::new();
    // Allowed to the superuser, and for a group to its members; a save is no less good for another owner.
    let given = sys::give(new, about.uid(), about.gid());
    if !given.owner {
        notes.push("the file belongs to the user who saved it: only root may change owners");
    }
    // As after a write: what runs with its owner's rights holds what the owner put there.
    let bits = about.mode() & 0o777;
    match xattr::get(&path, ACL) {
        Ok(Some(acl)) => {
            // Until the list is there, its mask would be the group's bits.
            sys::set_mode(new, bits & 0o700)?;
            if !given.group || xattr::set(new, ACL, &acl).is_err() {
                notes.push("the access list (ACL) could not be kept: only the owner may use the file");
            }
        }
        Ok(None) => {
            // What the folder gives to new files may be more.
            xattr::remove(new, ACL);
            let kept = if given.group { bits } else { without_group(bits) };
            sys::set_mode(new, kept)?;
            if kept != bits {
                notes.push("the group could not be kept: its rights were taken away");
            }
        }
        Err(_) => {
            sys::set_mode(new, bits & 0o700)?;
            notes.push("the access list (ACL) could not be read: only the owner may use the file");
        }
    }
    if !take_over_attributes(&path, new) {
        notes.push("some of the file's attributes (xattrs) could not be kept");
    }
    Ok(notes)
}

/// The mode for a file of another group: what both the group and others had, so that nobody has more than before.
fn without_group(bits: u32) -> u32 {
    let both = bits & (bits >> 3) & 0o7;
    bits & 0o700 | both << 3 | both
}

/// Users' attributes and security labels; false if one of them is not there now.
fn take_over_attributes(old: &Path, new: &StdFile) -> bool {
    let Ok(names) = xattr::names(old) else { return false };
    let wanted = |name: &CString| {
        let name = name.as_bytes();
        let is_label = name.starts_with(b"security.") && !OF_THE_BYTES.contains(&name);
        name.starts_with(b"user.") || is_label
    };
    let copy = |name: &CString| match xattr::get(old, name) {
        // Often the folder has given it the same label.
        Ok(Some(value)) => xattr::has(new, name, &value) || xattr::set(new, name, &value).is_ok(),
        Ok(None) => true,
        Err(_) => false,
    };
    // All that can be, also behind one that cannot.
    names.iter().filter(|name| wanted(name) && !copy(name)).count() == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_group_never_gets_more() {
        for (bits, expected) in [
            (0o644, 0o644),
            (0o640, 0o600),
            (0o664, 0o644),
            (0o666, 0o666),
            (0o604, 0o600),
            (0o771, 0o711),
            (0o000, 0o000),
        ] {
            assert_eq!(without_group(bits), expected, "{bits:o}");
        }
    }
}
