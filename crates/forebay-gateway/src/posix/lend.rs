//! Objects for processes of this machine, which get the file's descriptor itself.
//!
//! A descriptor that reads is more than the bytes: by `/proc/self/fd` its holder opens the file again for writing where the file's mode
//! allows that, wherever the directories above forbid it, and long after the key was revoked. So files are opened through a read-only
//! view of the tree. Where the process may not make one, only those get the descriptor for whom it is no more than they have, and no
//! more than reading.

use rustix::fs::{OFlags, Statx};

use super::draft::Target;
use super::inner::Inner;
use super::read::{is_file, open_file};
use super::record::{self, Identity};
use super::tree::{failed, open_below, stat_file};
use crate::store::{Lent, Opened, StoreResult};

/// Opens an object for a process of this user.
pub(super) fn lend(inner: &Inner, target: &Target, uid: u32) -> StoreResult<Lent> {
    let (file, identity, record) = open_file(inner, target)?;
    if target.key.is_folder {
        return Ok(Lent::Kept("the object is a directory"));
    }
    let facts = record::facts(identity, record);
    let Some(view) = &inner.view else {
        let stat = stat_file(&file).map_err(failed("cannot examine file"))?;
        if could_write(&stat, uid) {
            return Ok(Lent::Kept("the asking user could open the file for writing"));
        }
        return Ok(Lent::File(Box::new(Opened { file, facts })));
    };
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY;
    let Ok(file) = open_below(view, &target.path(), flags) else {
        return Ok(Lent::Kept("the file is on a file system that was mounted since the gateway began"));
    };
    let stat = stat_file(&file).map_err(failed("cannot examine file"))?;
    if !is_file(&stat) || Identity::new(&stat) != identity {
        return Ok(Lent::Kept("the object is being replaced"));
    }
    Ok(Lent::File(Box::new(Opened { file: file.into(), facts })))
}

/// Whether a process of this user could open the file again for writing. One of the gateway's own user needs no gateway for that.
fn could_write(stat: &Statx, uid: u32) -> bool {
    let is_ours = uid == rustix::process::geteuid().as_raw();
    !is_ours && (uid == 0 || uid == stat.stx_uid || stat.stx_mode & 0o022 != 0)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn who_could_write() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let ours = rustix::process::geteuid().as_raw();
        let could = |mode, uid| {
            file.as_file().set_permissions(std::fs::Permissions::from_mode(mode)).unwrap();
            could_write(&stat_file(file.as_file()).unwrap(), uid)
        };
        assert!(!could(0o644, ours) && !could(0o666, ours));
        assert!(!could(0o644, 54_321));
        for mode in [0o646, 0o664, 0o666] {
            assert!(could(mode, 54_321), "{mode:o}");
        }
        assert!(ours == 0 || could(0o600, 0), "root of a container is one that asks");
    }
}
