//! One range fills many slots: how many are asked for, and what a reader sees where they fail.
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

#[path = "../../forebay-engine/tests/common/mod.rs"]
mod common;
mod server;

use std::path::Path;
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use common::{Target, config, context, install_gpu};
use fake_s3::{Asked, FakeS3, Fault, Place};
use forebay_config::{CachePolicy, Config, IoBackend};
use forebay_contract::pattern;
use forebay_engine::{Buffer, File, ReadPiece, Session};
use forebay_error::{Error, ErrorKind};
use forebay_source::{Access, Direction, Fill, HostRange, Request, opener_of};
use server::named;

const KEY: u64 = 5;
const MIB: usize = 1 << 20;

fn session() -> Session {
    install_gpu();
    let config = Config { lanes: 2, slots: 4, ..config(IoBackend::Auto, CachePolicy::Auto) };
    Session::with_config(Config { slot_size: 2 << 20, ..config }).unwrap()
}

/// Reads all of an object.
fn read(session: &Session, target: Target, len: usize) -> Result<Buffer, Error> {
    let mut buffer = target.buffer(session, len);
    session.read(&File::open("s3://bucket/object")?, 0, &mut buffer)?;
    Ok(buffer)
}

#[test]
fn slots_in_a_row_share_ranges() {
    const LEN: usize = 256 * MIB;
    let server = named(FakeS3::start());
    let session = session();
    server.put("bucket", "object", pattern(KEY, 0, LEN));
    for target in Target::ALL {
        // On a machine with much to do, requests that come late find their ranges over.
        let gets = (0..4).map(|_| {
            server.forget_counts();
            let buffer = read(&session, target, LEN).unwrap();
            assert!(buffer.to_vec().unwrap() == pattern(KEY, 0, LEN), "wrong bytes");
            server.requests(Asked::Get)
        });
        let gets: Vec<_> = gets.collect();
        // And the opening.
        assert!(
            gets.iter().any(|gets| (17..=LEN as u64 / (8 << 20) + 1).contains(gets)),
            "{target:?}: {gets:?}"
        );
    }
}

#[test]
fn small_neighbours_share_ranges() {
    const SMALL: usize = 95_000;
    let server = named(FakeS3::start());
    let session = session();
    server.put("bucket", "object", pattern(KEY, 0, 40 * SMALL));
    let file = File::open("s3://bucket/object").unwrap();
    for target in Target::ALL {
        server.forget_counts();
        let piece =
            |at: usize| ReadPiece { offset: (1000 + at * SMALL) as u64, range: at * SMALL..(at + 1) * SMALL };
        let pieces: Vec<_> = (0..32).map(piece).collect();
        let buffer = target.buffer(&session, 32 * SMALL);
        let outcome = session.read_batch(&file, &pieces, buffer).unwrap().wait();
        outcome.result().unwrap();
        let bytes = outcome.buffer.to_vec().unwrap();
        for piece in pieces {
            assert!(bytes[piece.range] == pattern(KEY, piece.offset, SMALL), "wrong bytes");
        }
        assert!(server.requests(Asked::Get) <= 3, "{target:?}: {:?}", server.ranges());
    }
}

/// The bytes between the requests are in the object's checksum, and in no request's memory.
#[test]
fn requests_with_a_gap_between_them_fit_the_checksum_of_the_whole() {
    let server = named(FakeS3::start());
    server.make_bucket("bucket");
    // With a checksum.
    forebay_objects::Bucket::of("bucket").unwrap().put("object", &pattern(KEY, 0, MIB)).unwrap();
    let url = Path::new("s3://bucket/object");
    let source = opener_of(url).unwrap().open(url, Access { read: true, write: false, make: false }).unwrap();
    let Fill::Requests(requests) = source.fill() else { panic!("a descriptor") };
    let mut parts = [(0, 400 << 10), (450 << 10, MIB - (450 << 10))].map(|(at, len)| (at, vec![0; len]));
    // Two requests that come at once share a call; on a machine with much to do they may not.
    for _ in 0..20 {
        server.forget_counts();
        let (sender, ends) = channel();
        for (at, memory) in &mut parts {
            memory.fill(0);
            let request = Request {
                direction: Direction::Read,
                offset: *at as u64,
                memory: HostRange::of_mut(memory),
                ahead: 0,
            };
            let sender = sender.clone();
            requests.start(request, Box::new(move |end| sender.send(end).unwrap()));
        }
        for _ in 0..2 {
            ends.recv().unwrap().unwrap();
        }
        for (at, memory) in &parts {
            assert!(*memory == pattern(KEY, *at as u64, memory.len()));
        }
        if server.requests(Asked::Get) == 1 {
            return;
        }
    }
    panic!("no call was shared: {:?}", server.ranges());
}

#[test]
fn an_object_that_is_replaced_ends_the_read_with_both_etags() {
    const LEN: usize = 40 * MIB;
    let server = named(FakeS3::start());
    let session = session();
    for target in Target::ALL {
        server.put("bucket", "object", pattern(KEY, 0, LEN));
        let etag = server.etag("bucket", "object").unwrap();
        server.fault_once(Asked::Get, 2, Fault::Replace(pattern(KEY + 1, 0, LEN)));
        let error = read(&session, target, LEN).err().unwrap();
        assert_eq!(error.kind(), ErrorKind::Busy, "{error:?}");
        let now = server.etag("bucket", "object").unwrap();
        assert_eq!(context(&error, "opened"), Some(format!("\"{etag}\"").as_str()), "{error}");
        assert_eq!(context(&error, "now"), Some(format!("\"{now}\"").as_str()), "{error}");
        assert_eq!(context(&error, "url"), Some("s3://bucket/object"));
    }
}

/// Each of these passes: all bytes come, also those before it only once.
#[test]
fn ranges_that_break_go_on_where_they_broke() {
    const LEN: usize = 24 * MIB + 5;
    let server = named(FakeS3::start());
    let session = session();
    server.put("bucket", "object", pattern(KEY, 0, LEN));
    let faults = [
        Fault::Cut(Place::BeforeHead),
        Fault::Cut(Place::InHead(20)),
        Fault::Cut(Place::InBody(0)),
        Fault::Cut(Place::InBody(3_000_001)),
        Fault::Reset(Place::InBody(100)),
        Fault::Error(503, "SlowDown", None),
        Fault::Error(500, "InternalError", None),
        Fault::Error(429, "TooManyRequests", Some(0)),
        Fault::Close,
        Fault::CloseQuietly,
        Fault::Chunked(100_000),
        Fault::UntilClose,
        Fault::Interim(&[100, 103]),
        Fault::Whole,
    ];
    for fault in faults {
        for nth in [0, 1] {
            for target in Target::ALL {
                server.forget_counts();
                server.fault_once(Asked::Get, nth, fault.clone());
                let buffer = read(&session, target, LEN).unwrap_or_else(|error| panic!("{fault:?}: {error}"));
                assert!(buffer.to_vec().unwrap() == pattern(KEY, 0, LEN), "{fault:?}: wrong bytes");
            }
        }
    }
}

/// Reads of 16 MiB, one behind the other.
fn read_in_a_row(session: &Session, file: &File, target: Target, bytes: &[u8]) -> Result<(), Error> {
    let mut buffer = target.buffer(session, 16 * MIB);
    for (number, expected) in bytes.chunks(16 * MIB).enumerate() {
        session.read(file, (number as u64) << 24, &mut buffer)?;
        assert!(buffer.to_vec().unwrap() == expected, "wrong bytes in read {number}");
    }
    Ok(())
}

/// Bytes of all ranges that were asked for.
fn asked_bytes(server: &FakeS3) -> u64 {
    let length = |range: &String| {
        let (start, last) = range.trim_start_matches("bytes=").split_once('-').unwrap();
        last.parse::<u64>().unwrap() + 1 - start.parse::<u64>().unwrap()
    };
    server.ranges().iter().map(length).sum()
}

/// The server sends what comes next while the reader is between two reads. A range that breaks meanwhile goes on where it broke.
#[test]
fn reads_in_a_row_are_read_ahead() {
    const LEN: usize = 96 * MIB;
    let server = named(FakeS3::start());
    let session = session();
    let bytes = pattern(KEY, 0, LEN);
    server.put("bucket", "object", bytes.clone());
    for target in Target::ALL {
        let file = File::open("s3://bucket/object").unwrap();
        server.no_faults();
        server.forget_counts();
        read_in_a_row(&session, &file, target, &bytes[..16 * MIB]).unwrap();
        assert_eq!(asked_bytes(&server), 16 << 20, "{:?}", server.ranges());
        session.read(&file, 16 << 20, &mut target.buffer(&session, 16 * MIB)).unwrap();
        assert!(asked_bytes(&server) > 32 << 20, "{:?}", server.ranges());
        // On a machine with much to do, a read that comes late finds its range over, and asks anew.
        let is_lean = |nth, place| {
            server.forget_counts();
            server.fault_once(Asked::Get, nth, Fault::Cut(place));
            read_in_a_row(&session, &file, target, &bytes).unwrap();
            asked_bytes(&server) <= (LEN + 8 * MIB) as u64
        };
        for (nth, place) in [(5, Place::InBody(3_000_001)), (6, Place::InHead(9)), (7, Place::InBody(0))] {
            assert!((0..4).any(|_| is_lean(nth, place)), "{place:?}: {:?}", server.ranges());
        }
    }
}

#[test]
fn an_object_that_is_replaced_while_it_is_read_ahead_ends_the_next_read() {
    const LEN: usize = 96 * MIB;
    let server = named(FakeS3::start());
    let session = session();
    let (bytes, others) = (pattern(KEY, 0, LEN), pattern(KEY + 1, 0, LEN));
    for target in Target::ALL {
        server.put("bucket", "object", bytes.clone());
        let file = File::open("s3://bucket/object").unwrap();
        server.fault_once(Asked::Get, 7, Fault::Replace(others.clone()));
        let error = read_in_a_row(&session, &file, target, &bytes).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Busy, "{error:?}");
    }
}

/// None of these passes: the error says what is wrong.
#[test]
fn wrong_replies_are_errors() {
    const LEN: usize = 24 * MIB;
    let server = named(FakeS3::start());
    let session = session();
    server.put("bucket", "object", pattern(KEY, 0, LEN));
    for (fault, kind) in [
        (Fault::Header("content-range", "bytes 1-8388608/25165824".to_owned()), ErrorKind::Io),
        (Fault::Header("etag", "\"other\"".to_owned()), ErrorKind::Busy),
        (Fault::Long(5), ErrorKind::Io),
        (Fault::Short(70_000), ErrorKind::Io),
        (Fault::Error(403, "AccessDenied", None), ErrorKind::PermissionDenied),
        (Fault::Error(404, "NoSuchKey", None), ErrorKind::NotFound),
    ] {
        for target in Target::ALL {
            server.fault_always(Asked::Get, fault.clone());
            let error = read(&session, target, LEN).err().unwrap();
            assert_eq!(error.kind(), kind, "{fault:?}: {error}");
            assert_eq!(context(&error, "url"), Some("s3://bucket/object"), "{fault:?}: {error}");
        }
    }
    server.no_faults();
    assert!(read(&session, Target::Host, LEN).is_ok(), "the endpoint still serves");
}

#[test]
fn what_is_no_object_is_said() {
    let server = named(FakeS3::start());
    server.put("bucket", "folder/object", "bytes");
    for (url, kind) in [
        ("s3://bucket/folder", ErrorKind::IsDirectory),
        ("s3://bucket/folder/", ErrorKind::IsDirectory),
        ("s3://bucket", ErrorKind::IsDirectory),
        ("s3://bucket/folder/none", ErrorKind::NotFound),
        ("s3://bucket/none/", ErrorKind::NotFound),
        ("s3://none/none", ErrorKind::NotFound),
        ("s3://bucket/folder/object?versionId=none", ErrorKind::NotFound),
    ] {
        let error = File::open(url).unwrap_err();
        assert_eq!(error.kind(), kind, "{url}: {error}");
    }
    let error = File::options().write(true).open("s3://bucket/folder/object").unwrap_err();
    assert_eq!((error.kind(), error.hints().len()), (ErrorKind::Unsupported, 1), "{error}");
    let file = File::open("s3://bucket/folder/object").unwrap();
    let state = file.state().unwrap().unwrap();
    assert_eq!(file.state().unwrap().unwrap(), state);
    server.put("bucket", "folder/object", "other");
    assert!(!file.state().unwrap().unwrap().has_bytes_of(&state));
}

#[test]
fn a_whole_object_is_compared_with_its_checksum_and_a_part_is_not() {
    let server = named(FakeS3::start());
    let session = session();
    for (len, fault, is_noticed) in [
        (MIB, Fault::Flip(777), true),
        (5 * MIB, Fault::Flip(4_000_000), true),
        (24 * MIB, Fault::Flip(777), false),
        (24 * MIB, Fault::WholeChecksum, false),
    ] {
        server.put("bucket", "object", pattern(KEY, 0, len));
        for target in Target::ALL {
            // Behind the opening.
            server.fault_once(Asked::Get, 1, fault.clone());
            let error = read(&session, target, len).err();
            let is_corrupt = error.as_ref().is_some_and(|error| error.kind() == ErrorKind::Corrupt);
            assert_eq!((is_corrupt, error.is_some()), (is_noticed, is_noticed), "{len} {fault:?}: {error:?}");
            server.no_faults();
            assert!(read(&session, target, len).unwrap().to_vec().unwrap() == pattern(KEY, 0, len));
        }
    }
}

/// The server is silent for as long as a reader would notice, before and within the body of one range.
#[test]
fn a_range_that_takes_longer_than_others_is_asked_for_again() {
    const LEN: usize = 256 * MIB;
    let server = named(FakeS3::start());
    let session = session();
    server.put("bucket", "object", pattern(KEY, 0, LEN));
    let silent = Duration::from_secs(20);
    assert!(read(&session, Target::Host, LEN).is_ok());
    for fault in [Fault::Late(silent), Fault::Pause(1_000_000, silent)] {
        for target in Target::ALL {
            server.fault_once(Asked::Get, 20, fault.clone());
            let began = Instant::now();
            let buffer = read(&session, target, LEN).unwrap();
            assert!(began.elapsed() < silent, "{fault:?}: {:?}", began.elapsed());
            assert!(buffer.to_vec().unwrap() == pattern(KEY, 0, LEN), "wrong bytes");
        }
    }
}
