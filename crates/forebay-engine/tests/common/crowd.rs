//! Shared by tests of the resident kernel: a file, captures, and callers that read at the same time.
#![allow(dead_code, reason = "each test binary uses its own part")]
#![allow(clippy::unwrap_used, reason = "helpers of tests")]
#![allow(unreachable_pub, reason = "a module of test binaries, not a crate")]

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use forebay_config::{CachePolicy, Config, IoBackend};
use forebay_engine::{File, Memory, Session};
use forebay_error::{ErrorKind, Result};

use crate::common::{Random, Scratch, Turn, config, disk, turn};

pub const LEN: usize = 5_000_003;
/// Global captures forbid unsafe calls of all threads.
pub const GLOBAL: i32 = 0;
pub const BLOCKING: u32 = 0;
pub const NON_BLOCKING: u32 = 1;

pub fn plain() -> Config {
    config(IoBackend::Auto, CachePolicy::Auto)
}

pub fn open(scratch: &Scratch) -> File {
    File::options().write(true).open(scratch.path()).unwrap()
}

/// The software GPU, and a file of [`LEN`] bytes of the pattern of `key`.
pub fn set_up(key: u64) -> (Turn, Scratch, File) {
    let turn = turn();
    let scratch = Scratch::with_pattern(&disk(), key, LEN);
    let file = open(&scratch);
    (turn, scratch, file)
}

/// Callers, each with memory of `room` bytes, that `read` until `is_enough`, or for this number of rounds each. Returns reads by the
/// kernel, and what went wrong.
pub fn crowd(
    session: &Session,
    (callers, rounds, room): (u64, u64, usize),
    is_enough: impl Fn() -> bool + Sync,
    read: impl Fn(&Memory, &mut Random) -> Result<bool> + Sync,
) -> (u64, Vec<ErrorKind>) {
    let (resident, errors) = (AtomicU64::new(0), Mutex::new(Vec::new()));
    let buffers: Vec<_> = (0..callers).map(|_| session.buffer(0, room).unwrap()).collect();
    std::thread::scope(|scope| {
        for (caller, buffer) in buffers.iter().enumerate() {
            let (resident, errors, is_enough, read) = (&resident, &errors, &is_enough, &read);
            scope.spawn(move || {
                let mut random = Random(caller as u64 + 1);
                for _ in 0..rounds {
                    if is_enough() {
                        return;
                    }
                    match read(&buffer.memory(), &mut random) {
                        Ok(is_resident) => drop(resident.fetch_add(is_resident.into(), Ordering::Relaxed)),
                        Err(error) => errors.lock().unwrap().push(error.kind()),
                    }
                }
            });
        }
    });
    (resident.into_inner(), errors.into_inner().unwrap())
}

/// Repeats a test's work until some of it went by the kernel: on a busy machine others do it for a moment.
pub fn until_resident(work: impl Fn() -> bool) {
    let is_used = || {
        let used = work();
        if !used {
            std::thread::sleep(Duration::from_millis(100));
        }
        used
    };
    assert!((0..30).any(|_| is_used()), "nothing went by the kernel");
}
