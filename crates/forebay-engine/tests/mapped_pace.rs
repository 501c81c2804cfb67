//! Registering that takes the driver from all others: it has a bounded share of the time, nobody waits for it, and a loop ends
//! pinned all the same.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

mod common;
#[path = "common/pages.rs"]
mod pages;

use std::path::Path;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use common::{Scratch, Stop, Turn, disk, in_process, pattern, soon, turn};
use forebay_config::Config;
use forebay_engine::{File, ReadPiece, Session, Way};
use pages::{MIB, SETTLE, fetch, gpu, memory, open, pins, warm, why};

const KEY: u64 = 31;
const WINDOW: usize = 64 * MIB;
/// Two windows, the second of odd length.
const LEN: usize = WINDOW + 50 * MIB + 4099;
/// The least that is registered at once.
const PIECE: usize = 4 * MIB;
const REGISTER: &str = "cuMemHostRegister_v2";

/// As a program has it, which sets nothing.
fn config() -> Config {
    Config { lanes: 2, slots: 3, slot_size: 1 << 20, pin_settle: SETTLE, ..Config::default() }
}

fn subject(directory: &Path) -> (Scratch, File) {
    let scratch = Scratch::with_pattern(directory, KEY, LEN);
    let file = File::open(scratch.path()).unwrap();
    std::thread::sleep(SETTLE * 2);
    warm(&file);
    (scratch, file)
}

/// A session whose lanes and callers have their memory, where registering a MiB takes that long from now on.
fn session(turn: &Turn, micros: u64) -> Session {
    let session = open(config());
    let (_scratch, other) = subject(&memory());
    fetch(&session, &other, 0, LEN).unwrap();
    fetch(&session, &other, 0, 4096).unwrap();
    turn.fake.set_register_us(micros);
    session
}

/// What registrations had of the driver since a moment.
struct Share<'a> {
    turn: &'a Turn,
    since: Instant,
    held: u64,
}

impl<'a> Share<'a> {
    fn now(turn: &'a Turn) -> Self {
        Self { turn, since: Instant::now(), held: turn.fake.registering_us().0 }
    }

    /// A quarter of the time since the last check at most.
    #[track_caller]
    fn check(&mut self) {
        // In this order: windows registered meanwhile count in the time.
        let (held, longest) = self.turn.fake.registering_us();
        let (held, all) = (held - self.held, self.since.elapsed().as_micros() as u64);
        assert!(held <= all / 4 + longest, "{held} µs of {all}, the longest {longest}");
        *self = Self::now(self.turn);
    }
}

#[test]
fn no_pass_waits_for_registrations_and_a_loop_ends_pinned() {
    // What a process has found out of a file system stays.
    in_process(&[], &[], || {
        let turn = turn();
        // All of it: 0.5 s; a piece: 16 ms.
        let session = session(&turn, 4000);
        let (_scratch, file) = subject(&memory());
        let expected = pattern(KEY, 0, LEN);
        let (before, begun) = (turn.fake.calls(REGISTER), Instant::now());
        let (mut passes, mut share) = (0, Share::now(&turn));
        loop {
            let (bytes, receipt) = fetch(&session, &file, 0, LEN).unwrap();
            assert!(bytes == expected, "pass {passes}: wrong bytes");
            passes += 1;
            share.check();
            if receipt.moved[Way::Mapped] == LEN as u64 {
                break;
            }
            let word = if passes < 3 { "third time" } else { "beside other copies" };
            assert!(why(&receipt).reason.contains(word), "pass {passes}: {receipt}");
            assert!(begun.elapsed() < Duration::from_mins(1), "never pinned: {receipt}");
        }
        assert!(passes > 3, "somebody waited");
        let calls = turn.fake.calls(REGISTER) - before;
        let pieces = WINDOW / PIECE + (LEN - WINDOW).div_ceil(PIECE);
        assert_eq!(calls as usize, 1 + pieces, "the trial page, and pieces of 4 MiB");
        for (offset, len) in
            [(PIECE - 9, 18), (0, MIB), (WINDOW - 5 * MIB, 9 * MIB), (LEN - 777, 777), (0, LEN)]
        {
            let mut buffer = session.buffer(0, len).unwrap();
            let unpinned = turn.fake.unpinned_copies();
            let receipt = session.read(&file, offset as u64, &mut buffer).unwrap();
            assert_eq!(turn.fake.unpinned_copies(), unpinned, "a copy crosses two registrations");
            assert_eq!(receipt.moved[Way::Mapped], len as u64, "{offset}+{len}: {receipt}");
            assert!(
                buffer.to_vec().unwrap() == expected[offset..offset + len],
                "{offset}+{len}: wrong bytes"
            );
        }
        let shown = pins(&session).registering;
        assert!(shown.contains("GB/s, in pieces of 4 MiB, 1/32 to 1/8 of the time beside copies"), "{shown}");
        session.trim();
        assert!(soon(|| turn.fake.registered_bytes() == 0), "a piece was forgotten");
    });
}

#[test]
fn a_third_pass_is_hardly_slower_where_registering_all_takes_seconds() {
    let turn = turn();
    // All of it: 1.8 s; a piece: 64 ms.
    let session = session(&turn, 16_000);
    let (_scratch, file) = subject(&memory());
    let pass = || {
        let begun = Instant::now();
        fetch(&session, &file, 0, LEN).unwrap();
        begun.elapsed()
    };
    let (_, second, third) = (pass(), pass(), pass());
    assert!(third < second * 2 + Duration::from_millis(600), "{second:?}, then {third:?}");
    // A map for kernels has no time limit, and takes over the registration that was begun.
    let map = session.map(&file, &gpu(&session)).unwrap();
    assert!(map.pinned_bytes() >= LEN as u64);
    let (bytes, receipt) = fetch(&session, &file, 0, LEN).unwrap();
    assert!(bytes == pattern(KEY, 0, LEN) && receipt.moved[Way::Mapped] == LEN as u64, "{receipt}");
    drop(map);
    session.trim();
    assert!(soon(|| turn.fake.registered_bytes() == 0), "a piece was forgotten");
}

#[test]
fn one_load_registers_no_more_than_tells_how_slow_that_is() {
    // What a process has found out of a file system stays.
    in_process(&[], &[], || {
        let turn = turn();
        let session = session(&turn, 400);
        let (_scratch, file) = subject(&disk());
        let before = turn.fake.calls(REGISTER);
        let (bytes, receipt) = fetch(&session, &file, 0, LEN).unwrap();
        assert!(bytes == pattern(KEY, 0, LEN));
        if why(&receipt).reason.contains("page cache") {
            return println!("skipped: the machine took the file out of the page cache");
        }
        assert!(why(&receipt).reason.contains("beside other copies"), "{receipt}");
        assert_eq!(receipt.moved[Way::Mapped], 0, "it waits for none: {receipt}");
        // The trial page, and two of the least pieces, which are released.
        let registered = || turn.fake.calls(REGISTER) - before;
        assert!(soon(|| registered() == 3 && turn.fake.registered_bytes() == 0), "{}", registered());
        std::thread::sleep(Duration::from_millis(100));
        assert_eq!(registered(), 3);
        let (_, receipt) = fetch(&session, &file, 0, LEN).unwrap();
        assert!(why(&receipt).reason.contains("third time"), "{receipt}");
    });
}

#[test]
fn many_callers_of_small_pieces_are_not_held_up_and_end_pinned() {
    const CALLERS: usize = 6;
    const CALL: usize = 2 * MIB;
    let turn = turn();
    let session = session(&turn, 0);
    // What callers pin for themselves does not count.
    let (_other_scratch, other) = subject(&disk());
    let all_at_once = Barrier::new(CALLERS);
    std::thread::scope(|scope| {
        for _ in 0..CALLERS {
            scope.spawn(|| {
                let mut buffer = session.buffer(0, CALL).unwrap();
                for _ in 0..30 {
                    all_at_once.wait();
                    session.read(&other, 0, &mut buffer).unwrap();
                }
            });
        }
    });
    drop(other);
    session.trim();
    assert!(soon(|| turn.fake.registered_bytes() == 0));
    turn.fake.set_register_us(2000);
    let (_scratch, file) = subject(&memory());
    let expected = pattern(KEY, 0, LEN);
    let (begun, is_pinned) = (Instant::now(), AtomicBool::new(false));
    std::thread::scope(|scope| {
        for caller in 0..CALLERS {
            let (session, file, expected, is_pinned) = (&session, &file, &expected, &is_pinned);
            scope.spawn(move || {
                let mut buffer = session.buffer(0, CALL).unwrap();
                for call in caller.. {
                    let offset = call * CALL % (LEN - CALL);
                    session.read(file, offset as u64, &mut buffer).unwrap();
                    assert!(buffer.to_vec().unwrap() == expected[offset..offset + CALL], "call {call}");
                    if is_pinned.load(Ordering::Relaxed) {
                        break;
                    }
                    // Else two CPUs compare bytes all the time, and registering takes as long as it waits for one.
                    std::thread::sleep(Duration::from_millis(20));
                }
            });
        }
        // Also where a check fails: callers would go on for ever.
        let _stop = Stop(&is_pinned);
        let is_all = || turn.fake.registered_bytes() >= LEN as u64;
        let mut share = Share::now(&turn);
        while !is_all() && begun.elapsed() < Duration::from_mins(1) {
            share.check();
            std::thread::sleep(Duration::from_millis(50));
        }
        assert!(is_all(), "never pinned");
    });
    let (bytes, receipt) = fetch(&session, &file, 0, LEN).unwrap();
    assert!(bytes == expected && receipt.moved[Way::Mapped] == LEN as u64, "{receipt}");
}

/// As where the thread has to wait for a CPU.
#[test]
fn one_piece_that_takes_long_holds_up_no_others() {
    let turn = turn();
    // A piece: 4 ms, then 12 without one.
    let session = session(&turn, 1_000);
    let (_scratch, file) = subject(&memory());
    for _ in 0..3 {
        fetch(&session, &file, 0, LEN).unwrap();
    }
    assert!(soon(|| turn.fake.registered_bytes() >= 4 * PIECE as u64), "never begun");
    turn.fake.hang_next(REGISTER, 2000);
    let begun = Instant::now();
    assert!(soon(|| turn.fake.registered_bytes() >= LEN as u64), "never pinned");
    let took = begun.elapsed();
    assert!((2..6).contains(&took.as_secs()), "{took:?}: six seconds of rest for two that it waited");
}

#[test]
fn what_is_to_be_registered_keeps_no_file_open_and_ends_with_it() {
    let turn = turn();
    // A piece: 20 ms, then 60 or 140 without one.
    let session = session(&turn, 5_000);
    let (_scratch, file) = subject(&memory());
    for _ in 0..3 {
        fetch(&session, &file, 0, LEN).unwrap();
    }
    assert!(soon(|| turn.fake.registered_bytes() > 0), "never begun");
    drop(file);
    assert!(soon(|| turn.fake.registered_bytes() == 0), "a part of a window is of no use");
    assert_eq!(pins(&session).bytes, 0);
    assert!(soon(|| pins(&session).process_bytes == 0), "the budget was given back");
}

// Pages of all windows were once counted before the first was registered: 50 ms for 11 GB of small ones.
#[test]
fn pages_of_a_window_are_looked_at_when_its_turn_comes() {
    let turn = turn();
    let session = open(pages::config());
    let (scratch, file) = subject(&disk());
    std::fs::File::open(scratch.path()).unwrap().sync_all().unwrap();
    // The first window takes 0.2 s.
    turn.fake.set_register_us(3000);
    let buffer = session.buffer(0, LEN).unwrap();
    let ticket = session.submit_read(&file, 0, buffer).unwrap();
    std::thread::sleep(Duration::from_millis(50));
    // SAFETY: no pointers are passed.
    unsafe { libc::posix_fadvise(file.raw_fd().unwrap(), WINDOW as i64, 0, libc::POSIX_FADV_DONTNEED) };
    let gone = file.residency(WINDOW as u64, (LEN - WINDOW) as u64).unwrap().cached == 0;
    let (receipt, buffer) = ticket.wait().into_result().unwrap();
    assert!(buffer.to_vec().unwrap() == pattern(KEY, 0, LEN));
    if !gone {
        println!("skipped: the pages stay in the page cache");
        return;
    }
    assert_eq!(receipt.moved[Way::Mapped], WINDOW as u64, "{receipt}");
    assert!(why(&receipt).reason.contains("in the page cache"), "{receipt}");
}

#[test]
fn small_tensors_are_not_registered_before_their_third_load() {
    // What a process has found out of a file system stays.
    in_process(&[], &[], || {
        const TENSOR: usize = 96 << 10;
        let turn = turn();
        let session = session(&turn, 10);
        let (_scratch, file) = subject(&disk());
        let pieces: Vec<_> = (0..LEN / TENSOR)
            .map(|at| ReadPiece { offset: (at * TENSOR) as u64, range: at * TENSOR..(at + 1) * TENSOR })
            .collect();
        let expected = pattern(KEY, 0, LEN / TENSOR * TENSOR);
        let before = turn.fake.calls(REGISTER);
        let load = || {
            let buffer = session.buffer(0, LEN).unwrap();
            let (receipt, buffer) =
                session.read_batch(&file, &pieces, buffer).unwrap().wait().into_result().unwrap();
            assert!(buffer.to_vec().unwrap()[..expected.len()] == expected, "wrong bytes: {receipt}");
            receipt
        };
        for pass in 1..3 {
            let receipt = load();
            if why(&receipt).reason.contains("page cache") {
                return println!("skipped: the machine took the file out of the page cache");
            }
            assert!(why(&receipt).reason.contains("small pieces"), "load {pass}: {receipt}");
            assert_eq!(turn.fake.calls(REGISTER), before, "load {pass} registered something");
        }
        assert!(soon(|| load().moved[Way::Mapped] > 0), "a loop is never in place");
    });
}

#[test]
fn records_in_a_row_are_refused_because_little_was_read() {
    // What a process has found out of a file system stays.
    in_process(&[], &[], || {
        const RECORD: usize = 128 << 10;
        let turn = turn();
        let session = session(&turn, 10);
        let (_scratch, file) = subject(&disk());
        for batch in 0..3 {
            let first = batch * 4 * MIB;
            let pieces: Vec<_> = (0..32)
                .map(|at| ReadPiece {
                    offset: (first + at * RECORD) as u64,
                    range: at * RECORD..(at + 1) * RECORD,
                })
                .collect();
            let buffer = session.buffer(0, 4 * MIB).unwrap();
            let (receipt, buffer) =
                session.read_batch(&file, &pieces, buffer).unwrap().wait().into_result().unwrap();
            assert!(
                buffer.to_vec().unwrap() == pattern(KEY, first as u64, 4 * MIB),
                "wrong bytes: {receipt}"
            );
            assert!(why(&receipt).reason.contains("too little"), "batch {batch}: {receipt}");
        }
    });
}
