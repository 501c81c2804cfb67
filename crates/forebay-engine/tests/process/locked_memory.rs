//! In a program that locks its memory, `mlockall(MCL_FUTURE)`, the mappings of files that we read lock none of their pages.

use std::path::PathBuf;
use std::time::Duration;

use crate::common::{Scratch, config, disk, in_process, pattern, turn};
use forebay_config::{CachePolicy, Config, IoBackend};
use forebay_engine::{File, Session};

const KEY: u64 = 23;
/// Of its chunks some go through a mapping, as a trial.
const LEN: usize = 96 << 20;

/// Locks memory mapped from now on. False, with the reason printed, where that could end the test.
fn lock_memory() -> bool {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: a valid place for a limit.
    unsafe { libc::getrlimit(libc::RLIMIT_MEMLOCK, &raw mut limit) };
    // SAFETY: no pointers are passed.
    let is_root = unsafe { libc::geteuid() } == 0;
    // SAFETY: the same.
    if (is_root || limit.rlim_cur == libc::RLIM_INFINITY) && unsafe { libc::mlockall(libc::MCL_FUTURE) } == 0
    {
        return true;
    }
    println!("skipped: this user may not lock much memory");
    false
}

/// The kilobytes that are locked of each mapping of a file.
fn mappings(path: &str) -> Vec<u64> {
    let maps = std::fs::read_to_string("/proc/self/smaps").unwrap();
    let mut found = Vec::new();
    let mut is_of_file = false;
    for line in maps.lines() {
        let (key, value) = line.split_once(' ').unwrap_or((line, ""));
        match key {
            _ if !key.ends_with(':') => is_of_file = line.ends_with(path),
            "Locked:" if is_of_file => found.push(value.trim().trim_end_matches(" kB").parse().unwrap()),
            _ => {}
        }
    }
    found
}

#[test]
fn files_are_mapped_without_their_pages() {
    in_process(&[], &[], || {
        let _turn = turn();
        if !lock_memory() {
            return;
        }
        // What the software GPU registers it locks itself: one window.
        let cases =
            [("staged", disk(), 0), ("staged", PathBuf::from("/dev/shm"), 0), ("mapped", disk(), 64 << 10)];
        for (engine, directory, most) in cases {
            let config = Config {
                engine: Some(engine.to_owned()),
                lanes: 1,
                slot_size: 1 << 20,
                pin_settle: Duration::from_millis(20),
                ..config(IoBackend::Auto, CachePolicy::Auto)
            };
            let session = Session::with_config(config).unwrap();
            let scratch = Scratch::with_pattern(&directory, KEY, LEN);
            std::fs::read(scratch.path()).unwrap();
            let file = File::open(scratch.path()).unwrap();
            // All of it by lanes; of registered pages a window.
            let len = if engine == "staged" { LEN } else { 4 << 20 };
            let mut buffer = session.buffer(0, len).unwrap();
            session.read(&file, 0, &mut buffer).unwrap();
            assert!(buffer.to_vec().unwrap() == pattern(KEY, 0, len));
            let maps = mappings(scratch.path().to_str().unwrap());
            if maps.is_empty() {
                println!("skipped: {engine} maps no files in {}", directory.display());
            }
            for locked in maps {
                assert!(locked <= most, "{engine} in {}: {locked} kB", directory.display());
            }
        }
    });
}
