//! Files that a report makes and removes. A file or link that somebody else put in their place is not written to,
//! followed or removed.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use forebay_error::{Error, ErrorKind, Result};

use crate::targets::free;
use forebay_bench::empty_bytes;

/// How a file is filled, and recognised later.
pub(crate) trait Content {
    /// Its name in errors.
    fn name(&self) -> &'static str;
    /// Its whole length.
    fn len(&self) -> u64;
    /// Whether this file, of any length, was filled so.
    fn fills(&self, file: &File) -> bool;
    /// Fills an empty file; `false` if it was stopped.
    fn write(&self, file: &mut File, stopped: &dyn Fn() -> bool) -> io::Result<bool>;
}

/// A complete file made by a report. It is locked: a second report that wants it gets an error.
#[derive(Debug)]
pub(crate) struct Made {
    pub(crate) path: PathBuf,
    file: File,
}

impl Made {
    /// Takes the existing file if a report made it and its length is right; else makes it. `None` if it was stopped.
    /// `known` is the inode of what this report made earlier: rows may have written to it since.
    pub(crate) fn new(
        path: &Path,
        content: &dyn Content,
        known: Option<u64>,
        making: &dyn Fn(),
        stopped: &dyn Fn() -> bool,
    ) -> Result<Option<Self>> {
        let ours =
            |file: &File, inode: u64, is_own: bool| known == Some(inode) || is_own && content.fills(file);
        if let Some(found) = Self::find(path, content, &ours)? {
            // A file with holes cannot be measured: the drive has no blocks for it.
            let is_whole = empty_bytes(path, 0..content.len()).unwrap_or(0) == 0;
            if is_whole && found.file.metadata().is_ok_and(|one| one.len() == content.len()) {
                return Ok(Some(found));
            }
            found.remove();
        }
        making();
        // A file that a killed process left.
        let partial = partial(path);
        let begun = |file: &File, _: u64, is_own: bool| {
            is_own && (file.metadata().is_ok_and(|one| one.len() == 0) || content.fills(file))
        };
        if let Some(left) = Self::find(&partial, content, &begun)? {
            left.remove();
        }
        Self::make(path, partial, content, stopped)
    }

    /// The inode.
    pub(crate) fn inode(&self) -> Option<u64> {
        self.file.metadata().ok().map(|found| found.ino())
    }

    /// Removes the file, unless another has taken its place; `false` if it is still there.
    pub(crate) fn remove(&self) -> bool {
        !is_at(&self.file, &self.path) || fs::remove_file(&self.path).is_ok()
    }

    fn find(
        path: &Path,
        content: &dyn Content,
        ours: &dyn Fn(&File, u64, bool) -> bool,
    ) -> Result<Option<Self>> {
        let found = match fs::symlink_metadata(path) {
            Ok(found) => found,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(explain(&error, "look for", content, path)),
        };
        // Opens regular files only.
        if !found.is_file() || found.nlink() != 1 {
            return Err(foreign(content, path));
        }
        let flags = libc::O_NOFOLLOW | libc::O_NONBLOCK;
        let file = OpenOptions::new().read(true).write(true).custom_flags(flags).open(path);
        let file = file.map_err(|error| explain(&error, "open", content, path))?;
        lock(&file, path)?;
        // SAFETY: the call reads the process's own id.
        let is_own = found.uid() == unsafe { libc::geteuid() };
        if !is_at(&file, path) || !ours(&file, found.ino(), is_own) {
            return Err(foreign(content, path));
        }
        Ok(Some(Self { path: path.to_owned(), file }))
    }

    /// Fills it under a temporary name: a file with the final name is complete.
    fn make(
        path: &Path,
        partial: PathBuf,
        content: &dyn Content,
        stopped: &dyn Fn() -> bool,
    ) -> Result<Option<Self>> {
        // A full disk harms other programs, too.
        let room = path.parent().and_then(free);
        if let Some(room) = room.filter(|room| *room < content.len()) {
            let full = io::Error::from_raw_os_error(libc::ENOSPC);
            let error = explain(&full, "write", content, path);
            return Err(error.with("needed", content.len()).with("free", room));
        }
        let mut options = OpenOptions::new();
        let options = options.read(true).write(true).create_new(true).custom_flags(libc::O_NOFOLLOW);
        let file = options.open(&partial).map_err(|error| explain(&error, "create", content, path))?;
        lock(&file, path)?;
        let mut made = Self { path: partial, file };
        let done = content.write(&mut made.file, stopped).and_then(|done| {
            if done {
                made.file.sync_all()?;
                rename(&made.path, path)?;
                path.clone_into(&mut made.path);
            }
            Ok(done)
        });
        if !matches!(done, Ok(true)) {
            made.remove();
        }
        let done = done.map_err(|error| explain(&error, "write", content, path))?;
        Ok(done.then_some(made))
    }
}

/// A folder for files that are made: made itself, if nothing has its name.
pub(crate) fn folder(path: &Path) -> Result<()> {
    let message = "cannot make a folder for the files to measure";
    match fs::create_dir(path) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
        made => made.map_err(|error| Error::from_io(&error, message).with("path", path.display()))?,
    }
    // A link leads elsewhere.
    let is_folder = fs::symlink_metadata(path).is_ok_and(|found| found.is_dir());
    is_folder.then_some(()).ok_or_else(|| {
        Error::new(
            ErrorKind::AlreadyExists,
            "the path of the folder for measured files is taken, and is not a folder",
        )
        .with("path", path.display())
        .hint("move it away or remove it, or name another directory: it was left as it is")
    })
}

/// The name of a file that is not whole.
fn partial(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".part");
    name.into()
}

/// Whether the file has this name.
fn is_at(file: &File, path: &Path) -> bool {
    let same =
        |one: &fs::Metadata, other: &fs::Metadata| (one.dev(), one.ino()) == (other.dev(), other.ino());
    file.metadata().is_ok_and(|one| fs::symlink_metadata(path).is_ok_and(|other| same(&one, &other)))
}

fn lock(file: &File, path: &Path) -> Result<()> {
    // Without file locks other reports cannot be seen.
    if matches!(file.try_lock(), Err(TryLockError::WouldBlock)) {
        return Err(Error::new(ErrorKind::Busy, "another report measures with this file")
            .with("path", path.display())
            .hint("wait for it, or name another directory"));
    }
    Ok(())
}

/// Renames a file to a name that is free.
fn rename(from: &Path, to: &Path) -> io::Result<()> {
    let text = |path: &Path| std::ffi::CString::new(path.as_os_str().as_bytes()).map_err(io::Error::from);
    let (old, new) = (text(from)?, text(to)?);
    let (here, flags) = (libc::AT_FDCWD, libc::RENAME_NOREPLACE);
    // SAFETY: both names end with a zero.
    if unsafe { libc::renameat2(here, old.as_ptr(), here, new.as_ptr(), flags) } == 0 {
        return Ok(());
    }
    let error = io::Error::last_os_error();
    // NFS and old kernels cannot tell: the caller has checked that the name is free.
    let unknown = matches!(error.raw_os_error(), Some(libc::EINVAL | libc::ENOSYS));
    if unknown && fs::symlink_metadata(to).is_err() { fs::rename(from, to) } else { Err(error) }
}

fn foreign(content: &dyn Content, path: &Path) -> Error {
    let message = format!("the path of the {} is taken by something that no report made", content.name());
    Error::new(ErrorKind::AlreadyExists, message)
        .with("path", path.display())
        .hint("move it away or remove it, or name another directory: it was left as it is")
}

fn explain(error: &io::Error, what: &str, content: &dyn Content, path: &Path) -> Error {
    let message = format!("cannot {what} the {}", content.name());
    let error = Error::from_io(error, &message).with("path", path.display());
    match error.kind() {
        ErrorKind::NoSpace => error.hint("free some space (df -h), or use a smaller --size"),
        ErrorKind::PermissionDenied | ErrorKind::ReadOnly => {
            error.hint("name a directory that you may write to, or a file that is there: it is only read")
        }
        _ => error.hint("name another directory, or a file that is there"),
    }
}
