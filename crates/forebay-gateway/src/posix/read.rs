//! Objects that are there.

use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;

use rustix::fs::{FileType, OFlags, Statx};
use rustix::io::Errno;

use super::draft::Target;
use super::inner::Inner;
use super::record::{self, Identity, Record};
use super::sys::LockKind;
use super::tree::{self, failed, fault, fault_of_open, open_below, stat_file};
use crate::store::{Facts, Meta, Opened, StoreError, StoreResult};

/// Opens an object for reading.
pub(super) fn open(inner: &Inner, target: &Target) -> StoreResult<Opened> {
    let (file, identity, record) = open_file(inner, target)?;
    Ok(Opened { file, facts: record::facts(identity, record) })
}

/// The same, with the record whole.
pub(super) fn open_file(inner: &Inner, target: &Target) -> StoreResult<(File, Identity, Record)> {
    tree::again_when_stale(|| open_once(inner, target))
}

fn open_once(inner: &Inner, target: &Target) -> StoreResult<(File, Identity, Record)> {
    if target.key.is_folder {
        return super::folder::open(inner, target);
    }
    // A FIFO does not wait for its writer.
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY;
    let file =
        open_below(&inner.root, &target.path(), flags).map_err(|errno| absent(inner, target, errno))?;
    let stat = stat_file(&file).map_err(fault_of_open("cannot examine file"))?;
    if !is_file(&stat) {
        return Err(StoreError::NoObject);
    }
    let identity = Identity::new(&stat);
    let attribute = record::read_attribute(&file).map_err(fault_of_open("cannot read attribute"))?;
    let record = record::record(inner, &target.bucket, identity, attribute.as_deref())?;
    let file = File::from(file);
    if !inner.abilities.unnamed_files && identity.size > 0 {
        touch(&file)?;
    }
    Ok((file, identity, record))
}

/// Reads a byte. A file system behind a daemon, which has no unnamed files either, may open a file when it is read first: a file that was
/// replaced meanwhile is to fail here, and not behind the head of an answer.
fn touch(file: &File) -> StoreResult<()> {
    match file.read_at(&mut [0], 0) {
        Ok(_) => Ok(()),
        Err(error) => {
            Err(fault_of_open("cannot read file")(Errno::from_io_error(&error).unwrap_or(Errno::IO)))
        }
    }
}

pub(super) fn is_file(stat: &Statx) -> bool {
    FileType::from_raw_mode(u32::from(stat.stx_mode)) == FileType::RegularFile
}

/// What it means that a path cannot be opened for reading.
pub(super) fn absent(inner: &Inner, target: &Target, errno: Errno) -> StoreError {
    match errno {
        // Links, sockets, and what lies behind a link are no objects.
        Errno::NOENT | Errno::NOTDIR | Errno::LOOP | Errno::XDEV | Errno::NXIO | Errno::ISDIR => {
            inner.open_bucket(&target.bucket).err().unwrap_or(StoreError::NoObject)
        }
        Errno::NAMETOOLONG => StoreError::NoObject,
        errno => fault(errno, "cannot open file"),
    }
}

/// Says other things of an object.
pub(super) fn describe(
    inner: &Inner,
    target: &Target,
    etag: Option<&str>,
    change: &dyn Fn(&mut Meta),
) -> StoreResult<Facts> {
    let _lock = inner.lock_key(&target.bucket, &target.key.key(), LockKind::Alone)?;
    let (file, identity, record) = open_file(inner, target)?;
    if etag.is_some_and(|etag| etag != record::facts(identity, record.clone()).etag) {
        return Err(StoreError::Conflict);
    }
    let mut meta = record.meta.clone();
    change(&mut meta);
    // What the store itself knows of the bytes is not for others to change.
    (meta.md5, meta.parts) = (record.meta.md5.clone(), record.meta.parts.clone());
    meta.part_sums.clone_from(&record.meta.part_sums);
    let record = record.with(identity, meta);
    record::write(inner, &target.bucket, &target.key.key(), &file, identity, &record, false)?;
    if inner.options.sync {
        sync(&file)?;
    }
    Ok(record::facts(identity, record))
}

fn sync(file: &File) -> StoreResult<()> {
    rustix::fs::fsync(file).map_err(failed("cannot sync file"))
}

/// An open descriptor of a bucket's directory, for paths alone.
pub(super) fn bucket_dir(inner: &Inner, bucket: &str) -> StoreResult<OwnedFd> {
    match tree::open_dir(&inner.root, bucket) {
        Ok(dir) => Ok(dir),
        Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP | Errno::XDEV) => Err(StoreError::NoBucket),
        Err(errno) => Err(fault(errno, "cannot open bucket")),
    }
}
