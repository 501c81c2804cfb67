//! What the engine's tests share: memories, files with known bytes, sessions.
#![allow(dead_code, reason = "each test binary uses its own part")]
#![allow(unreachable_pub, reason = "a module of test binaries, not a crate")]

use std::path::{Path, PathBuf};
use std::sync::Once;
use std::sync::atomic::{AtomicU64, Ordering};

use forebay_config::{CachePolicy, Config, IoBackend};
use forebay_engine::{Buffer, File, Session};
use forebay_gpu::fill_pattern;

/// Makes the software GPU the machine's GPU, once for the process.
pub fn install_gpu() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        fake_cuda::install().expect("the software GPU was built with these tests");
    });
}

/// A memory to transfer to: the host's, or the software GPU's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target {
    Host,
    Device,
}

impl Target {
    pub const ALL: [Self; 2] = [Self::Host, Self::Device];

    pub fn buffer(self, session: &Session, len: usize) -> Buffer {
        match self {
            Self::Host => session.host_buffer(len).unwrap(),
            Self::Device => {
                assert!(!session.devices().gpus.is_empty(), "no software GPU: {:?}", session.devices().missing);
                session.buffer(0, len).unwrap()
            }
        }
    }
}

pub fn config(io: IoBackend, cache: CachePolicy) -> Config {
    Config { lanes: 2, slots: 3, slot_size: 256 << 10, io, cache, ..Config::default() }
}

pub fn session(io: IoBackend, cache: CachePolicy) -> Session {
    install_gpu();
    Session::with_config(config(io, cache)).unwrap()
}

/// A directory on a disk file system (with O_DIRECT, as a rule), inside the build directory.
pub fn disk() -> PathBuf {
    PathBuf::from(env!("CARGO_TARGET_TMPDIR"))
}

/// A file name that no other test uses, removed on drop.
pub struct Scratch(PathBuf);

impl Scratch {
    pub fn new(directory: &Path) -> Self {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        Self(directory.join(format!("forebay-test-{}-{number}", std::process::id())))
    }

    /// With `len` bytes of the pattern of `key`.
    pub fn with_pattern(directory: &Path, key: u64, len: usize) -> Self {
        let scratch = Self::new(directory);
        std::fs::write(scratch.path(), pattern(key, 0, len)).unwrap();
        scratch
    }

    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

pub fn pattern(key: u64, offset: u64, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    fill_pattern(&mut bytes, key, offset);
    bytes
}

/// Drops the file's pages from the page cache and makes sure that they are gone.
pub fn chill(file: &File) {
    file.drop_cache().unwrap();
    let left = file.residency(0, u64::MAX / 2).unwrap();
    assert!(left.cached == 0 || file.file_system() == "tmpfs", "the cache still holds {left:?}");
}

/// Small deterministic random numbers.
pub struct Random(pub u64);

impl Random {
    pub fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        forebay_gpu::pattern_word(self.0, 0) % bound
    }
}
