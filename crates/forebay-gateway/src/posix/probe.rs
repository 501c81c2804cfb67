//! What a file system can do for the store. It is tried out, since manuals and mounts differ.

use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::time::{Duration, Instant};

use forebay_error::{Error, ErrorKind};
use rustix::fs::{
    AtFlags, CWD, OFlags, RenameFlags, StatVfsMountFlags, XattrFlags, fsetxattr, fstatvfs, linkat, mkdirat,
    openat, renameat, renameat_with, unlinkat,
};
use rustix::io::Errno;

use super::inner::Abilities;
use super::loose::fresh_name;
use super::names::OWN;
use super::record::ATTRIBUTE;
use super::sys::{LockKind, lock_range};
use super::tree::{DIR_MODE, FILE_MODE, failed, open_dir};
use crate::store::{StoreError, StoreResult};

/// The most that Linux lets an attribute have.
const MOST_ROOM: usize = 64 << 10;

/// Room that stays for what the file system itself keeps there. GlusterFS keeps each name of a file: of the temporary and the
/// last one, 350 bytes each at most.
const SPARE_ROOM: usize = 1 << 10;
/// How long another mount may take to see a new directory.
const SEEN_WITHIN: Duration = Duration::from_secs(10);
/// Rounds of two links to one name.
const ROUNDS: u32 = 8;

/// Of a mount where nothing can be written: objects are read, with the records that they have.
const READ_ONLY: Abilities = Abilities {
    unnamed_files: false,
    link_refuses: false,
    rename_refuses: false,
    locks: false,
    attribute_room: 0,
    copies: false,
    fine_times: false,
};

/// Tries out what the file system of a directory can do, with files in its `.forebay`.
pub fn probe(dir: &Path) -> StoreResult<Abilities> {
    probe_open(&open_root(dir)?)
}

/// The same of an open directory.
pub(super) fn probe_open(root: &OwnedFd) -> StoreResult<Abilities> {
    let mount = fstatvfs(root).map_err(failed("cannot examine file system"))?;
    if mount.f_flag.contains(StatVfsMountFlags::RDONLY) {
        return Ok(READ_ONLY);
    }
    Place::of(root, None)?.abilities()
}

/// Abilities, and more for people.
#[derive(Clone, Copy, Debug)]
pub(super) struct Trial {
    pub(super) abilities: Abilities,
    /// `O_DIRECT` reads.
    pub(super) direct: bool,
    /// `fsync` of a directory.
    pub(super) syncs_directories: bool,
    pub(super) replaced: Replaced,
}

/// What a reader has of a file that is replaced.
#[derive(Clone, Copy, Debug)]
pub(super) struct Replaced {
    pub(super) bytes: OldBytes,
    /// When the new one is opened by its name; `None`: it was not within 10 s.
    pub(super) seconds: Option<f64>,
}

/// What an open file has when another takes its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OldBytes {
    Old,
    Stale,
    Mixed,
}

impl OldBytes {
    pub(super) fn words(self) -> &'static str {
        match self {
            Self::Old => "keeps the old one to its end",
            Self::Stale => "gets ESTALE",
            Self::Mixed => "gets bytes of the new one",
        }
    }
}

/// The same as [`probe`], and more; links, locks and replaced files between two mounts of the directory, where both are given.
pub(super) fn try_out(dir: &Path, other_mount: Option<&Path>) -> StoreResult<Trial> {
    let place = Place::of(&open_root(dir)?, other_mount)?;
    Ok(Trial {
        abilities: place.abilities()?,
        direct: place.reads_directly(),
        syncs_directories: super::tree::sync_dir(&place.dir).is_ok(),
        replaced: place.replaced()?,
    })
}

/// A directory for the trial, with two files.
struct Place {
    above: OwnedFd,
    dir: OwnedFd,
    /// The directory by another mount, or once more by this one.
    there: OwnedFd,
    name: String,
    first: File,
}

fn open_root(dir: &Path) -> StoreResult<OwnedFd> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    openat(CWD, dir, flags, rustix::fs::Mode::empty()).map_err(failed("cannot open directory"))
}

/// A directory that another mount has to see before long.
fn open_there(other_mount: &Path, path: &str) -> StoreResult<OwnedFd> {
    let (root, began) = (open_root(other_mount)?, Instant::now());
    loop {
        match open_dir(&root, path) {
            Err(Errno::NOENT | Errno::STALE) if began.elapsed() < SEEN_WITHIN => {
                std::thread::sleep(Duration::from_millis(50));
            }
            Err(Errno::NOENT) => {
                let error =
                    Error::new(ErrorKind::InvalidInput, "the other mount has not what the first one made");
                let error = error.with("dir", other_mount.display());
                return Err(StoreError::Other(error.hint("name the same directory by both mounts")));
            }
            result => return result.map_err(failed("cannot open directory")),
        }
    }
}

impl Place {
    fn of(root: &OwnedFd, other_mount: Option<&Path>) -> StoreResult<Self> {
        match mkdirat(root, OWN, DIR_MODE) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(errno) => return Err(super::tree::fault(errno, "cannot make directory")),
        }
        let mut place = Self::new(open_dir(root, OWN).map_err(failed("cannot open directory"))?)?;
        if let Some(other) = other_mount {
            place.there = open_there(other, &format!("{OWN}/{}", place.name))?;
        }
        Ok(place)
    }

    fn new(above: OwnedFd) -> StoreResult<Self> {
        let name = format!("probe-{}", fresh_name());
        mkdirat(&above, &name, DIR_MODE).map_err(failed("cannot make directory"))?;
        let dir = open_dir(&above, &name).map_err(failed("cannot open directory"))?;
        let first = File::from(make(&dir, "first").map_err(failed("cannot make file"))?);
        make(&dir, "second").map_err(failed("cannot make file"))?;
        let there = open_dir(&above, &name).map_err(failed("cannot open directory"))?;
        Ok(Self { above, dir, there, name, first })
    }

    fn abilities(&self) -> StoreResult<Abilities> {
        Ok(Abilities {
            unnamed_files: self.unnamed_files(),
            link_refuses: self.link_refuses(),
            rename_refuses: self.rename_refuses(),
            locks: self.locks(),
            attribute_room: self.attribute_room(),
            copies: self.copies(),
            fine_times: super::draft::stamp(&self.first)?.mtime % 1000 != 0
                || super::draft::stamp(&self.first)?.mtime % 1000 != 0,
        })
    }

    fn unnamed_files(&self) -> bool {
        let flags = OFlags::RDWR | OFlags::TMPFILE;
        let Ok(file) = super::tree::open_below(&self.dir, ".", flags) else { return false };
        let path = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&file.as_fd()));
        linkat(CWD, path, &self.dir, "unnamed", AtFlags::SYMLINK_FOLLOW).is_ok()
    }

    /// A name that is there, and names that two threads take at one time, one of them by the other mount.
    fn link_refuses(&self) -> bool {
        let link = |dir: &OwnedFd, from: &str, to: &str| linkat(dir, from, dir, to, AtFlags::empty());
        if link(&self.dir, "first", "second") != Err(Errno::EXIST) {
            return false;
        }
        (0..ROUNDS).all(|round| {
            let name = format!("race-{round}");
            let (here, there) = std::thread::scope(|scope| {
                let there = scope.spawn(|| link(&self.there, "second", &name));
                (link(&self.dir, "first", &name), there.join().unwrap_or(Err(Errno::IO)))
            });
            let _ = unlinkat(&self.dir, &name, AtFlags::empty());
            matches!((here, there), (Ok(()), Err(Errno::EXIST)) | (Err(Errno::EXIST), Ok(())))
        })
    }

    fn reads_directly(&self) -> bool {
        let flags = OFlags::RDONLY | OFlags::DIRECT | OFlags::CLOEXEC;
        openat(&self.dir, "first", flags, FILE_MODE).is_ok()
    }

    /// Replaces a file that is open by the other mount, as a PUT does.
    fn replaced(&self) -> StoreResult<Replaced> {
        use std::os::unix::fs::FileExt;
        let write = |name: &str, bytes: &[u8]| -> StoreResult<()> {
            let file = File::from(make(&self.dir, name).map_err(failed("cannot make file"))?);
            file.write_all_at(bytes, 0)
                .map_err(|error| super::loose::io_fault(&error, "cannot write file"))?;
            file.sync_all().map_err(|error| super::loose::io_fault(&error, "cannot sync file"))
        };
        write("old", b"old")?;
        write("new", b"new")?;
        let open = || super::tree::open_below(&self.there, "old", OFlags::RDONLY).map(File::from);
        let began = Instant::now();
        let reader = loop {
            match open() {
                Err(Errno::NOENT) if began.elapsed() < SEEN_WITHIN => {
                    std::thread::sleep(Duration::from_millis(50));
                }
                result => break result.map_err(failed("cannot open file"))?,
            }
        };
        renameat(&self.dir, "new", &self.dir, "old").map_err(failed("cannot rename file"))?;
        let read = |file: &File| {
            let mut bytes = [0; 3];
            file.read_exact_at(&mut bytes, 0).map(|()| bytes)
        };
        let bytes = match read(&reader) {
            Ok(bytes) if &bytes == b"old" => OldBytes::Old,
            Ok(_) => OldBytes::Mixed,
            Err(_) => OldBytes::Stale,
        };
        let began = Instant::now();
        let seconds = loop {
            if open().is_ok_and(|file| read(&file).is_ok_and(|bytes| &bytes == b"new")) {
                break Some(began.elapsed().as_secs_f64());
            }
            if began.elapsed() > SEEN_WITHIN {
                break None;
            }
            std::thread::sleep(Duration::from_millis(50));
        };
        Ok(Replaced { bytes, seconds })
    }

    fn rename_refuses(&self) -> bool {
        let move_to =
            |name: &str| renameat_with(&self.dir, "second", &self.dir, name, RenameFlags::NOREPLACE);
        move_to("first") == Err(Errno::EXIST) && move_to("third").is_ok()
    }

    /// Two open files of one: the second must be refused.
    fn locks(&self) -> bool {
        let Ok(other) = openat(&self.there, "first", OFlags::RDWR | OFlags::CLOEXEC, FILE_MODE) else {
            return false;
        };
        let lock = |file: &dyn AsFd| lock_range(file.as_fd(), LockKind::Alone, 0, 0, false);
        lock(&self.first) == Ok(true) && lock(&other) == Ok(false)
    }

    fn attribute_room(&self) -> usize {
        // A file of its own: on GlusterFS one whose attribute had no room fails from then on.
        let Ok(file) = make(&self.dir, "attribute") else { return 0 };
        let value = vec![b'x'; MOST_ROOM];
        let holds = |len: usize| fsetxattr(&file, ATTRIBUTE, &value[..len], XattrFlags::empty()).is_ok();
        let (mut least, mut most) = (0, MOST_ROOM + 1);
        while most - least > 1 {
            let middle = usize::midpoint(least, most);
            if holds(middle) { least = middle } else { most = middle }
        }
        // Less than a record needs counts as none.
        if least < 2 * SPARE_ROOM { 0 } else { least - SPARE_ROOM }
    }

    fn copies(&self) -> bool {
        use std::os::unix::fs::FileExt;
        let Ok(to) = make(&self.dir, "copy") else { return false };
        self.first.write_all_at(b"x", 0).is_ok()
            && rustix::fs::copy_file_range(&self.first, Some(&mut 0), &to, Some(&mut 0), 1) == Ok(1)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        for name in ["first", "second", "third", "unnamed", "copy", "attribute", "old", "new"] {
            let _ = unlinkat(&self.dir, name, AtFlags::empty());
        }
        let _ = unlinkat(&self.above, &self.name, AtFlags::REMOVEDIR);
    }
}

fn make(dir: impl AsFd, name: &str) -> Result<OwnedFd, Errno> {
    openat(dir, name, OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC, FILE_MODE)
}
