//! Room for descriptors of ours in the process's table.
//!
//! Descriptors that the program did not open get high numbers: a program that closes all numbers and opens files of its own
//! gets low ones. A table that has no such numbers yet grows, and where several threads share it the kernel waits for an RCU
//! grace period: 15 to 27 ms on 16 CPUs, in which 1 GB could be loaded. So it is asked for beforehand, by a thread of ours where
//! there are several.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use crate::threads;

/// The first high descriptor. The program hardly ever has one: the kernel gives out the lowest free number.
pub const HIGH_DESCRIPTOR: i32 = 512;

/// The first descriptor for a copy that must not be low. The smallest table (64 entries) has it, so that taking one never waits.
const SPARE_DESCRIPTOR: i32 = 48;

/// The process whose table grows now; 0 if none does. A forked child differs: it has no thread that grows its table.
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
            // No thread: the first caller that takes a high number waits for the kernel instead.
            GROWS_IN.store(0, Ordering::Relaxed);
        }
    }
}

/// Whether the table grows now, so that taking a high number would wait. A file that is open for a moment only takes a low one then.
pub fn is_growing() -> bool {
    let grows_in = GROWS_IN.load(Ordering::Relaxed);
    grows_in != 0 && grows_in == std::process::id()
}

/// Whether this thread is the only one of the process: `/proc/self/task` has two links and one for each thread.
fn is_alone() -> bool {
    use std::os::unix::fs::MetadataExt;
    std::fs::metadata("/proc/self/task").is_ok_and(|task| task.nlink() == 3)
}

/// Makes the table grow: copies a file of our own to a high number, and closes the copy. The copied file stays open while the
/// kernel waits, so it is not one of the program's: a copy of a pipe would keep its reader from seeing the end. It is moved to
/// [`SPARE_DESCRIPTOR`] first, so that the program does not get its number meanwhile.
fn grow() {
    // SAFETY: the name lives through the call; the descriptors are ours alone, and closed only while they are.
    unsafe {
        let first = libc::memfd_create(c"forebay-table".as_ptr(), libc::MFD_CLOEXEC);
        let Some(ours) = identity(first) else { return };
        let close = |fd| (identity(fd) == Some(ours)).then(|| libc::close(fd));
        let spare = libc::fcntl(first, libc::F_DUPFD_CLOEXEC, SPARE_DESCRIPTOR);
        close(first);
        let high = libc::fcntl(spare, libc::F_DUPFD_CLOEXEC, HIGH_DESCRIPTOR);
        close(high);
        close(spare);
    }
}

/// Device and inode of a descriptor's file; `None` if it is not open.
pub(crate) fn identity(fd: i32) -> Option<(u64, u64)> {
    // SAFETY: all-zero bytes are a valid value; it lives through the call.
    unsafe {
        let mut about: libc::stat = std::mem::zeroed();
        (libc::fstat(fd, &raw mut about) == 0).then_some((about.st_dev, about.st_ino))
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
        while size() <= HIGH_DESCRIPTOR {
            assert!(since.elapsed().as_secs() < 20, "{} descriptors fit", size());
            std::thread::yield_now();
        }
        let stays = || {
            [SPARE_DESCRIPTOR, HIGH_DESCRIPTOR]
                .into_iter()
                .any(|least| (least..least + 16).any(|fd| identity(fd).is_some()))
        };
        while stays() {
            assert!(since.elapsed().as_secs() < 20, "the copy is open");
        }
    }

    /// A copy of a program's pipe would keep its reader from seeing the end.
    #[test]
    fn nothing_of_the_programs_is_held() {
        for _ in 0..10 {
            std::thread::spawn(grow_beside_a_pipe).join().expect("a thread");
        }
    }

    /// In a table of this thread and one more.
    fn grow_beside_a_pipe() {
        let mut pipe = [0; 2];
        // SAFETY: pointers are to live places; all descriptors are of this table, which ends with the threads.
        unsafe {
            assert_eq!(libc::unshare(libc::CLONE_FILES), 0);
            assert_eq!(libc::pipe(pipe.as_mut_ptr()), 0);
            libc::dup2(pipe[1], 0);
            libc::close(pipe[1]);
            let other = std::thread::spawn(grow);
            libc::usleep(1000);
            libc::close(0);
            let mut end = [libc::pollfd { fd: pipe[0], events: libc::POLLIN, revents: 0 }];
            assert_eq!(libc::poll(end.as_mut_ptr(), 1, 0), 1, "the pipe has no writer");
            other.join().expect("a thread");
        }
    }
}
