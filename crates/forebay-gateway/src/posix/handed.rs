//! Drafts that another process of this machine writes.
//!
//! The process has a descriptor, and may keep it, a copy of it, or one by which it opens the file again (O_PATH); it may pass these on.
//! Later writes by them must not reach the object. So the descriptor is opened through a mount of the draft's own, which
//! becomes read-only before the draft is published: the kernel does that when nobody has the file open for writing through it, and
//! nobody opens it so again. Where the gateway may make no mounts, or the file stays open, the object is a copy.
//!
//! The process may also have done to the file what its rights allow: another mode, attributes. These go, or again a copy takes the
//! file's place.

use std::fs::File;
use std::os::fd::AsFd;

use rustix::fs::{Mode, OFlags, Statx, fchmod, flistxattr, fremovexattr};
use rustix::io::Errno;

use super::mounts::{OwnMount, open_again};
use super::tree::{failed, stat_file};
use crate::store::StoreResult;

/// The longest list of names that a file's attributes can have.
const LONGEST_NAMES: usize = 64 << 10;

/// A draft that was handed out.
pub(super) struct Handed {
    /// What the descriptor was opened through; `None`: the process may make no mounts.
    mount: Option<OwnMount>,
    /// The file as it was.
    before: Statx,
}

/// How a file came back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Returned {
    /// As it was handed out, and nobody writes to it any more.
    Fit,
    /// Another process has it open for writing.
    Open,
    /// Something of it cannot be undone, or it can be opened for writing again.
    Odd,
}

impl Handed {
    /// Opens the draft's file a second time, for another process.
    pub(super) fn out(file: &File) -> StoreResult<(Self, File)> {
        let mount = OwnMount::new(file).ok();
        let second = match &mount {
            Some(mount) => mount.open(OFlags::RDWR),
            None => open_again(file, OFlags::RDWR),
        };
        let second = second.map_err(failed("cannot open file again"))?;
        let before = stat_file(file).map_err(failed("cannot examine file"))?;
        Ok((Self { mount, before }, second.into()))
    }

    /// Takes it back, as far as that is possible. Returns the file's length, too.
    pub(super) fn returned(&self, file: &File) -> StoreResult<(Returned, u64)> {
        let closed = self.mount.as_ref().map_or(Err(Errno::PERM), OwnMount::make_read_only);
        let now = stat_file(file).map_err(failed("cannot examine file"))?;
        let state = match closed {
            Err(Errno::BUSY) => Returned::Open,
            Ok(()) if self.is_as_before(&now) && self.is_cleaned(file, &now) => Returned::Fit,
            _ => Returned::Odd,
        };
        Ok((state, now.stx_size))
    }

    fn is_as_before(&self, now: &Statx) -> bool {
        let facts = |stat: &Statx| (stat.stx_uid, stat.stx_gid, stat.stx_nlink);
        facts(&self.before) == facts(now)
    }

    /// Takes away attributes, and gives it the mode that it had. Whether that was done.
    fn is_cleaned(&self, file: &File, now: &Statx) -> bool {
        let before = self.before.stx_mode;
        let mode = Mode::from_raw_mode(u32::from(before) & 0o777);
        let is_mode = now.stx_mode == before || fchmod(file, mode).is_ok();
        is_mode && has_plain_attributes(file)
    }
}

fn has_plain_attributes(file: impl AsFd) -> bool {
    let mut names = vec![0; LONGEST_NAMES];
    let len = match flistxattr(&file, &mut names) {
        Ok(len) => len,
        Err(errno) => return errno == Errno::NOTSUP,
    };
    // Capabilities of a program, and records of objects. Lists of access stay: a directory may give them to new files.
    let gone = |name: &&[u8]| name.starts_with(b"user.") || *name == b"security.capability";
    names[..len].split(|byte| *byte == 0).filter(gone).all(|name| fremovexattr(&file, name).is_ok())
}
