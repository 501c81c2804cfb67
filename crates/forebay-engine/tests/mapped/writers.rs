//! The engine `mapped` beside writes that take long: their file's times change when they start, and nothing tells when
//! they end.

use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::sleep;
use std::time::{Duration, Instant};

use crate::common::{self, Scratch, Stop, Turn, disk, pattern, turn};
use crate::held::Held;
use crate::pages::{
    MIB, blank, check_staged, config, fetch, gpu, memory, only, open, pin, raw, settle, subject, warm,
};
use forebay_config::Config;
use forebay_engine::{Buffer, EngineKind, File, Offsets, ReadPiece, Receipt, Session, Ticket, Way};
use forebay_error::ErrorKind;

const OLD: u64 = 81;
const NEW: u64 = 82;
const LEN: usize = 10 * MIB;

fn old() -> Vec<u8> {
    pattern(OLD, 0, LEN)
}

fn new() -> Vec<u8> {
    pattern(NEW, 0, LEN)
}

fn has_note(receipt: &Receipt, word: &str) -> bool {
    receipt.election.notes.iter().any(|note| note.text.contains(word))
}

/// The same file, open for reading only.
fn reader(scratch: &Scratch) -> File {
    File::open(scratch.path()).unwrap()
}

/// A direct write that is half-way, of a file that rests otherwise and lies in the page cache.
fn begin_direct(scratch: &Scratch, file: &File) -> Option<Held> {
    let held = Held::begin(scratch.path(), true, &new())?;
    settle();
    warm(file);
    Some(held)
}

fn in_pieces(session: &Session, file: &File) -> Vec<u8> {
    const PIECE: usize = 16 << 10;
    let piece = |at: usize| ReadPiece { offset: (at * MIB) as u64, range: at * PIECE..(at + 1) * PIECE };
    let pieces: Vec<_> = (0..LEN / MIB).map(piece).collect();
    let buffer = session.buffer(0, pieces.len() * PIECE).unwrap();
    let (_, buffer) = session.read_batch(file, &pieces, buffer).unwrap().wait().into_result().unwrap();
    let bytes = buffer.to_vec().unwrap();
    // As if all of it had been read.
    let new = new();
    let mut all = new.clone();
    for (at, part) in bytes.chunks(PIECE).enumerate() {
        all[at * MIB..][..PIECE].copy_from_slice(part);
    }
    all
}

fn in_a_small_read(session: &Session, file: &File) -> Vec<u8> {
    let mut all = new();
    let (bytes, _) = fetch(session, file, (LEN - 9000) as u64, 9000).unwrap();
    all[LEN - 9000..].copy_from_slice(&bytes);
    all
}

fn at_once(session: &Session, file: &File) -> Vec<u8> {
    fetch(session, file, 0, LEN).unwrap().0
}

// Pages that are pinned during a direct write are not the file's when it has ended, and the file's times do not show it.
// Reads that began afterwards once gave the old bytes, for seconds.
#[test]
fn pages_pinned_in_the_middle_of_a_direct_write_are_not_believed_when_it_has_ended() {
    let _turn = turn();
    let reads: [fn(&Session, &File) -> Vec<u8>; 3] = [at_once, in_a_small_read, in_pieces];
    for (index, read) in reads.into_iter().enumerate() {
        for config in [config(), only()] {
            let session = open(config);
            // What is open for writing here can be asked nothing.
            let (scratch, file) = subject(&disk(), OLD, LEN);
            read(&session, &file);
            let Some(write) = begin_direct(&scratch, &file) else { return };
            // Pages pinned before may still be being released.
            let is_pinned = || fetch(&session, &file, 0, LEN).unwrap().1.moved[Way::Mapped] == LEN as u64;
            assert!(common::soon(is_pinned), "never read in place");
            write.end();
            assert!(read(&session, &file) == new(), "read {index}: old bytes after the write had returned");
            assert!(at_once(&session, &file) == new(), "read {index}: old bytes in the second read");
        }
    }
}

#[test]
fn a_map_made_in_the_middle_of_a_direct_write_tells_when_it_has_ended() {
    let turn = turn();
    let session = open(config());
    // By the file's owner, who can ask, and where nobody can.
    for writable in [true, false] {
        let (scratch, file) = subject(&disk(), OLD, LEN);
        let file = if writable { file } else { reader(&scratch) };
        let Some(write) = begin_direct(&scratch, &file) else { return };
        let mut map = session.map(&file, &gpu(&session)).unwrap();
        let offsets = Offsets::Host(&[0, (LEN - 4096) as u64]);
        let mut out = session.buffer(0, 8192).unwrap();
        let receipt = map.gather(offsets, 4096, &mut out).unwrap();
        assert!(
            has_note(&receipt, if writable { "cannot tell whether" } else { "somebody has" }),
            "{receipt}"
        );
        assert!(!map.refresh().unwrap(), "nothing has changed");
        write.end();
        assert_eq!(map.gather(offsets, 4096, &mut out).unwrap_err().kind(), ErrorKind::Busy);
        assert_eq!(map.check().unwrap_err().kind(), ErrorKind::Busy);
        assert!(map.refresh().unwrap());
        assert!(turn.fake.read(map.address(), LEN).unwrap() == new());
        map.gather(offsets, 4096, &mut out).unwrap();
        assert!(out.to_vec().unwrap()[4096..] == new()[LEN - 4096..]);
    }
}

#[test]
fn a_file_that_somebody_has_open_for_writing_is_not_pinned() {
    let turn = turn();
    for directory in [disk(), memory()] {
        let session = open(config());
        let (scratch, file) = subject(&directory, OLD, LEN);
        drop(file);
        let file = reader(&scratch);
        let other = raw(scratch.path());
        let (bytes, receipt) = fetch(&session, &file, 0, LEN).unwrap();
        check_staged(&receipt, "open for writing");
        assert!(bytes == old());
        assert_eq!(turn.fake.registered_bytes(), 0);
        drop(other);
        settle();
        pin(&session, &file, LEN);
        let (_, receipt) = fetch(&session, &file, 0, LEN).unwrap();
        assert!(receipt.moved[Way::Mapped] == LEN as u64 && receipt.election.notes.is_empty(), "{receipt}");
        // Once nobody was writing, the version tells all.
        let _other = raw(scratch.path());
        let (_, receipt) = fetch(&session, &file, 0, LEN).unwrap();
        assert!(receipt.moved[Way::Mapped] == LEN as u64 && receipt.election.notes.is_empty(), "{receipt}");
    }
}

#[test]
fn a_direct_write_that_ends_late_is_seen_by_the_owner() {
    let _turn = turn();
    let session = open(config());
    let (scratch, file) = subject(&disk(), OLD, LEN);
    drop(file);
    let file = reader(&scratch);
    let Some(write) = begin_direct(&scratch, &file) else { return };
    check_staged(&fetch(&session, &file, 0, LEN).unwrap().1, "open for writing");
    write.end();
    assert!(at_once(&session, &file) == new());
    settle();
    assert!(pin(&session, &file, LEN) == new());
}

#[test]
fn receipts_say_where_writes_cannot_be_known() {
    let _turn = turn();
    let session = open(config());
    let (_scratch, file) = subject(&disk(), OLD, LEN);
    pin(&session, &file, LEN);
    for (offset, len) in [(0, LEN), (4096, 4096)] {
        let (_, receipt) = fetch(&session, &file, offset, len).unwrap();
        assert_eq!(receipt.moved[Way::Mapped], len as u64, "{receipt}");
        assert!(has_note(&receipt, "in progress: it is open for writing here"), "{receipt}");
    }
    // A memory file keeps its pages until its times tell.
    let (_scratch, file) = subject(&memory(), OLD, LEN);
    pin(&session, &file, LEN);
    let (_, receipt) = fetch(&session, &file, 0, LEN).unwrap();
    assert!(receipt.moved[Way::Mapped] == LEN as u64 && receipt.election.notes.is_empty(), "{receipt}");
}

// The audit finds out that the writer has gone, so that the pages need no looking at.
#[test]
fn pages_are_looked_at_only_as_long_as_somebody_may_be_writing() {
    let _turn = turn();
    let session = open(only());
    let (scratch, file) = subject(&disk(), OLD, LEN);
    drop(file);
    let file = reader(&scratch);
    let other = raw(scratch.path());
    let note = || has_note(&fetch(&session, &file, 0, LEN).unwrap().1, "somebody has the file open");
    pin(&session, &file, LEN);
    assert!(note());
    sleep(Duration::from_millis(1500));
    assert!(note());
    drop(other);
    assert!(common::soon(|| !note()), "still looked at");
    assert!(at_once(&session, &file) == old());
}

// ---- second readings ----------------------------------------------------------------------------------------------

/// Long enough for the writes of these tests.
fn patient() -> Config {
    Config { pin_settle: Duration::from_secs(1), ..config() }
}

/// A read in place whose first copy has begun, and hangs until `let_go`.
fn begin_read(turn: &Turn, session: &Session, file: &File) -> Ticket<Buffer> {
    turn.fake.hang_next("async:copy", 60_000);
    let ticket = session.submit_read(file, 0, session.buffer(0, LEN).unwrap()).unwrap();
    assert!(common::soon(|| turn.fake.hanging() > 0), "no copy has begun");
    ticket
}

/// How often the scene is set, where this machine was so busy that the write took longer than the settle time.
const SCENES: usize = 6;

/// Reads while a write of one call is half-way that began in the middle of the read, and ends `after` that.
fn read_twice(turn: &Turn, writable: bool, directory: &Path, after: Duration) -> Option<(Vec<u8>, Receipt)> {
    for _ in 0..SCENES {
        let session = open(patient());
        let (scratch, file) = subject(directory, OLD, LEN);
        let file = if writable {
            file
        } else {
            drop(file);
            reader(&scratch)
        };
        sleep(patient().pin_settle);
        assert!(pin(&session, &file, LEN) == old());
        let ticket = begin_read(turn, &session, &file);
        let begun = Instant::now();
        let write = Held::begin(scratch.path(), false, &new());
        turn.fake.let_go();
        let write = write?;
        sleep(after);
        write.end();
        let took = begun.elapsed();
        let (receipt, buffer) = ticket.wait().into_result().unwrap();
        if took < patient().pin_settle {
            return Some((buffer.to_vec().unwrap(), receipt));
        }
        println!("the write took {took:?}");
    }
    panic!("no write of {after:?} took less than the settle time, in {SCENES} tries");
}

// The second reading once came 20 ms after the first, in the middle of the same write, and was called good.
#[test]
fn a_second_reading_is_not_in_the_middle_of_a_write() {
    let turn = turn();
    for directory in [disk(), memory()] {
        for writable in [true, false] {
            let after = Duration::from_millis(300);
            let Some((bytes, receipt)) = read_twice(&turn, writable, &directory, after) else { return };
            let again = receipt.election.refused.iter().any(|refusal| refusal.reason.contains("read again"));
            assert!(again, "the write did not come in the middle: {receipt}");
            let olds = bytes.iter().zip(old()).filter(|(got, old)| **got == *old).count();
            assert!(
                bytes == new(),
                "{writable} {directory:?}: a mixture: {olds} of {LEN} bytes are old ones"
            );
        }
    }
}

/// So long that a busy machine does not make it longer by much.
fn very_patient() -> Config {
    Config { pin_settle: Duration::from_secs(2), ..config() }
}

#[test]
fn a_file_that_is_written_all_the_time_is_busy_and_holds_nobody_up() {
    let turn = turn();
    let session = open(very_patient());
    let (scratch, file) = subject(&memory(), OLD, LEN);
    let (_other_scratch, other) = subject(&memory(), OLD, LEN);
    sleep(very_patient().pin_settle);
    pin(&session, &file, LEN);
    pin(&session, &other, LEN);
    let stop = AtomicBool::new(false);
    let written = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let _stop = Stop(&stop);
        let ticket = begin_read(&turn, &session, &file);
        scope.spawn(|| {
            let file = raw(scratch.path());
            while !stop.load(Ordering::Relaxed) {
                file.write_all_at(&new()[..4096], 0).unwrap();
                written.store(true, Ordering::Relaxed);
                sleep(Duration::from_millis(5));
            }
        });
        assert!(common::soon(|| written.load(Ordering::Relaxed)), "nothing was written");
        turn.fake.let_go();
        // Meanwhile others are read in place, by the same thread.
        for _ in 0..3 {
            let ticket = session.submit_read(&other, 0, session.buffer(0, MIB).unwrap()).unwrap();
            let (receipt, _) = ticket.wait().into_result().unwrap();
            assert_eq!(receipt.engine(), EngineKind::Mapped, "{receipt}");
        }
        assert!(!ticket.is_done());
        let outcome = ticket.wait();
        assert_eq!(outcome.entries[0].as_ref().unwrap_err().kind(), ErrorKind::Busy);
    });
}

#[test]
fn a_second_reading_can_be_cancelled_while_it_waits() {
    let turn = turn();
    let session = open(very_patient());
    let (scratch, file) = subject(&memory(), OLD, LEN);
    sleep(very_patient().pin_settle);
    pin(&session, &file, LEN);
    let ticket = begin_read(&turn, &session, &file);
    raw(scratch.path()).write_all_at(&new()[..4096], 0).unwrap();
    let written = Instant::now();
    turn.fake.let_go();
    // The copies end, and it waits for the file to rest.
    sleep(Duration::from_millis(300));
    assert!(!ticket.is_done());
    ticket.cancel();
    assert_eq!(ticket.wait().entries[0].as_ref().unwrap_err().kind(), ErrorKind::Cancelled);
    assert!(written.elapsed() < very_patient().pin_settle, "it waited for the file to rest all the same");
}

// ---- versioned blocks ---------------------------------------------------------------------------------------------

/// Bytes of a file of blocks that each bear the version that they were written in.
const BLOCKS: usize = 200 * MIB;
const BLOCK: usize = 4096;

/// How many different stamps there are, apart from torn blocks.
fn stamps(bytes: &[u8]) -> usize {
    let mut stamps: Vec<_> = bytes
        .as_chunks::<BLOCK>()
        .0
        .iter()
        .map(|block| u64::from_le_bytes(block[..8].try_into().unwrap()))
        .collect();
    stamps.sort_unstable();
    stamps.dedup();
    stamps.len()
}

/// Reads for some time beside a writer of whole versions, each by one call. Reads that were in place or read again, mixed
/// ones among them, and those that were busy.
fn beside_a_writer(directory: &Path, writable: bool, time: Duration) -> (usize, usize, usize) {
    let session = open(Config { pin_settle: Duration::from_millis(400), ..config() });
    let (scratch, file) = blank(directory, BLOCKS);
    let file = if writable {
        file
    } else {
        drop(file);
        reader(&scratch)
    };
    let stop = AtomicBool::new(false);
    let (mut believed, mut mixed, mut busy) = (0, 0, 0);
    std::thread::scope(|scope| {
        let _stop = Stop(&stop);
        scope.spawn(|| {
            let mut bytes = vec![0; BLOCKS];
            for version in 1u64.. {
                if stop.load(Ordering::Relaxed) {
                    break;
                }
                bytes
                    .as_chunks_mut::<BLOCK>()
                    .0
                    .iter_mut()
                    .for_each(|block| block[..8].copy_from_slice(&version.to_le_bytes()));
                assert_eq!(raw(scratch.path()).write_at(&bytes, 0).unwrap(), BLOCKS);
                sleep(Duration::from_millis(900 + version * 37 % 300));
            }
        });
        let begun = Instant::now();
        // On a busy machine the first takes longer.
        while begun.elapsed() < time || believed == 0 && begun.elapsed() < time * 3 {
            match fetch(&session, &file, 0, BLOCKS) {
                Ok((bytes, receipt)) => {
                    let again =
                        receipt.election.refused.iter().any(|refusal| refusal.reason.contains("read again"));
                    if again || receipt.moved[Way::Mapped] > 0 {
                        believed += 1;
                        mixed += usize::from(stamps(&bytes) > 1);
                    }
                }
                Err(error) => {
                    assert_eq!(error.kind(), ErrorKind::Busy, "{error:?}");
                    busy += 1;
                }
            }
        }
    });
    (believed, mixed, busy)
}

#[test]
fn whole_versions_are_read_whole_beside_their_writer() {
    let _turn = turn();
    let seconds = std::env::var("FOREBAY_TEST_SECONDS").ok().and_then(|text| text.parse().ok()).unwrap_or(4);
    let mut sum = 0;
    for directory in [disk(), memory()] {
        for writable in [true, false] {
            let counts = beside_a_writer(&directory, writable, Duration::from_secs(seconds));
            let (believed, mixed, busy) = counts;
            println!(
                "{directory:?}, open for writing: {writable}: {believed} reads, {mixed} mixed, {busy} busy"
            );
            sum += mixed;
            assert!(believed > 0, "none was read in place");
        }
    }
    assert_eq!(sum, 0, "mixtures");
}
