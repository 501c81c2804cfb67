//! Shared by the engine's tests: memories, files with known bytes, sessions.
#![allow(dead_code, reason = "each test binary uses its own part")]
#![allow(clippy::expect_used, clippy::unwrap_used, reason = "helpers of tests")]
#![allow(unreachable_pub, reason = "a module of test binaries, not a crate")]

pub mod bar;
pub mod late;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, Once, PoisonError};
use std::time::{Duration, Instant};

use fake_cuda::Fake;
use forebay_config::{CachePolicy, Config, IoBackend};
#[allow(unused_imports, reason = "each test binary uses its own part")]
pub use forebay_contract::{Random, pattern};
use forebay_engine::{Buffer, File, Session};
use forebay_error::Error;

/// Makes the software GPU the machine's GPU, once for the process.
pub fn install_gpu() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        fake_cuda::install().expect("the software GPU was built with these tests");
    });
}

/// A memory to transfer to: the host's, the software GPU's, or that in a PCI BAR.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target {
    Host,
    Device,
    /// Only in sessions of [`session_with_bar`].
    Bar,
}

impl Target {
    pub const ALL: [Self; 2] = [Self::Host, Self::Device];
    pub const WITH_BAR: [Self; 3] = [Self::Host, Self::Device, Self::Bar];

    pub fn buffer(self, session: &Session, len: usize) -> Buffer {
        match self {
            Self::Host => session.host_buffer(len).unwrap(),
            Self::Device => {
                assert!(
                    !session.devices().gpus.is_empty(),
                    "no software GPU: {:?}",
                    session.devices().missing
                );
                session.buffer(0, len).unwrap()
            }
            Self::Bar => Buffer::new(session.devices().bars[0].clone(), len).unwrap(),
        }
    }
}

pub fn config(io: IoBackend, cache: CachePolicy) -> Config {
    Config { lanes: 2, slots: 4, slot_size: 256 << 10, io, cache, ..Config::default() }
}

pub fn session(io: IoBackend, cache: CachePolicy) -> Session {
    install_gpu();
    Session::with_config(config(io, cache)).unwrap()
}

/// Has the software GPU give its memory to NICs, as those do whose driver makes dma-bufs.
pub fn allow_dma_bufs() -> &'static Fake {
    const DMA_BUF_SUPPORTED: i32 = 124;
    let fake = fake_cuda::install().expect("the software GPU was built with these tests");
    fake.set_attribute(DMA_BUF_SUPPORTED, 1);
    fake
}

/// Reads `len` bytes into the GPU's memory until the way there from the file's server was tried: the transfer that asks first goes
/// another way.
pub fn try_placed(session: &Session, file: &File, len: usize) {
    let until = Instant::now() + Duration::from_secs(20);
    let mut buffer = session.buffer(0, len).unwrap();
    let is_pending =
        |receipt: String| ["is in progress", "is being checked"].iter().any(|words| receipt.contains(words));
    while is_pending(session.read(file, 0, &mut buffer).unwrap().to_string()) {
        assert!(Instant::now() < until, "the trial does not end");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// The same on a machine that has memory in a PCI BAR, and a GPU whose memory NICs reach.
pub fn session_with_bar(config: Config) -> Session {
    if !bar::is_real() {
        install_gpu();
        allow_dma_bufs();
    }
    Session::on_devices(config, bar::devices()).unwrap()
}

/// A directory on a disk file system (with O_DIRECT, as a rule), inside the build directory; or where
/// `FOREBAY_TEST_DIR` says.
pub fn disk() -> PathBuf {
    std::env::var_os("FOREBAY_TEST_DIR").map_or_else(|| env!("CARGO_TARGET_TMPDIR").into(), PathBuf::from)
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

/// Drops the file's pages from the page cache and makes sure that they are gone.
pub fn chill(file: &File) {
    // A page that the kernel has in hand stays: writing back, another test's readahead.
    let mut left = String::new();
    for _ in 0..50 {
        file.drop_cache().unwrap();
        let residency = file.residency(0, u64::MAX / 2).unwrap();
        // To look by other means brings pages in.
        let is_told = residency.method == "cachestat" && file.file_system() != "tmpfs";
        if residency.cached == 0 || !is_told {
            return;
        }
        left = format!("{residency:?}");
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
    panic!("the cache still holds {left}");
}

/// Sets a flag when it is dropped, so that a check that fails does not leave other threads running.
pub struct Stop<'a>(pub &'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

// ---- one test at a time over the software GPU ---------------------------------------------------------------------

/// The software GPU for one test alone, without faults: its faults and counts are the process's. A test that hangs
/// is printed by name and ends the process.
pub struct Turn {
    pub fake: &'static Fake,
    _alone: MutexGuard<'static, ()>,
    _watch: Watch,
}

pub fn turn() -> Turn {
    static ALONE: Mutex<()> = Mutex::new(());
    let alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    install_gpu();
    let fake = fake_cuda::install().expect("installed above");
    fake.reset();
    forebay_gpu::cuda::devices().expect("the software GPU answers");
    Turn { fake, _alone: alone, _watch: Watch::new(Duration::from_secs(80)) }
}

impl Drop for Turn {
    fn drop(&mut self) {
        self.fake.reset();
    }
}

/// Ends the process if it is not dropped in time.
pub struct Watch(Arc<(Mutex<bool>, Condvar)>);

impl Watch {
    pub fn new(limit: Duration) -> Self {
        let done = Arc::new((Mutex::new(false), Condvar::new()));
        let watched = done.clone();
        let name = std::thread::current().name().unwrap_or("a test").to_owned();
        std::thread::spawn(move || {
            let is_done = watched.0.lock().unwrap_or_else(PoisonError::into_inner);
            let waited = watched.1.wait_timeout_while(is_done, limit, |is_done| !*is_done);
            if waited.is_ok_and(|(_, waited)| waited.timed_out()) {
                eprintln!("HANG: {name} is not done after {limit:?}");
                std::process::abort();
            }
        });
        Self(done)
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        *self.0.0.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.0.1.notify_all();
    }
}

/// The name of the running test, with its module: the test harness gives it to the test's thread.
pub fn test_name() -> String {
    std::thread::current().name().expect("called on the test's own thread").to_owned()
}

/// Runs `body` as a process of its own, that of the running test alone: for what changes a whole process (user, limits,
/// system call filters, variables that are read once). `wrapper` is a command to run it under. `None` if the wrapper
/// cannot run here.
pub fn in_process(wrapper: &[&str], variables: &[(&str, &str)], body: impl FnOnce()) -> Option<()> {
    const CHILD: &str = "FOREBAY_TEST_CHILD";
    let name = test_name();
    if std::env::var(CHILD).is_ok_and(|child| child == name) {
        body();
        return Some(());
    }
    let executable = std::env::current_exe().unwrap();
    let mut command = match wrapper {
        [] => Command::new(executable),
        [program, arguments @ ..] => {
            let works = Command::new(program).args(arguments).arg("true").output();
            if !works.is_ok_and(|output| output.status.success()) {
                println!("skipped: `{}` does not work here", wrapper.join(" "));
                return None;
            }
            let mut command = Command::new(program);
            command.args(arguments).arg(executable);
            command
        }
    };
    command.args(["--exact", &name, "--nocapture"]).env(CHILD, &name).envs(variables.iter().copied());
    let output = command.output().unwrap();
    print!("{}", String::from_utf8_lossy(&output.stdout));
    assert!(output.status.success(), "{}: {}", output.status, String::from_utf8_lossy(&output.stderr));
    Some(())
}

/// Becomes a user without privileges (for good: in a process of its own). False if it is one already.
pub fn drop_privileges() -> bool {
    const NOBODY: u32 = 65534;
    // SAFETY: no pointers are passed. glibc changes the ids of all threads.
    unsafe {
        if libc::geteuid() != 0 {
            return false;
        }
        assert_eq!(libc::setgroups(0, std::ptr::null()), 0);
        assert_eq!(libc::setresgid(NOBODY, NOBODY, NOBODY), 0);
        assert_eq!(libc::setresuid(NOBODY, NOBODY, NOBODY), 0);
        // An id change makes a process undumpable, and its /proc/self unreadable.
        libc::prctl(libc::PR_SET_DUMPABLE, 1, 0, 0, 0);
    }
    true
}

/// Waits until `is_so`, at most half a minute: tests run on machines that are busy. Whether it came to be.
pub fn soon(is_so: impl Fn() -> bool) -> bool {
    (0..6000).any(|_| {
        is_so() || {
            std::thread::sleep(Duration::from_millis(5));
            false
        }
    })
}

pub fn has_hint(error: &Error, word: &str) -> bool {
    error.hints().iter().any(|hint| hint.contains(word))
}

pub fn context<'a>(error: &'a Error, key: &str) -> Option<&'a str> {
    error.context().iter().find(|(name, _)| *name == key).map(|(_, value)| value.as_str())
}
