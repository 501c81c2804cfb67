//! The file to be replaced, and its folder.

use std::ffi::{CString, OsStr};
use std::fs::{File as StdFile, Metadata};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use forebay_error::{Error, ErrorKind, Result};

use super::sys;

/// As many links as the kernel follows.
const MAX_LINKS: usize = 40;

/// A name in a folder, with symbolic links followed.
#[derive(Debug)]
pub(super) struct Target {
    /// The path, for messages and for opening siblings.
    pub(super) path: PathBuf,
    /// Its folder; operations go through this descriptor, wherever the folder is moved meanwhile.
    pub(super) folder: StdFile,
    pub(super) name: CString,
    /// The file that has the name now, opened by O_PATH.
    pub(super) existing: Option<StdFile>,
}

impl Target {
    pub(super) fn find(path: &Path) -> Result<Self> {
        Self::find_within(path, MAX_LINKS)
    }

    fn find_within(path: &Path, links: usize) -> Result<Self> {
        let mut target = Self::named(path)?;
        let found = match sys::look(&target.folder, &target.name, false) {
            Ok(found) => found,
            Err(libc::ENOENT) => return Ok(target),
            Err(errno) => return Err(target.failed(errno, "cannot save the file")),
        };
        let about = target.about(&found)?;
        if about.is_symlink() {
            return target.follow(&found, links);
        }
        target.check(&about)?;
        target.existing = Some(found);
        Ok(target)
    }

    /// The folder and the name, whatever has it.
    fn named(path: &Path) -> Result<Self> {
        if path.as_os_str().as_bytes().contains(&0) {
            return Err(Error::new(ErrorKind::InvalidInput, "the path has a zero byte")
                .with("path", path.display())
                .hint("leave it out"));
        }
        // A path that ends in `/` or `..` names a folder.
        let named = path.file_name().filter(|_| !path.as_os_str().as_bytes().ends_with(b"/"));
        let Some(name) = named.and_then(|name| CString::new(name.as_bytes()).ok()) else {
            return Err(directory_or_bad(path));
        };
        let folder = parent(path);
        let folder = sys::open_folder(folder).map_err(|errno| {
            let error = Error::from_errno(errno, "cannot open the folder of the new file");
            match errno {
                libc::ENOENT => error
                    .with("path", path.display())
                    .hint(format!("mkdir -p {}", crate::text::quoted(folder))),
                libc::ENOTDIR => error.with("path", path.display()).hint(format!(
                    "a file stands where the path has a folder: ls -l {}",
                    crate::text::quoted(folder)
                )),
                _ => explain(error, path),
            }
        })?;
        Ok(Self { path: path.to_owned(), folder, name, existing: None })
    }

    /// What the link leads to. The kernel follows it: it knows which links must not be.
    fn follow(self, link: &StdFile, links: usize) -> Result<Self> {
        match sys::look(&self.folder, &self.name, true) {
            Ok(found) => self.behind(found),
            // It would have followed all links, but the last one leads to nothing yet.
            Err(libc::ENOENT) if links > 0 => {
                let to = sys::read_link(link).map_err(|errno| self.failed(errno, "cannot read the link"))?;
                Self::find_within(&parent(&self.path).join(to), links - 1)
            }
            Err(errno @ (libc::EACCES | libc::ELOOP)) => {
                Err(Error::from_errno(errno, "the kernel does not follow the link")
                    .with("path", self.path.display())
                    .hint(
                        "name the file itself: links of other users in a folder where all may write \
                         (fs.protected_symlinks), links on some mounts (nosymfollow), and links in a circle are \
                         not followed",
                    ))
            }
            Err(errno) => Err(self.failed(errno, "cannot save the file")),
        }
    }

    /// The name and the folder of what the kernel found behind a link.
    fn behind(self, found: StdFile) -> Result<Self> {
        let about = self.about(&found)?;
        if !about.is_file() {
            self.check(&about)?;
        }
        let nowhere = || {
            Error::new(ErrorKind::NotFound, "cannot tell where the link leads")
                .with("path", self.path.display())
                .hint("name the file itself: readlink -f")
        };
        let path = std::fs::read_link(sys::proc_path(&found)).map_err(|_| nowhere())?;
        let mut target = Self::named(&path).map_err(|_| nowhere())?;
        if !sys::is_called(&found, &target.folder, &target.name) {
            return Err(nowhere());
        }
        target.check(&about)?;
        target.existing = Some(found);
        Ok(target)
    }

    fn about(&self, found: &StdFile) -> Result<Metadata> {
        found.metadata().map_err(|error| explain(Error::from_io(&error, "cannot save the file"), &self.path))
    }

    /// Only a file that may be written is replaced: who took the permission away meant it.
    fn check(&self, about: &Metadata) -> Result<()> {
        if about.is_dir() {
            return Err(directory_or_bad(&self.path));
        }
        if !about.is_file() {
            return Err(Error::new(ErrorKind::InvalidInput, "the target is not a regular file")
                .with("path", self.path.display())
                .hint("name a file"));
        }
        sys::may_write(&self.folder, &self.name)
            .map_err(|errno| self.failed(errno, "the file may not be replaced"))?;
        let is_sticky = || self.folder.metadata().is_ok_and(|folder| folder.mode() & libc::S_ISVTX != 0);
        if about.uid() != sys::user()
            && is_sticky()
            && matches!(sys::open_as_creator(&self.folder, &self.name), Err(libc::EACCES))
        {
            return Err(Error::from_errno(libc::EACCES, "the file may not be replaced")
                .with("path", self.path.display())
                .hint("another user's file in a folder where all may write (fs.protected_regular): use another name"));
        }
        Ok(())
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

fn directory_or_bad(path: &Path) -> Error {
    let is_there = path.is_dir();
    let (kind, message) = if is_there {
        (ErrorKind::IsDirectory, "the target is a directory")
    } else {
        (ErrorKind::InvalidInput, "the path names no file")
    };
    let error = Error::new(kind, message).with("path", path.display());
    if is_there || path.file_name().is_none() {
        return error.hint("name a file in it");
    }
    // `missing/`: the folder that is meant.
    error.hint(format!("mkdir -p {}", forebay_error::quoted(&path.display().to_string())))
}

/// Adds the path and what to do about it.
fn explain(error: Error, path: &Path) -> Error {
    let error = error.with("path", path.display());
    match error.kind() {
        ErrorKind::NotFound if parent(path).is_dir() => {
            error.hint("its folder takes no new files: write to another one")
        }
        ErrorKind::NotFound => error.hint("check the path: its folder must exist"),
        ErrorKind::PermissionDenied => error.hint("check owner and mode of the file and its folder: ls -ld"),
        ErrorKind::ReadOnly => error.hint("the file system is mounted read-only: write to another one"),
        ErrorKind::NoSpace => error.hint("free some space (df -h) or write to another file system"),
        _ => error,
    }
}
