//! The operations against a server in the process.
#![allow(clippy::unwrap_used)]

use std::sync::{OnceLock, mpsc};
use std::time::{Duration, Instant};

use fake_s3::{Asked, FakeS3, Fault};
use forebay_error::{ErrorKind, Result};
use forebay_source::{Direction, Fill, HostRange, Request, Upload};

use super::upload::ObjectUpload;
use super::{Bucket, Listed, buckets};

/// The server of this process. Faults are of the bucket of their test.
fn server() -> &'static FakeS3 {
    static SERVER: OnceLock<FakeS3> = OnceLock::new();
    SERVER.get_or_init(|| {
        let server = FakeS3::start();
        for (name, value) in server.environment() {
            // SAFETY: nothing in this crate's tests reads the environment before it has the server.
            unsafe { std::env::set_var(name, value) };
        }
        server
    })
}

fn bucket(name: &str) -> Bucket {
    server().make_bucket(name);
    Bucket::of(name).unwrap()
}

fn pattern(len: usize) -> Vec<u8> {
    forebay_contract::pattern(1, 0, len)
}

/// Requests of one kind for one bucket go wrong.
struct Wrong;

impl Wrong {
    fn always(name: &'static str, asked: Asked, fault: Fault) -> Self {
        Self::first(name, asked, u64::MAX, fault)
    }

    fn first(name: &'static str, asked: Asked, mut times: u64, fault: Fault) -> Self {
        server().faults(move |seen| {
            let is_it = seen.bucket == name && seen.asked == asked && times > 0;
            times -= u64::from(is_it);
            is_it.then(|| fault.clone())
        });
        Self
    }
}

impl Drop for Wrong {
    fn drop(&mut self) {
        server().no_faults();
    }
}

/// One test at a time has faults.
fn alone() -> std::sync::MutexGuard<'static, ()> {
    static ALONE: std::sync::Mutex<()> = std::sync::Mutex::new(());
    crate::lock(&ALONE)
}

#[test]
fn objects_are_written_looked_at_read_and_removed() {
    let bucket = bucket("simple");
    let key = "a b/ü+%?&=#\u{1f600}//..";
    let bytes = pattern(100_001);
    bucket.put(key, &bytes).unwrap();
    let head = bucket.head(key, None).unwrap();
    assert_eq!((head.len, head.takes_ranges), (100_001, true));
    assert!(head.etag.is_some() && head.modified.is_some());
    assert!(head.checksums.iter().any(|(name, _)| name == "crc64nvme"), "{head:?}");
    assert!(bucket.get(key, head.etag.as_deref()).unwrap() == bytes);
    let error = bucket.get(key, Some("\"other\"")).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Busy, "{error:?}");
    bucket.copy_from(&bucket, key, "copy").unwrap();
    assert!(server().get("simple", "copy").unwrap() == bytes);
    bucket.delete(key).unwrap();
    assert_eq!(server().keys("simple"), ["copy"]);
    assert_eq!(bucket.head(key, None).unwrap_err().kind(), ErrorKind::NotFound);
    bucket.put("empty", b"").unwrap();
    assert_eq!(bucket.head("empty", None).unwrap().len, 0);
    assert!(buckets().unwrap().iter().any(|(name, _)| name == "simple"));
}

#[test]
fn listings_have_all_pages() {
    let _alone = alone();
    let bucket = bucket("pages");
    for number in 0..25 {
        server().put("pages", &format!("a/{number:02} +%"), "x");
    }
    server().put("pages", "a/z/deep", "x");
    server().put("pages", "b", "xyz");
    let _wrong = Wrong::always("pages", Asked::List, Fault::Page(7));
    let names = |prefix: &str, is_tree| {
        let listed = bucket.list(prefix, is_tree).map(|listed| match listed.unwrap() {
            Listed::Object(object) => object.key,
            Listed::Folder(prefix) => prefix,
        });
        listed.collect::<Vec<_>>()
    };
    assert_eq!(names("", true), server().keys("pages"));
    assert_eq!(names("", false), ["a/", "b"]);
    assert_eq!(names("a/", false).len(), 26);
    assert_eq!(names("none", false), [""; 0]);
}

#[test]
fn many_objects_are_removed_by_few_calls() {
    let bucket = bucket("many");
    let keys: Vec<String> = (0..2500).map(|number| format!("<{number}>&\"\r")).collect();
    for key in &keys {
        server().put("many", key, "x");
    }
    assert!(bucket.delete_many(&keys).unwrap().is_empty());
    assert_eq!(server().keys("many"), [""; 0]);
}

#[test]
fn errors_say_what_to_type() {
    let _alone = alone();
    let there = bucket("errors");
    server().put("errors", "a/b", "x");
    let error = there.head("a/c", None).unwrap_err();
    assert_eq!(
        (error.kind(), error.message()),
        (ErrorKind::NotFound, "cannot read the object: no such object")
    );
    assert_eq!(error.hints(), ["list what is there: forebay s3 ls s3://errors/a/"]);
    let missing = Bucket::of("missing-bucket").unwrap();
    let error = missing.list("", true).next().unwrap().unwrap_err();
    assert_eq!(
        (error.kind(), error.hints()),
        (ErrorKind::NotFound, &["list your buckets: forebay s3 ls".to_owned()][..])
    );
    for (fault, kind, hint) in [
        (Fault::Error(403, "AccessDenied", None), ErrorKind::PermissionDenied, "give them the right"),
        (
            Fault::Error(403, "SignatureDoesNotMatch", None),
            ErrorKind::PermissionDenied,
            "AWS_SECRET_ACCESS_KEY",
        ),
        (Fault::Error(400, "ExpiredToken", None), ErrorKind::PermissionDenied, "get new ones"),
        (Fault::Error(403, "RequestTimeTooSkewed", None), ErrorKind::PermissionDenied, "set the clock"),
        (Fault::Redirect(301, "eu-west-3", None), ErrorKind::InvalidInput, "export AWS_REGION=eu-west-3"),
    ] {
        let _wrong = Wrong::always("errors", Asked::List, fault.clone());
        let error = there.list("", true).next().unwrap().unwrap_err();
        assert_eq!(error.kind(), kind, "{fault:?}: {error:?}");
        assert!(error.hints().iter().any(|one| one.contains(hint)), "{fault:?}: {error:?}");
        assert!(!format!("{error:?}").contains(fake_s3::SECRET_KEY));
    }
}

#[test]
fn calls_are_sent_again_while_the_server_is_busy() {
    let _alone = alone();
    let bucket = bucket("busy");
    for fault in [
        Fault::Error(503, "SlowDown", None),
        Fault::Error(500, "InternalError", None),
        Fault::Cut(fake_s3::Place::BeforeHead),
        Fault::Reset(fake_s3::Place::InHead(5)),
    ] {
        let _wrong = Wrong::first("busy", Asked::Put, 2, fault.clone());
        bucket.put("a", b"xyz").unwrap_or_else(|error| panic!("{fault:?}: {error:?}"));
    }
}

/// Writes through the upload's source, by requests of these lengths, and waits for all answers.
fn write(upload: &dyn Upload, offset: usize, bytes: &[u8], piece: usize) -> Result<()> {
    let source = upload.source();
    let Fill::Requests(requests) = source.fill() else { panic!("an upload has a descriptor") };
    let (sender, answers) = mpsc::channel();
    for (index, part) in bytes.chunks(piece).enumerate() {
        let sender = sender.clone();
        let request = Request {
            direction: Direction::Write,
            offset: (offset + index * piece) as u64,
            memory: HostRange::of(part),
            ahead: 0,
        };
        requests.start(request, Box::new(move |answer| sender.send(answer).unwrap()));
    }
    drop(sender);
    let all: Vec<_> = answers.iter().collect();
    assert_eq!(all.len(), bytes.chunks(piece).count());
    all.into_iter()
        .collect::<Result<Vec<_>>>()
        .map(|moved| assert_eq!(moved.iter().sum::<usize>(), bytes.len()))
}

const MIB: usize = 1 << 20;

fn uploaded(bucket: &Bucket, key: &str, bytes: &[u8], piece: usize) -> Result<()> {
    let upload = Box::new(ObjectUpload::new(bucket.clone(), key));
    write(&*upload, 0, bytes, piece)?;
    upload.finish(true).map(|notes| assert!(notes.is_empty()))
}

#[test]
fn uploads_of_any_length_and_pieces() {
    let bucket = bucket("uploads");
    let bytes = pattern(50 * MIB + 7);
    for (len, piece) in [
        (0, 1),
        (1, 1),
        (5 * MIB, MIB),
        (16 * MIB, 16 * MIB),
        (40 * MIB, 2 * MIB),
        (50 * MIB + 7, 50 * MIB),
        (33 * MIB, 5_000_011),
    ] {
        uploaded(&bucket, "a", &bytes[..len], piece).unwrap();
        assert!(server().get("uploads", "a").unwrap() == bytes[..len], "{len} {piece}");
        assert_eq!(server().open_uploads_of("uploads"), 0);
    }
    let head = bucket.head("a", None).unwrap();
    assert!(head.is_full_checksum && head.checksums.iter().any(|(name, _)| name == "crc64nvme"), "{head:?}");
}

#[test]
fn bytes_that_were_not_written_are_zeros() {
    let bucket = bucket("holes");
    let upload = Box::new(ObjectUpload::new(bucket.clone(), "a"));
    // As a program does that makes room, and writes the beginning last.
    write(&*upload, 70 * MIB - 1, &[0], 1).unwrap();
    for at in [60 * MIB, 35 * MIB, 20 * MIB, 5] {
        write(&*upload, at, &[7; 1000], 500).unwrap();
    }
    upload.finish(true).unwrap();
    let stored = server().get("holes", "a").unwrap();
    assert_eq!(stored.len(), 70 * MIB);
    let expected = |at: usize| {
        [60 * MIB, 35 * MIB, 20 * MIB, 5].iter().any(|start| (*start..start + 1000).contains(&at))
    };
    assert!(stored.iter().enumerate().all(|(at, byte)| *byte == if expected(at) { 7 } else { 0 }));
    let small = Box::new(ObjectUpload::new(bucket, "b"));
    write(&*small, 3, b"x", 1).unwrap();
    small.finish(true).unwrap();
    assert_eq!(server().get("holes", "b").unwrap(), b"\0\0\0x");
}

#[test]
fn more_parts_at_once_than_there_is_memory_for() {
    let bucket = bucket("wide");
    let bytes = pattern(160 * MIB);
    let upload = Box::new(ObjectUpload::new(bucket, "a"));
    let source = upload.source();
    let Fill::Requests(requests) = source.fill() else { panic!("an upload has a descriptor") };
    let (sender, answers) = mpsc::channel();
    // The halves of each part, all first halves before the second ones.
    for half in 0..2 {
        for part in 0..10 {
            let start = (2 * part + half) * 8 * MIB;
            let memory = HostRange::of(&bytes[start..start + 8 * MIB]);
            let request = Request { direction: Direction::Write, offset: start as u64, memory, ahead: 0 };
            let sender = sender.clone();
            requests.start(request, Box::new(move |answer| sender.send(answer).unwrap()));
        }
    }
    for _ in 0..20 {
        assert_eq!(answers.recv_timeout(Duration::from_secs(30)).unwrap().unwrap(), 8 * MIB);
    }
    upload.finish(true).unwrap();
    assert!(server().get("wide", "a").unwrap() == bytes);
}

/// Waits until nothing of uploads is left.
fn nothing_left() {
    let began = Instant::now();
    while server().open_uploads() > 0 {
        assert!(began.elapsed() < Duration::from_secs(60), "parts are left");
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn an_upload_that_is_given_up_leaves_nothing() {
    let _alone = alone();
    let bucket = bucket("dropped");
    let bytes = pattern(40 * MIB);
    let upload = ObjectUpload::new(bucket.clone(), "a");
    write(&upload, 0, &bytes, 4 * MIB).unwrap();
    drop(upload);
    nothing_left();
    assert_eq!(server().keys("dropped"), [""; 0]);
    for (asked, fault, kind) in [
        (Asked::Create, Fault::Error(403, "AccessDenied", None), ErrorKind::PermissionDenied),
        (Asked::Part, Fault::Error(403, "AccessDenied", None), ErrorKind::PermissionDenied),
        (Asked::Complete, Fault::ErrorInBody("AccessDenied"), ErrorKind::PermissionDenied),
        (Asked::Complete, Fault::Error(400, "InvalidPart", None), ErrorKind::InvalidInput),
    ] {
        let _wrong = Wrong::always("dropped", asked, fault.clone());
        let error = uploaded(&bucket, "a", &bytes, 4 * MIB).unwrap_err();
        assert_eq!(error.kind(), kind, "{asked:?} {fault:?}: {error:?}");
        nothing_left();
        // A server that says it could not end the upload may have done it.
        if !matches!(fault, Fault::ErrorInBody(_)) {
            assert_eq!(server().keys("dropped"), [""; 0], "{asked:?} {fault:?}");
        }
        server().remove("dropped", "a");
    }
}

#[test]
fn parts_are_sent_again_and_replies_compared() {
    let _alone = alone();
    let bucket = bucket("faults");
    let bytes = pattern(40 * MIB);
    for (asked, fault) in [
        (Asked::Part, Fault::Error(503, "SlowDown", Some(1))),
        (Asked::Part, Fault::Reset(fake_s3::Place::BeforeHead)),
        (Asked::Complete, Fault::ErrorInBody("InternalError")),
        // Done, and the reply is lost.
        (Asked::Complete, Fault::Cut(fake_s3::Place::BeforeHead)),
    ] {
        let _wrong = Wrong::first("faults", asked, 1, fault.clone());
        uploaded(&bucket, "a", &bytes, 4 * MIB)
            .unwrap_or_else(|error| panic!("{asked:?} {fault:?}: {error:?}"));
        assert!(server().get("faults", "a").unwrap() == bytes, "{asked:?} {fault:?}");
        server().remove("faults", "a");
        nothing_left();
    }
    let _wrong = Wrong::always("faults", Asked::Put, Fault::Forget);
    let error = bucket.put("b", b"xyz").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt, "{error:?}");
}

#[test]
fn stores_that_refuse_checksums_get_none() {
    let _alone = alone();
    // An endpoint of its own: the others keep their checksums.
    let bucket = bucket("old");
    let (account, site) = (bucket.endpoint.account.clone(), bucket.endpoint.site.clone());
    let endpoint = crate::endpoint::Endpoint::new(account, site);
    let bucket = Bucket { endpoint, ..bucket };
    let _wrong = Wrong::first("old", Asked::Put, 1, Fault::Error(501, "NotImplemented", None));
    bucket.put("a", b"xyz").unwrap();
    assert!(!bucket.endpoint.sends_checksums());
    uploaded(&bucket, "b", &pattern(20 * MIB), 4 * MIB).unwrap();
    let heads = server().heads();
    let has = |path: &str| {
        heads.iter().any(|head| head.contains(path) && head.contains("x-amz-checksum-crc64nvme"))
    };
    assert!(has("/old/a") && !has("/old/b"));
}

/// By one call or by parts: what an object is described by goes with it.
#[test]
fn copies_have_the_metadata_of_their_objects() {
    const MEBI: u64 = 1 << 20;
    let bucket = bucket("described");
    let described = [
        ("content-type", "text/plain"),
        ("content-encoding", "zstd"),
        ("content-disposition", "attachment; filename=\"a\""),
        ("content-language", "de"),
        ("cache-control", "max-age=60"),
        ("expires", "Thu, 01 Dec 2033 16:00:00 GMT"),
        ("x-amz-meta-run", "7 b"),
        ("x-amz-meta-other", "a+%20"),
        ("x-amz-tagging", "team=a%26b%3D%2B&empty=&k%20y=%C3%BC"),
    ];
    server().put("described", "key", pattern(1000));
    server().describe("described", "key", &described);
    let sorted = |key| {
        let mut found = server().metadata("described", key);
        found.sort();
        found
    };
    for (name, most) in [("by one call", MEBI), ("by parts", 999)] {
        bucket.copy_by(&bucket, "key", name, most).unwrap();
        assert_eq!(sorted(name), sorted("key"), "{name}");
        assert!(server().get("described", name).unwrap() == pattern(1000), "{name}");
    }
    // Who may not read tags copies without.
    let _alone = alone();
    let _wrong = Wrong::always("described", Asked::Tags, Fault::Error(403, "AccessDenied", None));
    bucket.copy_by(&bucket, "key", "without", 999).unwrap();
    assert_eq!(
        sorted("without"),
        sorted("key").into_iter().filter(|(name, _)| name != "x-amz-tagging").collect::<Vec<_>>()
    );
}
