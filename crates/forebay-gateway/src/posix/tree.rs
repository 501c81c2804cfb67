//! The tree of directories that buckets lie in, from a descriptor that is held: no path leads out of it, by no link.

use std::ops::Range;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use forebay_error::Error;
use rustix::fs::{
    AtFlags, Dir, FileType, Mode, OFlags, ResolveFlags, Statx, StatxFlags, XattrFlags, fgetxattr, fsetxattr,
    openat2, statx,
};
use rustix::io::Errno;

use super::inner::Inner;
use crate::store::{StoreError, StoreResult};

/// How often a file that another mount replaced is opened again at once.
const STALE_TRIES: u32 = 3;
/// Pauses before it is opened again after that, each twice as long as the one before: GlusterFS's caches know the old file for a
/// second. 1.26 s in all.
const STALE_PAUSES: Range<u32> = 0..6;
const FIRST_PAUSE: Duration = Duration::from_millis(20);

/// The attribute of a directory that a gateway made for the keys below it. It goes with the last of them.
const MADE: &str = "user.forebay.made";

/// The mode of new directories; the umask has its say.
pub(super) const DIR_MODE: Mode = Mode::from_raw_mode(0o777);

/// The mode of new files; the umask has its say.
pub(super) const FILE_MODE: Mode = Mode::from_raw_mode(0o666);

/// The parts of a `statx` that the store looks at.
pub(super) const STAT: StatxFlags = StatxFlags::BASIC_STATS.union(StatxFlags::BTIME);

/// What a failed system call means to a client. Callers handle ENOENT and the like, which mean different things.
pub(super) fn fault(errno: Errno, doing: &str) -> StoreError {
    let error = Error::from_errno(errno.raw_os_error(), doing);
    match errno {
        Errno::NOSPC | Errno::DQUOT => StoreError::Full,
        Errno::ACCESS | Errno::PERM | Errno::ROFS => StoreError::Denied,
        Errno::STALE | Errno::MFILE | Errno::NFILE | Errno::TIMEDOUT | Errno::AGAIN | Errno::NOMEM => {
            StoreError::Later(error)
        }
        _ => StoreError::Other(error),
    }
}

/// The same where it is not known whether a thing is there: the client may ask again.
pub(super) fn later(errno: Errno, doing: &str) -> StoreError {
    match fault(errno, doing) {
        StoreError::Other(error) => StoreError::Later(error),
        fault => fault,
    }
}

/// Does it again where another mount replaced a file that it had open. Blocks for as long as file systems keep the old one in mind.
pub(super) fn again_when_stale<T>(act: impl Fn() -> StoreResult<T>) -> StoreResult<T> {
    let pauses = STALE_PAUSES.map(|doubled| FIRST_PAUSE * (1 << doubled));
    for pause in (0..STALE_TRIES).map(|_| Duration::ZERO).chain(pauses) {
        match act() {
            Err(error) if error.is_stale() => std::thread::sleep(pause),
            result => return result,
        }
    }
    act()
}

/// What a failed call on an open file means: its name is not asked for, so that ENOENT says that another mount replaced it.
pub(super) fn fault_of_open(doing: &'static str) -> impl Fn(Errno) -> StoreError {
    move |errno| fault(if errno == Errno::NOENT { Errno::STALE } else { errno }, doing)
}

/// The same, for a function that is given to `map_err`.
pub(super) fn failed(doing: &'static str) -> impl Fn(Errno) -> StoreError {
    move |errno| fault(errno, doing)
}

/// Opens a path below a directory, through no link and never out of it.
pub(super) fn open_below(dir: impl AsFd, path: &str, flags: OFlags) -> Result<OwnedFd, Errno> {
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    let makes = flags.intersects(OFlags::CREATE) || flags.contains(OFlags::TMPFILE);
    let mode = if makes { FILE_MODE } else { Mode::empty() };
    let mut stale = 0;
    loop {
        match openat2(&dir, path, flags | OFlags::CLOEXEC, mode, resolve) {
            // The kernel asks for another try when a directory on the way is moved.
            Err(Errno::AGAIN | Errno::INTR) if !flags.contains(OFlags::NONBLOCK) => {}
            Err(Errno::STALE) if stale < STALE_TRIES => stale += 1,
            result => return result,
        }
    }
}

/// Opens a directory for paths below it alone.
pub(super) fn open_dir(dir: impl AsFd, path: &str) -> Result<OwnedFd, Errno> {
    open_below(dir, path, OFlags::PATH | OFlags::DIRECTORY)
}

/// Size, times and kind of an open file.
pub(super) fn stat_file(file: impl AsFd) -> Result<Statx, Errno> {
    statx(file, "", AtFlags::EMPTY_PATH, STAT)
}

/// The same of a name in a directory; a link is not followed.
pub(super) fn stat_name(dir: impl AsFd, name: &str) -> Result<Statx, Errno> {
    statx(dir, name, AtFlags::SYMLINK_NOFOLLOW, STAT)
}

pub(super) fn is_dir(stat: &Statx) -> bool {
    FileType::from_raw_mode(u32::from(stat.stx_mode)) == FileType::Directory
}

/// Writes a directory's entries to the disk. It is opened again: a descriptor for paths alone cannot.
pub(super) fn sync_dir(dir: impl AsFd) -> StoreResult<()> {
    let open =
        open_below(dir, ".", OFlags::RDONLY | OFlags::DIRECTORY).map_err(failed("cannot open directory"))?;
    rustix::fs::fsync(open).map_err(failed("cannot sync directory"))
}

/// Makes the directories of a path that are missing; with `sync`, each is on the disk when this returns.
pub(super) fn make_dirs(inner: &Inner, base: impl AsFd, path: &str) -> StoreResult<()> {
    let sync = inner.options.sync;
    let mut above = ".".to_owned();
    for (end, _) in path.match_indices('/').chain([(path.len(), "")]) {
        let part = &path[..end];
        let name = part.rsplit('/').next().unwrap_or(part);
        let parent = open_dir(&base, &above).map_err(|errno| way_fault(errno, "cannot open directory"))?;
        match rustix::fs::mkdirat(&parent, name, DIR_MODE) {
            Ok(()) => mark_made(inner, &parent, name),
            Err(Errno::EXIST) => {}
            Err(errno) => return Err(way_fault(errno, "cannot make directory")),
        }
        // Also where it is there: another gateway made it a moment ago, perhaps, and has not synced it yet.
        if sync {
            sync_dir(&parent)?;
        }
        part.clone_into(&mut above);
    }
    Ok(())
}

/// A directory without the mark stays when it is empty: no error.
fn mark_made(inner: &Inner, parent: impl AsFd, name: &str) {
    if inner.abilities.attribute_room > 0
        && let Ok(dir) = open_below(parent, name, OFlags::RDONLY | OFlags::DIRECTORY)
    {
        let _ = fsetxattr(dir, MADE, b"1", XattrFlags::empty());
    }
}

/// Whether a gateway made an open directory. Without attributes all count.
pub(super) fn is_made(inner: &Inner, dir: impl AsFd) -> bool {
    inner.abilities.attribute_room == 0 || fgetxattr(dir, MADE, &mut [0; 8]).is_ok()
}

/// A fault on the way to a new object.
pub(super) fn way_fault(errno: Errno, doing: &str) -> StoreError {
    match errno {
        Errno::NOTDIR => StoreError::Key("a part of its path is an object"),
        Errno::LOOP | Errno::XDEV => StoreError::Key("a part of its path is a symbolic link"),
        Errno::NAMETOOLONG => StoreError::Key("the file system has no names that long"),
        Errno::ILSEQ | Errno::INVAL => StoreError::Key("the file system refuses the name"),
        // The bucket is removed while the object is written.
        Errno::NOENT => StoreError::NoBucket,
        _ => fault(errno, doing),
    }
}

/// The names in an open directory that are UTF-8.
pub(super) fn names(dir: &OwnedFd) -> StoreResult<Vec<String>> {
    let mut names = Vec::new();
    for entry in Dir::read_from(dir).map_err(failed("cannot read directory"))? {
        let entry = entry.map_err(failed("cannot read directory"))?;
        match entry.file_name().to_str() {
            Ok("." | "..") | Err(_) => {}
            Ok(name) => names.push(name.to_owned()),
        }
    }
    Ok(names)
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;

    fn stale_for(time: Duration) -> StoreResult<u32> {
        let began = Instant::now();
        again_when_stale(|| {
            let is_stale = began.elapsed() < time;
            if is_stale { Err(fault_of_open("cannot read attribute")(Errno::NOENT)) } else { Ok(7) }
        })
    }

    #[test]
    fn a_file_that_was_replaced_is_opened_again_until_caches_forget_it() {
        assert_eq!(stale_for(Duration::from_secs(1)).unwrap(), 7);
        assert!(stale_for(Duration::from_mins(1)).unwrap_err().is_stale());
    }
}
