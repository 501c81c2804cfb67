//! Small batches of pinned pages, which the caller's thread starts; the thread that looks at the ticket sees them end.

use std::future::Future;
use std::os::unix::fs::FileExt;
use std::pin::pin as pinned;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{Thread, current, park, scope, sleep};
use std::time::{Duration, Instant};

use crate::common::{Random, Scratch, in_process, pattern, soon, turn};
use crate::pages::{MIB, config, memory, open, pin, pins, raw, subject, why};
use forebay_config::{Config, Objective};
use forebay_engine::{
    Batch, Buffer, Direction, EngineKind, File, Outcome, Piece, ReadPiece, Session, Ticket, Way,
};
use forebay_error::ErrorKind;

const KEY: u64 = 71;
const OTHER: u64 = 72;
/// Longer than a window, and no whole pages.
const LEN: usize = 66 * MIB + 777;
const BORDER: usize = 64 * MIB;
const SHORT: usize = 9 * MIB + 5;
/// Batches in flight that need no other thread.
const SLOTS: usize = 64;
/// Long enough for a test to do something meanwhile.
const WHILE: u64 = 200;
const KERNEL: &str = "async:kernel";

struct Case {
    session: Session,
    file: File,
    scratch: Scratch,
    bytes: Vec<u8>,
}

impl Case {
    /// A file whose pages are pinned, and kernels that are loaded.
    fn new(len: usize, config: Config) -> Self {
        let session = open(config);
        let (scratch, file) = subject(&memory(), KEY, len);
        let case = Self { bytes: pin(&session, &file, len), session, file, scratch };
        let ticket = case.read(&[(0, 8), (4096, 8)]);
        assert!(!ticket.is_driven(), "kernels were loaded on the caller's thread");
        ticket.wait().into_result().unwrap();
        case
    }

    /// Reads these ranges, with gaps between them.
    fn read(&self, ranges: &[(usize, usize)]) -> Ticket<Buffer> {
        self.session.read_batch(&self.file, &places(ranges), self.room(ranges)).unwrap()
    }

    fn room(&self, ranges: &[(usize, usize)]) -> Buffer {
        let room = places(ranges).last().map_or(0, |piece| piece.range.end) + GAP;
        let mut buffer = self.session.buffer(0, room).unwrap();
        buffer.copy_from_slice(&vec![0xA5; room]).unwrap();
        buffer
    }

    /// As [`Case::read`], of a batch that needs no other thread.
    #[track_caller]
    fn start(&self, ranges: &[(usize, usize)]) -> Ticket<Buffer> {
        let ticket = self.read(ranges);
        assert!(ticket.is_driven(), "another thread has it");
        ticket
    }

    #[track_caller]
    fn check(&self, ranges: &[(usize, usize)], outcome: &Outcome<Buffer>) {
        check_state(&self.bytes, ranges, outcome);
        let bytes = ranges.iter().map(|range| inside(*range, self.bytes.len()).1 as u64).sum::<u64>();
        let receipt = &outcome.receipt;
        assert_eq!((receipt.engine(), receipt.moved[Way::Mapped]), (EngineKind::Mapped, bytes), "{receipt}");
        assert_eq!(receipt.moved.total(), bytes);
    }
}

const GAP: usize = 3;

fn places(ranges: &[(usize, usize)]) -> Vec<ReadPiece> {
    let mut at = 0;
    let place = |&(offset, len): &(usize, usize)| {
        let range = at..at + len;
        at += len + GAP;
        ReadPiece { offset: offset as u64, range }
    };
    ranges.iter().map(place).collect()
}

fn inside((offset, len): (usize, usize), end: usize) -> (usize, usize) {
    (offset.min(end), (offset + len).min(end) - offset.min(end))
}

/// Checks results and bytes, and that nothing else was touched.
#[track_caller]
fn check_state(state: &[u8], ranges: &[(usize, usize)], outcome: &Outcome<Buffer>) {
    let mut want = vec![0xA5; outcome.buffer.len()];
    for ((range, place), entry) in ranges.iter().zip(places(ranges)).zip(&outcome.entries) {
        let (offset, len) = inside(*range, state.len());
        if len < range.1 {
            assert_eq!(entry.as_ref().unwrap_err().kind(), ErrorKind::ShortRead, "{range:?}");
        } else {
            assert_eq!(*entry.as_ref().unwrap(), len as u64, "{range:?}");
        }
        want[place.range.start..][..len].copy_from_slice(&state[offset..offset + len]);
    }
    assert_eq!(outcome.entries.len(), ranges.len());
    assert!(outcome.buffer.to_vec().unwrap() == want, "wrong bytes");
}

fn some_ranges(seed: u64, count: usize, end: usize) -> Vec<(usize, usize)> {
    let mut random = Random(seed);
    let mut range = |_| {
        let len = random.below(9000) as usize;
        (random.below((end - len) as u64) as usize, len)
    };
    (0..count).map(&mut range).collect()
}

// ---- how it is looked at ------------------------------------------------------------------------------------------

fn by_wait(ticket: Ticket<Buffer>) -> Outcome<Buffer> {
    ticket.wait()
}

fn by_looks(ticket: Ticket<Buffer>) -> Outcome<Buffer> {
    while !ticket.is_done() {
        std::hint::spin_loop();
    }
    assert!(!ticket.is_driven());
    ticket.wait()
}

fn by_short_waits(ticket: Ticket<Buffer>) -> Outcome<Buffer> {
    while !ticket.wait_timeout(Duration::from_micros(30)) {}
    ticket.wait()
}

/// Polls only when it is woken.
fn by_waker(ticket: Ticket<Buffer>) -> Outcome<Buffer> {
    struct Count(Thread, AtomicUsize);
    impl Wake for Count {
        fn wake(self: Arc<Self>) {
            self.1.fetch_add(1, Ordering::SeqCst);
            self.0.unpark();
        }
    }
    let count = Arc::new(Count(current(), AtomicUsize::new(0)));
    let waker = Waker::from(count.clone());
    let mut ticket = pinned!(ticket);
    loop {
        let seen = count.1.load(Ordering::SeqCst);
        if let Poll::Ready(outcome) = ticket.as_mut().poll(&mut Context::from_waker(&waker)) {
            return outcome;
        }
        while count.1.load(Ordering::SeqCst) == seen {
            park();
        }
    }
}

type Look = fn(Ticket<Buffer>) -> Outcome<Buffer>;
const LOOKS: [Look; 4] = [by_wait, by_looks, by_short_waits, by_waker];

// ---- bytes --------------------------------------------------------------------------------------------------------

#[test]
fn pieces_are_right_wherever_they_lie_and_however_they_are_waited_for() {
    let turn = turn();
    let case = Case::new(LEN, config());
    let mut ranges = some_ranges(1, 200, LEN);
    // Empty ones, across windows, up to the end, and beyond it.
    ranges.extend([(0, 0), (LEN + 9, 0), (BORDER - 1, 2), (BORDER - 100, 64 << 10), (BORDER, 1)]);
    ranges.extend([(LEN - 7, 7), (LEN - 7, 8), (LEN, 5), (LEN + 4096, 5), (LEN - 1, 0), (1, 64 << 10)]);
    for look in LOOKS {
        let (copies, kernels) = (turn.fake.calls("async:copy"), turn.fake.calls(KERNEL));
        let outcome = look(case.start(&ranges));
        let (copies, kernels) = (turn.fake.calls("async:copy") - copies, turn.fake.calls(KERNEL) - kernels);
        // The copy fills the buffer.
        assert!(copies == 1 && kernels == 1, "{copies} copies, {kernels} kernels");
        case.check(&ranges, &outcome);
    }
    for ranges in [vec![(5, 3)], vec![(LEN - 2, 9)], vec![(0, 0), (9, 0)], some_ranges(2, 1024, BORDER)] {
        let ticket = case.read(&ranges);
        let outcome = ticket.wait();
        check_state(&case.bytes, &ranges, &outcome);
    }
}

#[test]
fn short_reads_that_are_allowed_are_no_errors() {
    let _turn = turn();
    let case = Case::new(SHORT, config());
    let buffer = case.session.buffer(0, 3000).unwrap();
    let at = |index: u64| buffer.address() + index * 1000;
    let pieces = vec![
        Piece { offset: 5, address: at(0), len: 1000 },
        Piece { offset: SHORT as u64 - 9, address: at(1), len: 1000 },
        Piece { offset: SHORT as u64 + 9, address: at(2), len: 1000 },
    ];
    let (file, memory, direction) = (case.file.clone(), buffer.memory(), Direction::Read);
    let batch = Batch { file, memory, direction, pieces, allow_short: true };
    // SAFETY: the buffer lives until the ticket is waited for.
    let ticket = unsafe { case.session.submit_batch(batch) }.unwrap();
    assert!(ticket.is_driven());
    let entries: Vec<_> = ticket.wait().entries.into_iter().map(Result::unwrap).collect();
    assert_eq!(entries, [1000, 9, 0]);
    let bytes = buffer.to_vec().unwrap();
    assert!(bytes[..1000] == case.bytes[5..1005] && bytes[1000..1009] == case.bytes[SHORT - 9..]);
}

#[test]
fn what_is_too_large_or_not_pinned_goes_through_the_copy_thread() {
    let _turn = turn();
    let case = Case::new(SHORT, config());
    let too_many: Vec<_> = (0..1025).map(|at| (at * 13, 9)).collect();
    let too_long = vec![(0, (64 << 10) + 1), (9, 9)];
    let too_much: Vec<_> = (0..65).map(|at| (at * 4096, 64 << 10)).collect();
    for ranges in [too_many, too_long, too_much] {
        let ticket = case.read(&ranges);
        assert!(!ticket.is_driven());
        case.check(&ranges, &ticket.wait());
    }
    case.session.trim();
    let ranges = some_ranges(3, 9, SHORT);
    let ticket = case.read(&ranges);
    assert!(!ticket.is_driven());
    check_state(&case.bytes, &ranges, &ticket.wait());
}

#[test]
fn every_objective_is_met() {
    let turn = turn();
    for objective in [Objective::Latency, Objective::Throughput, Objective::Cpu] {
        let case = Case::new(SHORT, Config { objective, ..config() });
        for look in LOOKS {
            let ranges = some_ranges(4, 99, SHORT);
            turn.fake.hang_next(KERNEL, 20);
            case.check(&ranges, &look(case.start(&ranges)));
        }
    }
}

// ---- changes ------------------------------------------------------------------------------------------------------

#[test]
fn a_file_that_changes_meanwhile_is_read_again() {
    let turn = turn();
    for look in LOOKS {
        let case = Case::new(SHORT, config());
        let ranges = some_ranges(5, 128, SHORT);
        turn.fake.hang_next(KERNEL, WHILE);
        let ticket = case.start(&ranges);
        let new = pattern(OTHER, 0, SHORT);
        raw(case.scratch.path()).write_all_at(&new, 0).unwrap();
        let outcome = look(ticket);
        check_state(&new, &ranges, &outcome);
        assert_eq!(outcome.receipt.moved[Way::Mapped], 0, "{}", outcome.receipt);
        assert!(why(&outcome.receipt).reason.contains("read again"), "{}", outcome.receipt);
        assert!(soon(|| pins(&case.session).bytes == 0), "pages of the old state are pinned still");
    }
}

#[test]
fn a_file_that_is_cut_short_meanwhile_ends_there() {
    let turn = turn();
    let case = Case::new(SHORT, config());
    let ranges = [(0, 4096), (4 * MIB - 100, 200), (8 * MIB, 4096)];
    turn.fake.hang_next(KERNEL, WHILE);
    let ticket = case.start(&ranges);
    raw(case.scratch.path()).set_len(4 * MIB as u64).unwrap();
    let outcome = ticket.wait();
    let kinds: Vec<_> =
        outcome.entries.iter().map(|entry| entry.as_ref().map_err(forebay_error::Error::kind)).collect();
    assert_eq!(kinds, [Ok(&4096), Err(ErrorKind::ShortRead), Err(ErrorKind::ShortRead)]);
    let bytes = outcome.buffer.to_vec().unwrap();
    assert!(bytes[..4096] == case.bytes[..4096]);
}

/// A writer changes all bytes while others read: a batch is of one state.
#[test]
fn batches_are_of_one_state_while_a_file_is_written() {
    let _turn = turn();
    let case = Case::new(SHORT, config());
    let ranges: Vec<_> = (0..64).map(|at| (at * 140_000, 64)).collect();
    let (in_place, over) = (AtomicUsize::new(0), AtomicUsize::new(0));
    scope(|scope| {
        scope.spawn(|| {
            let file = raw(case.scratch.path());
            // On a busy machine pages are pinned late: then there are more rounds, and longer ones.
            for round in 0..30u8 {
                if round >= 6 && in_place.load(Ordering::SeqCst) > 0 {
                    break;
                }
                sleep(Duration::from_millis(150) * (1 + u32::from(round) / 6));
                file.write_all_at(&vec![round; SHORT], 0).unwrap();
            }
            over.store(1, Ordering::SeqCst);
        });
        while over.load(Ordering::SeqCst) == 0 {
            let _ = case.session.read(&case.file, 0, &mut case.session.buffer(0, SHORT).unwrap());
            for look in LOOKS {
                let ticket = case.read(&ranges);
                let driven = ticket.is_driven();
                let outcome = look(ticket);
                let receipt = &outcome.receipt;
                if outcome.result().is_err() || receipt.moved[Way::Mapped] < receipt.moved.total() {
                    continue;
                }
                in_place.fetch_add(usize::from(driven), Ordering::SeqCst);
                let got = outcome.buffer.to_vec().unwrap();
                let is_new = |at: usize| got[at * 67..][..64].iter().all(|byte| *byte == got[0]);
                let is_old = |at: usize| got[at * 67..][..64] == case.bytes[ranges[at].0..][..64];
                assert!((0..64).all(is_new) || (0..64).all(is_old), "a mixture: {receipt}");
            }
        }
    });
    assert!(in_place.into_inner() > 0, "nothing was read in place");
}

// ---- many, and never ----------------------------------------------------------------------------------------------

#[test]
fn many_threads_submit_and_wait_in_any_order() {
    let _turn = turn();
    let case = Case::new(SHORT, config());
    let case = &case;
    scope(|scope| {
        for thread in 0..6u64 {
            scope.spawn(move || {
                let mut random = Random(thread);
                let mut open = Vec::new();
                for round in 0..60 {
                    let ranges = some_ranges(thread * 1000 + round, 40, SHORT);
                    open.push((case.read(&ranges), ranges));
                    while open.len() > 7 {
                        let (ticket, ranges) = open.swap_remove(random.below(8) as usize);
                        case.check(&ranges, &LOOKS[random.below(4) as usize](ticket));
                    }
                }
                // The rest is dropped, which waits.
            });
        }
    });
    assert!(soon(|| case.session.trim() > 0), "the pins are in use still");
    assert_eq!(pins(&case.session).bytes, 0);
}

#[test]
fn two_threads_wait_for_one_ticket() {
    let turn = turn();
    let case = Case::new(SHORT, config());
    for _ in 0..20 {
        let ranges = some_ranges(6, 40, SHORT);
        turn.fake.hang_next(KERNEL, 10);
        let ticket = case.start(&ranges);
        scope(|scope| {
            (0..3).for_each(|_| drop(scope.spawn(|| assert!(ticket.wait_timeout(Duration::from_secs(20))))));
            while !ticket.is_done() {}
        });
        case.check(&ranges, &ticket.wait());
    }
}

#[test]
fn a_wait_ends_in_time() {
    let turn = turn();
    let case = Case::new(SHORT, config());
    turn.fake.hang_next(KERNEL, 2000);
    let ticket = case.start(&[(0, 9), (9, 9)]);
    let begun = Instant::now();
    assert!(!ticket.wait_timeout(Duration::ZERO) && !ticket.is_done());
    assert!(!ticket.wait_timeout(Duration::from_millis(100)) && ticket.is_driven());
    assert!(begun.elapsed() >= Duration::from_millis(100));
    assert!(begun.elapsed() < Duration::from_millis(1500), "{:?}", begun.elapsed());
    assert!(ticket.wait_timeout(Duration::MAX));
}

#[test]
fn more_batches_than_slots_are_done_all_the_same() {
    let _turn = turn();
    let case = Case::new(SHORT, config());
    for _ in 0..2 {
        let ranges: Vec<_> = (0..SLOTS as u64 + 40).map(|seed| some_ranges(seed, 20, SHORT)).collect();
        let tickets: Vec<_> = ranges.iter().map(|ranges| case.read(ranges)).collect();
        let driven = tickets.iter().filter(|ticket| ticket.is_driven()).count();
        assert_eq!(driven, SLOTS);
        for (ticket, ranges) in tickets.into_iter().zip(&ranges).rev() {
            case.check(ranges, &ticket.wait());
        }
    }
}

/// A raw batch of `count` pages.
fn submit_raw(case: &Case, buffer: &Buffer, count: usize) -> Ticket {
    let piece = |at: usize| Piece {
        offset: (at * 4096) as u64,
        address: buffer.address() + (at * 4096) as u64,
        len: 4096,
    };
    let (file, memory, direction) = (case.file.clone(), buffer.memory(), Direction::Read);
    let pieces = (0..count).map(piece).collect();
    let batch = Batch { file, memory, direction, pieces, allow_short: false };
    // SAFETY: the callers keep the buffer until all of it has come.
    unsafe { case.session.submit_batch(batch) }.unwrap()
}

/// The same, which its waiter polls.
fn submit_polled(case: &Case, buffer: &Buffer, count: usize) -> Ticket {
    let ticket = submit_raw(case, buffer, count);
    assert!(ticket.is_driven());
    ticket
}

fn requests(session: &Session) -> u64 {
    session.stats().iter().map(|stats| stats.requests).sum()
}

#[test]
fn what_nobody_waits_for_is_done_all_the_same() {
    let turn = turn();
    let case = Case::new(SHORT, config());
    let before = requests(&case.session);
    let buffers: Vec<_> = (0..100).map(|_| case.session.buffer(0, 8 * 4096).unwrap()).collect();
    turn.fake.hang_next(KERNEL, WHILE);
    for buffer in &buffers {
        drop(submit_polled(&case, buffer, 8));
    }
    assert!(soon(|| requests(&case.session) == before + 100), "{}", requests(&case.session) - before);
    assert!(buffers.iter().all(|buffer| buffer.to_vec().unwrap() == case.bytes[..8 * 4096]));
    // Their pins are given back, too.
    assert!(soon(|| case.session.trim() > 0));
}

// ---- ends ---------------------------------------------------------------------------------------------------------

#[test]
fn pages_stay_pinned_under_a_flight() {
    let turn = turn();
    let case = Case::new(SHORT, config());
    let ranges = some_ranges(7, 40, SHORT);
    turn.fake.hang_next(KERNEL, WHILE);
    let ticket = case.start(&ranges);
    let held = turn.fake.registered_bytes();
    assert!(held >= SHORT as u64);
    assert_eq!(case.session.trim(), 0, "pages in use were released");
    assert_eq!(turn.fake.registered_bytes(), held);
    case.check(&ranges, &ticket.wait());
    assert!(case.session.trim() >= SHORT as u64);
    assert!(soon(|| turn.fake.registered_bytes() == 0));
}

#[test]
fn a_flight_outlives_its_session() {
    let turn = turn();
    for (round, look) in LOOKS.into_iter().enumerate() {
        let Case { session, file, scratch, bytes } = Case::new(SHORT, config());
        let case = Case { session: session.clone(), file, scratch, bytes };
        let ranges = some_ranges(8, 40, SHORT);
        turn.fake.hang_next(KERNEL, WHILE);
        let ticket = case.start(&ranges);
        let Case { session: other, file, scratch, bytes } = case;
        drop((session, other, file));
        if round % 2 == 1 {
            raw(scratch.path()).write_all_at(&pattern(OTHER, 0, SHORT), 0).unwrap();
        }
        let outcome = look(ticket);
        let state = if round % 2 == 1 { pattern(OTHER, 0, SHORT) } else { bytes };
        check_state(&state, &ranges, &outcome);
        drop(outcome);
        assert!(soon(|| turn.fake.registered_bytes() == 0), "round {round}: pages stay registered");
    }
}

#[test]
fn a_session_waits_for_what_nobody_looks_at() {
    let turn = turn();
    let case = Case::new(SHORT, config());
    let buffer = case.session.buffer(0, 8 * 4096).unwrap();
    turn.fake.hang_next(KERNEL, WHILE);
    drop(submit_polled(&case, &buffer, 8));
    let Case { session, file, scratch: _scratch, bytes } = case;
    drop((session, file));
    assert!(buffer.to_vec().unwrap() == bytes[..8 * 4096]);
    assert!(soon(|| turn.fake.registered_bytes() == 0));
}

fn kinds(outcome: &Outcome<Buffer>) -> Vec<Option<ErrorKind>> {
    outcome.entries.iter().map(|entry| entry.as_ref().err().map(forebay_error::Error::kind)).collect()
}

#[test]
fn a_lost_device_is_an_error_of_the_batch() {
    let mine = std::env::var("LOOK").ok();
    for (index, look) in LOOKS.into_iter().enumerate() {
        let index = index.to_string();
        if mine.as_ref().is_some_and(|mine| *mine != index) {
            continue;
        }
        // A process each: a GPU that was lost stays so.
        in_process(&[], &[("LOOK", &index)], || {
            let turn = turn();
            let case = Case::new(SHORT, config());
            let ranges = some_ranges(1, 9, SHORT);
            let rooms: Vec<_> = (0..5).map(|_| case.room(&ranges)).collect();
            let more = case.session.buffer(0, 4096).unwrap();
            turn.fake.set_delay_us(250_000);
            turn.fake.fail_next(KERNEL, 700, 0, 1);
            let start = |room| case.session.read_batch(&case.file, &places(&ranges), room).unwrap();
            let tickets: Vec<_> = rooms.into_iter().map(start).collect();
            // The device may be lost by now.
            drop(submit_raw(&case, &more, 1));
            let failed = tickets.into_iter().map(look).filter(|outcome| {
                let kinds = kinds(outcome);
                assert!(kinds == [None; 9] || kinds == [Some(ErrorKind::DeviceLost); 9], "{kinds:?}");
                kinds[0].is_some()
            });
            assert!(failed.count() > 0);
            let later = case.session.read_batch(&case.file, &places(&[(0, 9), (9, 9)]), more);
            assert!(later.is_err() || kinds(&later.unwrap().wait()) == [Some(ErrorKind::DeviceLost); 2]);
        });
    }
}

#[test]
fn a_call_that_fails_is_an_error_of_one_batch() {
    let turn = turn();
    let case = Case::new(SHORT, config());
    let ranges = some_ranges(9, 9, SHORT);
    // The first record is that of the copy which fills the buffer.
    for (call, after) in [("cuLaunchKernel", 0), ("cuEventRecord", 1)] {
        turn.fake.fail_next(call, 2, after, 1);
        let ticket = case.read(&ranges);
        assert!(!ticket.is_driven(), "{call}");
        assert!(ticket.is_done(), "{call}");
        assert_eq!(kinds(&ticket.wait()), [Some(ErrorKind::DeviceOutOfMemory); 9], "{call}");
        case.check(&ranges, &case.start(&ranges).wait());
    }
    turn.fake.hang_next(KERNEL, 50);
    let ticket = case.start(&ranges);
    turn.fake.fail_next("cuEventQuery", 2, 0, 1);
    assert_eq!(kinds(&ticket.wait()), [Some(ErrorKind::DeviceOutOfMemory); 9]);
}

#[test]
fn a_slot_that_cannot_be_made_leaves_the_batch_to_the_copy_thread() {
    let turn = turn();
    for call in ["cuStreamCreate", "cuEventCreate", "cuMemHostRegister_v2"] {
        let case = Case::new(SHORT, config());
        let ranges = some_ranges(9, 9, SHORT);
        let room = case.room(&ranges);
        turn.fake.fail_next(call, 2, 0, 1);
        let ticket = case.session.read_batch(&case.file, &places(&ranges), room).unwrap();
        assert!(!ticket.is_driven(), "{call}");
        check_state(&case.bytes, &ranges, &ticket.wait());
        case.check(&ranges, &case.start(&ranges).wait());
    }
}

#[test]
fn a_forked_child_leaves_a_batch_to_its_parent() {
    in_process(&[], &[], || {
        let turn = turn();
        let case = Case::new(SHORT, config());
        let ranges = some_ranges(9, 9, SHORT);
        turn.fake.hang_next(KERNEL, WHILE);
        let (waited, polled) = (case.start(&ranges), case.start(&ranges));
        // SAFETY: the child calls what is under test and ends by `_exit`.
        let child = unsafe { libc::fork() };
        if child == 0 {
            // SAFETY: no pointers are passed; a child that hangs is ended by the alarm.
            unsafe { libc::alarm(15) };
            let outcome = waited.wait();
            let is_lost = kinds(&outcome) == [Some(ErrorKind::Unsupported); 9];
            let is_over = polled.is_done() && polled.wait_timeout(Duration::ZERO);
            // The file's name is the parent's to remove.
            drop((outcome, polled, case.session, case.file));
            // SAFETY: ends the child at once, without what the parent's exit would do.
            unsafe { libc::_exit(i32::from(!is_lost) + 2 * i32::from(!is_over)) };
        }
        let mut status = 0;
        // SAFETY: a valid place for the status of our own child.
        unsafe { libc::waitpid(child, &raw mut status, 0) };
        assert_eq!((libc::WTERMSIG(status), libc::WEXITSTATUS(status)), (0, 0), "signal, step");
        for ticket in [waited, polled] {
            case.check(&ranges, &ticket.wait());
        }
        case.check(&ranges, &case.start(&ranges).wait());
    });
}

#[allow(dead_code, reason = "only its type is checked")]
fn tickets_go_anywhere(ticket: Ticket<Buffer>) -> impl Send + Sync + Unpin {
    ticket
}
