//! A write that stops half-way: its source is memory of which a page is not there, and a thread that needs it waits until it is
//! given (userfaultfd).
#![allow(dead_code, reason = "each test binary uses its own part")]
#![allow(clippy::unwrap_used, reason = "helpers of tests")]
#![allow(unreachable_pub, reason = "a module of test binaries, not a crate")]

use std::fs::OpenOptions;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::thread::JoinHandle;

const PAGE: usize = 4096;

/// Memory whose second half is not there yet.
struct Half {
    fault: OwnedFd,
    start: usize,
    len: usize,
}

impl Half {
    /// `None`, with a word, where the machine does not allow it.
    fn new(bytes: &[u8]) -> Option<Self> {
        // SAFETY: no pointers are passed.
        let fd = unsafe { libc::syscall(libc::SYS_userfaultfd, libc::O_CLOEXEC) };
        if fd < 0 {
            println!("skipped: no userfaultfd: {}", std::io::Error::last_os_error());
            return None;
        }
        // SAFETY: the descriptor is new.
        let fault = unsafe { OwnedFd::from_raw_fd(fd as i32) };
        let len = bytes.len();
        assert_eq!(len % (2 * PAGE), 0);
        let (access, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: a fresh mapping.
        let start = unsafe { libc::mmap(std::ptr::null_mut(), len, access, flags, -1, 0) } as usize;
        assert_ne!(start, libc::MAP_FAILED as usize);
        // SAFETY: the first half of the mapping.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), start as *mut u8, len / 2) };
        let half = Self { fault, start, len };
        half.call(0xC018_AA3F, &mut [0xAA, 0, 0]);
        half.call(0xC020_AA00, &mut [(start + len / 2) as u64, (len / 2) as u64, 1, 0]);
        Some(half)
    }

    fn call<const N: usize>(&self, request: u64, argument: &mut [u64; N]) {
        // SAFETY: the structures of linux/userfaultfd.h are 64-bit words.
        let rc = unsafe { libc::ioctl(self.fault.as_raw_fd(), request as _, argument.as_mut_ptr()) };
        assert_eq!(rc, 0, "{request:#x}: {}", std::io::Error::last_os_error());
    }

    /// Waits until a thread waits for the second half.
    fn wait(&self) {
        let mut message = [0u8; 32];
        // SAFETY: a writable place of a message's length.
        let got = unsafe { libc::read(self.fault.as_raw_fd(), message.as_mut_ptr().cast(), 32) };
        assert_eq!(got, 32, "{}", std::io::Error::last_os_error());
    }

    fn give(&self, bytes: &[u8]) {
        let (to, from) = ((self.start + self.len / 2) as u64, bytes[self.len / 2..].as_ptr() as u64);
        self.call(0xC028_AA03, &mut [to, from, (self.len / 2) as u64, 0, 0]);
    }
}

impl Drop for Half {
    fn drop(&mut self) {
        // SAFETY: mapped in `new`; the write is over.
        unsafe { libc::munmap(self.start as *mut _, self.len) };
    }
}

/// A write of one call that is half-way.
pub struct Held {
    half: Half,
    bytes: Vec<u8>,
    writer: Option<JoinHandle<()>>,
}

impl Held {
    /// Writes to the beginning of the file, by O_DIRECT or not, and comes back when it is half-way.
    pub fn begin(path: &Path, direct: bool, bytes: &[u8]) -> Option<Self> {
        let half = Half::new(bytes)?;
        let flags = if direct { libc::O_DIRECT } else { 0 };
        let file = OpenOptions::new().write(true).custom_flags(flags).open(path);
        let (file, start, len) = (file.unwrap(), half.start, half.len);
        let writer = std::thread::spawn(move || {
            // SAFETY: the memory stays until this has ended.
            let put = unsafe { libc::pwrite(file.as_raw_fd(), start as *const _, len, 0) };
            assert_eq!(put, len as isize, "{}", std::io::Error::last_os_error());
        });
        half.wait();
        Some(Self { half, bytes: bytes.to_vec(), writer: Some(writer) })
    }

    /// Lets it go on. It has returned, and its file is closed, when this returns.
    pub fn end(mut self) {
        self.let_go();
    }

    fn let_go(&mut self) {
        if let Some(writer) = self.writer.take() {
            self.half.give(&self.bytes);
            writer.join().unwrap();
        }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.let_go();
    }
}
