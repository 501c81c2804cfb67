//! A file that is no object yet: without a name, or with one in the gateway's own directory.

use std::fs::File;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use ring::rand::{SecureRandom, SystemRandom};
use rustix::fs::{AtFlags, CWD, OFlags, linkat, openat, renameat, unlinkat};
use rustix::io::Errno;

use super::inner::Inner;
use super::names::OWN;
use super::replaced;
use super::sys::{LockKind, lock_range};
use super::tree::{FILE_MODE, failed, fault, open_below};
use crate::store::{StoreError, StoreResult};

/// The file. One with a name of its own loses it when this is dropped.
#[derive(Debug)]
pub(super) struct Loose {
    pub(super) file: File,
    place: Option<OwnName>,
}

#[derive(Debug)]
struct OwnName {
    dir: OwnedFd,
    name: String,
    /// The name stays when this is dropped.
    stays: bool,
}

impl Loose {
    /// For an object in this directory, `bucket/…`; in the bucket's own where it is not there yet.
    pub(super) fn new(inner: &Inner, bucket: &str, parent: &str) -> StoreResult<Self> {
        if !inner.abilities.unnamed_files {
            return Self::named(inner, bucket);
        }
        let open = |path: &str| open_below(&inner.root, path, OFlags::RDWR | OFlags::TMPFILE);
        let file = match open(parent) {
            // EPERM is ext4's answer where a DELETE removed the directory while it was opened.
            Err(Errno::NOENT | Errno::PERM) => open(bucket),
            result => result,
        };
        match file {
            Ok(file) => Ok(Self { file: file.into(), place: None }),
            Err(Errno::NOENT) => Err(StoreError::NoBucket),
            // Below the directory that was probed, another file system is mounted.
            Err(Errno::NOTSUP | Errno::ISDIR) => Self::named(inner, bucket),
            Err(errno) => Err(super::tree::way_fault(errno, "cannot make file")),
        }
    }

    /// With a name in the bucket's `.forebay/tmp`. It is locked while it is in use: the sweep takes those that are not.
    pub(super) fn named(inner: &Inner, bucket: &str) -> StoreResult<Self> {
        loop {
            let dir = inner.own_dir(bucket, "tmp")?;
            let name = fresh_name();
            let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let file = match openat(&dir, &name, flags, FILE_MODE) {
                // The directory was removed since it was opened.
                Err(Errno::NOENT | Errno::EXIST) => continue,
                result => File::from(result.map_err(failed("cannot make file"))?),
            };
            // A sweep between the two calls has the lock, or had it and took the name.
            if !hold(inner, &file) {
                continue;
            }
            if super::tree::stat_file(&file).map_err(failed("cannot examine file"))?.stx_nlink > 0 {
                return Ok(Self { file, place: Some(OwnName { dir, name, stays: false }) });
            }
        }
    }

    /// A file that has a name already; it loses it, unless it becomes an object or is to keep it.
    pub(super) fn in_place(file: File, dir: OwnedFd, name: &str) -> Self {
        Self { file, place: Some(OwnName { dir, name: name.to_owned(), stays: false }) }
    }

    /// From now on the name stays when this is dropped.
    pub(super) fn keep_name(&mut self) {
        if let Some(place) = &mut self.place {
            place.stays = true;
        }
    }

    pub(super) fn write_at(&self, bytes: &[u8], offset: u64) -> StoreResult<()> {
        let write =
            || self.file.write_all_at(bytes, offset).map_err(|error| io_fault(&error, "cannot write file"));
        match write() {
            Err(StoreError::Full) if replaced::wait() => write(),
            written => written,
        }
    }

    /// Gives it a second name, which none has yet.
    pub(super) fn link_to(&self, dir: impl AsFd, name: &str) -> Result<(), Errno> {
        let linked = if let Some(place) = &self.place {
            linkat(&place.dir, &place.name, &dir, name, AtFlags::empty())
        } else {
            let path = format!("/proc/self/fd/{}", self.file.as_raw_fd());
            linkat(CWD, path, &dir, name, AtFlags::SYMLINK_FOLLOW)
        };
        // Over NFS a call whose reply was lost is sent again, and finds the name that it made.
        if linked == Err(Errno::EXIST) && self.is_at(&dir, name) { Ok(()) } else { linked }
    }

    fn is_at(&self, dir: impl AsFd, name: &str) -> bool {
        let (mine, there) = (super::tree::stat_file(&self.file), super::tree::stat_name(dir, name));
        matches!((mine, there), (Ok(mine), Ok(there))
            if mine.stx_ino == there.stx_ino && mine.stx_dev_minor == there.stx_dev_minor)
    }

    /// Moves it over a name, whatever is there.
    pub(super) fn rename_to(&mut self, dir: impl AsFd, name: &str) -> Result<(), Errno> {
        let Some(place) = &self.place else { return Err(Errno::NOENT) };
        match renameat(&place.dir, &place.name, &dir, name) {
            // Over NFS a call whose reply was lost is sent again, and finds its own work.
            Err(Errno::NOENT) if self.is_at(&dir, name) => {}
            result => result?,
        }
        self.place = None;
        Ok(())
    }

    /// Gives an unnamed file a name that it can be moved from.
    pub(super) fn give_name(&mut self, inner: &Inner, bucket: &str) -> StoreResult<()> {
        if self.place.is_some() {
            return Ok(());
        }
        // It has no name yet: no sweep has it.
        let _ = hold(inner, &self.file);
        let (dir, name) = (inner.own_dir(bucket, "tmp")?, fresh_name());
        self.link_to(&dir, &name).map_err(|errno| fault(errno, "cannot name file"))?;
        self.place = Some(OwnName { dir, name, stays: false });
        Ok(())
    }

    pub(super) fn has_name(&self) -> bool {
        self.place.is_some()
    }

    /// Removes its own name now.
    pub(super) fn forget_name(&mut self) {
        if let Some(place) = self.place.take() {
            // The sweep takes a name that stays.
            let _ = unlinkat(place.dir, place.name, AtFlags::empty());
        }
    }
}

impl Drop for Loose {
    fn drop(&mut self) {
        if self.place.as_ref().is_some_and(|place| !place.stays) {
            self.forget_name();
        }
    }
}

/// Locks a temporary file until it is closed; without locks the sweep goes by the file's age. `false`: another has it.
fn hold(inner: &Inner, file: &File) -> bool {
    !inner.abilities.locks || lock_range(file, LockKind::Alone, 0, 0, false) != Ok(false)
}

/// A name that no gateway uses: the time, a random number, a count.
pub(super) fn fresh_name() -> String {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let mut random = [0u8; 8];
    // Without random numbers the time and the count remain; a name that exists is refused.
    let _ = SystemRandom::new().fill(&mut random);
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos() as u64;
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    format!("{now:016x}{:016x}{:04x}", u64::from_ne_bytes(random), count & 0xffff)
}

/// The same as [`fault`] for an error of the standard library.
pub(super) fn io_fault(error: &std::io::Error, doing: &'static str) -> StoreError {
    match Errno::from_io_error(error) {
        Some(errno) => fault(errno, doing),
        None => StoreError::Other(forebay_error::Error::from_io(error, doing)),
    }
}

/// The path of the gateway's own directory in a bucket.
pub(super) fn own_path(bucket: &str, name: &str) -> String {
    format!("{bucket}/{OWN}/{name}")
}
