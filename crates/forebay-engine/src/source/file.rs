//! Files: two descriptors of one inode, one buffered and one with O_DIRECT.

use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

use forebay_config::CachePolicy;
use forebay_error::{Error, ErrorKind, Result};
use forebay_source::Access;
use forebay_sys::file_systems;
use rustix::fs::Stat;

use super::descriptor::Fd;
use super::{Calls, Descriptors, Facts, FileNature, Fill, Source, StateToken};
use crate::runtime::owned::Owned;
use crate::runtime::sys;
use crate::source::version::FileVersion;

/// What O_DIRECT asks of this file, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DirectAlignment {
    /// Alignment of the memory.
    pub memory: u32,
    /// Alignment of offsets and lengths.
    pub offset: u32,
}

impl DirectAlignment {
    /// What `statx` told, or what holds everywhere if it told nothing.
    pub(super) fn told(told: Option<(u32, u32)>) -> Self {
        let (memory, offset) = told.filter(|told| *told != (0, 0)).unwrap_or((4096, 4096));
        Self { memory, offset }
    }
}

/// A local or mounted file.
#[derive(Debug)]
pub(crate) struct FileSource {
    /// How it was opened; a name for messages if it was adopted.
    pub(crate) path: PathBuf,
    /// Its name in messages, if that is not the path.
    pub(crate) called: Option<PathBuf>,
    /// Whether the caller opened it.
    pub(crate) is_adopted: bool,
    /// Access and other flags that it was opened with.
    pub(crate) flags: i32,
    pub(crate) descriptors: Descriptors,
    pub(crate) direct_refused: Option<String>,
    pub(crate) buffered_refused: Option<String>,
    pub(crate) device: (u32, u32),
}

impl Source for FileSource {
    fn name(&self) -> String {
        let link = || std::fs::read_link(format!("/proc/thread-self/fd/{}", self.fd())).ok();
        let target = self.is_adopted.then(link).flatten();
        target.as_ref().or(self.called.as_ref()).unwrap_or(&self.path).display().to_string()
    }

    fn len(&self) -> Result<u64> {
        self.descriptors.len()
    }

    fn fill(&self) -> Fill<'_> {
        Fill::Descriptor(self.descriptors.buffered.as_fd())
    }

    fn state(&self) -> Result<Option<StateToken>> {
        self.descriptors.check()?;
        Ok(Some(FileVersion::of(self.fd())?.token(self.fd(), self.descriptors.nature.magic)))
    }

    fn facts(&self) -> Facts {
        Facts { file_system: Some(self.file_system()), ..Facts::default() }
    }

    fn sync(&self) -> Result<()> {
        self.descriptors.check()?;
        // SAFETY: no pointers are passed.
        if unsafe { libc::fdatasync(self.fd()) } < 0 {
            return Err(Error::last_os("cannot make the file durable").with("path", self.name()));
        }
        Ok(())
    }

    fn access(&self) -> (bool, bool) {
        match self.flags & libc::O_ACCMODE {
            libc::O_RDONLY => (true, false),
            libc::O_WRONLY => (false, true),
            libc::O_RDWR => (true, true),
            // The kernel's fourth mode is for ioctl only.
            _ => (false, false),
        }
    }
}

impl FileSource {
    pub(crate) fn fd(&self) -> RawFd {
        self.descriptors.buffered.as_raw_fd()
    }

    /// The file system's name as `mount` shows it.
    pub(crate) fn file_system(&self) -> &'static str {
        file_systems::name(self.descriptors.nature.magic)
    }
}

/// Why a descriptor is missing.
pub(super) const IS_MEMORY: &str = "the file is memory already";
pub(super) const NO_DIRECT: &str = "the file system says that it has no O_DIRECT for this file (statx)";

pub(crate) const TMPFS: i64 = 0x0102_1994;
/// Local file systems that keep their bytes in the kernel's page cache: ext4, xfs, btrfs, f2fs and tmpfs. Faults on their pages
/// ask no other machine and no daemon.
pub(crate) const LOCAL_FILE_SYSTEMS: [i64; 5] = [0xEF53, 0x5846_5342, 0x9123_683E, 0xF2F5_2010, TMPFS];
/// Those that write into reserved space where it is: ext4, xfs and tmpfs. Others compress, or write to other places.
pub(super) const RESERVING_FILE_SYSTEMS: [i64; 3] = [0xEF53, 0x5846_5342, TMPFS];
pub(super) const MEMORY_FILE_SYSTEMS: [i64; 3] = [TMPFS, 0x8584_58F6, 0x9584_58F6];

/// How to open a [`File`](crate::File); made by [`File::options`](crate::File::options).
#[derive(Debug)]
pub struct OpenOptions {
    read: bool,
    write: bool,
    create: bool,
    create_new: bool,
    truncate: bool,
    sync: bool,
    pub(super) cache: Option<CachePolicy>,
    pub(super) calls: Option<Box<dyn Calls>>,
    called: Option<PathBuf>,
}

impl Default for OpenOptions {
    fn default() -> Self {
        Self {
            read: true,
            write: false,
            create: false,
            create_new: false,
            truncate: false,
            sync: false,
            cache: None,
            called: None,
            calls: None,
        }
    }
}

impl OpenOptions {
    /// Open for reading (the default). A URL that is opened for neither reading nor writing is asked for length and state alone.
    #[must_use]
    pub fn read(mut self, yes: bool) -> Self {
        self.read = yes;
        self
    }

    /// Open for writing.
    #[must_use]
    pub fn write(mut self, yes: bool) -> Self {
        self.write = yes;
        self
    }

    /// Create the file if it does not exist.
    #[must_use]
    pub fn create(mut self, yes: bool) -> Self {
        self.create = yes;
        self
    }

    /// Create the file, and fail if it exists.
    #[must_use]
    pub fn create_new(mut self, yes: bool) -> Self {
        self.create_new = yes;
        self
    }

    /// Cut the file to nothing.
    #[must_use]
    pub fn truncate(mut self, yes: bool) -> Self {
        self.truncate = yes;
        self
    }

    /// Writes are durable when they complete (O_DSYNC).
    #[must_use]
    pub fn sync(mut self, yes: bool) -> Self {
        self.sync = yes;
        self
    }

    /// What happens to the page cache for this file, whatever the session says.
    #[must_use]
    pub fn cache(mut self, policy: CachePolicy) -> Self {
        self.cache = Some(policy);
        self
    }

    /// The name of the file in messages, for a path that does not show it (`/proc/self/fd/3`).
    #[must_use]
    pub fn called(mut self, name: impl AsRef<Path>) -> Self {
        self.called = Some(name.as_ref().to_owned());
        self
    }

    /// Puts `calls` in front of the kernel's file calls (fault injection).
    #[must_use]
    pub fn calls(mut self, calls: Box<dyn Calls>) -> Self {
        self.calls = Some(calls);
        self
    }

    /// What it is opened for.
    pub(crate) fn access(&self) -> Access {
        let make = self.create || self.create_new || self.truncate;
        Access { read: self.read, write: self.write, make }
    }

    pub(crate) fn open_source(self, path: &Path) -> Result<FileSource> {
        let mut flags = match (self.read, self.write) {
            (_, false) => libc::O_RDONLY,
            (false, true) => libc::O_WRONLY,
            (true, true) => libc::O_RDWR,
        };
        if self.sync {
            flags |= libc::O_DSYNC;
        }
        let mut first = flags;
        for (wanted, bit) in [
            (self.create, libc::O_CREAT),
            (self.create_new, libc::O_CREAT | libc::O_EXCL),
            (self.truncate, libc::O_TRUNC),
        ] {
            if wanted {
                first |= bit;
            }
        }
        // Opening a FIFO would wait for its other end.
        if std::fs::metadata(path).is_ok_and(|about| about.file_type().is_fifo()) {
            return Err(not_a_file(path));
        }
        let buffered =
            sys::open(path, first, 0o644).map_err(|errno| explain_open(errno, path, self.write))?;
        let stat = sys::stat(buffered.as_raw_fd())?;
        let identity = (stat.st_dev, stat.st_ino);
        check_type(&stat, path)?;
        let nature = nature(buffered.as_raw_fd(), &stat, self.read && self.write);
        let (direct, direct_refused) = if nature.is_memory() {
            (None, Some(IS_MEMORY.to_owned()))
        } else {
            match open_direct(&buffered, path, flags, &stat) {
                Ok((fd, alignment)) => (Some((Fd::Own(Owned::new(fd, identity)), alignment)), None),
                Err(reason) => (None, Some(reason)),
            }
        };
        Ok(FileSource {
            path: path.to_owned(),
            called: self.called,
            is_adopted: false,
            flags,
            descriptors: Descriptors::new(
                Fd::Own(Owned::new(buffered, identity)),
                direct,
                identity,
                nature,
                (self.cache, self.calls),
            ),
            direct_refused,
            buffered_refused: None,
            device: device_number(&stat),
        })
    }
}

/// What kind of file this is.
pub(super) fn nature(fd: RawFd, stat: &Stat, is_writable: bool) -> FileNature {
    FileNature {
        // The node of a block device lies in memory, its bytes do not.
        magic: if is_block(stat) { file_systems::BLOCK_DEVICE } else { sys::file_system_magic(fd) },
        is_regular: stat.st_mode & libc::S_IFMT == libc::S_IFREG,
        mount: if is_block(stat) { stat.st_rdev } else { stat.st_dev },
        opened_len: stat.st_size as u64,
        is_writable,
    }
}

fn is_block(stat: &Stat) -> bool {
    stat.st_mode & libc::S_IFMT == libc::S_IFBLK
}

/// The block device that holds the file, or that it is.
pub(super) fn device_number(stat: &Stat) -> (u32, u32) {
    let number = if is_block(stat) { stat.st_rdev } else { stat.st_dev };
    (libc::major(number), libc::minor(number))
}

/// Opens the same inode once more with O_DIRECT. The error says why it cannot be.
fn open_direct(
    buffered: &OwnedFd,
    path: &Path,
    flags: i32,
    stat: &Stat,
) -> std::result::Result<(OwnedFd, DirectAlignment), String> {
    let told = sys::direct_alignment(buffered.as_raw_fd());
    if told == Some((0, 0)) {
        return Err(NO_DIRECT.to_owned());
    }
    // By path, since /proc may be unreadable; by /proc if the path now names another file.
    let same = |fd: &OwnedFd| {
        sys::stat(fd.as_raw_fd())
            .is_ok_and(|other| (other.st_dev, other.st_ino) == (stat.st_dev, stat.st_ino))
    };
    let proc_path = PathBuf::from(format!("/proc/self/fd/{}", buffered.as_raw_fd()));
    let opened = match sys::open(path, flags | libc::O_DIRECT, 0) {
        Ok(fd) if same(&fd) => Ok(fd),
        Err(libc::EINVAL) => Err(libc::EINVAL),
        _ => sys::open(&proc_path, flags | libc::O_DIRECT, 0),
    };
    match opened {
        Ok(fd) => Ok((fd, DirectAlignment::told(told))),
        Err(libc::EINVAL) => Err("the file system refuses O_DIRECT".to_owned()),
        Err(errno) => Err(format!("open with O_DIRECT: {}", std::io::Error::from_raw_os_error(errno))),
    }
}

pub(super) fn check_type(stat: &Stat, path: &Path) -> Result<()> {
    match stat.st_mode & libc::S_IFMT {
        libc::S_IFREG | libc::S_IFBLK => Ok(()),
        libc::S_IFDIR => Err(Error::new(ErrorKind::IsDirectory, "this is a directory, not a file")
            .with("path", path.display())
            .hint("name a file in it")),
        _ => Err(not_a_file(path)),
    }
}

fn not_a_file(path: &Path) -> Error {
    Error::new(ErrorKind::InvalidInput, "not a regular file or block device")
        .with("path", path.display())
        .hint("pipes, sockets and character devices have no offsets to read at")
}

fn explain_open(errno: i32, path: &Path, write: bool) -> Error {
    let error =
        Error::from_errno(errno, if write { "cannot open file for writing" } else { "cannot open file" })
            .with("path", path.display());
    match errno {
        libc::EINVAL if path.as_os_str().as_encoded_bytes().contains(&0) => {
            error.hint("the path has a zero byte: leave it out")
        }
        libc::ENOENT => error.hint(
            forebay_source::hint_for_missing(path)
                .unwrap_or_else(|| "check the path (ls -l) and the spelling".to_owned()),
        ),
        libc::EACCES | libc::EPERM => {
            error.hint("check the file's mode and owner (ls -l), and the directories above it")
        }
        libc::EISDIR => error.hint("name a file in it"),
        libc::EROFS => {
            error.hint("the file system is mounted read-only: write elsewhere or mount -o remount,rw")
        }
        _ => error,
    }
}
