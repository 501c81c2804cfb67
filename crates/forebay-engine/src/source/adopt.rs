//! Files that a caller has open already, and hands in by their descriptor.
//!
//! His descriptor stays as it is: it is not closed, not duplicated, its flags and its position are left alone. What it
//! cannot do (O_DIRECT, or going through the page cache) is done by a second descriptor of ours, of the same file and
//! with the same access. Closing that one must not take a lock from him: see [`idle`](super::idle).

use std::os::fd::{AsRawFd, RawFd};
use std::path::PathBuf;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU8, AtomicU64};

use forebay_error::{Error, ErrorKind, Result};

use super::descriptor::{self, Fd};
use super::file::{MEMORY_FILE_SYSTEMS, check_type, device_number, nature};
use super::idle::{Kept, Key};
use super::mapping::Mapping;
use super::{Descriptors, DirectAlignment, FileSource, Kernel, OpenOptions};
use crate::file::File;
use crate::sys;
use crate::vendor::Registration;

/// What the second descriptor takes over from the caller's.
const INHERITED: i32 = libc::O_ACCMODE | libc::O_SYNC | libc::O_DSYNC | libc::O_APPEND | libc::O_NOATIME;
/// File systems whose files the kernel's list of locks names by the inode number that `stat` tells: ext4, xfs, btrfs,
/// f2fs, tmpfs.
const LISTED: [i64; 5] = [0xEF53, 0x5846_5342, 0x9123_683E, 0xF2F5_2010, 0x0102_1994];

/// Why a descriptor is missing.
const IS_MEMORY: &str = "the file is memory already";
const NO_DIRECT: &str = "the file system says that it has no O_DIRECT for this file (statx)";

/// The caller's descriptor and what was added to it.
struct Pair {
    buffered: Fd,
    direct: Option<(Fd, DirectAlignment)>,
    spare: Option<Fd>,
    direct_refused: Option<String>,
    buffered_refused: Option<String>,
}

/// # Safety
/// As [`OpenOptions::adopt`].
pub(super) unsafe fn adopt(options: OpenOptions, fd: RawFd) -> Result<File> {
    let path = PathBuf::from(format!("descriptor {fd}"));
    let flags = flags(fd)?;
    let stat = sys::stat(fd).map_err(|error| error.with("fd", fd))?;
    check_type(&stat, &path)?;
    let nature = nature(fd, &stat, flags & libc::O_ACCMODE == libc::O_RDWR);
    let is_memory = MEMORY_FILE_SYSTEMS.contains(&nature.magic);
    let again = |extra: i32| {
        let flags = flags & INHERITED | extra;
        let is_listed = LISTED.contains(&nature.magic);
        second(fd, Key { device: stat.st_dev, inode: stat.st_ino, flags, is_listed })
    };
    let pair = if is_memory {
        memory_pair(fd, again)
    } else if flags & libc::O_DIRECT == 0 {
        buffered_pair(fd, again)
    } else {
        direct_pair(fd, again)
    };
    Ok(File::from_file_source(FileSource {
        path,
        called: None,
        adopted: Some(fd),
        flags,
        descriptors: Descriptors {
            id: Descriptors::next_id(),
            buffered: pair.buffered,
            direct: pair.direct,
            spare: pair.spare,
            is_memory,
            nature,
            demand: AtomicU64::new(0),
            is_alone: OnceLock::new(),
            mapping: Mapping::default(),
            hits: AtomicU8::new(0),
            cache: options.cache,
            vendor: Registration::default(),
            calls: options.calls.unwrap_or_else(|| Box::new(Kernel)),
        },
        direct_refused: pair.direct_refused,
        buffered_refused: pair.buffered_refused,
        device: device_number(&stat),
    }))
}

/// The caller's flags, of a descriptor that can be read or written.
fn flags(fd: RawFd) -> Result<i32> {
    // SAFETY: no pointers are passed.
    let flags = unsafe { libc::fcntl(fd, libc::F_GETFL) };
    if flags < 0 {
        return Err(Error::last_os("cannot use the descriptor").with("fd", fd));
    }
    if flags & libc::O_PATH != 0 {
        return Err(Error::new(ErrorKind::InvalidInput, "the descriptor only names a file (O_PATH)")
            .with("fd", fd)
            .hint("open the file without O_PATH"));
    }
    Ok(flags)
}

type Again<T> = std::result::Result<T, String>;

/// Memory needs no O_DIRECT. The spare descriptor maps pages.
fn memory_pair(fd: RawFd, again: impl Fn(i32) -> Again<Fd>) -> Pair {
    let direct_refused = Some(IS_MEMORY.to_owned());
    Pair {
        buffered: Fd::Callers(fd),
        direct: None,
        spare: again(0).ok(),
        direct_refused,
        buffered_refused: None,
    }
}

fn buffered_pair(fd: RawFd, again: impl Fn(i32) -> Again<Fd>) -> Pair {
    let told = sys::direct_alignment(fd);
    let direct = if told == Some((0, 0)) { Err(NO_DIRECT.to_owned()) } else { again(libc::O_DIRECT) };
    let (direct, direct_refused) = match direct {
        Ok(fd) => (Some((fd, DirectAlignment::told(told))), None),
        Err(reason) => (None, Some(reason)),
    };
    Pair { buffered: Fd::Callers(fd), direct, spare: None, direct_refused, buffered_refused: None }
}

fn direct_pair(fd: RawFd, again: impl Fn(i32) -> Again<Fd>) -> Pair {
    let direct = Some((Fd::Callers(fd), DirectAlignment::told(sys::direct_alignment(fd))));
    let (buffered, buffered_refused) = match again(0) {
        Ok(fd) => (fd, None),
        Err(reason) => (Fd::Callers(fd), Some(reason)),
    };
    Pair { buffered, direct, spare: None, direct_refused: None, buffered_refused }
}

/// A second descriptor of the caller's file. The error says why there is none.
fn second(fd: RawFd, key: Key) -> Again<Fd> {
    if let Some(kept) = Kept::again(key) {
        return Ok(Fd::Kept(kept));
    }
    let opened = descriptor::reopen(fd, key.flags).map_err(|errno| match errno {
        libc::EINVAL if key.flags & libc::O_DIRECT != 0 => "the file system refuses O_DIRECT".to_owned(),
        _ => format!("open it again by /proc: {}", std::io::Error::from_raw_os_error(errno)),
    })?;
    let is_same =
        sys::stat(opened.as_raw_fd()).is_ok_and(|stat| (stat.st_dev, stat.st_ino) == (key.device, key.inode));
    if is_same { Ok(Fd::Kept(Kept::new(opened, key))) } else { Err("/proc names another file".to_owned()) }
}
