//! The contract of reads by the engine `mapped`: forced, and elected where it is worth it. The same promises as in
//! `contract.rs`, over a warm file, a cold one and a file in memory.

use std::sync::OnceLock;
use std::time::Duration;

use crate::common::{self, Random, Scratch, Turn, chill, disk, has_hint, pattern, turn};
use crate::pages::{
    MIB, blank, check_staged, config, fetch, gpu, memory, only, open, pin, pins, raw, settle, subject, why,
};
use forebay_config::{CachePolicy, Config};
use forebay_engine::{
    Batch, Direction, EngineKind, File, Offsets, Piece, RawGather, ReadPiece, Session, Transfer, Way,
};
use forebay_error::ErrorKind;
use forebay_gpu::{DeviceRange, HostRange, Wait};

const KEY: u64 = 78;
/// Enough of a window to be worth registering.
const LEN: usize = 17 * MIB + 4321;

/// A file, and a session that reads it.
struct Case {
    session: Session,
    file: File,
    _scratch: Scratch,
    is_forced: bool,
    is_cold: bool,
}

impl Case {
    fn engine(&self) -> EngineKind {
        if self.is_forced || !self.is_cold { EngineKind::Mapped } else { EngineKind::Staged }
    }

    /// Reads all, so that all is pinned where it ever is.
    fn read_all(&self) {
        let (bytes, receipt) = fetch(&self.session, &self.file, 0, LEN).unwrap();
        assert!(bytes == all(), "wrong bytes");
        assert_eq!(receipt.engine(), self.engine(), "{receipt}");
        assert_eq!(receipt.bytes(), LEN as u64);
    }
}

fn all() -> &'static [u8] {
    static ALL: OnceLock<Vec<u8>> = OnceLock::new();
    ALL.get_or_init(|| pattern(KEY, 0, LEN))
}

fn case(directory: &std::path::Path, is_forced: bool, is_cold: bool) -> Case {
    let (scratch, file) = subject(directory, KEY, LEN);
    if is_cold {
        chill(&file);
    }
    let session = open(if is_forced { only() } else { config() });
    Case { session, file, _scratch: scratch, is_forced, is_cold }
}

fn each(test: impl Fn(&Turn, &Case)) {
    let turn = turn();
    for is_forced in [true, false] {
        for (name, directory, is_cold) in
            [("warm file", disk(), false), ("cold file", disk(), true), ("tmpfs file", memory(), false)]
        {
            println!("{name}, forced: {is_forced}");
            test(&turn, &case(&directory, is_forced, is_cold));
        }
    }
    assert_eq!(turn.fake.hazards(), 0, "a private mapping was to be pinned");
}

// ---- reads --------------------------------------------------------------------------------------------------------

#[test]
fn a_whole_file_comes_over_byte_for_byte() {
    each(|_, case| {
        for _ in 0..2 {
            let (bytes, receipt) = fetch(&case.session, &case.file, 0, LEN).unwrap();
            assert!(bytes == all(), "wrong bytes");
            assert_eq!((receipt.engine(), receipt.bytes()), (case.engine(), LEN as u64), "{receipt}");
            match case.engine() {
                EngineKind::Mapped => assert_eq!(receipt.moved[Way::Mapped], LEN as u64, "{receipt}"),
                _ => check_staged(&receipt, "not in the page cache"),
            }
        }
    });
}

#[test]
fn a_file_of_several_windows_comes_over() {
    const WINDOW: usize = 64 * MIB;
    const KEYS: usize = 2 * MIB;
    let _turn = turn();
    let len = WINDOW + 20 * MIB + 77;
    for config in [only(), config()] {
        let (scratch, file) = blank(&memory(), len);
        // Bytes that differ, on both sides of the windows' border.
        let start = WINDOW - KEYS / 2;
        let bytes = pattern(KEY, start as u64, KEYS);
        std::os::unix::fs::FileExt::write_all_at(&raw(scratch.path()), &bytes, start as u64).unwrap();
        settle();
        let session = open(config);
        let all = pin(&session, &file, len);
        assert!(all[start..start + KEYS] == bytes, "wrong bytes at the border");
        assert!(
            all[..start].iter().all(|byte| *byte == 0) && all[start + KEYS..].iter().all(|byte| *byte == 0)
        );
        // Across the border: on the caller's thread, as a transfer, and as entries of a batch.
        for (before, part) in [(100, 200), (4096, 8192), (MIB - 1, 2 * MIB - 5)] {
            let (got, receipt) = fetch(&session, &file, (WINDOW - before) as u64, part).unwrap();
            assert!(got == bytes[KEYS / 2 - before..][..part], "{before} {part}");
            assert_eq!(receipt.moved[Way::Mapped], part as u64, "{receipt}");
        }
        let pieces: Vec<_> = (0..100)
            .map(|at| ReadPiece { offset: (start + at * 20_000) as u64, range: at * 9000..(at + 1) * 9000 })
            .collect();
        let outcome = session.read_batch(&file, &pieces, session.buffer(0, 900_000).unwrap()).unwrap().wait();
        let (receipt, buffer) = outcome.into_result().unwrap();
        let got = buffer.to_vec().unwrap();
        assert!((0..100).all(|at| got[at * 9000..][..9000] == bytes[at * 20_000..][..9000]));
        assert_eq!(receipt.moved[Way::Mapped], 900_000, "{receipt}");
    }
}

#[test]
fn any_range_comes_over_and_nothing_beside_it_changes() {
    each(|_, case| {
        case.read_all();
        let mut random = Random(1);
        for round in 0..24 {
            let most = if round % 3 == 0 { 3_000_000 } else { 20_000 };
            let len = random.below(most) as usize + 1;
            let offset = random.below((LEN - len) as u64 + 1) as usize;
            let before = random.below(4097) as usize;
            let mut buffer = case.session.buffer(0, before + len + 77).unwrap();
            buffer.copy_from_slice(&vec![0xA5u8; before + len + 77]).unwrap();
            let receipt =
                case.session.read_into(&case.file, offset as u64, &mut buffer, before..before + len).unwrap();
            if case.engine() == EngineKind::Mapped {
                assert_eq!(receipt.moved[Way::Mapped], len as u64, "{receipt}");
            }
            let bytes = buffer.to_vec().unwrap();
            assert!(bytes[..before].iter().all(|byte| *byte == 0xA5), "bytes before the range changed");
            assert!(
                bytes[before..before + len] == all()[offset..offset + len],
                "wrong bytes at {offset}+{len}"
            );
            assert!(bytes[before + len..].iter().all(|byte| *byte == 0xA5), "bytes after the range changed");
        }
    });
}

#[test]
fn a_read_beyond_the_end_is_a_short_read() {
    each(|_, case| {
        case.read_all();
        for (offset, len) in [
            (LEN - 10, 4096),
            (LEN - 1_200_000, 1_300_000),
            (LEN, 1),
            (LEN, 3 * MIB),
            (LEN + 5_000_000, 100),
            (LEN + 80 * MIB, 2 * MIB),
            (0, LEN + 1),
        ] {
            let error = fetch(&case.session, &case.file, offset as u64, len).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::ShortRead, "{offset}+{len}: {error:?}");
        }
        case.read_all();
    });
}

#[test]
fn a_short_read_that_is_allowed_says_how_short() {
    each(|_, case| {
        case.read_all();
        for (offset, len) in [(LEN - 10, 4096), (LEN - 1_200_000, 1_300_000), (LEN, 4096), (0, LEN + 5)] {
            let buffer = case.session.buffer(0, len).unwrap();
            let (memory, direction) = (buffer.memory(), Direction::Read);
            let file = case.file.clone();
            let transfer =
                Transfer { file, offset: offset as u64, memory, len, direction, allow_short: true };
            // SAFETY: the buffer lives until the read is done.
            let receipt = unsafe { case.session.run(&transfer) }.unwrap();
            assert_eq!(receipt.bytes(), (LEN - offset) as u64, "{offset}+{len}: {receipt}");
            assert!(buffer.to_vec().unwrap()[..LEN - offset] == all()[offset..]);
        }
    });
}

#[test]
fn nothing_is_moved_for_an_empty_range() {
    each(|_, case| {
        for is_pinned in [false, true] {
            if is_pinned {
                case.read_all();
            }
            for offset in [0, 10, LEN as u64, LEN as u64 + 100] {
                let mut buffer = case.session.buffer(0, 0).unwrap();
                let receipt = case.session.read(&case.file, offset, &mut buffer).unwrap();
                assert_eq!(receipt.bytes(), 0, "{offset}: {receipt}");
            }
        }
    });
}

// ---- batches ------------------------------------------------------------------------------------------------------

/// Pieces of all sizes, empty ones and such that the end cuts among them; and the bytes that they need.
fn some_pieces() -> (Vec<ReadPiece>, usize) {
    let mut random = Random(3);
    let mut pieces = Vec::new();
    let mut at = 0;
    for index in 0..500usize {
        let len = match index % 50 {
            0 => 300_000,
            7 => 0,
            _ => random.below(9000) as usize,
        };
        let offset = if index % 100 == 99 { LEN as u64 - 1 } else { random.below((LEN - len) as u64) };
        pieces.push(ReadPiece { offset, range: at..at + len });
        at += len + random.below(3) as usize;
    }
    (pieces, at)
}

#[test]
fn a_batch_gives_each_piece_its_own_result() {
    each(|_, case| {
        let (pieces, room) = some_pieces();
        // Before and after the pages are pinned.
        for _ in 0..2 {
            let mut buffer = case.session.buffer(0, room).unwrap();
            buffer.copy_from_slice(&vec![0xA5; room]).unwrap();
            let outcome = case.session.read_batch(&case.file, &pieces, buffer).unwrap().wait();
            check_batch(&pieces, &outcome.entries, &outcome.buffer.to_vec().unwrap());
            case.read_all();
        }
    });
}

fn check_batch(pieces: &[ReadPiece], entries: &[forebay_error::Result<u64>], bytes: &[u8]) {
    assert_eq!(entries.len(), pieces.len());
    let mut end = 0;
    for (index, (piece, result)) in pieces.iter().zip(entries).enumerate() {
        let (offset, len) = (piece.offset as usize, piece.range.len());
        if offset + len > LEN {
            assert_eq!(result.as_ref().unwrap_err().kind(), ErrorKind::ShortRead, "entry {index}");
        } else {
            assert_eq!(*result.as_ref().unwrap(), len as u64, "entry {index}");
            assert!(bytes[piece.range.clone()] == all()[offset..offset + len], "entry {index}");
        }
        assert!(bytes[end..piece.range.start].iter().all(|byte| *byte == 0xA5), "beside entry {index}");
        end = piece.range.end;
    }
}

#[test]
fn a_pinned_batch_is_gathered_in_place() {
    each(|turn, case| {
        case.read_all();
        if case.engine() != EngineKind::Mapped {
            return;
        }
        let pieces: Vec<_> = (0..1000)
            .map(|at| ReadPiece { offset: (at * 17_123) as u64, range: at * 512..(at + 1) * 512 })
            .collect();
        let (copies, kernels) = (turn.fake.calls("async:copy"), turn.fake.calls("async:kernel"));
        let buffer = case.session.buffer(0, 512_000).unwrap();
        let ticket = case.session.read_batch(&case.file, &pieces, buffer).unwrap();
        let (receipt, buffer) = ticket.wait().into_result().unwrap();
        let (copies, kernels) =
            (turn.fake.calls("async:copy") - copies, turn.fake.calls("async:kernel") - kernels);
        assert!(copies == 0 && kernels == 1, "{copies} copies, {kernels} kernels");
        assert_eq!(
            (receipt.engine(), receipt.moved[Way::Mapped]),
            (EngineKind::Mapped, 512_000),
            "{receipt}"
        );
        let bytes = buffer.to_vec().unwrap();
        assert!((0..1000).all(|at| bytes[at * 512..][..512] == all()[at * 17_123..][..512]));
    });
}

#[test]
fn a_batch_of_raw_pieces_may_be_short() {
    each(|_, case| {
        case.read_all();
        let buffer = case.session.buffer(0, 400_000).unwrap();
        let at = |index: u64| buffer.address() + index * 100_000;
        let pieces = vec![
            Piece { offset: 5, address: at(0), len: 100_000 },
            Piece { offset: LEN as u64 - 7, address: at(1), len: 100_000 },
            Piece { offset: LEN as u64 - 9, address: at(2), len: 1000 },
            Piece { offset: LEN as u64 + 9, address: at(3), len: 1000 },
        ];
        let (file, memory, direction) = (case.file.clone(), buffer.memory(), Direction::Read);
        let batch = Batch { file, memory, direction, pieces, allow_short: true };
        // SAFETY: the buffer lives until the ticket is waited for.
        let outcome = unsafe { case.session.submit_batch(batch) }.unwrap().wait();
        let got: Vec<_> = outcome.entries.into_iter().map(Result::unwrap).collect();
        assert_eq!(got, [100_000, 7, 9, 0]);
        let bytes = buffer.to_vec().unwrap();
        assert!(bytes[..100_000] == all()[5..100_005]);
        assert!(bytes[100_000..100_007] == all()[LEN - 7..] && bytes[200_000..200_009] == all()[LEN - 9..]);
    });
}

// ---- many at once, streams ----------------------------------------------------------------------------------------

#[test]
fn many_tickets_in_flight_resolve_from_any_thread() {
    each(|_, case| {
        std::thread::scope(|scope| {
            for thread in 0..4usize {
                scope.spawn(move || {
                    let len = if thread == 0 { 2 * MIB } else { 70_000 };
                    let tickets: Vec<_> = (0..12)
                        .map(|index| {
                            let offset = (thread * 12 + index) * 300_011;
                            let buffer = case.session.buffer(0, len).unwrap();
                            (offset, case.session.submit_read(&case.file, offset as u64, buffer).unwrap())
                        })
                        .collect();
                    for (offset, ticket) in tickets {
                        let (_, buffer) = ticket.wait().into_result().unwrap();
                        assert!(buffer.to_vec().unwrap() == all()[offset..offset + len]);
                    }
                });
            }
        });
    });
}

#[test]
fn callers_of_small_reads_share_pinned_pages() {
    each(|_, case| {
        case.read_all();
        std::thread::scope(|scope| {
            for thread in 0..6u64 {
                scope.spawn(move || {
                    let mut random = Random(thread);
                    for _ in 0..40 {
                        let offset = random.below(LEN as u64 - 5000);
                        let (bytes, receipt) = fetch(&case.session, &case.file, offset, 5000).unwrap();
                        assert!(bytes == all()[offset as usize..][..5000]);
                        if case.engine() == EngineKind::Mapped {
                            assert_eq!(receipt.engine(), EngineKind::Mapped, "{receipt}");
                        }
                    }
                });
            }
        });
    });
}

#[test]
fn a_stream_keeps_its_order() {
    each(|turn, case| {
        let device = gpu(&case.session);
        let primary = turn.fake.retain_primary(0).unwrap();
        turn.fake.set_current_context(primary).unwrap();
        turn.fake.set_delay_us(2000);
        let handle = turn.fake.create_stream(1).unwrap();
        // SAFETY: the stream lives until it is destroyed below.
        let stream = unsafe { device.foreign_stream(handle) }.unwrap();
        for len in [50_000, 9 * MIB] {
            let buffer = case.session.buffer(0, len).unwrap();
            let mut back = case.session.host_buffer(len).unwrap();
            let transfer = Transfer {
                file: case.file.clone(),
                offset: 3,
                memory: buffer.memory(),
                len,
                direction: Direction::Read,
                allow_short: false,
            };
            let out = back.as_mut_slice().unwrap();
            // SAFETY: stream and memory live until the synchronisation below.
            let ticket = unsafe {
                device.pin(HostRange::new(out.as_mut_ptr(), len)).unwrap();
                // What the stream does before must not win over the read, what it does later must see it.
                stream.fill_pattern(DeviceRange::new(buffer.address(), len), 1, 0).unwrap();
                let ticket = case.session.submit_on(handle, vec![transfer]).unwrap();
                stream.copy_out(HostRange::new(out.as_mut_ptr(), len), buffer.address()).unwrap();
                ticket
            };
            stream.synchronize(Wait::Block).unwrap();
            assert!(out == &all()[3..3 + len], "later work of the stream saw other bytes");
            // SAFETY: the copy is done.
            unsafe { device.unpin(out.as_mut_ptr()) };
            let receipt = ticket.wait().into_result().unwrap().0;
            assert_eq!(receipt.bytes(), len as u64);
            if case.is_forced {
                assert_eq!(receipt.engine(), EngineKind::Mapped, "{receipt}");
            }
        }
        turn.fake.set_delay_us(20);
        turn.fake.destroy_stream(handle).unwrap();
    });
}

// ---- election -----------------------------------------------------------------------------------------------------

#[test]
fn a_small_file_is_not_worth_pinning() {
    let turn = turn();
    let session = open(config());
    for directory in [disk(), memory()] {
        let (_scratch, file) = subject(&directory, KEY, 64 << 10);
        for _ in 0..3 {
            let (bytes, receipt) = fetch(&session, &file, 0, 64 << 10).unwrap();
            assert!(bytes == all()[..64 << 10]);
            check_staged(&receipt, "");
            let buffer = session.buffer(0, 64 << 10).unwrap();
            let outcome = session.submit_read(&file, 0, buffer).unwrap().wait();
            check_staged(outcome.result().unwrap(), "too small");
        }
    }
    assert_eq!((pins(&session).bytes, turn.fake.registered_bytes()), (0, 0));
}

#[test]
fn a_file_of_which_little_was_read_is_not_pinned() {
    let turn = turn();
    let session = open(config());
    for directory in [disk(), memory()] {
        let (_scratch, file) = subject(&directory, KEY, LEN);
        let (bytes, receipt) = fetch(&session, &file, 100, 2 * MIB).unwrap();
        assert!(bytes == all()[100..100 + 2 * MIB]);
        check_staged(&receipt, "too little");
        assert_eq!(turn.fake.registered_bytes(), 0);
        // Small reads add up to what is worth it.
        let is_mapped = || fetch(&session, &file, 0, MIB / 2).unwrap().1.engine() == EngineKind::Mapped;
        assert!(common::soon(is_mapped), "much of one window was read, and it was not pinned");
        session.trim();
    }
}

/// The reason stands in receipts of both directions.
#[test]
fn a_small_transfer_whose_pages_are_not_pinned_says_nothing_of_the_other_direction() {
    let _turn = turn();
    let session = open(config());
    let (_scratch, file) = subject(&disk(), KEY, LEN);
    let read = fetch(&session, &file, 0, 4096).unwrap().1;
    let written = session.write(&file, 0, &session.buffer(0, 4096).unwrap()).unwrap();
    for receipt in [read, written] {
        check_staged(&receipt, "not pinned, and a small transfer alone");
        let reason = why(&receipt).reason;
        assert!(!reason.contains("read") && !reason.contains("write"), "{reason}");
    }
}

#[test]
fn strict_mapped_is_mapped_alone() {
    let _turn = turn();
    let session = open(Config { strict: vec!["mapped".to_owned()], ..config() });
    let (_scratch, file) = subject(&disk(), KEY, 300_000);
    chill(&file);
    let (bytes, receipt) = fetch(&session, &file, 11, 200_000).unwrap();
    assert!(bytes == all()[11..200_011]);
    assert_eq!(receipt.moved[Way::Mapped], 200_000, "{receipt}");
    // What it cannot do is an error before the first byte.
    let buffer = session.buffer(0, 1000).unwrap();
    let error = session.write(&file, 0, &buffer).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error:?}");
    assert!(error.message().contains("tmpfs"), "{error:?}");
}

#[test]
fn a_user_who_bypasses_the_page_cache_gets_no_pins() {
    let turn = turn();
    let session = open(Config { cache: CachePolicy::Bypass, ..config() });
    let (_scratch, file) = subject(&disk(), KEY, LEN);
    let (bytes, receipt) = fetch(&session, &file, 0, LEN).unwrap();
    assert!(bytes == all());
    check_staged(&receipt, "bypassed");
    assert_eq!(turn.fake.registered_bytes(), 0);
}

#[test]
fn pinning_that_is_switched_off_says_so() {
    let _turn = turn();
    let session = open(Config { pin_budget: Some(0), ..config() });
    let (_scratch, file) = subject(&disk(), KEY, LEN);
    let (bytes, receipt) = fetch(&session, &file, 0, LEN).unwrap();
    assert!(bytes == all());
    check_staged(&receipt, "switched off");
    assert!(why(&receipt).hint.unwrap().contains("FOREBAY_PIN_BUDGET"));
    let error = session.map(&file, &gpu(&session)).unwrap_err();
    assert!(error.kind() == ErrorKind::Unsupported && has_hint(&error, "FOREBAY_PIN_BUDGET"), "{error:?}");
}

// ---- writes between reads -----------------------------------------------------------------------------------------

#[test]
fn writes_of_the_same_session_are_seen_by_its_next_read() {
    let turn = turn();
    for directory in [disk(), memory()] {
        let session = open(config());
        let (scratch, file) = subject(&directory, KEY, LEN);
        let mut expected = all().to_vec();
        let mut random = Random(2);
        for round in 0..8u64 {
            assert!(pin(&session, &file, LEN) == expected, "round {round}");
            let most = if round % 2 == 0 { 3_000_000 } else { 20_000 };
            let len = random.below(most) as usize + 1;
            let offset = random.below((LEN - len) as u64) as usize;
            let bytes = pattern(100 + round, offset as u64, len);
            let mut buffer = session.buffer(0, len).unwrap();
            buffer.copy_from_slice(&bytes).unwrap();
            let receipt = session.write(&file, offset as u64, &buffer).unwrap();
            assert_eq!(receipt.bytes(), len as u64);
            if directory == disk() {
                assert_eq!(receipt.engine(), EngineKind::Staged, "{receipt}");
                assert!(soon_unpinned(&turn), "the pins went first");
            }
            expected[offset..offset + len].copy_from_slice(&bytes);
            // At once, and when it has settled.
            assert!(fetch(&session, &file, 0, LEN).unwrap().0 == expected, "right after write {round}");
            settle();
            // Pages written by O_DIRECT have left the page cache.
            assert!(std::fs::read(scratch.path()).unwrap() == expected, "the file differs");
        }
        assert!(pin(&session, &file, LEN) == expected);
        drop(session);
    }
    assert_eq!(turn.fake.hazards(), 0);
}

fn soon_unpinned(turn: &Turn) -> bool {
    common::soon(|| turn.fake.registered_bytes() == 0)
}

#[test]
fn a_write_that_makes_the_file_longer_is_read() {
    let _turn = turn();
    for directory in [disk(), memory()] {
        let session = open(config());
        let (_scratch, file) = subject(&directory, KEY, LEN);
        pin(&session, &file, LEN);
        let bytes = pattern(5, 0, 2 * MIB + 123);
        let mut buffer = session.buffer(0, bytes.len()).unwrap();
        buffer.copy_from_slice(&bytes).unwrap();
        session.write(&file, LEN as u64 - 1000, &buffer).unwrap();
        let expected = [&all()[..LEN - 1000], &bytes].concat();
        assert!(fetch(&session, &file, 0, expected.len()).unwrap().0 == expected);
        settle();
        assert!(pin(&session, &file, expected.len()) == expected);
    }
}

// ---- maps ---------------------------------------------------------------------------------------------------------

#[test]
fn a_map_reads_every_kind_of_file() {
    each(|turn, case| {
        let device = gpu(&case.session);
        let map = case.session.map(&case.file, &device).unwrap();
        assert_eq!((map.len(), map.is_empty()), (LEN as u64, false));
        assert_eq!(map.pinned_bytes(), (LEN as u64).next_multiple_of(4096));
        assert_eq!(map.version().len, LEN as u64);
        assert!(turn.fake.read(map.address(), LEN).unwrap() == all(), "what kernels read");
        let mut random = Random(4);
        for (count, length) in [(1, 1), (1000, 512), (300, 4096), (3, MIB + 3), (0, 100), (7, 0)] {
            let offsets: Vec<_> = (0..count).map(|_| random.below((LEN - length) as u64 + 1)).collect();
            let mut out = case.session.buffer(0, count * length).unwrap();
            let receipt = map.gather(Offsets::Host(&offsets), length, &mut out).unwrap();
            assert_eq!(receipt.moved[Way::Mapped], (count * length) as u64);
            check_gathered(&offsets, length, &out.to_vec().unwrap());
            let words: Vec<u8> = offsets.iter().flat_map(|offset| offset.to_le_bytes()).collect();
            let mut list = case.session.buffer(0, words.len()).unwrap();
            list.copy_from_slice(&words).unwrap();
            map.gather(Offsets::Device(&list, count), length, &mut out).unwrap();
            check_gathered(&offsets, length, &out.to_vec().unwrap());
        }
        map.check().unwrap();
    });
}

fn check_gathered(offsets: &[u64], length: usize, bytes: &[u8]) {
    for (index, offset) in offsets.iter().enumerate() {
        assert!(bytes[index * length..][..length] == all()[*offset as usize..][..length], "piece {index}");
    }
}

/// Offsets for a list of several kernels.
fn long_list(count: usize, length: usize) -> Vec<u64> {
    let mut random = Random(count as u64);
    (0..count).map(|_| random.below((LEN - length) as u64 + 1)).collect()
}

#[test]
fn long_lists_come_in_parts_as_if_by_one_kernel() {
    let turn = turn();
    let session = open(config());
    let (_scratch, file) = subject(&disk(), KEY, LEN);
    let map = session.map(&file, &gpu(&session)).unwrap();
    for (count, length) in [(8192, 24), (8193, 24), (90_000, 16)] {
        let mut offsets = long_list(count, length);
        let mut out = session.buffer(0, count * length).unwrap();
        let receipt = map.gather(Offsets::Host(&offsets), length, &mut out).unwrap();
        assert_eq!(receipt.moved[Way::Mapped], (count * length) as u64);
        check_gathered(&offsets, length, &out.to_vec().unwrap());
        // The error names a refused piece by its place in the whole list.
        let bad = [8191, count - 1, count / 2];
        for at in bad {
            offsets[at] = u64::MAX;
        }
        let error = map.gather(Offsets::Host(&offsets), length, &mut out).unwrap_err();
        let first = bad.iter().min().unwrap().to_string();
        let refused = bad.iter().collect::<std::collections::BTreeSet<_>>().len().to_string();
        assert_eq!(common::context(&error, "first"), Some(first.as_str()), "{error:?}");
        assert_eq!(common::context(&error, "refused"), Some(refused.as_str()), "{error:?}");
        let bytes = out.to_vec().unwrap();
        assert!(bad.iter().all(|at| bytes[at * length..][..length].iter().all(|byte| *byte == 0)));
    }
    // A device that fails in the middle of a list: nothing is left in flight, and the next list is copied.
    let offsets = long_list(90_000, 16);
    let mut out = session.buffer(0, 90_000 * 16).unwrap();
    turn.fake.fail_next("cuLaunchKernel", 2, 1, 1);
    map.gather(Offsets::Host(&offsets), 16, &mut out).unwrap_err();
    map.gather(Offsets::Host(&offsets), 16, &mut out).unwrap();
    check_gathered(&offsets, 16, &out.to_vec().unwrap());
}

#[test]
fn gathers_by_address_of_many_threads_wait_for_their_streams() {
    let turn = turn();
    let session = open(config());
    let (_scratch, file) = subject(&disk(), KEY, LEN);
    let map = session.map(&file, &gpu(&session)).unwrap();
    let primary = turn.fake.retain_primary(0).unwrap();
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let (map, session, turn) = (&map, &session, &turn);
            scope.spawn(move || {
                turn.fake.set_current_context(primary).unwrap();
                let stream = turn.fake.create_stream(1).unwrap();
                // SAFETY: the stream lives until the end of this thread.
                let mine = unsafe { gpu(session).foreign_stream(stream) }.unwrap();
                for round in 0..4 {
                    let (count, length) = (9000 + thread * 500 + round, 40);
                    let offsets = long_list(count, length);
                    let out = session.buffer(0, count * length).unwrap();
                    // Work that is still to come on the stream writes to the same memory first.
                    // SAFETY: the buffer and the stream live until the gather, which comes after, is over.
                    let receipt = unsafe {
                        mine.zero(DeviceRange::new(out.address(), count * length)).unwrap();
                        let after = (round % 2 == 0).then_some(stream);
                        if after.is_none() {
                            mine.synchronize(Wait::Block).unwrap();
                        }
                        map.gather_at(Offsets::Host(&offsets), length, out.address(), after).unwrap()
                    };
                    assert_eq!(receipt.moved[Way::Mapped], (count * length) as u64);
                    check_gathered(&offsets, length, &out.to_vec().unwrap());
                }
                turn.fake.begin_capture(stream, 2).unwrap();
                let out = session.buffer(0, 8).unwrap();
                // SAFETY: the buffer lives until the call is over.
                let refused = unsafe { map.gather_at(Offsets::Host(&[0]), 8, out.address(), Some(stream)) };
                assert_eq!(refused.unwrap_err().kind(), ErrorKind::Unsupported);
                assert_eq!(turn.fake.end_capture(stream).unwrap(), 0, "no work of the engine was captured");
                drop(mine);
                turn.fake.destroy_stream(stream).unwrap();
            });
        }
    });
}

#[test]
fn offsets_outside_of_the_file_are_refused_and_the_others_gathered() {
    each(|_, case| {
        let map = case.session.map(&case.file, &gpu(&case.session)).unwrap();
        let offsets = [5, LEN as u64 - 511, 700, u64::MAX - 3, LEN as u64, LEN as u64 - 512];
        let mut out = case.session.buffer(0, 6 * 512).unwrap();
        out.copy_from_slice(&[0xA5; 6 * 512]).unwrap();
        let error = map.gather(Offsets::Host(&offsets), 512, &mut out).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput, "{error:?}");
        assert_eq!(common::context(&error, "refused"), Some("3"), "{error:?}");
        assert_eq!(common::context(&error, "first"), Some("1"), "{error:?}");
        let bytes = out.to_vec().unwrap();
        for (index, offset) in offsets.into_iter().enumerate() {
            let piece = &bytes[index * 512..][..512];
            match usize::try_from(offset).ok().filter(|offset| *offset <= LEN - 512) {
                Some(offset) => assert!(piece == &all()[offset..offset + 512], "piece {index}"),
                None => assert!(piece.iter().all(|byte| *byte == 0), "piece {index}"),
            }
        }
        let error = map.gather(Offsets::Host(&offsets), 513, &mut out).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput, "the buffer is too small: {error:?}");
    });
}

#[test]
fn raw_gathers_of_many_threads_and_streams() {
    each(|turn, case| {
        let map = case.session.map(&case.file, &gpu(&case.session)).unwrap();
        let primary = turn.fake.retain_primary(0).unwrap();
        std::thread::scope(|scope| {
            for thread in 0..3u64 {
                let map = &map;
                scope.spawn(move || {
                    turn.fake.set_current_context(primary).unwrap();
                    let stream = turn.fake.create_stream(1).unwrap();
                    for round in 0..10u64 {
                        let offsets: Vec<_> =
                            (0..100).map(|at| (thread * 7 + round * 3 + at) * 10_007).collect();
                        let words: Vec<u8> = offsets.iter().flat_map(|offset| offset.to_le_bytes()).collect();
                        let mut list = case.session.buffer(0, words.len()).unwrap();
                        list.copy_from_slice(&words).unwrap();
                        let out = case.session.buffer(0, 100 * 900).unwrap();
                        let request = RawGather {
                            offsets: list.address(),
                            count: 100,
                            length: 900,
                            out: out.address(),
                        };
                        let stream = (round % 2 == 0).then_some(stream);
                        // SAFETY: buffers and stream live until the gather is waited for.
                        let gathering = unsafe { map.gather_raw(stream, request) }.unwrap();
                        assert_eq!(gathering.wait().unwrap().moved[Way::Mapped], 90_000);
                        check_gathered(&offsets, 900, &out.to_vec().unwrap());
                    }
                    turn.fake.destroy_stream(stream).unwrap();
                });
            }
        });
    });
}

#[test]
fn an_empty_file_and_a_source_without_pages_cannot_be_mapped() {
    let _turn = turn();
    let session = open(config());
    let (_scratch, file) = subject(&disk(), KEY, 0);
    let error = session.map(&file, &gpu(&session)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidInput, "{error:?}");
    let memory = forebay_engine::source::MemorySource::new(vec![1; 9 * MIB], Duration::ZERO);
    let file = File::from_source(std::sync::Arc::new(memory)).unwrap();
    for error in [
        session.map(&file, &gpu(&session)).unwrap_err(),
        session.probe_mapped(&file, &gpu(&session)).unwrap_err(),
    ] {
        assert_eq!(error.kind(), ErrorKind::Unsupported, "{error:?}");
    }
    let receipt = fetch(&session, &file, 0, 9 * MIB).unwrap().1;
    check_staged(&receipt, "not a file");
    let host = session.devices().host.clone();
    let (_scratch, file) = subject(&disk(), KEY, 5000);
    let error = session.map(&file, &host).unwrap_err();
    assert!(error.kind() == ErrorKind::Unsupported && error.message().contains("host memory"), "{error:?}");
}
