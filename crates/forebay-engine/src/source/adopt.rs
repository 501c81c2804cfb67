//! Files that a caller has open already, and hands in by their descriptor.
//!
//! The caller's descriptor stays as it is: open, with its flags and its position. All I/O uses descriptors of ours, of the
//! same file and with the same access: if the program closes its own, or gives the number to another file, no bytes are
//! mixed up. Ours are opened anew where possible, so that locks by `flock`, which belong to an opening, end with the
//! caller's; otherwise they share the caller's opening. Closing them must not release a lock: see [`idle`](super::idle).

use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::path::PathBuf;

use forebay_error::{Error, ErrorKind, Result};

use super::descriptor::{self, Fd};
use super::file::{IS_MEMORY, NO_DIRECT, check_type, device_number, nature};
use super::idle::{DescriptorKey, KeptDescriptor};
use super::{Descriptors, DirectAlignment, FileSource, OpenOptions};
use crate::runtime::owned::Owned;
use crate::runtime::sys::{self, Identity};

/// Flags that our descriptors take over from the caller's.
const INHERITED_FLAGS: i32 =
    libc::O_ACCMODE | libc::O_SYNC | libc::O_DSYNC | libc::O_APPEND | libc::O_NOATIME;
/// File systems whose files the kernel's list of locks names by the inode number that `stat` tells: ext4, xfs, btrfs,
/// f2fs, tmpfs.
const LISTS_LOCKS: [i64; 5] = [0xEF53, 0x5846_5342, 0x9123_683E, 0xF2F5_2010, 0x0102_1994];

/// The buffered descriptor and the one with O_DIRECT.
struct DescriptorPair {
    buffered: Fd,
    direct: Option<(Fd, DirectAlignment)>,
    direct_refused: Option<String>,
    buffered_refused: Option<String>,
}

/// # Safety
/// As [`OpenOptions::adopt`].
pub(crate) unsafe fn adopt(options: OpenOptions, fd: RawFd) -> Result<FileSource> {
    // SAFETY: passed on.
    unsafe { adopt_of(options, fd, false) }
}

/// The same of a source's own descriptor. One that is written is closed with its file: the program has no locks on a file that it does
/// not know, and who made the source waits for the end of all writing.
///
/// # Safety
/// As [`OpenOptions::adopt`].
pub(crate) unsafe fn adopt_of_source(fd: RawFd) -> Result<FileSource> {
    // SAFETY: passed on.
    unsafe { adopt_of(OpenOptions::default(), fd, true) }
}

/// # Safety
/// As [`OpenOptions::adopt`].
unsafe fn adopt_of(options: OpenOptions, fd: RawFd, is_of_source: bool) -> Result<FileSource> {
    let path = PathBuf::from(format!("descriptor {fd}"));
    let flags = flags(fd)?;
    let stat = sys::stat(fd).map_err(|error| error.with("fd", fd))?;
    check_type(&stat, &path)?;
    let nature = nature(fd, &stat, flags & libc::O_ACCMODE == libc::O_RDWR);
    let given = CallerDescriptor {
        fd,
        is_of_source: is_of_source && flags & libc::O_ACCMODE != libc::O_RDONLY,
        flags: flags & INHERITED_FLAGS,
        identity: (stat.st_dev, stat.st_ino),
        is_listed: LISTS_LOCKS.contains(&nature.magic),
    };
    let pair = if nature.is_memory() {
        given.memory_pair()?
    } else if flags & libc::O_DIRECT == 0 {
        given.buffered_pair()?
    } else {
        given.direct_pair()?
    };
    Ok(FileSource {
        path,
        called: None,
        is_adopted: true,
        flags,
        descriptors: Descriptors::new(
            pair.buffered,
            pair.direct,
            given.identity,
            nature,
            (options.cache, options.calls),
        ),
        direct_refused: pair.direct_refused,
        buffered_refused: pair.buffered_refused,
        device: device_number(&stat),
    })
}

/// The caller's flags, of a descriptor that can be read or written.
fn flags(fd: RawFd) -> Result<i32> {
    let flags = sys::flags(fd).map_err(|error| error.with("fd", fd))?;
    if flags & libc::O_PATH != 0 {
        return Err(Error::new(ErrorKind::InvalidInput, "the descriptor only names a file (O_PATH)")
            .with("fd", fd)
            .hint("open the file without O_PATH"));
    }
    Ok(flags)
}

type Reopened<T> = std::result::Result<T, String>;

/// The caller's descriptor, and its file.
struct CallerDescriptor {
    fd: RawFd,
    /// Ours are closed at once.
    is_of_source: bool,
    /// Flags that ours take over.
    flags: i32,
    identity: Identity,
    is_listed: bool,
}

impl CallerDescriptor {
    /// Memory needs no O_DIRECT.
    fn memory_pair(&self) -> Result<DescriptorPair> {
        let direct_refused = Some(IS_MEMORY.to_owned());
        Ok(DescriptorPair { buffered: self.like(0)?, direct: None, direct_refused, buffered_refused: None })
    }

    fn buffered_pair(&self) -> Result<DescriptorPair> {
        let buffered = self.like(0)?;
        let told = sys::direct_alignment(self.fd);
        let direct =
            if told == Some((0, 0)) { Err(NO_DIRECT.to_owned()) } else { self.again(libc::O_DIRECT) };
        let (direct, direct_refused) = match direct {
            Ok(fd) => (Some((fd, DirectAlignment::told(told))), None),
            Err(reason) => (None, Some(reason)),
        };
        Ok(DescriptorPair { buffered, direct, direct_refused, buffered_refused: None })
    }

    fn direct_pair(&self) -> Result<DescriptorPair> {
        let alignment = DirectAlignment::told(sys::direct_alignment(self.fd));
        let direct = Some((self.like(libc::O_DIRECT)?, alignment));
        let (buffered, buffered_refused) = match self.again(0) {
            Ok(fd) => (fd, None),
            Err(reason) => (self.shared()?, Some(reason)),
        };
        Ok(DescriptorPair { buffered, direct, direct_refused: None, buffered_refused })
    }

    /// A descriptor with the caller's access; `extra` is O_DIRECT if the caller's has it.
    fn like(&self, extra: i32) -> Result<Fd> {
        self.again(extra).or_else(|_| self.shared())
    }

    /// A descriptor that shares the caller's opening.
    fn shared(&self) -> Result<Fd> {
        let copy = descriptor::duplicate(self.fd)?;
        self.kept(copy, None).ok_or_else(|| {
            Error::from_errno(libc::EBADF, "the descriptor was given to another file meanwhile")
                .with("fd", self.fd)
        })
    }

    /// A descriptor by another opening. The error says why there is none.
    fn again(&self, extra: i32) -> Reopened<Fd> {
        let (flags, key) = (self.flags | extra, self.key(Some(self.flags | extra)));
        if let Some(kept) = KeptDescriptor::again(key) {
            return Ok(Fd::Kept(kept));
        }
        let opened = descriptor::reopen(self.fd, flags).map_err(|errno| match errno {
            libc::EINVAL if extra & libc::O_DIRECT != 0 => "the file system refuses O_DIRECT".to_owned(),
            _ => format!("open it again by /proc: {}", std::io::Error::from_raw_os_error(errno)),
        })?;
        self.kept(opened, key.flags).ok_or_else(|| "/proc names another file".to_owned())
    }

    /// Keeps a new descriptor if it is of the same file. If the caller's number became another file's, it is closed as one of
    /// that file.
    fn kept(&self, fd: OwnedFd, flags: Option<i32>) -> Option<Fd> {
        let identity = sys::identity(fd.as_raw_fd())?;
        let is_same = identity == self.identity;
        if self.is_of_source && identity == self.identity {
            return Some(Fd::Own(if flags.is_some() {
                Owned::new(fd, identity)
            } else {
                Owned::sharing(fd, identity)
            }));
        }
        let (device, inode) = identity;
        let kept = KeptDescriptor::new(
            fd,
            DescriptorKey { device, inode, flags, is_listed: is_same && self.is_listed },
        );
        is_same.then_some(Fd::Kept(kept))
    }

    fn key(&self, flags: Option<i32>) -> DescriptorKey {
        let (device, inode) = self.identity;
        DescriptorKey { device, inode, flags, is_listed: self.is_listed }
    }
}
