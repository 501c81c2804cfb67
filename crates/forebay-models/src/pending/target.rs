//! What is to be replaced, and where it lies.

use std::ffi::{CString, OsStr};
use std::fs::{File as StdFile, Metadata};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use forebay_error::{Error, ErrorKind, Result};

use super::sys;

/// As many links as the kernel follows.
const MOST_LINKS: usize = 40;

/// A name in a folder, with symbolic links followed.
#[derive(Debug)]
pub(super) struct Target {
    /// The path, for messages and for opening siblings.
    pub(super) path: PathBuf,
    /// Its folder; operations go through this descriptor, wherever the folder is moved meanwhile.
    pub(super) folder: StdFile,
    pub(super) name: CString,
    /// The file that has the name now.
    pub(super) existing: Option<Metadata>,
}

impl Target {
    pub(super) fn find(path: &Path) -> Result<Self> {
        let path = follow(path)?;
        // A path that ends in `/` or `..` names a folder.
        let named = path.file_name().filter(|_| !path.as_os_str().as_bytes().ends_with(b"/"));
        let Some(name) = named.and_then(|name| CString::new(name.as_bytes()).ok()) else {
            return Err(directory_or_bad(&path));
        };
        let existing = match std::fs::metadata(&path) {
            Ok(about) => Some(about),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => None,
            Err(error) => {
                return Err(explain(Error::from_io(&error, "cannot save the file"), &path));
            }
        };
        if let Some(about) = &existing {
            check(about, &path)?;
        }
        let folder = parent(&path);
        let folder = sys::open_folder(folder).map_err(|errno| {
            let error = Error::from_errno(errno, "cannot open the folder of the new file");
            match errno {
                libc::ENOENT => error
                    .with("path", path.display())
                    .hint(format!("mkdir -p {}", crate::text::quoted(folder))),
                _ => explain(error, &path),
            }
        })?;
        Ok(Self { path, folder, name, existing })
    }

    /// A path of another name in the same folder.
    pub(super) fn sibling(&self, name: &CString) -> PathBuf {
        self.path.with_file_name(OsStr::from_bytes(name.as_bytes()))
    }

    /// Why no new file can be made.
    pub(super) fn refused(&self, errno: i32) -> Error {
        self.failed(errno, "cannot create a file in the folder")
    }

    pub(super) fn failed(&self, errno: i32, doing: &str) -> Error {
        explain(Error::from_errno(errno, doing), &self.path)
    }
}

fn parent(path: &Path) -> &Path {
    path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// The path that the last component leads to, whether or not something is there.
fn follow(path: &Path) -> Result<PathBuf> {
    let mut path = path.to_owned();
    for _ in 0..MOST_LINKS {
        match std::fs::read_link(&path) {
            Ok(to) => path = parent(&path).join(to),
            // No link, or nothing at all.
            Err(_) => return Ok(path),
        }
    }
    Err(Error::from_errno(libc::ELOOP, "cannot save the file").with("path", path.display()))
}

/// Only a file that may be written is replaced: who took the permission away meant it.
fn check(about: &Metadata, path: &Path) -> Result<()> {
    if about.is_dir() {
        return Err(directory_or_bad(path));
    }
    if !about.is_file() {
        return Err(Error::new(ErrorKind::InvalidInput, "the target is not a regular file")
            .with("path", path.display())
            .hint("name a file"));
    }
    if sys::may_write(path) {
        return Ok(());
    }
    let errno = sys::last_errno();
    Err(explain(Error::from_errno(errno, "the file may not be replaced"), path))
}

fn directory_or_bad(path: &Path) -> Error {
    let (kind, message) = if path.is_dir() {
        (ErrorKind::IsDirectory, "the target is a directory")
    } else {
        (ErrorKind::InvalidInput, "the path names no file")
    };
    Error::new(kind, message).with("path", path.display()).hint("name a file in it")
}

/// Adds the path and what to do about it.
fn explain(error: Error, path: &Path) -> Error {
    let error = error.with("path", path.display());
    match error.kind() {
        ErrorKind::NotFound => error.hint("check the path: its folder must exist"),
        ErrorKind::PermissionDenied => error.hint("check owner and mode of the file and its folder: ls -ld"),
        ErrorKind::ReadOnly => error.hint("the file system is mounted read-only: write to another one"),
        ErrorKind::NoSpace => error.hint("free some space (df -h) or write to another file system"),
        _ => error,
    }
}
