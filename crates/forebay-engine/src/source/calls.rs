//! The seam to the kernel's file calls, and the decorator that injects faults there.

use std::fmt;
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicU64, Ordering};

use forebay_error::Error;
use forebay_source::HostRange;
use rustix::fs::FallocateFlags;

use crate::runtime::sys;
use crate::source::piece::Direction;

/// The file calls that lanes make. Results are bytes or a negative errno.
pub trait Calls: Send + Sync + fmt::Debug {
    /// `preadv2`; with `nowait` only what the page cache holds.
    ///
    /// # Safety
    /// The memory is writable.
    unsafe fn read(&self, fd: RawFd, memory: HostRange, offset: u64, nowait: bool) -> isize;

    /// `pwrite`.
    ///
    /// # Safety
    /// The memory is readable.
    unsafe fn write(&self, fd: RawFd, memory: HostRange, offset: u64) -> isize;

    /// Reserves space of the file system for a range, and leaves the file as long as it is. An error is an errno.
    fn reserve(&self, fd: RawFd, start: u64, len: u64) -> std::result::Result<(), i32> {
        sys::allocate(fd, FallocateFlags::KEEP_SIZE, start, len)
    }

    /// Whether bytes may be read and written past these calls, through a mapping of the file.
    fn may_map(&self) -> bool {
        false
    }

    /// The result of an io_uring operation on this memory as the lane shall see it.
    fn completed(&self, _direction: Direction, _memory: HostRange, _offset: u64, result: i32) -> i32 {
        result
    }
}

/// The real kernel.
#[derive(Debug, Default)]
pub struct Kernel;

impl Calls for Kernel {
    unsafe fn read(&self, fd: RawFd, memory: HostRange, offset: u64, nowait: bool) -> isize {
        // SAFETY: as promised by the caller.
        unsafe { sys::read_at(fd, memory, offset, nowait) }
    }

    unsafe fn write(&self, fd: RawFd, memory: HostRange, offset: u64) -> isize {
        // SAFETY: as promised by the caller.
        unsafe { sys::write_at(fd, memory, offset) }
    }

    fn may_map(&self) -> bool {
        true
    }
}

/// What the errno of a call on a file says.
pub(crate) fn call_error(errno: i32, direction: Direction, offset: u64) -> Error {
    let doing = match direction {
        Direction::Read => "cannot read",
        Direction::Write => "cannot write",
    };
    let error = Error::from_errno(errno, doing).with("offset", offset);
    match errno {
        libc::ENOSPC => error.hint("free some space (df -h) or write elsewhere"),
        libc::EDQUOT => error.hint("the disk quota is used up (quota -s)"),
        libc::EFBIG => error.hint("the file would pass the limit of its size (ulimit -f)"),
        libc::EIO => error.hint("the storage reports an error: see dmesg"),
        libc::EBADF => error.hint("open the file for this direction"),
        libc::ECANCELED => {
            error.hint("signals kept ending the call: look for timers that fire without a pause")
        }
        _ => error,
    }
}

/// A fault to inject.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The call fails with this errno.
    Errno(i32),
    /// The call moves at most this many bytes.
    Short(usize),
}

/// The kernel with faults: each call that touches the byte at `offset` meets `fault`, for the first `times` calls.
#[derive(Debug)]
pub struct Faulty {
    direction: Direction,
    offset: u64,
    fault: Fault,
    left: AtomicU64,
}

impl Faulty {
    /// Injects `fault` into the first `times` calls in `direction` that touch `offset`.
    pub fn new(direction: Direction, offset: u64, fault: Fault, times: u64) -> Self {
        Self { direction, offset, fault, left: AtomicU64::new(times) }
    }

    fn hits(&self, direction: Direction, offset: u64, len: usize) -> bool {
        direction == self.direction
            && (offset..offset + len as u64).contains(&self.offset)
            && self.left.try_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1)).is_ok()
    }
}

impl Calls for Faulty {
    unsafe fn read(&self, fd: RawFd, memory: HostRange, offset: u64, nowait: bool) -> isize {
        let memory = match self.hits(Direction::Read, offset, memory.len).then_some(self.fault) {
            Some(Fault::Errno(errno)) => return -(errno as isize),
            Some(Fault::Short(most)) => memory.first(most),
            None => memory,
        };
        // SAFETY: at most the promised length.
        unsafe { sys::read_at(fd, memory, offset, nowait) }
    }

    unsafe fn write(&self, fd: RawFd, memory: HostRange, offset: u64) -> isize {
        let memory = match self.hits(Direction::Write, offset, memory.len).then_some(self.fault) {
            Some(Fault::Errno(errno)) => return -(errno as isize),
            Some(Fault::Short(most)) => memory.first(most),
            None => memory,
        };
        // SAFETY: at most the promised length.
        unsafe { sys::write_at(fd, memory, offset) }
    }

    fn completed(&self, direction: Direction, memory: HostRange, offset: u64, result: i32) -> i32 {
        match self.hits(direction, offset, memory.len).then_some(self.fault) {
            Some(Fault::Errno(errno)) => -errno,
            Some(Fault::Short(most)) => result.min(most as i32),
            None => result,
        }
    }
}
