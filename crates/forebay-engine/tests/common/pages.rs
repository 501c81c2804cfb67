//! Shared by the tests of the engine `mapped`, in addition to `common`.
#![allow(dead_code, reason = "each test binary uses its own part")]
#![allow(clippy::unwrap_used, reason = "helpers of tests")]
#![allow(unreachable_pub, reason = "a module of test binaries, not a crate")]

use std::fs::OpenOptions;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use forebay_config::Config;
use forebay_engine::{Buffer, EngineKind, File, PinReport, Receipt, Refusal, Session, Way};
use forebay_error::Result;
use forebay_gpu::Device;

use crate::common::{Scratch, pattern};

pub const MIB: usize = 1 << 20;
/// The least that the options allow.
pub const SETTLE: Duration = Duration::from_millis(20);

/// Elects by itself. However long registering takes on this machine, nothing is put off for that.
pub fn config() -> Config {
    Config { lanes: 2, slots: 3, slot_size: 1 << 20, pin_settle: SETTLE, pin_pace: 0, ..Config::default() }
}

/// `mapped` and nothing else.
pub fn only() -> Config {
    Config { engine: Some("mapped".to_owned()), ..config() }
}

pub fn open(config: Config) -> Session {
    Session::with_config(config).unwrap()
}

/// A directory in memory.
pub fn memory() -> PathBuf {
    PathBuf::from("/dev/shm")
}

/// Lets a file grow old enough to be pinned, and a window that was declined be looked at again.
pub fn settle() {
    std::thread::sleep(Duration::from_millis(160));
}

/// A file with the pattern of `key` that was left alone long enough.
pub fn subject(directory: &Path, key: u64, len: usize) -> (Scratch, File) {
    let scratch = Scratch::with_pattern(directory, key, len);
    let file = File::options().write(true).open(scratch.path()).unwrap();
    std::thread::sleep(SETTLE * 2);
    warm(&file);
    (scratch, file)
}

/// A file of zeros that takes no time to make, with its pages in memory.
pub fn blank(directory: &Path, len: usize) -> (Scratch, File) {
    let scratch = Scratch::with_pattern(directory, 0, 0);
    // Unlike `set_len` alone this gives a tmpfs file its pages.
    let zeros = vec![0; MIB];
    for at in (0..len).step_by(MIB) {
        let part = MIB.min(len - at);
        raw(scratch.path()).write_all_at(&zeros[..part], at as u64).unwrap();
    }
    std::thread::sleep(SETTLE * 2);
    let file = File::options().write(true).open(scratch.path()).unwrap();
    (scratch, file)
}

pub fn raw(path: &Path) -> std::fs::File {
    OpenOptions::new().read(true).write(true).open(path).unwrap()
}

pub fn fetch(session: &Session, file: &File, offset: u64, len: usize) -> Result<(Vec<u8>, Receipt)> {
    let mut buffer: Buffer = session.buffer(0, len)?;
    let receipt = session.read(file, offset, &mut buffer)?;
    Ok((buffer.to_vec()?, receipt))
}

/// Brings all pages of a file into the page cache. The machine may take them out at any time: some page
/// out by themselves what no mapping has touched lately.
pub fn warm(file: &File) {
    let again = std::fs::File::open(format!("/proc/self/fd/{}", file.raw_fd().unwrap()));
    std::io::copy(&mut again.unwrap(), &mut std::io::sink()).unwrap();
}

/// Reads the file's first `len` bytes in place, and says what they are. A file that is not all in the page cache is
/// warmed, and other pages' registering is waited for.
#[track_caller]
pub fn pin(session: &Session, file: &File, len: usize) -> Vec<u8> {
    let begun = Instant::now();
    while begun.elapsed() < Duration::from_secs(20) {
        let (bytes, receipt) = fetch(session, file, 0, len).unwrap();
        if receipt.moved[Way::Mapped] == len as u64 {
            assert_eq!(receipt.engine(), EngineKind::Mapped, "{receipt}");
            return bytes;
        }
        // Pages pinned before may still be being released.
        let passes = ["in the page cache", "being registered or unregistered"];
        let reason = why(&receipt).reason;
        assert!(passes.iter().any(|word| reason.contains(word)), "{receipt}");
        println!("not read in place yet: {reason}");
        settle();
        warm(file);
    }
    panic!("never read in place");
}

pub fn gpu(session: &Session) -> Arc<dyn Device> {
    session.device(0).unwrap()
}

pub fn pins(session: &Session) -> PinReport {
    session.pins(&gpu(session)).unwrap()
}

/// Why a transfer was not done in place.
#[track_caller]
pub fn why(receipt: &Receipt) -> Refusal {
    let refusal = receipt.election.refused.iter().find(|refusal| refusal.engine == EngineKind::Mapped);
    refusal.unwrap_or_else(|| panic!("no reason: {receipt}")).clone()
}

/// Checks that a transfer went through the lanes for this reason.
#[track_caller]
pub fn check_staged(receipt: &Receipt, word: &str) {
    assert_eq!((receipt.engine(), receipt.moved[Way::Mapped]), (EngineKind::Staged, 0), "{receipt}");
    assert!(why(receipt).reason.contains(word), "`{word}` is not the reason: {receipt}");
}

/// The pattern of `key` with a part of another's.
pub fn patched(key: u64, len: usize, other: u64, range: std::ops::Range<usize>) -> Vec<u8> {
    let mut bytes = pattern(key, 0, len);
    bytes[range.clone()].copy_from_slice(&pattern(other, range.start as u64, range.len()));
    bytes
}

/// Writes past the page cache; offset and length are whole pages.
pub fn write_direct(path: &Path, offset: u64, bytes: &[u8]) {
    let file = OpenOptions::new().write(true).custom_flags(libc::O_DIRECT).open(path).unwrap();
    let mut room = vec![0u8; bytes.len() + 4096];
    let skip = room.as_ptr().align_offset(4096);
    room[skip..skip + bytes.len()].copy_from_slice(bytes);
    file.write_all_at(&room[skip..skip + bytes.len()], offset).unwrap();
}

/// Takes blocks out of a file; its length stays.
pub fn punch(path: &Path, offset: u64, len: u64) {
    let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
    // SAFETY: no pointers are passed.
    let rc = unsafe { libc::fallocate(raw(path).as_raw_fd(), mode, offset as i64, len as i64) };
    assert_eq!(rc, 0, "{}", std::io::Error::last_os_error());
}

/// Bytes of `name` in /proc/self/status.
pub fn status(name: &str) -> u64 {
    let text = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() << 10
}
