//! One file from one tree to the other.

use std::fs;
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, SystemTime};

use forebay_engine::Session;
use forebay_error::{Error, ErrorKind, Result};
use forebay_models::Pending;
use forebay_objects::{Brought, Bucket};
use forebay_sys::lock;

use super::jobs::{Moved, Work};
use super::tree::{Item, Tree};
use crate::cp::{copy_one, explain};

/// Files up to this size are moved by one call each, as many at a time as there are threads; longer ones in parts.
const SMALL: u64 = 4 << 20;
/// How often a file is sent that changes meanwhile.
const TRIES: u32 = 3;

/// What changes with a file: its number, length and time.
type State = (u64, u64, i64, i64);

impl Work<'_, '_> {
    /// Copies a file. One that another file stands in the way of waits for the removals, unless they are done.
    pub(super) fn copy(&self, item: &Item, is_last: bool) -> Result<()> {
        let Some(source) = &self.jobs.source else { return Ok(()) };
        let destination = &self.jobs.destination;
        let (from, to) = (source.place(&item.name)?, destination.place(&item.name)?);
        let action = match (source, destination) {
            (Tree::Folder(_), _) => "upload",
            (_, Tree::Folder(_)) => "download",
            _ => "copy",
        };
        let is_dry = self.jobs.is_dry;
        let moved = if is_dry { Some(Moved::of(item.len)) } else { self.move_bytes(source, item, is_last)? };
        if let Some(moved) = moved {
            self.files.fetch_add(1, Relaxed);
            self.bytes.fetch_add(moved.bytes, Relaxed);
            self.jobs.line(action, Some(&from), &to, Some(&moved));
        }
        Ok(())
    }

    /// Copies an object if its checksum is another one at the destination. Where one has none: if it is newer.
    pub(super) fn compare(&self, item: &Item, is_newer: bool) -> Result<()> {
        let Some(Tree::Prefix(bucket, prefix)) = &self.jobs.source else { return Ok(()) };
        let key = format!("{prefix}{}", item.name);
        let Tree::Prefix(target, target_prefix) = &self.jobs.destination else {
            let path = self.jobs.destination.path(&item.name)?;
            return if self.is_like(bucket, &key, item, &path)? { Ok(()) } else { self.copy(item, false) };
        };
        let here = bucket.head(&key, None)?;
        let there = target.head(&format!("{target_prefix}{}", item.name), None)?;
        let differs = match (here.crc64(), there.crc64()) {
            (Some(here), Some(there)) => here != there,
            _ => is_newer,
        };
        if differs { self.copy(item, false) } else { Ok(()) }
    }

    /// Whether a file has the bytes of an object, which another site gave it the last time. It takes the object's time, so that the
    /// next run need not read it.
    fn is_like(&self, bucket: &Bucket, key: &str, item: &Item, path: &Path) -> Result<bool> {
        // A file that may not be read is replaced, as it would be without sites.
        let Ok(mut file) = fs::File::open(path) else { return Ok(false) };
        let is_like = bucket.is_like(key, &mut file)?;
        if let Some(modified) = time_of(item)
            && is_like
            && !self.jobs.is_dry
        {
            let _ = file.set_modified(modified);
        }
        Ok(is_like)
    }

    /// Returns the copy; none where it waits.
    fn move_bytes(&self, source: &Tree, item: &Item, is_last: bool) -> Result<Option<Moved>> {
        let key = |prefix: &str| format!("{prefix}{}", item.name);
        match (source, &self.jobs.destination) {
            (Tree::Prefix(bucket, prefix), Tree::Prefix(target, target_prefix)) => {
                let (from, to) = (key(prefix), key(target_prefix));
                if !source.is_elsewhere(&self.jobs.destination) {
                    target.copy_from(bucket, &from, &to)?;
                    return Ok(Some(Moved::of(item.len)));
                }
                let _slots = (item.len > SMALL).then(|| self.slots.take(item.len));
                let Brought { len: bytes, not_compared } = target.bring(bucket, &from, &to)?;
                if let Some(why) = not_compared {
                    let mut all = lock(&self.not_compared);
                    *all = (all.0 + 1, if all.0 == 0 { why } else { all.1 });
                }
                let sites = bucket.site_name().map(|site| (site.to_owned(), bytes)).into_iter().collect();
                return Ok(Some(Moved { bytes, sites }));
            }
            (Tree::Folder(_), Tree::Prefix(bucket, prefix)) => {
                return self.upload(&source.path(&item.name)?, bucket, &key(prefix)).map(Some);
            }
            (Tree::Prefix(bucket, prefix), Tree::Folder(root)) => {
                if let Err(error) = self.root.get_or_init(|| make_folder(root)) {
                    self.end(error);
                    return Ok(None);
                }
                let path = self.jobs.destination.path(&item.name)?;
                if is_last {
                    // It may be a folder that lost its files in an earlier run.
                    let _ = fs::remove_dir(&path);
                } else if self.jobs.deletes && is_blocked(&path) {
                    lock(&self.blocked).push(item.clone());
                    return Ok(None);
                }
                return self.download(bucket, &key(prefix), item, &path).map(Some);
            }
            (Tree::Folder(_), Tree::Folder(_)) => {}
        }
        Ok(Some(Moved::of(item.len)))
    }

    /// Sends a file; again if it was written meanwhile, since the object is newer than the file and later runs would not
    /// see that both differ.
    fn upload(&self, path: &Path, bucket: &Bucket, key: &str) -> Result<Moved> {
        for _ in 0..TRIES {
            let before = state(path).map_err(|error| unread(&error, path))?;
            let len = self.upload_once(path, before.1, bucket, key)?;
            // A file that is gone does not change any more.
            if state(path).map_or(true, |now| now == before) {
                return Ok(Moved::of(len));
            }
        }
        let error = Error::new(ErrorKind::Busy, "the file is written while it is sent");
        Err(error.with("path", path.display()).hint("run the command again when nobody writes the file"))
    }

    fn upload_once(&self, path: &Path, len: u64, bucket: &Bucket, key: &str) -> Result<u64> {
        if len <= SMALL {
            let file = fs::File::open(path).map_err(|error| unread(&error, path))?;
            let mut bytes = Vec::with_capacity(len as usize + 1);
            file.take(SMALL + 1).read_to_end(&mut bytes).map_err(|error| unread(&error, path))?;
            if bytes.len() as u64 <= SMALL {
                return bucket.put(key, &bytes).map(|()| bytes.len() as u64);
            }
        }
        Ok(self.copy_long(len, path, Path::new(&bucket.url(key)), None)?.bytes)
    }

    fn download(&self, bucket: &Bucket, key: &str, item: &Item, path: &Path) -> Result<Moved> {
        if let Some(folder) = path.parent() {
            self.make_folder(folder)?;
        }
        let modified = time_of(item);
        if item.len > SMALL {
            return self.copy_long(item.len, &PathBuf::from(bucket.url(key)), path, modified);
        }
        let (bytes, site) = bucket.get_with_site(key, item.etag.as_deref())?;
        if bytes.len() as u64 != item.len {
            return Err(Error::new(ErrorKind::Busy, "the object has another length than in the listing")
                .with("url", bucket.url(key))
                .hint("run the command again"));
        }
        Pending::write(path, &bytes, modified)?;
        let sites = site.into_iter().map(|site| (site, item.len)).collect();
        Ok(Moved { bytes: item.len, sites })
    }

    /// Makes a folder for files. Items come in an order that has the files of a folder together, as far as it has no folders
    /// of its own.
    fn make_folder(&self, folder: &Path) -> Result<()> {
        let mut last = lock(&self.folder);
        if *last == folder {
            return Ok(());
        }
        make_folder(folder)?;
        // Once for all of its files: looking through a folder for each of them takes the square of their number.
        Pending::clear(folder);
        folder.clone_into(&mut last);
        Ok(())
    }

    fn copy_long(
        &self,
        len: u64,
        source: &Path,
        destination: &Path,
        modified: Option<SystemTime>,
    ) -> Result<Moved> {
        let _slots = self.slots.take(len);
        let session = self.session.get_or_init(Session::of_host).as_ref().map_err(Clone::clone)?;
        let (bytes, sites) =
            copy_one(session, source, destination, modified).map_err(|failure| failure.error)?;
        Ok(Moved { bytes, sites })
    }

    /// Removes files of the destination.
    pub(super) fn remove(&self, names: &[String]) -> Result<()> {
        let destination = &self.jobs.destination;
        let left = match destination {
            Tree::Prefix(..) if self.jobs.is_dry => Vec::new(),
            Tree::Prefix(bucket, prefix) => remove_objects(bucket, prefix, names)?,
            Tree::Folder(root) => {
                let failed = |name: &String| Some((name.clone(), self.unlink(root, name).err()?));
                names.iter().filter_map(failed).collect()
            }
        };
        for name in names.iter().filter(|name| left.iter().all(|(one, _)| one != *name)) {
            self.files.fetch_add(1, Relaxed);
            self.jobs.line("delete", None, &destination.place(name)?, None);
        }
        for (_, error) in &left {
            self.fail(1, error);
        }
        Ok(())
    }

    fn unlink(&self, root: &Path, name: &str) -> Result<()> {
        let path = self.jobs.destination.own_path(name)?;
        if self.jobs.is_dry {
            return Ok(());
        }
        fs::remove_file(&path).map_err(|error| {
            let error = Error::from_io(&error, "cannot remove the file").with("path", path.display());
            error.hint("check owner and mode of its directory: ls -ld")
        })?;
        let folders = path.ancestors().skip(1).take_while(|folder| *folder != root);
        lock(&self.emptied).extend(folders.map(Path::to_owned));
        Ok(())
    }

    /// Removes folders whose files were removed, where nothing is left in them: buckets have no empty folders. Not while
    /// files are copied: they make folders.
    pub(super) fn remove_emptied(&self) {
        lock(&self.folder).clear();
        // Those in others first.
        for folder in std::mem::take(&mut *lock(&self.emptied)).iter().rev() {
            let _ = fs::remove_dir(folder);
        }
    }
}

/// When the object was written, as a file has it.
fn time_of(item: &Item) -> Option<SystemTime> {
    let seconds = item.modified.and_then(|seconds| u64::try_from(seconds).ok());
    seconds.map(|seconds| SystemTime::UNIX_EPOCH + Duration::from_secs(seconds))
}

/// Removes objects. Returns the names of those that are still there, with the reason.
fn remove_objects(bucket: &Bucket, prefix: &str, names: &[String]) -> Result<Vec<(String, Error)>> {
    let keys: Vec<String> = names.iter().map(|name| format!("{prefix}{name}")).collect();
    // The error of a call for one object names it.
    if let [key] = &keys[..] {
        return bucket.delete(key).map(|()| Vec::new());
    }
    let left = bucket.delete_many(&keys)?.into_iter().map(|(key, error)| {
        let position = keys.iter().position(|one| *one == key);
        position.map(|at| (names[at].clone(), error)).ok_or_else(|| {
            Error::new(ErrorKind::Unsupported, "the server answers for a key that it was not to remove")
                .with("url", bucket.url(&key))
                .hint("report this to those who run the server")
        })
    });
    left.collect()
}

fn state(path: &Path) -> std::io::Result<State> {
    let found = fs::metadata(path)?;
    Ok((found.ino(), found.len(), found.mtime(), found.mtime_nsec()))
}

fn unread(error: &std::io::Error, path: &Path) -> Error {
    let error = Error::from_io(error, "cannot read the file").with("path", path.display());
    error.hint("check owner and mode of the file: ls -l")
}

/// Whether a folder has the file's name, or a file that of one of its folders.
fn is_blocked(path: &Path) -> bool {
    let there = path.ancestors().skip(1).find(|folder| folder.symlink_metadata().is_ok());
    path.is_dir() || there.is_some_and(|folder| !folder.is_dir())
}

fn make_folder(folder: &Path) -> Result<()> {
    use std::io::ErrorKind::{AlreadyExists, NotADirectory};
    fs::create_dir_all(folder).map_err(|error| {
        let is_taken = matches!(error.kind(), AlreadyExists | NotADirectory);
        let error = Error::from_io(&error, "cannot create the directory").with("path", folder.display());
        if is_taken {
            return error.hint(
                "a file has the name of a folder: remove it, or leave the keys below it out with --exclude",
            );
        }
        explain(error)
    })
}
