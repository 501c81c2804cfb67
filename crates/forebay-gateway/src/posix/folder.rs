//! Keys that end in `/`: directories that carry a record. Directories without one are no objects.

use std::fs::File;
use std::os::fd::AsFd;
use std::sync::Arc;

use rustix::fs::OFlags;
use rustix::io::Errno;

use super::draft::{Target, check_etag};
use super::inner::Inner;
use super::record::{self, ATTRIBUTE, Identity, Record};
use super::sys::LockKind;
use super::tree::{self, failed, fault, open_below};
use crate::store::{Condition, Draft, Facts, Meta, StoreError, StoreResult};

/// Makes a directory that is an object.
pub(super) struct FolderDraft {
    inner: Arc<Inner>,
    target: Target,
}

impl FolderDraft {
    pub(super) fn new(inner: &Arc<Inner>, target: Target) -> StoreResult<Self> {
        inner.open_bucket(&target.bucket)?;
        Ok(Self { inner: Arc::clone(inner), target })
    }
}

const NO_BYTES: StoreError = StoreError::Key("it ends in /, so that its object has no bytes");

impl Draft for FolderDraft {
    fn write_at(&self, bytes: &[u8], _offset: u64) -> StoreResult<()> {
        if bytes.is_empty() { Ok(()) } else { Err(NO_BYTES) }
    }

    fn copy_from(&self, _source: &File, _from: u64, len: u64, _offset: u64) -> StoreResult<()> {
        if len == 0 { Ok(()) } else { Err(NO_BYTES) }
    }

    fn publish(self: Box<Self>, len: u64, meta: Meta, condition: &Condition) -> StoreResult<Facts> {
        let _user = self.inner.act()?;
        if len > 0 {
            return Err(NO_BYTES);
        }
        make(&self.inner, &self.target, meta, condition)
    }
}

fn make(inner: &Inner, target: &Target, meta: Meta, condition: &Condition) -> StoreResult<Facts> {
    let _lock = inner.lock_key(&target.bucket, &target.key.key(), LockKind::Alone)?;
    if condition == &Condition::Absent {
        match open(inner, target) {
            Ok(_) => return Err(StoreError::Precondition),
            Err(StoreError::NoObject) => {}
            Err(error) => return Err(error),
        }
    }
    check_etag(inner, target, condition)?;
    let bucket = inner.open_bucket(&target.bucket)?;
    let dir = loop {
        tree::make_dirs(inner, &bucket, &target.key.path)?;
        match open_below(&bucket, &target.key.path, OFlags::RDONLY | OFlags::DIRECTORY) {
            Ok(dir) => break dir,
            // A DELETE beside it removed one above.
            Err(Errno::NOENT) => {}
            Err(errno) => return Err(tree::way_fault(errno, "cannot open directory")),
        }
    };
    let identity =
        Identity::folder_now(tree::stat_file(&dir).map_err(failed("cannot examine directory"))?.stx_ino);
    let record = Record::new(inner, identity, meta, None);
    let once = condition == &Condition::Absent;
    record::write(inner, &target.bucket, &target.key.key(), &dir, identity, &record, once)?;
    if inner.options.sync {
        rustix::fs::fsync(&dir).map_err(failed("cannot sync directory"))?;
    }
    Ok(record::facts(identity, record))
}

/// Opens a directory that is an object.
pub(super) fn open(inner: &Inner, target: &Target) -> StoreResult<(File, Identity, Record)> {
    let path = target.path();
    let dir = open_below(&inner.root, &path, OFlags::RDONLY | OFlags::DIRECTORY)
        .map_err(|errno| super::read::absent(inner, target, errno))?;
    let (identity, record) =
        marked(inner, &target.bucket, &target.key.path, &dir)?.ok_or(StoreError::NoObject)?;
    Ok((dir.into(), identity, record))
}

/// The record of an open directory that is an object; `None` where it is a directory alone.
pub(super) fn marked(
    inner: &Inner,
    bucket: &str,
    path: &str,
    dir: impl AsFd,
) -> StoreResult<Option<(Identity, Record)>> {
    let attribute = record::read_attribute(&dir).map_err(failed("cannot read attribute"))?;
    if attribute.is_none() && inner.abilities.attribute_room > 0 {
        return Ok(None);
    }
    let ino = tree::stat_file(&dir).map_err(failed("cannot examine directory"))?.stx_ino;
    record::folder(inner, bucket, path, ino, attribute.as_deref())
}

/// Removes the mark; the directory goes too when it is empty.
pub(super) fn remove(inner: &Inner, target: &Target, condition: &Condition) -> StoreResult<()> {
    let lock = inner.lock_key(&target.bucket, &target.key.key(), LockKind::Alone)?;
    match open(inner, target) {
        Ok((dir, identity, _)) => {
            check_etag(inner, target, condition)?;
            unmark(inner, target, &dir, identity)?;
        }
        Err(StoreError::NoObject) if matches!(condition, Condition::Matches(_)) => {
            return Err(StoreError::NoObject);
        }
        Err(StoreError::NoObject) => return Ok(()),
        Err(error) => return Err(error),
    }
    drop(lock);
    inner.remove_empty(&target.bucket, &target.key.path, true)?;
    inner.remove_empty_parents(&target.bucket, &target.key.path)
}

fn unmark(inner: &Inner, target: &Target, dir: &File, identity: Identity) -> StoreResult<()> {
    match rustix::fs::fremovexattr(dir, ATTRIBUTE) {
        Ok(()) | Err(Errno::NODATA | Errno::NOTSUP) => {}
        Err(errno) => return Err(fault(errno, "cannot remove attribute")),
    }
    record::remove_aside(inner, &target.bucket, &record::folder_name(&target.key.path, identity.ino));
    Ok(())
}
