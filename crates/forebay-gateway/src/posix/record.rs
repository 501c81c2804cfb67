//! The record of an object, kept beside its bytes: JSON in one attribute of the file, or in a file of its own where that has no room.
//!
//! A record names the size and the time of the file that it was made for, so that it does not describe one that another program
//! wrote since. A record beside the file has the ETag of the file in its name: it stays beside the next object of the key, and
//! the sweep removes it.

use std::io::Read;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use ring::digest::{SHA256, digest};
use rustix::fs::{OFlags, Statx, XattrFlags, fgetxattr, fsetxattr, lgetxattr};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use super::inner::Inner;
use super::loose::{Loose, fresh_name};
use super::names::OWN;
use super::sys;
use super::tree::{fault, later, open_below};
use crate::hex::hex;
use crate::store::{Facts, Meta, StoreError, StoreResult};

/// The attribute.
pub(super) const ATTRIBUTE: &str = "user.forebay.s3";

/// More than this is not written by the store.
const LONGEST: usize = 1 << 20;

/// What tells one state of a file from another, the same through each mount.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Identity {
    pub(super) size: u64,
    /// Nanoseconds since 1970.
    pub(super) mtime: i64,
    pub(super) ino: u64,
}

impl Identity {
    pub(super) fn new(stat: &Statx) -> Self {
        let mtime = stat.stx_mtime.tv_sec.saturating_mul(1_000_000_000) + i64::from(stat.stx_mtime.tv_nsec);
        Self { size: stat.stx_size, mtime, ino: stat.stx_ino }
    }

    /// The `-` says that it is no MD5; what follows would be the number of parts.
    pub(super) fn etag(&self) -> String {
        self.etag_with(None)
    }

    fn etag_with(&self, nonce: Option<&str>) -> String {
        let mut text = format!("{} {} {}", self.size, self.mtime, self.ino);
        text.extend(nonce.into_iter().flat_map(|nonce| [" ", nonce]));
        format!("{}-1", hex(&digest(&SHA256, text.as_bytes()).as_ref()[..16]))
    }

    /// Of a directory that becomes an object now: its own time changes with each name in it.
    pub(super) fn folder_now(ino: u64) -> Self {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Self { size: 0, mtime: now.as_nanos() as i64, ino }
    }

    fn modified(&self) -> SystemTime {
        let distance = Duration::from_nanos(self.mtime.unsigned_abs());
        if self.mtime >= 0 { UNIX_EPOCH + distance } else { UNIX_EPOCH - distance }
    }
}

/// The record of an object.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct Record {
    size: u64,
    mtime: i64,
    /// The rest is in a file of its own.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    aside: bool,
    /// Part of the ETag where the file system's times are coarse: two objects may have one identity.
    #[serde(skip_serializing_if = "Option::is_none")]
    nonce: Option<String>,
    /// The upload that made the object.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) upload: Option<String>,
    pub(super) meta: Meta,
}

/// A record in a file of its own.
#[derive(Serialize, Deserialize)]
pub(super) struct Aside {
    /// The key that it was written for: the sweep looks there.
    pub(super) key: String,
    record: Record,
}

impl Record {
    /// Of a new file.
    pub(super) fn new(inner: &Inner, identity: Identity, meta: Meta, upload: Option<String>) -> Self {
        let nonce = (!inner.abilities.fine_times).then(fresh_name);
        Self { size: identity.size, mtime: identity.mtime, aside: false, nonce, upload, meta }
    }

    /// The same file with other things said of it.
    pub(super) fn with(self, identity: Identity, meta: Meta) -> Self {
        Self { size: identity.size, mtime: identity.mtime, aside: false, meta, ..self }
    }

    fn is_plain(&self) -> bool {
        self.upload.is_none() && self.nonce.is_none() && self.meta == Meta::default()
    }

    /// Drops the fields about the bytes where another program wrote the file since.
    fn fitted(mut self, identity: Identity) -> Self {
        if (self.size, self.mtime) != (identity.size, identity.mtime) {
            (self.upload, self.nonce) = (None, None);
            self.meta = self.meta.without_bytes();
        }
        self
    }
}

/// What an object is to clients.
pub(super) fn facts(identity: Identity, record: Record) -> Facts {
    let Record { meta, nonce, .. } = record;
    let etag = meta.md5.clone().unwrap_or_else(|| identity.etag_with(nonce.as_deref()));
    Facts { len: identity.size, modified: identity.modified(), etag, meta }
}

/// The attribute of an open file; `None` where it has none.
pub(super) fn read_attribute(file: impl AsFd) -> Result<Option<Vec<u8>>, Errno> {
    with_room(|room| fgetxattr(&file, ATTRIBUTE, room))
}

/// The attribute of a name in an open directory.
pub(super) fn read_attribute_of(dir: BorrowedFd<'_>, name: &str) -> Result<Option<Vec<u8>>, Errno> {
    match with_room(|room| sys::attribute_at(dir, name, ATTRIBUTE, room)) {
        // Linux before 6.13, and containers that know no call so young.
        Err(Errno::NOSYS | Errno::PERM) => {
            let path = format!("/proc/self/fd/{}/{name}", dir.as_raw_fd());
            with_room(|room| lgetxattr(&path, ATTRIBUTE, room))
        }
        read => read,
    }
}

fn with_room(read: impl Fn(&mut [u8]) -> Result<usize, Errno>) -> Result<Option<Vec<u8>>, Errno> {
    let mut short = [0; 2048];
    let mut long = Vec::new();
    loop {
        let room = if long.is_empty() { &mut short[..] } else { &mut long[..] };
        match read(room) {
            Ok(len) => return Ok(Some(room[..len].to_vec())),
            Err(Errno::RANGE) if long.is_empty() => long = vec![0; 64 << 10],
            Err(Errno::NODATA | Errno::NOTSUP | Errno::RANGE) => return Ok(None),
            Err(errno) => return Err(errno),
        }
    }
}

/// The record of a file with this attribute; the empty one where no gateway wrote it.
pub(super) fn record(
    inner: &Inner,
    bucket: &str,
    identity: Identity,
    attribute: Option<&[u8]>,
) -> StoreResult<Record> {
    let kept: Option<Record> = attribute.and_then(|json| serde_json::from_slice(json).ok());
    let look_aside = kept.as_ref().map_or(inner.abilities.attribute_room == 0, |kept| kept.aside);
    let kept = if look_aside {
        read_aside(inner, bucket, &identity.etag())?.map(|aside| aside.record).or(kept)
    } else {
        kept
    };
    Ok(kept.map(|kept| kept.fitted(identity)).unwrap_or_default())
}

/// The record of a directory that is an object.
pub(super) fn folder(
    inner: &Inner,
    bucket: &str,
    path: &str,
    ino: u64,
    attribute: Option<&[u8]>,
) -> StoreResult<Option<(Identity, Record)>> {
    let kept: Option<Record> = attribute.and_then(|json| serde_json::from_slice(json).ok());
    let record = match kept {
        Some(kept) if !kept.aside => Some(kept),
        _ => read_aside(inner, bucket, &folder_name(path, ino))?.map(|aside| aside.record),
    };
    Ok(record.map(|record| (Identity { size: 0, mtime: record.mtime, ino }, record)))
}

/// The name of the record of a directory: of its number and its path, since its time changes.
pub(super) fn folder_name(path: &str, ino: u64) -> String {
    format!("{}-{ino}-folder", hex(&digest(&SHA256, path.as_bytes()).as_ref()[..16]))
}

/// Reads a record that lies in a file of its own; `None`: there is none. An error is never "none": `describe` would write that back.
pub(super) fn read_aside(inner: &Inner, bucket: &str, name: &str) -> StoreResult<Option<Aside>> {
    let path = format!("{bucket}/{OWN}/meta/{name}");
    let file = match open_below(&inner.root, &path, OFlags::RDONLY | OFlags::NONBLOCK) {
        Ok(file) => std::fs::File::from(file),
        Err(Errno::NOENT) => return Ok(None),
        Err(errno) => return Err(later(errno, "cannot open record")),
    };
    let mut json = Vec::new();
    let read = file.take(LONGEST as u64).read_to_end(&mut json);
    read.map_err(|error| later(Errno::from_io_error(&error).unwrap_or(Errno::IO), "cannot read record"))?;
    // Half of one is what a power cut leaves of a store that does not sync.
    Ok(serde_json::from_slice(&json).ok())
}

/// Writes the record of a file that is open; the caller syncs the file. `once`: where there is none, in one step: of two that do it at the
/// same time, one gets [`StoreError::Precondition`].
pub(super) fn write(
    inner: &Inner,
    bucket: &str,
    key: &str,
    file: impl AsFd,
    identity: Identity,
    record: &Record,
    once: bool,
) -> StoreResult<()> {
    let json = serde_json::to_vec(record).map_err(|error| not_written(&error))?;
    match set_attribute(inner, &file, &json, once) {
        Ok(()) => return Ok(()),
        Err(Errno::EXIST) => return Err(StoreError::Precondition),
        Err(Errno::NOSPC | Errno::TOOBIG | Errno::RANGE | Errno::NOTSUP | Errno::DQUOT) => {}
        Err(errno) => return Err(fault(errno, "cannot set attribute")),
    }
    let name = match key.strip_suffix('/') {
        Some(path) => folder_name(path, identity.ino),
        None => identity.etag(),
    };
    write_aside(inner, bucket, &name, &Aside { key: key.to_owned(), record: record.clone() }, once)?;
    let marker = Record { aside: true, meta: Meta::default(), upload: None, nonce: None, ..record.clone() };
    let json = serde_json::to_vec(&marker).map_err(|error| not_written(&error))?;
    match set_attribute(inner, &file, &json, once) {
        // Another was written as an attribute alone.
        Err(Errno::EXIST) => {
            remove_aside(inner, bucket, &name);
            Err(StoreError::Precondition)
        }
        // Without attributes at all, every reader looks aside.
        Err(Errno::NOTSUP | Errno::RANGE) if inner.abilities.attribute_room == 0 => Ok(()),
        result => result.map_err(|errno| fault(errno, "cannot set attribute")),
    }
}

/// The same for a new file: it has no record yet, and needs none where there is no more to say than its bytes.
pub(super) fn write_first(
    inner: &Inner,
    bucket: &str,
    key: &str,
    file: impl AsFd,
    identity: Identity,
    record: &Record,
) -> StoreResult<()> {
    if record.is_plain() { Ok(()) } else { write(inner, bucket, key, file, identity, record, false) }
}

fn set_attribute(inner: &Inner, file: impl AsFd, json: &[u8], once: bool) -> Result<(), Errno> {
    if json.len() > inner.abilities.attribute_room {
        return Err(Errno::RANGE);
    }
    fsetxattr(file, ATTRIBUTE, json, if once { XattrFlags::CREATE } else { XattrFlags::empty() })
}

fn write_aside(inner: &Inner, bucket: &str, name: &str, aside: &Aside, once: bool) -> StoreResult<()> {
    let json = serde_json::to_vec(aside).map_err(|error| not_written(&error))?;
    let mut loose = Loose::named(inner, bucket)?;
    loose.write_at(&json, 0)?;
    if inner.options.sync {
        rustix::fs::fsync(&loose.file).map_err(|errno| fault(errno, "cannot sync record"))?;
    }
    let meta = inner.own_dir(bucket, "meta")?;
    let named = if once { loose.link_to(&meta, name) } else { loose.rename_to(&meta, name) };
    match named {
        Err(Errno::EXIST) => return Err(StoreError::Precondition),
        result => result.map_err(|errno| fault(errno, "cannot name record"))?,
    }
    if inner.options.sync { super::tree::sync_dir(&meta) } else { Ok(()) }
}

/// Removes the record that lies beside the file, where there is one.
pub(super) fn remove_aside(inner: &Inner, bucket: &str, name: &str) {
    if let Ok(meta) = super::tree::open_dir(&inner.root, &format!("{bucket}/{OWN}/meta")) {
        // The sweep takes the ones that stay.
        let _ = rustix::fs::unlinkat(meta, name, rustix::fs::AtFlags::empty());
    }
}

pub(super) fn not_written(error: &serde_json::Error) -> StoreError {
    let message = format!("cannot write record: {error}");
    StoreError::Other(forebay_error::Error::new(forebay_error::ErrorKind::Internal, message))
}
