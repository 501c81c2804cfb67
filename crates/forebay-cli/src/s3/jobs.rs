//! Many files at a time: a few threads take them from a short queue, so that memory does not grow with their number.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, sync_channel};
use std::sync::{Mutex, OnceLock};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use forebay_engine::Session;
use forebay_error::{Error, ErrorKind, Result};
use forebay_models::Pending;
use forebay_objects::Bucket;
use serde_json::json;

use super::sync::How;
use super::tree::{Item, Tree};
use crate::console::{Console, Failure, ProgressLine};
use crate::cp::copy_one;
use crate::interrupt::Guard;

/// Threads: each waits for one small object at a time.
const THREADS: usize = 16;
/// Jobs that wait for a thread.
const QUEUED: usize = 64;
/// Files up to this size are moved by one call each, many at a time; longer ones one by one, in parts.
const SMALL: u64 = 1 << 20;
/// Objects that one call removes.
pub(super) const REMOVED_AT_ONCE: usize = 1000;

/// Something to do.
#[derive(Debug)]
pub(super) enum Job {
    /// Copies a file of one tree to another.
    Copy(Item),
    /// Removes files of the destination.
    Remove(Vec<String>),
}

/// Where jobs are done.
pub(super) struct Jobs<'a, 'c> {
    /// For copies.
    pub(super) source: Option<Tree>,
    pub(super) destination: Tree,
    pub(super) is_dry: bool,
    pub(super) is_json: bool,
    pub(super) console: &'a Console<'c>,
    pub(super) what: &'static str,
}

/// The work, shared by the threads.
struct Work<'a, 'c> {
    jobs: &'a Jobs<'a, 'c>,
    session: OnceLock<Result<Session>>,
    /// A long file is moved by many calls at a time already.
    long: Mutex<()>,
    /// The folder of the last file, which is there.
    folder: Mutex<PathBuf>,
    live: ProgressLine,
    started: Instant,
    files: AtomicU64,
    bytes: AtomicU64,
    failed: AtomicU64,
}

impl<'a, 'c> Jobs<'a, 'c> {
    /// Copies from one tree to another.
    pub(super) fn of_trees(
        source: Tree,
        destination: Tree,
        how: &How,
        console: &'a Console<'c>,
        what: &'static str,
    ) -> Self {
        Self { source: Some(source), destination, is_dry: how.dryrun, is_json: how.json, console, what }
    }

    /// Does all of them. What fails is reported, and the others are done nevertheless.
    pub(super) fn run(&self, jobs: impl Iterator<Item = Result<Job>>) -> Result<i32, Failure> {
        let zero = || AtomicU64::new(0);
        let work = Work {
            jobs: self,
            session: OnceLock::new(),
            long: Mutex::new(()),
            folder: Mutex::default(),
            live: ProgressLine::new(self.what),
            started: Instant::now(),
            files: zero(),
            bytes: zero(),
            failed: zero(),
        };
        let (sender, receiver) = sync_channel::<Job>(QUEUED);
        let receiver = &Mutex::new(receiver);
        let given = thread::scope(|scope| {
            let (sender, work) = (sender, &work);
            let threads = if self.is_dry { 1 } else { THREADS };
            for _ in 0..threads {
                scope.spawn(move || work.take(receiver));
            }
            for job in jobs {
                if Guard::caught().is_some() || sender.send(job?).is_err() {
                    break;
                }
            }
            Ok::<(), Error>(())
        });
        work.live.clear();
        if let Some(signal) = Guard::caught() {
            return Err(Failure::interrupted(
                signal,
                &format!("{} files were done", work.files.load(Relaxed)),
            ));
        }
        given?;
        self.say(&work);
        Ok(i32::from(work.failed.load(Relaxed) > 0))
    }

    fn say(&self, work: &Work<'_, '_>) {
        let [files, bytes, failed] =
            [&work.files, &work.bytes, &work.failed].map(|count| count.load(Relaxed));
        let seconds = work.started.elapsed().as_secs_f64();
        let dry = if self.is_dry { " would be done" } else { "" };
        let failures = if failed > 0 { format!(", {failed} failed") } else { String::new() };
        let bytes = forebay_bench::text::bytes(bytes);
        self.console.say(format!("{}: {files} files, {bytes}{dry} in {seconds:.2} s{failures}\n", self.what));
    }

    /// One line for a file that was done.
    fn line(&self, action: &str, source: Option<&str>, destination: &str, bytes: Option<u64>) {
        if self.is_json {
            let line = json!({
                "action": action, "source": source, "destination": destination, "bytes": bytes, "dryrun": self.is_dry
            });
            return self.console.line(line);
        }
        let dry = if self.is_dry { "(dryrun) " } else { "" };
        let from = source.map_or(String::new(), |source| format!("{} to ", forebay_error::plain(source)));
        self.console.line(format!("{dry}{action}: {from}{}", forebay_error::plain(destination)));
    }
}

impl Work<'_, '_> {
    /// Does jobs until there are no more.
    fn take(&self, receiver: &Mutex<Receiver<Job>>) {
        loop {
            // Its guard is gone before the job is done.
            let job = receiver.lock().unwrap_or_else(std::sync::PoisonError::into_inner).recv();
            let Ok(job) = job else { return };
            // The queue is emptied, so that its other end ends.
            if Guard::caught().is_some() {
                continue;
            }
            let done = match &job {
                Job::Copy(item) => self.copy(item),
                Job::Remove(names) => self.remove(names),
            };
            if let Err(error) = done
                && Guard::caught().is_none()
            {
                self.fail(&error);
            }
            self.live.show(self.bytes.load(Relaxed), None, self.started.elapsed());
        }
    }

    fn fail(&self, error: &Error) {
        self.failed.fetch_add(1, Relaxed);
        self.jobs.console.error(error);
    }

    fn copy(&self, item: &Item) -> Result<()> {
        let Some(source) = &self.jobs.source else { return Ok(()) };
        let destination = &self.jobs.destination;
        let (from, to) = (source.place(&item.name)?, destination.place(&item.name)?);
        let action = match (source, destination) {
            (Tree::Folder(_), _) => "upload",
            (_, Tree::Folder(_)) => "download",
            _ => "copy",
        };
        if !self.jobs.is_dry {
            match (source, destination) {
                (Tree::Prefix(bucket, prefix), Tree::Prefix(target, target_prefix)) => {
                    let key = |prefix: &str| format!("{prefix}{}", item.name);
                    target.copy_from(bucket, &key(prefix), &key(target_prefix))
                }
                (Tree::Prefix(bucket, prefix), Tree::Folder(_)) => {
                    self.download(bucket, prefix, item, &destination.path(&item.name)?)
                }
                (Tree::Folder(_), Tree::Prefix(bucket, prefix)) => {
                    self.upload(&source.path(&item.name)?, bucket, &format!("{prefix}{}", item.name), item)
                }
                (Tree::Folder(_), Tree::Folder(_)) => Ok(()),
            }?;
        }
        self.files.fetch_add(1, Relaxed);
        self.bytes.fetch_add(item.len, Relaxed);
        self.jobs.line(action, Some(&from), &to, Some(item.len));
        Ok(())
    }

    fn upload(&self, path: &Path, bucket: &Bucket, key: &str, item: &Item) -> Result<()> {
        if item.len > SMALL {
            return self.copy_long(path, Path::new(&bucket.url(key)), None);
        }
        let bytes = fs::read(path).map_err(|error| {
            let error = Error::from_io(&error, "cannot read the file").with("path", path.display());
            error.hint("check owner and mode of the file: ls -l")
        })?;
        bucket.put(key, &bytes)
    }

    fn download(&self, bucket: &Bucket, prefix: &str, item: &Item, path: &Path) -> Result<()> {
        if let Some(folder) = path.parent() {
            self.make_folder(folder)?;
        }
        let key = format!("{prefix}{}", item.name);
        let modified = item.modified.and_then(|seconds| u64::try_from(seconds).ok());
        let modified = modified.map(|seconds| SystemTime::UNIX_EPOCH + Duration::from_secs(seconds));
        if item.len > SMALL {
            return self.copy_long(&PathBuf::from(bucket.url(&key)), path, modified);
        }
        let bytes = bucket.get(&key, item.etag.as_deref())?;
        if bytes.len() as u64 != item.len {
            return Err(Error::new(ErrorKind::Busy, "the object has another length than in the listing")
                .with("url", bucket.url(&key))
                .hint("run the command again"));
        }
        Pending::write(path, &bytes, modified)
    }

    /// Makes a folder for files. Items come in an order that has the files of a folder together, as far as it has no folders of its own.
    fn make_folder(&self, folder: &Path) -> Result<()> {
        let mut last = self.folder.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        if *last == folder {
            return Ok(());
        }
        fs::create_dir_all(folder).map_err(|error| {
            let error = Error::from_io(&error, "cannot create the directory").with("path", folder.display());
            error.hint("a key may be both a file and a folder of others: leave one out with --exclude")
        })?;
        // Once for all of its files: looking through a folder for each of them takes the square of their number.
        Pending::clear(folder);
        folder.clone_into(&mut last);
        Ok(())
    }

    fn copy_long(&self, source: &Path, destination: &Path, modified: Option<SystemTime>) -> Result<()> {
        let _alone = self.long.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let session = self.session.get_or_init(Session::open).as_ref().map_err(Clone::clone)?;
        copy_one(session, source, destination, modified).map(drop).map_err(|failure| failure.error)
    }

    /// Removes files of the destination.
    fn remove(&self, names: &[String]) -> Result<()> {
        let destination = &self.jobs.destination;
        let left = match destination {
            Tree::Prefix(..) if self.jobs.is_dry => Vec::new(),
            Tree::Prefix(bucket, prefix) => {
                let keys: Vec<String> = names.iter().map(|name| format!("{prefix}{name}")).collect();
                let left = bucket.delete_many(&keys)?;
                left.into_iter()
                    .map(|(key, error)| (key[prefix.len().min(key.len())..].to_owned(), error))
                    .collect()
            }
            Tree::Folder(_) => {
                names.iter().filter_map(|name| Some((name.clone(), self.unlink(name).err()?))).collect()
            }
        };
        for name in names.iter().filter(|name| left.iter().all(|(one, _)| one != *name)) {
            self.files.fetch_add(1, Relaxed);
            self.jobs.line("delete", None, &destination.place(name)?, None);
        }
        for (_, error) in &left {
            self.fail(error);
        }
        Ok(())
    }

    fn unlink(&self, name: &str) -> Result<()> {
        let path = self.jobs.destination.own_path(name)?;
        if self.jobs.is_dry {
            return Ok(());
        }
        fs::remove_file(&path).map_err(|error| {
            let error = Error::from_io(&error, "cannot remove the file").with("path", path.display());
            error.hint("check owner and mode of its directory: ls -ld")
        })
    }
}
