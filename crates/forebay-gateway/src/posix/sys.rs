//! System calls that rustix does not have: locks of an open file, the user of a thread's file calls.

use std::cell::Cell;
use std::ffi::CString;
use std::io;
use std::marker::PhantomData;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::time::{Duration, Instant};

use rustix::fs::Gid;
use rustix::io::Errno;
use rustix::thread::{CapabilitySet, capabilities, set_capabilities, set_thread_groups};

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
        keep_quotas()?;
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

/// Gives up, for good, this thread's right to pass quotas and to use the room that is kept for root: another fsuid leaves it.
fn keep_quotas() -> Result<(), Errno> {
    thread_local! { static IS_DONE: Cell<bool> = const { Cell::new(false) }; }
    if IS_DONE.get() {
        return Ok(());
    }
    let mut sets = capabilities(None)?;
    sets.effective.remove(CapabilitySet::SYS_RESOURCE);
    sets.permitted.remove(CapabilitySet::SYS_RESOURCE);
    set_capabilities(None, sets)?;
    IS_DONE.set(true);
    Ok(())
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

/// How long a lock is waited for. The kernel's own wait has no end, and keeps a thread.
const LOCK_TIME: Duration = Duration::from_secs(5);
/// The longest time between two tries.
const LOCK_PAUSE: Duration = Duration::from_millis(5);

/// Locks a range of an open file until it is closed; `len` 0: to its end. `false`: another has it, and `wait` is not set. ETIMEDOUT:
/// another had it for all of the time that a lock is waited for.
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
    let (begin, mut pause) = (Instant::now(), Duration::from_micros(100));
    loop {
        // SAFETY: the descriptor is open and the range lives through the call.
        if unsafe { libc::fcntl(file.as_fd().as_raw_fd(), libc::F_OFD_SETLK, &range) } == 0 {
            return Ok(true);
        }
        match std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO) {
            libc::EINTR => {}
            libc::EAGAIN | libc::EACCES if !wait => return Ok(false),
            libc::EAGAIN | libc::EACCES if begin.elapsed() > LOCK_TIME => return Err(Errno::TIMEDOUT),
            libc::EAGAIN | libc::EACCES => {
                std::thread::sleep(pause);
                pause = (pause * 2).min(LOCK_PAUSE);
            }
            errno => return Err(Errno::from_raw_os_error(errno)),
        }
    }
}

/// `getxattrat`: the same number on all architectures.
const SYS_GETXATTRAT: libc::c_long = 464;

/// Reads an attribute of a name in a directory, which is not followed: `getxattrat` of Linux 6.13. A path below `/proc/self/fd` costs twice
/// as much.
pub(super) fn attribute_at(
    dir: BorrowedFd<'_>,
    name: &str,
    attribute: &str,
    room: &mut [u8],
) -> Result<usize, Errno> {
    #[repr(C, align(8))]
    struct Arguments {
        value: u64,
        size: u32,
        flags: u32,
    }
    let (Ok(name), Ok(attribute)) = (CString::new(name), CString::new(attribute)) else {
        return Err(Errno::INVAL);
    };
    let arguments = Arguments { value: room.as_mut_ptr() as u64, size: room.len() as u32, flags: 0 };
    // SAFETY: both names end in a zero; the arguments have the length that is said, and lead to `room`, which lives through the call.
    let len = unsafe {
        libc::syscall(
            SYS_GETXATTRAT,
            dir.as_raw_fd(),
            name.as_ptr(),
            libc::AT_SYMLINK_NOFOLLOW,
            attribute.as_ptr(),
            &raw const arguments,
            size_of::<Arguments>(),
        )
    };
    usize::try_from(len).map_err(|_| Errno::from_io_error(&io::Error::last_os_error()).unwrap_or(Errno::IO))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lock_that_another_keeps_is_given_up() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let (theirs, mine) = (file.reopen().unwrap(), file.reopen().unwrap());
        assert_eq!(lock_range(&theirs, LockKind::Alone, 0, 1, true), Ok(true));
        assert_eq!(lock_range(&mine, LockKind::Alone, 0, 1, false), Ok(false));
        let begin = Instant::now();
        assert_eq!(lock_range(&mine, LockKind::Alone, 0, 1, true), Err(Errno::TIMEDOUT));
        assert!(begin.elapsed() >= LOCK_TIME && begin.elapsed() < 2 * LOCK_TIME);
        drop(theirs);
        assert_eq!(lock_range(&mine, LockKind::Alone, 0, 1, true), Ok(true));
    }

    #[test]
    fn a_thread_that_acts_for_a_user_keeps_quotas() {
        if !rustix::process::geteuid().is_root() {
            return;
        }
        let acting = std::thread::spawn(|| {
            drop(UserGuard::new(User { uid: 1000, gid: 1000 }).unwrap());
            capabilities(None).unwrap()
        });
        let sets = acting.join().unwrap();
        assert!(!sets.effective.contains(CapabilitySet::SYS_RESOURCE));
        assert!(sets.effective.contains(CapabilitySet::DAC_OVERRIDE), "the rest is there again");
    }
}
