//! A file that gets its name when it is whole.

mod leftovers;
mod local;
mod rights;
mod sys;
mod target;
mod xattr;

use std::path::{Path, PathBuf};
use std::time::SystemTime;

use forebay_engine::{File, OpenOptions};
use forebay_error::Result;
use forebay_source::{Location, Upload};

use local::LocalSave;

/// A new file that replaces another, or appears, in one step: a program that opens the name gets the old file or the
/// whole new one, never a part, and after a crash of the machine one of the two is there.
///
/// The data are written by [`file`](Self::file); [`commit`](Self::commit) gives them the target's name. Dropped before,
/// nothing remains. At a URL the scheme's [`Upload`] does it. The rest is of paths of this machine.
///
/// [`create`](Self::create) opens a file without a name in the target's folder (`O_TMPFILE`), or where the file system
/// has none, one beside the target with a hidden name. A process that is killed in the middle leaves nothing, except
/// between two system calls of `commit`, or on a file system without nameless files: what it leaves, the next `create`
/// for the same target removes, since a file system lock tells that nobody works on it any more.
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
    target: PathBuf,
    save: Save,
}

#[derive(Debug)]
enum Save {
    Local(LocalSave),
    Upload(Box<dyn Upload>),
}

impl Pending {
    /// Opens a new file that will become `path`.
    pub fn create(path: impl AsRef<Path>) -> Result<Self> {
        Self::create_like(path, 0o666)
    }

    /// As [`create`](Self::create), with the mode that a file has if it is new: of these bits those that the umask
    /// leaves, and only what users may do (`0o777`).
    pub fn create_like(path: impl AsRef<Path>, mode: u32) -> Result<Self> {
        Self::made(path.as_ref(), mode & 0o777, &File::options)
    }

    /// As [`create`](Self::create), opened with these options, which say what happens to the page cache.
    pub fn create_with(path: impl AsRef<Path>, options: &dyn Fn() -> OpenOptions) -> Result<Self> {
        Self::made(path.as_ref(), 0o666, options)
    }

    fn made(path: &Path, mode: u32, options: &dyn Fn() -> OpenOptions) -> Result<Self> {
        match Location::of_new(path)? {
            Location::Url(opener) => {
                let upload = opener.make(path, mode & !umask())?;
                let file = File::from_source(upload.source())?;
                Ok(Self { file, target: path.to_owned(), save: Save::Upload(upload) })
            }
            Location::Path => {
                let (file, save) = LocalSave::create(path, mode, options)?;
                Ok(Self { file, target: save.target().to_owned(), save: Save::Local(save) })
            }
        }
    }

    /// Writes a small file of this machine whole, with this time of change, and gives it its name, for one of many: what dead saves left
    /// for it stays until [`clear`](Self::clear) or [`create`](Self::create).
    pub fn write(path: impl AsRef<Path>, bytes: &[u8], modified: Option<SystemTime>) -> Result<()> {
        LocalSave::write(path.as_ref(), bytes, modified)
    }

    /// Removes what dead saves left in a folder, for all names.
    pub fn clear(folder: impl AsRef<Path>) {
        leftovers::remove_all(folder.as_ref());
    }

    /// The file to write the data to, open for reading and writing. It may outlive this value, but belongs to nobody's
    /// name then unless this was committed.
    pub fn file(&self) -> &File {
        &self.file
    }

    /// The file that will be replaced or appear: the given path with symbolic links followed, or the URL.
    pub fn target(&self) -> &Path {
        &self.target
    }

    /// Whether the file has no name, so that even SIGKILL leaves nothing.
    pub fn is_nameless(&self) -> bool {
        matches!(&self.save, Save::Local(save) if save.is_nameless())
    }

    /// Makes the bytes written so far durable; [`commit`](Self::commit) does it too.
    pub fn sync(&self) -> Result<()> {
        match &self.save {
            Save::Local(save) => save.sync(),
            Save::Upload(_) => self.file.sync(),
        }
    }

    /// Gives the file its name, replacing what has it. If `durable`, data and name are on the disk on return. On an
    /// error the old file is as it was, and nothing of the new one remains; only where a server did not answer the last
    /// call the name may be the new file's, and a hint says so. Returns, in words, what of the replaced file's rights and
    /// attributes could not be kept.
    pub fn commit(self, durable: bool) -> Result<Vec<String>> {
        match self.save {
            Save::Local(save) => Ok(save.commit(durable)?.into_iter().map(str::to_owned).collect()),
            Save::Upload(upload) => {
                // An upload may wait for the last descriptor of its file.
                drop(self.file);
                upload.finish(durable)
            }
        }
    }
}

/// The process's umask, which is read without being set.
fn umask() -> u32 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let told = status.lines().find_map(|line| line.strip_prefix("Umask:"));
    told.and_then(|octal| u32::from_str_radix(octal.trim(), 8).ok()).unwrap_or(0o022)
}
