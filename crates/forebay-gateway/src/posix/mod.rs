//! Objects in a directory: a bucket is a directory in it, a key a path below that.
//!
//! All state is in the file system: what a bucket needs beside its objects lies in its `.forebay`, which is never listed and no key.
//! Any number of stores, in any number of processes and on any number of machines, may work on one directory.

mod bucket;
mod draft;
mod examine;
mod folder;
mod handed;
mod inner;
mod lend;
mod list;
mod lock;
mod loose;
mod mounts;
mod names;
mod parts;
mod probe;
mod read;
mod record;
mod replaced;
mod runs;
mod sweep;
mod sys;
mod tree;
mod uploads;

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use forebay_error::{Error, ErrorKind};
use rustix::fs::{AtFlags, CWD, Mode, OFlags, ResolveFlags, StatxFlags, openat, openat2};

use self::draft::{FileDraft, Target};
use self::folder::FolderDraft;
use self::inner::Inner;
use self::names::{KeyPath, check_bucket};
use self::parts::PartDraft;
use self::tree::failed;
use crate::store::{
    BucketFacts, Checksum, Condition, Draft, Facts, Lent, ListAsk, ListPage, Meta, Opened, PartFacts, Store,
    StoreError, StoreResult, Swept, UploadFacts, UploadsAsk, UploadsPage,
};

pub use examine::{MountFact, MountReport, MountState, OperationWay, examine};
pub use inner::{Abilities, Options};
pub use probe::probe;
pub use sys::User;

/// Objects in a directory.
pub struct PosixStore {
    inner: Arc<Inner>,
}

impl PosixStore {
    /// A store over a directory that is there.
    pub fn open(dir: &Path, options: Options) -> StoreResult<Self> {
        Self::open_below(dir, Path::new(""), options)
    }

    /// A store over a directory below another one. No link on the way from there is followed: users may have made it.
    pub fn open_below(base: &Path, dir: &Path, options: Options) -> StoreResult<Self> {
        let is_own = |user: User| user.uid == rustix::process::geteuid().as_raw();
        if !rustix::process::geteuid().is_root() && options.user.is_some_and(|user| !is_own(user)) {
            let error = Error::new(ErrorKind::PermissionDenied, "cannot act for another user")
                .with("dir", base.join(dir).display());
            return Err(StoreError::Other(error.hint("start the gateway as root, or leave uid and gid out")));
        }
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let base = openat(CWD, base, flags, Mode::empty()).map_err(failed("cannot open directory"))?;
        let dir = if dir.as_os_str().is_empty() { Path::new(".") } else { dir };
        let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
        let root =
            openat2(&base, dir, flags, Mode::empty(), resolve).map_err(failed("cannot open directory"))?;
        let abilities = options.abilities.map_or_else(|| probe::probe_open(&root), Ok)?;
        let view = mounts::read_only_tree(&root);
        let (name_runs, full_dirs) = Default::default();
        Ok(Self { inner: Arc::new(Inner { root, view, options, abilities, name_runs, full_dirs }) })
    }

    /// What the file system of the directory can do.
    pub fn abilities(&self) -> Abilities {
        self.inner.abilities
    }
}

fn target(bucket: &str, key: &str) -> StoreResult<Target> {
    check_bucket(bucket)?;
    Ok(Target { bucket: bucket.to_owned(), key: KeyPath::new(key)? })
}

impl Store for PosixStore {
    fn look(&self) -> StoreResult<()> {
        let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_FORCE_SYNC;
        rustix::fs::statx(&self.inner.root, "", flags, StatxFlags::BASIC_STATS)
            .map(drop)
            .map_err(failed("cannot examine directory"))
    }

    fn buckets(&self) -> StoreResult<Vec<BucketFacts>> {
        let _user = self.inner.act()?;
        bucket::all(&self.inner)
    }

    fn bucket(&self, bucket: &str) -> StoreResult<BucketFacts> {
        let _user = self.inner.act()?;
        bucket::facts(&self.inner, bucket)
    }

    fn make_bucket(&self, bucket: &str) -> StoreResult<()> {
        let _user = self.inner.act()?;
        bucket::make(&self.inner, bucket)
    }

    fn remove_bucket(&self, bucket: &str) -> StoreResult<()> {
        let _user = self.inner.act()?;
        bucket::remove(&self.inner, bucket)
    }

    fn open(&self, bucket: &str, key: &str) -> StoreResult<Opened> {
        let _user = self.inner.act()?;
        read::open(&self.inner, &target(bucket, key)?)
    }

    fn lend(&self, bucket: &str, key: &str) -> StoreResult<Lent> {
        let _user = self.inner.act()?;
        lend::lend(&self.inner, &target(bucket, key)?)
    }

    fn facts(&self, bucket: &str, key: &str) -> StoreResult<Facts> {
        Ok(self.open(bucket, key)?.facts)
    }

    fn begin(&self, bucket: &str, key: &str, _len: Option<u64>) -> StoreResult<Box<dyn Draft>> {
        let _user = self.inner.act()?;
        let target = target(bucket, key)?;
        if target.key.is_folder {
            return Ok(Box::new(FolderDraft::new(&self.inner, target)?));
        }
        Ok(Box::new(FileDraft::new(&self.inner, target)?))
    }

    fn describe(
        &self,
        bucket: &str,
        key: &str,
        etag: Option<&str>,
        change: &dyn Fn(&mut Meta),
    ) -> StoreResult<Facts> {
        let _user = self.inner.act()?;
        read::describe(&self.inner, &target(bucket, key)?, etag, change)
    }

    fn remove(&self, bucket: &str, key: &str, condition: &Condition) -> StoreResult<()> {
        let _user = self.inner.act()?;
        let target = target(bucket, key)?;
        if target.key.is_folder {
            return folder::remove(&self.inner, &target, condition);
        }
        draft::remove(&self.inner, &target, condition)
    }

    fn list(&self, bucket: &str, ask: &ListAsk) -> StoreResult<ListPage> {
        let _user = self.inner.act()?;
        check_bucket(bucket)?;
        list::list(&self.inner, bucket, ask)
    }

    fn begin_upload(&self, bucket: &str, key: &str, meta: Meta) -> StoreResult<String> {
        let _user = self.inner.act()?;
        uploads::begin(&self.inner, &target(bucket, key)?, meta)
    }

    fn upload(&self, bucket: &str, key: &str, id: &str) -> StoreResult<UploadFacts> {
        let _user = self.inner.act()?;
        uploads::facts(&self.inner, &target(bucket, key)?, id)
    }

    fn begin_part(
        &self,
        bucket: &str,
        key: &str,
        id: &str,
        number: u32,
        len: Option<u64>,
    ) -> StoreResult<Box<dyn Draft>> {
        let _user = self.inner.act()?;
        Ok(Box::new(PartDraft::new(&self.inner, &target(bucket, key)?, id, number, len)?))
    }

    fn parts(
        &self,
        bucket: &str,
        key: &str,
        id: &str,
        behind: u32,
        max: usize,
    ) -> StoreResult<Vec<PartFacts>> {
        let _user = self.inner.act()?;
        parts::page(&self.inner, &target(bucket, key)?, id, behind, max)
    }

    fn finish_upload(
        &self,
        bucket: &str,
        key: &str,
        id: &str,
        parts: &[(u32, String)],
        checksum: Option<Checksum>,
        condition: &Condition,
    ) -> StoreResult<Facts> {
        let _user = self.inner.act()?;
        uploads::finish(&self.inner, &target(bucket, key)?, id, parts, checksum, condition)
    }

    fn abort_upload(&self, bucket: &str, key: &str, id: &str) -> StoreResult<()> {
        let _user = self.inner.act()?;
        uploads::abort(&self.inner, &target(bucket, key)?, id)
    }

    fn uploads(&self, bucket: &str, ask: &UploadsAsk) -> StoreResult<UploadsPage> {
        let _user = self.inner.act()?;
        check_bucket(bucket)?;
        uploads::page(&self.inner, bucket, ask)
    }

    fn sweep(&self, age: Duration) -> StoreResult<Swept> {
        sweep::all(&self.inner, &bucket::all(&self.inner)?, age)
    }
}
