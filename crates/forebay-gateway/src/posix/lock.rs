//! Locks of keys, between gateways too: a byte of the bucket's lock file each.

use std::os::fd::{AsFd, OwnedFd};

use forebay_error::{Error, ErrorKind};
use ring::digest::{SHA256, digest};
use rustix::fs::{AtFlags, Mode, OFlags, fchmod, mkdirat, unlinkat};
use rustix::io::Errno;

use super::inner::Inner;
use super::loose::{Loose, own_path};
use super::names::OWN;
use super::sys::{LockKind, lock_range};
use super::tree::{self, DIR_MODE, failed, fault, open_below, open_dir};
use crate::store::{StoreError, StoreResult};

/// The name of the lock file in a bucket's `.forebay`.
pub(super) const LOCK_FILE: &str = "lock";

impl Inner {
    pub(super) fn open_bucket(&self, bucket: &str) -> StoreResult<OwnedFd> {
        super::read::bucket_dir(self, bucket)
    }

    /// A directory in the bucket's `.forebay`. It is made when it is missing; who may write in the bucket may write there.
    pub(super) fn own_dir(&self, bucket: &str, name: &str) -> StoreResult<OwnedFd> {
        match open_dir(&self.root, &own_path(bucket, name)) {
            Err(Errno::NOENT) => {}
            result => return result.map_err(failed("cannot open directory")),
        }
        let dir = self.open_bucket(bucket)?;
        let mode = Mode::from_raw_mode(
            u32::from(tree::stat_file(&dir).map_err(failed("cannot examine bucket"))?.stx_mode) & 0o3777,
        );
        let own = self.make_like(&dir, OWN, mode)?;
        self.make_like(&own, name, mode)
    }

    /// Locks a key until the file is closed. `None`: the file system has no locks.
    pub(super) fn lock_key(&self, bucket: &str, key: &str, kind: LockKind) -> StoreResult<Option<OwnedFd>> {
        if !self.abilities.locks {
            return Ok(None);
        }
        let hash = digest(&SHA256, key.as_bytes());
        let place = hash.as_ref()[..8].iter().fold(0u64, |sum, byte| sum << 8 | u64::from(*byte)) >> 2;
        loop {
            let file = self.lock_file(bucket)?;
            lock_range(&file, kind, place, 1, true).map_err(failed("cannot lock key"))?;
            // The bucket was removed and made again while this waited.
            if tree::stat_file(&file).map_err(failed("cannot examine lock"))?.stx_nlink > 0 {
                return Ok(Some(file));
            }
        }
    }

    pub(super) fn lock_file(&self, bucket: &str) -> StoreResult<OwnedFd> {
        let path = own_path(bucket, LOCK_FILE);
        loop {
            match open_below(&self.root, &path, OFlags::RDWR) {
                Err(Errno::NOENT) => self.make_lock_file(bucket)?,
                result => return result.map_err(failed("cannot open lock file")),
            }
        }
    }

    fn make_lock_file(&self, bucket: &str) -> StoreResult<()> {
        let dir = self.open_bucket(bucket)?;
        let mode =
            u32::from(tree::stat_file(&dir).map_err(failed("cannot examine bucket"))?.stx_mode) & 0o666;
        let loose = Loose::named(self, bucket)?;
        fchmod(&loose.file, Mode::from_raw_mode(mode | 0o600)).map_err(failed("cannot set mode"))?;
        let own =
            open_dir(&self.root, &format!("{bucket}/{OWN}")).map_err(failed("cannot open directory"))?;
        match loose.link_to(&own, LOCK_FILE) {
            Ok(()) | Err(Errno::EXIST | Errno::NOENT) => Ok(()),
            Err(errno) => Err(fault(errno, "cannot make lock file")),
        }
    }

    /// Fails where the file system has no locks: a condition on an ETag cannot be kept there.
    pub(super) fn require_locks(&self) -> StoreResult<()> {
        if self.abilities.locks {
            return Ok(());
        }
        let error = Error::new(ErrorKind::Unsupported, "cannot check If-Match: the file system has no locks");
        Err(StoreError::Other(error.hint("mount it with locks, or leave If-Match out")))
    }

    /// Removes a directory that is empty and no object; `only_made`: and that a gateway made. `true`: the name is free.
    pub(super) fn remove_empty(&self, bucket: &str, path: &str, only_made: bool) -> StoreResult<bool> {
        let _lock = self.lock_key(bucket, &format!("{path}/"), LockKind::Alone)?;
        let dir =
            match open_below(&self.root, &format!("{bucket}/{path}"), OFlags::RDONLY | OFlags::DIRECTORY) {
                Ok(dir) => dir,
                Err(Errno::NOENT) => return Ok(true),
                Err(_) => return Ok(false),
            };
        if (only_made && !tree::is_made(self, &dir))
            || super::folder::marked(self, bucket, path, &dir)?.is_some()
        {
            return Ok(false);
        }
        let (above, name) = path.rsplit_once('/').unwrap_or((".", path));
        let above = open_below(&self.open_bucket(bucket)?, above, OFlags::PATH | OFlags::DIRECTORY);
        let removed = above.and_then(|above| unlinkat(above, name, AtFlags::REMOVEDIR));
        Ok(matches!(removed, Ok(()) | Err(Errno::NOENT)))
    }

    /// Removes the directories above a key that gateways made and that are empty now.
    pub(super) fn remove_empty_parents(&self, bucket: &str, path: &str) -> StoreResult<()> {
        let mut path = path;
        while let Some((above, _)) = path.rsplit_once('/') {
            if !self.remove_empty(bucket, above, true)? {
                return Ok(());
            }
            path = above;
        }
        Ok(())
    }

    /// Makes a directory with this mode, whatever the umask is; one that is there stays as it is.
    fn make_like(&self, above: impl AsFd, name: &str, mode: Mode) -> StoreResult<OwnedFd> {
        let made = mkdirat(&above, name, DIR_MODE);
        if let Err(errno) = made
            && errno != Errno::EXIST
        {
            let gone = errno == Errno::NOENT;
            return Err(if gone { StoreError::NoBucket } else { fault(errno, "cannot make directory") });
        }
        let dir = open_below(&above, name, OFlags::RDONLY | OFlags::DIRECTORY)
            .map_err(failed("cannot open directory"))?;
        if made.is_ok() {
            fchmod(&dir, mode).map_err(failed("cannot set mode"))?;
        }
        if self.options.sync {
            tree::sync_dir(&above)?;
        }
        Ok(dir)
    }
}
