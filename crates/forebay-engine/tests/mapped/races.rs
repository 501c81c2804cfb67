//! The engine `mapped` where things meet at a bad time: a copy that fails among others, files that change, streams that
//! wait, sessions that end. Each test holds what once went wrong.

use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::thread::{JoinHandle, sleep, spawn};
use std::time::{Duration, Instant};

use crate::common::{Scratch, Turn, disk, in_process, pattern, soon, turn};
use crate::pages::{
    MIB, blank, check_staged, config, fetch, gpu, memory, only, open, pin, pins, raw, settle, subject, why,
};
use crate::user::{UserStream, make_current};
use forebay_config::Config;
use forebay_engine::{
    Batch, Buffer, Direction, EngineKind, File, Memory, Outcome, Piece, Session, Ticket, Transfer, Way,
};

const LEN: usize = 10 * MIB;
/// The bytes pinned at a time.
const WINDOW: usize = 64 * MIB;
const SECOND: Duration = Duration::from_secs(1);

fn limited(bytes: usize) -> Session {
    open(Config { pin_budget: Some(bytes as u64), ..config() })
}

fn read_of(file: &File, offset: usize, memory: Memory, len: usize) -> Transfer {
    let (file, direction) = (file.clone(), Direction::Read);
    Transfer { file, offset: offset as u64, memory, len, direction, allow_short: false }
}

fn at(memory: &Memory, offset: usize) -> Memory {
    Memory { address: memory.address + offset as u64, ..memory.clone() }
}

fn write_byte(path: &Path, offset: usize, byte: u8) {
    raw(path).write_all_at(&[byte], offset as u64).unwrap();
}

/// A stream of the user's on the session's GPU.
fn user_of(turn: &Turn, session: &Session) -> UserStream {
    make_current(turn.fake);
    UserStream::new(turn, &gpu(session))
}

// ---- errors among many entries ------------------------------------------------------------------------------------

const ENTRIES: usize = 8;
const ENTRY: usize = WINDOW / ENTRIES;

/// Reads a window as entries that are one copy each, into memory that holds none of it. The copy after `fault`
/// others fails.
fn read_entries(turn: &Turn, session: &Session, file: &File, fault: Option<usize>) -> (Outcome, Vec<u8>) {
    let mut buffer = session.buffer(0, ENTRIES * ENTRY).unwrap();
    buffer.copy_from_slice(&vec![0; ENTRIES * ENTRY]).unwrap();
    let memory = buffer.memory();
    let entry = |index: usize| read_of(file, index * ENTRY, at(&memory, index * ENTRY), ENTRY);
    let entries = (0..ENTRIES).map(entry).collect();
    if let Some(after) = fault {
        turn.fake.fail_next("cuMemcpyHtoDAsync_v2", 2, after as u64, 1);
    }
    // SAFETY: the buffer lives until the ticket is waited for.
    let outcome = unsafe { session.submit(entries) }.unwrap().wait();
    (outcome, buffer.to_vec().unwrap())
}

// A failure ends a batch: copies that were never started once counted as done, and their memory as the file's.
#[test]
fn entries_that_were_never_moved_fail() {
    let turn = turn();
    let session = open(config());
    let len = ENTRIES * ENTRY;
    let (_scratch, file) = subject(&memory(), 5, len);
    pin(&session, &file, len);
    let want = pattern(5, 0, len);
    for fault in [Some(1), Some(ENTRIES - 1), None] {
        let (outcome, bytes) = read_entries(&turn, &session, &file, fault);
        for (index, entry) in outcome.entries.iter().enumerate() {
            let part = index * ENTRY..(index + 1) * ENTRY;
            assert!(entry.is_err() || bytes[part.clone()] == want[part], "{fault:?}: entry {index} is wrong");
            assert!(entry.is_err() || index < fault.unwrap_or(ENTRIES), "{fault:?}: {index} was not moved");
            assert!(entry.is_ok() || fault.is_some(), "entry {index}: {entry:?}");
        }
    }
}

// ---- streams that wait ----------------------------------------------------------------------------------------------

// The old pages cannot be unregistered while a stream waits for the transfer, and the transfer once waited for that.
#[test]
fn a_stream_reads_in_place_what_has_just_changed() {
    let turn = turn();
    let session = open(only());
    let user = user_of(&turn, &session);
    let (scratch, file) = subject(&memory(), 5, LEN);
    pin(&session, &file, LEN);
    let mut want = pattern(5, 0, LEN);
    for round in 1..4u8 {
        want[0] = round;
        write_byte(scratch.path(), 0, round);
        settle();
        let buffer = session.buffer(0, LEN).unwrap();
        let begun = Instant::now();
        // SAFETY: stream and memory live until the ticket is waited for.
        let ticket = unsafe { session.submit_on(user.handle, vec![read_of(&file, 0, buffer.memory(), LEN)]) };
        let receipt = ticket.unwrap().wait().into_result().unwrap().0;
        assert!(begun.elapsed() < SECOND, "{:?}: {receipt}", begun.elapsed());
        assert!(buffer.to_vec().unwrap() == want, "round {round}: wrong bytes");
        let (bytes, receipt) = fetch(&session, &file, 0, LEN).unwrap();
        assert!(bytes == want, "round {round}, without a stream: wrong bytes: {receipt}");
    }
}

// One submission is always queued, so that there is never a good time to unregister or to try anything.
#[test]
fn streams_that_always_wait_hold_nothing_up() {
    let turn = turn();
    let session = open(config());
    let user = user_of(&turn, &session);
    let files: Vec<_> = (0..4).map(|key| subject(&memory(), key, LEN)).collect();
    session.probe_mapped(&files[0].1, &gpu(&session)).unwrap();
    let mut wants: Vec<_> = (0..4).map(|key| pattern(key, 0, LEN)).collect();
    let buffers: Vec<Buffer> = (0..2).map(|_| session.buffer(0, LEN).unwrap()).collect();
    let mut last: Option<Ticket> = None;
    for round in 0..16 {
        let read = read_of(&files[round % 4].1, 0, buffers[round % 2].memory(), LEN);
        // SAFETY: stream and memory live until the ticket is waited for, in the next round.
        let ticket = unsafe { session.submit_on(user.handle, vec![read]) }.unwrap();
        if let Some(ticket) = last.replace(ticket) {
            let before = round - 1;
            let receipt = ticket.wait().into_result().unwrap().0;
            assert!(receipt.elapsed < SECOND, "round {before}: {receipt}");
            assert!(
                buffers[before % 2].to_vec().unwrap() == wants[before % 4],
                "round {before}: wrong bytes"
            );
        }
        if round == 5 {
            write_byte(files[0].0.path(), 0, 77);
            wants[0][0] = 77;
        }
    }
    last.unwrap().wait().into_result().unwrap();
}

// Trying a page ends with unregistering it, which cannot be while a stream waits: nothing was learnt then. It once
// counted as a refusal, for the rest of the process.
#[test]
fn a_file_system_that_could_not_be_tried_is_tried_later() {
    in_process(&[], &[], || {
        let turn = turn();
        let session = open(config());
        let user = user_of(&turn, &session);
        let (_small_scratch, small) = subject(&disk(), 6, 4096);
        let (_scratch, file) = subject(&memory(), 5, LEN);
        let buffer = session.buffer(0, 4096).unwrap();
        let release = user.hold();
        // SAFETY: stream and memory live until the ticket is waited for.
        let ticket =
            unsafe { session.submit_on(user.handle, vec![read_of(&small, 0, buffer.memory(), 4096)]) };
        let (bytes, receipt) = fetch(&session, &file, 0, LEN).unwrap();
        check_staged(&receipt, "streams are waiting");
        assert!(bytes == pattern(5, 0, LEN));
        drop(release);
        ticket.unwrap().wait().into_result().unwrap();
        let is_used = || fetch(&session, &file, 0, LEN).unwrap().1.engine() == EngineKind::Mapped;
        assert!(soon(is_used), "{}", fetch(&session, &file, 0, LEN).unwrap().1);
    });
}

// What the ending session has pinned is unregistered when streams allow it: its end does not wait for others' streams.
#[test]
fn a_session_ends_while_the_stream_of_another_waits() {
    let turn = turn();
    let (session, other) = (open(config()), open(config()));
    let user = user_of(&turn, &other);
    let (_scratch, file) = subject(&memory(), 5, LEN);
    pin(&session, &file, LEN);
    let buffer = other.buffer(0, LEN).unwrap();
    let release = user.hold();
    // SAFETY: stream and memory live until the ticket is waited for.
    let ticket = unsafe { other.submit_on(user.handle, vec![read_of(&file, 0, buffer.memory(), LEN)]) };
    let begun = Instant::now();
    drop(session);
    assert!(begun.elapsed() < 2 * SECOND, "{:?}", begun.elapsed());
    drop(release);
    ticket.unwrap().wait().into_result().unwrap();
    assert!(buffer.to_vec().unwrap() == pattern(5, 0, LEN));
    assert!(soon(|| pins(&other).process_bytes <= LEN as u64), "pages stayed pinned: {:?}", pins(&other));
}

// ---- the budget -----------------------------------------------------------------------------------------------------

// Each window that did not fit once took the place of the one that would be read next: everything was registered and
// unregistered all the time, and nothing was read in place.
#[test]
fn small_reads_in_a_loop_over_more_than_the_budget_thrash_nothing() {
    const SMALL: usize = 4 * MIB;
    let turn = turn();
    let session = limited(2 * WINDOW);
    let (_scratch, file) = blank(&memory(), 3 * WINDOW);
    let mut buffer = session.buffer(0, SMALL).unwrap();
    for pass in 0..5 {
        let before = turn.fake.calls("cuMemHostUnregister");
        let mut mapped = 0;
        for offset in (0..3 * WINDOW).step_by(SMALL) {
            mapped += session.read(&file, offset as u64, &mut buffer).unwrap().moved[Way::Mapped];
            // Time in which windows could be released.
            sleep(Duration::from_millis(6));
        }
        let undone = turn.fake.calls("cuMemHostUnregister") - before;
        println!("pass {pass}: {} MiB in place, {undone} unregistered", mapped >> 20);
        assert!(pass < 2 || (mapped, undone) == (2 * WINDOW as u64, 0), "pass {pass}: {mapped}, {undone}");
    }
}

// A request that must be pinned as a whole and does not fit gets that error, whatever was pinned before.
#[test]
fn a_map_over_the_budget_says_so_every_time() {
    let _turn = turn();
    let session = limited(2 * WINDOW);
    for round in 0..3 {
        let (_scratch, file) = blank(&memory(), 3 * WINDOW);
        fetch(&session, &file, 0, 2 * WINDOW).unwrap();
        settle();
        let error = session.map(&file, &gpu(&session)).map(|_| ()).unwrap_err();
        assert!(error.message().contains("budget"), "round {round}: {error:?}");
    }
}

// ---- the bytes read and written -------------------------------------------------------------------------------------

const PIECE: usize = 64 << 10;
const PIECES: usize = 200;

/// Pieces of two windows in turn.
fn pieces(address: u64) -> Vec<Piece> {
    let offset = |index: usize| (index % 2) * WINDOW + (index / 2) * PIECE;
    let piece = |index: usize| Piece {
        offset: offset(index) as u64,
        address: address + (index * PIECE) as u64,
        len: PIECE,
    };
    let mut pieces: Vec<_> = (0..PIECES).map(piece).collect();
    pieces.sort_by_key(|piece| piece.offset);
    pieces
}

// Done in part in place and in part by the lanes, such a batch was once taken for changed by others and written again.
#[test]
fn a_batch_of_which_one_window_is_pinned_is_written_once() {
    let _turn = turn();
    let session = limited(WINDOW);
    let (scratch, file) = blank(&memory(), 2 * WINDOW);
    let mut source = session.buffer(0, WINDOW).unwrap();
    let is_in_place = || session.write(&file, 0, &source).unwrap().moved[Way::Mapped] == WINDOW as u64;
    // What the lanes write makes the file young again.
    let mut tries = (0..5).map(|_| settle());
    assert!(tries.any(|()| is_in_place()), "the first window was never written in place");
    let bytes = pattern(9, 0, PIECES * PIECE);
    source.copy_from_slice(&[&bytes[..], &vec![0; WINDOW - bytes.len()]].concat()).unwrap();
    let (memory, direction) = (source.memory(), Direction::Write);
    let pieces = pieces(source.address());
    let mut want = vec![0; 2 * WINDOW];
    for Piece { offset, address, .. } in &pieces {
        let from = (address - source.address()) as usize;
        want[*offset as usize..][..PIECE].copy_from_slice(&bytes[from..][..PIECE]);
    }
    let batch = Batch { file: file.clone(), memory, direction, pieces, allow_short: false };
    // SAFETY: the source lives until the ticket is waited for.
    let receipt = unsafe { session.submit_batch(batch) }.unwrap().wait().into_result().unwrap().0;
    assert_eq!(receipt.bytes(), (PIECES * PIECE) as u64, "{receipt}");
    assert!(std::fs::read(scratch.path()).unwrap() == want, "the file is wrong: {receipt}");
}

// The engine has a longest length of its own. Past it nothing else may be refused: once the whole file system was.
#[test]
fn files_that_are_too_long_are_staged_and_others_are_not() {
    let _turn = turn();
    let session = open(config());
    let (_good_scratch, good) = subject(&memory(), 3, LEN);
    for len in [18 << 40, 1u64 << 60] {
        let (scratch, _) = blank(&memory(), LEN);
        raw(scratch.path()).set_len(len).unwrap();
        settle();
        let file = File::open(scratch.path()).unwrap();
        let (bytes, receipt) = fetch(&session, &file, 0, LEN).unwrap();
        check_staged(&receipt, "tebibyte");
        assert!(why(&receipt).reason.contains(&len.to_string()), "which length: {receipt}");
        assert!(bytes.iter().all(|byte| *byte == 0));
        assert!(pin(&session, &good, LEN) == pattern(3, 0, LEN));
    }
}

/// Bytes that each writer changes, in the pinned window and in the staged one.
const MARKS: [usize; 2] = [100, WINDOW + 100];
const DIVIDED: usize = WINDOW + 8 * MIB;

/// Waits a while and changes the marks, last one first; how long the file was in between.
fn change(path: PathBuf, byte: u8) -> JoinHandle<Duration> {
    spawn(move || {
        sleep(Duration::from_millis(u64::from(byte) * 4));
        let file = raw(&path);
        file.write_all_at(&[byte], MARKS[1] as u64).unwrap();
        let begun = Instant::now();
        file.write_all_at(&[byte], MARKS[0] as u64).unwrap();
        begun.elapsed()
    })
}

/// Reads all of it while a writer changes it; the marks that came, if that says anything.
fn race(turn: &Turn, session: &Session, (scratch, file): &(Scratch, File), byte: u8) -> Option<[u8; 2]> {
    let buffer = session.buffer(0, DIVIDED).unwrap();
    let writer = change(scratch.path().to_owned(), byte);
    let outcome = session.submit_read(file, 0, buffer).unwrap().wait();
    let between = writer.join().unwrap();
    let marks = MARKS.map(|mark| turn.fake.read(outcome.buffer.address() + mark as u64, 1).unwrap()[0]);
    println!("{byte}: {marks:?}, {}", outcome.receipt);
    // A writer that slept between its writes gave the file a state of its own. Staged bytes are as by `read(2)`.
    let refused = &outcome.receipt.election.refused;
    let is_checked = outcome.receipt.moved[Way::Mapped] > 0
        || refused.iter().any(|refusal| refusal.reason.contains("read again"));
    let is_sure = outcome.entries[0].is_ok() && between < Duration::from_millis(5) && is_checked;
    is_sure.then_some(marks)
}

// The device's part was once checked for changes without the lanes' part: one was of the old state, the other of the
// new one.
#[test]
fn a_divided_read_is_of_one_state() {
    let turn = turn();
    let session = limited(WINDOW);
    let subject = blank(&memory(), DIVIDED);
    fetch(&session, &subject.1, 0, WINDOW).unwrap();
    let (_, receipt) = fetch(&session, &subject.1, 0, DIVIDED).unwrap();
    assert_eq!(receipt.moved[Way::Mapped], WINDOW as u64, "not divided: {receipt}");
    let mut sure = 0;
    for byte in 1..=16 {
        settle();
        let is_pinned =
            || fetch(&session, &subject.1, 0, WINDOW).unwrap().1.moved[Way::Mapped] == WINDOW as u64;
        assert!(soon(is_pinned), "a window pinned before keeps its place");
        let Some(marks) = race(&turn, &session, &subject, byte) else { continue };
        assert_eq!(marks[0], marks[1], "round {byte}: a mixture");
        sure += 1;
    }
    assert!(sure >= 15, "only {sure} rounds say anything");
}

// ---- forks ----------------------------------------------------------------------------------------------------------

// The threads that unregister are the parent's: a child that waits for them waits for nothing.
#[test]
fn a_forked_child_trims_nothing_and_at_once() {
    in_process(&[], &[], || {
        let _turn = turn();
        let session = open(config());
        let (_scratch, file) = subject(&memory(), 5, LEN);
        pin(&session, &file, LEN);
        let before = pins(&session).bytes;
        // SAFETY: the child calls what is under test and ends by `_exit`.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let begun = Instant::now();
            let good = session.trim() == 0 && begun.elapsed() < SECOND;
            // SAFETY: ends the child at once, without what the parent's exit would do.
            unsafe { libc::_exit(i32::from(!good)) };
        }
        let mut status = 0;
        // SAFETY: a valid place for the status of our own child.
        unsafe { libc::waitpid(child, &raw mut status, 0) };
        assert!(libc::WIFEXITED(status), "the child was ended by signal {}", libc::WTERMSIG(status));
        assert_eq!(libc::WEXITSTATUS(status), 0, "the child trimmed something, or took its time");
        assert_eq!(pins(&session).bytes, before, "the parent's pins");
        assert!(pin(&session, &file, LEN) == pattern(5, 0, LEN));
    });
}
