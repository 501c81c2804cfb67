//! Cancelled tickets: they resolve soon, say so, and no byte lands afterwards.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::common::{Random, Scratch, Target, chill, disk, pattern, session, turn};
use crate::pages::{MIB, blank, memory, only, open};
use forebay_config::{CachePolicy, IoBackend};
use forebay_engine::source::MemorySource;
use forebay_engine::{Buffer, File, Outcome, ReadPiece, Way};
use forebay_error::ErrorKind;

const KEY: u64 = 31;
const BLANK: u8 = 0xA5;
const BACKENDS: [IoBackend; 2] = [IoBackend::Auto, IoBackend::Threads];

/// A source of pattern bytes that answers one request after the other, each after `delay`.
fn slow(len: usize, delay: Duration) -> (Arc<MemorySource>, File) {
    let source = Arc::new(MemorySource::new(pattern(KEY, 0, len), delay));
    let file = File::from_source(source.clone()).unwrap();
    (source, file)
}

/// Checks that an entry was cancelled, and that the buffer has old or new bytes that stay as they are.
#[track_caller]
fn check_still(outcome: &Outcome<Buffer>, offset: u64) -> bool {
    let cancelled = outcome.entries.iter().any(|entry| match entry {
        Ok(_) => false,
        Err(error) => {
            assert_eq!(error.kind(), ErrorKind::Cancelled, "{error:?}");
            true
        }
    });
    let before = outcome.buffer.to_vec().unwrap();
    let expected = pattern(KEY, offset, before.len());
    let is_old_or_new = before.iter().zip(&expected).all(|(got, new)| [BLANK, *new].contains(got));
    assert!(is_old_or_new, "bytes that are neither the file's nor the buffer's own");
    assert!(cancelled || before == expected, "not cancelled, and not all there");
    std::thread::sleep(Duration::from_millis(60));
    assert!(outcome.buffer.to_vec().unwrap() == before, "bytes landed after the ticket was resolved");
    cancelled
}

fn marked(mut buffer: Buffer) -> Buffer {
    let len = buffer.len();
    buffer.copy_from_slice(&vec![BLANK; len]).unwrap();
    buffer
}

#[test]
fn a_long_read_ends_soon() {
    let _turn = turn();
    let (len, delay) = (20 << 20, Duration::from_millis(10));
    for target in Target::ALL {
        let (_source, file) = slow(len, delay);
        let session = session(IoBackend::Auto, CachePolicy::Auto);
        let ticket = session.submit_read(&file, 0, marked(target.buffer(&session, len))).unwrap();
        assert!(!ticket.wait_timeout(delay * 5));
        let asked = Instant::now();
        ticket.cancel();
        ticket.cancel();
        let outcome = ticket.wait();
        // Two lanes of three slots of one request each; without the end it would take 80 of them.
        assert!(asked.elapsed() < delay * 30, "{:?}", asked.elapsed());
        assert!(check_still(&outcome, 0));
        // The lanes go on with other work.
        let (_source, file) = slow(700_000, Duration::ZERO);
        let mut buffer = target.buffer(&session, 700_000);
        session.read(&file, 0, &mut buffer).unwrap();
        assert!(buffer.to_vec().unwrap() == pattern(KEY, 0, 700_000));
    }
}

#[test]
fn what_waits_behind_others_is_given_up_at_once() {
    let _turn = turn();
    let delay = Duration::from_millis(40);
    for target in Target::ALL {
        let (_source, file) = slow(4 << 20, delay);
        let session = session(IoBackend::Auto, CachePolicy::Auto);
        let len = 4 << 20;
        let [one, other] = [(); 2].map(|()| marked(target.buffer(&session, len)));
        let first = session.submit_read(&file, 0, one).unwrap();
        std::thread::sleep(delay / 4);
        let second = session.submit_read(&file, 0, other).unwrap();
        second.cancel();
        let outcome = second.wait();
        assert!(!first.is_done(), "the other one is none of its business");
        assert!(check_still(&outcome, 0));
        let buffer = first.wait().into_result().unwrap().1;
        assert!(buffer.to_vec().unwrap() == pattern(KEY, 0, len));
    }
}

#[test]
fn reads_of_files_may_end_anywhere() {
    let _turn = turn();
    let len = 3 << 20;
    let scratch = Scratch::with_pattern(&disk(), KEY, len);
    let file = File::open(scratch.path()).unwrap();
    let mut random = Random(4);
    let mut cancelled = 0;
    for round in 0..24 {
        let session = session(BACKENDS[round % 2], CachePolicy::Auto);
        let target = Target::ALL[round / 2 % 2];
        if round % 3 != 0 {
            chill(&file);
        }
        let buffer = marked(target.buffer(&session, len));
        let ticket = session.submit_read(&file, 0, buffer).unwrap();
        std::thread::sleep(Duration::from_micros(random.below(2500)));
        ticket.cancel();
        assert!(ticket.wait_timeout(Duration::from_secs(5)), "not resolved");
        cancelled += usize::from(check_still(&ticket.wait(), 0));
    }
    assert!(cancelled > 0, "none was early enough");
}

#[test]
fn entries_of_a_batch_are_whole_or_cancelled() {
    let _turn = turn();
    let (_source, file) = slow(4 << 20, Duration::from_micros(100));
    let all = pattern(KEY, 0, 4 << 20);
    for target in Target::ALL {
        let session = session(IoBackend::Auto, CachePolicy::Auto);
        let pieces: Vec<_> = (0..3000)
            .map(|at| ReadPiece { offset: (at * 1111 % 4_000_000) as u64, range: at * 1000..(at + 1) * 1000 })
            .collect();
        let ticket = session.read_batch(&file, &pieces, marked(target.buffer(&session, 3_000_000))).unwrap();
        std::thread::sleep(Duration::from_millis(60));
        ticket.cancel();
        let Outcome { entries, buffer, .. } = ticket.wait();
        let bytes = buffer.to_vec().unwrap();
        let mut counts = [0; 2];
        for (piece, entry) in pieces.iter().zip(entries) {
            match entry {
                Ok(1000) => {
                    counts[0] += 1;
                    assert!(bytes[piece.range.clone()] == all[piece.offset as usize..][..1000]);
                }
                Ok(other) => panic!("{other} bytes"),
                Err(error) => {
                    counts[1] += 1;
                    assert_eq!(error.kind(), ErrorKind::Cancelled, "{error:?}");
                }
            }
        }
        assert!(counts[0] > 0 && counts[1] > 0, "{counts:?}");
        println!("{target:?}: {counts:?}");
    }
}

#[test]
fn a_cancelled_write_leaves_the_file_alone_afterwards() {
    let _turn = turn();
    let len = 8 << 20;
    for target in Target::ALL {
        let (source, file) = slow(len, Duration::from_millis(5));
        let session = session(IoBackend::Auto, CachePolicy::Auto);
        let ticket = session.submit_write(&file, 0, marked(target.buffer(&session, len))).unwrap();
        std::thread::sleep(Duration::from_millis(30));
        ticket.cancel();
        let error = ticket.wait().into_result().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Cancelled, "{error:?}");
        let before = source.snapshot();
        assert!(before != vec![BLANK; len], "all was written");
        std::thread::sleep(Duration::from_millis(60));
        assert!(source.snapshot() == before, "bytes landed after the ticket was resolved");
    }
}

#[test]
fn reads_in_place_end_soon() {
    let turn = turn();
    let len = 520 * MIB;
    let (scratch, file) = blank(&memory(), len);
    let session = open(only());
    // Windows are registered as it goes on.
    turn.fake.set_delay_us(30_000);
    let ticket = session.submit_read(&file, 0, session.buffer(0, len).unwrap()).unwrap();
    assert!(!ticket.wait_timeout(Duration::from_millis(50)));
    let asked = Instant::now();
    ticket.cancel();
    let outcome = ticket.wait();
    println!("{:?}, {:?}", asked.elapsed(), outcome.receipt.moved);
    let error = outcome.result().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Cancelled, "{error:?}");
    assert!(outcome.receipt.moved[Way::Mapped] < len as u64, "all was moved");
    // Its memory may go, and the next read is as any other.
    drop(outcome);
    turn.fake.set_delay_us(20);
    let mut buffer = session.buffer(0, 3 * MIB).unwrap();
    session.read(&file, 0, &mut buffer).unwrap();
    assert!(buffer.to_vec().unwrap().iter().all(|byte| *byte == 0));
    drop(scratch);
}

#[test]
fn what_is_done_stays_done() {
    let _turn = turn();
    let scratch = Scratch::with_pattern(&disk(), KEY, 3 << 20);
    let file = File::open(scratch.path()).unwrap();
    for target in Target::ALL {
        let session = session(IoBackend::Auto, CachePolicy::Auto);
        let ticket = session.submit_read(&file, 0, target.buffer(&session, 3 << 20)).unwrap();
        while !ticket.is_done() {
            std::thread::yield_now();
        }
        ticket.cancel();
        let buffer = ticket.wait().into_result().unwrap().1;
        assert!(buffer.to_vec().unwrap() == pattern(KEY, 0, 3 << 20));
    }
}
