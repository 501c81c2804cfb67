//! Shared by the tests over the fake driver.

#![allow(dead_code, unreachable_pub, clippy::expect_used)]

pub mod alone;
pub mod resident;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use fake_cuda::Fake;
use forebay_gpu::{CopyPiece, Device, HostRange, cuda};

/// Tests of one binary share one fake: they run one after another.
static TURN: Mutex<()> = Mutex::new(());

thread_local! {
    static HELD: std::cell::RefCell<Option<MutexGuard<'static, ()>>> = const { std::cell::RefCell::new(None) };
}

/// The fake, reset, and its first device. Holds the turn until the test's thread ends.
pub fn device() -> (&'static Fake, Arc<dyn Device>) {
    HELD.with_borrow_mut(|held| {
        if held.is_none() {
            *held = Some(TURN.lock().unwrap_or_else(PoisonError::into_inner));
        }
    });
    let fake = fake_cuda::install().expect("the fake driver is built beside the tests");
    fake.reset();
    (fake, cuda::devices().expect("the fake has devices").remove(0))
}

/// Fails if the test left anything behind.
pub fn tidy(fake: &Fake) {
    let leaks = fake.leaks();
    let empty = fake_cuda::Leaks { contexts: leaks.contexts, ..fake_cuda::Leaks::default() };
    assert_eq!(leaks, empty, "left behind");
}

/// What stands in device memory.
pub fn on_device(fake: &Fake, address: u64, len: usize) -> Vec<u8> {
    if len == 0 { Vec::new() } else { fake.read(address, len).expect("device memory") }
}

/// Host memory that a device knows.
pub struct Pinned {
    owner: Arc<dyn Device>,
    bytes: Box<[u64]>,
    len: usize,
    /// The address by which the device reaches it.
    pub device: u64,
}

impl Pinned {
    pub fn new(owner: &Arc<dyn Device>, len: usize) -> Self {
        let mut bytes = vec![0u64; len.div_ceil(8).max(1)].into_boxed_slice();
        // SAFETY: unpinned before it is freed, in `drop`.
        let device =
            unsafe { owner.pin(HostRange::new(bytes.as_mut_ptr().cast(), bytes.len() * 8)) }.expect("pinned");
        Self { owner: owner.clone(), bytes, len, device }
    }

    pub fn pointer(&self) -> *mut u8 {
        self.bytes.as_ptr().cast_mut().cast()
    }

    /// Sets one entry of a list of pieces.
    pub fn put(&self, index: usize, piece: CopyPiece) {
        assert!((index + 1) * size_of::<CopyPiece>() <= self.len);
        // SAFETY: in bounds and aligned; tests write a list only when no kernel reads it.
        unsafe { self.bytes.as_ptr().cast_mut().cast::<CopyPiece>().add(index).write(piece) };
    }

    #[allow(clippy::mut_from_ref)]
    pub fn slice(&self) -> &mut [u8] {
        // SAFETY: tests touch it only when no copy is in flight, through one slice at a time.
        unsafe { std::slice::from_raw_parts_mut(self.pointer(), self.len) }
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        // SAFETY: pinned in `new`; the test has waited for all copies.
        unsafe { self.owner.unpin(self.pointer()) };
    }
}

/// A small random number generator: the same numbers in each run.
pub struct Random(pub u64);

impl Random {
    pub fn below(&mut self, end: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((self.0 >> 33) as usize) % end.max(1)
    }
}

/// A file of ours and a shared mapping of it.
pub struct Mapped {
    pub file: std::fs::File,
    pub path: std::path::PathBuf,
    pub address: *mut u8,
    pub len: usize,
}

impl Mapped {
    /// A file on disk (where the build's folder is) with the pattern of `key`, mapped for reading.
    pub fn on_disk(len: usize, key: u64) -> Self {
        use std::sync::atomic::{AtomicU64, Ordering};
        static NUMBER: AtomicU64 = AtomicU64::new(0);
        let name = format!("mapped-{}-{}", std::process::id(), NUMBER.fetch_add(1, Ordering::Relaxed));
        let path = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
        let file = std::fs::File::options().read(true).write(true).create(true).truncate(true).open(&path);
        Self::of(file.expect("a new file"), path, len, key, libc::PROT_READ, libc::MAP_SHARED)
    }

    /// A file in memory with the pattern of `key`, mapped for reading and writing.
    pub fn in_memory(len: usize, key: u64) -> Self {
        use std::os::fd::FromRawFd;
        // SAFETY: a C string; the descriptor is owned by the file from here on.
        let file = unsafe { std::fs::File::from_raw_fd(libc::memfd_create(c"mapped".as_ptr(), 0)) };
        let path = std::path::PathBuf::new();
        Self::of(file, path, len, key, libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED)
    }

    fn of(
        file: std::fs::File,
        path: std::path::PathBuf,
        len: usize,
        key: u64,
        access: i32,
        flags: i32,
    ) -> Self {
        use std::os::unix::fs::FileExt;
        let mut bytes = vec![0; len];
        forebay_gpu::fill_pattern(&mut bytes, key, 0);
        file.write_all_at(&bytes, 0).expect("written");
        // Clean pages are what an O_DIRECT write can drop.
        file.sync_all().expect("on disk");
        let address = Self::map(&file, len, access, flags);
        Self { file, path, address, len }
    }

    /// One more mapping of a file.
    pub fn map(file: &std::fs::File, len: usize, access: i32, flags: i32) -> *mut u8 {
        use std::os::fd::AsRawFd;
        // SAFETY: a mapping at an address of the kernel's choice touches nothing that exists.
        let address = unsafe { libc::mmap(std::ptr::null_mut(), len, access, flags, file.as_raw_fd(), 0) };
        assert_ne!(address, libc::MAP_FAILED);
        address.cast()
    }

    pub fn write(&self, bytes: &[u8], at: u64) {
        use std::os::unix::fs::FileExt;
        self.file.write_all_at(bytes, at).expect("written");
    }

    /// Punches a hole.
    pub fn punch(&self, at: i64, len: i64) {
        use std::os::fd::AsRawFd;
        let how = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
        // SAFETY: takes no pointers.
        assert_eq!(unsafe { libc::fallocate(self.file.as_raw_fd(), how, at, len) }, 0, "a hole");
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        // SAFETY: mapped by us; tests unregister first, or want to see what happens.
        unsafe { libc::munmap(self.address.cast(), self.len) };
        let _ = std::fs::remove_file(&self.path);
    }
}
