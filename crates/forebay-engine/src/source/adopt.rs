//! Files that a caller has open already, and hands in by their descriptor.
//!
//! His descriptor stays as it is: it is not closed, its flags and its position are left alone. All is done by descriptors
//! of ours, of the same file and with the same access: a program that closes his, or gives its number to another file, gets
//! bytes of neither mixed up. They are opened anew where that can be, so that locks by `flock`, which belong to an opening,
//! end with his; otherwise they share his opening. Closing them must not take a lock from him: see [`idle`](super::idle).

use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::path::PathBuf;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU8, AtomicU64};

use forebay_error::{Error, ErrorKind, Result};

use super::descriptor::{self, Fd};
use super::file::{MEMORY_FILE_SYSTEMS, check_type, device_number, nature};
use super::idle::{Kept, Key};
use super::mapping::Mapping;
use super::{Attached, Descriptors, DirectAlignment, FileSource, Kernel, OpenOptions};
use crate::runtime::sys::{self, Identity};

/// What the second descriptor takes over from the caller's.
const INHERITED: i32 = libc::O_ACCMODE | libc::O_SYNC | libc::O_DSYNC | libc::O_APPEND | libc::O_NOATIME;
/// File systems whose files the kernel's list of locks names by the inode number that `stat` tells: ext4, xfs, btrfs,
/// f2fs, tmpfs.
const LISTED: [i64; 5] = [0xEF53, 0x5846_5342, 0x9123_683E, 0xF2F5_2010, 0x0102_1994];

/// Why a descriptor is missing.
const IS_MEMORY: &str = "the file is memory already";
const NO_DIRECT: &str = "the file system says that it has no O_DIRECT for this file (statx)";

/// The descriptors for the two ways.
struct Pair {
    buffered: Fd,
    direct: Option<(Fd, DirectAlignment)>,
    direct_refused: Option<String>,
    buffered_refused: Option<String>,
}

/// # Safety
/// As [`OpenOptions::adopt`].
pub(crate) unsafe fn adopt(options: OpenOptions, fd: RawFd) -> Result<FileSource> {
    let path = PathBuf::from(format!("descriptor {fd}"));
    let flags = flags(fd)?;
    let stat = sys::stat(fd).map_err(|error| error.with("fd", fd))?;
    check_type(&stat, &path)?;
    let nature = nature(fd, &stat, flags & libc::O_ACCMODE == libc::O_RDWR);
    let is_memory = MEMORY_FILE_SYSTEMS.contains(&nature.magic);
    let theirs = Theirs {
        fd,
        flags: flags & INHERITED,
        identity: (stat.st_dev, stat.st_ino),
        is_listed: LISTED.contains(&nature.magic),
    };
    let pair = if is_memory {
        theirs.memory_pair()?
    } else if flags & libc::O_DIRECT == 0 {
        theirs.buffered_pair()?
    } else {
        theirs.direct_pair()?
    };
    Ok(FileSource {
        path,
        called: None,
        is_adopted: true,
        flags,
        descriptors: Descriptors {
            id: Descriptors::next_id(),
            buffered: pair.buffered,
            direct: pair.direct,
            is_memory,
            identity: theirs.identity,
            nature,
            demand: AtomicU64::new(0),
            is_alone: OnceLock::new(),
            mapping: Mapping::default(),
            hits: AtomicU8::new(0),
            cache: options.cache,
            attached: Attached::default(),
            calls: options.calls.unwrap_or_else(|| Box::new(Kernel)),
        },
        direct_refused: pair.direct_refused,
        buffered_refused: pair.buffered_refused,
        device: device_number(&stat),
    })
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

/// The caller's descriptor, and what it is of.
struct Theirs {
    fd: RawFd,
    /// Those that ours take over.
    flags: i32,
    identity: Identity,
    is_listed: bool,
}

impl Theirs {
    /// Memory needs no O_DIRECT.
    fn memory_pair(&self) -> Result<Pair> {
        let direct_refused = Some(IS_MEMORY.to_owned());
        Ok(Pair { buffered: self.like(0)?, direct: None, direct_refused, buffered_refused: None })
    }

    fn buffered_pair(&self) -> Result<Pair> {
        let buffered = self.like(0)?;
        let told = sys::direct_alignment(self.fd);
        let direct =
            if told == Some((0, 0)) { Err(NO_DIRECT.to_owned()) } else { self.again(libc::O_DIRECT) };
        let (direct, direct_refused) = match direct {
            Ok(fd) => (Some((fd, DirectAlignment::told(told))), None),
            Err(reason) => (None, Some(reason)),
        };
        Ok(Pair { buffered, direct, direct_refused, buffered_refused: None })
    }

    fn direct_pair(&self) -> Result<Pair> {
        let alignment = DirectAlignment::told(sys::direct_alignment(self.fd));
        let direct = Some((self.like(libc::O_DIRECT)?, alignment));
        let (buffered, buffered_refused) = match self.again(0) {
            Ok(fd) => (fd, None),
            Err(reason) => (self.shared()?, Some(reason)),
        };
        Ok(Pair { buffered, direct, direct_refused: None, buffered_refused })
    }

    /// A descriptor that can do what the caller's can; `extra` is what his flags say of O_DIRECT.
    fn like(&self, extra: i32) -> Result<Fd> {
        self.again(extra).or_else(|_| self.shared())
    }

    /// One that shares the caller's opening.
    fn shared(&self) -> Result<Fd> {
        let copy = descriptor::duplicate(self.fd)?;
        self.kept(copy, None).ok_or_else(|| {
            Error::from_errno(libc::EBADF, "the descriptor was given to another file meanwhile")
                .with("fd", self.fd)
        })
    }

    /// One by another opening. The error says why there is none.
    fn again(&self, extra: i32) -> Again<Fd> {
        let (flags, key) = (self.flags | extra, self.key(Some(self.flags | extra)));
        if let Some(kept) = Kept::again(key) {
            return Ok(Fd::Kept(kept));
        }
        let opened = descriptor::reopen(self.fd, flags).map_err(|errno| match errno {
            libc::EINVAL if extra & libc::O_DIRECT != 0 => "the file system refuses O_DIRECT".to_owned(),
            _ => format!("open it again by /proc: {}", std::io::Error::from_raw_os_error(errno)),
        })?;
        self.kept(opened, key.flags).ok_or_else(|| "/proc names another file".to_owned())
    }

    /// Keeps a new descriptor, if it is of the same file. The caller's number may be another file's by now: then it is closed
    /// as one of that file.
    fn kept(&self, fd: OwnedFd, flags: Option<i32>) -> Option<Fd> {
        let identity = sys::identity(fd.as_raw_fd())?;
        let is_same = identity == self.identity;
        let (device, inode) = identity;
        let kept = Kept::new(fd, Key { device, inode, flags, is_listed: is_same && self.is_listed });
        is_same.then_some(Fd::Kept(kept))
    }

    fn key(&self, flags: Option<i32>) -> Key {
        let (device, inode) = self.identity;
        Key { device, inode, flags, is_listed: self.is_listed }
    }
}
