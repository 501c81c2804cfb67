//! Counters of other processes.

use std::fs::File;
use std::io::ErrorKind as IoKind;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use forebay_config::files::open_plain;
use forebay_error::{Error, ErrorKind, Result};

use crate::layout::{CounterRegion, LAYOUT, MAGIC, SIZE, Words, zeroed};
use crate::memory::{NAME, SUFFIX};
use crate::snapshot::Snapshot;
use crate::{clock, process};

/// The counters of another process, or of one that is gone.
///
/// They are read by `pread` into memory of the reader, never mapped: whatever the other process does to them, the
/// reader sees odd numbers at worst.
#[derive(Debug)]
pub struct Reader {
    file: File,
    path: PathBuf,
    /// The process as seen from here, where it was found by that.
    pid: Option<u32>,
}

impl Reader {
    /// The counters of a running process.
    ///
    /// # Errors
    /// `NotFound`: there is no such process, or it has no counters. `PermissionDenied`: it belongs to another user.
    /// `Unsupported`: its counters are of another version.
    pub fn attach(pid: u32) -> Result<Self> {
        let directory = format!("/proc/{pid}/fd");
        let entries = std::fs::read_dir(&directory).map_err(|error| unreadable(&error, pid))?;
        let own = process::numbers(pid);
        let mut other_layout = None;
        let mut inherited = false;
        for entry in entries.flatten() {
            if !is_candidate(&entry.path()) {
                continue;
            }
            // A descriptor that was closed meanwhile, or a file that only has such a name.
            let reader = match Self::open_file(&entry.path()) {
                Ok(reader) => reader,
                Err(error) if error.kind() == ErrorKind::PermissionDenied => {
                    return Err(error.with("pid", pid));
                }
                Err(error) => {
                    other_layout = other_layout.or((error.kind() == ErrorKind::Unsupported).then_some(error));
                    continue;
                }
            };
            // A forked child still has its parent's descriptor.
            if own.contains(&reader.header()?.header.pid) {
                return Ok(Self { pid: Some(pid), ..reader });
            }
            inherited = true;
        }
        Err(other_layout.map_or_else(|| without(pid, inherited), |error| error.with("pid", pid)))
    }

    /// The counters in a file that `FOREBAY_COUNTERS_DIR` made.
    pub fn open_file(path: &Path) -> Result<Self> {
        let failed = |error: &std::io::Error| {
            let error = Error::from_io(error, "cannot open counters").with("path", path.display());
            match error.kind() {
                ErrorKind::PermissionDenied => {
                    error.hint("run it as the same user, or as root: sudo forebay stats")
                }
                _ => error,
            }
        };
        let reader = Self {
            file: open_plain(path).map_err(|error| failed(&error))?,
            path: path.to_owned(),
            pid: None,
        };
        let header = &reader.header()?.header;
        if header.magic != MAGIC {
            let error = Error::new(ErrorKind::InvalidInput, "cannot read counters: the file holds none");
            return Err(error.with("path", path.display()));
        }
        if header.layout != LAYOUT || header.size != SIZE as u64 {
            return Err(Error::new(
                ErrorKind::Unsupported,
                "cannot read counters: they are of another version",
            )
            .with("layout", header.layout)
            .with("expected", LAYOUT)
            .hint("use the forebay command that was installed with the process's libcufile"));
        }
        Ok(reader)
    }

    /// The counters now.
    pub fn snapshot(&self) -> Result<Snapshot> {
        let mut copy = self.copy(SIZE)?;
        for _ in 0..3 {
            if !is_torn(&copy) {
                break;
            }
            copy = self.copy(SIZE)?;
        }
        // Texts that are torn still are left out: the next snapshot has them.
        let mut snapshot = Snapshot::of(&copy, clock::now(), None);
        snapshot.pid = self.pid.unwrap_or(snapshot.pid);
        Ok(snapshot)
    }

    fn header(&self) -> Result<Box<CounterRegion<u64>>> {
        self.copy(size_of::<crate::layout::RegionHeader<u64>>())
    }

    /// The first bytes of the region; the rest is zero.
    fn copy(&self, length: usize) -> Result<Box<CounterRegion<u64>>> {
        let mut bytes = vec![0; length];
        self.file.read_exact_at(&mut bytes, 0).map_err(|error| {
            let error = match error.kind() {
                IoKind::UnexpectedEof => {
                    Error::new(ErrorKind::InvalidInput, "cannot read counters: they are cut off")
                }
                _ => Error::from_io(&error, "cannot read counters"),
            };
            error.with("path", self.path.display())
        })?;
        let mut region: Box<CounterRegion<u64>> = zeroed();
        for (word, bytes) in region.words_mut().iter_mut().zip(bytes.as_chunks::<8>().0) {
            *word = u64::from_ne_bytes(*bytes);
        }
        Ok(region)
    }
}

/// The processes that have counters which this user may read, by their numbers.
pub fn list() -> Vec<Snapshot> {
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let mut pids: Vec<u32> = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect();
    pids.sort_unstable();
    pids.into_iter().filter_map(|pid| Reader::attach(pid).ok()?.snapshot().ok()).collect()
}

/// The snapshots of all counters in a directory, in the order of their processes' beginning.
pub fn read_directory(directory: &Path) -> Result<Vec<Snapshot>> {
    let entries = std::fs::read_dir(directory).map_err(|error| {
        Error::from_io(&error, "cannot list counters").with("directory", directory.display())
    })?;
    let files = entries.flatten().map(|entry| entry.path());
    let files = files.filter(|path| path.as_os_str().as_encoded_bytes().ends_with(SUFFIX.as_bytes()));
    // A file of a process that died while it made it has no counters.
    let mut snapshots: Vec<_> =
        files.filter_map(|path| Reader::open_file(&path).ok()?.snapshot().ok()).collect();
    snapshots.sort_by_key(|snapshot| snapshot.opened_unix_ns);
    Ok(snapshots)
}

fn is_candidate(link: &Path) -> bool {
    let Ok(target) = std::fs::read_link(link) else { return false };
    let target = target.as_os_str().as_encoded_bytes();
    let target = target.strip_suffix(b" (deleted)").unwrap_or(target);
    target == format!("/memfd:{NAME}").as_bytes() || target.ends_with(SUFFIX.as_bytes())
}

fn is_torn(region: &CounterRegion<u64>) -> bool {
    region.program.is_torn()
        || region.engines.iter().any(crate::layout::TextWords::is_torn)
        || region.refusals.iter().any(crate::layout::TextWords::is_torn)
        || region.notes.iter().any(crate::layout::TextWords::is_torn)
        || region.files.iter().any(crate::layout::TextWords::is_torn)
}

fn unreadable(error: &std::io::Error, pid: u32) -> Error {
    if let Some((why, hint)) = process::hidden_processes() {
        let text = format!("cannot read counters: {why}");
        return Error::new(ErrorKind::NotFound, text).with("pid", pid).hint(hint);
    }
    match error.kind() {
        IoKind::NotFound => Error::new(ErrorKind::NotFound, "cannot read counters: no such process")
            .with("pid", pid)
            .hint("list the processes that have counters: forebay stats"),
        IoKind::PermissionDenied => Error::new(
            ErrorKind::PermissionDenied,
            "cannot read counters: the process belongs to another user",
        )
        .with("pid", pid)
        .hint(format!("run it as that user, or as root: sudo forebay stats -p {pid}")),
        _ => Error::from_io(error, "cannot read counters").with("pid", pid),
    }
}

fn without(pid: u32, inherited: bool) -> Error {
    let why = if inherited {
        "cannot read counters: the process is a forked child that has not used forebay itself"
    } else {
        "cannot read counters: the process does not use forebay (yet)"
    };
    Error::new(ErrorKind::NotFound, why)
        .with("pid", pid)
        .hint("list the processes that have counters: forebay stats")
        .hint("start a program on forebay: forebay run -- COMMAND")
}
