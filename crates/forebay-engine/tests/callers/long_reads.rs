//! Long warm reads of as many synchronous callers as there are CPUs stay on their threads: each has its own bytes, whatever its
//! place, its length and the end of the file.

use std::path::PathBuf;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::common::{Random, Scratch, config, disk, pattern, turn};
use crate::pages;
use forebay_config::{CachePolicy, Config, IoBackend, allowed_cpus};
use forebay_engine::{Buffer, File, Session, Way};
use forebay_error::ErrorKind;

const KEY: u64 = 7;
const LEN: usize = (12 << 20) + 4321;
const LONGEST: usize = 5 << 20;

fn open() -> Session {
    let config =
        Config { engine: Some("staged".to_owned()), lanes: 2, ..config(IoBackend::Auto, CachePolicy::Auto) };
    Session::with_config(config).unwrap()
}

/// Threads that read long ranges at random.
fn read_at_random(session: &Session, file: &File, callers: u64) {
    std::thread::scope(|scope| {
        for caller in 0..callers {
            scope.spawn(move || {
                let mut random = Random(caller + 1);
                for _ in 0..12 {
                    let len = (1 << 20) + 1 + random.below((LONGEST - (1 << 20)) as u64) as usize;
                    let offset = random.below((LEN - len) as u64);
                    let mut buffer = session.buffer(0, len).unwrap();
                    session.read(file, offset, &mut buffer).unwrap();
                    assert!(
                        buffer.to_vec().unwrap() == pattern(KEY, offset, len),
                        "{len} bytes from {offset}"
                    );
                }
            });
        }
    });
}

#[test]
fn each_caller_gets_its_own_bytes_without_lanes() {
    let turn = turn();
    let callers = 2 * allowed_cpus() as u64 + 2;
    for directory in [disk(), PathBuf::from("/dev/shm")] {
        let session = open();
        let scratch = Scratch::with_pattern(&directory, KEY, LEN);
        let file = File::open(scratch.path()).unwrap();
        // Warm.
        std::fs::read(scratch.path()).unwrap();
        let before = turn.fake.leaks().registrations;
        read_at_random(&session, &file, callers);
        // A slot for each, beside what two lanes have.
        let slots = turn.fake.leaks().registrations - before;
        assert!(slots > 4, "{slots} pins: lanes read it all");
    }
}

#[test]
fn the_end_of_the_file_is_a_short_read() {
    let _turn = turn();
    let session = open();
    let scratch = Scratch::with_pattern(&disk(), KEY, LEN);
    let file = File::open(scratch.path()).unwrap();
    std::fs::read(scratch.path()).unwrap();
    std::thread::scope(|scope| {
        for caller in 0..2 * allowed_cpus() + 2 {
            let (session, file) = (&session, &file);
            scope.spawn(move || {
                let mut buffer = session.buffer(0, LONGEST).unwrap();
                let offset = (LEN - LONGEST + 1 + caller * 1000) as u64;
                for _ in 0..4 {
                    let error = session.read(file, offset, &mut buffer).unwrap_err();
                    assert_eq!(error.kind(), ErrorKind::ShortRead, "{error}");
                }
                // What there is may be asked for.
                let len = LEN - offset as usize;
                session.read_into(file, offset, &mut buffer, 0..len).unwrap();
                assert!(buffer.to_vec().unwrap()[..len] == pattern(KEY, offset, len));
            });
        }
    });
}

/// Callers' long reads never reached the place where reads are counted, so that their pages were never registered.
#[test]
fn a_loop_of_callers_ends_in_place() {
    const CALL: usize = 4 * pages::MIB;
    const CALLS: usize = 20;
    const LOOK: usize = 64 << 10;
    const PASSES: usize = 30;
    let _turn = turn();
    let session = pages::open(pages::config());
    let (_scratch, file) = pages::subject(&pages::memory(), KEY, CALL * CALLS);
    let callers = 2 * allowed_cpus() + 2;
    let buffers: Vec<_> = (0..callers).map(|_| Mutex::new(session.buffer(0, CALL).unwrap())).collect();
    let pass = || {
        let (next, in_place) = (AtomicUsize::new(0), AtomicUsize::new(0));
        let read = |buffer: &mut Buffer| {
            while let at @ ..CALLS = next.fetch_add(1, Ordering::Relaxed) {
                let receipt = session.read(&file, (at * CALL) as u64, buffer).unwrap();
                in_place.fetch_add(receipt.moved[Way::Mapped] as usize / CALL, Ordering::Relaxed);
                let end = buffer.to_vec().unwrap().split_off(CALL - LOOK);
                assert!(end == pattern(KEY, (at * CALL + CALL - LOOK) as u64, LOOK), "{receipt}");
            }
        };
        std::thread::scope(|scope| {
            for buffer in &buffers {
                scope.spawn(|| read(&mut buffer.lock().unwrap()));
            }
        });
        in_place.into_inner()
    };
    assert!((0..PASSES).any(|_| pass() == CALLS), "never in place");
}

/// A request beyond an empty file is not divided by its number of windows.
#[test]
fn a_file_that_is_cut_to_nothing_under_its_readers_is_short() {
    const PIECE: usize = 1 << 20;
    let _turn = turn();
    let session = pages::open(pages::config());
    let (scratch, file) = pages::subject(&pages::memory(), KEY, 8 * PIECE);
    let mut buffer = session.buffer(0, PIECE).unwrap();
    for at in (0..64).map(|call| (call % 8 * PIECE) as u64) {
        session.read(&file, at, &mut buffer).unwrap();
    }
    std::fs::OpenOptions::new().write(true).open(scratch.path()).unwrap().set_len(0).unwrap();
    for at in (0..64).map(|call| (call % 8 * PIECE) as u64) {
        assert_eq!(session.read(&file, at, &mut buffer).unwrap_err().kind(), ErrorKind::ShortRead);
    }
}
