//! Room for descriptors of ours in the process's table.
//!
//! Descriptors that the program did not open get high numbers: a program that closes all numbers and opens files of its own
//! gets low ones. A table that has no such numbers yet grows, and where several threads share it the kernel waits for an RCU
//! grace period: 15 to 27 ms on 16 CPUs, in which 1 GB could be loaded. So it is asked for beforehand, by a thread of ours where
//! there are several.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use crate::threads;

/// Descriptors from here on are hardly ever the program's: the kernel gives out the lowest that is free.
pub const APART: i32 = 512;

/// Descriptors that are looked at for one to copy.
const LOOKED_AT: i32 = 64;

/// The process whose table grows now; 0 if none does. A forked child has no such thread.
static GROWS_IN: AtomicU32 = AtomicU32::new(0);

/// Lets the table grow, once in a process, while the caller goes on.
pub fn make_room() {
    static IS_ASKED: AtomicBool = AtomicBool::new(false);
    if !IS_ASKED.load(Ordering::Relaxed) && !IS_ASKED.swap(true, Ordering::Relaxed) {
        if is_alone() {
            // Nothing to wait for.
            return grow();
        }
        GROWS_IN.store(std::process::id(), Ordering::Relaxed);
        let grows = || {
            grow();
            GROWS_IN.store(0, Ordering::Relaxed);
        };
        if threads::spawn("forebay-table", grows).is_err() {
            // The first high number waits.
            GROWS_IN.store(0, Ordering::Relaxed);
        }
    }
}

/// Whether the table grows now, and a high number would wait. What is open for a moment only does better with a low one.
pub fn is_growing() -> bool {
    let grows_in = GROWS_IN.load(Ordering::Relaxed);
    grows_in != 0 && grows_in == std::process::id()
}

/// Whether this thread is the only one: its process's folder of threads has a link for each, and two of its own.
fn is_alone() -> bool {
    use std::os::unix::fs::MetadataExt;
    std::fs::metadata("/proc/self/task").is_ok_and(|task| task.nlink() == 3)
}

/// Copies a descriptor to a high number and closes the copy: a low number of our own could be the program's when it is closed.
fn grow() {
    for fd in (0..LOOKED_AT).filter(|fd| may_be_closed(*fd)) {
        // SAFETY: no pointers are passed; the copy is ours alone.
        unsafe {
            let copy = libc::fcntl(fd, libc::F_DUPFD_CLOEXEC, APART);
            if copy >= 0 {
                libc::close(copy);
                return;
            }
        }
    }
}

/// Whether a copy may be closed. To close one of a regular file would release the process's POSIX locks.
fn may_be_closed(fd: i32) -> bool {
    // SAFETY: all-zero bytes are a valid value; it lives through the call.
    unsafe {
        let mut about: libc::stat = std::mem::zeroed();
        libc::fstat(fd, &raw mut about) == 0
            && [libc::S_IFIFO, libc::S_IFSOCK, libc::S_IFCHR].contains(&(about.st_mode & libc::S_IFMT))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn size() -> i32 {
        let status = std::fs::read_to_string("/proc/self/status").expect("procfs");
        let line = status.lines().find_map(|line| line.strip_prefix("FDSize:")).expect("the kernel tells");
        line.trim().parse().expect("a number")
    }

    #[test]
    fn the_table_has_room_and_no_descriptor_stays() {
        make_room();
        let since = std::time::Instant::now();
        while size() <= APART {
            assert!(since.elapsed().as_secs() < 20, "{} descriptors fit", size());
            std::thread::yield_now();
        }
        let stays = || (APART..APART + 16).any(may_be_closed);
        while stays() {
            assert!(since.elapsed().as_secs() < 20, "the copy is open");
        }
    }

    #[test]
    fn regular_files_are_left_alone() {
        let file = std::fs::File::open("/proc/self/exe").expect("a file");
        assert!(!may_be_closed(std::os::fd::AsRawFd::as_raw_fd(&file)));
        assert!(!may_be_closed(-1));
    }
}
