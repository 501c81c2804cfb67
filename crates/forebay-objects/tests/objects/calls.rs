//! Calls that are waited for, to servers that fail, refuse and lie: each ends right, or says what to do.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::time::Duration;

use fake_s3::{Asked, FakeS3, Fault, Place};
use forebay_error::{Error, ErrorKind};
use forebay_objects::{Bucket, Listed, buckets};

use crate::servers::{BUCKET, at, bucket, pattern, with};

fn bytes(text: &str) -> Arc<[u8]> {
    text.as_bytes().into()
}

fn keys(bucket: &Bucket, prefix: &str) -> Vec<String> {
    let all = bucket.list(prefix, true).map(|one| match one.unwrap() {
        Listed::Object(object) => object.key,
        Listed::Folder(name) => panic!("a folder of a whole tree: {name}"),
    });
    all.collect()
}

/// Names that are hard: of URLs, of XML, of paths, and as long as they may be.
fn odd_names() -> Vec<String> {
    let mut names: Vec<String> = [
        "a//b",
        "a/../b",
        "./a",
        "a+b",
        "a%2Fb",
        "a%b",
        "a b",
        " ",
        "a&b<c>\"d'",
        "a?b#c=d",
        "~!*'()",
        "ä\u{1F600}",
        "\u{10FFFF}",
        "a\u{301}",
        "a\tb\nc",
        "%",
        "%%20",
        "/",
        "a/",
    ]
    .map(str::to_owned)
    .to_vec();
    names.push("l".repeat(1024));
    names.sort();
    names
}

#[test]
fn odd_names_are_written_listed_read_copied_and_removed() {
    let server = FakeS3::start();
    server.require_signatures();
    server.set_page(3);
    let bucket = bucket(&server);
    let names = odd_names();
    for name in &names {
        bucket.put(name, &bytes(name)).unwrap_or_else(|error| panic!("{name:?}: {error}"));
    }
    assert_eq!(server.keys(BUCKET), names);
    assert_eq!(keys(&bucket, ""), names);
    assert!(server.requests(Asked::List) >= 7);
    for name in &names {
        assert_eq!(bucket.head(name, None).unwrap().len, name.len() as u64, "{name:?}");
        bucket.copy_from(&bucket, name, "copy").unwrap_or_else(|error| panic!("{name:?}: {error}"));
        assert_eq!(server.get(BUCKET, "copy").unwrap(), name.as_bytes(), "{name:?}");
        let url = bucket.presign(name, None, Duration::from_mins(1)).unwrap();
        assert_eq!(got(&server, &url), name.as_bytes(), "{url}");
    }
    bucket.delete(&names[0]).unwrap();
    assert!(bucket.delete_many(&names[1..]).unwrap().is_empty());
    assert_eq!(server.keys(BUCKET), ["copy"]);
}

/// What a URL has, without any client of S3.
fn got(server: &FakeS3, url: &str) -> Vec<u8> {
    let path = url.strip_prefix(&server.endpoint()).unwrap();
    let mut stream = TcpStream::connect(server.address()).unwrap();
    write!(stream, "GET {path} HTTP/1.1\r\nHost: {}\r\nConnection: close\r\n\r\n", server.address()).unwrap();
    let mut reply = Vec::new();
    stream.read_to_end(&mut reply).unwrap();
    assert!(reply.starts_with(b"HTTP/1.1 200 "), "{}", String::from_utf8_lossy(&reply));
    let end = reply.windows(4).position(|four| four == b"\r\n\r\n").unwrap();
    reply[end + 4..].to_vec()
}

#[test]
fn folders_are_those_of_the_names() {
    let server = FakeS3::start();
    let bucket = bucket(&server);
    for key in ["a/1", "a/2", "a/b/3", "a.", "c"] {
        server.put(BUCKET, key, key);
    }
    let list = |prefix: &str| -> Vec<String> {
        let one = |one| match one {
            Listed::Object(object) => object.key,
            Listed::Folder(name) => format!("folder {name}"),
        };
        bucket.list(prefix, false).map(|entry| one(entry.unwrap())).collect()
    };
    assert_eq!(list(""), ["folder a/", "a.", "c"]);
    assert_eq!(list("a/"), ["folder a/b/", "a/1", "a/2"]);
    assert!(list("none/").is_empty());
    at(&server, || assert_eq!(buckets().unwrap()[0].0, BUCKET));
}

/// What may pass is asked again: each call works after each of these.
#[test]
fn calls_are_sent_again_where_that_helps() {
    let faults = [
        Fault::Error(500, "InternalError", None),
        Fault::Error(503, "SlowDown", None),
        Fault::Error(503, "SlowDown", Some(1)),
        Fault::Error(429, "TooManyRequests", None),
        Fault::Cut(Place::BeforeHead),
        Fault::Cut(Place::InHead(20)),
        Fault::Reset(Place::BeforeHead),
        Fault::Reset(Place::InHead(20)),
        Fault::Body(502, b"<html>Bad Gateway</html>".to_vec()),
        Fault::Interim(&[100, 102, 103]),
        Fault::Close,
        Fault::CloseQuietly,
        Fault::Late(Duration::from_millis(50)),
    ];
    let each = |fault: Fault| {
        let server = FakeS3::start();
        let bucket = bucket(&server);
        server.put(BUCKET, "key", "bytes");
        let fault = || fault.clone();
        server.fault_once(Asked::Head, 0, fault());
        assert_eq!(bucket.head("key", None).unwrap().len, 5, "{:?}", fault());
        server.fault_once(Asked::List, 0, fault());
        assert_eq!(keys(&bucket, ""), ["key"], "{:?}", fault());
        server.fault_once(Asked::Put, 0, fault());
        bucket.put("new", &bytes("new")).unwrap_or_else(|error| panic!("{:?}: {error}", fault()));
        assert_eq!(server.get(BUCKET, "new").unwrap(), b"new", "{:?}", fault());
        server.fault_once(Asked::Copy, 0, fault());
        bucket.copy_from(&bucket, "new", "copy").unwrap_or_else(|error| panic!("{:?}: {error}", fault()));
        server.fault_once(Asked::DeleteMany, 0, fault());
        assert!(bucket.delete_many(&["key".into(), "new".into()]).unwrap().is_empty(), "{:?}", fault());
        assert_eq!(server.keys(BUCKET), ["copy"], "{:?}", fault());
    };
    std::thread::scope(|scope| {
        for fault in faults {
            scope.spawn(|| each(fault));
        }
    });
}

/// What does not pass is not asked again.
#[test]
fn refusals_say_what_to_do_and_are_final() {
    let server = FakeS3::start();
    let bucket = bucket(&server);
    server.put(BUCKET, "denied/1", "");
    let refused = |fault: Fault| {
        server.fault_once(Asked::List, 0, fault);
        let before = server.requests(Asked::List);
        let error = bucket.list("", true).next().unwrap().unwrap_err();
        assert_eq!(server.requests(Asked::List), before + 1, "{error}");
        error
    };
    let says = |error: Error, kind: ErrorKind, words: &[&str]| {
        let text = format!("{error}\n{}", error.hints().join("\n"));
        assert_eq!(error.kind(), kind, "{text}");
        for word in words {
            assert!(text.contains(word), "{word}: {text}");
        }
    };
    says(
        refused(Fault::Error(403, "AccessDenied", None)),
        ErrorKind::PermissionDenied,
        &["status=403", "AWS_PROFILE"],
    );
    says(
        refused(Fault::Error(400, "ExpiredToken", None)),
        ErrorKind::PermissionDenied,
        &["expired", "environment"],
    );
    says(refused(Fault::Error(403, "RequestTimeTooSkewed", None)), ErrorKind::PermissionDenied, &["clock"]);
    says(
        refused(Fault::Error(501, "NotImplemented", None)),
        ErrorKind::Unsupported,
        &["code=NotImplemented"],
    );
    says(
        refused(Fault::Body(403, b"<html>no</html>".to_vec())),
        ErrorKind::PermissionDenied,
        &["status=403"],
    );
    says(refused(Fault::Body(200, b"<html>hello</html>".to_vec())), ErrorKind::Io, &[]);
    says(refused(Fault::Body(200, Vec::new())), ErrorKind::Io, &["XML"]);
    says(
        bucket.head("none", None).unwrap_err(),
        ErrorKind::NotFound,
        &["no such object", "s3://bucket/none"],
    );
    let failed = bucket.delete_many(&["denied/1".into(), "none".into()]).unwrap();
    assert_eq!(failed.len(), 1);
    assert!(failed[0].0 == "denied/1" && failed[0].1.kind() == ErrorKind::PermissionDenied, "{failed:?}");
    let other = at(&server, || Bucket::of("another")).unwrap();
    says(other.list("", true).next().unwrap().unwrap_err(), ErrorKind::NotFound, &["no such bucket"]);
}

/// Keys, clocks and regions that a server does not take, of requests that it really checks.
#[test]
fn signatures_that_are_refused_say_why() {
    let server = FakeS3::start();
    server.require_signatures();
    server.put(BUCKET, "key", "bytes");
    server.add_keys("AKIDWITHTOKEN", "secret", Some("session/token+="));
    let error = |variables: &[(&str, &str)]| {
        let owned: Vec<_> = variables.iter().map(|(name, value)| (*name, (*value).to_owned())).collect();
        let all = [server.environment(), owned].concat();
        with(&all, || Bucket::of(BUCKET)).unwrap().list("", true).next().unwrap().err()
    };
    let text =
        |error: Option<Error>| error.map_or(String::new(), |error| format!("{error} {:?}", error.hints()));
    assert_eq!(text(error(&[])), "");
    let with_token = [
        ("AWS_ACCESS_KEY_ID", "AKIDWITHTOKEN"),
        ("AWS_SECRET_ACCESS_KEY", "secret"),
        ("AWS_SESSION_TOKEN", "session/token+="),
    ];
    assert_eq!(text(error(&with_token)), "");
    let cases: [(&[(&str, &str)], &str); 5] = [
        (&[("AWS_SECRET_ACCESS_KEY", "wrong")], "the signature is wrong"),
        (&[("AWS_ACCESS_KEY_ID", "unknown")], "does not know the access key"),
        (&[("AWS_SESSION_TOKEN", "wrong")], "session token is wrong"),
        (&[("AWS_NO_SIGN_REQUEST", "true")], "access denied"),
        (&with_token[..2], "session token is wrong"),
    ];
    for (variables, words) in cases {
        let text = text(error(variables));
        assert!(text.contains(words), "{variables:?}: {text}");
    }
    server.expire_keys("AKIDWITHTOKEN");
    assert!(text(error(&with_token)).contains("expired"));
    server.set_skew(3600);
    assert!(text(error(&[])).contains("clock"));
}

/// A bucket of another region is asked there, or the error names the region.
#[test]
fn a_bucket_of_another_region_is_found_or_named() {
    let there = FakeS3::start();
    there.set_region("eu-west-9");
    there.put(BUCKET, "key", "bytes");
    let here = FakeS3::start();
    here.move_bucket(BUCKET, "eu-west-9", &there.endpoint());
    let bucket = bucket(&here);
    assert_eq!(bucket.region().unwrap().as_deref(), Some("eu-west-9"));
    let error = bucket.list("", true).next().unwrap().unwrap_err();
    assert!(
        error.hints().iter().any(|hint| hint.contains("AWS_REGION=eu-west-9")),
        "{error} {:?}",
        error.hints()
    );
    // A wrong region in the signature: S3 says the right one.
    let variables = [there.environment(), vec![("AWS_REGION", "us-east-1".to_owned())]].concat();
    let wrong = with(&variables, || Bucket::of(BUCKET)).unwrap();
    let found = wrong.list("", true).next().unwrap();
    assert!(matches!(found, Ok(Listed::Object(object)) if object.key == "key"));
    wrong.put("new", &bytes("new")).unwrap();
}

/// Lies about an object that was written: it is not there, or not whole.
#[test]
fn objects_that_a_server_has_not_stored_are_an_error() {
    let server = FakeS3::start();
    server.forget_checksums();
    let bucket = bucket(&server);
    server.fault_once(Asked::Put, 0, Fault::Forget);
    let error = bucket.put("new", &bytes("some bytes")).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
    server.fault_once(Asked::Put, 0, Fault::Without("ETag"));
    let _ = bucket.put("new", &bytes("other"));
    assert_eq!(server.get(BUCKET, "new").unwrap(), b"other");
    // Bytes that changed on the way: the checksum that was sent is not that of the bytes.
    let server = FakeS3::start();
    let bucket = crate::servers::bucket(&server);
    server.fault_always(Asked::Put, Fault::Error(400, "BadDigest", None));
    assert_eq!(bucket.put("new", &bytes("some")).unwrap_err().kind(), ErrorKind::Corrupt);
    assert!(server.heads().iter().any(|head| head.contains("x-amz-checksum-crc64nvme: ")));
}

/// A server that refuses checksums is asked without.
#[test]
fn a_server_that_refuses_checksums_gets_none() {
    let server = FakeS3::start();
    let bucket = bucket(&server);
    server.fault_once(Asked::Put, 0, Fault::Error(501, "NotImplemented", None));
    bucket.put("new", &bytes("bytes")).unwrap();
    server.no_faults();
    server.forget_counts();
    bucket.put("newer", &bytes("bytes")).unwrap();
    assert!(!server.heads().iter().any(|head| head.starts_with("PUT") && head.contains("x-amz-checksum")));
}

/// More than 5 GiB are copied in parts, within the server.
#[test]
fn large_objects_are_copied_in_parts() {
    let server = FakeS3::start();
    server.put_pattern(BUCKET, "large", 6 << 30);
    let bucket = bucket(&server);
    bucket.copy_from(&bucket, "large", "copy").unwrap();
    assert_eq!((server.size(BUCKET, "copy"), server.open_uploads()), (Some(6 << 30), 0));
    server.fault_once(Asked::Part, 3, Fault::Error(403, "AccessDenied", None));
    bucket.copy_from(&bucket, "large", "another").unwrap_err();
    assert_eq!((server.size(BUCKET, "another"), server.open_uploads()), (None, 0));
}

/// A listing's page with this text in it.
fn page(text: &str) -> Vec<u8> {
    format!("<ListBucketResult>{text}</ListBucketResult>").into_bytes()
}

fn listing(bucket: &Bucket) -> Result<Vec<Listed>, Error> {
    bucket.list("", true).collect()
}

#[test]
fn replies_without_an_end_are_errors_at_once() {
    let server = FakeS3::start();
    let bucket = bucket(&server);
    let error = |fault: Fault| {
        server.forget_counts();
        server.fault_always(Asked::List, fault);
        let error = listing(&bucket).unwrap_err();
        assert_eq!(server.requests(Asked::List), 1, "{error}");
        error
    };
    let interim = error(Fault::Interim(&[100; 1000]));
    assert!(interim.kind() == ErrorKind::Corrupt && interim.message().contains("1xx"), "{interim}");
    let text = error(Fault::Body(200, page(&" ".repeat(9 << 20)))).to_string();
    assert!(text.contains("too long") && text.contains("url=s3://bucket/"), "{text}");
    assert!(text.contains(&format!("server={}", server.address())), "{text}");
    let denied = [b"<Error><Code>AccessDenied</Code>".to_vec(), vec![b' '; 9 << 20]].concat();
    assert_eq!(error(Fault::Body(403, denied)).kind(), ErrorKind::PermissionDenied);
    server.no_faults();
    let bytes = pattern(8 << 20);
    server.put(BUCKET, "long", bytes.clone());
    assert!(bucket.get("long", None).unwrap() == bytes);
}

/// Tokens in a circle, and empty pages, each with another token.
#[test]
fn listings_without_an_end_are_errors() {
    let server = FakeS3::start();
    let bucket = bucket(&server);
    let object = "<Contents><Key>a</Key><Size>1</Size></Contents>";
    for (circle, contents) in [(2, ""), (2, object), (3, object), (u64::MAX, "")] {
        let mut number = 0;
        server.faults(move |_| {
            number = (number + 1) % circle;
            let next = format!("<NextContinuationToken>{number}</NextContinuationToken>");
            Some(Fault::Body(200, page(&format!("{contents}<IsTruncated>true</IsTruncated>{next}"))))
        });
        server.forget_counts();
        let error = listing(&bucket).unwrap_err();
        assert!(error.message().contains("no end"), "{error}");
        assert!(server.requests(Asked::List) < 1100, "{}", server.requests(Asked::List));
    }
}

/// A store that ignores `If-Match` has another object there than the one that was listed.
#[test]
fn an_object_that_is_not_the_listed_one_is_an_error() {
    let server = FakeS3::start();
    let bucket = bucket(&server);
    server.put(BUCKET, "key", "bytes");
    let etag = bucket.head("key", None).unwrap().etag.unwrap();
    // Listings of some stores leave the quotes out.
    for etag in [etag.as_str(), etag.trim_matches('"')] {
        server.fault_always(Asked::Get, Fault::Body(200, b"bytes".to_vec()));
        assert_eq!(bucket.get("key", Some(etag)).unwrap(), b"bytes");
    }
    let other = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nETag: \"other\"\r\n\r\nother".to_vec();
    server.fault_always(Asked::Get, Fault::Raw(other));
    let error = bucket.get("key", Some(&etag)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Busy, "{error}");
    let text = error.to_string();
    assert!(text.contains("now=\"other\"") && text.contains("url=s3://bucket/key"), "{text}");
}

/// Hints are pasted into shells.
#[test]
fn a_region_that_is_none_is_in_no_hint() {
    let server = FakeS3::start();
    let bucket = bucket(&server);
    let evil = "x; echo pwned; #";
    let body = format!(
        "<Error><Code>AuthorizationHeaderMalformed</Code><Message>m</Message><Region>{evil}</Region></Error>"
    );
    let empty = "<Error><Code>PermanentRedirect</Code><Region></Region></Error>";
    let moved = |location: &str| {
        let head = format!("HTTP/1.1 301 Moved\r\nContent-Length: 0\r\nLocation: {location}\r\n\r\n");
        Fault::Raw(head.into_bytes())
    };
    for fault in [
        Fault::Body(400, body.into_bytes()),
        Fault::Body(301, empty.into()),
        Fault::Redirect(301, "x; echo pwned; #", None),
        moved("https://x;echo pwned/"),
    ] {
        server.fault_always(Asked::List, fault.clone());
        let error = listing(&bucket).unwrap_err();
        assert_eq!(error.hints(), ["set AWS_REGION to the bucket's region"], "{fault:?}: {error}");
    }
    server.fault_always(Asked::List, moved("https://files.example:8443/bucket?a=b"));
    let error = listing(&bucket).unwrap_err();
    assert!(error.message().contains("another endpoint"), "{error}");
    let hints = error.hints();
    assert!(
        hints.len() == 1 && hints[0].ends_with("export AWS_ENDPOINT_URL=https://files.example:8443"),
        "{hints:?}"
    );
}

/// What the server says itself is shown where the client knows less.
#[test]
fn messages_of_servers_are_shown() {
    let server = FakeS3::start();
    let bucket = bucket(&server);
    let error = |status: u16, code: &str| {
        let body = format!("<Error><Code>{code}</Code><Message>its words</Message></Error>");
        server.fault_always(Asked::List, Fault::Body(status, body.into_bytes()));
        listing(&bucket).unwrap_err().to_string()
    };
    assert!(error(403, "AccessDenied").contains("message=its words"));
    let unknown = error(404, "XAdminUserNotFound");
    assert!(unknown.contains("message=its words") && !unknown.contains("no such bucket"), "{unknown}");
    assert!(error(403, "XOther").contains("message=its words"));
    assert!(!error(404, "NoSuchBucket").contains("its words"));
    server.fault_always(Asked::Head, Fault::Error(403, "AccessDenied", None));
    for status in [400, 403] {
        server.fault_always(Asked::Head, Fault::Body(status, Vec::new()));
        let error = bucket.head("a key", None).unwrap_err();
        assert_eq!(error.hints(), ["find the reason: forebay doctor s3://bucket/a%20key"], "{error}");
    }
    // A proxy that takes requests, and wants a user.
    server.fault_always(Asked::Head, Fault::Body(407, Vec::new()));
    let error = bucket.head("key", None).unwrap_err();
    assert!(error.message().contains("proxy") && error.hints()[0].contains("HTTP_PROXY="), "{error:?}");
}

#[test]
fn an_object_that_cannot_be_checked_was_written() {
    let server = FakeS3::start();
    server.forget_checksums();
    let bucket = bucket(&server);
    server.fault_always(Asked::Head, Fault::Body(403, Vec::new()));
    let error = bucket.put("new", b"bytes").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::PermissionDenied);
    assert!(error.message().contains("was written") && error.hints()[0].contains("s3:GetObject"), "{error}");
    assert_eq!(server.get(BUCKET, "new").unwrap(), b"bytes");
}

#[test]
fn the_name_of_an_algorithm_is_no_checksum() {
    let server = FakeS3::start();
    server.forget_checksums();
    let bucket = bucket(&server);
    server.put(BUCKET, "key", "bytes");
    server.fault_always(Asked::Head, Fault::Header("x-amz-checksum-algorithm", "CRC64NVME".to_owned()));
    assert_eq!(bucket.head("key", None).unwrap().checksums, []);
}
