//! The folder of made files: open to nobody else. At the end only the files made in it are removed.

use std::ffi::{CStr, CString};
use std::fs;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use forebay_error::{Error, Result};

/// Files are reached by its descriptor: who may rename it in a shared folder puts no other one in its place.
#[derive(Debug)]
pub(crate) struct MadeFolder {
    pub(crate) path: PathBuf,
    handle: fs::File,
    names: Vec<CString>,
}

impl MadeFolder {
    pub(crate) fn new(parent: &Path) -> Result<Self> {
        let make = || {
            let owner = fs::Permissions::from_mode(0o700);
            let mut builder = tempfile::Builder::new();
            let path = builder.prefix("forebay-replay-").permissions(owner).tempdir_in(parent)?.keep();
            let flags = libc::O_DIRECTORY | libc::O_NOFOLLOW;
            let handle = fs::OpenOptions::new().read(true).custom_flags(flags).open(&path);
            let handle = handle.inspect_err(|_| drop(fs::remove_dir(&path)))?;
            Ok(Self { path, handle, names: Vec::new() })
        };
        make().map_err(|error: io::Error| {
            // What `tempfile` says has the name of the folder in it.
            Error::from_io(&error.kind().into(), "cannot make a folder for made files")
                .with("path", parent.display())
                .hint("name another: --dir DIRECTORY")
        })
    }

    /// A new file in it.
    pub(crate) fn create(&mut self, name: &str) -> io::Result<fs::File> {
        let name = CString::new(name)?;
        let made = self.open(&name, libc::O_RDWR | libc::O_CREAT | libc::O_EXCL)?;
        self.names.push(name);
        Ok(made)
    }

    /// A made file, for reading only.
    pub(crate) fn read(&self, name: &str) -> io::Result<fs::File> {
        self.open(&CString::new(name)?, libc::O_RDONLY)
    }

    fn open(&self, name: &CStr, flags: i32) -> io::Result<fs::File> {
        let flags = flags | libc::O_NOFOLLOW | libc::O_CLOEXEC;
        // SAFETY: the name ends with a zero and outlives the call.
        let fd = unsafe { libc::openat(self.handle.as_raw_fd(), name.as_ptr(), flags, 0o600) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: a new descriptor, which nobody else has.
        Ok(unsafe { fs::File::from_raw_fd(fd) })
    }
}

impl Drop for MadeFolder {
    fn drop(&mut self) {
        for name in &self.names {
            // SAFETY: the name ends with a zero and outlives the call.
            unsafe { libc::unlinkat(self.handle.as_raw_fd(), name.as_ptr(), 0) };
        }
        let is_ours = |there: fs::Metadata| {
            self.handle.metadata().is_ok_and(|ours| identity(&ours) == identity(&there))
        };
        if fs::symlink_metadata(&self.path).is_ok_and(is_ours) {
            // Stays if it has other files in it.
            let _ = fs::remove_dir(&self.path);
        }
    }
}

/// A file's identity.
pub(crate) fn identity(about: &fs::Metadata) -> (u64, u64) {
    (about.dev(), about.ino())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_folder_is_the_owners_alone() {
        let parent = tempfile::tempdir().unwrap();
        let mut folder = MadeFolder::new(parent.path()).unwrap();
        let mode = |path: &Path| fs::metadata(path).unwrap().mode() & 0o777;
        assert_eq!(mode(&folder.path), 0o700);
        drop(folder.create("0").unwrap());
        assert_eq!(mode(&folder.path.join("0")) & 0o077, 0);
        drop(folder);
        assert_eq!(fs::read_dir(parent.path()).unwrap().count(), 0);
    }

    #[test]
    fn what_is_there_is_neither_opened_nor_removed() {
        let parent = tempfile::tempdir().unwrap();
        let other = parent.path().join("other");
        fs::write(&other, "kept").unwrap();
        let mut folder = MadeFolder::new(parent.path()).unwrap();
        std::os::unix::fs::symlink(&other, folder.path.join("0")).unwrap();
        fs::hard_link(&other, folder.path.join("1")).unwrap();
        for name in ["0", "1"] {
            assert_eq!(folder.create(name).unwrap_err().kind(), io::ErrorKind::AlreadyExists);
        }
        drop(folder.create("2").unwrap());
        let path = folder.path.clone();
        drop(folder);
        assert!(path.join("0").is_symlink() && path.join("1").exists() && !path.join("2").exists());
        assert_eq!(fs::read(&other).unwrap(), b"kept");
    }

    /// The owner of a shared folder may rename ours.
    #[test]
    fn another_folder_of_its_name_stays_as_it_is() {
        let parent = tempfile::tempdir().unwrap();
        let mut folder = MadeFolder::new(parent.path()).unwrap();
        drop(folder.create("0").unwrap());
        let (path, away) = (folder.path.clone(), parent.path().join("away"));
        fs::rename(&path, &away).unwrap();
        fs::create_dir(&path).unwrap();
        fs::write(path.join("0"), "kept").unwrap();
        drop(folder.create("1").unwrap());
        drop(folder);
        assert_eq!(fs::read(path.join("0")).unwrap(), b"kept");
        assert!(!path.join("1").exists());
        assert_eq!(fs::read_dir(&away).unwrap().count(), 0);
    }
}
