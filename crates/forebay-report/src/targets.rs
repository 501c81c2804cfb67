//! The files that are measured: what the user named, or a file made for it.

use std::fs::{self, File};
use std::io::{Seek, SeekFrom, Write};
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use forebay_error::{Error, ErrorKind, Result};

use crate::made::Content;
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

    /// The size to make: what was asked for, or what this report made before, or `default` as far as there is room.
    pub(crate) fn size(&self, asked: Option<u64>, before: Option<u64>, default: u64) -> u64 {
        asked.or(before).unwrap_or_else(|| {
            // One that is there is replaced.
            let here = fs::symlink_metadata(&self.file).map_or(0, |found| found.blocks() * 512);
            let room = free(&self.given).map_or(u64::MAX, |free| free.saturating_add(here));
            default.min((room / 4) & !0xF_FFFF).max(LEAST)
        })
    }

    /// The length of a file or block device that is there.
    pub(crate) fn length(&self) -> u64 {
        let end = File::open(&self.file).and_then(|mut file| file.seek(SeekFrom::End(0)));
        end.unwrap_or(0)
    }
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
        let mut block = vec![0; BLOCK];
        let mut at = 0;
        while at < self.0 {
            if stopped() {
                return Ok(false);
            }
            let len = BLOCK.min((self.0 - at) as usize);
            forebay_gpu::fill_pattern(&mut block[..len], key(), at);
            file.write_all(&block[..len])?;
            at += len as u64;
        }
        Ok(true)
    }
}

fn key() -> u64 {
    forebay_bench::pattern_key(Path::new(NAME), 0)
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

fn bad(message: &str, path: &Path) -> Error {
    Error::new(ErrorKind::InvalidInput, message)
        .with("path", path.display())
        .hint("name a directory or a file")
}
