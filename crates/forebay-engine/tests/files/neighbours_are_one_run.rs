//! Batches whose pieces are neighbours in the file: few calls for many addresses, and every promise kept for each piece.

use std::os::fd::RawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::common::{Random, Scratch, Target, chill, disk, pattern, session, turn};
use forebay_config::{CachePolicy, Config, IoBackend};
use forebay_engine::source::{Calls, Fault, Faulty, HostRange, Kernel};
use forebay_engine::{Batch, Buffer, Direction, File, Piece, Session};
use forebay_error::{ErrorKind, Result};

const KEY: u64 = 61;
const BACKENDS: [IoBackend; 2] = [IoBackend::Auto, IoBackend::Threads];
const POLICIES: [CachePolicy; 3] = [CachePolicy::Auto, CachePolicy::Keep, CachePolicy::Bypass];

/// Counts calls and their bytes, by whichever way they are made.
#[derive(Clone, Debug, Default)]
struct Counted(Arc<[AtomicU64; 2]>);

impl Counted {
    fn count(&self, bytes: isize) {
        if bytes > 0 {
            self.0[0].fetch_add(1, Relaxed);
            self.0[1].fetch_add(bytes as u64, Relaxed);
        }
    }

    /// Calls and bytes since it was asked last.
    fn take(&self) -> (u64, u64) {
        (self.0[0].swap(0, Relaxed), self.0[1].swap(0, Relaxed))
    }
}

impl Calls for Counted {
    unsafe fn read(&self, fd: RawFd, memory: HostRange, offset: u64, nowait: bool) -> isize {
        // SAFETY: passed on.
        let bytes = unsafe { Kernel.read(fd, memory, offset, nowait) };
        self.count(bytes);
        bytes
    }

    unsafe fn write(&self, fd: RawFd, memory: HostRange, offset: u64) -> isize {
        // SAFETY: passed on.
        let bytes = unsafe { Kernel.write(fd, memory, offset) };
        self.count(bytes);
        bytes
    }

    fn completed(&self, _: Direction, _: HostRange, _: u64, result: i32) -> i32 {
        self.count(result as isize);
        result
    }
}

/// Pieces one after the other from `start` on, with gaps now and then, and the bytes that they span. Their places in the
/// buffer are in another order.
fn neighbours(
    random: &mut Random,
    start: u64,
    count: usize,
    most: u64,
    gaps: bool,
) -> (Vec<Piece>, u64, usize) {
    let mut offset = start;
    let mut pieces: Vec<_> = (0..count)
        .map(|_| {
            if gaps && random.below(9) == 0 {
                offset += random.below(9000);
            }
            let len = random.below(most) as usize + usize::from(random.below(20) > 0);
            let piece = Piece { offset, address: 0, len };
            offset += len as u64;
            piece
        })
        .collect();
    let mut at = 0;
    for step in 0..count {
        let piece = &mut pieces[(step * 7 + 3) % count];
        piece.address = at;
        at += piece.len as u64 + random.below(40);
    }
    (pieces, offset, at as usize)
}

/// Moves pieces whose addresses count from the start of the buffer.
fn transfer(
    session: &Session,
    file: &File,
    buffer: &Buffer,
    direction: Direction,
    pieces: &[Piece],
) -> (Vec<Result<u64>>, forebay_engine::Moved) {
    let placed = |piece: &Piece| Piece { address: buffer.address() + piece.address, ..*piece };
    let pieces = pieces.iter().map(placed).collect();
    let batch = Batch { file: file.clone(), memory: buffer.memory(), direction, pieces, allow_short: false };
    // SAFETY: the buffer outlives the wait, and the pieces lie in it side by side.
    let outcome = unsafe { session.submit_batch(batch) }.unwrap().wait();
    (outcome.entries, outcome.receipt.moved)
}

fn each(test: impl Fn(&Session, Target, bool)) {
    let _turn = turn();
    for io in BACKENDS {
        for cache in POLICIES {
            let session = session(io, cache);
            for target in Target::ALL {
                for cold in [false, true] {
                    println!("{io} {cache} {target:?} cold: {cold}");
                    test(&session, target, cold);
                }
            }
        }
    }
}

#[test]
fn every_piece_gets_its_bytes_and_nothing_beside_it_changes() {
    for directory in [disk(), "/dev/shm".into()] {
        let scratch = Scratch::with_pattern(&directory, KEY, 4 << 20);
        let all = pattern(KEY, 0, 4 << 20);
        let file = File::open(scratch.path()).unwrap();
        each(|session, target, cold| {
            let mut random = Random(7);
            for (count, most, gaps) in
                [(300, 12_000, false), (90, 30_000, true), (40, 90_000, false), (3000, 50, true)]
            {
                let start = random.below(5000);
                let (pieces, end, room) = neighbours(&mut random, start, count, most, gaps);
                assert!(end < 4 << 20);
                if cold {
                    chill(&file);
                }
                let mut buffer = target.buffer(session, room);
                buffer.copy_from_slice(&vec![0xA5; room]).unwrap();
                let (entries, moved) = transfer(session, &file, &buffer, Direction::Read, &pieces);
                let bytes = buffer.to_vec().unwrap();
                let mut expected = vec![0xA5; room];
                for (piece, entry) in pieces.iter().zip(entries) {
                    assert_eq!(entry.unwrap(), piece.len as u64);
                    expected[piece.address as usize..][..piece.len]
                        .copy_from_slice(&all[piece.offset as usize..][..piece.len]);
                }
                assert!(bytes == expected);
                assert_eq!(moved.total(), pieces.iter().map(|piece| piece.len as u64).sum::<u64>());
            }
        });
    }
}

#[test]
fn written_neighbours_are_in_the_file_and_its_other_bytes_stay() {
    for directory in [disk(), "/dev/shm".into()] {
        each(|session, target, cold| {
            let scratch = Scratch::with_pattern(&directory, KEY, 5 << 20);
            let file = File::options().write(true).open(scratch.path()).unwrap();
            let mut expected = pattern(KEY, 0, 5 << 20);
            let mut random = Random(8);
            for (count, most, gaps) in [(300, 12_000, false), (90, 30_000, true), (3000, 50, false)] {
                let start = random.below(5000);
                let (pieces, _, room) = neighbours(&mut random, start, count, most, gaps);
                let mut buffer = target.buffer(session, room);
                let bytes = pattern(count as u64, 0, room);
                buffer.copy_from_slice(&bytes).unwrap();
                if cold {
                    chill(&file);
                }
                let (entries, moved) = transfer(session, &file, &buffer, Direction::Write, &pieces);
                for (piece, entry) in pieces.iter().zip(entries) {
                    assert_eq!(entry.unwrap(), piece.len as u64);
                    expected[piece.offset as usize..][..piece.len]
                        .copy_from_slice(&bytes[piece.address as usize..][..piece.len]);
                }
                assert!(std::fs::read(scratch.path()).unwrap() == expected);
                assert_eq!(moved.total(), pieces.iter().map(|piece| piece.len as u64).sum::<u64>());
            }
        });
    }
}

#[test]
fn the_end_of_the_file_cuts_the_pieces_behind_it_only() {
    let scratch = Scratch::with_pattern(&disk(), KEY, 1_000_001);
    let all = pattern(KEY, 0, 1_000_001);
    let file = File::open(scratch.path()).unwrap();
    each(|session, target, cold| {
        if cold {
            chill(&file);
        }
        let (pieces, end, room) = neighbours(&mut Random(9), 100, 120, 20_000, false);
        assert!(end > 1_000_001);
        let buffer = target.buffer(session, room);
        let (entries, _) = transfer(session, &file, &buffer, Direction::Read, &pieces);
        let bytes = buffer.to_vec().unwrap();
        for (piece, entry) in pieces.iter().zip(entries) {
            let there = all.len().saturating_sub(piece.offset as usize).min(piece.len);
            match entry {
                Ok(len) => assert_eq!((len as usize, there), (piece.len, piece.len)),
                Err(error) => {
                    assert_eq!(error.kind(), ErrorKind::ShortRead);
                    assert!(there < piece.len);
                }
            }
            if there > 0 {
                assert!(bytes[piece.address as usize..][..there] == all[piece.offset as usize..][..there]);
            }
        }
    });
}

#[test]
fn one_bad_place_fails_the_pieces_that_have_it() {
    for direction in [Direction::Read, Direction::Write] {
        each(|session, target, cold| {
            let scratch = Scratch::with_pattern(&disk(), KEY, 2 << 20);
            let bad = 700_123;
            let faulty = Faulty::new(direction, bad, Fault::Errno(libc::EIO), u64::MAX);
            let file = File::options().write(true).calls(Box::new(faulty)).open(scratch.path()).unwrap();
            if cold {
                chill(&file);
            }
            let (pieces, _, room) = neighbours(&mut Random(10), 77, 100, 20_000, false);
            let mut buffer = target.buffer(session, room);
            let bytes = pattern(KEY, 0, room);
            buffer.copy_from_slice(&bytes).unwrap();
            let (entries, moved) = transfer(session, &file, &buffer, direction, &pieces);
            let after = buffer.to_vec().unwrap();
            let on_disk = std::fs::read(scratch.path()).unwrap();
            let mut good = 0;
            for (piece, entry) in pieces.iter().zip(entries) {
                let has_it = (piece.offset..piece.offset + piece.len as u64).contains(&bad);
                assert_eq!(entry.is_err(), has_it, "{piece:?}: {entry:?}");
                if !has_it {
                    good += piece.len as u64;
                    let (in_file, in_memory) =
                        (&on_disk[piece.offset as usize..], &after[piece.address as usize..]);
                    assert!(in_file[..piece.len] == in_memory[..piece.len]);
                }
            }
            assert!((good..good + 20_000).contains(&moved.total()), "{moved:?} and {good}");
        });
    }
}

/// Calls, and bytes of them, that moving 1000 neighbours takes.
fn cost(target: Target, direction: Direction, cold: bool) -> (u64, u64, u64) {
    let len = 90 << 20;
    let scratch = Scratch::with_pattern(&disk(), 0, 0);
    let counted = Counted::default();
    let file = File::options().write(true).calls(Box::new(counted.clone())).open(scratch.path()).unwrap();
    file.set_len(len).unwrap();
    let session = Session::with_config(Config { lanes: 2, ..Config::default() }).unwrap();
    let mut random = Random(11);
    let (pieces, end, room) = neighbours(&mut random, 1234, 1000, 160_000, false);
    let buffer = target.buffer(&session, room);
    transfer(&session, &file, &buffer, Direction::Write, &pieces);
    file.sync().unwrap();
    if cold {
        chill(&file);
    } else {
        std::fs::read(scratch.path()).unwrap();
    }
    counted.take();
    let (entries, _) = transfer(&session, &file, &buffer, direction, &pieces);
    assert!(entries.iter().all(std::result::Result::is_ok));
    let (calls, bytes) = counted.take();
    (calls, bytes, end - 1234)
}

#[test]
fn neighbours_cost_a_call_for_each_slot() {
    let _turn = turn();
    for target in Target::ALL {
        for direction in [Direction::Read, Direction::Write] {
            let (calls, bytes, wanted) = cost(target, direction, true);
            println!("{target:?} {direction:?}: {calls} calls, {bytes} bytes for {wanted}");
            assert!(calls <= wanted / (1 << 20), "{calls} calls");
            assert!(bytes <= wanted + 2 * 4096);
        }
    }
    let (calls, ..) = cost(Target::Device, Direction::Read, false);
    assert!(calls <= 200, "{calls} calls for warm bytes");
}
