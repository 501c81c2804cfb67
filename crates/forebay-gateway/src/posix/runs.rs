//! Names of large directories in their order, a run of them at a time.
//!
//! No file system returns names in their order: the smallest are known when all were read. So a page of a flat directory of a million
//! names reads them all; it keeps the next 16 Ki of them, and the pages that follow take those while the directory stays as it was. The
//! names of smaller directories are kept, too: to read and to sort them is a third of a page that begins with them.

use std::collections::{HashSet, VecDeque};
use std::mem::size_of;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustix::fs::{FileType, RawDir, SeekFrom, Statx, StatxTimestamp};
use rustix::io::Errno;

use super::names::is_own;
use super::tree::{self, failed, fault};
use crate::store::StoreResult;

/// Bytes of names that one call reads.
pub(super) const READ_AT_ONCE: usize = 64 << 10;

/// A change within a file system's resolution of time leaves a directory's times as they are. A younger one is read again.
const SETTLED: Duration = Duration::from_secs(2);

/// The runs that later pages may take.
pub(super) struct NameRuns {
    kept: Mutex<VecDeque<Kept>>,
    bounds: Bounds,
}

/// How much is kept.
#[derive(Clone, Copy)]
struct Bounds {
    /// Names of a run.
    run: usize,
    /// A directory of fewer is read for each page.
    least: usize,
    /// Bytes of all runs.
    bytes: usize,
    /// Runs at a time: each is looked at when one is sought.
    most: usize,
}

struct Kept {
    state: DirState,
    run: Arc<NameRun>,
    bytes: usize,
}

/// What changes with each name in a directory, and with its rights.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct DirState {
    device: (u32, u32),
    ino: u64,
    times: [(i64, u32); 2],
}

impl DirState {
    pub(super) fn of(dir: &OwnedFd) -> StoreResult<Self> {
        Ok(Self::by(&tree::stat_file(dir).map_err(failed("cannot examine directory"))?))
    }

    pub(super) fn by(stat: &Statx) -> Self {
        let time = |time: StatxTimestamp| (time.tv_sec, time.tv_nsec);
        Self {
            device: (stat.stx_dev_major, stat.stx_dev_minor),
            ino: stat.stx_ino,
            times: [time(stat.stx_mtime), time(stat.stx_ctime)],
        }
    }

    pub(super) fn is_settled(&self) -> bool {
        let before = SystemTime::now().checked_sub(SETTLED).unwrap_or(UNIX_EPOCH);
        self.times.iter().all(|(seconds, nanoseconds)| {
            UNIX_EPOCH + Duration::new((*seconds).max(0) as u64, *nanoseconds) < before
        })
    }
}

/// Directories in which there is a key, as they were when one was seen. A common prefix is listed by one call of the kernel then.
#[derive(Default)]
pub(super) struct FullDirs(Mutex<HashSet<DirState>>);

/// Directories that are known at a time: 2 MiB.
const MOST_FULL: usize = 16 << 10;

impl FullDirs {
    /// Whether there is a key in it still.
    pub(super) fn has(&self, state: &DirState) -> bool {
        let known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        known.contains(state)
    }

    /// A key was seen in it, after its state.
    pub(super) fn keep(&self, state: DirState) {
        if !state.is_settled() {
            return;
        }
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if known.len() >= MOST_FULL {
            known.clear();
        }
        known.insert(state);
    }
}

/// Names that follow each other, none between them is missing. That of a directory has a `/` at its end.
pub(super) struct NameRun {
    /// None before it.
    floor: String,
    /// Whether each is a directory is seen by its end.
    pub(super) names: Vec<String>,
    /// No name follows.
    pub(super) is_last: bool,
    /// In the directory.
    seen: usize,
}

impl NameRun {
    /// The place of the first name that is not before this one; `None` where the run cannot know it.
    pub(super) fn place(&self, floor: &str) -> Option<usize> {
        if floor < self.floor.as_str() {
            return None;
        }
        let at = self.names.partition_point(|name| name.as_str() < floor);
        (self.is_last || at < self.names.len()).then_some(at)
    }

    fn bytes(&self) -> usize {
        // What the C library adds to each.
        let held = |name: &String| name.capacity().max(24).next_multiple_of(16) + 8 + size_of::<String>();
        self.names.iter().map(held).sum()
    }
}

impl Default for NameRuns {
    fn default() -> Self {
        Self::with(Bounds { run: 16 << 10, least: 64, bytes: 6 << 20, most: 256 })
    }
}

impl NameRuns {
    fn with(bounds: Bounds) -> Self {
        Self { kept: Mutex::default(), bounds }
    }

    /// A run that has the first name not before `floor`.
    pub(super) fn run(&self, dir: &OwnedFd, floor: &str) -> StoreResult<Arc<NameRun>> {
        let state = DirState::of(dir)?;
        if let Some(run) = self.find(state, floor) {
            return Ok(run);
        }
        let run = Arc::new(read_run(dir, floor, self.bounds.run)?);
        if run.seen >= self.bounds.least && state.is_settled() && DirState::of(dir)? == state {
            self.keep(Kept { state, bytes: run.bytes(), run: Arc::clone(&run) });
        }
        Ok(run)
    }

    fn find(&self, state: DirState, floor: &str) -> Option<Arc<NameRun>> {
        let kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        let found = kept.iter().find(|one| one.state == state && one.run.place(floor).is_some());
        found.map(|one| Arc::clone(&one.run))
    }

    /// The oldest ones go.
    fn keep(&self, new: Kept) {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        // Runs of an older state of the directory are of no use.
        let is_of_it = |one: &Kept| (one.state.device, one.state.ino) == (new.state.device, new.state.ino);
        kept.retain(|one| !is_of_it(one) || one.state == new.state);
        kept.push_back(new);
        let mut bytes = kept.iter().map(|one| one.bytes).sum::<usize>();
        while bytes > self.bounds.bytes || kept.len() > self.bounds.most {
            let Some(oldest) = kept.pop_front() else { return };
            bytes -= oldest.bytes;
        }
    }
}

/// Reads all names, and keeps the smallest that are not before `floor`.
fn read_run(dir: &OwnedFd, floor: &str, most: usize) -> StoreResult<NameRun> {
    let (mut smallest, mut text, mut seen) = (Smallest::new(most), String::new(), 0);
    read_names(dir, READ_AT_ONCE, |name, kind| {
        seen += 1;
        text.clear();
        text.push_str(name);
        match kind {
            FileType::RegularFile => {}
            FileType::Directory if !is_own(name) => text.push('/'),
            _ => return true,
        }
        if text.as_str() >= floor {
            smallest.add(&text);
        }
        true
    })?;
    let (names, is_last) = smallest.sorted();
    Ok(NameRun { floor: floor.to_owned(), names, is_last, seen })
}

/// The smallest of many names, which come in any order. A name may come twice.
struct Smallest {
    names: Vec<String>,
    most: usize,
    /// As many as are wanted are not larger than this one.
    bound: Option<String>,
}

impl Smallest {
    fn new(most: usize) -> Self {
        Self { names: Vec::new(), most, bound: None }
    }

    fn add(&mut self, name: &str) {
        if self.bound.as_ref().is_some_and(|bound| bound.as_str() <= name) {
            return;
        }
        self.names.push(name.to_owned());
        // Half as many again, so that few of them are moved.
        if self.names.len() > self.most + self.most / 2 {
            self.sort();
        }
    }

    fn sort(&mut self) {
        self.names.sort_unstable();
        self.names.dedup();
        if self.names.len() > self.most {
            self.names.truncate(self.most);
            self.bound = self.names.last().cloned();
        }
    }

    /// The names in their order, and whether they are all.
    fn sorted(mut self) -> (Vec<String>, bool) {
        self.sort();
        self.names.shrink_to_fit();
        (self.names, self.bound.is_none())
    }
}

/// Calls `each` for the names of an open directory, from its beginning, until that returns `false`. Names that are not UTF-8 are no
/// keys.
pub(super) fn read_names(
    dir: &OwnedFd,
    room: usize,
    mut each: impl FnMut(&str, FileType) -> bool,
) -> StoreResult<()> {
    rustix::fs::seek(dir, SeekFrom::Start(0)).map_err(failed("cannot read directory"))?;
    let mut buffer: Vec<u8> = Vec::with_capacity(room);
    let mut names = RawDir::new(dir, buffer.spare_capacity_mut());
    while let Some(entry) = names.next() {
        let entry = match entry {
            Ok(entry) => entry,
            // It was removed since it was opened.
            Err(Errno::NOENT) => return Ok(()),
            Err(errno) => return Err(fault(errno, "cannot read directory")),
        };
        let Ok(name) = entry.file_name().to_str() else { continue };
        if name == "." || name == ".." {
            continue;
        }
        let kind = match entry.file_type() {
            FileType::Unknown => match tree::stat_name(dir, name) {
                Ok(stat) => FileType::from_raw_mode(u32::from(stat.stx_mode)),
                Err(Errno::NOENT) => continue,
                Err(errno) => return Err(fault(errno, "cannot examine file")),
            },
            kind => kind,
        };
        if !each(name, kind) {
            return Ok(());
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::path::Path;

    use super::*;

    fn open(path: &Path) -> OwnedFd {
        std::fs::File::open(path).unwrap().into()
    }

    /// All names by runs, as a listing walks them.
    fn all(runs: &NameRuns, dir: &OwnedFd) -> Vec<String> {
        let (mut all, mut floor) = (Vec::new(), String::new());
        loop {
            let run = runs.run(dir, &floor).unwrap();
            all.extend_from_slice(&run.names[run.place(&floor).unwrap()..]);
            if run.is_last {
                return all;
            }
            floor = format!("{}\0", run.names.last().unwrap());
        }
    }

    #[test]
    fn runs_have_each_name_once_and_a_directory_that_settled_is_read_once() {
        let dir = tempfile::tempdir().unwrap();
        let mut expected = BTreeSet::new();
        for at in 0..100 {
            std::fs::write(dir.path().join(format!("f{}", at * 37 % 100)), "").unwrap();
            expected.insert(format!("f{at}"));
        }
        std::fs::create_dir(dir.path().join("f5-")).unwrap();
        std::fs::create_dir(dir.path().join(".forebay")).unwrap();
        expected.insert("f5-/".into());
        let open = open(dir.path());
        let runs = NameRuns::with(Bounds { run: 7, least: 50, bytes: 1 << 20, most: 100 });
        let sorted = |names: &BTreeSet<String>| names.iter().cloned().collect::<Vec<_>>();
        assert_eq!(all(&runs, &open), sorted(&expected));
        let is_kept = || Arc::ptr_eq(&runs.run(&open, "f2").unwrap(), &runs.run(&open, "f2").unwrap());
        assert!(!is_kept(), "it has not settled");
        std::thread::sleep(SETTLED + Duration::from_millis(100));
        assert_eq!(all(&runs, &open), sorted(&expected));
        assert!(is_kept());
        // A new name is seen at once, also where it would be in a run that is kept.
        std::fs::write(dir.path().join("f20a"), "").unwrap();
        expected.insert("f20a".into());
        assert!(!is_kept());
        assert_eq!(all(&runs, &open), sorted(&expected));
    }

    #[test]
    fn memory_is_bounded() {
        let dir = tempfile::tempdir().unwrap();
        for at in 0..100 {
            std::fs::write(dir.path().join(format!("{at:0200}")), "").unwrap();
        }
        let open = open(dir.path());
        std::thread::sleep(SETTLED + Duration::from_millis(100));
        let runs = NameRuns::with(Bounds { run: 10, least: 1, bytes: 5000, most: 100 });
        assert_eq!(all(&runs, &open).len(), 100);
        {
            let kept = runs.kept.lock().unwrap();
            assert_eq!(kept.len(), 2);
            assert!(kept.iter().map(|one| one.run.bytes()).sum::<usize>() <= 5000);
        }
        let few = NameRuns::with(Bounds { run: 10, least: 1, bytes: 1 << 20, most: 3 });
        assert_eq!(all(&few, &open).len(), 100);
        assert_eq!(few.kept.lock().unwrap().len(), 3);
    }

    #[test]
    fn the_smallest_names_of_many() {
        let names: Vec<String> = (0..1000).map(|at| format!("{}", at * 7 % 500)).collect();
        let all: Vec<String> = names.iter().cloned().collect::<BTreeSet<_>>().into_iter().collect();
        for most in [1, 2, 7, 499, 500, 501, 2000] {
            let mut smallest = Smallest::new(most);
            for name in &names {
                smallest.add(name);
            }
            let (found, is_all) = smallest.sorted();
            assert_eq!(found, all[..most.min(500)], "{most}");
            assert_eq!(is_all, most >= 500, "{most}");
        }
    }
}
