//! A file that gets its name when it is whole.

mod leftovers;
mod rights;
mod sys;
mod target;
mod xattr;

use std::ffi::CString;
use std::fs::File as StdFile;
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use forebay_engine::{File, OpenOptions};
use forebay_error::{Error, ErrorKind, Result};

use target::Target;

/// A new file that replaces another, or appears, in one step: a program that opens the name gets the old file or the
/// whole new one, never a part, and after a crash of the machine one of the two is there.
///
/// [`create`](Self::create) opens a file without a name in the target's folder (`O_TMPFILE`), or where the file system
/// has none, one beside the target with a hidden name. The data are written by [`file`](Self::file);
/// [`commit`](Self::commit) gives them the target's name. Dropped before, nothing remains. A process that is killed in
/// the middle leaves nothing either, except between two system calls of `commit`, or on a file system without nameless
/// files: what it leaves, the next `create` for the same target removes, since a file system lock tells that nobody
/// works on it any more.
///
/// A symbolic link stays one: the file that it leads to is replaced. It is the kernel that follows it, so links that it
/// refuses (`fs.protected_symlinks`) are refused. What a replaced file has stays: its mode, but never setuid and setgid
/// bits (who wrote the new bytes is not who gave those), its access list (ACL), users' attributes and security labels,
/// and its owner and group where the process may give files away. What cannot stay makes rights narrower, never wider,
/// and [`commit`](Self::commit) tells it. A new file has the mode that the process's umask, or its folder, gives it. If
/// two processes save the same name, the later commit is what remains.
///
/// ```
/// # let folder = tempfile::tempdir().unwrap();
/// # let path = folder.path().join("model");
/// use forebay_models::Pending;
///
/// let pending = Pending::create(&path)?;
/// pending.file().preallocate(4096)?;
/// assert!(!path.exists());
/// pending.commit(true)?;
/// assert_eq!(std::fs::metadata(&path).unwrap().len(), 4096);
/// # Ok::<(), forebay_error::Error>(())
/// ```
#[derive(Debug)]
pub struct Pending {
    file: File,
    /// A descriptor of the same file, which holds the lock that tells living saves from dead ones.
    held: StdFile,
    target: Target,
    /// What `held` is called in the target's folder at the moment, if anything.
    name: Option<CString>,
    /// Bits that a new file may have at most.
    mode: u32,
    /// A forked child that drops its copy must not remove the parent's file.
    process: u32,
}

impl Pending {
    /// Opens a new file that will become `path`.
    pub fn create(path: impl AsRef<Path>) -> Result<Self> {
        Self::create_like(path, 0o666)
    }

    /// As [`create`](Self::create), with the mode that a file has if it is new: of these bits those that the umask
    /// leaves, and only what users may do (`0o777`).
    pub fn create_like(path: impl AsRef<Path>, mode: u32) -> Result<Self> {
        Self::made(path.as_ref(), mode, &File::options)
    }

    /// As [`create`](Self::create), opened with these options, which say what happens to the page cache.
    pub fn create_with(path: impl AsRef<Path>, options: &dyn Fn() -> OpenOptions) -> Result<Self> {
        Self::made(path.as_ref(), 0o666, options)
    }

    fn made(path: &Path, mode: u32, options: &dyn Fn() -> OpenOptions) -> Result<Self> {
        forebay_source::check_made(path)?;
        let target = Target::find(path)?;
        let options = || options().read(true).write(true);
        leftovers::remove(&target);
        let mode = mode & 0o777;
        // The kernel applies umask and the folder's access list; the process itself has to read and write.
        let initial = if target.existing.is_some() { 0o600 } else { mode | 0o600 };
        let (held, file, name) = match Self::nameless(&target, initial, &options)? {
            Some((held, file)) => (held, file, None),
            None => Self::named(&target, initial, &options)?,
        };
        Ok(Self { file, held, target, name, mode, process: std::process::id() })
    }

    /// A file without a name; `None` where the file system or the machine has none.
    fn nameless(
        target: &Target,
        mode: u32,
        options: &dyn Fn() -> OpenOptions,
    ) -> Result<Option<(StdFile, File)>> {
        let held = match sys::open_nameless(&target.folder, mode) {
            Ok(held) => held,
            // EISDIR, EINVAL and ENOENT: kernels or file systems that do not know the flag.
            Err(libc::EOPNOTSUPP | libc::EISDIR | libc::EINVAL | libc::ENOENT | libc::ENOSYS) => {
                return Ok(None);
            }
            Err(errno) => return Err(target.refused(errno)),
        };
        sys::lock(&held);
        // By /proc, which giving it a name needs as well.
        let by_proc = sys::proc_path(&held);
        if StdFile::open(&by_proc).is_err() {
            return Ok(None);
        }
        let file = options().called(&target.path).open(&by_proc);
        Ok(Some((held, file.map_err(|error| error.with("for", target.path.display()))?)))
    }

    /// A file with a hidden name beside the target.
    fn named(
        target: &Target,
        mode: u32,
        options: &dyn Fn() -> OpenOptions,
    ) -> Result<(StdFile, File, Option<CString>)> {
        for _ in 0..100 {
            let name = leftovers::new_name(&target.name)?;
            let held = match sys::open_new(&target.folder, &name, mode) {
                Ok(held) => held,
                Err(libc::EEXIST) => continue,
                Err(errno) => return Err(target.refused(errno)),
            };
            sys::lock(&held);
            // Another save may have taken it for a leftover before it was locked.
            if !sys::is_called(&held, &target.folder, &name) {
                continue;
            }
            let opened = options().open(target.sibling(&name));
            return match opened {
                Ok(file) => Ok((held, file, Some(name))),
                Err(error) => {
                    let _ = sys::unlink(&target.folder, &name);
                    Err(error)
                }
            };
        }
        Err(Error::new(ErrorKind::Busy, "no free name for a temporary file")
            .with("path", target.path.display())
            .hint("remove the hidden files named .*.forebay-* in the folder"))
    }

    /// The file to write the data to, open for reading and writing. It may outlive this value, but belongs to nobody's
    /// name then unless this was committed.
    pub fn file(&self) -> &File {
        &self.file
    }

    /// The file that will be replaced or appear: the given path with symbolic links followed.
    pub fn target(&self) -> &Path {
        &self.target.path
    }

    /// Where the data lie until the commit: below /proc, or the hidden name.
    pub fn temporary(&self) -> PathBuf {
        match &self.name {
            Some(name) => self.target.sibling(name),
            None => sys::proc_path(&self.held),
        }
    }

    /// Whether the file has no name, so that even SIGKILL leaves nothing.
    pub fn is_nameless(&self) -> bool {
        self.name.is_none()
    }

    /// Makes what was written so far durable; [`commit`](Self::commit) does it too.
    pub fn sync(&self) -> Result<()> {
        self.held.sync_all().map_err(|error| self.failed(&error, "cannot make the file durable"))
    }

    /// Gives the file its name, replacing what has it. If `durable`, data and name are on the disk on return. On an
    /// error the old file is as it was, and nothing of the new one remains. Returns, in words, what of the replaced
    /// file's rights and attributes could not be kept.
    pub fn commit(mut self, durable: bool) -> Result<Vec<&'static str>> {
        let notes = self.dress()?;
        if durable {
            self.sync()?;
        }
        if self.name.is_none() {
            self.name = Some(self.link()?);
        }
        if let Some(name) = &self.name {
            sys::rename(&self.target.folder, name, &self.target.name)
                .map_err(|errno| self.target.failed(errno, "cannot give the file its name"))?;
        }
        // It is the target's name now: there is nothing left to remove.
        self.name = None;
        if durable {
            sys::sync_folder(&self.target.folder).map_err(|errno| {
                self.target.failed(errno, "the file has its name, but perhaps not durably")
            })?;
        }
        Ok(notes)
    }

    /// Owner, mode and what else says who may do what.
    fn dress(&self) -> Result<Vec<&'static str>> {
        let failed = |errno| self.target.failed(errno, "cannot set the file's mode");
        if let Some(existing) = &self.target.existing {
            return rights::take_over(&self.target, existing, &self.held).map_err(failed);
        }
        if self.mode & 0o600 != 0o600 {
            let made =
                self.held.metadata().map_err(|error| self.failed(&error, "cannot set the file's mode"))?;
            sys::set_mode(&self.held, made.mode() & self.mode).map_err(failed)?;
        }
        Ok(Vec::new())
    }

    /// A hidden name for the nameless file: a link cannot replace, a rename can.
    fn link(&self) -> Result<CString> {
        for _ in 0..100 {
            let name = leftovers::new_name(&self.target.name)?;
            match sys::link(&self.held, &self.target.folder, &name) {
                Ok(()) => return Ok(name),
                Err(libc::EEXIST) => {}
                Err(errno) => return Err(self.target.failed(errno, "cannot give the file its name")),
            }
        }
        Err(self.target.failed(libc::EEXIST, "cannot give the file its name"))
    }

    fn failed(&self, error: &std::io::Error, doing: &str) -> Error {
        self.target.failed(error.raw_os_error().unwrap_or(libc::EIO), doing)
    }
}

impl Drop for Pending {
    fn drop(&mut self) {
        if let Some(name) = &self.name
            && self.process == std::process::id()
        {
            let _ = sys::unlink(&self.target.folder, name);
        }
    }
}

/// For callers that look for the file in a list of descriptors.
impl AsRawFd for Pending {
    fn as_raw_fd(&self) -> std::os::fd::RawFd {
        self.held.as_raw_fd()
    }
}
