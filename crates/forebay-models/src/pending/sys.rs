//! The system calls of a save, relative to an open folder. Errors are errnos.

use std::ffi::{CStr, OsString};
use std::fs::File as StdFile;
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::fs::{Access, AtFlags, CWD, FlockOperation, Gid, Mode, OFlags, Uid};
use rustix::io::Errno;
use rustix::path::Arg;

type Sys<T> = Result<T, i32>;

/// What the call gives, or its errno. Calls that a signal interrupted are repeated.
fn ask<T>(call: impl FnMut() -> rustix::io::Result<T>) -> Sys<T> {
    rustix::io::retry_on_intr(call).map_err(Errno::raw_os_error)
}

fn open_at(folder: impl AsFd, name: impl Arg + Copy, flags: OFlags, mode: u32) -> Sys<StdFile> {
    let mode = Mode::from_raw_mode(mode);
    ask(|| rustix::fs::openat(&folder, name, flags | OFlags::CLOEXEC, mode)).map(StdFile::from)
}

/// Opens a folder to work in, and to sync where it may be read.
pub(super) fn open_folder(path: &Path) -> Sys<StdFile> {
    match open_at(CWD, path, OFlags::RDONLY | OFlags::DIRECTORY, 0) {
        Err(libc::EACCES) => open_at(CWD, path, OFlags::PATH | OFlags::DIRECTORY, 0),
        result => result,
    }
}

/// A new file without a name.
pub(super) fn open_nameless(folder: &StdFile, mode: u32) -> Sys<StdFile> {
    open_at(folder, c".", OFlags::TMPFILE | OFlags::RDWR, mode)
}

/// A new file of this name.
pub(super) fn open_new(folder: &StdFile, name: &CStr, mode: u32) -> Sys<StdFile> {
    open_at(folder, name, OFlags::CREATE | OFlags::EXCL | OFlags::RDWR, mode)
}

/// What the name in the folder is, without access to its bytes: a link itself, or what the kernel finds behind it.
pub(super) fn look(folder: &StdFile, name: &CStr, follow: bool) -> Sys<StdFile> {
    let flags = if follow { OFlags::PATH } else { OFlags::PATH | OFlags::NOFOLLOW };
    open_at(folder, name, flags, 0)
}

/// Where a link leads.
pub(super) fn read_link(link: &StdFile) -> Sys<PathBuf> {
    // The empty name stands for the open link itself.
    let text = ask(|| rustix::fs::readlinkat(link, c"", Vec::new()))?;
    Ok(PathBuf::from(OsString::from_vec(text.into_bytes())))
}

/// Whether the kernel lets the file be opened with O_CREAT, as programs do that write to a name
/// (`fs.protected_regular`). Nothing of the file changes.
pub(super) fn open_as_creator(folder: &StdFile, name: &CStr) -> Sys<StdFile> {
    let flags = OFlags::CREATE | OFlags::WRONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK;
    open_at(folder, name, flags, 0o600)
}

/// The file of this name, for locking it.
pub(super) fn open_existing(folder: &StdFile, name: &CStr) -> Sys<StdFile> {
    let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK;
    // Network file systems lock only what is open for writing.
    open_at(folder, name, OFlags::RDWR | flags, 0)
        .or_else(|_| open_at(folder, name, OFlags::RDONLY | flags, 0))
}

/// The path of an open file's descriptor.
pub(super) fn proc_path(file: &StdFile) -> PathBuf {
    PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd()))
}

/// Locks the file for as long as it is open. On file systems without locks it stays unlocked, and nobody else can lock
/// it either: its leftovers stay.
pub(super) fn lock(file: &StdFile) {
    let _ = ask(|| rustix::fs::flock(file, FlockOperation::LockExclusive));
}

/// Locks the file unless it is locked.
pub(super) fn try_lock(file: &StdFile) -> bool {
    ask(|| rustix::fs::flock(file, FlockOperation::NonBlockingLockExclusive)).is_ok()
}

/// Whether the name in the folder is this very file.
pub(super) fn is_called(file: &StdFile, folder: &StdFile, name: &CStr) -> bool {
    let named = rustix::fs::statat(folder, name, AtFlags::SYMLINK_NOFOLLOW);
    named.is_ok_and(|named| {
        file.metadata().is_ok_and(|own| (own.dev(), own.ino()) == (named.st_dev, named.st_ino))
    })
}

/// Gives a nameless file a name: by /proc, or directly where that is hidden.
pub(super) fn link(file: &StdFile, folder: &StdFile, name: &CStr) -> Sys<()> {
    let by_proc = proc_path(file);
    match ask(|| rustix::fs::linkat(CWD, &by_proc, folder, name, AtFlags::SYMLINK_FOLLOW)) {
        Ok(()) => Ok(()),
        Err(libc::EEXIST) => Err(libc::EEXIST),
        Err(errno) => {
            ask(|| rustix::fs::linkat(file, c"", folder, name, AtFlags::EMPTY_PATH)).map_err(|_| errno)
        }
    }
}

pub(super) fn rename(folder: &StdFile, from: &CStr, to: &CStr) -> Sys<()> {
    ask(|| rustix::fs::renameat(folder, from, folder, to))
}

pub(super) fn unlink(folder: &StdFile, name: &CStr) -> Sys<()> {
    ask(|| rustix::fs::unlinkat(folder, name, AtFlags::empty()))
}

/// Makes the folder's names durable. File systems that cannot sync a folder, and folders that may not be read, do
/// without.
pub(super) fn sync_folder(folder: &StdFile) -> Sys<()> {
    match folder.sync_all().map_err(|error| errno_of(&error)) {
        Err(libc::EINVAL | libc::EBADF | libc::EROFS | libc::ENOSYS | libc::EOPNOTSUPP) => Ok(()),
        result => result,
    }
}

fn errno_of(error: &io::Error) -> i32 {
    error.raw_os_error().unwrap_or(libc::EIO)
}

/// What a file kept of the owner and the group that it was to have.
#[derive(Clone, Copy)]
pub(super) struct Given {
    pub(super) owner: bool,
    pub(super) group: bool,
}

/// Gives the file to owner and group, or to the group at least, as far as that is allowed.
pub(super) fn give(file: &StdFile, uid: u32, gid: u32) -> Given {
    let give = |owner| ask(|| rustix::fs::fchown(file, owner, Some(Gid::from_raw(gid)))).is_ok();
    let owner = give(Some(Uid::from_raw(uid)));
    Given { owner, group: owner || give(None) }
}

pub(super) fn set_mode(file: &StdFile, mode: u32) -> Sys<()> {
    ask(|| rustix::fs::fchmod(file, Mode::from_raw_mode(mode)))
}

/// Whether this process may write to the file.
pub(super) fn may_write(folder: &StdFile, name: &CStr) -> Sys<()> {
    ask(|| rustix::fs::accessat(folder, name, Access::WRITE_OK, AtFlags::EACCESS))
}

/// The user that files are opened as.
pub(super) fn user() -> u32 {
    rustix::process::geteuid().as_raw()
}
