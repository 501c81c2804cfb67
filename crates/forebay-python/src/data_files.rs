//! Files of data sets, each opened when it is first read. Of more files than descriptors allow, idle ones are closed.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::{Duration, Instant};

use forebay_engine::{File as Engine, FileVersion, StateToken};
use forebay_error::{Error, ErrorKind, Result};
use forebay_sys::file_systems;
use pyo3::prelude::*;
use rustix::process::{Resource, getrlimit};

use crate::flights::{Flights, lock};
use crate::locations;
use crate::text::FilePath;

/// How long a file system that answers EAGAIN is asked again: the kernel ends another process's lease after 45 s.
const PATIENCE: Duration = Duration::from_mins(1);

/// Files of a data set, each opened when its first record is read.
#[pyclass(frozen, module = "forebay._forebay")]
pub(crate) struct Files(pub(crate) Arc<Vec<Slot>>);

#[pymethods]
impl Files {
    /// Files, (path, bytes, nanoseconds of the last change) each, and of each its inode and when that changed, where these
    /// are known. A URL has another number in place of the time, or none.
    #[new]
    fn new(files: Vec<(FilePath, u64, Option<i64>)>, marks: Option<Vec<(u64, i64)>>) -> Self {
        let mut marks = marks.into_iter().flatten();
        let slot = |(FilePath(path), size, changed)| Slot {
            path,
            size,
            changed,
            first: marks.next().map_or_else(OnceLock::new, OnceLock::from),
            open: Mutex::new(None),
        };
        Self(Arc::new(files.into_iter().map(slot).collect()))
    }

    /// The number of the first file from `start` on, of at most `count`, that is not what it was.
    fn changed(&self, py: Python<'_>, start: usize, count: usize) -> Option<usize> {
        let files = self.0.get(start..).unwrap_or_default();
        let files = &files[..count.min(files.len())];
        py.detach(|| first_changed(files)).map(|at| start + at)
    }

    fn __len__(&self) -> usize {
        self.0.len()
    }
}

/// The first found of some files that is not what it was.
fn first_changed(files: &[Slot]) -> Option<usize> {
    let (urls, paths): (Vec<_>, Vec<_>) = (0..files.len()).partition(|at| Engine::is_url(&files[*at].path));
    let locations: Vec<_> = urls.iter().map(|at| files[*at].path.as_path()).collect();
    let is_other = |at: usize, state: Option<Result<locations::State>>| match state {
        None => false,
        Some(state) => !state.is_ok_and(|state| files[at].is_version(&Version::of_state(state))),
    };
    let states = locations::states_of(&locations);
    let url = urls.into_iter().zip(states).find_map(|(at, state)| is_other(at, state).then_some(at));
    let path = paths.into_iter().find(|at| !files[*at].is_as_it_was());
    url.into_iter().chain(path).min()
}

/// The files that data sets of a process have open.
#[derive(Default)]
pub(crate) struct OpenFiles {
    /// Those that may be idle, each with its number in its set.
    idle: Mutex<Vec<(Weak<Vec<Slot>>, usize)>>,
    count: Mutex<u64>,
    fewer: Condvar,
}

impl OpenFiles {
    fn count(&self) -> u64 {
        *lock(&self.count)
    }

    /// How many are open, if no more may be.
    fn full(&self) -> Option<u64> {
        let count = self.count();
        (count >= most_open()).then_some(count)
    }

    /// Takes down a file that was opened.
    fn may_be_idle(&self, set: &Arc<Vec<Slot>>, number: usize) {
        let most = 64 + 2 * self.count() as usize;
        let mut idle = lock(&self.idle);
        if idle.len() > most {
            idle.retain(|(set, _)| set.strong_count() > 0);
        }
        idle.push((Arc::downgrade(set), number));
    }

    /// Closes all files that nobody reads, of all data sets.
    fn close_idle(&self) {
        let idle = std::mem::take(&mut *lock(&self.idle));
        for (files, number) in idle {
            // Closed without a lock.
            let closed = files.upgrade().map(|files| lock(&files[number].open).take());
            drop(closed);
        }
    }

    /// Waits until fewer than `count` are open, at most for `limit`: what became idle meanwhile is not told. Whether they are.
    pub(crate) fn wait_below(&self, count: u64, limit: Duration) -> bool {
        let open = lock(&self.count);
        let waited = self.fewer.wait_timeout_while(open, limit, |open| *open >= count);
        *waited.unwrap_or_else(PoisonError::into_inner).0 < count
    }
}

/// An open file, as long as its data set or a transfer holds it.
pub(crate) struct OpenFile {
    pub(crate) engine: Engine,
    /// Its state when it was opened.
    opened: Option<StateToken>,
    /// The process's that opened it.
    home: &'static Flights,
}

impl OpenFile {
    /// Whether its state is asked for by the network: the answer may take long.
    pub(crate) fn is_elsewhere(&self) -> bool {
        self.engine.path().is_none()
    }

    /// An error if the file has changed, or if that is unknown.
    pub(crate) fn check(&self) -> Result<()> {
        // Its reads have failed otherwise.
        if self.engine.reads_one_state() {
            return Ok(());
        }
        let Some(then) = &self.opened else { return Ok(()) };
        let is_same = self.engine.state()?.is_some_and(|now| now.has_bytes_of(then));
        if is_same { Ok(()) } else { Err(self.changed()) }
    }

    /// The error of a read after which it is not, or that met its end: when it was opened there were records behind that.
    pub(crate) fn changed(&self) -> Error {
        let text = "the file changed since the data set was opened: the bytes read are of no single state";
        Error::new(ErrorKind::Busy, text)
            .with("path", self.engine.name())
            .hint("open the data set anew")
            .hint("to change a file that is read, write another one and rename it")
    }
}

impl Drop for OpenFile {
    fn drop(&mut self) {
        // In a forked child the lock may be held by a thread that is not there.
        if self.home.is_here() {
            *lock(&self.home.files.count) -= 1;
            self.home.files.fewer.notify_all();
        }
    }
}

/// The result of opening a file.
pub(crate) enum Opening {
    Open(Arc<OpenFile>),
    /// Only once others are closed: this number is open, and all of them are read.
    Later(u64),
}

/// A file of a data set.
pub(crate) struct Slot {
    pub(crate) path: PathBuf,
    /// Bytes, and nanoseconds of the last change, when the data set was opened: what is there by now has to be the same.
    pub(crate) size: u64,
    changed: Option<i64>,
    /// Inode and time of its change, in nanoseconds, of the file that was opened first.
    first: OnceLock<(u64, i64)>,
    open: Mutex<Option<Arc<OpenFile>>>,
}

impl Slot {
    /// A file of a set, open. Files that nobody reads are closed for it where descriptors are few.
    pub(crate) fn open(set: &Arc<Vec<Self>>, number: usize) -> Result<Opening> {
        let slot = &set[number];
        if let Some(file) = &*lock(&slot.open) {
            return Ok(Opening::Open(file.clone()));
        }
        let files = &Flights::here().files;
        if files.full().is_some() {
            files.close_idle();
        }
        if let Some(count) = files.full() {
            return Ok(Opening::Later(count));
        }
        let mut opened = slot.open_now();
        // The program has the others.
        if opened.as_ref().is_err_and(|error| error.kind() == ErrorKind::TooManyFiles) {
            files.close_idle();
            let count = files.count();
            opened = slot.open_now();
            if count > 0 && opened.as_ref().is_err_and(|error| error.kind() == ErrorKind::TooManyFiles) {
                return Ok(Opening::Later(count));
            }
        }
        let opened = opened?;
        files.may_be_idle(set, number);
        Ok(Opening::Open(opened))
    }

    fn open_now(&self) -> Result<Arc<OpenFile>> {
        let engine = Engine::open(&self.path)?;
        let opened = engine.state()?;
        self.check(&engine, opened.as_ref())?;
        let home = Flights::here();
        let mut slot: MutexGuard<'_, _> = lock(&self.open);
        // Another thread may have been quicker.
        Ok(slot
            .get_or_insert_with(|| {
                *lock(&home.files.count) += 1;
                Arc::new(OpenFile { engine, opened, home })
            })
            .clone())
    }

    /// Whether the file of its name is unchanged. An error counts as a change: opening the file reports it.
    fn is_as_it_was(&self) -> bool {
        version_of(&self.path).is_ok_and(|found| self.is_version(&found))
    }

    /// Whether a version is that of the file when the data set was opened, or when it was read first.
    pub(crate) fn is_version(&self, found: &Version) -> bool {
        // A copy that keeps the time of change has another inode. Where inode numbers change the time of the inode's change tells.
        let is_first = || {
            let first = *self.first.get_or_init(|| (found.inode, found.inode_changed));
            first.0 == found.inode || (first.1 == found.inode_changed && !keeps_inode_numbers(&self.path))
        };
        found.is_file && found.size == self.size && found.changed == self.changed && is_first()
    }

    /// An error if it is another file than when the data set was opened, or when it was read first.
    fn check(&self, file: &Engine, opened: Option<&StateToken>) -> Result<()> {
        let size = file.len()?;
        let found = if file.reads_one_state() {
            Version::of_url(size, opened.map(locations::number_of))
        } else {
            // Asked by the name behind the opening: what took its place before is another one, too.
            version_of(&self.path)?
        };
        if size == self.size && self.is_version(&found) {
            return Ok(());
        }
        Err(Error::new(ErrorKind::Busy, "the file changed since the data set was opened")
            .with("path", self.path.display())
            .with("bytes", size)
            .with("before", self.size)
            .hint("open the data set anew"))
    }
}

/// A file takes two descriptors: half of them are left to the program.
fn most_open() -> u64 {
    getrlimit(Resource::Nofile).current.map_or(u64::MAX, |limit| (limit / 4).max(1))
}

/// Distinguishes a file from others, and its present state from earlier ones.
pub(crate) struct Version {
    is_file: bool,
    size: u64,
    /// Nanoseconds of the last change; of a URL a number of its state. `None` where its source does not tell states apart.
    changed: Option<i64>,
    inode: u64,
    /// Nanoseconds of the last change of the inode.
    inode_changed: i64,
}

impl Version {
    /// That of what a URL names.
    fn of_state((is_folder, size, changed): locations::State) -> Self {
        Self { is_file: !is_folder, ..Self::of_url(size, changed) }
    }

    /// That of a file at a URL: its length, and the number of its state.
    fn of_url(size: u64, changed: Option<i64>) -> Self {
        Self { is_file: true, size, changed, inode: 0, inode_changed: 0 }
    }
}

impl From<&FileVersion> for Version {
    /// Of an open file, which the engine only reads if it has bytes.
    fn from(found: &FileVersion) -> Self {
        Self {
            is_file: true,
            size: found.len,
            changed: Some(nanoseconds(found.modified)),
            inode: found.inode,
            inode_changed: nanoseconds(found.changed),
        }
    }
}

/// What a name has now.
fn version_of(path: &Path) -> Result<Version> {
    if Engine::is_url(path) {
        return locations::state_of(path).map(Version::of_state);
    }
    let end = Instant::now() + PATIENCE;
    let found = loop {
        match std::fs::metadata(path) {
            // No answer of a file system.
            Err(error)
                if matches!(error.raw_os_error(), Some(libc::EINTR | libc::EAGAIN))
                    && Instant::now() < end =>
            {
                std::thread::sleep(Duration::from_millis(10));
            }
            found => break found,
        }
    };
    let found = found.map_err(|error| {
        Error::from_io(&error, "cannot read the file's attributes").with("path", path.display())
    })?;
    Ok(Version {
        is_file: found.is_file(),
        size: found.size(),
        changed: Some(nanoseconds((found.mtime(), found.mtime_nsec()))),
        inode: found.ino(),
        inode_changed: nanoseconds((found.ctime(), found.ctime_nsec())),
    })
}

fn keeps_inode_numbers(path: &Path) -> bool {
    rustix::fs::statfs(path).is_ok_and(|found| file_systems::keeps_inode_numbers(found.f_type))
}

fn nanoseconds((seconds, rest): (i64, i64)) -> i64 {
    seconds.saturating_mul(1_000_000_000).saturating_add(rest)
}
