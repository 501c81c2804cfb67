//! The files that are measured: what the user named, or a file made for it.

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

use forebay_error::{Error, ErrorKind, Result};

use crate::mounts;

/// The name of a file that is made in a directory.
pub(crate) const NAME: &str = "forebay-report.data";
/// Smaller files say nothing.
const LEAST: u64 = 16 << 20;
/// Written at a time.
const BLOCK: usize = 4 << 20;

/// A file to measure.
#[derive(Clone, Debug)]
pub(crate) struct Target {
    /// As given, absolute.
    pub(crate) given: PathBuf,
    /// The file.
    pub(crate) file: PathBuf,
    /// Whether it was made, so that it may be written and is removed in the end.
    pub(crate) made: bool,
    /// Whether the page cache lets go of it.
    pub(crate) can_be_cold: bool,
    /// `proto=rdma`, `proto=tcp` of an NFS mount.
    pub(crate) nfs: Option<String>,
}

impl Target {
    /// What is at `path`: a file or block device that is there, or the place where one is made.
    pub(crate) fn find(path: &Path) -> Result<Self> {
        let given = std::path::absolute(path)
            .map_err(|error| Error::from_io(&error, "cannot use path").with("path", path.display()))?;
        let (file, made) = match fs::metadata(&given) {
            Ok(found) if found.is_dir() => (given.join(NAME), true),
            Ok(found) if found.is_file() || found.file_type().is_block_device() => (given.clone(), false),
            Ok(_) => return Err(bad("cannot measure: not a file, block device or directory", &given)),
            Err(error) => {
                return Err(Error::from_io(&error, "cannot use path")
                    .with("path", given.display())
                    .hint("name a directory, where a file is made, or a file that is there"));
            }
        };
        let mounts = mounts::all();
        let mount = mounts::of(&given, &mounts);
        let nfs = mount.filter(|mount| mount.is_nfs()).map(|mount| {
            let proto = mount.options.split(',').find(|one| one.starts_with("proto="));
            proto.unwrap_or("proto unknown").to_owned()
        });
        let can_be_cold = !mount.is_some_and(mounts::Mount::is_memory);
        Ok(Self { given, file, made, can_be_cold, nfs })
    }

    /// Makes the file, if it is not there with this size, and holds it: a report that ends removes it. `None` if it was
    /// stopped.
    pub(crate) fn make(&self, size: u64, stopped: &dyn Fn() -> bool) -> Result<Option<File>> {
        let failed = |error: &std::io::Error, what: &str| explain(error, what, &self.file);
        let mut file = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(false)
            .open(&self.file)
            .map_err(|error| failed(&error, "cannot create the file to measure"))?;
        // On a file system without locks nobody else is known of.
        if matches!(file.try_lock(), Err(fs::TryLockError::WouldBlock)) {
            return Err(Error::new(ErrorKind::Busy, "another report measures with this file")
                .with("path", self.file.display())
                .hint("wait for it, or name another directory"));
        }
        if file.metadata().is_ok_and(|found| found.len() == size) {
            return Ok(Some(file));
        }
        let made = file.set_len(0).and_then(|()| fill(&mut file, &self.file, size, stopped));
        if !matches!(made, Ok(true)) {
            self.remove();
        }
        let made = made.map_err(|error| failed(&error, "cannot write the file to measure"))?;
        Ok(made.then_some(file))
    }

    /// Removes the file if it was made.
    pub(crate) fn remove(&self) {
        if self.made {
            // What is left is seen, and named by the next run.
            let _ = fs::remove_file(&self.file);
        }
    }

    /// The size to make: what was asked for, or what an interrupted report has made, or `default` as far as there is room.
    pub(crate) fn size(&self, asked: Option<u64>, default: u64) -> u64 {
        if let Some(size) = asked {
            return size;
        }
        match fs::metadata(&self.file) {
            Ok(found) if found.len() >= LEAST => found.len(),
            _ => default.min((free(&self.given).unwrap_or(u64::MAX) / 4) & !0xF_FFFF).max(LEAST),
        }
    }
}

/// Writes the pattern that bench takes for its own; `false` if it was stopped.
fn fill(file: &mut File, path: &Path, size: u64, stopped: &dyn Fn() -> bool) -> std::io::Result<bool> {
    let key = forebay_bench::pattern_key(path, 0);
    let mut block = vec![0; BLOCK];
    let mut at = 0;
    while at < size {
        if stopped() {
            return Ok(false);
        }
        let len = BLOCK.min((size - at) as usize);
        forebay_gpu::fill_pattern(&mut block[..len], key, at);
        file.write_all(&block[..len])?;
        at += len as u64;
    }
    file.sync_all()?;
    Ok(true)
}

/// Bytes that are free where `path` is.
fn free(path: &Path) -> Option<u64> {
    use std::os::unix::ffi::OsStrExt;
    let path = std::ffi::CString::new(path.as_os_str().as_bytes()).ok()?;
    // SAFETY: all-zero bytes are a valid statvfs; the path ends with a zero.
    let found = unsafe {
        let mut found: libc::statvfs = std::mem::zeroed();
        (libc::statvfs(path.as_ptr(), &mut found) == 0).then_some(found)?
    };
    Some(found.f_bavail * found.f_frsize)
}

fn explain(error: &std::io::Error, what: &str, path: &Path) -> Error {
    let error = Error::from_io(error, what).with("path", path.display());
    match error.kind() {
        ErrorKind::NoSpace => error.hint("free some space (df -h), or use a smaller --size"),
        ErrorKind::PermissionDenied | ErrorKind::ReadOnly => {
            error.hint("name a directory that you may write to, or a file that is there: it is only read")
        }
        _ => error.hint("name another directory, or a file that is there"),
    }
}

fn bad(message: &str, path: &Path) -> Error {
    Error::new(ErrorKind::InvalidInput, message)
        .with("path", path.display())
        .hint("name a directory or a file")
}
