//! The files that are measured: named by the user, as a path or a URL, or made by the report.

use std::fs::{self, File};
use std::io::{Seek, SeekFrom, Write};
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::mpsc::channel;
use std::time::Duration;

use forebay_doctor::storage::{self, DiskKind};
use forebay_doctor::{RealSystem, System};
use forebay_error::{Error, ErrorKind, Result};
use forebay_source::Location;

use crate::made::Content;

/// The name of a file that is made in a directory.
pub(crate) const FILE_NAME: &str = "forebay-report.data";
/// The name of a folder that is made in a directory, with a file for each worker.
pub(crate) const FOLDER_NAME: &str = "forebay-report.files";
/// The shortest file that is measured: rows have I/Os of up to 16 MiB.
pub const MIN_FILE_BYTES: u64 = 16 << 20;
/// Bytes of one write call.
const WRITE_BYTES: usize = 4 << 20;

/// A file to measure.
#[derive(Clone, Debug)]
pub(crate) struct Target {
    /// As given, absolute; or a URL.
    pub(crate) given: PathBuf,
    /// The file.
    pub(crate) file: PathBuf,
    /// Whether it was made, so that it may be written and is removed in the end.
    pub(crate) made: bool,
    /// Whether its pages can be dropped from the page cache.
    pub(crate) can_be_cold: bool,
    /// `rdma`, `tcp` of an NFS mount; the scheme of a URL: `nfs://`.
    pub(crate) nfs: Option<String>,
    /// PCI address of its drive's controller.
    pub(crate) controller: Option<String>,
}

/// Longest wait for a path's file system. A path that takes longer is on a server that is gone.
const ANSWER_LIMIT: Duration = Duration::from_secs(30);

impl Target {
    /// What is at `path`, if that answers.
    pub(crate) fn look_for(path: &Path) -> Result<Self> {
        let (found, answer) = channel();
        let own = path.to_owned();
        std::thread::spawn(move || found.send(Self::find(&own)));
        answer.recv_timeout(ANSWER_LIMIT).unwrap_or_else(|_| {
            let message = format!("no answer from the file system in {} s", ANSWER_LIMIT.as_secs());
            Err(Error::new(ErrorKind::Timeout, message)
                .with("path", path.display())
                .hint(format!("forebay doctor {}", path.display())))
        })
    }

    /// What is at `path`: a file or block device that is there, or the place where one is made.
    fn find(path: &Path) -> Result<Self> {
        if let Location::Url(opener) = Location::of(path)? {
            return Self::of_server(path, opener.scheme());
        }
        let given = std::path::absolute(path)
            .map_err(|error| Error::from_io(&error, "cannot use path").with("path", path.display()))?;
        let (file, made) = match fs::metadata(&given) {
            Ok(found) if found.is_dir() => (given.join(FILE_NAME), true),
            Ok(found) if found.is_file() || found.file_type().is_block_device() => (given.clone(), false),
            Ok(_) => return Err(bad("cannot measure: not a file, block device or directory", &given)),
            Err(error) => {
                return Err(Error::from_io(&error, "cannot use path").with("path", given.display()).hint(
                    forebay_source::hint_for_missing(path).unwrap_or_else(|| {
                        "name a directory, where a file is made, or a file that is there".to_owned()
                    }),
                ));
            }
        };
        let name = given.display().to_string();
        let place = storage::place(&RealSystem, &RealSystem.resolve(&name).unwrap_or(name));
        let nfs = place.nfs.map(|nfs| nfs.transport);
        let can_be_cold = place.kind != DiskKind::Memory;
        let one = Self { given, file, made, can_be_cold, nfs, controller: place.controller };
        if !made {
            File::open(&one.file).map_err(|error| unreadable(&error, &one.given))?;
            long_enough(one.length()).map_err(|error| error.with("path", one.given.display()))?;
            whole(&one)?;
        }
        Ok(one)
    }

    /// A file of a server, without a mount.
    fn of_server(path: &Path, scheme: &str) -> Result<Self> {
        let length = length_there(path)?;
        long_enough(length).map_err(|error| error.with("url", path.display()))?;
        let (given, file) = (path.to_owned(), path.to_owned());
        let nfs = Some(format!("{scheme}://"));
        Ok(Self { given, file, made: false, can_be_cold: true, nfs, controller: None })
    }

    /// The folder with a file for each worker.
    pub(crate) fn folder(&self) -> PathBuf {
        self.given.join(FOLDER_NAME)
    }

    /// The file of a worker there, as gdsio and `forebay bench -D` name it.
    pub(crate) fn file_of(&self, worker: usize) -> PathBuf {
        self.folder().join(format!("gdsio.{worker}"))
    }

    /// Whether it is named by a URL.
    pub(crate) fn is_url(&self) -> bool {
        forebay_source::scheme_of(&self.given).is_some()
    }

    /// The size to make: the one asked for, or that of the file made earlier, or `default` if there is room.
    pub(crate) fn size(&self, asked: Option<u64>, before: Option<u64>, default: u64) -> u64 {
        asked.or(before).unwrap_or_else(|| {
            // An existing file is replaced.
            let here = fs::symlink_metadata(&self.file).map_or(0, |found| found.blocks() * 512);
            let room = free(&self.given).map_or(u64::MAX, |free| free.saturating_add(here));
            default.min((room / 4) & !0xF_FFFF).max(MIN_FILE_BYTES)
        })
    }

    /// The length of a file or block device that is there.
    pub(crate) fn length(&self) -> u64 {
        if self.is_url() {
            return length_there(&self.given).unwrap_or(0);
        }
        let end = File::open(&self.file).and_then(|mut file| file.seek(SeekFrom::End(0)));
        end.unwrap_or(0)
    }
}

/// In a shorter file a row's I/Os would be shorter than its label.
fn long_enough(length: u64) -> Result<()> {
    if length >= MIN_FILE_BYTES {
        return Ok(());
    }
    Err(Error::new(ErrorKind::InvalidInput, "the file is too short to be measured")
        .with("bytes", length)
        .hint(format!("name a file of at least {} MiB", MIN_FILE_BYTES >> 20)))
}

/// Reads of holes and of unwritten blocks do not reach the drive: their rates mean nothing.
fn whole(target: &Target) -> Result<()> {
    match forebay_bench::empty_bytes(&target.file, 0..target.length()) {
        None | Some(0) => Ok(()),
        Some(empty) => {
            let path = forebay_error::quoted(&target.given.display().to_string());
            Err(Error::new(ErrorKind::InvalidInput, "the file has holes, or blocks that were never written")
                .with("path", target.given.display())
                .with("bytes", empty)
                .hint(format!("measure a copy that has none: cp --sparse=never --reflink=never {path} COPY")))
        }
    }
}

fn length_there(url: &Path) -> Result<u64> {
    forebay_engine::File::open(url)?.len()
}

/// A file to measure of this size: the pattern that bench takes for its own.
pub(crate) struct Data(pub(crate) u64);

impl Content for Data {
    fn name(&self) -> &'static str {
        "file to measure"
    }

    fn len(&self) -> u64 {
        self.0
    }

    fn fills(&self, file: &File) -> bool {
        let mut head = [0; 4096];
        let len = file.read_at(&mut head, 0).unwrap_or(0);
        len > 0 && forebay_gpu::first_mismatch(&head[..len], key(), 0).is_none()
    }

    fn write(&self, file: &mut File, stopped: &dyn Fn() -> bool) -> std::io::Result<bool> {
        let mut block = vec![0; WRITE_BYTES];
        let mut at = 0;
        while at < self.0 {
            if stopped() {
                return Ok(false);
            }
            let len = WRITE_BYTES.min((self.0 - at) as usize);
            forebay_gpu::fill_pattern(&mut block[..len], key(), at);
            file.write_all(&block[..len])?;
            at += len as u64;
        }
        Ok(true)
    }
}

fn key() -> u64 {
    forebay_bench::pattern_key(Path::new(FILE_NAME), 0)
}

/// Bytes that are free where `path` is, if its file system counts them.
pub(crate) fn free(path: &Path) -> Option<u64> {
    Some(forebay_bench::room(path)?.bytes)
}

fn unreadable(error: &std::io::Error, path: &Path) -> Error {
    let error = Error::from_io(error, "cannot open file").with("path", path.display());
    match error.kind() {
        ErrorKind::PermissionDenied => {
            error.hint("check the file's mode and owner (ls -l), and the directories above it")
        }
        _ => error,
    }
}

fn bad(message: &str, path: &Path) -> Error {
    Error::new(ErrorKind::InvalidInput, message)
        .with("path", path.display())
        .hint("name a directory or a file")
}
