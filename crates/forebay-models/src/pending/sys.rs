//! The system calls of a save, relative to an open folder. Errors are errnos.

use std::ffi::{CStr, CString, OsString};
use std::fs::File as StdFile;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

type Sys<T> = Result<T, i32>;

pub(super) fn last_errno() -> i32 {
    io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO)
}

/// Zero or an errno. Calls that a signal interrupted are repeated.
fn zero(call: impl Fn() -> libc::c_int) -> Sys<()> {
    loop {
        if call() == 0 {
            return Ok(());
        }
        match last_errno() {
            libc::EINTR => {}
            errno => return Err(errno),
        }
    }
}

fn open_at(folder: libc::c_int, name: &CStr, flags: libc::c_int, mode: u32) -> Sys<StdFile> {
    loop {
        // SAFETY: `name` is NUL-terminated and outlives the call.
        let fd = unsafe { libc::openat(folder, name.as_ptr(), flags | libc::O_CLOEXEC, mode) };
        if fd >= 0 {
            // SAFETY: the descriptor is new and ours alone.
            return Ok(unsafe { StdFile::from_raw_fd(fd) });
        }
        match last_errno() {
            libc::EINTR => {}
            errno => return Err(errno),
        }
    }
}

/// Opens a folder to work in, and to sync where it may be read.
pub(super) fn open_folder(path: &Path) -> Sys<StdFile> {
    let name = CString::new(path.as_os_str().as_bytes()).map_err(|_| libc::EINVAL)?;
    match open_at(libc::AT_FDCWD, &name, libc::O_RDONLY | libc::O_DIRECTORY, 0) {
        Err(libc::EACCES) => open_at(libc::AT_FDCWD, &name, libc::O_PATH | libc::O_DIRECTORY, 0),
        result => result,
    }
}

/// A new file without a name.
pub(super) fn open_nameless(folder: &StdFile, mode: u32) -> Sys<StdFile> {
    open_at(folder.as_raw_fd(), c".", libc::O_TMPFILE | libc::O_RDWR, mode)
}

/// A new file of this name.
pub(super) fn open_new(folder: &StdFile, name: &CStr, mode: u32) -> Sys<StdFile> {
    open_at(folder.as_raw_fd(), name, libc::O_CREAT | libc::O_EXCL | libc::O_RDWR, mode)
}

/// What the name in the folder is, without access to its bytes: a link itself, or what the kernel finds behind it.
pub(super) fn look(folder: &StdFile, name: &CStr, follow: bool) -> Sys<StdFile> {
    let flags = if follow { libc::O_PATH } else { libc::O_PATH | libc::O_NOFOLLOW };
    open_at(folder.as_raw_fd(), name, flags, 0)
}

/// Where a link leads.
pub(super) fn read_link(link: &StdFile) -> Sys<PathBuf> {
    let mut text = vec![0_u8; libc::PATH_MAX as usize];
    // SAFETY: the empty name stands for the open link itself; the call writes at most the given length.
    let len =
        unsafe { libc::readlinkat(link.as_raw_fd(), c"".as_ptr(), text.as_mut_ptr().cast(), text.len()) };
    text.truncate(usize::try_from(len).map_err(|_| last_errno())?);
    Ok(PathBuf::from(OsString::from_vec(text)))
}

/// Whether the kernel lets the file be opened with O_CREAT, as programs do that write to a name
/// (`fs.protected_regular`). Nothing of the file changes.
pub(super) fn open_as_creator(folder: &StdFile, name: &CStr) -> Sys<StdFile> {
    let flags = libc::O_CREAT | libc::O_WRONLY | libc::O_NOFOLLOW | libc::O_NONBLOCK;
    open_at(folder.as_raw_fd(), name, flags, 0o600)
}

/// The file of this name, for locking it.
pub(super) fn open_existing(folder: &StdFile, name: &CStr) -> Sys<StdFile> {
    let flags = libc::O_NOFOLLOW | libc::O_NONBLOCK;
    // Network file systems lock only what is open for writing.
    open_at(folder.as_raw_fd(), name, libc::O_RDWR | flags, 0)
        .or_else(|_| open_at(folder.as_raw_fd(), name, libc::O_RDONLY | flags, 0))
}

/// The path of an open file's descriptor.
pub(super) fn proc_path(file: &StdFile) -> PathBuf {
    PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd()))
}

/// Locks the file for as long as it is open. On file systems without locks it stays unlocked, and nobody else can lock
/// it either: its leftovers stay.
pub(super) fn lock(file: &StdFile) {
    // SAFETY: no pointers are passed.
    let _ = zero(|| unsafe { libc::flock(file.as_raw_fd(), libc::LOCK_EX) });
}

/// Locks the file unless somebody else has.
pub(super) fn try_lock(file: &StdFile) -> bool {
    // SAFETY: no pointers are passed.
    zero(|| unsafe { libc::flock(file.as_raw_fd(), libc::LOCK_EX | libc::LOCK_NB) }).is_ok()
}

/// Whether the name in the folder is this very file.
pub(super) fn is_called(file: &StdFile, folder: &StdFile, name: &CStr) -> bool {
    // SAFETY: a zeroed stat is a valid value for the kernel to overwrite.
    let mut named: libc::stat = unsafe { std::mem::zeroed() };
    // SAFETY: `name` is NUL-terminated, `named` is writable; both outlive the call.
    let rc =
        unsafe { libc::fstatat(folder.as_raw_fd(), name.as_ptr(), &mut named, libc::AT_SYMLINK_NOFOLLOW) };
    rc == 0 && file.metadata().is_ok_and(|own| (own.dev(), own.ino()) == (named.st_dev, named.st_ino))
}

/// Gives a nameless file a name: by /proc, or directly where that is hidden.
pub(super) fn link(file: &StdFile, folder: &StdFile, name: &CStr) -> Sys<()> {
    let by_proc = CString::new(proc_path(file).as_os_str().as_bytes()).map_err(|_| libc::EINVAL)?;
    let link = |from: libc::c_int, path: &CStr, flags: libc::c_int| {
        // SAFETY: both names are NUL-terminated and outlive the call.
        zero(|| unsafe { libc::linkat(from, path.as_ptr(), folder.as_raw_fd(), name.as_ptr(), flags) })
    };
    match link(libc::AT_FDCWD, &by_proc, libc::AT_SYMLINK_FOLLOW) {
        Ok(()) => Ok(()),
        Err(libc::EEXIST) => Err(libc::EEXIST),
        Err(errno) => link(file.as_raw_fd(), c"", libc::AT_EMPTY_PATH).map_err(|_| errno),
    }
}

pub(super) fn rename(folder: &StdFile, from: &CStr, to: &CStr) -> Sys<()> {
    // SAFETY: both names are NUL-terminated and outlive the call.
    zero(|| unsafe { libc::renameat(folder.as_raw_fd(), from.as_ptr(), folder.as_raw_fd(), to.as_ptr()) })
}

pub(super) fn unlink(folder: &StdFile, name: &CStr) -> Sys<()> {
    // SAFETY: `name` is NUL-terminated and outlives the call.
    zero(|| unsafe { libc::unlinkat(folder.as_raw_fd(), name.as_ptr(), 0) })
}

/// Makes the folder's names durable. File systems that cannot sync a folder, and folders that may not be read, do
/// without.
pub(super) fn sync_folder(folder: &StdFile) -> Sys<()> {
    // SAFETY: no pointers are passed.
    match zero(|| unsafe { libc::fsync(folder.as_raw_fd()) }) {
        Err(libc::EINVAL | libc::EBADF | libc::EROFS | libc::ENOSYS | libc::EOPNOTSUPP) => Ok(()),
        result => result,
    }
}

/// What a file kept of the owner and the group that it was to have.
#[derive(Clone, Copy)]
pub(super) struct Given {
    pub(super) owner: bool,
    pub(super) group: bool,
}

/// Gives the file to owner and group, or to the group at least, as far as that is allowed.
pub(super) fn give(file: &StdFile, uid: u32, gid: u32) -> Given {
    const KEEP: u32 = u32::MAX;
    // SAFETY: no pointers are passed.
    let give = |uid, gid| zero(|| unsafe { libc::fchown(file.as_raw_fd(), uid, gid) }).is_ok();
    let owner = give(uid, gid);
    Given { owner, group: owner || give(KEEP, gid) }
}

pub(super) fn set_mode(file: &StdFile, mode: u32) -> Sys<()> {
    // SAFETY: no pointers are passed.
    zero(|| unsafe { libc::fchmod(file.as_raw_fd(), mode) })
}

/// Whether this process may write to the file.
pub(super) fn may_write(folder: &StdFile, name: &CStr) -> Sys<()> {
    // SAFETY: `name` is NUL-terminated and outlives the call.
    zero(|| unsafe { libc::faccessat(folder.as_raw_fd(), name.as_ptr(), libc::W_OK, libc::AT_EACCESS) })
}

/// The user that files are opened as.
pub(super) fn user() -> u32 {
    // SAFETY: no arguments; cannot fail.
    unsafe { libc::geteuid() }
}
