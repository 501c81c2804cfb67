//! An object that is opened to be read is asked for its first bytes at once: a small one is opened and read by one request.

use fake_s3::{Asked, FakeS3, Fault, Place};
use forebay_engine::File;
use forebay_error::ErrorKind;

use crate::servers::{BUCKET, LEN, opened, pattern, read, started, try_open};

/// Bytes that come with the opening.
const FIRST: usize = 256 << 10;

#[test]
fn a_small_object_is_opened_and_read_by_one_request() {
    for len in [1, 4096, FIRST] {
        let bytes = pattern(len);
        let server = started(&bytes);
        let file = opened(&server);
        assert_eq!(file.len().unwrap(), len as u64);
        file.state().unwrap().unwrap();
        // In two parts, as headers and what they describe.
        assert!(read(&file, 0, len / 2).unwrap() == bytes[..len / 2]);
        assert!(read(&file, len / 2, len - len / 2).unwrap() == bytes[len / 2..]);
        assert_eq!(server.all_requests(), 1, "{:?}", server.heads());
        // A second read comes from the server.
        assert!(read(&file, 0, len).unwrap() == bytes);
        assert_eq!(server.all_requests(), 2);
    }
}

#[test]
fn a_longer_object_is_read_by_ranges() {
    let bytes = pattern(LEN);
    let server = started(&bytes);
    let file = opened(&server);
    assert!(read(&file, 0, 100).unwrap() == bytes[..100]);
    assert_eq!(server.all_requests(), 1);
    // Not all of it came with the opening.
    assert!(read(&file, 100, FIRST).unwrap() == bytes[100..][..FIRST]);
    assert_eq!(server.all_requests(), 2);
    assert!(read(&file, 0, LEN).unwrap() == bytes);
    assert_eq!(server.requests(Asked::Head), 0);
}

#[test]
fn an_empty_object_has_no_first_byte() {
    let server = started(b"");
    let file = opened(&server);
    assert_eq!((file.len().unwrap(), server.requests(Asked::Get), server.requests(Asked::Head)), (0, 1, 1));
    assert_eq!(read(&file, 0, 1).unwrap_err().kind(), ErrorKind::ShortRead);
}

#[test]
fn a_server_that_takes_no_ranges_gives_the_same_bytes() {
    for len in [1000, FIRST, FIRST + 1, 3_000_000] {
        let bytes = pattern(len);
        let server = started(&bytes);
        server.fault_always(Asked::Get, Fault::Whole);
        let file = opened(&server);
        assert_eq!(file.len().unwrap(), len as u64);
        assert!(read(&file, 0, len).unwrap() == bytes, "{len}");
        assert_eq!(server.requests(Asked::Get), if len <= FIRST { 1 } else { 2 });
    }
    let empty = started(b"");
    empty.fault_always(Asked::Get, Fault::Whole);
    assert_eq!((opened(&empty).len().unwrap(), empty.all_requests()), (0, 1));
}

/// The bytes are those of the object that was opened, or the read fails.
#[test]
fn an_object_that_is_replaced_behind_its_opening_is_not_mixed() {
    let (before, after) = (pattern(5000), vec![7; 5000]);
    let server = started(&before);
    let file = opened(&server);
    let state = file.state().unwrap().unwrap();
    server.put(BUCKET, "key", after.clone());
    assert!(read(&file, 0, 5000).unwrap() == before);
    assert!(!file.state().unwrap().unwrap().has_bytes_of(&state));
    let error = read(&file, 0, 5000).unwrap_err();
    assert!(error.kind() == ErrorKind::Busy && error.to_string().contains("opened="), "{error}");
    // A read that begins within them and ends behind them is of one object, too.
    server.put(BUCKET, "key", pattern(LEN));
    let file = opened(&server);
    server.put(BUCKET, "key", after.clone());
    assert_eq!(read(&file, 100, FIRST).unwrap_err().kind(), ErrorKind::Busy);
    assert!(read(&opened(&server), 0, 5000).unwrap() == after);
}

/// A reply to the opening that fails or lies: the object is opened nevertheless, or that is an error.
#[test]
fn openings_are_right_whatever_goes_wrong_once() {
    let header = |name, value: &str| Fault::Header(name, value.to_owned());
    let faults = [
        Fault::Error(503, "SlowDown", None),
        Fault::Error(416, "InvalidRange", None),
        Fault::Cut(Place::InHead(20)),
        Fault::Cut(Place::InBody(1000)),
        Fault::Reset(Place::InBody(1000)),
        Fault::Chunked(1000),
        Fault::UntilClose,
        Fault::Interim(&[100, 103]),
        Fault::Short(1),
        Fault::Long(1),
        Fault::Shifted(1),
        Fault::Without("Content-Range"),
        Fault::Without("Content-Length"),
        Fault::WholeChecksum,
        header("Content-Range", "bytes 0-4998/5000"),
        header("Content-Range", "bytes 0-4999/4999"),
        header("Content-Range", "bytes 0-4999/*"),
        header("Content-Range", "bytes */5000"),
        Fault::Body(200, b"<Error><Code>InternalError</Code></Error>".to_vec()),
        Fault::Body(204, Vec::new()),
    ];
    let bytes = pattern(5000);
    for fault in faults {
        let server = started(&bytes);
        server.fault_once(Asked::Get, 0, fault.clone());
        let got = try_open(&server, "s3://bucket/key").and_then(|file| read(&file, 0, 5000));
        let is_body = matches!(fault, Fault::Body(200, _));
        match got {
            Ok(got) => assert!(got == bytes, "{fault:?}"),
            // By its head it is an object.
            Err(error) => assert!(is_body, "{fault:?}: {error}"),
        }
    }
}

/// Changed bytes are noticed where the checksum of all comes with them.
#[test]
fn a_whole_object_is_compared_with_the_checksum_that_comes_with_it() {
    let server = started(&pattern(5000));
    server.faults(|seen| (seen.before == 0).then_some(Fault::WholeChecksum));
    assert!(try_open(&server, "s3://bucket/key").is_ok());
    server.put(BUCKET, "sums", pattern(5000));
    server.fault_always(Asked::Get, Fault::Header("x-amz-checksum-crc64nvme", "AAAAAAAAAAA=".to_owned()));
    let error = try_open(&server, "s3://bucket/sums").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
}

/// Memory does not grow with the objects that are open: those that were opened first are asked for again.
#[test]
fn the_first_bytes_of_few_objects_are_kept() {
    const OBJECTS: u64 = 200;
    let server = FakeS3::start();
    let name = |number: u64| format!("key{number}");
    let bytes = |number: u64| vec![number as u8; 4000];
    (0..OBJECTS).for_each(|number| drop(server.put(BUCKET, &name(number), bytes(number))));
    let files: Vec<File> = (0..OBJECTS)
        .map(|number| try_open(&server, &format!("s3://bucket/{}", name(number))).unwrap())
        .collect();
    assert_eq!(server.all_requests(), OBJECTS);
    for (number, file) in (0..).zip(&files) {
        assert!(read(file, 0, 4000).unwrap() == bytes(number));
    }
    let again = server.all_requests() - OBJECTS;
    // Other tests of this process open objects, too.
    assert!((OBJECTS - 64..OBJECTS).contains(&again), "{again} were asked for again");
}
