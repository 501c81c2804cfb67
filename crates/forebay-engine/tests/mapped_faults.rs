//! The engine `mapped` when files change below it, when the GPU refuses, and when things end at a bad time. What a read
//! gives is one state of the file, or an error: never a mixture, and never a state that was over when the read began.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

mod common;
#[path = "common/pages.rs"]
mod pages;

use std::io::{BufRead, BufReader, Read};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use common::{
    Random, Scratch, Stop, Turn, chill, disk, has_hint, in_process, pattern, soon, test_name, turn,
};
use forebay_config::Config;
use forebay_engine::{EngineKind, File, Memory, Offsets, ReadPiece, Refusal, Session, Transfer, Way};
use forebay_error::ErrorKind;
use pages::{
    MIB, blank, check_staged, config, fetch, gpu, memory, only, open, pin, pins, punch, raw, settle, status,
    subject, why, write_direct,
};

const OLD: u64 = 81;
const NEW: u64 = 82;
const LEN: usize = 10 * MIB + 100;
const REGISTER: &str = "cuMemHostRegister_v2";
const NOT_SUPPORTED: i32 = 801;
const INVALID_VALUE: i32 = 1;
const OUT_OF_MEMORY: i32 = 2;

fn old() -> &'static [u8] {
    static OLD_BYTES: OnceLock<Vec<u8>> = OnceLock::new();
    OLD_BYTES.get_or_init(|| pattern(OLD, 0, LEN + MIB))
}

fn new() -> &'static [u8] {
    static NEW_BYTES: OnceLock<Vec<u8>> = OnceLock::new();
    NEW_BYTES.get_or_init(|| pattern(NEW, 0, LEN + MIB))
}

/// The old bytes with `range` of the new ones.
fn mixed(range: std::ops::Range<usize>) -> Vec<u8> {
    let mut bytes = old()[..LEN].to_vec();
    bytes[range.clone()].copy_from_slice(&new()[range]);
    bytes
}

fn directories() -> [PathBuf; 2] {
    [disk(), memory()]
}

// ---- what others do to a file -------------------------------------------------------------------------------------

/// A change of a file with the old bytes, and all states that it goes through.
struct Change {
    name: &'static str,
    act: fn(&Path),
    states: fn() -> Vec<Vec<u8>>,
}

const PART: std::ops::Range<usize> = 2 * MIB..5 * MIB;

fn changes() -> Vec<Change> {
    let one = |name, act, states| Change { name, act, states };
    vec![
        one(
            "truncated",
            |path| raw(path).set_len(9 * MIB as u64).unwrap(),
            || vec![old()[..9 * MIB].to_vec()],
        ),
        one(
            "extended",
            |path| raw(path).write_all_at(&new()[LEN..], LEN as u64).unwrap(),
            || vec![[&old()[..LEN], &new()[LEN..]].concat()],
        ),
        one(
            "overwritten",
            |path| raw(path).write_all_at(&new()[PART], PART.start as u64).unwrap(),
            || vec![mixed(PART)],
        ),
        one(
            "overwritten as a whole",
            |path| raw(path).write_all_at(&new()[..LEN], 0).unwrap(),
            || vec![new()[..LEN].to_vec()],
        ),
        one(
            "overwritten in one byte",
            |path| raw(path).write_all_at(&[!old()[7 * MIB]], 7 * MIB as u64).unwrap(),
            || {
                let mut bytes = old()[..LEN].to_vec();
                bytes[7 * MIB] = !bytes[7 * MIB];
                vec![bytes]
            },
        ),
        one(
            "overwritten by O_DIRECT",
            |path| write_direct(path, PART.start as u64, &new()[PART]),
            || vec![mixed(PART)],
        ),
        one("overwritten by another process", write_elsewhere, || vec![mixed(PART)]),
        one(
            "punched",
            |path| punch(path, PART.start as u64, PART.len() as u64),
            || {
                let mut bytes = old()[..LEN].to_vec();
                bytes[PART].fill(0);
                vec![bytes]
            },
        ),
        one(
            "cut short and made longer again",
            |path| {
                raw(path).set_len(MIB as u64).unwrap();
                raw(path).set_len(LEN as u64).unwrap();
            },
            || {
                let mut bytes = old()[..MIB].to_vec();
                let short = bytes.clone();
                bytes.resize(LEN, 0);
                vec![bytes, short]
            },
        ),
    ]
}

/// Another process writes the new bytes of `PART`.
fn write_elsewhere(path: &Path) {
    let from = Scratch::new(&memory());
    std::fs::write(from.path(), &new()[PART]).unwrap();
    let status = Command::new("dd")
        .arg(format!("if={}", from.path().display()))
        .arg(format!("of={}", path.display()))
        .args(["bs=1M", "seek=2", "conv=notrunc", "status=none"])
        .status();
    assert!(status.unwrap().success());
}

/// A read of as much as the old state had gives the state, or says that the file is shorter by now.
#[track_caller]
fn check_state(session: &Session, file: &File, state: &[u8], name: &str) {
    match fetch(session, file, 0, LEN) {
        Ok((bytes, _)) => assert!(state.len() >= LEN && bytes == state[..LEN], "{name}: wrong bytes"),
        Err(error) => {
            assert!(state.len() < LEN, "{name}: {error:?}");
            assert_eq!(error.kind(), ErrorKind::ShortRead, "{name}: {error:?}");
        }
    }
    assert!(fetch(session, file, 0, state.len()).unwrap().0 == state, "{name}: wrong bytes");
    // On the caller's thread.
    let at = state.len() - 5000;
    assert!(
        fetch(session, file, at as u64, 5000).unwrap().0 == state[at..],
        "{name}: wrong bytes at the end"
    );
    assert!(fetch(session, file, 3 * MIB as u64, 9000).unwrap().0 == state[3 * MIB..][..9000], "{name}");
}

#[test]
fn a_pinned_file_that_changes_is_read_as_it_is_now() {
    let turn = turn();
    for directory in directories() {
        for change in changes() {
            let session = open(config());
            let (scratch, file) = subject(&directory, OLD, LEN);
            assert!(pin(&session, &file, LEN) == old()[..LEN]);
            (change.act)(scratch.path());
            let state = &(change.states)()[0];
            check_state(&session, &file, state, change.name);
            settle();
            assert!(std::fs::read(scratch.path()).unwrap() == *state, "{}: the test is wrong", change.name);
            let (bytes, receipt) = fetch(&session, &file, 0, state.len()).unwrap();
            assert!(bytes == *state, "{}: once it has settled", change.name);
            if directory == memory() && ["punched", "cut short and made longer again"].contains(&change.name)
            {
                // Nothing brings the pages of a hole into memory there but a write.
                check_staged(&receipt, "page cache");
            } else {
                assert_eq!(receipt.moved[Way::Mapped], state.len() as u64, "{}: {receipt}", change.name);
            }
            check_state(&session, &file, state, change.name);
        }
    }
    assert_eq!(turn.fake.hazards(), 0);
}

/// The first read after the change is a small one, on the caller's thread.
#[test]
fn a_small_read_of_a_file_that_changed_is_as_it_is_now() {
    let _turn = turn();
    for directory in directories() {
        for change in changes() {
            let session = open(config());
            let (scratch, file) = subject(&directory, OLD, LEN);
            pin(&session, &file, LEN);
            assert_eq!(fetch(&session, &file, 0, 100).unwrap().1.engine(), EngineKind::Mapped);
            (change.act)(scratch.path());
            let state = &(change.states)()[0];
            for at in [PART.start - 50, 7 * MIB - 5, 9 * MIB - 1000] {
                assert!(
                    fetch(&session, &file, at as u64, 1000).unwrap().0 == state[at..at + 1000],
                    "{}",
                    change.name
                );
            }
            let last = fetch(&session, &file, LEN as u64 - 1000, 1000);
            match state.get(LEN - 1000..LEN) {
                Some(bytes) => assert!(last.unwrap().0 == bytes, "{}", change.name),
                None => assert_eq!(last.unwrap_err().kind(), ErrorKind::ShortRead, "{}", change.name),
            }
        }
    }
}

#[test]
fn stores_through_somebody_elses_mapping_are_seen() {
    let _turn = turn();
    for directory in directories() {
        let session = open(config());
        let (scratch, file) = subject(&directory, OLD, LEN);
        pin(&session, &file, LEN);
        let (access, other) = (libc::PROT_READ | libc::PROT_WRITE, raw(scratch.path()));
        // SAFETY: a fresh mapping of a file that stays as long as it is.
        unsafe {
            let start = libc::mmap(std::ptr::null_mut(), LEN, access, libc::MAP_SHARED, other.as_raw_fd(), 0);
            assert_ne!(start, libc::MAP_FAILED);
            std::ptr::copy_nonoverlapping(
                new()[PART].as_ptr(),
                start.cast::<u8>().add(PART.start),
                PART.len(),
            );
            libc::munmap(start, LEN);
        }
        assert!(fetch(&session, &file, 0, LEN).unwrap().0 == mixed(PART));
        settle();
        assert!(pin(&session, &file, LEN) == mixed(PART));
    }
}

#[test]
fn a_modification_time_that_is_set_back_hides_nothing() {
    let _turn = turn();
    for directory in directories() {
        for change in changes().into_iter().filter(|change| change.name.starts_with("overwritten")) {
            let session = open(config());
            let (scratch, file) = subject(&directory, OLD, LEN);
            pin(&session, &file, LEN);
            let before = std::fs::metadata(scratch.path()).unwrap();
            (change.act)(scratch.path());
            let times = std::fs::FileTimes::new().set_modified(before.modified().unwrap());
            raw(scratch.path()).set_times(times).unwrap();
            let after = std::fs::metadata(scratch.path()).unwrap();
            assert_eq!((before.mtime(), before.mtime_nsec()), (after.mtime(), after.mtime_nsec()));
            check_state(&session, &file, &(change.states)()[0], change.name);
        }
    }
}

#[test]
fn an_unlinked_file_keeps_its_bytes() {
    let turn = turn();
    for directory in directories() {
        let session = open(config());
        let (scratch, file) = subject(&directory, OLD, LEN);
        pin(&session, &file, LEN);
        std::fs::remove_file(scratch.path()).unwrap();
        check_state(&session, &file, &old()[..LEN], "unlinked");
        settle();
        assert!(pin(&session, &file, LEN) == old()[..LEN]);
        let map = session.map(&file, &gpu(&session)).unwrap();
        assert!(turn.fake.read(map.address(), LEN).unwrap() == old()[..LEN]);
        drop((file, map));
        // Nobody has it any more: its pins go, and with them its blocks.
        assert!(soon(|| {
            session.trim();
            turn.fake.registered_bytes() == 0
        }));
    }
}

#[test]
fn a_file_that_is_replaced_stays_what_it_was_for_who_has_it_open() {
    let _turn = turn();
    for directory in directories() {
        let session = open(config());
        let (scratch, file) = subject(&directory, OLD, LEN);
        pin(&session, &file, LEN);
        let (fresh, _) = subject(&directory, NEW, LEN);
        std::fs::rename(fresh.path(), scratch.path()).unwrap();
        check_state(&session, &file, &old()[..LEN], "replaced: the old one");
        let other = File::open(scratch.path()).unwrap();
        check_state(&session, &other, &new()[..LEN], "replaced: the new one");
        settle();
        assert!(pin(&session, &file, LEN) == old()[..LEN]);
        assert!(pin(&session, &other, LEN) == new()[..LEN]);
        assert_eq!(pins(&session).files, 2);
    }
}

/// An inode number is used again: another file, with the device and inode of one that was pinned.
#[test]
fn a_new_file_with_the_inode_of_an_old_one_is_not_taken_for_it() {
    let _turn = turn();
    for directory in directories() {
        let session = open(config());
        let mut inode = 0;
        for round in 0..6u64 {
            let (scratch, file) = subject(&directory, OLD + round, LEN);
            let found = std::fs::metadata(scratch.path()).unwrap().ino();
            println!("{}", if found == inode { "the same inode" } else { "another inode" });
            inode = found;
            assert!(pin(&session, &file, LEN) == pattern(OLD + round, 0, LEN), "round {round}");
        }
    }
}

// ---- while it is read ---------------------------------------------------------------------------------------------

/// The file's first 10 MiB in pieces that are copied one by one, so that a change can come between them.
fn read_in_pieces(session: &Session, file: &File) -> (Vec<Option<Vec<u8>>>, bool) {
    const PIECE: usize = MIB / 2;
    let pieces: Vec<_> = (0..20)
        .map(|at| ReadPiece { offset: (at * PIECE) as u64, range: at * PIECE..(at + 1) * PIECE })
        .collect();
    let outcome = session.read_batch(file, &pieces, session.buffer(0, 20 * PIECE).unwrap()).unwrap().wait();
    let again = outcome.receipt.election.refused.iter().any(|refusal| refusal.reason.contains("read again"));
    let bytes = outcome.buffer.to_vec().unwrap();
    for error in outcome.entries.iter().filter_map(|entry| entry.as_ref().err()) {
        assert!([ErrorKind::ShortRead, ErrorKind::Busy].contains(&error.kind()), "{error:?}");
    }
    let good = outcome.entries.iter().zip(bytes.chunks(PIECE));
    (good.map(|(entry, bytes)| entry.is_ok().then(|| bytes.to_vec())).collect(), again)
}

/// Whether all pieces that came are of one state.
fn is_one_state(pieces: &[Option<Vec<u8>>], state: &[u8]) -> bool {
    pieces.iter().enumerate().all(|(at, piece)| match piece {
        Some(bytes) => state.get(at * bytes.len()..(at + 1) * bytes.len()) == Some(bytes),
        None => true,
    })
}

fn change_while_it_is_read(turn: &Turn, directory: &Path, change: &Change, random: &mut Random) -> bool {
    let session = open(config());
    let (scratch, file) = subject(directory, OLD, LEN);
    pin(&session, &file, LEN);
    turn.fake.set_delay_us(3000);
    let moment = Duration::from_micros(random.below(50_000));
    let (pieces, again) = std::thread::scope(|scope| {
        scope.spawn(|| {
            std::thread::sleep(moment);
            (change.act)(scratch.path());
        });
        read_in_pieces(&session, &file)
    });
    turn.fake.set_delay_us(20);
    let mut states = (change.states)();
    states.push(old()[..LEN].to_vec());
    let came = pieces.iter().flatten().count();
    assert!(states.iter().any(|state| is_one_state(&pieces, state)), "{}: a mixture", change.name);
    println!("{} after {moment:?}: {came} pieces, again: {again}", change.name);
    again
}

#[test]
fn a_change_in_the_middle_of_a_read_never_gives_a_mixture() {
    let turn = turn();
    let mut random = Random(1);
    let mut again = 0;
    for directory in directories() {
        for change in changes() {
            for _ in 0..3 {
                again += usize::from(change_while_it_is_read(&turn, &directory, &change, &mut random));
            }
        }
    }
    assert!(again > 5, "hardly any change came in the middle: the test shows nothing");
}

/// As above, over one transfer of a whole file of two windows.
#[test]
fn a_large_read_in_the_middle_of_a_change_is_of_one_state() {
    const LARGE: usize = 72 * MIB;
    let turn = turn();
    let (scratch, file) = blank(&memory(), LARGE);
    let session = open(config());
    let ones = vec![1; LARGE];
    let zeros = vec![0; LARGE];
    for round in 0..6 {
        let (before, after) = if round % 2 == 0 { (0, &ones) } else { (1, &zeros) };
        settle();
        assert!(pin(&session, &file, LARGE).iter().all(|byte| *byte == before));
        turn.fake.set_delay_us(15_000);
        let bytes = std::thread::scope(|scope| {
            scope.spawn(|| {
                std::thread::sleep(Duration::from_millis(3 + round * 7));
                // One call: one change.
                assert_eq!(raw(scratch.path()).write_at(after, 0).unwrap(), LARGE);
            });
            fetch(&session, &file, 0, LARGE)
        });
        turn.fake.set_delay_us(20);
        match bytes {
            // What the lanes read while the call goes on is as with read(2): it may be of both, page by page.
            Ok((_, receipt)) if receipt.moved[Way::Mapped] == 0 => println!("by the lanes"),
            Ok((bytes, _)) => assert!(bytes.iter().all(|byte| *byte == bytes[0]), "round {round}: a mixture"),
            Err(error) => assert_eq!(error.kind(), ErrorKind::Busy, "{error:?}"),
        }
    }
}

/// Sessions write files in memory through a mapping, which the kernel does not notice: they must tell by themselves
/// before the first byte that the file changes.
#[test]
fn a_write_of_another_session_in_the_middle_of_a_read_never_gives_a_mixture() {
    let _turn = turn();
    // Through the lanes, and as it is elected.
    for engine in [Some("staged".to_owned()), None] {
        // One call writes all.
        let writer = open(Config { engine, slots: 2, slot_size: 64 * MIB, lanes: 1, ..config() });
        let in_place = write_while_it_is_read(&writer, &open(config()));
        println!("{in_place} reads in place came in between");
    }
}

/// Each write changes all bytes; reads of a few bytes from each place meanwhile. How many were in place.
fn write_while_it_is_read(writer: &Session, reader: &Session) -> usize {
    const COUNT: usize = 60;
    let (scratch, file) = blank(&memory(), COUNT * MIB);
    let other = File::options().write(true).open(scratch.path()).unwrap();
    let mut bytes = writer.buffer(0, COUNT * MIB).unwrap();
    let pieces: Vec<_> =
        (0..COUNT).map(|at| ReadPiece { offset: (at * MIB) as u64, range: at * 64..(at + 1) * 64 }).collect();
    let mut in_place = 0;
    for round in 1..8 {
        settle();
        pin(reader, &file, COUNT * MIB);
        bytes.copy_from_slice(&vec![round; COUNT * MIB]).unwrap();
        let is_over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let _over = Stop(&is_over);
                writer.write(&other, 0, &bytes).unwrap();
            });
            while !is_over.load(Ordering::Relaxed) {
                let buffer = reader.buffer(0, COUNT * 64).unwrap();
                let ticket = reader.read_batch(&file, &pieces, buffer).unwrap();
                let Ok((receipt, buffer)) = ticket.wait().into_result() else { continue };
                if receipt.moved[Way::Mapped] == receipt.moved.total() {
                    in_place += 1;
                    let got = buffer.to_vec().unwrap();
                    assert!(got.iter().all(|byte| *byte == got[0]), "a mixture, read in place: {got:?}");
                }
            }
        });
    }
    in_place
}

#[test]
fn a_file_that_changed_between_two_long_reads_is_not_read_twice() {
    let _turn = turn();
    let session = open(config());
    let (scratch, file) = subject(&memory(), OLD, LEN);
    pin(&session, &file, LEN);
    raw(scratch.path()).write_all_at(&new()[..LEN], 0).unwrap();
    settle();
    let (bytes, receipt) = fetch(&session, &file, 0, LEN).unwrap();
    assert!(bytes == new()[..LEN]);
    let again = |refusal: &Refusal| refusal.reason.contains("read again");
    assert!(!receipt.election.refused.iter().any(again), "{receipt}");
}

#[test]
fn a_file_that_never_holds_still_is_never_said_to_be_read_in_place() {
    let _turn = turn();
    let session = open(config());
    let (scratch, file) = subject(&memory(), OLD, LEN);
    pin(&session, &file, LEN);
    let (other, stop) = (raw(scratch.path()), AtomicBool::new(false));
    std::thread::scope(|scope| {
        let _stop = Stop(&stop);
        scope.spawn(|| {
            for round in 0.. {
                if stop.load(Ordering::Relaxed) {
                    break;
                }
                let bytes = if round % 2 == 0 { new() } else { old() };
                other.write_all_at(&bytes[4096..8192], 4096).unwrap();
                std::thread::sleep(Duration::from_micros(100));
            }
        });
        for _ in 0..60 {
            match fetch(&session, &file, 4096, 4096) {
                Ok((bytes, receipt)) => {
                    // What the lanes read may be of both, as with read(2).
                    let whole = bytes == old()[4096..8192] || bytes == new()[4096..8192];
                    assert!(whole || receipt.moved[Way::Mapped] == 0, "a mixture that was read in place");
                }
                Err(error) => assert_eq!(error.kind(), ErrorKind::Busy, "{error:?}"),
            }
            match fetch(&session, &file, 8192, 9 * MIB) {
                Ok((bytes, _)) => assert!(bytes == old()[8192..][..9 * MIB]),
                Err(error) => assert_eq!(error.kind(), ErrorKind::Busy, "{error:?}"),
            }
        }
    });
}

#[test]
fn a_young_file_is_not_pinned() {
    let turn = turn();
    let slow = |config: Config| Config { pin_settle: Duration::from_secs(30), ..config };
    // Files in memory settle within 20 ms whatever the option says: no direct write of theirs ends late.
    let (_scratch, file) = subject(&disk(), OLD, LEN);
    let (bytes, receipt) = fetch(&open(slow(config())), &file, 0, LEN).unwrap();
    assert!(bytes == old()[..LEN]);
    check_staged(&receipt, "changed a moment ago");
    assert!(why(&receipt).hint.unwrap().contains("FOREBAY_PIN_SETTLE"));
    let error = fetch(&open(slow(only())), &file, 0, LEN).unwrap_err();
    assert!(error.kind() == ErrorKind::Unsupported && has_hint(&error, "FOREBAY_PIN_SETTLE"), "{error:?}");
    assert_eq!(turn.fake.registered_bytes(), 0);
}

#[test]
fn a_file_that_grew_since_it_was_opened_is_pinned_like_any_other() {
    let _turn = turn();
    let session = open(config());
    for directory in directories() {
        let scratch = Scratch::new(&directory);
        let file = File::options().write(true).create(true).open(scratch.path()).unwrap();
        raw(scratch.path()).write_all_at(&old()[..LEN], 0).unwrap();
        settle();
        assert!(pin(&session, &file, LEN) == old()[..LEN]);
    }
}

// ---- maps of files that change ------------------------------------------------------------------------------------

#[test]
fn a_map_tells_that_its_file_changed_and_is_made_anew() {
    let turn = turn();
    for directory in directories() {
        for change in changes() {
            let session = open(config());
            let (scratch, file) = subject(&directory, OLD, LEN);
            let mut map = session.map(&file, &gpu(&session)).unwrap();
            let mut out = session.buffer(0, 4000).unwrap();
            let offsets = Offsets::Host(&[0, 3 * MIB as u64, 6 * MIB as u64, 8 * MIB as u64]);
            map.gather(offsets, 1000, &mut out).unwrap();
            assert!(!map.refresh().unwrap(), "nothing has changed");
            (change.act)(scratch.path());
            for error in [map.check().unwrap_err(), map.gather(offsets, 1000, &mut out).unwrap_err()] {
                assert!(
                    error.kind() == ErrorKind::Busy && has_hint(&error, "refresh()"),
                    "{}: {error:?}",
                    change.name
                );
            }
            // No kernel faults: the pages are there as long as the map.
            assert!(turn.fake.read(map.address(), LEN).is_some());
            assert!(map.refresh().unwrap(), "{}", change.name);
            let state = &(change.states)()[0];
            assert_eq!(map.len(), state.len() as u64);
            assert!(turn.fake.read(map.address(), state.len()).unwrap() == *state, "{}", change.name);
            map.gather(offsets, 1000, &mut out).unwrap();
            assert!(out.to_vec().unwrap()[1000..2000] == state[3 * MIB..][..1000], "{}", change.name);
            let before = map.pinned_bytes();
            assert!(soon(|| pins(&session).process_bytes == before), "the old pages are still pinned");
        }
    }
}

#[test]
fn a_change_during_a_gather_is_told() {
    let turn = turn();
    for directory in directories() {
        let session = open(config());
        let (scratch, file) = subject(&directory, OLD, LEN);
        let map = session.map(&file, &gpu(&session)).unwrap();
        let offsets: Vec<u64> = (0..1000).map(|at| at * 10_000).collect();
        let mut out = session.buffer(0, 1000 * 4096).unwrap();
        turn.fake.set_delay_us(60_000);
        let result = std::thread::scope(|scope| {
            scope.spawn(|| {
                std::thread::sleep(Duration::from_millis(2));
                raw(scratch.path()).write_all_at(&new()[PART], PART.start as u64).unwrap();
            });
            map.gather(Offsets::Host(&offsets), 4096, &mut out)
        });
        turn.fake.set_delay_us(20);
        let bytes = out.to_vec().unwrap();
        let is =
            |state: &[u8]| (0..1000).all(|at| bytes[at * 4096..][..4096] == state[at * 10_000..][..4096]);
        match result {
            Ok(_) => assert!(is(old()), "a change that was not told"),
            Err(error) => assert_eq!(error.kind(), ErrorKind::Busy, "{error:?}"),
        }
    }
}

// ---- a GPU that refuses -------------------------------------------------------------------------------------------

/// Whether a case is this process's: each child of a test has one, named by a variable; the parent starts them all.
fn is_mine(variable: &str, case: &str) -> bool {
    std::env::var(variable).map_or(true, |mine| mine == case)
}

/// Two files on each file system that were never tried, and a session whose lanes have pinned what they need.
fn fresh(config: Config, directory: &Path) -> (Session, [(Scratch, File); 2]) {
    let session = open(config);
    let files = [subject(directory, OLD, LEN), subject(directory, OLD, LEN)];
    for (_, file) in &files {
        // The page cache stays as it is; what lanes and callers need is pinned now.
        let host = File::from_source(std::sync::Arc::new(forebay_engine::source::MemorySource::new(
            vec![7; 3 * MIB],
            Duration::ZERO,
        )))
        .unwrap();
        fetch(&session, &host, 0, 3 * MIB).unwrap();
        let _ = fetch(&session, file, 0, 1000);
    }
    (session, files)
}

#[track_caller]
fn read_staged(session: &Session, file: &File, word: &str) {
    let (bytes, receipt) = fetch(session, file, 0, LEN).unwrap();
    assert!(bytes == old()[..LEN], "wrong bytes");
    check_staged(&receipt, word);
}

#[test]
fn a_gpu_without_read_only_registration_says_so() {
    in_process(&[], &[("FAKE_CUDA_ATTRIBUTES", "113=0")], || {
        let turn = turn();
        let (session, [(_a, file), _]) = fresh(config(), &disk());
        let election = session.elect(&gpu(&session)).unwrap();
        let refusal = election.refused.iter().find(|refusal| refusal.engine == EngineKind::Mapped).unwrap();
        assert!(refusal.reason.contains("cannot use the CPU's mappings"), "{refusal:?}");
        assert!(refusal.hint.as_ref().unwrap().contains("driver"), "{refusal:?}");
        read_staged(&session, &file, "cannot use the CPU's mappings");
        for error in [
            session.map(&file, &gpu(&session)).unwrap_err(),
            session.probe_mapped(&file, &gpu(&session)).unwrap_err(),
            fetch(&open(only()), &file, 0, LEN).unwrap_err(),
        ] {
            assert!(error.kind() == ErrorKind::Unsupported && has_hint(&error, "driver"), "{error:?}");
        }
        assert_eq!(turn.fake.registered_bytes(), 0);
    });
}

/// Refused for good: nothing is tried again, in no session, but other file systems are.
fn check_refused_for_good(turn: &Turn, session: &Session, files: &[(Scratch, File); 2], word: &str) {
    read_staged(session, &files[0].1, word);
    turn.fake.reset();
    for session in [session, &open(config())] {
        read_staged(session, &files[1].1, word);
        read_staged(session, &files[0].1, word);
        let error = session.map(&files[1].1, &gpu(session)).unwrap_err();
        assert!(error.kind() == ErrorKind::Unsupported && error.message().contains(word), "{error:?}");
        let error = session.probe_mapped(&files[1].1, &gpu(session)).unwrap_err();
        assert!(error.message().contains(word), "{error:?}");
    }
    let error = fetch(&open(only()), &files[0].1, 0, LEN).unwrap_err();
    assert!(error.kind() == ErrorKind::Unsupported && error.message().contains(word), "{error:?}");
    assert_eq!((turn.fake.registered_bytes(), pins(session).process_bytes), (0, 0));
    let session = open(config());
    let (_scratch, file) = subject(&memory(), OLD, LEN);
    assert!(pin(&session, &file, LEN) == old()[..LEN], "another file system");
}

#[test]
fn a_trial_page_that_is_refused_refuses_the_file_system() {
    let codes = [NOT_SUPPORTED, INVALID_VALUE].map(|code| code.to_string());
    for code in codes.iter().filter(|code| is_mine("CODE", code)) {
        in_process(&[], &[("CODE", code)], || {
            let turn = turn();
            let code = code.parse().unwrap();
            let (session, files) = fresh(config(), &disk());
            turn.fake.fail_next(REGISTER, code, 0, 1);
            check_refused_for_good(&turn, &session, &files, "registering one page of the file system failed");
        });
    }
}

#[test]
fn a_window_that_the_gpu_does_not_support_refuses_the_file_system() {
    in_process(&[], &[], || {
        let turn = turn();
        let (session, files) = fresh(config(), &disk());
        // The trial page goes well.
        turn.fake.fail_next(REGISTER, NOT_SUPPORTED, 1, 1);
        check_refused_for_good(&turn, &session, &files, "does not register such memory");
    });
}

#[test]
fn a_window_that_fails_leaves_other_files_alone() {
    in_process(&[], &[], || {
        let turn = turn();
        let (session, files) = fresh(config(), &disk());
        turn.fake.fail_next(REGISTER, INVALID_VALUE, 1, 1);
        read_staged(&session, &files[0].1, "cannot pin the pages");
        let calls = turn.fake.calls(REGISTER);
        read_staged(&session, &files[0].1, "cannot pin the pages");
        assert_eq!(turn.fake.calls(REGISTER), calls, "it was tried again");
        assert!(pin(&session, &files[1].1, LEN) == old()[..LEN]);
        // A change makes it another file.
        raw(files[0].0.path()).write_all_at(&new()[..10], 0).unwrap();
        settle();
        assert!(pin(&session, &files[0].1, LEN) == mixed(0..10));
    });
}

#[test]
fn a_gpu_out_of_memory_for_pins_gets_a_rest() {
    in_process(&[], &[], || {
        let turn = turn();
        let (session, files) = fresh(config(), &disk());
        turn.fake.fail_next(REGISTER, OUT_OF_MEMORY, 1, 1);
        let (bytes, receipt) = fetch(&session, &files[0].1, 0, LEN).unwrap();
        assert!(bytes == old()[..LEN]);
        check_staged(&receipt, "");
        println!("{receipt}");
        assert_eq!(pins(&session).process_bytes, 0);
        let calls = turn.fake.calls(REGISTER);
        settle();
        for (_, file) in &files {
            read_staged(&session, file, "memory ran short");
        }
        assert_eq!(turn.fake.calls(REGISTER), calls, "it was tried again at once");
        // A map is made all the same.
        drop(session.map(&files[0].1, &gpu(&session)).unwrap());
    });
}

#[test]
fn a_trial_page_for_which_there_is_no_memory_refuses_nothing_for_good() {
    in_process(&[], &[], || {
        let turn = turn();
        let (session, files) = fresh(config(), &disk());
        turn.fake.fail_next(REGISTER, OUT_OF_MEMORY, 0, 1);
        let (bytes, receipt) = fetch(&session, &files[0].1, 0, LEN).unwrap();
        assert!(bytes == old()[..LEN]);
        check_staged(&receipt, "");
        println!("{receipt}");
        let session = open(config());
        assert!(pin(&session, &files[1].1, LEN) == old()[..LEN]);
    });
}

#[test]
fn a_registration_that_fails_half_way_leaves_the_rest_pinned() {
    const LARGE: usize = 132 * MIB;
    const WINDOW: usize = 64 * MIB;
    let turn = turn();
    let session = open(config());
    let (scratch, file) = blank(&memory(), LARGE);
    session.probe_mapped(&file, &gpu(&session)).unwrap();
    fetch(&session, &file, 0, 2 * MIB).unwrap();
    for (after, window) in [(0, WINDOW), (1, WINDOW), (2, LARGE - 2 * WINDOW)] {
        session.trim();
        turn.fake.fail_next(REGISTER, INVALID_VALUE, after, 1);
        let (bytes, receipt) = fetch(&session, &file, 0, LARGE).unwrap();
        assert!(bytes.iter().all(|byte| *byte == 0));
        assert_eq!(receipt.moved[Way::Mapped], (LARGE - window) as u64, "{receipt}");
        assert!(why(&receipt).reason.contains(&format!("({window} of {LARGE} bytes)")), "{receipt}");
        assert_eq!(receipt.engine(), EngineKind::Mapped, "the one that moved more: {receipt}");
        assert_eq!(pins(&session).process_bytes, (LARGE - window) as u64);
        // As another file, so that it is tried anew.
        raw(scratch.path()).write_all_at(&[0], 0).unwrap();
        settle();
        turn.fake.fail_next(REGISTER, INVALID_VALUE, after, 1);
        let error = session.map(&file, &gpu(&session)).unwrap_err();
        assert!(error.message().contains("cannot pin the pages"), "{error:?}");
        raw(scratch.path()).write_all_at(&[0], 0).unwrap();
        settle();
    }
    assert_eq!(pin(&session, &file, LARGE).len(), LARGE);
}

#[test]
fn a_trial_page_that_hangs_is_left_behind() {
    in_process(&[], &[], || {
        let turn = turn();
        let (session, files) = fresh(config(), &disk());
        turn.fake.hang_next(REGISTER, 3000);
        let started = Instant::now();
        read_staged(&session, &files[0].1, "did not end within 2 s");
        assert!(started.elapsed() < Duration::from_millis(2800), "{:?}", started.elapsed());
        let started = Instant::now();
        read_staged(&session, &files[1].1, "did not end within 2 s");
        assert!(started.elapsed() < Duration::from_secs(1), "nobody waits for it again");
        // When it ends after all it is tidied up.
        std::thread::sleep(Duration::from_millis(1500));
        assert!(soon(|| turn.fake.registered_bytes() == 0));
        read_staged(&session, &files[1].1, "did not end within 2 s");
    });
}

/// Unregistering waits for all streams, one of which may wait for who asked for the trial.
#[test]
fn a_trial_page_that_is_slow_to_unregister_holds_nobody_up() {
    in_process(&[], &[], || {
        let turn = turn();
        let (session, files) = fresh(config(), &disk());
        turn.fake.hang_next("cuMemHostUnregister", 3000);
        let started = Instant::now();
        session.probe_mapped(&files[0].1, &gpu(&session)).unwrap();
        assert!(started.elapsed() < Duration::from_secs(1), "{:?}", started.elapsed());
        assert!(turn.fake.registered_bytes() > 0, "its page is registered still");
        assert!(soon(|| turn.fake.registered_bytes() == 0));
    });
}

#[test]
fn a_session_that_is_dropped_while_a_window_hangs() {
    in_process(&[], &[], || {
        let turn = turn();
        let (session, files) = fresh(config(), &disk());
        session.probe_mapped(&files[0].1, &gpu(&session)).unwrap();
        turn.fake.hang_next(REGISTER, 2500);
        let buffer = session.buffer(0, LEN).unwrap();
        let ticket = session.submit_read(&files[0].1, 0, buffer).unwrap();
        std::thread::sleep(Duration::from_millis(100));
        let host = File::open(files[1].0.path()).unwrap();
        assert!(fetch(&session, &host, 0, MIB).unwrap().0 == old()[..MIB], "others need not wait");
        drop(session);
        let buffer = ticket.wait().into_result().unwrap().1;
        assert!(buffer.to_vec().unwrap() == old()[..LEN]);
        drop((buffer, files, host));
        assert!(soon(|| turn.fake.registered_bytes() == 0));
    });
}

/// A registration that never ends (here: for 14 s) costs ten seconds, once, and nothing else.
#[test]
fn a_window_that_hangs_for_good_is_left_behind() {
    in_process(&[], &[], || {
        let turn = turn();
        let (session, files) = fresh(config(), &disk());
        session.probe_mapped(&files[0].1, &gpu(&session)).unwrap();
        turn.fake.hang_next(REGISTER, 14_000);
        let started = Instant::now();
        read_staged(&session, &files[0].1, "did not end within 10 s");
        assert!(started.elapsed() < Duration::from_millis(11_500), "{:?}", started.elapsed());
        read_staged(&session, &files[1].1, "did not end within 10 s");
        drop(session);
        assert!(started.elapsed() < Duration::from_secs(13), "{:?}", started.elapsed());
    });
}

// ---- a GPU that is lost, contexts, ends ---------------------------------------------------------------------------

#[test]
fn a_lost_gpu_is_an_error_and_no_more() {
    // A process each: a lost GPU stays lost, and keeps memory that is freed later.
    for size in ["small", "large"].into_iter().filter(|size| is_mine("SIZE", size)) {
        in_process(&[], &[("SIZE", size)], || {
            let small = size == "small";
            let turn = turn();
            let session = open(config());
            let (scratch, file) = subject(&disk(), OLD, LEN);
            pin(&session, &file, LEN);
            let map = session.map(&file, &gpu(&session)).unwrap();
            let mut buffer = session.buffer(0, if small { 5000 } else { LEN }).unwrap();
            turn.fake.fail_next("async:copy", 700, 0, 1);
            for _ in 0..2 {
                let error = session.read(&file, 0, &mut buffer).unwrap_err();
                assert!(error.kind() == ErrorKind::DeviceLost && has_hint(&error, "xid"), "{error:?}");
            }
            let mut out = session.host_buffer(10).unwrap();
            map.gather(Offsets::Host(&[1, 2]), 5, &mut out).unwrap_err();
            // Host memory, and files, go on; unregistering fails and nobody minds.
            let mut host = session.host_buffer(LEN).unwrap();
            session.read(&file, 0, &mut host).unwrap();
            assert!(host.to_vec().unwrap() == old()[..LEN]);
            session.trim();
            drop((map, buffer));
            session.trim();
            assert_eq!(pins(&session).process_bytes, 0);
            drop(session);
            assert!(std::fs::read(scratch.path()).unwrap() == old()[..LEN]);
        });
    }
}

#[test]
fn a_gpu_that_is_lost_with_gathers_and_copies_in_the_air() {
    for fault in ["async:copy", "async:kernel"].into_iter().filter(|fault| is_mine("FAULT", fault)) {
        in_process(&[], &[("FAULT", fault)], || {
            let turn = turn();
            let session = open(config());
            let (_scratch, file) = subject(&disk(), OLD, LEN);
            pin(&session, &file, LEN);
            // A lost GPU gives no memory: on a busy machine it would be lost before the last buffer is there.
            let buffers: Vec<_> =
                (0..6).map(|index| session.buffer(0, [LEN, 450_000][index % 2]).unwrap()).collect();
            turn.fake.set_delay_us(2000);
            turn.fake.fail_next(fault, 700, 1, 1);
            let tickets: Vec<_> = buffers
                .into_iter()
                .enumerate()
                .map(|(index, buffer)| {
                    let pieces: Vec<_> = (0..500)
                        .map(|at| ReadPiece { offset: at as u64 * 9001, range: at * 900..(at + 1) * 900 })
                        .collect();
                    match index % 2 {
                        0 => session.submit_read(&file, 0, buffer).unwrap(),
                        _ => session.read_batch(&file, &pieces, buffer).unwrap(),
                    }
                })
                .collect();
            drop(session);
            let outcomes = tickets.into_iter().map(forebay_engine::Ticket::wait);
            let failed: Vec<_> = outcomes.filter_map(|outcome| outcome.into_result().err()).collect();
            assert!(!failed.is_empty());
            assert!(failed.iter().all(|error| error.kind() == ErrorKind::DeviceLost), "{failed:?}");
        });
    }
}

#[test]
fn memory_of_another_context_is_served_by_the_lanes() {
    let turn = turn();
    let session = open(config());
    let (_scratch, file) = subject(&disk(), OLD, LEN);
    pin(&session, &file, LEN);
    let context = turn.fake.create_context(0).unwrap();
    let address = turn.fake.allocate(LEN).unwrap();
    let memory: Memory = session.locate(address).unwrap();
    let direction = forebay_engine::Direction::Read;
    for len in [1000, LEN] {
        let (file, memory) = (file.clone(), memory.clone());
        let transfer = Transfer { file, offset: 0, memory, len, direction, allow_short: false };
        // SAFETY: the memory is freed below.
        let receipt = unsafe { session.run(&transfer) }.unwrap();
        assert_eq!(receipt.moved[Way::Mapped], 0, "{receipt}");
        assert!(turn.fake.read(address, len).unwrap() == old()[..len]);
        if len == LEN {
            check_staged(&receipt, "context other than");
        }
    }
    turn.fake.free(address).unwrap();
    drop(session);
    turn.fake.destroy_context(context).unwrap();
}

#[test]
fn a_session_that_ends_lets_go_of_its_pins() {
    let turn = turn();
    let first = open(config());
    let (_scratch, file) = subject(&disk(), OLD, LEN);
    pin(&first, &file, LEN);
    drop(first);
    let before = turn.fake.leaks();
    assert_eq!(turn.fake.registered_bytes(), 0);
    for trims in [true, false] {
        for _ in 0..3 {
            let session = open(config());
            pin(&session, &file, LEN);
            let map = session.map(&file, &gpu(&session)).unwrap();
            let mut out = session.buffer(0, 100).unwrap();
            map.gather(Offsets::Host(&[3]), 100, &mut out).unwrap();
            drop((map, out));
            if trims {
                assert_eq!(session.trim(), (LEN as u64).next_multiple_of(4096));
                assert_eq!((pins(&session).bytes, turn.fake.registered_bytes()), (0, 0));
            }
            drop(session);
            let tidy = || turn.fake.leaks() == before;
            assert!(soon(tidy), "{:?}, before: {before:?}", turn.fake.leaks());
        }
    }
}

#[test]
fn a_map_outlives_its_session() {
    let turn = turn();
    for by_reads in [false, true] {
        let session = open(config());
        let (scratch, file) = subject(&disk(), OLD, LEN);
        if by_reads {
            pin(&session, &file, LEN);
        }
        let map = session.map(&file, &gpu(&session)).unwrap();
        let mut out = session.buffer(0, 2000).unwrap();
        drop((session, file));
        for _ in 0..3 {
            map.gather(Offsets::Host(&[7, MIB as u64]), 1000, &mut out).unwrap();
            assert!(out.to_vec().unwrap()[1000..] == old()[MIB..MIB + 1000]);
        }
        assert!(turn.fake.read(map.address(), LEN).unwrap() == old()[..LEN]);
        raw(scratch.path()).write_all_at(&[1], 0).unwrap();
        map.check().unwrap_err();
        drop(map);
        assert!(soon(|| turn.fake.registered_bytes() == 0), "{} bytes left", turn.fake.registered_bytes());
    }
}

#[test]
fn a_gathering_outlives_its_map_and_session() {
    let turn = turn();
    let session = open(config());
    let (_scratch, file) = subject(&disk(), OLD, LEN);
    let map = session.map(&file, &gpu(&session)).unwrap();
    let mut list = session.buffer(0, 16).unwrap();
    list.copy_from_slice(&[5u64.to_le_bytes(), 9000u64.to_le_bytes()].concat()).unwrap();
    let out = session.buffer(0, 2000).unwrap();
    turn.fake.set_delay_us(50_000);
    let request =
        forebay_engine::RawGather { offsets: list.address(), count: 2, length: 1000, out: out.address() };
    // SAFETY: both buffers live until the gathers are over.
    let gatherings = unsafe { [map.gather_raw(None, request), map.gather_raw(None, request)] };
    let [first, second] = gatherings.map(Result::unwrap);
    drop((map, session, file));
    drop(first);
    second.wait().unwrap();
    assert!(out.to_vec().unwrap() == [&old()[5..1005], &old()[9000..10_000]].concat());
    assert!(soon(|| turn.fake.registered_bytes() == 0));
}

#[test]
fn tickets_outlive_their_session() {
    let turn = turn();
    turn.fake.set_delay_us(3000);
    for is_pinned in [false, true] {
        let (_scratch, file) = subject(&disk(), OLD, LEN);
        let session = open(config());
        if is_pinned {
            pin(&session, &file, LEN);
        }
        let read = || session.submit_read(&file, 0, session.buffer(0, LEN).unwrap()).unwrap();
        let tickets: Vec<_> = (0..6).map(|_| read()).collect();
        drop((session, file));
        for ticket in tickets {
            let buffer = ticket.wait().into_result().unwrap().1;
            assert!(buffer.to_vec().unwrap() == old()[..LEN]);
        }
        assert!(soon(|| turn.fake.registered_bytes() == 0));
    }
}

#[test]
fn a_stream_that_comes_after_its_session_is_gone() {
    let turn = turn();
    let primary = turn.fake.retain_primary(0).unwrap();
    turn.fake.set_current_context(primary).unwrap();
    let handle = turn.fake.create_stream(1).unwrap();
    let session = open(config());
    let (_scratch, file) = subject(&disk(), OLD, LEN);
    pin(&session, &file, LEN);
    turn.fake.set_delay_us(30_000);
    let buffer = session.buffer(0, LEN).unwrap();
    let (memory, direction) = (buffer.memory(), forebay_engine::Direction::Read);
    let transfer = Transfer { file, offset: 0, memory, len: LEN, direction, allow_short: false };
    // SAFETY: stream and memory live until the ticket is waited for.
    let ticket = unsafe { session.submit_on(handle, vec![transfer]) }.unwrap();
    drop(session);
    match ticket.wait().into_result() {
        Ok(_) => assert!(buffer.to_vec().unwrap() == old()[..LEN]),
        Err(error) => assert_eq!(error.kind(), ErrorKind::Cancelled, "{error:?}"),
    }
    turn.fake.destroy_stream(handle).unwrap();
    assert!(soon(|| turn.fake.registered_bytes() == 0));
}

const KILLED: &str = "FOREBAY_TEST_KILLED";

/// The child's part: pins the file and tells so, and waits to be killed.
fn pin_and_wait(path: &str) {
    let _turn = turn();
    let session = open(config());
    let file = File::open(path).unwrap();
    settle();
    pin(&session, &file, LEN);
    let map = session.map(&file, &gpu(&session)).unwrap();
    println!("pinned {}", map.pinned_bytes());
    std::thread::sleep(Duration::from_mins(1));
}

#[test]
fn a_killed_process_leaves_its_file_usable() {
    if let Ok(path) = std::env::var(KILLED) {
        return pin_and_wait(&path);
    }
    let _turn = turn();
    for directory in directories() {
        // The child would not pin what is open for writing here.
        let (scratch, _) = subject(&directory, OLD, LEN);
        let file = File::open(scratch.path()).unwrap();
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", &test_name(), "--nocapture"])
            .env(KILLED, scratch.path())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        assert!(lines.any(|line| line.unwrap().contains("pinned ")), "the child ended early");
        let session = open(config());
        assert!(pin(&session, &file, LEN) == old()[..LEN], "two processes pin the same pages");
        child.kill().unwrap();
        child.wait().unwrap();
        check_state(&session, &file, &old()[..LEN], "killed");
        write_direct(scratch.path(), PART.start as u64, &new()[PART]);
        check_state(&session, &file, &mixed(PART), "killed, then written");
        drop((session, file));
        std::fs::remove_file(scratch.path()).unwrap();
    }
}

#[test]
fn a_forked_child_neither_hangs_nor_spoils_its_parents_pins() {
    in_process(&[], &[], || {
        let turn = turn();
        let session = open(config());
        let (_scratch, file) = subject(&disk(), OLD, LEN);
        pin(&session, &file, LEN);
        let map = session.map(&file, &gpu(&session)).unwrap();
        let mut buffer = session.buffer(0, LEN).unwrap();
        let mut small = session.buffer(0, 1000).unwrap();
        // SAFETY: the child calls what is under test and ends by `_exit`.
        let child = unsafe { libc::fork() };
        if child == 0 {
            // SAFETY: no pointers are passed; a child that hangs is ended by the alarm.
            unsafe { libc::alarm(15) };
            let outcome = [
                session.read(&file, 0, &mut small).is_err(),
                session.read(&file, 0, &mut buffer).is_err(),
                session.map(&file, &gpu(&session)).is_err(),
                // Its own session: there is no GPU in it, but an answer.
                { Session::with_config(config()).is_ok_and(|own| own.host_buffer(1).is_ok()) },
            ];
            drop((map, session, file));
            let failed = outcome.iter().position(|good| !good).map_or(0, |at| at as i32 + 1);
            // SAFETY: ends the child at once, without what the parent's exit would do.
            unsafe { libc::_exit(failed) };
        }
        let mut status = 0;
        // SAFETY: a valid place for the status of our own child.
        unsafe { libc::waitpid(child, &raw mut status, 0) };
        assert!(libc::WIFEXITED(status), "the child was ended by signal {}", libc::WTERMSIG(status));
        assert_eq!(libc::WEXITSTATUS(status), 0, "this step of the child did not answer as it should");
        // The parent's pins are as they were.
        map.check().unwrap();
        assert!(turn.fake.read(map.address(), LEN).unwrap() == old()[..LEN]);
        assert!(pin(&session, &file, LEN) == old()[..LEN]);
    });
}

// ---- files that are not as usual ----------------------------------------------------------------------------------

#[test]
fn half_a_tebibyte_of_nothing_costs_nothing() {
    const HUGE: u64 = 512 << 30;
    in_process(&[], &[], || {
        let turn = turn();
        let scratch = Scratch::with_pattern(&disk(), OLD, 0);
        if let Err(error) = raw(scratch.path()).set_len(HUGE) {
            println!("skipped: no file of 512 GiB here: {error}");
            return;
        }
        settle();
        let file = File::open(scratch.path()).unwrap();
        let session = open(Config { pin_budget: Some(192 << 20), ..config() });
        let mut buffer = session.buffer(0, 32 * MIB).unwrap();
        session.read(&file, 0, &mut buffer).unwrap();
        let before = status("VmRSS");
        let started = Instant::now();
        for offset in [0, HUGE / 2 - 5 * MIB as u64, HUGE - 32 * MIB as u64] {
            let receipt = session.read(&file, offset, &mut buffer).unwrap();
            check_staged(&receipt, "not in the page cache");
        }
        assert!(buffer.to_vec().unwrap().iter().all(|byte| *byte == 0));
        let error = session.map(&file, &gpu(&session)).unwrap_err();
        assert!(error.kind() == ErrorKind::Unsupported && error.message().contains("budget"), "{error:?}");
        assert!(has_hint(&error, ""), "{error:?}");
        println!("{:?}, {} more bytes resident", started.elapsed(), status("VmRSS").saturating_sub(before));
        assert!(started.elapsed() < Duration::from_secs(5), "{:?}", started.elapsed());
        // What the refused map has begun to pin goes again.
        let tidy = || pins(&session).process_bytes == 0 && turn.fake.registered_bytes() == 0;
        assert!(soon(tidy), "a map that was refused keeps {} bytes pinned", pins(&session).process_bytes);
        let more = status("VmRSS").saturating_sub(before);
        assert!(more < 64 << 20, "{more} more bytes resident");
    });
}

/// Becomes root of a user and mount namespace of its own.
const NAMESPACE: [&str; 4] = ["unshare", "--user", "--map-root-user", "--mount"];

#[test]
fn a_file_on_an_overlay_is_served_by_the_lanes() {
    in_process(&NAMESPACE, &[], || {
        let turn = turn();
        let directory = tempfile::tempdir_in(disk()).unwrap();
        let at = |name: &str| directory.path().join(name);
        for name in ["lower", "upper", "work", "top"] {
            std::fs::create_dir(at(name)).unwrap();
        }
        std::fs::write(at("lower").join("file"), &old()[..LEN]).unwrap();
        let options = format!(
            "lowerdir={},upperdir={},workdir={}",
            at("lower").display(),
            at("upper").display(),
            at("work").display()
        );
        let output = Command::new("mount")
            .args(["-t", "overlay", "overlay", "-o", &options])
            .arg(at("top"))
            .output()
            .unwrap();
        if !output.status.success() {
            println!("skipped: no overlay here: {}", String::from_utf8_lossy(&output.stderr));
            return;
        }
        settle();
        let file = File::open(at("top").join("file")).unwrap();
        let session = open(config());
        read_staged(&session, &file, "overlay");
        read_staged(&session, &file, "overlay");
        let error = session.map(&file, &gpu(&session)).unwrap_err();
        assert!(error.kind() == ErrorKind::Unsupported && has_hint(&error, "tmpfs"), "{error:?}");
        assert_eq!((turn.fake.calls(REGISTER) > 0, turn.fake.registered_bytes()), (true, 0));
    });
}

/// Network and FUSE file systems need a server: where one happens to be mounted, a file of it is tried.
#[test]
fn a_file_of_a_server_is_served_by_the_lanes() {
    let _turn = turn();
    let mounts = std::fs::read_to_string("/proc/mounts").unwrap();
    let far = mounts.lines().find_map(|line| {
        let mut words = line.split(' ').skip(1);
        let (point, kind) = (words.next()?, words.next()?);
        (kind.starts_with("nfs") || kind.starts_with("fuse.") || kind == "9p").then_some(point)
    });
    let Some(point) = far else {
        println!("skipped: no NFS, FUSE or 9p file system is mounted");
        return;
    };
    let path = Path::new(point).join("forebay-test-mapped");
    if let Err(error) = std::fs::write(&path, &old()[..LEN]) {
        println!("skipped: {point} takes no file: {error}");
        return;
    }
    settle();
    read_staged(&open(config()), &File::open(&path).unwrap(), "not pinned");
    std::fs::remove_file(&path).unwrap();
}

#[test]
fn a_block_device_and_a_pipe_are_never_pinned() {
    let _turn = turn();
    let session = open(config());
    let Ok(zero) = File::open("/dev/zero") else {
        println!("skipped: /dev/zero is no source");
        return;
    };
    let error = session.map(&zero, &gpu(&session)).unwrap_err();
    assert!(error.kind() == ErrorKind::Unsupported, "{error:?}");
}

#[test]
fn a_cold_file_is_not_made_warm_by_looking() {
    let turn = turn();
    let session = open(config());
    let (scratch, file) = subject(&disk(), OLD, LEN);
    if file.alignment().is_none() {
        println!("skipped: no O_DIRECT here");
        return;
    }
    chill(&file);
    for _ in 0..3 {
        read_staged(&session, &file, "not in the page cache");
    }
    assert_eq!((file.residency(0, LEN as u64).unwrap().cached, turn.fake.registered_bytes()), (0, 0));
    // Half of it warm is not enough.
    let mut half = vec![0; LEN / 2];
    raw(scratch.path()).read_exact(&mut half).unwrap();
    settle();
    read_staged(&session, &file, "page cache");
}
