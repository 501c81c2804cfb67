//! Buckets: the directories below the root that have a name that S3 allows.

use std::os::fd::OwnedFd;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustix::fs::{AtFlags, Dir, OFlags, Statx, StatxFlags, mkdirat, unlinkat};
use rustix::io::Errno;

use super::inner::Inner;
use super::lock::LOCK_FILE;
use super::names::{OWN, check_bucket, is_key};
use super::sys::{LockKind, lock_range};
use super::tree::{self, DIR_MODE, failed, fault, names, open_below};
use crate::store::{BucketFacts, StoreError, StoreResult};

/// All that the account may list, by their names: those that it may not are others'.
pub(super) fn all(inner: &Inner) -> StoreResult<Vec<BucketFacts>> {
    let root = open_below(&inner.root, ".", OFlags::RDONLY | OFlags::DIRECTORY)
        .map_err(failed("cannot open directory"))?;
    let mut names: Vec<String> =
        names(&root)?.into_iter().filter(|name| check_bucket(name).is_ok()).collect();
    names.sort();
    let mut all = Vec::new();
    for name in &names {
        match open_below(&root, name, OFlags::RDONLY | OFlags::DIRECTORY) {
            Ok(dir) => all.push(facts_of(name, &dir)?),
            // One that goes meanwhile is left out, as is a file.
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP | Errno::XDEV | Errno::ACCESS) => {}
            Err(errno) => return Err(fault(errno, "cannot open bucket")),
        }
    }
    Ok(all)
}

fn facts_of(name: &str, dir: &OwnedFd) -> StoreResult<BucketFacts> {
    let stat = tree::stat_file(dir).map_err(failed("cannot examine bucket"))?;
    Ok(BucketFacts { name: name.to_owned(), created: created(&stat) })
}

/// One of them.
pub(super) fn facts(inner: &Inner, bucket: &str) -> StoreResult<BucketFacts> {
    check_bucket(bucket)?;
    facts_of(bucket, &inner.open_bucket(bucket)?)
}

fn created(stat: &Statx) -> SystemTime {
    let has_birth = stat.stx_mask & StatxFlags::BTIME.bits() != 0;
    let time = if has_birth { stat.stx_btime } else { stat.stx_mtime };
    UNIX_EPOCH + Duration::new(time.tv_sec.max(0) as u64, time.tv_nsec)
}

/// Makes one.
pub(super) fn make(inner: &Inner, bucket: &str) -> StoreResult<()> {
    check_bucket(bucket)?;
    match mkdirat(&inner.root, bucket, DIR_MODE) {
        Ok(()) if inner.options.sync => tree::sync_dir(&inner.root),
        Ok(()) => Ok(()),
        Err(Errno::EXIST) => {
            let is_ours = open_below(&inner.root, bucket, OFlags::RDONLY | OFlags::DIRECTORY).is_ok();
            Err(if is_ours { StoreError::BucketExists } else { StoreError::BucketTaken })
        }
        Err(errno) => Err(fault(errno, "cannot make bucket")),
    }
}

/// Removes one that has no objects. Directories without objects, as other programs make them, go with it, and so do unfinished uploads.
/// One that is not empty stays as it is.
pub(super) fn remove(inner: &Inner, bucket: &str) -> StoreResult<()> {
    check_bucket(bucket)?;
    let dir = inner.open_bucket(bucket)?;
    let _lock = lock_all(inner, bucket)?;
    if !has_only_dirs(inner, bucket, &dir, "")? {
        return Err(StoreError::BucketFull);
    }
    remove_dirs(&dir, true)?;
    remove_own(&dir)?;
    match unlinkat(&inner.root, bucket, AtFlags::REMOVEDIR) {
        Ok(()) if inner.options.sync => tree::sync_dir(&inner.root),
        Ok(()) => Ok(()),
        // Another program made a name at this moment.
        Err(Errno::NOTEMPTY | Errno::EXIST) => Err(StoreError::BucketFull),
        Err(Errno::NOENT) => Err(StoreError::NoBucket),
        Err(errno) => Err(fault(errno, "cannot remove bucket")),
    }
}

/// Whether all below a directory are directories that are no objects. It ends at the first other name.
fn has_only_dirs(inner: &Inner, bucket: &str, dir: &OwnedFd, path: &str) -> StoreResult<bool> {
    let dir =
        open_below(dir, ".", OFlags::RDONLY | OFlags::DIRECTORY).map_err(failed("cannot open directory"))?;
    for entry in Dir::read_from(&dir).map_err(failed("cannot read directory"))? {
        let entry = entry.map_err(failed("cannot read directory"))?;
        let name = match entry.file_name().to_str() {
            Ok("." | "..") => continue,
            Ok(name) if path.is_empty() && name == OWN => continue,
            Ok(name) => name,
            Err(_) => return Ok(false),
        };
        let path = if path.is_empty() { name.to_owned() } else { format!("{path}/{name}") };
        // No key is deeper: another program made it.
        if !is_key(&path) {
            return Ok(false);
        }
        match open_below(&dir, name, OFlags::RDONLY | OFlags::DIRECTORY) {
            Ok(below) => {
                let is_object = super::folder::marked(inner, bucket, &path, &below)?.is_some();
                if is_object || !has_only_dirs(inner, bucket, &below, &path)? {
                    return Ok(false);
                }
            }
            Err(Errno::NOENT) => {}
            Err(Errno::NOTDIR | Errno::LOOP | Errno::XDEV | Errno::ACCESS) => return Ok(false),
            Err(errno) => return Err(fault(errno, "cannot open directory")),
        }
    }
    Ok(true)
}

/// Locks every key: who changes one at this moment keeps the bucket.
fn lock_all(inner: &Inner, bucket: &str) -> StoreResult<Option<OwnedFd>> {
    if !inner.abilities.locks {
        return Ok(None);
    }
    let file = inner.lock_file(bucket)?;
    match lock_range(&file, LockKind::Alone, 0, 0, false) {
        Ok(true) => Ok(Some(file)),
        Ok(false) => Err(StoreError::Conflict),
        Err(errno) => Err(fault(errno, "cannot lock bucket")),
    }
}

/// Removes the empty directories below one.
fn remove_dirs(dir: &OwnedFd, is_bucket: bool) -> StoreResult<()> {
    let dir =
        open_below(dir, ".", OFlags::RDONLY | OFlags::DIRECTORY).map_err(failed("cannot open directory"))?;
    for name in names(&dir)? {
        if is_bucket && name == OWN {
            continue;
        }
        if let Ok(below) = open_below(&dir, &name, OFlags::RDONLY | OFlags::DIRECTORY) {
            remove_dirs(&below, false)?;
            // One that is not empty keeps the bucket.
            let _ = unlinkat(&dir, &name, AtFlags::REMOVEDIR);
        }
    }
    Ok(())
}

/// Removes the gateway's own directory.
fn remove_own(bucket: &OwnedFd) -> StoreResult<()> {
    let own = match open_below(bucket, OWN, OFlags::RDONLY | OFlags::DIRECTORY) {
        Ok(own) => own,
        Err(Errno::NOENT) => return Ok(()),
        Err(errno) => return Err(fault(errno, "cannot open directory")),
    };
    if let Ok(uploads) = open_below(&own, "uploads", OFlags::RDONLY | OFlags::DIRECTORY) {
        for id in names(&uploads)? {
            super::uploads::clear_dir(&uploads, &id)?;
        }
    }
    for name in ["tmp", "meta", "uploads"] {
        if let Ok(dir) = open_below(&own, name, OFlags::RDONLY | OFlags::DIRECTORY) {
            for file in names(&dir)? {
                let _ = unlinkat(&dir, &file, AtFlags::empty());
            }
            let _ = unlinkat(&own, name, AtFlags::REMOVEDIR);
        }
    }
    let _ = unlinkat(&own, LOCK_FILE, AtFlags::empty());
    let _ = unlinkat(bucket, OWN, AtFlags::REMOVEDIR);
    Ok(())
}
