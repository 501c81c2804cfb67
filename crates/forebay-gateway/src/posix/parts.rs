//! Parts of an upload: each in a file of its own, or at its place in the file that becomes the object.

use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

use forebay_error::{Error, ErrorKind};
use ring::digest::{SHA256, digest};
use rustix::fs::{AtFlags, OFlags, unlinkat};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use super::draft::{Target, copy_range};
use super::inner::Inner;
use super::loose::{Loose, fresh_name, io_fault};
use super::runs::{READ_AT_ONCE, read_names};
use super::sys::{LockKind, lock_range};
use super::tree::{failed, open_below, open_dir, stat_file, stat_name, sync_dir};
use super::uploads::{LEAST_PART, Upload, make_file, now, read_json, write_json, write_json_once};
use crate::hex::hex;
use crate::store::{Condition, Draft, Facts, Meta, PartFacts, StoreError, StoreResult};

/// Of equal bytes the same: a client that sends a part again may name either answer's in its Complete.
fn etag_of(len: u64, meta: &Meta) -> String {
    match &meta.checksum {
        Some(sum) => {
            let text = format!("{len} {} {}", sum.algorithm, sum.value);
            format!("{}-1", hex(&digest(&SHA256, text.as_bytes()).as_ref()[..16]))
        }
        None => format!("{}-1", fresh_name()),
    }
}

/// The record of a part.
#[derive(Serialize, Deserialize)]
pub(super) struct PartRecord {
    pub(super) number: u32,
    pub(super) len: u64,
    etag: String,
    /// Nanoseconds since 1970.
    written: u64,
    meta: Meta,
    /// Its offset in `data`.
    pub(super) place: Option<u64>,
    /// Its own file.
    pub(super) file: Option<String>,
}

impl PartRecord {
    pub(super) fn etag(&self) -> &str {
        self.meta.md5.as_deref().unwrap_or(&self.etag)
    }

    /// Its checksum of an algorithm.
    pub(super) fn sum_of(&self, algorithm: &str) -> Option<&str> {
        let sum = self.meta.checksum.as_ref().filter(|sum| sum.algorithm == algorithm);
        sum.map(|sum| sum.value.as_str())
    }

    fn facts(&self) -> Facts {
        let modified = UNIX_EPOCH + Duration::from_nanos(self.written);
        Facts { len: self.len, modified, etag: self.etag().to_owned(), meta: self.meta.clone() }
    }
}

/// The records of an upload behind a number, at most `max`, by their numbers.
pub(super) fn records(dir: &OwnedFd, behind: u32, max: usize) -> StoreResult<Vec<PartRecord>> {
    let open =
        open_below(dir, ".", OFlags::RDONLY | OFlags::DIRECTORY).map_err(failed("cannot open directory"))?;
    let mut numbers = Vec::new();
    read_names(&open, READ_AT_ONCE, |name, _| {
        numbers.extend(name.strip_prefix("part-").and_then(|number| number.parse::<u32>().ok()));
        true
    })?;
    numbers.retain(|number| *number > behind);
    numbers.sort_unstable();
    let mut records: Vec<PartRecord> = Vec::new();
    for number in numbers.into_iter().take(max) {
        records.extend(read_json(dir, &format!("part-{number}"))?);
    }
    Ok(records)
}

/// Parts of an upload.
pub(super) fn page(
    inner: &Inner,
    target: &Target,
    id: &str,
    behind: u32,
    max: usize,
) -> StoreResult<Vec<PartFacts>> {
    let upload = Upload::open(inner, target, id)?;
    Ok(records(&upload.dir, behind, max)?
        .iter()
        .map(|part| PartFacts { number: part.number, facts: part.facts() })
        .collect())
}

/// A part that is written.
pub(super) struct PartDraft {
    inner: Arc<Inner>,
    dir: OwnedFd,
    number: u32,
    to: To,
}

enum To {
    /// In `data`, of which this range is locked: who finishes the upload sees that it is written.
    Place { data: File, start: u64, room: u64 },
    /// A file of its own.
    File { loose: Loose, name: String },
}

impl PartDraft {
    pub(super) fn new(
        inner: &Arc<Inner>,
        target: &Target,
        id: &str,
        number: u32,
        len: Option<u64>,
    ) -> StoreResult<Self> {
        let dir = Upload::open(inner, target, id)?.dir;
        let to = match len {
            Some(len) if len > 0 && number > 0 && inner.abilities.locks => {
                take_place(inner, &dir, number, len)?
            }
            _ => None,
        };
        let to = to.map_or_else(|| own_file(&dir, number), Ok)?;
        Ok(Self { inner: Arc::clone(inner), dir, number, to })
    }
}

fn own_file(dir: &OwnedFd, number: u32) -> StoreResult<To> {
    let name = format!("file-{number}-{}", fresh_name());
    let file = make_file(dir, &name)?;
    let again = open_dir(dir, ".").map_err(failed("cannot open directory"))?;
    Ok(To::File { loose: Loose::in_place(file, again, &name), name })
}

/// A part's place, for the first writer of its number: one that comes again has other bytes perhaps, and could break off.
fn take_place(inner: &Inner, dir: &OwnedFd, number: u32, len: u64) -> StoreResult<Option<To>> {
    let mut unit: Option<u64> = read_json(dir, "unit")?;
    if unit.is_none() && len >= LEAST_PART {
        write_json_once(inner, dir, "unit", &len)?;
        unit = read_json(dir, "unit")?;
    }
    let Some(unit) = unit.filter(|unit| len <= *unit) else { return Ok(None) };
    let start = unit * u64::from(number - 1);
    let data = match open_below(dir, "data", OFlags::RDWR) {
        Ok(data) => File::from(data),
        Err(Errno::NOENT) => return Err(StoreError::NoUpload),
        Err(errno) => return Err(super::tree::fault(errno, "cannot open parts")),
    };
    if !lock_range(&data, LockKind::Alone, start, unit, false).map_err(failed("cannot lock part"))? {
        return Ok(None);
    }
    // It became the object before the lock was there.
    let ino = stat_file(&data).map_err(failed("cannot examine parts"))?.stx_ino;
    if !stat_name(dir, "data").is_ok_and(|stat| stat.stx_ino == ino) {
        return Err(StoreError::NoUpload);
    }
    let claim = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
    match rustix::fs::openat(dir, format!("claim-{number}"), claim, super::tree::FILE_MODE) {
        Ok(_) => Ok(Some(To::Place { data, start, room: unit })),
        Err(Errno::EXIST) => Ok(None),
        Err(Errno::NOENT) => Err(StoreError::NoUpload),
        Err(errno) => Err(super::tree::fault(errno, "cannot claim part")),
    }
}

impl To {
    /// The file and the offset of the part's byte; its neighbours' bytes are not reached.
    fn at(&self, offset: u64, len: u64) -> StoreResult<(&File, u64)> {
        match self {
            Self::File { loose, .. } => Ok((&loose.file, offset)),
            Self::Place { data, start, room } if offset + len <= *room => Ok((data, start + offset)),
            Self::Place { .. } => {
                let error =
                    Error::new(ErrorKind::InvalidInput, "cannot write part: it is longer than announced");
                Err(StoreError::Other(error))
            }
        }
    }
}

impl Draft for PartDraft {
    fn write_at(&self, bytes: &[u8], offset: u64) -> StoreResult<()> {
        let _user = self.inner.act()?;
        let (file, offset) = self.to.at(offset, bytes.len() as u64)?;
        file.write_all_at(bytes, offset).map_err(|error| io_fault(&error, "cannot write part"))
    }

    fn copy_from(&self, source: &File, from: u64, len: u64, offset: u64) -> StoreResult<()> {
        let _user = self.inner.act()?;
        let (file, offset) = self.to.at(offset, len)?;
        copy_range(source, from, len, file, offset)
    }

    fn publish(self: Box<Self>, len: u64, meta: Meta, _condition: &Condition) -> StoreResult<Facts> {
        let _user = self.inner.act()?;
        let Self { inner, dir, number, to } = *self;
        let (file, _) = to.at(0, len)?;
        if inner.options.sync {
            rustix::fs::fdatasync(file).map_err(failed("cannot sync part"))?;
        }
        let etag = etag_of(len, &meta);
        let (place, own) = match &to {
            To::Place { start, .. } => (Some(*start), None),
            To::File { name, .. } => (None, Some(name.clone())),
        };
        let part = PartRecord { number, len, etag, written: now(), meta, place, file: own };
        let record = format!("part-{number}");
        let before: Option<PartRecord> = read_json(&dir, &record)?;
        write_json(&inner, &dir, &record, &part)?;
        if inner.options.sync {
            sync_dir(&dir)?;
        }
        if let To::File { mut loose, .. } = to {
            loose.keep_name();
        }
        if let Some(name) = before.and_then(|before| before.file) {
            // The upload's end removes one that stays.
            let _ = unlinkat(&dir, name, AtFlags::empty());
        }
        Ok(part.facts())
    }
}
