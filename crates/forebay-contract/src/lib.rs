//! The contract of sources, over each engine and memory. A crate that adds a source calls [`run`] in a test: it needs
//! no more than a way to make a source of [`LEN`] bytes and to look at it from outside.
#![allow(
    clippy::unwrap_used,
    clippy::missing_panics_doc,
    reason = "what its functions find is a panic of a test"
)]

mod listings;
mod uploads;

use std::sync::Arc;
use std::time::Duration;

use forebay_config::{Config, IoBackend};
use forebay_engine::{Axis, Buffer, File, ReadPiece, Receipt, Session, StridedPiece};
use forebay_error::ErrorKind;
pub use listings::{listings, lists_nothing};
pub use uploads::uploads;

/// Bytes of a source that is looked at.
pub const LEN: usize = 3_000_001;
/// Of their pattern.
pub const KEY: u64 = 77;

/// A source with [`LEN`] bytes of the [`pattern`] of [`KEY`].
pub struct Subject {
    /// For messages.
    pub name: &'static str,
    /// It, open for reading and writing.
    pub file: File,
    /// Its bytes as another reader sees them.
    pub outside: Box<dyn Fn() -> Vec<u8> + Sync>,
    /// Whether it is so slow that less is done at random.
    pub is_slow: bool,
}

/// A source, a session and a memory.
pub struct Case<'a> {
    /// The session.
    pub session: &'a Session,
    /// The source of [`LEN`] bytes.
    pub file: &'a File,
    /// Its bytes as another reader sees them.
    pub outside: &'a (dyn Fn() -> Vec<u8> + Sync),
    /// Memory of a number of bytes.
    pub buffer: &'a (dyn Fn(usize) -> Buffer + Sync),
    /// Whether it is so slow that less is done at random.
    pub is_slow: bool,
}

impl Case<'_> {
    fn times(&self, count: u64) -> u64 {
        if self.is_slow { count.div_ceil(3) } else { count }
    }
}

/// All promises, over host memory and the software GPU, with io_uring and without; each over a new source.
pub fn run(make: impl Fn() -> Subject) {
    fake_cuda::install().unwrap();
    for io in [IoBackend::Auto, IoBackend::Threads] {
        let config = Config { lanes: 2, slots: 4, slot_size: 256 << 10, io, ..Config::default() };
        let session = Session::with_config(config).unwrap();
        run_in(&session, &|len| session.host_buffer(len).unwrap(), &make);
        run_in(&session, &|len| session.buffer(0, len).unwrap(), &make);
    }
}

/// All promises in a session, over memory that `buffer` makes; each over a new source.
pub fn run_in(session: &Session, buffer: &(dyn Fn(usize) -> Buffer + Sync), make: &impl Fn() -> Subject) {
    run_reads(session, buffer, make);
    let there_and_back: Check = |case| drop(aligned_ranges(case));
    run_all(&[writes, there_and_back, write_beyond_end, empty_range], session, buffer, make);
    let subject = make();
    state(session, &subject.file, &buffer(9));
}

/// The promises of reads in a session, for a source that is not written.
pub fn run_reads(session: &Session, buffer: &(dyn Fn(usize) -> Buffer + Sync), make: &impl Fn() -> Subject) {
    let whole_file: Check = |case| drop(whole_file(case));
    run_all(
        &[whole_file, any_range, read_beyond_end, batch, strided, many_tickets, future],
        session,
        buffer,
        make,
    );
}

type Check = fn(&Case<'_>);

fn run_all(
    checks: &[Check],
    session: &Session,
    buffer: &(dyn Fn(usize) -> Buffer + Sync),
    make: &impl Fn() -> Subject,
) {
    for check in checks {
        let Subject { name, file, outside, is_slow } = make();
        println!("{} {name}", session.config().io);
        check(&Case { session, file: &file, outside: &*outside, buffer, is_slow });
    }
}

/// A source that tells its state tells another one after a write, and the same one otherwise.
fn state(session: &Session, file: &File, bytes: &Buffer) {
    let Some(before) = file.state().unwrap() else { return };
    assert_eq!(file.state().unwrap().as_ref(), Some(&before));
    std::thread::sleep(Duration::from_millis(20));
    session.write(file, 5, bytes).unwrap();
    assert!(!file.state().unwrap().unwrap().has_bytes_of(&before), "a write that no state tells");
}

/// The bytes of a source from `offset` on.
pub fn pattern(key: u64, offset: u64, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    forebay_gpu::fill_pattern(&mut bytes, key, offset);
    bytes
}

/// Small deterministic random numbers.
pub struct Random(pub u64);

impl Random {
    /// One below `bound`.
    pub fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        forebay_gpu::pattern_word(self.0, 0) % bound
    }
}

/// The whole source comes over byte for byte. The receipt.
pub fn whole_file(case: &Case<'_>) -> Receipt {
    let mut buffer = (case.buffer)(LEN);
    let receipt = case.session.read(case.file, 0, &mut buffer).unwrap();
    assert!(buffer.to_vec().unwrap() == pattern(KEY, 0, LEN), "wrong bytes");
    assert_eq!(receipt.bytes(), LEN as u64);
    receipt
}

/// Any range comes over, and nothing beside it changes.
pub fn any_range(case: &Case<'_>) {
    let mut random = Random(1);
    for round in 0..case.times(30) {
        let most = if round % 3 == 0 { 1_500_000 } else { 20_000 };
        let len = random.below(most) as usize + 1;
        let offset = random.below((LEN - len) as u64 + 1);
        let before = random.below(4097) as usize;
        let mut buffer = (case.buffer)(before + len + 77);
        let blank = vec![0xA5u8; buffer.len()];
        buffer.copy_from_slice(&blank).unwrap();
        case.session.read_into(case.file, offset, &mut buffer, before..before + len).unwrap();
        let bytes = buffer.to_vec().unwrap();
        assert!(bytes[..before].iter().all(|byte| *byte == 0xA5), "bytes before the range changed");
        assert!(bytes[before..before + len] == pattern(KEY, offset, len), "wrong bytes at {offset}+{len}");
        assert!(bytes[before + len..].iter().all(|byte| *byte == 0xA5), "bytes after the range changed");
    }
}

/// Writes of any range leave the rest alone.
pub fn writes(case: &Case<'_>) {
    let mut expected = pattern(KEY, 0, LEN);
    let mut random = Random(2);
    for round in 0..case.times(12) {
        let most = if round % 3 == 0 { 1_500_000 } else { 20_000 };
        let len = random.below(most) as usize + 1;
        let offset = random.below((LEN - len) as u64 + 1) as usize;
        let bytes = pattern(100 + round, offset as u64, len);
        let mut buffer = (case.buffer)(len);
        buffer.copy_from_slice(&bytes).unwrap();
        let receipt = case.session.write(case.file, offset as u64, &buffer).unwrap();
        assert_eq!(receipt.bytes(), len as u64);
        expected[offset..offset + len].copy_from_slice(&bytes);
    }
    assert!((case.outside)() == expected, "the file differs");
}

/// Aligned ranges go there and back. The receipts of each: of its write, and of its read.
pub fn aligned_ranges(case: &Case<'_>) -> Vec<[Receipt; 2]> {
    let mut expected = pattern(KEY, 0, LEN);
    let mut receipts = Vec::new();
    for (round, (offset, len)) in
        [(8192, 4096), (65536, 262_144), (1 << 20, (1 << 20) + 8192)].into_iter().enumerate()
    {
        let bytes = pattern(200 + round as u64, 0, len);
        let mut buffer = (case.buffer)(len);
        buffer.copy_from_slice(&bytes).unwrap();
        let written = case.session.write(case.file, offset as u64, &buffer).unwrap();
        expected[offset..offset + len].copy_from_slice(&bytes);
        buffer.copy_from_slice(&vec![0; len]).unwrap();
        let read = case.session.read(case.file, offset as u64, &mut buffer).unwrap();
        assert!(buffer.to_vec().unwrap() == bytes, "wrong bytes at {offset}+{len}");
        assert_eq!((written.bytes(), read.bytes()), (len as u64, len as u64));
        receipts.push([written, read]);
    }
    assert!((case.outside)() == expected, "the file differs");
    receipts
}

/// A write beyond the end extends the source; what lies between reads as zeros.
pub fn write_beyond_end(case: &Case<'_>) {
    let bytes = pattern(5, 0, 600_123);
    let mut buffer = (case.buffer)(bytes.len());
    buffer.copy_from_slice(&bytes).unwrap();
    case.session.write(case.file, LEN as u64 + 1000, &buffer).unwrap();
    let outside = (case.outside)();
    assert_eq!(outside.len(), LEN + 1000 + bytes.len());
    assert!(outside[LEN + 1000..] == bytes && outside[LEN..LEN + 1000].iter().all(|byte| *byte == 0));
}

/// A read beyond the end is `ShortRead`.
pub fn read_beyond_end(case: &Case<'_>) {
    for (offset, len) in [(LEN - 10, 4096), (LEN - 1_200_000, 1_300_000), (LEN, 1), (LEN + 5_000_000, 100)] {
        let mut buffer = (case.buffer)(len);
        let error = case.session.read(case.file, offset as u64, &mut buffer).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::ShortRead, "{error:?}");
    }
}

/// Nothing is moved for an empty range.
pub fn empty_range(case: &Case<'_>) {
    let mut buffer = (case.buffer)(0);
    assert_eq!(case.session.read(case.file, 10, &mut buffer).unwrap().bytes(), 0);
    assert_eq!(case.session.write(case.file, 10, &buffer).unwrap().bytes(), 0);
    assert!((case.outside)() == pattern(KEY, 0, LEN));
}

/// A batch gives each piece a result of its own.
pub fn batch(case: &Case<'_>) {
    let mut random = Random(3);
    let mut pieces = Vec::new();
    let mut at = 0;
    for index in 0..case.times(700) {
        let len = if index % 50 == 0 { 300_000 } else { random.below(9000) as usize };
        let offset = if index % 100 == 99 { LEN as u64 - 1 } else { random.below((LEN - len) as u64) };
        pieces.push(ReadPiece { offset, range: at..at + len });
        at += len + random.below(3) as usize;
    }
    let buffer = (case.buffer)(at);
    let outcome = case.session.read_batch(case.file, &pieces, buffer).unwrap().wait();
    let bytes = outcome.buffer.to_vec().unwrap();
    assert_eq!(outcome.entries.len(), pieces.len());
    for (piece, result) in pieces.iter().zip(&outcome.entries) {
        let len = piece.range.len();
        if piece.offset + len as u64 > LEN as u64 {
            assert_eq!(result.as_ref().unwrap_err().kind(), ErrorKind::ShortRead);
        } else {
            assert_eq!(*result.as_ref().unwrap(), len as u64);
            assert!(bytes[piece.range.clone()] == pattern(KEY, piece.offset, len));
        }
    }
}

/// Runs that lie apart in the source come into memory with gaps of its own; nothing between them changes.
pub fn strided(case: &Case<'_>) {
    // Bytes of a run, and from one to the next in the source and in memory: dense and sparse, aligned and not.
    let layouts = [
        (512, 700, 512),
        (3000, 6000, 3100),
        (4096, 8192, 4096),
        (2752, 22_016, 2752),
        (9000, 30_000, 9001),
        (1, 400, 2),
    ];
    for (run, apart, room) in layouts {
        let rows = (case.times(300) as usize).min((LEN - 77) / apart);
        let axes = [
            Axis { count: rows, memory: room as i64, file: apart as i64 },
            Axis { count: run, memory: 1, file: 1 },
        ];
        let strided = StridedPiece::new((77, 5), 1, &axes).unwrap();
        // Addresses in the buffer are those from 0 on.
        let range = |address: u64, len| address as usize..address as usize + len;
        let mut pieces: Vec<_> = strided
            .pieces()
            .map(|piece| ReadPiece { offset: piece.offset, range: range(piece.address, piece.len) })
            .collect();
        assert_eq!(pieces.len(), rows);
        let end = 5 + rows * room;
        pieces.push(ReadPiece { offset: LEN as u64 - 3, range: end..end + 10 });
        let mut expected = vec![0xEE; end + 10];
        let mut buffer = (case.buffer)(expected.len());
        buffer.copy_from_slice(&expected).unwrap();
        let outcome = case.session.read_batch(case.file, &pieces, buffer).unwrap().wait();
        let bytes = outcome.buffer.to_vec().unwrap();
        for row in 0..rows {
            let at = 5 + row * room;
            expected[at..at + run].copy_from_slice(&pattern(KEY, (77 + row * apart) as u64, run));
            assert_eq!(*outcome.entries[row].as_ref().unwrap(), run as u64);
        }
        assert!(bytes[..end] == expected[..end], "{run} of {apart} into {room}");
        assert_eq!(outcome.entries[rows].as_ref().unwrap_err().kind(), ErrorKind::ShortRead);
        assert_eq!(outcome.receipt.bytes(), (rows * run + 3) as u64);
    }
}

/// Many tickets in flight resolve, from any thread.
pub fn many_tickets(case: &Case<'_>) {
    let len = 40_000;
    std::thread::scope(|scope| {
        for thread in 0..4u64 {
            scope.spawn(move || {
                let tickets: Vec<_> = (0..case.times(20))
                    .map(|index| {
                        let offset = (thread * case.times(20) + index) * 30_011;
                        let buffer = (case.buffer)(len);
                        (offset, case.session.submit_read(case.file, offset, buffer).unwrap())
                    })
                    .collect();
                for (offset, ticket) in tickets {
                    let (_, buffer) = ticket.wait().into_result().unwrap();
                    assert!(buffer.to_vec().unwrap() == pattern(KEY, offset, len));
                }
            });
        }
    });
}

/// A ticket is a future.
pub fn future(case: &Case<'_>) {
    use std::future::Future;
    use std::pin::pin;
    use std::task::{Context, Poll, Wake, Waker};

    struct Unpark(std::thread::Thread);
    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    let buffer = (case.buffer)(1_000_000);
    let mut ticket = pin!(case.session.submit_read(case.file, 17, buffer).unwrap());
    let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
    let outcome = loop {
        match ticket.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(outcome) => break outcome,
            Poll::Pending => std::thread::park_timeout(Duration::from_secs(20)),
        }
    };
    assert!(outcome.buffer.to_vec().unwrap() == pattern(KEY, 17, 1_000_000));
}
