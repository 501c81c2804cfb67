//! Uploads to servers that fail and lie: a new object is there when it is whole, or nothing of it is.

use std::time::Duration;

use fake_s3::{Asked, FakeS3, Fault, Place};
use forebay_engine::{File, Session};
use forebay_error::{ErrorKind, Result};
use forebay_source::{Upload, opener_of};

use crate::servers::{BUCKET, at, pattern};

/// A part of 16 MiB, and a shorter one.
const LEN: usize = 17_000_003;

fn begun(server: &FakeS3, session: &Session, bytes: &[u8]) -> Result<Box<dyn Upload>> {
    forebay_objects::register();
    let url = "s3://bucket/new";
    let upload = at(server, || opener_of(url).unwrap().make(url.as_ref(), 0o644))?;
    let file = File::from_source(upload.source())?;
    let mut buffer = session.host_buffer(bytes.len())?;
    buffer.copy_from_slice(bytes)?;
    session.write(&file, 0, &buffer)?;
    Ok(upload)
}

fn uploaded(server: &FakeS3, session: &Session, bytes: &[u8]) -> Result<()> {
    begun(server, session, bytes)?.finish(true).map(drop)
}

/// The server has neither the object nor parts of it.
fn assert_nothing(server: &FakeS3, what: &str) {
    assert_eq!((server.open_uploads(), server.size(BUCKET, "new")), (0, None), "{what}");
}

fn of_passing() -> Vec<(Asked, u64, Fault)> {
    let error = |status, code| Fault::Error(status, code, None);
    let mut all = vec![
        (Asked::Complete, 0, Fault::ErrorInBody("InternalError")),
        (Asked::Complete, 0, Fault::LateError(500, "InternalError")),
        (Asked::Complete, 0, Fault::Chunked(7)),
        (Asked::Part, 1, Fault::EarlyError(503, "SlowDown")),
        (Asked::Part, 1, Fault::SlowRequest(1 << 20, Duration::from_millis(5))),
        (Asked::Part, 1, Fault::LateError(500, "InternalError")),
    ];
    for (asked, nth) in [(Asked::Create, 0), (Asked::Part, 1), (Asked::Complete, 0)] {
        for fault in [
            error(500, "InternalError"),
            error(503, "SlowDown"),
            error(429, "TooManyRequests"),
            Fault::Cut(Place::BeforeHead),
            Fault::Reset(Place::InHead(30)),
            Fault::CloseQuietly,
            Fault::Interim(&[100, 102]),
        ] {
            all.push((asked, nth, fault));
        }
    }
    all
}

#[test]
fn uploads_are_whole_whatever_goes_wrong_once() {
    let bytes = pattern(LEN);
    let faults = of_passing();
    std::thread::scope(|scope| {
        for first in 0..9 {
            let (bytes, faults) = (&bytes, &faults);
            scope.spawn(move || {
                let session = Session::open().unwrap();
                for (asked, nth, fault) in faults.iter().skip(first).step_by(9) {
                    let server = FakeS3::start();
                    server.make_bucket(BUCKET);
                    server.fault_once(*asked, *nth, fault.clone());
                    let done = uploaded(&server, &session, bytes);
                    done.unwrap_or_else(|error| panic!("{asked:?} {fault:?}: {error:?}"));
                    assert!(server.get(BUCKET, "new").unwrap() == *bytes, "{asked:?} {fault:?}");
                    // A reply to the first call that was lost leaves an upload that nobody knows.
                    let is_lost = *asked == Asked::Create && matches!(fault, Fault::Cut(_) | Fault::Reset(_));
                    assert_eq!(server.open_uploads(), usize::from(is_lost), "{asked:?} {fault:?}");
                }
            });
        }
    });
}

#[test]
fn uploads_that_are_refused_leave_nothing() {
    let bytes = pattern(LEN);
    let session = Session::open().unwrap();
    for (asked, nth, fault) in [
        (Asked::Create, 0, Fault::Error(403, "AccessDenied", None)),
        (Asked::Part, 0, Fault::Error(403, "AccessDenied", None)),
        (Asked::Part, 1, Fault::Error(400, "BadDigest", None)),
        (Asked::Part, 1, Fault::EarlyError(403, "AccessDenied")),
        (Asked::Part, 1, Fault::Without("ETag")),
        (Asked::Part, 1, Fault::Header("x-amz-checksum-crc64nvme", "AAAAAAAAAAA=".to_owned())),
        (Asked::Complete, 0, Fault::Error(400, "InvalidPart", None)),
        (Asked::Complete, 0, Fault::ErrorInBody("AccessDenied")),
    ] {
        let server = FakeS3::start();
        server.make_bucket(BUCKET);
        let what = format!("{asked:?} {fault:?}");
        // Sent again it is refused again: a part without its ETag may be.
        let mut count = 0;
        server.faults(move |seen| {
            let is_it = seen.asked == asked;
            count += u64::from(is_it);
            (is_it && count > nth).then(|| fault.clone())
        });
        let error = uploaded(&server, &session, &bytes).unwrap_err();
        // The object is there: the error came behind the work.
        if !what.contains("ErrorInBody") {
            assert_nothing(&server, &format!("{what}: {error}"));
        }
    }
}

#[test]
fn a_server_that_stores_less_than_was_sent_is_found_out() {
    let session = Session::open().unwrap();
    for (asked, nth, len) in [(Asked::Put, 0, 1000), (Asked::Part, 1, LEN)] {
        let server = FakeS3::start();
        server.forget_checksums();
        server.make_bucket(BUCKET);
        server.fault_once(asked, nth, Fault::Forget);
        let error = uploaded(&server, &session, &pattern(len)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt, "{asked:?}: {error}");
    }
}

/// The end of an upload says that there is no such upload: the object that is there may be an older one.
#[test]
fn an_older_object_is_not_taken_for_the_new_one() {
    let (session, bytes) = (Session::open().unwrap(), pattern(LEN));
    let older: Vec<u8> = bytes.iter().map(|byte| !byte).collect();
    for knows_checksums in [true, false] {
        let server = FakeS3::start();
        server.make_bucket(BUCKET);
        if !knows_checksums {
            server.forget_checksums();
        }
        // By as many parts, and as long.
        uploaded(&server, &session, &older).unwrap();
        server.age(BUCKET, "new", 60);
        server.fault_always(Asked::Complete, Fault::Error(404, "NoSuchUpload", None));
        let error = uploaded(&server, &session, &bytes).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotFound, "{knows_checksums}: {error}");
        assert!(server.get(BUCKET, "new").unwrap() == older, "{knows_checksums}");
        // The reply to the end is lost, and the object is the new one.
        server.fault_once(Asked::Complete, 0, Fault::Cut(Place::BeforeHead));
        uploaded(&server, &session, &bytes).unwrap_or_else(|error| panic!("{knows_checksums}: {error}"));
        assert!(server.get(BUCKET, "new").unwrap() == bytes, "{knows_checksums}");
    }
}

/// An upload of which no reply came is nobody's: it is left, as it may be another program's, and said.
#[test]
fn a_lost_reply_to_the_beginning_is_told() {
    let (session, bytes) = (Session::open().unwrap(), pattern(LEN));
    let server = FakeS3::start();
    server.make_bucket(BUCKET);
    server.fault_once(Asked::Create, 0, Fault::Cut(Place::BeforeHead));
    let notes = begun(&server, &session, &bytes).unwrap().finish(true).unwrap();
    assert!(
        notes.len() == 1 && notes[0].contains("abort-multipart-upload --bucket bucket --key new"),
        "{notes:?}"
    );
    assert_eq!((server.open_uploads(), server.requests(Asked::Abort)), (1, 0));
    // Nothing is left of an attempt that was refused.
    server.fault_once(Asked::Create, 0, Fault::Error(503, "SlowDown", None));
    server.age_uploads(60);
    assert!(begun(&server, &session, &bytes).unwrap().finish(true).unwrap().is_empty());
    // An error says it, too.
    let (mut creates, mut ends) = (0, 0);
    server.faults(move |seen| match seen.asked {
        Asked::Create => {
            creates += 1;
            (creates == 1).then_some(Fault::Cut(Place::BeforeHead))
        }
        Asked::Complete => {
            ends += 1;
            (ends == 1).then_some(Fault::Error(400, "InvalidPart", None))
        }
        _ => None,
    });
    let error = uploaded(&server, &session, &bytes).unwrap_err();
    assert!(
        error.hints().iter().any(|hint| hint.contains("abort-multipart-upload")),
        "{error} {:?}",
        error.hints()
    );
}

#[test]
fn an_upload_that_is_dropped_leaves_nothing() {
    let server = FakeS3::start();
    server.make_bucket(BUCKET);
    let session = Session::open().unwrap();
    drop(begun(&server, &session, &pattern(LEN)).unwrap());
    assert_nothing(&server, "dropped");
    drop(begun(&server, &session, &pattern(1000)).unwrap());
    assert_nothing(&server, "dropped before a part was sent");
}

/// The pause of another call is no reason to leave out the last parts.
#[test]
fn an_upload_that_ends_within_a_pause_of_its_endpoint_is_whole() {
    let server = FakeS3::start();
    let bucket = crate::servers::bucket(&server);
    let (session, bytes) = (Session::open().unwrap(), pattern(LEN));
    let upload = begun(&server, &session, &bytes).unwrap();
    // The first part is with the server; the second is sent by the end.
    while server.requests(Asked::Part) < 1 {
        std::thread::sleep(Duration::from_millis(5));
    }
    std::thread::sleep(Duration::from_millis(200));
    server.put(BUCKET, "other", *b"1");
    server.fault_once(Asked::Head, 0, Fault::Error(503, "SlowDown", Some(1)));
    std::thread::scope(|scope| {
        scope.spawn(|| bucket.head("other", None).unwrap());
        while server.requests(Asked::Head) < 1 {
            std::thread::sleep(Duration::from_millis(5));
        }
        std::thread::sleep(Duration::from_millis(50));
        upload.finish(true).unwrap();
    });
    assert!(server.get(BUCKET, "new").unwrap() == bytes);
}
