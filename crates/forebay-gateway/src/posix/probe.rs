//! What a file system can do for the store. It is tried out, since manuals and mounts differ.

use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use rustix::fs::{
    AtFlags, CWD, OFlags, RenameFlags, XattrFlags, fsetxattr, linkat, mkdirat, openat, renameat_with,
    unlinkat,
};
use rustix::io::Errno;

use super::inner::Abilities;
use super::loose::fresh_name;
use super::names::OWN;
use super::record::ATTRIBUTE;
use super::sys::{LockKind, lock_range};
use super::tree::{DIR_MODE, FILE_MODE, failed, open_dir};
use crate::store::StoreResult;

/// The most that Linux lets an attribute have.
const MOST_ROOM: usize = 64 << 10;

/// Room that stays for what the file system itself keeps there. GlusterFS keeps each name of a file: of the temporary and the
/// last one, 350 bytes each at most.
const SPARE_ROOM: usize = 1 << 10;

/// Tries out what the file system of a directory can do, with files in its `.forebay`.
pub fn probe(dir: &Path) -> StoreResult<Abilities> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let root = openat(CWD, dir, flags, rustix::fs::Mode::empty()).map_err(failed("cannot open directory"))?;
    match mkdirat(&root, OWN, DIR_MODE) {
        Ok(()) | Err(Errno::EXIST) => {}
        Err(errno) => return Err(super::tree::fault(errno, "cannot make directory")),
    }
    let place = Place::new(open_dir(&root, OWN).map_err(failed("cannot open directory"))?)?;
    place.abilities()
}

/// A directory for the trial, with two files.
struct Place {
    above: OwnedFd,
    dir: OwnedFd,
    name: String,
    first: File,
}

impl Place {
    fn new(above: OwnedFd) -> StoreResult<Self> {
        let name = format!("probe-{}", fresh_name());
        mkdirat(&above, &name, DIR_MODE).map_err(failed("cannot make directory"))?;
        let dir = open_dir(&above, &name).map_err(failed("cannot open directory"))?;
        let first = File::from(make(&dir, "first").map_err(failed("cannot make file"))?);
        make(&dir, "second").map_err(failed("cannot make file"))?;
        Ok(Self { above, dir, name, first })
    }

    fn abilities(&self) -> StoreResult<Abilities> {
        Ok(Abilities {
            unnamed_files: self.unnamed_files(),
            link_refuses: linkat(&self.dir, "first", &self.dir, "second", AtFlags::empty())
                == Err(Errno::EXIST),
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

    fn rename_refuses(&self) -> bool {
        let move_to =
            |name: &str| renameat_with(&self.dir, "second", &self.dir, name, RenameFlags::NOREPLACE);
        move_to("first") == Err(Errno::EXIST) && move_to("third").is_ok()
    }

    /// Two open files of one: the second must be refused.
    fn locks(&self) -> bool {
        let Ok(other) = openat(&self.dir, "first", OFlags::RDWR | OFlags::CLOEXEC, FILE_MODE) else {
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
        for name in ["first", "second", "third", "unnamed", "copy", "attribute"] {
            let _ = unlinkat(&self.dir, name, AtFlags::empty());
        }
        let _ = unlinkat(&self.above, &self.name, AtFlags::REMOVEDIR);
    }
}

fn make(dir: impl AsFd, name: &str) -> Result<OwnedFd, Errno> {
    openat(dir, name, OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC, FILE_MODE)
}
