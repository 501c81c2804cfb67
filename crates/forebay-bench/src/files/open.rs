//! The files of a job: found or made, checked, opened.

use std::ffi::CString;
use std::fs;
use std::io::{Seek, SeekFrom};
use std::ops::Range;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileTypeExt;
use std::path::Path;
use std::sync::Arc;

use forebay_engine::File;
use forebay_error::{Error, ErrorKind, Result};
use forebay_gpu::Device;

use super::block_device;
use super::made::MadeFiles;
use crate::raw::{RawFile, RawMap};
use crate::verify::pattern_key;
use crate::workload::job::{Job, JobTarget, Xfer};
use crate::workload::{BenchTask, Foreign, Workload};

/// A file as workers use it.
#[derive(Debug)]
pub(crate) struct OpenFile {
    /// The engine's view; also for residency.
    pub(crate) file: File,
    /// For raw calls.
    pub(crate) raw: Option<RawFile>,
    /// Its pages, for raw calls that read them in place.
    pub(crate) map: Option<Arc<RawMap>>,
    /// The pattern's key.
    pub(crate) key: u64,
}

impl OpenFile {
    pub(crate) fn raw(&self) -> Result<&RawFile> {
        self.raw.as_ref().ok_or_else(|| Error::new(ErrorKind::Internal, "a raw transfer without a raw file"))
    }
}

/// A job that is ready to run.
#[derive(Clone)]
pub(crate) struct ReadyJob<'a> {
    pub(crate) job: &'a Job,
    pub(crate) device: Arc<dyn Device>,
    /// One for all workers, or one for each.
    pub(crate) files: Vec<Arc<OpenFile>>,
    /// The range of each file.
    pub(crate) range: Range<u64>,
    /// Whether part of the range is unallocated: the first pass allocates it.
    pub(crate) fresh: bool,
}

impl ReadyJob<'_> {
    /// Bytes of the data set as gdsio counts them.
    pub(crate) fn data_set(&self) -> u64 {
        (self.range.end - self.range.start) * self.files.len() as u64
    }
}

/// Checks that the job can run, makes missing files for a writing one, and opens the files.
pub(crate) fn prepare<'a>(
    work: &Workload,
    job: &'a Job,
    device: Arc<dyn Device>,
    made: &mut MadeFiles,
) -> Result<ReadyJob<'a>> {
    let writes = work.writes();
    if work.only_writes_in_place() {
        job.paths().iter().try_for_each(|path| writable_in_place(path))?;
    }
    if let JobTarget::Directory(directory) = &job.target {
        check_directory(directory)?;
    }
    let mut files = Vec::new();
    let mut range: Option<Range<u64>> = None;
    let mut fresh = false;
    for path in job.paths() {
        if File::is_url(&path) {
            let (file, this) = open_url(work, job, &path)?;
            range = Some(range.map_or(this.clone(), |range| range.start..range.end.min(this.end)));
            files.push(Arc::new(OpenFile { file, raw: None, map: None, key: pattern_key(&path, work.seed) }));
            continue;
        }
        let found = look(&path, writes)?;
        let block = found.as_ref().is_some_and(|found| found.file_type().is_block_device());
        if block && writes {
            block_device::guard(&path, &work.destroy)?;
        }
        let here =
            found.as_ref().map_or(Ok(0), |found| if block { block_size(&path) } else { Ok(found.len()) })?;
        let this = wanted(work, job, &path, here, block)?;
        fresh |= writes && here < this.end;
        if found.is_none() {
            make(&path)?;
            // A link that led nowhere stays.
            made.add(&path.canonicalize().unwrap_or_else(|_| path.clone()));
        }
        // Writes in place do not make a file longer.
        let whole = work.access.random() || work.mix.is_some() || work.only_writes_in_place();
        if writes && here < this.end && whole {
            make(&path)?.set_len(this.end).map_err(|error| {
                explain(Error::from_io(&error, "cannot set the file's length").with("path", path.display()))
            })?;
        }
        let file =
            File::options().read(true).write(writes).cache(work.config.cache).open(&path).map_err(explain)?;
        range = Some(match range {
            Some(range) => range.start..range.end.min(this.end),
            None => this,
        });
        files.push(Arc::new(OpenFile { file, raw: None, map: None, key: pattern_key(&path, work.seed) }));
    }
    let range = range.unwrap_or(0..0);
    Ok(ReadyJob { job, device, files, range, fresh })
}

fn check_directory(directory: &Path) -> Result<()> {
    let found = fs::metadata(directory).map_err(|error| {
        let error = Error::from_io(&error, "cannot use the directory").with("path", directory.display());
        match forebay_source::hint_for_missing(directory).filter(|_| error.kind() == ErrorKind::NotFound) {
            Some(hint) => error.hint(hint),
            None => explain(error),
        }
    })?;
    if found.is_dir() {
        return Ok(());
    }
    Err(Error::new(ErrorKind::InvalidInput, "not a directory")
        .with("path", directory.display())
        .hint("name a file with -f"))
}

/// A regular file or block device; `None` for a file that is to be made.
fn look(path: &Path, writes: bool) -> Result<Option<fs::Metadata>> {
    let found =
        match fs::metadata(path) {
            Ok(found) => found,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound && writes => return Ok(None),
            Err(error) => {
                let error = Error::from_io(&error, "cannot open file").with("path", path.display());
                return Err(if error.kind() == ErrorKind::NotFound {
                    error.hint(forebay_source::hint_for_missing(path).unwrap_or_else(|| {
                        "check the path, or write the file first: -I 1 -s SIZE".to_owned()
                    }))
                } else {
                    explain(error)
                });
            }
        };
    if found.is_dir() {
        return Err(Error::new(ErrorKind::IsDirectory, "a directory where a file is needed")
            .with("path", path.display())
            .hint("name a directory with -D, a file with -f"));
    }
    if !found.is_file() && !found.file_type().is_block_device() {
        return Err(Error::new(ErrorKind::InvalidInput, "not a regular file or block device")
            .with("path", path.display())
            .hint("pipes, sockets and character devices have no offsets to read at"));
    }
    Ok(Some(found))
}

/// A file of a server, and its range. It is not made, and not made longer by `ftruncate`.
fn open_url(work: &Workload, job: &Job, path: &Path) -> Result<(File, Range<u64>)> {
    // Objects are not written in place: opening one for it says so.
    let is_object = forebay_source::opener_of(path).is_some_and(|opener| opener.scheme() == "s3");
    if work.writes() && work.foreign == Foreign::Refuse && !is_object {
        return Err(Error::new(ErrorKind::InvalidInput, "the file's contents on the server are not checked")
            .with("url", path.display())
            .hint("add --overwrite if nothing in it is needed"));
    }
    let file = File::options().read(true).write(work.writes()).cache(work.config.cache).open(path)?;
    let range = wanted(work, job, path, file.len()?, false)?;
    Ok((file, range))
}

/// Whether the engine `mapped` writes to files there: asked before a file is made or changed.
fn writable_in_place(path: &Path) -> Result<()> {
    let at = if path.exists() { path } else { path.parent().unwrap_or(path) };
    let at = if at.as_os_str().is_empty() { Path::new(".") } else { at };
    let name = CString::new(at.as_os_str().as_bytes())
        .map_err(|_| Error::new(ErrorKind::InvalidInput, "a path with a zero byte").hint("leave it out"))?;
    // SAFETY: all-zero bytes are a valid statfs, the path is zero-terminated, and the call writes only the struct.
    let magic = unsafe {
        let mut found: libc::statfs = std::mem::zeroed();
        (libc::statfs(name.as_ptr(), &mut found) == 0).then_some(found.f_type)
    };
    // Block devices lie in a tmpfs of their own. A path that cannot be checked fails later, with its reason.
    let is_block = fs::metadata(path).is_ok_and(|found| found.file_type().is_block_device());
    if magic.is_none_or(|magic| magic == libc::TMPFS_MAGIC) && !is_block {
        return Ok(());
    }
    Err(Error::new(
        ErrorKind::Unsupported,
        "engine mapped cannot do this: only tmpfs files that are open for reading and writing are written in place",
    )
    .with("path", path.display())
    .hint("use --engine staged, or leave the choice to forebay"))
}

/// The same files with raw descriptors, for `direct` or buffered I/O.
pub(crate) fn with_raw<'a>(
    work: &Workload,
    ready: &ReadyJob<'a>,
    xfer: Xfer,
    direct: bool,
) -> Result<ReadyJob<'a>> {
    let in_place = work.reads_raw_maps(xfer);
    let files = ready.files.iter().map(|open| {
        let path = open.file.path().ok_or_else(|| {
            Error::new(ErrorKind::Unsupported, "raw calls need a file of this machine, not a URL")
                .with("url", open.file.name())
                .hint("use -x 0, 5 or 6, or name a path on a mount with -f")
        })?;
        if in_place {
            let map = RawMap::new(path, &ready.range, &ready.device)?;
            // With --trim registration is part of the pass: it begins with the first read.
            if !work.trim || matches!(work.task, BenchTask::Gather(_)) {
                map.register_until(ready.range.end)?;
            }
            let map = Some(Arc::new(map));
            return Ok(Arc::new(OpenFile { file: open.file.clone(), raw: None, map, key: open.key }));
        }
        let raw = RawFile::open(path, work.writes(), direct).map_err(explain)?;
        if direct {
            aligned(work, ready.job, raw.align as u64)?;
        }
        Ok(Arc::new(OpenFile { file: open.file.clone(), raw: Some(raw), map: None, key: open.key }))
    });
    let files = files.collect::<Result<_>>()?;
    Ok(ReadyJob { files, ..ready.clone() })
}

/// Whether the raw calls of a type go by O_DIRECT.
pub(crate) fn direct(work: &Workload, ready: &ReadyJob<'_>, xfer: Xfer, warm: bool) -> bool {
    match xfer {
        _ if work.reads_raw_maps(xfer) => false,
        Xfer::CpuCachedGpu => false,
        Xfer::CpuOnly | Xfer::CpuGpu | Xfer::CpuAsyncGpu => !work.keeps_cache(),
        // Bare forms of the engine's types do as the engine does: they read from the cache where it is warm.
        _ => match work.config.cache {
            forebay_config::CachePolicy::Keep => false,
            forebay_config::CachePolicy::Bypass => true,
            forebay_config::CachePolicy::Auto => {
                let possible = ready.files.iter().all(|open| open.file.alignment().is_some())
                    && ready.files.iter().all(|open| open.file.file_system() != "tmpfs");
                possible && (work.access.writes() || !warm) && aligned(work, ready.job, 4096).is_ok()
            }
        },
    }
}

fn aligned(work: &Workload, job: &Job, align: u64) -> Result<()> {
    let odd = [job.io.min, job.io.max, job.io.step, job.start, work.align.unwrap_or(0)];
    if work.unaligned || odd.iter().any(|value| !value.is_multiple_of(align)) {
        return Err(Error::new(ErrorKind::InvalidInput, "O_DIRECT wants aligned offsets and sizes")
            .with("align", align)
            .hint(
                "use multiples of 4K for -i, -o and -a and leave out -U, or use -O 1, or -x 0, 5, 6 or 7",
            ));
    }
    Ok(())
}

fn wanted(work: &Workload, job: &Job, path: &Path, here: u64, block: bool) -> Result<Range<u64>> {
    let left = here.saturating_sub(job.start);
    let reads = !work.access.writes() || work.mix.is_some_and(|percent| percent > 0 && !work.access.random());
    let size = match job.size {
        Some(size) => size,
        None if left > 0 => left,
        None if work.access.writes() => {
            return Err(Error::new(ErrorKind::InvalidInput, "how much to write?")
                .with("path", path.display())
                .hint("give a size: -s 1G"));
        }
        None if here == 0 => {
            return Err(Error::new(ErrorKind::InvalidInput, "the file is empty")
                .with("path", path.display())
                .hint("write it first: -I 1 -s SIZE"));
        }
        None => 0,
    };
    let end = job.start.checked_add(size).filter(|end| i64::try_from(*end).is_ok());
    let beyond = end.is_none_or(|end| end > here) && (reads || block);
    match end {
        Some(end) if !beyond && size > 0 => Ok(job.start..end),
        _ => Err(Error::new(ErrorKind::InvalidInput, "the range goes beyond the end of the file")
            .with("path", path.display())
            .with("file_bytes", here)
            .with("start", job.start)
            .with("size", size)
            .hint(format!(
                "use a smaller -s or -o: the file has {here} bytes; or write more first: -I 1 -s SIZE"
            ))),
    }
}

fn make(path: &Path) -> Result<fs::File> {
    fs::OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path).map_err(|error| {
        let error = Error::from_io(&error, "cannot create file").with("path", path.display());
        match forebay_source::hint_for_missing(path).filter(|_| error.kind() == ErrorKind::NotFound) {
            Some(hint) => error.hint(hint),
            None => explain(error),
        }
    })
}

/// Adds a hint to an error of opening a file that has none.
pub(crate) fn explain(error: Error) -> Error {
    if !error.hints().is_empty() {
        return error;
    }
    match error.kind() {
        ErrorKind::PermissionDenied => {
            error.hint("check the owner and the mode: ls -l; or run as another user")
        }
        ErrorKind::ReadOnly => {
            error.hint("the file system is mounted read-only: write elsewhere, or remount it")
        }
        ErrorKind::NotFound => error.hint("check the path: ls -ld"),
        _ if error.errno() == libc::ENOTDIR => {
            error.hint("name a file with -f, a directory with -D or --files")
        }
        ErrorKind::NoSpace => error.hint("free some space (df -h), or use a smaller -s"),
        ErrorKind::IsDirectory => error.hint("name a directory with -D, a file with -f"),
        _ => error,
    }
}

fn block_size(path: &Path) -> Result<u64> {
    fs::File::open(path).and_then(|mut file| file.seek(SeekFrom::End(0))).map_err(|error| {
        explain(Error::from_io(&error, "cannot open the block device").with("path", path.display()))
    })
}
