//! System calls that rustix does not have: locks of an open file, the user of a thread's file calls.

use std::marker::PhantomData;
use std::os::fd::{AsFd, AsRawFd};

use rustix::fs::Gid;
use rustix::io::Errno;
use rustix::thread::set_thread_groups;

/// A user and a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct User {
    /// Its number.
    pub uid: u32,
    /// Its group's number.
    pub gid: u32,
}

/// While it lives, the thread's file calls are another user's, without further groups.
pub(super) struct UserGuard {
    previous: User,
    groups: Vec<Gid>,
    /// The thread that was changed is the one to change back.
    _not_send: PhantomData<*const ()>,
}

impl UserGuard {
    pub(super) fn new(user: User) -> Result<Self, Errno> {
        let groups = rustix::process::getgroups()?;
        set_thread_groups(&[])?;
        let (gid, uid) = (set_group(user.gid), set_user(user.uid));
        let guard = Self { previous: User { uid, gid }, groups, _not_send: PhantomData };
        // Both calls report no error: they are asked again, with a number that none has.
        if set_group(u32::MAX) == user.gid && set_user(u32::MAX) == user.uid {
            return Ok(guard);
        }
        Err(Errno::PERM)
    }
}

impl Drop for UserGuard {
    fn drop(&mut self) {
        set_user(self.previous.uid);
        set_group(self.previous.gid);
        // A thread that keeps another account's rights must not serve the next request.
        if set_thread_groups(&self.groups).is_err() || set_user(u32::MAX) != self.previous.uid {
            std::process::abort();
        }
    }
}

fn set_user(uid: u32) -> u32 {
    // SAFETY: takes a number, changes this thread alone.
    unsafe { libc::setfsuid(uid) as u32 }
}

fn set_group(gid: u32) -> u32 {
    // SAFETY: takes a number, changes this thread alone.
    unsafe { libc::setfsgid(gid) as u32 }
}

/// How a range is locked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LockKind {
    /// Beside others that share it.
    Shared,
    /// Alone.
    Alone,
}

/// Locks a range of an open file until it is closed; `len` 0: to its end. `false`: another has it, and `wait` is not set.
pub(super) fn lock_range(
    file: impl AsFd,
    kind: LockKind,
    start: u64,
    len: u64,
    wait: bool,
) -> Result<bool, Errno> {
    let lock_type = if kind == LockKind::Shared { libc::F_RDLCK } else { libc::F_WRLCK };
    // SAFETY: all zero is a valid `flock`; some targets have fields of padding.
    let mut range: libc::flock = unsafe { std::mem::zeroed() };
    range.l_type = lock_type as _;
    range.l_whence = libc::SEEK_SET as _;
    (range.l_start, range.l_len) = (start as _, len as _);
    let command = if wait { libc::F_OFD_SETLKW } else { libc::F_OFD_SETLK };
    loop {
        // SAFETY: the descriptor is open and the range lives through the call.
        if unsafe { libc::fcntl(file.as_fd().as_raw_fd(), command, &range) } == 0 {
            return Ok(true);
        }
        match std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO) {
            libc::EINTR => {}
            libc::EAGAIN | libc::EACCES if !wait => return Ok(false),
            errno => return Err(Errno::from_raw_os_error(errno)),
        }
    }
}
