//! Our descriptors of files that callers have open, and when to close them.
//!
//! Closing any descriptor of a file releases all POSIX locks (`fcntl`, `lockf`) of the process on it. So an unused
//! descriptor is kept for the next adoption of the same file, and closed some seconds later if the process has no lock on
//! the file then.

use std::fs;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::{Mutex, MutexGuard};
use std::thread;
use std::time::Instant;

use forebay_config::files::read_kernel_text;

use crate::runtime::lock;
use crate::runtime::owned::Owned;
use crate::runtime::process::PerProcess;
use crate::tuning::files::MAX_IDLE;
use crate::tuning::machine::PATIENCE;
use forebay_sys::threads;

/// The file and the access of a descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DescriptorKey {
    pub(crate) device: u64,
    pub(crate) inode: u64,
    /// Flags for `open`; none for a descriptor that shares the caller's opening and is not used again.
    pub(crate) flags: Option<i32>,
    /// Whether the kernel's list of locks names files of this file system by the number that `stat` tells.
    pub(crate) is_listed: bool,
}

/// A descriptor of ours in use; it becomes idle on drop.
#[derive(Debug)]
pub(crate) struct KeptDescriptor {
    /// `None` only while it is dropped.
    fd: Option<Owned>,
    key: DescriptorKey,
}

impl KeptDescriptor {
    /// Whether it shares the opening of the caller's descriptor.
    pub(super) fn is_shared(&self) -> bool {
        self.key.flags.is_none()
    }

    pub(super) fn new(fd: OwnedFd, key: DescriptorKey) -> Self {
        let identity = (key.device, key.inode);
        let fd = if key.flags.is_some() { Owned::new(fd, identity) } else { Owned::sharing(fd, identity) };
        Self { fd: Some(fd), key }
    }

    pub(super) fn is_itself(&self) -> bool {
        self.fd.as_ref().is_some_and(Owned::is_itself)
    }

    /// An idle one, if there is any.
    pub(super) fn again(key: DescriptorKey) -> Option<Self> {
        let mut idle = idle();
        // The program may have closed some.
        idle.all.retain(|entry| entry.key != key || entry.fd.is_itself());
        let index = idle.all.iter().position(|entry| entry.key == key)?;
        let fd = idle.all.swap_remove(index).fd;
        Some(Self { fd: Some(fd), key })
    }
}

impl AsRawFd for KeptDescriptor {
    fn as_raw_fd(&self) -> RawFd {
        self.fd.as_ref().map_or(-1, AsRawFd::as_raw_fd)
    }
}

impl Drop for KeptDescriptor {
    fn drop(&mut self) {
        let Some(fd) = self.fd.take() else { return };
        let mut idle = idle();
        let entry = IdleEntry { key: self.key, fd, since: Instant::now() };
        // A shared opening keeps the caller's `flock`.
        let is_urgent = idle.all.len() >= MAX_IDLE || entry.is_shared();
        idle.all.push(entry);
        idle.start_sweeper();
        drop(idle);
        if is_urgent {
            sweep();
        }
    }
}

struct IdleEntry {
    key: DescriptorKey,
    fd: Owned,
    since: Instant,
}

impl IdleEntry {
    fn is_shared(&self) -> bool {
        self.key.flags.is_none()
    }
}

/// The process's idle descriptors.
#[derive(Default)]
pub(crate) struct Idle {
    all: Vec<IdleEntry>,
    /// Whether a thread sweeps them.
    is_swept: bool,
}

impl Idle {
    fn start_sweeper(&mut self) {
        if !self.is_swept {
            let sweeper = threads::spawn("forebay-idle", sweep_on);
            // Without a thread they are swept when there are too many.
            self.is_swept = sweeper.is_ok();
        }
    }
}

#[derive(Default)]
struct IdleDescriptors(Mutex<Idle>);

// SAFETY: no other kind has the name.
unsafe impl PerProcess for IdleDescriptors {
    const NAME: &'static str = "idle descriptors";
}

fn idle() -> MutexGuard<'static, Idle> {
    lock(&IdleDescriptors::of_process().0)
}

/// The sweeper's thread: it ends when nothing is idle.
fn sweep_on() {
    loop {
        thread::sleep(PATIENCE / 2);
        sweep();
        let mut idle = idle();
        if idle.all.is_empty() {
            idle.is_swept = false;
            return;
        }
    }
}

/// Closes descriptors that are too old or too many, where that releases no lock.
fn sweep() {
    let mut idle = idle();
    // Half of them at once: the kernel's list of locks is read twice for that, 80 µs on a quiet machine.
    let is_full = idle.all.len() > MAX_IDLE;
    let surplus = if is_full { idle.all.len() - MAX_IDLE / 2 } else { 0 };
    idle.all.sort_by_key(|entry| (!entry.is_shared(), entry.since));
    let is_due = |index: usize, entry: &IdleEntry| {
        index < surplus || entry.is_shared() || entry.since.elapsed() >= PATIENCE / 2
    };
    let due = idle.all.iter().enumerate().take_while(|(index, entry)| is_due(*index, entry)).count();
    if due == 0 {
        return;
    }
    // The kernel gives the list in parts, between which entries can move: a lock that neither of two readings has is gone.
    let (Some(first), Some(second)) = (PosixLocks::read(), PosixLocks::read()) else { return };
    let mut closing = Vec::new();
    for index in (0..due).rev() {
        let key = idle.all[index].key;
        if !first.has(&key) && !second.has(&key) {
            closing.push(idle.all.remove(index).fd);
        }
    }
    // The list stays locked for this moment, so that no descriptor is used again meanwhile.
    drop(closing);
}

/// Inodes that this process has POSIX locks on.
struct PosixLocks(Vec<u64>);

impl PosixLocks {
    /// `None` where the kernel does not tell.
    fn read() -> Option<Self> {
        // The numbers in /proc are those of its own PID namespace, as is this link.
        let process = fs::read_link("/proc/self").ok()?;
        let process = process.to_str()?.parse().ok()?;
        Self::parse(&read_kernel_text("/proc/locks").ok()?, process)
    }

    /// Lines such as `1: POSIX  ADVISORY  WRITE 77 08:01:1234 0 EOF`; one that waits has `->` before the kind. `None` if
    /// one cannot be read.
    fn parse(text: &str, process: u32) -> Option<Self> {
        let mut inodes = Vec::new();
        for line in text.lines() {
            let mut words = line.split_whitespace().skip(1).skip_while(|word| *word == "->");
            if words.next()? != "POSIX" {
                continue;
            }
            let mut words = words.skip(2);
            let owner: u32 = words.next()?.parse().ok()?;
            let inode = words.next()?.rsplit(':').next()?.parse().ok();
            if owner == process {
                // `<none>` stands for a file that is gone.
                inodes.push(inode.unwrap_or(0));
            }
        }
        Some(Self(inodes))
    }

    /// Device numbers are left out: for some file systems the list has others than `stat`.
    fn has(&self, key: &DescriptorKey) -> bool {
        if key.is_listed { self.0.contains(&key.inode) } else { !self.0.is_empty() }
    }
}

/// How many descriptors are idle.
#[cfg(test)]
fn count(inode: u64) -> usize {
    idle().all.iter().filter(|entry| entry.key.inode == inode).count()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;

    use std::time::Duration;

    use super::*;

    fn key(inode: u64) -> DescriptorKey {
        DescriptorKey { device: 1, inode, flags: Some(0), is_listed: true }
    }

    #[test]
    fn only_posix_locks_of_this_process_count() {
        let text = "1: POSIX  ADVISORY  WRITE 77 08:01:1234 0 EOF\n1: -> POSIX  ADVISORY  READ  77 08:01:9 0 1\n\
                    2: OFDLCK ADVISORY  WRITE -1 08:01:5 0 EOF\n3: FLOCK  ADVISORY  WRITE 77 08:01:6 0 EOF\n\
                    4: POSIX  ADVISORY  WRITE 78 08:01:7 0 EOF\n";
        let locked = PosixLocks::parse(text, 77).unwrap();
        assert_eq!(locked.0, [1234, 9]);
        assert!(locked.has(&key(1234)) && !locked.has(&key(7)));
        // Where the list may name the file by another number, any lock counts.
        assert!(locked.has(&DescriptorKey { is_listed: false, ..key(7) }));
        assert!(!PosixLocks::parse(text, 79).unwrap().has(&DescriptorKey { is_listed: false, ..key(7) }));
        assert!(PosixLocks::parse("1: POSIX  ADVISORY  WRITE what 08:01:7 0 EOF\n", 77).is_none());
    }

    #[test]
    fn what_is_too_much_is_closed_unless_it_is_locked() {
        let file = tempfile::tempfile().unwrap();
        let about = file.metadata().unwrap();
        let (inode, key) = (about.ino(), DescriptorKey { device: about.dev(), ..key(about.ino()) });
        let put = |count: i32| {
            for flags in 0..count {
                let fd = crate::source::descriptor::reopen(file.as_raw_fd(), libc::O_RDWR).unwrap();
                drop(KeptDescriptor::new(fd, DescriptorKey { flags: Some(-flags), ..key }));
            }
        };
        // SAFETY: a zeroed flock is a valid value: the whole file.
        let mut lock: libc::flock = unsafe { std::mem::zeroed() };
        lock.l_type = libc::F_WRLCK as i16;
        // SAFETY: the lock lives through the call.
        assert_eq!(unsafe { libc::fcntl(file.as_raw_fd(), libc::F_SETLK, &lock) }, 0);
        let most = MAX_IDLE as i32;
        put(most + 10);
        assert_eq!(count(inode), MAX_IDLE + 10, "closed while the process has a lock");
        assert!(PosixLocks::read().unwrap().has(&key), "the lock is gone");
        lock.l_type = libc::F_UNLCK as i16;
        // SAFETY: as above.
        assert_eq!(unsafe { libc::fcntl(file.as_raw_fd(), libc::F_SETLK, &lock) }, 0);
        put(1);
        assert!(count(inode) <= MAX_IDLE, "{} are kept", count(inode));
        let again = KeptDescriptor::again(key).unwrap();
        assert!(again.as_raw_fd() > 2);
        assert!(KeptDescriptor::again(DescriptorKey { flags: Some(7), ..key }).is_none());
        drop(again);
        // The thread closes the rest.
        thread::sleep(PATIENCE + Duration::from_secs(1));
        assert_eq!(count(inode), 0);
    }
}
