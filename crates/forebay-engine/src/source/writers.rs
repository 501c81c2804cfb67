//! Whether anybody has a file open for writing.
//!
//! A file's times change when a write starts, not when it ends. So they do not show a write in progress that started
//! long ago. A read lease does: the kernel refuses one while there is any descriptor, or mapping, that may write.

use std::time::Duration;

use crate::runtime::sys;
use crate::source::Descriptors;
use crate::source::version::FileVersion;

/// No write call takes this long: it moves 2 GiB at most.
const MAX_WRITE_TIME: Duration = Duration::from_hours(24);

/// Possible writers of a file in one state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Writers {
    /// No write is under way: whatever is written later gives the file another version.
    Nobody,
    /// Somebody has the file open for writing.
    Somebody,
    /// Not known: this process has the file open for writing, and others may.
    Here,
    /// Not known: the kernel tells only the file's owner.
    NotOwner,
    /// Not known, for another reason.
    Untold,
}

impl Writers {
    pub(crate) const ALL: [Self; 5] =
        [Self::Nobody, Self::Somebody, Self::Here, Self::NotOwner, Self::Untold];

    /// Asks about a file that had this version before. The `thread` of ours takes the signal, should a process open the
    /// file for writing in that moment.
    pub(crate) fn of(file: &Descriptors, version: &FileVersion, thread: i32) -> Self {
        if !version.is_young(MAX_WRITE_TIME) {
            return Self::Nobody;
        }
        if file.nature.is_writable {
            return Self::Here;
        }
        let Some(fd) = file.opened_by_us() else { return Self::Untold };
        match sys::is_open_for_writing(fd, thread) {
            Ok(false) => Self::Nobody,
            Ok(true) => Self::Somebody,
            Err(libc::EACCES) => Self::NotOwner,
            Err(_) => Self::Untold,
        }
    }

    /// The one with this number, if there is any.
    pub(crate) fn numbered(number: u8) -> Option<Self> {
        Self::ALL.get(usize::from(number)).copied()
    }
}

#[cfg(test)]
mod tests {
    use std::fs::{File, OpenOptions};
    use std::os::fd::AsRawFd;
    use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

    use super::*;

    /// SIGIO that the program has seen.
    static SEEN: AtomicUsize = AtomicUsize::new(0);

    extern "C" fn count(_: libc::c_int) {
        SEEN.fetch_add(1, Ordering::SeqCst);
    }

    fn places() -> [std::path::PathBuf; 2] {
        [env!("CARGO_MANIFEST_DIR").into(), "/dev/shm".into()]
    }

    /// By a thread that blocks SIGIO, as ours.
    fn ask(fd: std::os::fd::RawFd) -> Result<bool, i32> {
        std::thread::spawn(move || sys::is_open_for_writing(fd, sys::take_no_sigio())).join().unwrap()
    }

    #[test]
    fn who_has_a_file_open_for_writing_is_known() {
        for place in places() {
            let path = tempfile::NamedTempFile::new_in(place).unwrap().into_temp_path();
            let file = File::open(&path).unwrap();
            let fd = file.as_raw_fd();
            assert_eq!(ask(fd), Ok(false));
            let other = OpenOptions::new().write(true).open(&path).unwrap();
            assert_eq!(ask(fd), Ok(true));
            other.set_len(4096).unwrap();
            let both = OpenOptions::new().read(true).write(true).open(&path).unwrap();
            let access = libc::PROT_READ | libc::PROT_WRITE;
            // SAFETY: a fresh mapping, which nobody touches.
            let map = unsafe {
                libc::mmap(std::ptr::null_mut(), 4096, access, libc::MAP_SHARED, both.as_raw_fd(), 0)
            };
            drop((other, both));
            assert_eq!(ask(fd), Ok(true), "a mapping");
            // SAFETY: mapped above.
            unsafe { libc::munmap(map, 4096) };
            assert_eq!(ask(fd), Ok(false));
        }
    }

    // Without a thread of ours as its owner the signal ends a program that has no handler for it.
    #[test]
    fn a_program_never_sees_the_signal() {
        // SAFETY: a handler that only counts.
        unsafe { libc::signal(libc::SIGIO, count as *const () as libc::sighandler_t) };
        let path = tempfile::NamedTempFile::new_in(env!("CARGO_MANIFEST_DIR")).unwrap().into_temp_path();
        let file = File::open(&path).unwrap();
        let stop = AtomicBool::new(false);
        let (tell, told) = std::sync::mpsc::channel();
        let busy = std::thread::scope(|scope| {
            scope.spawn(|| {
                tell.send(sys::take_no_sigio()).unwrap();
                while !stop.load(Ordering::Relaxed) {
                    std::thread::sleep(Duration::from_millis(1));
                }
                // SAFETY: a writable set.
                let pending = unsafe {
                    let mut set: libc::sigset_t = std::mem::zeroed();
                    libc::sigpending(&raw mut set);
                    libc::sigismember(&raw const set, libc::SIGIO)
                };
                assert_eq!(pending, 1, "nobody opened the file in the moment that it takes to ask");
            });
            let thread = told.recv().unwrap();
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    drop(OpenOptions::new().write(true).open(&path).unwrap());
                }
            });
            let mut busy = 0;
            let begun = std::time::Instant::now();
            // From a thread that takes signals, as a program's.
            while begun.elapsed() < Duration::from_millis(700) {
                busy += usize::from(sys::is_open_for_writing(file.as_raw_fd(), thread).unwrap());
            }
            stop.store(true, Ordering::Relaxed);
            busy
        });
        println!("open for writing {busy} times");
        assert_eq!(SEEN.load(Ordering::SeqCst), 0);
    }
}
