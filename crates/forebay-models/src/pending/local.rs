//! Saves to paths of this machine.

use std::ffi::CString;
use std::fs::File as StdFile;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

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
        let options = || options().read(true).write(true);
        leftovers::remove(&target);
        let mode = mode & 0o777;
        // The kernel applies umask and the folder's access list; the process itself has to read and write.
        let initial = if target.existing.is_some() { 0o600 } else { mode | 0o600 };
        let (held, file, name) = match Self::nameless(&target, initial, &options)? {
            Some((held, file)) => (held, file, None),
            None => Self::named(&target, initial, &options)?,
        };
        Ok((file, Self { held, target, name, mode, process: std::process::id() }))
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

impl Drop for LocalSave {
    fn drop(&mut self) {
        if let Some(name) = &self.name
            && self.process == std::process::id()
        {
            let _ = sys::unlink(&self.target.folder, name);
        }
    }
}
