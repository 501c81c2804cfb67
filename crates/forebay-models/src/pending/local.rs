//! Saves to paths of this machine.

use std::ffi::CString;
use std::fs::File as StdFile;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::time::SystemTime;

use forebay_engine::{File, OpenOptions};
use forebay_error::{Error, ErrorKind, Result};

use super::target::Target;
use super::{leftovers, rights, sys};

/// A file without a name in the target's folder (`O_TMPFILE`), or one beside the target with a hidden name.
#[derive(Debug)]
pub(super) struct LocalSave {
    /// A descriptor of the same file, which holds the lock that marks a save as alive.
    held: StdFile,
    target: Target,
    /// What `held` is called in the target's folder at the moment, if anything.
    name: Option<CString>,
    /// Bits that a new file may have at most.
    mode: u32,
    /// A forked child that drops its copy must not remove the parent's file.
    process: u32,
}

impl LocalSave {
    /// The file to write the data to, and what gives it its name.
    pub(super) fn create(path: &Path, mode: u32, options: &dyn Fn() -> OpenOptions) -> Result<(File, Self)> {
        let target = Target::find(path)?;
        leftovers::remove(&target);
        let save = Self::begin(target, mode)?;
        let options = options().read(true).write(true);
        let (options, path) = match &save.name {
            Some(name) => (options, save.target.sibling(name)),
            None => (options.called(&save.target.path), sys::proc_path(&save.held)),
        };
        let file = options.open(path).map_err(|error| {
            if save.is_nameless() { error.with("for", save.target.path.display()) } else { error }
        })?;
        Ok((file, save))
    }

    /// Writes a small file whole and gives it its name, without looking for what dead saves left.
    pub(super) fn write(path: &Path, bytes: &[u8], modified: Option<SystemTime>) -> Result<()> {
        let save = Self::begin(Target::find(path)?, 0o666)?;
        save.held.write_all_at(bytes, 0).map_err(|error| save.failed(&error, "cannot write the file"))?;
        if let Some(modified) = modified {
            let set = save.held.set_modified(modified);
            set.map_err(|error| save.failed(&error, "cannot set the time of the file"))?;
        }
        save.commit(false).map(drop)
    }

    /// A new file that becomes the target.
    fn begin(target: Target, mode: u32) -> Result<Self> {
        let mode = mode & 0o777;
        // The kernel applies umask and the folder's access list; the process itself has to read and write.
        let initial = if target.existing.is_some() { 0o600 } else { mode | 0o600 };
        let (held, name) = match Self::nameless(&target, initial)? {
            Some(held) => (held, None),
            None => Self::named(&target, initial)?,
        };
        Ok(Self { held, target, name, mode, process: std::process::id() })
    }

    /// A file without a name; `None` where the file system or the machine has none.
    fn nameless(target: &Target, mode: u32) -> Result<Option<StdFile>> {
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
        Ok(StdFile::open(sys::proc_path(&held)).is_ok().then_some(held))
    }

    /// A file with a hidden name beside the target.
    fn named(target: &Target, mode: u32) -> Result<(StdFile, Option<CString>)> {
        for _ in 0..100 {
            let name = leftovers::new_name(&target.name)?;
            let held = match sys::open_new(&target.folder, &name, mode) {
                Ok(held) => held,
                Err(libc::EEXIST) => continue,
                Err(errno) => return Err(target.refused(errno)),
            };
            sys::lock(&held);
            // Another save may have taken it for a leftover before it was locked.
            if sys::is_called(&held, &target.folder, &name) {
                return Ok((held, Some(name)));
            }
        }
        Err(Error::new(ErrorKind::Busy, "no free name for a temporary file")
            .with("path", target.path.display())
            .hint("remove the hidden files named .*.forebay-* in the folder"))
    }

    /// The path with symbolic links followed.
    pub(super) fn target(&self) -> &Path {
        &self.target.path
    }

    pub(super) fn is_nameless(&self) -> bool {
        self.name.is_none()
    }

    pub(super) fn sync(&self) -> Result<()> {
        self.held.sync_all().map_err(|error| self.failed(&error, "cannot make the file durable"))
    }

    pub(super) fn commit(mut self, durable: bool) -> Result<Vec<&'static str>> {
        let notes = self.dress()?;
        if durable {
            self.sync()?;
        }
        if self.name.is_none() && !self.appears()? {
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

    /// Whether the nameless file got the target's name at once, since no file has it.
    fn appears(&self) -> Result<bool> {
        if self.target.existing.is_some() {
            return Ok(false);
        }
        match sys::link(&self.held, &self.target.folder, &self.target.name) {
            Ok(()) => Ok(true),
            Err(libc::EEXIST) => Ok(false),
            Err(errno) => Err(self.target.failed(errno, "cannot give the file its name")),
        }
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

impl Drop for LocalSave {
    fn drop(&mut self) {
        if let Some(name) = &self.name
            && self.process == std::process::id()
        {
            let _ = sys::unlink(&self.target.folder, name);
        }
    }
}
