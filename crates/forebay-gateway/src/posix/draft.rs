//! An object that is written, and the step that gives it its name.

use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use forebay_error::{Error, ErrorKind};
use rustix::fs::{AtFlags, OFlags, Timespec, Timestamps, UTIME_OMIT, futimens};
use rustix::io::Errno;

use super::handed::{Handed, Returned};
use super::inner::Inner;
use super::loose::{Loose, io_fault};
use super::names::KeyPath;
use super::record::{self, Identity, Record};
use super::replaced;
use super::sys::LockKind;
use super::tree::{self, failed, fault, open_below, open_dir, stat_file, way_fault};
use crate::store::{Condition, Draft, Facts, Meta, Progress, StoreError, StoreResult, TakenBack};

/// How often a PUT makes its directories again that a DELETE beside it removes.
const DIRECTORY_TRIES: u32 = 100;
/// The first tries follow each other at once: they are enough where the DELETE came through the same mount. Another mount may take
/// a directory for there that is gone, for a second (MooseFS).
const TRIES_AT_ONCE: u32 = 20;
const TRY_PAUSE: Duration = Duration::from_millis(50);

/// Writes an object's bytes to a file without a name.
pub(super) struct FileDraft {
    inner: Arc<Inner>,
    target: Target,
    loose: Loose,
    /// Another process has it.
    handed: Option<Handed>,
}

/// Where an object goes.
#[derive(Clone, Debug)]
pub(super) struct Target {
    pub(super) bucket: String,
    pub(super) key: KeyPath,
}

impl Target {
    /// Of the directory that the object lies in, from the root.
    pub(super) fn parent(&self) -> String {
        match self.key.split() {
            ("", _) => self.bucket.clone(),
            (parent, _) => format!("{}/{parent}", self.bucket),
        }
    }

    /// Of the object, from the root.
    pub(super) fn path(&self) -> String {
        format!("{}/{}", self.bucket, self.key.path)
    }
}

impl FileDraft {
    pub(super) fn new(inner: &Arc<Inner>, target: Target) -> StoreResult<Self> {
        let loose = Loose::new(inner, &target.bucket, &target.parent())?;
        Ok(Self { inner: Arc::clone(inner), target, loose, handed: None })
    }
}

impl Draft for FileDraft {
    fn write_at(&self, bytes: &[u8], offset: u64) -> StoreResult<()> {
        let _user = self.inner.act()?;
        self.loose.write_at(bytes, offset)
    }

    fn copy_from(&self, source: &File, from: u64, len: u64, offset: u64) -> StoreResult<()> {
        let _user = self.inner.act()?;
        copy_range(source, from, len, &self.loose.file, offset)
    }

    fn hand_out(&mut self) -> StoreResult<Option<File>> {
        let _user = self.inner.act()?;
        let (handed, file) = Handed::out(&self.loose.file)?;
        self.handed = Some(handed);
        Ok(Some(file))
    }

    fn progress(&self) -> Option<Progress> {
        let stat = stat_file(&self.loose.file).ok()?;
        Some([stat.stx_size, stat.stx_blocks, Identity::new(&stat).mtime as u64])
    }

    fn take_back(self: Box<Self>, len: u64, copies: bool) -> StoreResult<TakenBack> {
        let _user = self.inner.act()?;
        let Some(handed) = &self.handed else { return Err(StoreError::Denied) };
        let (returned, found) = handed.returned(&self.loose.file)?;
        match returned {
            Returned::Open if !copies => return Ok(TakenBack::Open(self)),
            Returned::Fit => return Ok(TakenBack::Whole(self, found)),
            // It is refused: nothing of it is copied.
            _ if found != len => return Ok(TakenBack::Whole(self, found)),
            Returned::Open | Returned::Odd => {}
        }
        let copy = Self::new(&self.inner, self.target.clone())?;
        copy.copy_from(&self.loose.file, 0, len, 0)?;
        Ok(TakenBack::Whole(Box::new(copy), len))
    }

    fn publish(mut self: Box<Self>, len: u64, meta: Meta, condition: &Condition) -> StoreResult<Facts> {
        let _user = self.inner.act()?;
        let new = Sealed::new(&self.inner, &self.target, &self.loose.file, len, meta, None)?;
        place(&self.inner, &self.target, &mut self.loose, new, condition)
    }
}

/// Copies inside the file system where it can.
pub(super) fn copy_range(source: &File, from: u64, len: u64, to: &File, offset: u64) -> StoreResult<()> {
    let (mut from, mut offset, end) = (from, offset, from + len);
    while from < end {
        let want = (end - from).min(1 << 30) as usize;
        match rustix::fs::copy_file_range(source, Some(&mut from), to, Some(&mut offset), want) {
            Ok(0) => return Err(StoreError::Conflict),
            Ok(_) | Err(Errno::INTR) => {}
            Err(Errno::XDEV | Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP | Errno::BADF) => {
                return copy_bytes(source, from, end - from, to, offset);
            }
            Err(errno) => return Err(fault(errno, "cannot copy file")),
        }
    }
    Ok(())
}

fn copy_bytes(source: &File, mut from: u64, mut len: u64, to: &File, mut offset: u64) -> StoreResult<()> {
    use std::os::unix::fs::FileExt;
    let mut buffer = vec![0; (1 << 20).min(len as usize)];
    while len > 0 {
        let want = buffer.len().min(len as usize);
        let had = source
            .read_at(&mut buffer[..want], from)
            .map_err(|error| io_fault(&error, "cannot read file"))?;
        if had == 0 {
            return Err(StoreError::Conflict);
        }
        to.write_all_at(&buffer[..had], offset).map_err(|error| io_fault(&error, "cannot write file"))?;
        (from, offset, len) = (from + had as u64, offset + had as u64, len - had as u64);
    }
    Ok(())
}

/// A file whose bytes, time and record are final. Its record that lies aside goes when it never gets its name.
pub(super) struct Sealed<'a> {
    inner: &'a Inner,
    bucket: &'a str,
    facts: Facts,
    identity: Identity,
    is_placed: bool,
}

impl<'a> Sealed<'a> {
    pub(super) fn new(
        inner: &'a Inner,
        target: &'a Target,
        file: &File,
        len: u64,
        meta: Meta,
        upload: Option<String>,
    ) -> StoreResult<Self> {
        let stat = stat_file(file).map_err(failed("cannot examine file"))?;
        if stat.stx_size != len {
            file.set_len(len).map_err(|error| io_fault(&error, "cannot set length"))?;
        }
        let identity = stamp(file)?;
        let record = Record::new(inner, identity, meta, upload);
        record::write_first(inner, &target.bucket, &target.key.key(), file, identity, &record)?;
        let facts = record::facts(identity, record);
        let sealed = Self { inner, bucket: &target.bucket, facts, identity, is_placed: false };
        if inner.options.sync {
            // Not fdatasync: the ETag has the file's time, and attributes may stay behind.
            rustix::fs::fsync(file).map_err(failed("cannot sync file"))?;
        }
        Ok(sealed)
    }
}

impl Drop for Sealed<'_> {
    fn drop(&mut self) {
        if !self.is_placed {
            record::remove_aside(self.inner, self.bucket, &self.identity.etag());
        }
    }
}

/// Sets a time of the clock's own resolution. The kernel's, of 1 to 10 ms, is the same for files that follow each other, and a file
/// system gives a number again at once: two objects would have one ETag.
pub(super) fn stamp(file: &File) -> StoreResult<Identity> {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    let time = Timespec { tv_sec: now.as_secs() as i64, tv_nsec: i64::from(now.subsec_nanos()) as _ };
    let access = Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT };
    futimens(file, &Timestamps { last_access: access, last_modification: time })
        .map_err(failed("cannot set time"))?;
    Ok(Identity::new(&stat_file(file).map_err(failed("cannot examine file"))?))
}

/// Gives a file the name of its object.
pub(super) fn place(
    inner: &Inner,
    target: &Target,
    loose: &mut Loose,
    mut new: Sealed<'_>,
    condition: &Condition,
) -> StoreResult<Facts> {
    // link() refuses a name that is there: a lock is shared, and keeps the bucket alone.
    let by_etag = matches!(condition, Condition::Matches(_) | Condition::Differs(_));
    let kind = if by_etag { LockKind::Alone } else { LockKind::Shared };
    let _lock = inner.lock_key(&target.bucket, &target.key.key(), kind)?;
    check_etag(inner, target, condition)?;
    let parent = put_name(inner, target, loose, condition == &Condition::Absent)?;
    new.is_placed = true;
    if inner.options.sync {
        tree::sync_dir(&parent)?;
    }
    Ok(new.facts.clone())
}

/// Fails where the condition asks for another ETag than the object there has. The caller has the key's lock alone.
pub(super) fn check_etag(inner: &Inner, target: &Target, condition: &Condition) -> StoreResult<()> {
    let (Condition::Matches(_) | Condition::Differs(_)) = condition else { return Ok(()) };
    inner.require_locks()?;
    let holds = match (condition, super::read::open(inner, target)) {
        (Condition::Matches(etags), Ok(opened)) => {
            etags.iter().any(|etag| etag == "*" || *etag == opened.facts.etag)
        }
        (Condition::Differs(_), Err(StoreError::NoObject)) => true,
        (Condition::Differs(etag), Ok(opened)) => *etag != opened.facts.etag,
        (_, opened) => opened.map(|_| true)?,
    };
    if holds { Ok(()) } else { Err(StoreError::Precondition) }
}

/// Makes the name, and the directories above it. Returns the directory that has it.
fn put_name(inner: &Inner, target: &Target, loose: &mut Loose, only_new: bool) -> StoreResult<OwnedFd> {
    let name = target.key.split().1;
    for attempt in 0..DIRECTORY_TRIES {
        if attempt >= TRIES_AT_ONCE {
            std::thread::sleep(TRY_PAUSE);
        }
        let parent = match open_dir(&inner.root, &target.parent()) {
            Ok(parent) => parent,
            Err(Errno::NOENT) => {
                make_parents(inner, target)?;
                continue;
            }
            Err(errno) => return Err(way_fault(errno, "cannot open directory")),
        };
        let named = match loose.link_or_move(inner, &target.bucket, &parent, name, only_new)? {
            Ok(()) => return Ok(parent),
            Err(errno) => errno,
        };
        match named {
            // The directory was removed since it was opened.
            Errno::NOENT => {}
            Errno::EXIST | Errno::ISDIR | Errno::NOTEMPTY => {
                refuse_name(inner, target, &parent, only_new)?;
            }
            errno => return Err(way_fault(errno, "cannot name object")),
        }
    }
    // SDKs ask again behind 503, and do not behind 409.
    let error = Error::new(ErrorKind::Busy, "directories of the key go while the object is named");
    Err(StoreError::Later(error))
}

/// Another thing has the name. An empty directory that is no object gives way; the reason otherwise.
fn refuse_name(inner: &Inner, target: &Target, parent: impl AsFd, only_new: bool) -> StoreResult<()> {
    let Ok(stat) = tree::stat_name(&parent, target.key.split().1) else { return Ok(()) };
    if !tree::is_dir(&stat) {
        return if only_new { Err(StoreError::Precondition) } else { Ok(()) };
    }
    if inner.remove_empty(&target.bucket, &target.key.path, false)? {
        return Ok(());
    }
    Err(StoreError::Key("there are keys below it: a directory has its name"))
}

fn make_parents(inner: &Inner, target: &Target) -> StoreResult<()> {
    let bucket = inner.open_bucket(&target.bucket)?;
    match tree::make_dirs(inner, &bucket, target.key.split().0) {
        // A DELETE beside it removed one: the caller tries again.
        Err(StoreError::NoBucket) => Ok(()),
        result => result,
    }
}

impl Loose {
    /// `Err` inside: the file system's answer about the name.
    fn link_or_move(
        &mut self,
        inner: &Inner,
        bucket: &str,
        parent: impl AsFd,
        name: &str,
        only_new: bool,
    ) -> StoreResult<Result<(), Errno>> {
        if only_new || !self.has_name() {
            match self.link_to(&parent, name) {
                Ok(()) => {
                    self.forget_name();
                    return Ok(Ok(()));
                }
                Err(Errno::EXIST) if !only_new => {}
                Err(errno) => return Ok(Err(errno)),
            }
        }
        self.give_name(inner, bucket)?;
        let replaced = replaced::hold(&parent, name);
        let renamed = self.rename_to(parent, name);
        if let Some(old) = replaced.filter(|_| renamed.is_ok()) {
            replaced::free(old);
        }
        Ok(renamed)
    }
}

/// Removes an object's name; the directories above it that are empty then go too.
pub(super) fn remove(inner: &Inner, target: &Target, condition: &Condition) -> StoreResult<()> {
    let lock = inner.lock_key(&target.bucket, &target.key.key(), LockKind::Alone)?;
    check_etag(inner, target, condition)?;
    let parent = match open_dir(&inner.root, &target.parent()) {
        Ok(parent) => parent,
        Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP | Errno::XDEV) => {
            return inner.open_bucket(&target.bucket).map(drop);
        }
        Err(errno) => return Err(fault(errno, "cannot open directory")),
    };
    let path = target.path();
    let aside = open_below(&inner.root, &path, OFlags::PATH).and_then(stat_file).ok();
    match rustix::fs::unlinkat(&parent, target.key.split().1, AtFlags::empty()) {
        Ok(()) => {}
        // A directory is no object of this key. Others made the directories above it.
        Err(Errno::NOENT | Errno::ISDIR | Errno::NOTDIR) => return Ok(()),
        Err(errno) => return Err(fault(errno, "cannot remove file")),
    }
    if let Some(stat) = aside {
        record::remove_aside(inner, &target.bucket, &Identity::new(&stat).etag());
    }
    if inner.options.sync {
        tree::sync_dir(&parent)?;
    }
    drop(lock);
    inner.remove_empty_parents(&target.bucket, &target.key.path)
}
