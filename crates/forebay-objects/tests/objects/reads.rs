//! Reads from servers that fail and lie: each ends with the right bytes or with an error, no byte is wrong, and none is written beside
//! its range.

use std::time::{Duration, Instant};

use fake_s3::{Asked, FakeS3, Fault, Place, fill_pattern};
use forebay_engine::{File, Session};
use forebay_error::ErrorKind;

use crate::servers::{BUCKET, LEN, at, opened, pattern, read, started, try_open, with};

fn places() -> Vec<Place> {
    let in_head = [0, 1, 9, 15, 100].map(Place::InHead);
    let in_body = [0, 1, 4095, 100_000, 3_000_000].map(Place::InBody);
    [&[Place::BeforeHead, Place::BehindHead][..], &in_head, &in_body].concat()
}

/// One of these in one of the ranges, and all bytes are right.
#[test]
fn reads_are_right_whatever_goes_wrong_once() {
    let mut faults = vec![
        Fault::Error(500, "InternalError", None),
        Fault::Error(503, "SlowDown", None),
        Fault::Error(503, "SlowDown", Some(1)),
        Fault::Error(429, "TooManyRequests", None),
        Fault::Body(502, b"<html>Bad Gateway</html>".to_vec()),
        Fault::Behind(100),
        Fault::Chunked(4093),
        Fault::Chunked(1_000_003),
        Fault::UntilClose,
        Fault::Interim(&[100, 102, 103]),
        Fault::LongHead(60 << 10),
        Fault::Close,
        Fault::CloseQuietly,
        Fault::Late(Duration::from_millis(100)),
        Fault::Slow(1_000_000, Duration::from_millis(5)),
        Fault::Pause(100_000, Duration::from_millis(100)),
        Fault::Without("ETag"),
        Fault::Without("Last-Modified"),
        Fault::WholeChecksum,
    ];
    for place in places() {
        faults.extend([Fault::Cut(place), Fault::Reset(place)]);
    }
    let bytes = pattern(LEN);
    on_servers(&bytes, &faults, |server, file, fault| {
        let got = read(file, 0, LEN).unwrap_or_else(|error| panic!("{fault:?}: {error:?}"));
        assert!(got == bytes, "{fault:?}");
        server.no_faults();
        assert!(read(file, 5, 100_000).unwrap() == bytes[5..100_005], "{fault:?}");
    });
}

/// A lie of one of the ranges: an error, or all bytes are right.
#[test]
fn a_lie_is_an_error_or_does_no_harm() {
    let header = |name, value: &str| Fault::Header(name, value.to_owned());
    let faults = [
        Fault::Short(1),
        Fault::Short(5_000_000),
        Fault::Short(u64::MAX),
        Fault::Long(1),
        Fault::Long(9_000_000),
        Fault::Whole,
        Fault::Shifted(1),
        Fault::Shifted(4096),
        Fault::Shifted(u64::from(u32::MAX)),
        Fault::Without("Content-Range"),
        Fault::Without("Content-Length"),
        header("Content-Range", "bytes 0-8388607/26000003"),
        header("Content-Range", "bytes 1-8388608/26000003"),
        header("Content-Range", "bytes 0-8388606/26000003"),
        header("Content-Range", "bytes 0-26000002/26000003"),
        header("Content-Range", "bytes 0-8388607/8388608"),
        header("Content-Range", "bytes */26000003"),
        header("Content-Range", "bytes 18446744073709551615-18446744073709551615/*"),
        header("Content-Range", "x"),
        header("Content-Length", "-1"),
        header("Content-Length", "18446744073709551616"),
        header("Transfer-Encoding", "gzip, chunked"),
        header("ETag", "\"another\""),
        Fault::LongHead(64 << 10),
        Fault::BadChunk("zz"),
        Fault::BadChunk("-5"),
        Fault::BadChunk("ffffffffffffffffff"),
        Fault::BadChunk(""),
        Fault::Body(200, b"<Error><Code>InternalError</Code></Error>".to_vec()),
        Fault::Body(206, b"no range".to_vec()),
        Fault::Body(204, Vec::new()),
        Fault::Raw(Vec::new()),
        Fault::Raw(b"\x16\x03\x01\x02\x00".to_vec()),
        Fault::Raw(vec![b'a'; 100_000]),
        Fault::Raw(b"HTTP/1.1 206 Partial Content\r\n\r\n".to_vec()),
        Fault::Raw(
            b"HTTP/1.1 206\r\nContent-Range: bytes 0-9/26000003\r\nContent-Length: 10\r\n\r\n".to_vec(),
        ),
        Fault::Error(404, "NoSuchKey", None),
        Fault::Error(416, "InvalidRange", None),
    ];
    let bytes = pattern(LEN);
    on_servers(&bytes, &faults, |server, file, fault| {
        if let Ok(got) = read(file, 0, LEN) {
            assert!(got == bytes, "{fault:?}");
        }
        // The client works again.
        server.no_faults();
        let file = opened(server);
        assert!(read(&file, 5, 100_000).unwrap() == bytes[5..100_005], "{fault:?}");
    });
}

/// Each fault is of one of the three ranges, in turn; a few servers share the faults.
fn on_servers(bytes: &[u8], faults: &[Fault], each: impl Fn(&FakeS3, &File, &Fault) + Sync) {
    const SERVERS: usize = 4;
    let each = &each;
    std::thread::scope(|scope| {
        for first in 0..SERVERS {
            scope.spawn(move || {
                let server = started(bytes);
                for (index, fault) in faults.iter().enumerate().skip(first).step_by(SERVERS) {
                    let file = opened(&server);
                    server.fault_once(Asked::Get, index as u64 % 3, fault.clone());
                    each(&server, &file, fault);
                }
            });
        }
    });
}

#[test]
fn each_range_is_of_the_object_that_was_opened() {
    let bytes = pattern(LEN);
    let server = started(&bytes);
    let file = opened(&server);
    let before = server.etag(BUCKET, "key").unwrap();
    server.fault_once(Asked::Get, 2, Fault::Replace(pattern(LEN + 1)));
    let error = read(&file, 0, LEN).unwrap_err();
    let after = server.etag(BUCKET, "key").unwrap();
    let text = error.to_string();
    assert!(error.kind() == ErrorKind::Busy && text.contains(&before) && text.contains(&after), "{text}");
    assert_eq!(read(&file, 0, 10).unwrap_err().kind(), ErrorKind::Busy);
    assert!(read(&opened(&server), 0, 10).unwrap() == bytes[..10]);
    // Each range says which object it is of, but for those that open one.
    let heads = server.heads();
    let others = heads.iter().filter(|head| head.starts_with("GET") && !head.contains("if-match"));
    assert!(others.clone().all(|head| head.contains("range: bytes=0-262143\r\n")), "{heads:?}");
    assert_eq!(others.count(), 2);
    server.remove(BUCKET, "key");
    assert!(read(&file, 0, 10).is_err());
}

#[test]
fn a_server_that_closes_each_connection_costs_connections_alone() {
    let bytes = pattern(LEN);
    let server = started(&bytes);
    server.close_each();
    let file = opened(&server);
    assert!(read(&file, 0, LEN).unwrap() == bytes);
    assert_eq!(server.connections(), server.all_requests());
}

#[test]
fn connections_are_used_again_and_ranges_are_large() {
    let bytes = pattern(LEN);
    let server = started(&bytes);
    let file = opened(&server);
    for _ in 0..5 {
        assert!(read(&file, 0, LEN).unwrap() == bytes);
    }
    // 26 MB are 3 ranges of 8 MiB and more.
    let gets = server.requests(Asked::Get);
    assert!((15..=20).contains(&gets), "{gets} ranges");
    assert!(server.connections() <= 16, "{} connections", server.connections());
    assert!(server.most_under_way() > 1);
    server.close_connections();
    assert!(read(&file, 0, LEN).unwrap() == bytes);
}

/// Slots are smaller than ranges: each range fills several.
#[test]
fn one_range_fills_many_slots() {
    let bytes = pattern(LEN);
    let server = started(&bytes);
    let file = opened(&server);
    let session = Session::open().unwrap();
    let mut buffer = session.host_buffer(LEN).unwrap();
    let receipt = session.read(&file, 0, &mut buffer).unwrap();
    assert!(buffer.to_vec().unwrap() == bytes, "{receipt}");
    assert!(server.requests(Asked::Get) <= 5, "{:?}", server.ranges());
}

#[test]
fn ends_and_empty_objects_are_read() {
    let server = started(&pattern(1000));
    server.put(BUCKET, "empty", "");
    let file = opened(&server);
    assert!(read(&file, 990, 10).unwrap() == pattern(1000)[990..]);
    assert_eq!(read(&file, 990, 11).unwrap_err().kind(), ErrorKind::ShortRead);
    assert_eq!(read(&file, 5000, 1).unwrap_err().kind(), ErrorKind::ShortRead);
    let empty = try_open(&server, "s3://bucket/empty").unwrap();
    assert_eq!(empty.len().unwrap(), 0);
    assert_eq!(read(&empty, 0, 1).unwrap_err().kind(), ErrorKind::ShortRead);
    let none = try_open(&server, "s3://bucket/none").unwrap_err();
    assert_eq!(none.kind(), ErrorKind::NotFound, "{none}");
}

#[test]
fn ranges_of_huge_objects_are_read() {
    let server = FakeS3::start();
    server.put_pattern(BUCKET, "key", 5 << 40);
    let file = opened(&server);
    assert_eq!(file.len().unwrap(), 5 << 40);
    let offset = (4 << 40) + 12_345;
    let mut expected = vec![0; 3_000_000];
    fill_pattern(0, offset as u64, &mut expected);
    assert!(read(&file, offset, expected.len()).unwrap() == expected);
}

#[test]
fn names_and_versions_of_urls_are_those_of_the_server() {
    let server = FakeS3::start();
    server.keep_versions(BUCKET);
    let first = server.put(BUCKET, "a b%/ä?", "one").unwrap();
    server.put(BUCKET, "a b%/ä?", "two");
    let file = |url: &str| try_open(&server, url).unwrap();
    assert_eq!(read(&file("s3://bucket/a%20b%25/ä%3F"), 0, 3).unwrap(), b"two");
    assert_eq!(read(&file(&format!("s3://bucket/a%20b%25/ä%3F?versionId={first}")), 0, 3).unwrap(), b"one");
}

#[test]
fn tls_is_spoken_with_a_certificate_that_is_known() {
    forebay_objects::register();
    let server = FakeS3::start_tls();
    let bytes = pattern(LEN);
    server.put(BUCKET, "key", bytes.clone());
    let folder = tempfile::tempdir().unwrap();
    let ca = folder.path().join("ca.pem");
    std::fs::write(&ca, fake_s3::CA).unwrap();
    let known = [server.environment(), vec![("AWS_CA_BUNDLE", ca.to_str().unwrap().to_owned())]].concat();
    let file = with(&known, || File::open("s3://bucket/key")).unwrap();
    server.fault_once(Asked::Get, 1, Fault::Cut(Place::InBody(1_000_000)));
    assert!(read(&file, 0, LEN).unwrap() == bytes);
    let error = at(&server, || File::open("s3://bucket/key")).unwrap_err();
    let text = format!("{error} {:?}", error.hints());
    assert!(text.contains("certificate") && text.contains("AWS_CA_BUNDLE"), "{text}");
}

/// The bucket's name in the host's, whose address only the proxy knows.
#[test]
fn hosts_name_buckets_behind_a_proxy() {
    forebay_objects::register();
    let server = started(&pattern(1000));
    let mine = [
        ("AWS_ENDPOINT_URL", "http://s3.fake.test".to_owned()),
        ("AWS_S3_ADDRESSING_STYLE", "virtual".to_owned()),
        ("http_proxy", server.endpoint()),
    ];
    let variables = [server.environment(), mine.to_vec()].concat();
    server.require_signatures();
    let file = with(&variables, || File::open("s3://bucket/key")).unwrap();
    assert!(read(&file, 0, 1000).unwrap() == pattern(1000));
    assert!(
        server.heads().iter().all(|head| head.contains(" http://bucket.s3.fake.test/key ")),
        "{:?}",
        server.heads()
    );
}

/// `If-Match` is for strong ETags: with a weak one the replies are compared.
#[test]
fn objects_with_weak_etags_are_read_and_compared() {
    let bytes = pattern(LEN);
    let server = started(&bytes);
    let weak = |etag: &str| Fault::Header("ETag", format!("W/\"{etag}\""));
    server.faults(move |_| Some(weak("one")));
    let file = opened(&server);
    assert!(read(&file, 0, LEN).unwrap() == bytes);
    assert!(!server.heads().iter().any(|head| head.to_ascii_lowercase().contains("if-match")));
    server.faults(move |seen| Some(weak(if seen.asked == Asked::Get { "two" } else { "one" })));
    let error = read(&file, 0, LEN).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Busy, "{error:?}");
    assert!(error.to_string().contains("W/\"one\"") && error.to_string().contains("W/\"two\""), "{error}");
    // As trees are copied, whose ETags are those of a listing.
    server.put(BUCKET, "small", "bytes");
    let bucket = crate::servers::bucket(&server);
    assert_eq!(bucket.get("small", Some("W/\"two\"")).unwrap(), b"bytes");
    assert_eq!(bucket.get("small", Some("W/\"one\"")).unwrap_err().kind(), ErrorKind::Busy);
}

/// A storm of refusals slows all requests down together, and ends.
#[test]
fn a_storm_of_refusals_is_waited_for_together() {
    let bytes = pattern(LEN);
    let server = started(&bytes);
    let file = opened(&server);
    let begin = Instant::now();
    server.faults(move |seen| {
        let is_early = seen.asked == Asked::Get && begin.elapsed() < Duration::from_millis(700);
        is_early.then_some(Fault::Error(503, "SlowDown", None))
    });
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| assert!(read(&file, 0, LEN).unwrap() == bytes));
        }
    });
    // Eight readers of three ranges each; a budget for each range would ask some hundred times.
    let refused = server.requests(Asked::Get) - 24;
    assert!(refused < 100, "{refused} requests were refused");
}

/// A bucket that is not there is no object that is not there.
#[test]
fn a_missing_bucket_is_named() {
    let server = started(b"bytes");
    let error = try_open(&server, "s3://nobucket/key").unwrap_err();
    assert!(error.message().contains("no such bucket"), "{error}");
    let error = try_open(&server, "s3://bucket/none").unwrap_err();
    assert!(error.message().contains("no such object"), "{error}");
    server.fault_always(Asked::List, Fault::Error(403, "AccessDenied", None));
    let error = try_open(&server, "s3://bucket/none").unwrap_err();
    assert!(error.message().contains("no such object"), "{error}");
}
