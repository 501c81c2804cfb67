//! Batches of few small pieces by the resident kernel: the submitting thread posts them and waits once. Every byte is compared.

use std::os::fd::RawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::ThreadId;
use std::time::{Duration, Instant};

use crate::common::{Random, Scratch, Stop, Turn, chill, in_process, pattern, soon, turn};
use crate::crowd::{self, BLOCKING, GLOBAL, LEN, NON_BLOCKING, plain, set_up, until_resident};
use crate::pages;
use forebay_config::{Config, Resident};
use forebay_engine::source::{Calls, Fault, Faulty, HostRange};
use forebay_engine::{Batch, Direction, File, Memory, Note, Outcome, Piece, Session, Ticket, Transfer, Way};
use forebay_error::{ErrorKind, Result};
use forebay_gpu::{Context, DeviceRange};

const KEY: u64 = 53;
const CALLERS: u64 = 4;
/// Pieces of a batch and their bytes at most, and bytes of a piece.
const FEW: usize = 16;
const FEW_BYTES: usize = 256 << 10;
const PIECE: usize = 64 << 10;
/// Bytes of memory that a caller's pieces lie in, with gaps between them.
const ROOM: usize = FEW_BYTES + FEW * GAP;
const GAP: usize = 64;
const BLANK: u8 = 0xA5;

fn with_calls(scratch: &Scratch, calls: impl Calls + 'static) -> File {
    File::options().write(true).calls(Box::new(calls)).open(scratch.path()).unwrap()
}

/// Pieces of these ranges of a file, side by side in memory.
fn pieces(memory: &Memory, ranges: &[(u64, usize)]) -> Vec<Piece> {
    let mut at = memory.address;
    let place = |&(offset, len): &(u64, usize)| {
        let piece = Piece { offset, address: at, len };
        at += (len + GAP) as u64;
        piece
    };
    ranges.iter().map(place).collect()
}

fn submit(session: &Session, file: &File, memory: &Memory, pieces: Vec<Piece>) -> Result<Ticket> {
    let (file, memory, direction) = (file.clone(), memory.clone(), Direction::Read);
    // SAFETY: the callers below keep the memory until the ticket is resolved, each its own.
    unsafe { session.submit_batch(Batch { file, memory, direction, pieces, allow_short: false }) }
}

/// A few small ranges.
fn some(random: &mut Random) -> Vec<(u64, usize)> {
    let count = 4 + random.below(FEW as u64 - 3);
    let most = (FEW_BYTES as u64 / count).min(PIECE as u64);
    (0..count).map(|_| (random.below((LEN - PIECE) as u64), 1 + random.below(most) as usize)).collect()
}

fn check(turn: &Turn, pieces: &[Piece], outcome: &Outcome) {
    for (piece, entry) in pieces.iter().zip(&outcome.entries) {
        assert_eq!(*entry.as_ref().unwrap(), piece.len as u64);
        let found = turn.fake.read(piece.address, piece.len + GAP).unwrap();
        assert!(found[..piece.len] == pattern(KEY, piece.offset, piece.len), "{piece:?}");
        assert!(found[piece.len..].iter().all(|byte| *byte == BLANK), "behind {piece:?}");
    }
}

/// Reads a batch; whether the kernel copied it.
fn read(
    turn: &Turn,
    session: &Session,
    file: &File,
    memory: &Memory,
    ranges: &[(u64, usize)],
) -> Result<bool> {
    assert!(turn.fake.write(memory.address, &vec![BLANK; ROOM]));
    let pieces = pieces(memory, ranges);
    let ticket = submit(session, file, memory, pieces.clone())?;
    let outcome = ticket.wait();
    outcome.result()?;
    check(turn, &pieces, &outcome);
    let (moved, bytes) = (outcome.receipt.moved, ranges.iter().map(|range| range.1 as u64).sum::<u64>());
    assert_eq!(moved.total(), bytes);
    assert!([0, bytes].contains(&moved.resident), "a part of it: {moved:?}");
    Ok(moved.resident > 0)
}

/// Callers that read batches until `is_enough`, or for this number of batches each. Returns batches by the kernel, and what went
/// wrong.
fn crowd(
    turn: &Turn,
    session: &Session,
    file: &File,
    rounds: u64,
    is_enough: impl Fn() -> bool + Sync,
) -> (u64, Vec<ErrorKind>) {
    crowd::crowd(session, (CALLERS, rounds, ROOM), is_enough, |memory, random| {
        read(turn, session, file, memory, &some(random))
    })
}

/// The same without errors.
fn good(turn: &Turn, session: &Session, file: &File, rounds: u64) -> u64 {
    let (resident, errors) = crowd(turn, session, file, rounds, || false);
    assert!(errors.is_empty(), "{errors:?}");
    resident
}

/// A session whose kernel is at work.
fn ready(turn: &Turn, file: &File, config: Config) -> Session {
    let session = Session::with_config(config).unwrap();
    assert!(soon(|| good(turn, &session, file, 5) > 0), "nobody's bytes went by the kernel");
    session
}

#[test]
fn pieces_need_no_driver_call_each() {
    let (turn, _scratch, file) = set_up(KEY);
    let session = ready(&turn, &file, plain());
    const ROUNDS: u64 = 100;
    // Lanes copy one piece by a copy, several by a kernel.
    let calls = || turn.fake.calls("async:kernel") + turn.fake.calls("cuMemcpyHtoDAsync_v2");
    until_resident(|| {
        let before = calls();
        let resident = good(&turn, &session, &file, ROUNDS);
        let (others, called) = (CALLERS * ROUNDS - resident, calls() - before);
        println!("{resident} of {} batches, {called} copies by the driver", CALLERS * ROUNDS);
        assert!(others > 0 || called == 0);
        resident > 0
    });
    assert_eq!(turn.fake.unpinned_copies(), 0);
}

/// Nothing is in flight when such a submission returns: there is nothing to give up.
#[test]
fn a_ticket_is_resolved_when_it_is_given_out() {
    let (turn, _scratch, file) = set_up(KEY);
    let session = ready(&turn, &file, plain());
    let buffer = session.buffer(0, ROOM).unwrap();
    let pieces = pieces(&buffer.memory(), &[(5, 4096); 8]);
    until_resident(|| {
        assert!(turn.fake.write(buffer.address(), &vec![BLANK; ROOM]));
        let ticket = submit(&session, &file, &buffer.memory(), pieces.clone()).unwrap();
        let (is_driven, is_done) = (ticket.is_driven(), ticket.is_done());
        ticket.cancel();
        let outcome = ticket.wait();
        if outcome.receipt.moved.resident == 0 {
            return false;
        }
        assert!(is_done && !is_driven);
        check(&turn, &pieces, &outcome);
        true
    });
}

/// Reads of other threads than this one wait until it is open.
#[derive(Debug)]
struct Gate {
    is_open: Arc<AtomicBool>,
    opener: ThreadId,
    calls: Faulty,
}

impl Calls for Gate {
    unsafe fn read(&self, fd: RawFd, memory: HostRange, offset: u64, nowait: bool) -> isize {
        while !self.is_open.load(Ordering::Relaxed) && std::thread::current().id() != self.opener {
            std::thread::sleep(Duration::from_millis(1));
        }
        // SAFETY: passed on.
        unsafe { self.calls.read(fd, memory, offset, nowait) }
    }

    unsafe fn write(&self, fd: RawFd, memory: HostRange, offset: u64) -> isize {
        // SAFETY: passed on.
        unsafe { self.calls.write(fd, memory, offset) }
    }
}

/// Threads whose pieces lanes have are no callers of the kernel's yet. Without them batches of up to four pieces never became many.
#[test]
fn pieces_that_lanes_have_count_as_copies() {
    let (turn, scratch, _file) = set_up(KEY);
    let is_open = Arc::new(AtomicBool::new(true));
    let calls = Faulty::new(Direction::Read, 0, Fault::Short(0), 0);
    let file =
        with_calls(&scratch, Gate { is_open: is_open.clone(), opener: std::thread::current().id(), calls });
    let session = Session::with_config(plain()).unwrap();
    let buffer = session.buffer(0, ROOM).unwrap();
    let all = pieces(&buffer.memory(), &[(5, 4096); 7]);
    until_resident(|| {
        assert!(turn.fake.write(buffer.address(), &vec![BLANK; ROOM]));
        is_open.store(false, Ordering::Relaxed);
        let submit_one = |piece: &Piece| submit(&session, &file, &buffer.memory(), vec![*piece]).unwrap();
        let tickets: Vec<_> = all.iter().map(submit_one).collect();
        is_open.store(true, Ordering::Relaxed);
        let outcomes: Vec<_> = tickets.into_iter().map(Ticket::wait).collect();
        for (piece, outcome) in all.iter().zip(&outcomes) {
            check(&turn, std::slice::from_ref(piece), outcome);
        }
        assert_eq!(outcomes[0].receipt.moved.resident, 0, "it was alone");
        outcomes[6].receipt.moved.resident > 0
    });
}

#[test]
fn it_can_be_switched_off() {
    let (turn, _scratch, file) = set_up(KEY);
    let session = Session::with_config(Config { resident: Resident::Off, ..plain() }).unwrap();
    assert_eq!((good(&turn, &session, &file, 30), turn.fake.calls("async:resident")), (0, 0));
}

/// Many, large or written pieces go the other ways.
#[test]
fn other_batches_are_for_lanes() {
    let (turn, scratch, file) = set_up(KEY);
    let session = ready(&turn, &file, plain());
    let buffer = session.buffer(0, 2 * ROOM).unwrap();
    let memory = buffer.memory();
    let others: [&[(u64, usize)]; 4] = [
        &[(7, 100); FEW + 1],
        &[(7, PIECE + 1), (0, 1), (0, 2)],
        &[(0, PIECE); 5],
        &[(0, 1), (9, 0), (2, 2)],
    ];
    for ranges in others {
        let wanted = pieces(&memory, ranges);
        assert!(turn.fake.write(memory.address, &vec![BLANK; 2 * ROOM]));
        let outcome = submit(&session, &file, &memory, wanted.clone()).unwrap().wait();
        check(&turn, &wanted, &outcome);
        assert_eq!(outcome.receipt.moved.resident, 0, "{ranges:?}");
    }
    let (ranges, len) = ([(0, 4096), (9000, 4096), (50_000, 4096)], 4096);
    let pieces = pieces(&memory, &ranges);
    for piece in &pieces {
        assert!(turn.fake.write(piece.address, &pattern(KEY, piece.offset, len)));
    }
    let (direction, file) = (Direction::Write, file.clone());
    // SAFETY: the memory lives until the ticket is resolved.
    let ticket =
        unsafe { session.submit_batch(Batch { file, memory, direction, pieces, allow_short: false }) };
    assert_eq!(ticket.unwrap().wait().result().unwrap().moved.resident, 0);
    assert!(std::fs::read(scratch.path()).unwrap() == pattern(KEY, 0, LEN));
}

/// A piece of which bytes are not in the page cache, or cannot be read: lanes read all, and each has its own result.
#[test]
fn a_piece_that_is_not_there_at_once_is_for_lanes() {
    let (turn, scratch, file) = set_up(KEY);
    let session = ready(&turn, &file, plain());
    let buffer = session.buffer(0, ROOM).unwrap();
    let memory = buffer.memory();
    let ranges = [(0, 4096), (8192, 4096), (1_000_000, 4096), (16384, 4096)];
    // Not this time: the page cache is asked once more, by a lane.
    for fault in [Fault::Errno(libc::EAGAIN), Fault::Short(100)] {
        let once = with_calls(&scratch, Faulty::new(Direction::Read, 1_000_000, fault, 1));
        assert!(!read(&turn, &session, &once, &memory, &ranges).unwrap());
    }
    let broken =
        with_calls(&scratch, Faulty::new(Direction::Read, 1_000_000, Fault::Errno(libc::EIO), u64::MAX));
    let outcome = submit(&session, &broken, &memory, pieces(&memory, &ranges)).unwrap().wait();
    let good: Vec<_> = outcome.entries.iter().map(Result::is_ok).collect();
    assert_eq!(good, [true, true, false, true]);
    chill(&file);
    let _ = read(&turn, &session, &file, &memory, &ranges).unwrap();
    // What lies beyond the end has the file's end in its result.
    let beyond = [(0, 10), (LEN as u64 - 3, 10), (LEN as u64 + 9, 10), (4, 10)];
    let outcome = submit(&session, &file, &memory, pieces(&memory, &beyond)).unwrap().wait();
    let kind = |entry: &Result<u64>| entry.as_ref().err().map(forebay_error::Error::kind);
    let kinds: Vec<_> = outcome.entries.iter().map(kind).collect();
    assert_eq!(kinds, [None, Some(ErrorKind::ShortRead), Some(ErrorKind::ShortRead), None]);
}

/// Pages that are pinned: no kernel for each batch where callers are many.
#[test]
fn pinned_pages_are_read_by_mailboxes_where_callers_are_many() {
    let turn = turn();
    let session = pages::open(pages::config());
    let (scratch, file) = pages::subject(&pages::memory(), KEY, 9 * pages::MIB);
    pages::pin(&session, &file, 9 * pages::MIB);
    let alone = session.buffer(0, ROOM).unwrap();
    let ranges = [(9, 4096), (70_000, 4096), (5_000_000, 4096), (1, 1)];
    until_resident(|| {
        let resident = AtomicU64::new(0);
        std::thread::scope(|scope| {
            for caller in 0..8 {
                let (turn, session, file, resident) = (&turn, &session, &file, &resident);
                scope.spawn(move || {
                    let (buffer, mut random) = (session.buffer(0, ROOM).unwrap(), Random(caller));
                    for _ in 0..100 {
                        let pieces = pieces(&buffer.memory(), &some(&mut random));
                        assert!(turn.fake.write(buffer.address(), &vec![BLANK; ROOM]));
                        let ticket = submit(session, file, &buffer.memory(), pieces.clone()).unwrap();
                        let outcome = ticket.wait();
                        check(turn, &pieces, &outcome);
                        let moved = outcome.receipt.moved;
                        assert!([0, moved.total()].contains(&moved.resident), "{moved:?}");
                        resident.fetch_add(moved.resident.min(moved[Way::Mapped]), Ordering::Relaxed);
                    }
                });
            }
        });
        resident.into_inner() > 0
    });
    // One caller starts one kernel, also when callers copy by themselves no more because the kernel was late.
    for _ in 0..40 {
        assert!(!read(&turn, &session, &file, &alone.memory(), &ranges).unwrap(), "one caller");
        std::thread::sleep(Duration::from_millis(10));
    }
    drop(scratch);
}

// ---- order --------------------------------------------------------------------------------------------------------

/// What stands on the default stream when a batch is submitted is done before its bytes come, and is not waited for.
#[test]
fn copies_come_after_the_default_stream() {
    let (turn, _scratch, file) = set_up(KEY);
    let session = ready(&turn, &file, plain()).behind_default_streams();
    let device = forebay_gpu::cuda::devices().unwrap()[0].clone();
    let resident = AtomicU64::new(0);
    let crowd = |delay: u64, rounds: u64| {
        turn.fake.set_default_stream_delay_us(delay);
        std::thread::scope(|scope| {
            for caller in 0..CALLERS {
                let (turn, session, file, device, resident) = (&turn, &session, &file, &device, &resident);
                scope.spawn(move || {
                    let buffer = session.buffer(0, ROOM).unwrap();
                    let legacy =
                        device.default_stream(Context::PRIMARY, forebay_gpu::DefaultStream::Legacy).unwrap();
                    for round in 0..rounds {
                        let ranges = [(caller * 5000 + round * 77, 4096); 6];
                        let pieces = pieces(&buffer.memory(), &ranges);
                        assert!(turn.fake.write(buffer.address(), &vec![BLANK; ROOM]));
                        if delay > 0 {
                            // Late: it would erase the bytes read before it.
                            for piece in &pieces {
                                // SAFETY: the buffer lives until the batch is done, which comes later.
                                unsafe { legacy.zero(DeviceRange::new(piece.address, piece.len)) }.unwrap();
                            }
                        }
                        let ticket = submit(session, file, &buffer.memory(), pieces.clone()).unwrap();
                        let outcome = ticket.wait();
                        check(turn, &pieces, &outcome);
                        resident.fetch_add(outcome.receipt.moved.resident, Ordering::Relaxed);
                    }
                });
            }
        });
    };
    crowd(300, 40);
    // Where nothing stands there all of it may go by the kernel.
    until_resident(|| {
        crowd(0, 20);
        resident.load(Ordering::Relaxed) > 0
    });
    turn.fake.set_default_stream_delay_us(400_000);
    let buffer = session.buffer(0, ROOM).unwrap();
    let pieces = pieces(&buffer.memory(), &[(5, 4096); 8]);
    assert!(turn.fake.write(buffer.address(), &vec![BLANK; ROOM]));
    let legacy = device.default_stream(Context::PRIMARY, forebay_gpu::DefaultStream::Legacy).unwrap();
    // SAFETY: as above.
    unsafe { legacy.zero(DeviceRange::new(buffer.address(), 4096)) }.unwrap();
    let begun = Instant::now();
    let ticket = submit(&session, &file, &buffer.memory(), pieces.clone()).unwrap();
    let took = begun.elapsed();
    assert!(took < Duration::from_millis(200) && !ticket.is_done(), "waited {took:?}");
    check(&turn, &pieces, &ticket.wait());
}

/// Captures go on. Each receipt names a capture that forbids to query the default streams, also receipts of calls that
/// did not query.
#[test]
fn a_capture_elsewhere_goes_on() {
    let (turn, _scratch, file) = set_up(KEY);
    let session = ready(&turn, &file, plain()).behind_default_streams();
    turn.fake.set_current_context(turn.fake.retain_primary(0).unwrap()).unwrap();
    let buffers: Vec<_> = (0..CALLERS).map(|_| session.buffer(0, ROOM).unwrap()).collect();
    for (flags, is_told) in [(NON_BLOCKING, false), (BLOCKING, true)] {
        let stream = turn.fake.create_stream(flags).unwrap();
        turn.fake.begin_capture(stream, GLOBAL).unwrap();
        until_resident(|| {
            let resident = AtomicU64::new(0);
            std::thread::scope(|scope| {
                for buffer in &buffers {
                    scope.spawn(|| {
                        for _ in 0..50 {
                            let pieces = pieces(&buffer.memory(), &[(9, 4096); 6]);
                            let outcome = submit(&session, &file, &buffer.memory(), pieces).unwrap().wait();
                            let receipt = outcome.result().unwrap();
                            let says = |note: &Note| note.text.contains("not ordered");
                            assert_eq!(receipt.election.notes.iter().any(says), is_told, "{receipt}");
                            resident.fetch_add(receipt.moved.resident, Ordering::Relaxed);
                        }
                    });
                }
            });
            resident.into_inner() > 0
        });
        turn.fake.end_capture(stream).expect("the capture survives");
        turn.fake.destroy_stream(stream).unwrap();
    }
}

/// Operations of streams, and synchronous callers, beside batches: all get their bytes.
#[test]
fn stream_ordered_work_and_callers_go_beside_it() {
    let (turn, _scratch, file) = set_up(KEY);
    let session = ready(&turn, &file, plain());
    turn.fake.set_current_context(turn.fake.retain_primary(0).unwrap()).unwrap();
    let streams: Vec<_> = (0..2).map(|_| turn.fake.create_stream(NON_BLOCKING).unwrap()).collect();
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let _over = Stop(&is_over);
        for number in 0..6 {
            let (session, turn, file, is_over, streams) = (&session, &turn, &file, &is_over, &streams);
            scope.spawn(move || {
                let buffer = session.buffer(0, 50_000).unwrap();
                let mut random = Random(number as u64 + 100);
                while !is_over.load(Ordering::Relaxed) {
                    let len = 1 + random.below(50_000) as usize;
                    let offset = random.below((LEN - len) as u64);
                    let (file, memory, direction) = (file.clone(), buffer.memory(), Direction::Read);
                    let read = Transfer { file, offset, memory, len, direction, allow_short: false };
                    // SAFETY: the stream lives, and so does the memory, until the bytes are there.
                    unsafe {
                        match streams.get(number) {
                            None => drop(session.run(&read).unwrap()),
                            Some(stream) => {
                                let ticket = session.submit_on(*stream, vec![read]).unwrap();
                                ticket.wait().into_result().unwrap();
                            }
                        }
                    }
                    assert!(turn.fake.read(buffer.address(), len).unwrap() == pattern(KEY, offset, len));
                }
            });
        }
        until_resident(|| good(&turn, &session, &file, 60) > 0);
    });
    for stream in streams {
        turn.fake.destroy_stream(stream).unwrap();
    }
}

// ---- faults -------------------------------------------------------------------------------------------------------

/// The GPU is full of the user's blocks: lanes read the posted requests, and the mailboxes are used again.
#[test]
fn a_kernel_that_never_starts_holds_nobody_up() {
    let (turn, _scratch, file) = set_up(KEY);
    let session = ready(&turn, &file, plain());
    std::thread::sleep(Duration::from_millis(20));
    turn.fake.hang_next("async:resident", 1500);
    let (started, left) = (Instant::now(), AtomicU64::new(0));
    let mark = || {
        left.fetch_max(started.elapsed().as_millis() as u64, Ordering::Relaxed);
        false
    };
    // Freeing memory waits for the kernel: what counts is the time up to the last batch.
    let (_, errors) = crowd(&turn, &session, &file, 20, mark);
    assert!(errors.is_empty(), "{errors:?}");
    let took = left.into_inner();
    assert!(took < 1200, "{took} ms");
    until_resident(|| good(&turn, &session, &file, 20) > 0);
}

/// The GPU breaks with requests posted: all end, with the reason.
#[test]
fn a_kernel_that_breaks_fails_batches_and_hangs_none() {
    let (turn, _scratch, file) = set_up(KEY);
    for after in 0..3 {
        let session = ready(&turn, &file, plain());
        turn.fake.fail_next("async:resident", 700, after, 1);
        let broke = Instant::now();
        let is_late = || broke.elapsed() > Duration::from_millis(300);
        let (_, errors) = crowd(&turn, &session, &file, u64::MAX, is_late);
        assert!(!errors.is_empty(), "no caller got an error");
        assert!(errors.iter().all(|kind| *kind == ErrorKind::DeviceLost), "{errors:?}");
        turn.fake.reset();
    }
}

/// A context is destroyed with requests posted: all end with the reason, and another context's go on.
#[test]
fn a_context_that_is_destroyed_hangs_nobody() {
    let (turn, _scratch, file) = set_up(KEY);
    let session = ready(&turn, &file, plain());
    let theirs = turn.fake.create_context(0).unwrap();
    let place = turn.fake.allocate(CALLERS as usize * ROOM).unwrap();
    turn.fake.set_current_context(0).unwrap();
    let memory = session.locate(place).unwrap();
    assert_ne!(memory.context, Context::PRIMARY);
    let (resident, is_gone) = (AtomicU64::new(0), AtomicBool::new(false));
    std::thread::scope(|scope| {
        for caller in 0..CALLERS {
            let mut memory = memory.clone();
            memory.address += caller * ROOM as u64;
            let (turn, session, file, resident, is_gone) = (&turn, &session, &file, &resident, &is_gone);
            scope.spawn(move || {
                let mut random = Random(caller + 1);
                while turn.fake.write(memory.address, &vec![BLANK; ROOM]) {
                    let pieces = pieces(&memory, &some(&mut random));
                    let outcome = submit(session, file, &memory, pieces).map(Ticket::wait);
                    match outcome.and_then(|outcome| outcome.result().map(|receipt| receipt.moved)) {
                        Ok(moved) => drop(resident.fetch_add(moved.resident, Ordering::SeqCst)),
                        Err(error) => {
                            assert!(is_gone.load(Ordering::SeqCst), "{error}");
                            return;
                        }
                    }
                }
                assert!(is_gone.load(Ordering::SeqCst));
            });
        }
        assert!(soon(|| resident.load(Ordering::SeqCst) > 0), "nobody's bytes went by the kernel");
        is_gone.store(true, Ordering::SeqCst);
        turn.fake.destroy_context(theirs).unwrap();
    });
    good(&turn, &session, &file, 20);
}

/// A child forked with requests posted has none of them, and the parent's go on.
#[test]
fn a_fork_with_requests_posted() {
    in_process(&[], &[], || {
        let (turn, _scratch, file) = set_up(KEY);
        let session = ready(&turn, &file, plain());
        let is_over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let _over = Stop(&is_over);
            let forks = scope.spawn(|| {
                let buffer = session.buffer(0, ROOM).unwrap();
                for _ in 0..20 {
                    // SAFETY: the child runs what is under test, and ends at once; the alarm ends one that hangs.
                    let child = unsafe { libc::fork() };
                    if child == 0 {
                        // SAFETY: no pointers are passed.
                        unsafe { libc::alarm(20) };
                        let memory = buffer.memory();
                        let refused = submit(&session, &file, &memory, pieces(&memory, &[(0, 9); 6]));
                        let is_refused = refused.is_err_and(|error| error.kind() == ErrorKind::Unsupported);
                        // SAFETY: as above.
                        unsafe { libc::_exit(i32::from(!is_refused)) };
                    }
                    let mut status = -1;
                    // SAFETY: a valid place for the status of our own child.
                    unsafe { libc::waitpid(child, &raw mut status, 0) };
                    assert_eq!(status, 0);
                }
            });
            until_resident(|| good(&turn, &session, &file, 100) > 0);
            forks.join().unwrap();
        });
    });
}

#[test]
fn a_process_may_exit_with_requests_posted() {
    in_process(&[], &[], || {
        let (turn, scratch, file) = set_up(KEY);
        let session = ready(&turn, &file, plain());
        for _ in 0..CALLERS {
            let (session, file) = (session.clone(), file.clone());
            std::thread::spawn(move || {
                let buffer = session.buffer(0, ROOM).unwrap();
                loop {
                    let pieces = pieces(&buffer.memory(), &[(0, 4096); 8]);
                    let _ = submit(&session, &file, &buffer.memory(), pieces).map(Ticket::wait);
                }
            });
        }
        std::thread::sleep(Duration::from_millis(50));
        drop(scratch);
        std::process::exit(0);
    });
}
