//! What gateways leave that were killed, and uploads that nobody finishes.

use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustix::fs::{AtFlags, OFlags, unlinkat};
use rustix::io::Errno;

use super::draft::Target;
use super::inner::Inner;
use super::loose::own_path;
use super::names::KeyPath;
use super::record::{Identity, folder_name, read_aside, remove_aside};
use super::sys::{LockKind, lock_range};
use super::tree::{names, open_below, stat_file, stat_name};
use crate::store::{BucketFacts, StoreResult, Swept};

/// Sweeps buckets. One that cannot be swept does not keep the others; the first error is the result.
pub(super) fn all(inner: &Inner, buckets: &[BucketFacts], age: Duration) -> StoreResult<Swept> {
    let (mut sum, mut first_error) = (Swept::default(), None);
    for bucket in buckets {
        match sweep(inner, &bucket.name, age) {
            Ok(swept) => {
                sum.uploads += swept.uploads;
                sum.temporaries += swept.temporaries;
                sum.records += swept.records;
            }
            Err(error) => first_error = first_error.or(Some(error)),
        }
    }
    first_error.map_or(Ok(sum), Err)
}

/// Sweeps one bucket; what is younger than `age` stays, save temporary files that no lock holds.
fn sweep(inner: &Inner, bucket: &str, age: Duration) -> StoreResult<Swept> {
    let before = SystemTime::now().checked_sub(age).unwrap_or(UNIX_EPOCH);
    Ok(Swept {
        uploads: super::uploads::sweep(inner, bucket, before)?,
        temporaries: temporaries(inner, bucket, before)?,
        records: records(inner, bucket, before)?,
    })
}

fn own(inner: &Inner, bucket: &str, name: &str) -> Option<OwnedFd> {
    open_below(&inner.root, &own_path(bucket, name), OFlags::RDONLY | OFlags::DIRECTORY).ok()
}

/// Whether a name's file was written before a time.
pub(super) fn is_older(dir: impl AsFd, name: &str, before: SystemTime) -> bool {
    stat_name(dir, name).is_ok_and(|stat| {
        UNIX_EPOCH + Duration::new(stat.stx_mtime.tv_sec.max(0) as u64, stat.stx_mtime.tv_nsec) < before
    })
}

fn temporaries(inner: &Inner, bucket: &str, before: SystemTime) -> StoreResult<usize> {
    let Some(dir) = own(inner, bucket, "tmp") else { return Ok(0) };
    let unlink = |name: &str| unlinkat(&dir, name, AtFlags::empty()).is_ok();
    let take = |name: &str| {
        if !inner.abilities.locks {
            return is_older(&dir, name, before) && unlink(name);
        }
        // Locked until the name is gone: a gateway that makes the file at this moment sees it.
        let Ok(file) = open_below(&dir, name, OFlags::RDWR | OFlags::NONBLOCK) else { return false };
        lock_range(&file, LockKind::Alone, 0, 0, false) == Ok(true) && unlink(name)
    };
    Ok(names(&dir)?.iter().filter(|name| take(name)).count())
}

fn records(inner: &Inner, bucket: &str, before: SystemTime) -> StoreResult<usize> {
    let Some(dir) = own(inner, bucket, "meta") else { return Ok(0) };
    let mut swept = 0;
    for name in names(&dir)? {
        if is_older(&dir, &name, before) && is_unused(inner, bucket, &name) {
            remove_aside(inner, bucket, &name);
            swept += 1;
        }
    }
    Ok(swept)
}

/// Whether the key that a record was written for has another file than the one that it describes. One that cannot be read stays.
fn is_unused(inner: &Inner, bucket: &str, name: &str) -> bool {
    let key = match read_aside(inner, bucket, name) {
        Ok(aside) => aside.and_then(|aside| KeyPath::new(&aside.key).ok()),
        Err(_) => return false,
    };
    let Some(key) = key else { return true };
    let target = Target { bucket: bucket.to_owned(), key };
    match open_below(&inner.root, &target.path(), OFlags::PATH).and_then(stat_file) {
        Ok(stat) => {
            let identity = Identity::new(&stat);
            let expected = if target.key.is_folder {
                folder_name(&target.key.path, identity.ino)
            } else {
                identity.etag()
            };
            name != expected
        }
        Err(errno) => matches!(errno, Errno::NOENT | Errno::NOTDIR),
    }
}
