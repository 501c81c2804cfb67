//! Drafts that another process of this machine writes.
//!
//! The process has a descriptor, and may keep it, or a copy of it. What it writes by it later must not reach the object: a draft is
//! published when nobody else has it open, or a copy is in its place. It may also have done to the file what its rights allow: another
//! mode, attributes, a second name. These go, or again a copy takes the file's place.

use std::fs::File;
use std::os::fd::{AsFd, AsRawFd};

use rustix::fs::{CWD, Mode, OFlags, Statx, fchmod, flistxattr, fremovexattr, openat};
use rustix::io::Errno;

use super::sys::is_open_elsewhere;
use super::tree::{failed, stat_file};
use crate::store::StoreResult;

/// The longest list of names that a file's attributes can have.
const LONGEST_NAMES: usize = 64 << 10;

/// Opens the draft's file a second time, and says what it is like now.
pub(super) fn second_opening(file: &File) -> StoreResult<(File, Statx)> {
    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    let flags = OFlags::RDWR | OFlags::CLOEXEC;
    let second = openat(CWD, path, flags, Mode::empty()).map_err(failed("cannot open file again"))?;
    let stat = stat_file(file).map_err(failed("cannot examine file"))?;
    Ok((second.into(), stat))
}

/// How a file came back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Returned {
    /// As it was handed out, and nobody else has it open.
    Fit,
    /// Another process has it open.
    Open,
    /// Something of it cannot be undone, or the file system does not say whether it is open elsewhere.
    Odd,
}

/// Looks at a file that was handed out when it was as `before`. Returns its length, too.
pub(super) fn returned(file: &File, before: Option<&Statx>) -> StoreResult<(Returned, u64)> {
    let is_open = is_open_elsewhere(file);
    let now = stat_file(file).map_err(failed("cannot examine file"))?;
    let facts = |stat: &Statx| (stat.stx_uid, stat.stx_gid, stat.stx_nlink);
    let is_as_before = before.is_some_and(|before| facts(before) == facts(&now));
    let state = match is_open {
        Ok(true) => Returned::Open,
        Ok(false) if is_as_before && is_cleaned(file, &now, before) => Returned::Fit,
        _ => Returned::Odd,
    };
    Ok((state, now.stx_size))
}

/// Takes away attributes, and gives it the mode that it had. Whether that was done.
fn is_cleaned(file: &File, now: &Statx, before: Option<&Statx>) -> bool {
    let Some(before) = before else { return false };
    let mode = Mode::from_raw_mode(u32::from(before.stx_mode) & 0o777);
    let is_mode = now.stx_mode == before.stx_mode || fchmod(file, mode).is_ok();
    is_mode && has_plain_attributes(file)
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
