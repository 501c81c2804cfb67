//! Uploads by parts: `.forebay/uploads/ID/`, where every gateway finds them.
//!
//! - `about`: the key, the headers of the object. The lock of who finishes or aborts. Without it there is no upload.
//! - `data`: parts of equal length at their place, which becomes the object; `unit`: that length.
//! - `part-N`: the record of a part; `file-N-…`: the bytes of one that is not at its place; `claim-N`: one writer wrote at the place.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustix::fs::{AtFlags, OFlags, linkat, mkdirat, openat, renameat, unlinkat};
use rustix::io::Errno;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::draft::{Sealed, Target, copy_range, place};
use super::inner::Inner;
use super::loose::{Loose, fresh_name, io_fault, own_path};
use super::parts::{self, PartRecord};
use super::runs::{READ_AT_ONCE, read_names};
use super::sys::{LockKind, lock_range};
use super::tree::{DIR_MODE, FILE_MODE, failed, fault, names, open_below, open_dir, stat_file, sync_dir};
use crate::store::{
    Checksum, Condition, Facts, Meta, StoreError, StoreResult, UploadFacts, UploadsAsk, UploadsPage,
};

/// S3's least length of a part that is not the last.
pub(super) const LEAST_PART: u64 = 5 << 20;

/// What the object is to be.
#[derive(Serialize, Deserialize)]
struct About {
    key: String,
    /// Nanoseconds since 1970.
    begun: u64,
    meta: Meta,
}

/// An upload that is there.
pub(super) struct Upload {
    pub(super) dir: OwnedFd,
    about: About,
    file: File,
}

/// Nanoseconds since 1970.
pub(super) fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos() as u64
}

/// Begins one.
pub(super) fn begin(inner: &Inner, target: &Target, meta: Meta) -> StoreResult<String> {
    if target.key.is_folder {
        return Err(StoreError::Key("it ends in /, so that its object has no bytes"));
    }
    let id = fresh_name();
    let uploads = inner.own_dir(&target.bucket, "uploads")?;
    mkdirat(&uploads, &id, DIR_MODE).map_err(failed("cannot make directory"))?;
    let dir = open_dir(&uploads, &id).map_err(failed("cannot open directory"))?;
    make_file(&dir, "data")?;
    write_json(inner, &dir, "about", &About { key: target.key.key(), begun: now(), meta })?;
    if inner.options.sync {
        sync_dir(&dir)?;
        sync_dir(&uploads)?;
    }
    Ok(id)
}

/// Makes a file that none has made.
pub(super) fn make_file(dir: impl AsFd, name: &str) -> StoreResult<File> {
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    match openat(dir, name, flags, FILE_MODE) {
        Ok(file) => Ok(file.into()),
        // The upload was finished or aborted.
        Err(Errno::NOENT) => Err(StoreError::NoUpload),
        Err(errno) => Err(fault(errno, "cannot make file")),
    }
}

/// Writes a file of an upload, in one step for readers. Its name is on the disk when the caller has synced the directory.
pub(super) fn write_json(
    inner: &Inner,
    dir: &OwnedFd,
    name: &str,
    value: &impl Serialize,
) -> StoreResult<()> {
    write_named(inner, dir, value, |new| renameat(dir, new, dir, name))
}

/// The same, unless the file is there.
pub(super) fn write_json_once(
    inner: &Inner,
    dir: &OwnedFd,
    name: &str,
    value: &impl Serialize,
) -> StoreResult<()> {
    write_named(inner, dir, value, |new| {
        let linked = linkat(dir, new, dir, name, AtFlags::empty());
        unlinkat(dir, new, AtFlags::empty())?;
        if linked == Err(Errno::EXIST) { Ok(()) } else { linked }
    })
}

fn write_named(
    inner: &Inner,
    dir: &OwnedFd,
    value: &impl Serialize,
    name: impl Fn(&str) -> Result<(), Errno>,
) -> StoreResult<()> {
    let new = format!("new-{}", fresh_name());
    let mut file = make_file(dir, &new)?;
    let json = serde_json::to_vec(value).map_err(|error| super::record::not_written(&error))?;
    file.write_all(&json).map_err(|error| io_fault(&error, "cannot write file"))?;
    if inner.options.sync {
        rustix::fs::fdatasync(&file).map_err(failed("cannot sync file"))?;
    }
    // Another gateway finds it whole: over NFS, closing a file brings it to the server.
    drop(file);
    match name(&new) {
        Ok(()) => Ok(()),
        Err(Errno::NOENT) => Err(StoreError::NoUpload),
        Err(errno) => Err(fault(errno, "cannot name file")),
    }
}

/// Reads a file of an upload; `None` where it is not there.
pub(super) fn read_json<T: DeserializeOwned>(dir: &OwnedFd, name: &str) -> StoreResult<Option<T>> {
    let file = match open_below(dir, name, OFlags::RDONLY) {
        Ok(file) => File::from(file),
        Err(Errno::NOENT) => return Ok(None),
        Err(errno) => return Err(fault(errno, "cannot open file")),
    };
    let mut json = Vec::new();
    file.take(1 << 20).read_to_end(&mut json).map_err(|error| io_fault(&error, "cannot read file"))?;
    Ok(serde_json::from_slice(&json).ok())
}

impl Upload {
    /// Opens the upload of this name for this key.
    pub(super) fn open(inner: &Inner, target: &Target, id: &str) -> StoreResult<Self> {
        let upload = Self::find(inner, &target.bucket, id)?.ok_or(StoreError::NoUpload)?;
        if upload.about.key == target.key.key() { Ok(upload) } else { Err(StoreError::NoUpload) }
    }

    fn find(inner: &Inner, bucket: &str, id: &str) -> StoreResult<Option<Self>> {
        inner.open_bucket(bucket)?;
        if id.is_empty() || !id.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return Ok(None);
        }
        let dir = match open_dir(&inner.root, &own_path(bucket, &format!("uploads/{id}"))) {
            Ok(dir) => dir,
            Err(Errno::NOENT | Errno::NAMETOOLONG) => return Ok(None),
            Err(errno) => return Err(fault(errno, "cannot open directory")),
        };
        let file = match open_below(&dir, "about", OFlags::RDWR) {
            Ok(file) => File::from(file),
            Err(Errno::NOENT) => return Ok(None),
            Err(errno) => return Err(fault(errno, "cannot open file")),
        };
        Ok(read_json(&dir, "about")?.map(|about| Self { dir, about, file }))
    }

    /// Waits until no other finishes or aborts it. `false`: one did.
    fn lock(&self, inner: &Inner, wait: bool) -> StoreResult<bool> {
        if inner.abilities.locks
            && !lock_range(&self.file, LockKind::Alone, 0, 0, wait).map_err(failed("cannot lock upload"))?
        {
            return Ok(false);
        }
        Ok(stat_file(&self.file).map_err(failed("cannot examine upload"))?.stx_nlink > 0)
    }

    fn facts(self, id: &str) -> UploadFacts {
        let begun = UNIX_EPOCH + Duration::from_nanos(self.about.begun);
        UploadFacts { key: self.about.key, id: id.to_owned(), begun, meta: self.about.meta }
    }

    /// Removes it; who comes later finds none.
    fn clear(&self, inner: &Inner, bucket: &str, id: &str) -> StoreResult<()> {
        let _ = unlinkat(&self.dir, "about", AtFlags::empty());
        clear_dir(&inner.own_dir(bucket, "uploads")?, id)
    }
}

/// Removes an upload's directory; its `about` goes first, so that no other gateway finds an upload in part. A part that begins at this
/// moment keeps the directory for the sweep.
pub(super) fn clear_dir(uploads: &OwnedFd, id: &str) -> StoreResult<()> {
    if let Ok(dir) = open_below(uploads, id, OFlags::RDONLY | OFlags::DIRECTORY) {
        let _ = unlinkat(&dir, "about", AtFlags::empty());
        for name in names(&dir)? {
            let _ = unlinkat(&dir, &name, AtFlags::empty());
        }
    }
    let _ = unlinkat(uploads, id, AtFlags::REMOVEDIR);
    Ok(())
}

/// One of them.
pub(super) fn facts(inner: &Inner, target: &Target, id: &str) -> StoreResult<UploadFacts> {
    Ok(Upload::open(inner, target, id)?.facts(id))
}

/// A page of a bucket's. Of all of them no more than a page are held.
pub(super) fn page(inner: &Inner, bucket: &str, ask: &UploadsAsk) -> StoreResult<UploadsPage> {
    // Entries by name and id; that of a common prefix has no id and no upload.
    let mut found: BTreeMap<(String, String), Option<UploadFacts>> = BTreeMap::new();
    let mut is_full = false;
    each(inner, bucket, |id| {
        let Some(upload) = Upload::find(inner, bucket, id)?.map(|upload| upload.facts(id)) else {
            return Ok(());
        };
        let Some(entry) = entry_of(ask, &upload) else { return Ok(()) };
        let upload = (!entry.1.is_empty()).then_some(upload);
        found.insert(entry, upload);
        if found.len() > ask.max {
            is_full = true;
            found.pop_last();
        }
        Ok(())
    })?;
    let mut page = UploadsPage::default();
    if is_full {
        page.next = found.last_key_value().map(|(entry, _)| entry.clone());
    }
    for ((name, _), upload) in found {
        match upload {
            Some(upload) => page.uploads.push(upload),
            None => page.prefixes.push(name),
        }
    }
    Ok(page)
}

/// The entry that an upload is listed as; `None`: the page has it not.
fn entry_of(ask: &UploadsAsk, upload: &UploadFacts) -> Option<(String, String)> {
    let rest = upload.key.strip_prefix(&ask.prefix)?;
    let delimiter = ask.delimiter.as_deref().filter(|delimiter| !delimiter.is_empty());
    if let Some(end) = delimiter.and_then(|delimiter| Some(rest.find(delimiter)? + delimiter.len())) {
        let common = &upload.key[..ask.prefix.len() + end];
        let was_listed = common <= ask.after.as_str() || ask.after.starts_with(common);
        return (!was_listed).then(|| (common.to_owned(), String::new()));
    }
    let follows = match &ask.after_id {
        Some(id) => (&upload.key, &upload.id) > (&ask.after, id),
        None => upload.key > ask.after,
    };
    follows.then(|| (upload.key.clone(), upload.id.clone()))
}

/// Calls `act` for the name of each directory of uploads.
fn each(inner: &Inner, bucket: &str, mut act: impl FnMut(&str) -> StoreResult<()>) -> StoreResult<()> {
    inner.open_bucket(bucket)?;
    let dir = match open_below(&inner.root, &own_path(bucket, "uploads"), OFlags::RDONLY | OFlags::DIRECTORY)
    {
        Ok(dir) => dir,
        Err(Errno::NOENT) => return Ok(()),
        Err(errno) => return Err(fault(errno, "cannot open directory")),
    };
    let mut result = Ok(());
    read_names(&dir, READ_AT_ONCE, |id, _| {
        result = act(id);
        result.is_ok()
    })?;
    result
}

/// Forgets one.
pub(super) fn abort(inner: &Inner, target: &Target, id: &str) -> StoreResult<()> {
    let upload = Upload::open(inner, target, id)?;
    if !upload.lock(inner, true)? {
        return Err(StoreError::NoUpload);
    }
    upload.clear(inner, &target.bucket, id)
}

/// Makes the object of its parts.
pub(super) fn finish(
    inner: &Inner,
    target: &Target,
    id: &str,
    asked: &[(u32, String)],
    checksum: Option<Checksum>,
    condition: &Condition,
) -> StoreResult<Facts> {
    let upload = match Upload::open(inner, target, id) {
        Ok(upload) if upload.lock(inner, true)? => upload,
        Ok(_) | Err(StoreError::NoUpload) => return made_of(inner, target, id)?.ok_or(StoreError::NoUpload),
        Err(error) => return Err(error),
    };
    // A gateway that was killed after the object had its name left the upload.
    if let Some(facts) = made_of(inner, target, id)? {
        upload.clear(inner, &target.bucket, id)?;
        return Ok(facts);
    }
    let known = parts::records(&upload.dir, 0, usize::MAX)?;
    let chosen = choose(&known, asked)?;
    let lengths: Vec<u64> = chosen.iter().map(|part| part.len).collect();
    let total = lengths.iter().sum();
    let mut loose = assemble(inner, target, &upload, &known, &chosen)?;
    let part_sums = checksum.as_ref().and_then(|whole| {
        let sum = |part: &&PartRecord| part.sum_of(&whole.algorithm).map(str::to_owned);
        chosen.iter().map(sum).collect::<Option<_>>()
    });
    let part_sums = part_sums.unwrap_or_default();
    let meta = Meta { parts: lengths, part_sums, checksum, md5: None, ..upload.about.meta.clone() };
    let sealed = Sealed::new(inner, target, &loose.file, total, meta, Some(id.to_owned()))?;
    let facts = place(inner, target, &mut loose, sealed, condition)?;
    upload.clear(inner, &target.bucket, id)?;
    Ok(facts)
}

/// The object of the key, where this upload made it.
fn made_of(inner: &Inner, target: &Target, id: &str) -> StoreResult<Option<Facts>> {
    match super::read::open_file(inner, target) {
        Ok((_, identity, record)) if record.upload.as_deref() == Some(id) => {
            Ok(Some(super::record::facts(identity, record)))
        }
        Ok(_) | Err(StoreError::NoObject) => Ok(None),
        Err(error) => Err(error),
    }
}

fn choose<'a>(known: &'a [PartRecord], asked: &[(u32, String)]) -> StoreResult<Vec<&'a PartRecord>> {
    if asked.is_empty() || asked.windows(2).any(|pair| pair[0].0 >= pair[1].0) {
        return Err(StoreError::PartOrder);
    }
    let find = |(number, etag): &(u32, String)| {
        let at = known.binary_search_by_key(number, |part| part.number).ok();
        at.map(|at| &known[at]).filter(|part| part.etag() == etag).ok_or(StoreError::NoPart(*number))
    };
    let chosen: Vec<&PartRecord> = asked.iter().map(find).collect::<StoreResult<_>>()?;
    match chosen[..chosen.len() - 1].iter().find(|part| part.len < LEAST_PART) {
        Some(part) => Err(StoreError::PartLength(part.number)),
        None => Ok(chosen),
    }
}

/// One file of all parts. It is `data` where the parts in it are at their place and no writer is left that has it open; a new file
/// otherwise.
fn assemble(
    inner: &Inner,
    target: &Target,
    upload: &Upload,
    known: &[PartRecord],
    chosen: &[&PartRecord],
) -> StoreResult<Loose> {
    let data =
        File::from(open_below(&upload.dir, "data", OFlags::RDWR).map_err(failed("cannot open parts"))?);
    let ends = chosen.iter().scan(0, |end, part| {
        *end += part.len;
        Some(*end)
    });
    let starts: Vec<u64> = std::iter::once(0).chain(ends).collect();
    let in_place = chosen.iter().zip(&starts).filter(|(part, start)| part.place == Some(**start)).count();
    let is_whole = in_place > 0 && in_place == known.iter().filter(|part| part.place.is_some()).count();
    let stays = is_whole
        && inner.abilities.locks
        && lock_range(&data, LockKind::Alone, 0, 0, false).map_err(failed("cannot lock parts"))?;
    let loose = if stays {
        let dir = open_dir(&upload.dir, ".").map_err(failed("cannot open directory"))?;
        let file = data.try_clone().map_err(|error| io_fault(&error, "cannot open parts"))?;
        let mut loose = Loose::in_place(file, dir, "data");
        // A condition that does not hold leaves the upload as it is.
        loose.keep_name();
        loose
    } else {
        Loose::new(inner, &target.bucket, &target.parent())?
    };
    for (part, start) in chosen.iter().zip(starts) {
        match &part.file {
            Some(name) => {
                let file =
                    open_below(&upload.dir, name, OFlags::RDONLY).map_err(failed("cannot open part"))?;
                copy_range(&file.into(), 0, part.len, &loose.file, start)?;
            }
            None if stays => {}
            None => copy_range(&data, part.place.unwrap_or_default(), part.len, &loose.file, start)?,
        }
    }
    Ok(loose)
}

/// Removes uploads whose last part came before a time, and what a gateway left that was killed while it removed one. Returns how many.
pub(super) fn sweep(inner: &Inner, bucket: &str, before: SystemTime) -> StoreResult<usize> {
    let mut swept = 0;
    each(inner, bucket, |id| {
        swept += usize::from(sweep_one(inner, bucket, id, before)?);
        Ok(())
    })?;
    Ok(swept)
}

fn sweep_one(inner: &Inner, bucket: &str, id: &str, before: SystemTime) -> StoreResult<bool> {
    if let Some(upload) = Upload::find(inner, bucket, id)? {
        // Each part makes a name in it. One that comes now finds the upload, or finds none.
        let is_old = || super::sweep::is_older(&upload.dir, ".", before);
        if !is_old() || !upload.lock(inner, false)? || !is_old() {
            return Ok(false);
        }
        upload.clear(inner, bucket, id)?;
        return Ok(true);
    }
    let uploads = inner.own_dir(bucket, "uploads")?;
    if !super::sweep::is_older(&uploads, id, before) {
        return Ok(false);
    }
    clear_dir(&uploads, id)?;
    Ok(true)
}
