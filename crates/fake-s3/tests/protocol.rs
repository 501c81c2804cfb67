//! The server answers as S3 does, and goes wrong as it should: by bytes over a socket, without any client of S3.
#![allow(clippy::unwrap_used, clippy::format_collect, reason = "helpers of tests")]

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use fake_s3::{Asked, FakeS3, Fault, Place, fill_pattern};

/// Sends bytes and no more, and returns all that comes until the server closes the connection.
fn spoken(server: &FakeS3, request: &[u8]) -> Vec<u8> {
    let mut stream = TcpStream::connect(server.address()).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    stream.write_all(request).unwrap();
    stream.shutdown(std::net::Shutdown::Write).unwrap();
    let mut all = Vec::new();
    let mut block = vec![0; 1 << 16];
    while let Ok(come @ 1..) = stream.read(&mut block) {
        all.extend_from_slice(&block[..come]);
    }
    all
}

/// The reply to a request whose connection is closed behind it.
fn asked(server: &FakeS3, line: &str, headers: &str, body: &[u8]) -> (String, Vec<u8>) {
    let length = if body.is_empty() { String::new() } else { format!("Content-Length: {}\r\n", body.len()) };
    let head = format!("{line} HTTP/1.1\r\nHost: x\r\n{headers}{length}Connection: close\r\n\r\n");
    let reply = spoken(server, &[head.as_bytes(), body].concat());
    let end = reply.windows(4).position(|four| four == b"\r\n\r\n").map_or(reply.len(), |at| at + 4);
    (String::from_utf8(reply[..end].to_vec()).unwrap(), reply[end..].to_vec())
}

fn status(reply: &(String, Vec<u8>)) -> u16 {
    reply.0.split(' ').nth(1).map_or(0, |status| status.parse().unwrap())
}

fn text(reply: &(String, Vec<u8>)) -> String {
    String::from_utf8(reply.1.clone()).unwrap()
}

fn started() -> FakeS3 {
    let server = FakeS3::start();
    server.put("b", "k", "0123456789");
    server
}

#[test]
fn ranges_are_those_of_the_standard() {
    let server = started();
    let table = [
        ("bytes=0-0", 206, "0", "Content-Range: bytes 0-0/10"),
        ("bytes=3-", 206, "3456789", "Content-Range: bytes 3-9/10"),
        ("bytes=-4", 206, "6789", "Content-Range: bytes 6-9/10"),
        ("bytes=-40", 206, "0123456789", "Content-Range: bytes 0-9/10"),
        ("bytes=8-99", 206, "89", "Content-Range: bytes 8-9/10"),
        ("bytes=5-4", 200, "0123456789", "Content-Length: 10"),
        ("items=0-1", 200, "0123456789", "Content-Length: 10"),
    ];
    for (range, expected, body, header) in table {
        let reply = asked(&server, "GET /b/k", &format!("Range: {range}\r\n"), b"");
        assert_eq!((status(&reply), text(&reply).as_str()), (expected, body), "{range}");
        assert!(reply.0.contains(header), "{range}: {}", reply.0);
        let head = asked(&server, "HEAD /b/k", &format!("Range: {range}\r\n"), b"");
        assert_eq!((status(&head), head.1.len()), (expected, 0), "{range}");
    }
    for range in ["bytes=10-", "bytes=-0"] {
        let reply = asked(&server, "GET /b/k", &format!("Range: {range}\r\n"), b"");
        assert_eq!(status(&reply), 416, "{range}");
        assert!(
            text(&reply).contains("<Code>InvalidRange</Code>") && reply.0.contains("bytes */10"),
            "{range}"
        );
    }
    assert_eq!(server.requests(Asked::Get), 9);
    assert_eq!(server.ranges().len(), 16);
}

#[test]
fn conditions_hold_for_reads_and_writes() {
    let server = started();
    let tag = server.etag("b", "k").unwrap();
    assert_eq!(tag, "781e5e245d69b566979b86e28d23f2c7");
    let code = |line: &str, headers: &str| status(&asked(&server, line, headers, b""));
    assert_eq!(code("GET /b/k", &format!("If-Match: \"{tag}\"\r\n")), 200);
    assert_eq!(code("GET /b/k", "If-Match: \"other\"\r\n"), 412);
    assert_eq!(code("GET /b/k", &format!("If-None-Match: \"{tag}\"\r\n")), 304);
    assert_eq!(code("PUT /b/k", "If-None-Match: *\r\n"), 412);
    assert_eq!(code("PUT /b/k", "If-Match: \"other\"\r\n"), 412);
    assert_eq!(code("PUT /b/none", "If-Match: \"other\"\r\n"), 404);
    assert_eq!(code("PUT /b/none", "If-None-Match: *\r\n"), 200);
    assert_eq!(code("GET /none/k", ""), 404);
    assert_eq!(code("GET /b/not", ""), 404);
    assert_eq!(server.keys("b"), ["k", "none"]);
}

#[test]
fn wrong_checksums_are_refused_and_right_ones_kept() {
    let server = started();
    let put = |headers: &str| asked(&server, "PUT /b/new", headers, b"123456789");
    let right = [
        ("x-amz-checksum-crc32", "y/Q5Jg=="),
        ("x-amz-checksum-crc32c", "4waSgw=="),
        ("x-amz-checksum-crc64nvme", "rosUhgp5mIg="),
        ("x-amz-checksum-sha256", "FeKw08M4keuw8e9gnsQZQgwg4yDOlMZfvIwzEkSOsiU="),
        ("Content-MD5", "JfnnlDI7RTiF9RgfG2JNCw=="),
    ];
    for (name, value) in right {
        let reply = put(&format!("{name}: {value}\r\n"));
        assert_eq!(status(&reply), 200, "{name}: {}", text(&reply));
        let wrong = put(&format!("{name}: AAAAAA==\r\n"));
        assert_eq!(status(&wrong), 400, "{name}");
        assert!(text(&wrong).contains("<Code>BadDigest</Code>"), "{name}");
    }
    let plain = put("");
    assert!(plain.0.contains("x-amz-checksum-crc64nvme: rosUhgp5mIg="), "{}", plain.0);
    let got = asked(&server, "GET /b/new", "x-amz-checksum-mode: ENABLED\r\n", b"");
    assert!(
        got.0.contains("x-amz-checksum-crc64nvme: rosUhgp5mIg=") && got.0.contains("FULL_OBJECT"),
        "{}",
        got.0
    );
    let part = asked(&server, "GET /b/new", "x-amz-checksum-mode: ENABLED\r\nRange: bytes=0-3\r\n", b"");
    assert!(!part.0.contains("x-amz-checksum"), "{}", part.0);
    server.forget_checksums();
    assert_eq!(status(&put("x-amz-checksum-crc32: AAAAAA==\r\n")), 200);
}

#[test]
fn listings_come_in_pages() {
    let server = started();
    for key in ["a/1", "a/2", "a/b/3", "c d+%&<ä", "z"] {
        server.put("list", key, key);
    }
    let list = |query: &str| text(&asked(&server, &format!("GET /list?list-type=2{query}"), "", b""));
    let keys = |xml: &str| -> Vec<String> {
        let parts = xml.split("<Key>").skip(1);
        parts.map(|part| part.split("</Key>").next().unwrap().to_owned()).collect()
    };
    assert_eq!(keys(&list("")), ["a/1", "a/2", "a/b/3", "c d+%&amp;&lt;ä", "z"]);
    assert_eq!(keys(&list("&encoding-type=url&prefix=c")), ["c%20d%2B%25%26%3C%C3%A4"]);
    let top = list("&delimiter=/");
    assert_eq!(keys(&top), ["c d+%&amp;&lt;ä", "z"]);
    assert!(top.contains("<CommonPrefixes><Prefix>a/</Prefix></CommonPrefixes>"), "{top}");
    assert_eq!(keys(&list("&start-after=a/2")), ["a/b/3", "c d+%&amp;&lt;ä", "z"]);
    server.set_page(2);
    let (mut all, mut token, mut pages) = (Vec::new(), String::new(), 0);
    loop {
        let page = list(&token);
        all.extend(keys(&page));
        pages += 1;
        let Some((_, next)) = page.split_once("<NextContinuationToken>") else { break };
        let next = next.split('<').next().unwrap().replace('%', "%25");
        token = format!("&continuation-token={next}");
    }
    assert_eq!((all.len(), pages), (5, 3));
    assert!(list("&max-keys=0").contains("<KeyCount>0</KeyCount>"));
}

#[test]
fn uploads_are_joined_and_checked() {
    let server = FakeS3::start();
    server.make_bucket("b");
    server.set_part_least(4);
    let made = text(&asked(&server, "POST /b/up?uploads", "", b""));
    let id = made.split("<UploadId>").nth(1).unwrap().split('<').next().unwrap().to_owned();
    let part = |number: u32, body: &[u8]| {
        let reply = asked(&server, &format!("PUT /b/up?partNumber={number}&uploadId={id}"), "", body);
        reply.0.split("ETag: ").nth(1).unwrap().split("\r\n").next().unwrap().to_owned()
    };
    let (one, two) = (part(1, b"12345"), part(2, b"6789"));
    let complete = |parts: &[(u32, &str)], headers: &str| {
        let list: String = parts
            .iter()
            .map(|(number, etag)| {
                let etag = etag.replace('"', "&quot;");
                format!("<Part><PartNumber>{number}</PartNumber><ETag>{etag}</ETag></Part>")
            })
            .collect();
        let body = format!("<CompleteMultipartUpload>{list}</CompleteMultipartUpload>");
        asked(&server, &format!("POST /b/up?uploadId={id}"), headers, body.as_bytes())
    };
    let code = |reply: (String, Vec<u8>)| {
        text(&reply)
            .split("<Code>")
            .nth(1)
            .map_or(String::new(), |rest| rest.split('<').next().unwrap().to_owned())
    };
    assert_eq!(code(complete(&[(2, &two), (1, &one)], "")), "InvalidPartOrder");
    assert_eq!(code(complete(&[(1, &two)], "")), "InvalidPart");
    assert_eq!(code(complete(&[], "")), "MalformedXML");
    assert_eq!(
        code(complete(&[(1, &one), (2, &two)], "x-amz-checksum-crc64nvme: AAAAAAAAAAA=\r\n")),
        "BadDigest"
    );
    server.set_part_least(6);
    assert_eq!(code(complete(&[(1, &one), (2, &two)], "")), "EntityTooSmall");
    server.set_part_least(5);
    assert_eq!(server.open_uploads(), 1);
    let done = complete(&[(1, &one), (2, &two)], "x-amz-checksum-crc64nvme: rosUhgp5mIg=\r\n");
    assert_eq!(status(&done), 200, "{}", text(&done));
    assert_eq!((server.get("b", "up").unwrap(), server.open_uploads()), (b"123456789".to_vec(), 0));
    assert!(server.etag("b", "up").unwrap().ends_with("-2"));
    assert_eq!(code(complete(&[(1, &one)], "")), "NoSuchUpload");
}

#[test]
fn patterns_are_the_same_from_everywhere() {
    let server = FakeS3::start();
    server.put_pattern("b", "p", 1 << 40);
    let mut whole = vec![0; 300];
    fill_pattern(0, 1000, &mut whole);
    for (first, last) in [(1000, 1299), (1003, 1004), (1007, 1100), (1290, 1299)] {
        let reply = asked(&server, "GET /b/p", &format!("Range: bytes={first}-{last}\r\n"), b"");
        assert!(reply.1 == whole[first - 1000..=last - 1000], "{first}-{last}");
    }
    assert_eq!(server.size("b", "p"), Some(1 << 40));
}

#[test]
fn versions_are_kept() {
    let server = FakeS3::start();
    server.keep_versions("b");
    let first = server.put("b", "k", "one").unwrap();
    server.put("b", "k", "two");
    assert_eq!(text(&asked(&server, "GET /b/k", "", b"")), "two");
    let old = asked(&server, &format!("GET /b/k?versionId={first}"), "", b"");
    assert!(text(&old) == "one" && old.0.contains(&format!("x-amz-version-id: {first}")), "{}", old.0);
    assert_eq!(status(&asked(&server, "DELETE /b/k", "", b"")), 204);
    assert_eq!(status(&asked(&server, "GET /b/k", "", b"")), 404);
    assert_eq!(text(&asked(&server, &format!("GET /b/k?versionId={first}"), "", b"")), "one");
}

#[test]
fn connections_are_kept_and_hosts_name_buckets() {
    let server = started();
    let two = "GET /b/k HTTP/1.1\r\nHost: x\r\n\r\nGET /k HTTP/1.1\r\nHost: b.localhost:80\r\n\r\n";
    let replies = String::from_utf8(spoken(&server, two.as_bytes())).unwrap();
    assert_eq!(replies.matches("0123456789").count(), 2, "{replies}");
    assert_eq!((server.connections(), server.requests(Asked::Get)), (1, 2));
    let by_proxy = "CONNECT x:1 HTTP/1.1\r\n\r\nGET http://x:1/b/k HTTP/1.1\r\nHost: x\r\n\r\n";
    let replies = String::from_utf8(spoken(&server, by_proxy.as_bytes())).unwrap();
    assert!(replies.starts_with("HTTP/1.1 200 Connection established") && replies.ends_with("0123456789"));
}

#[test]
fn faults_are_what_they_say() {
    let get = "GET /b/k HTTP/1.1\r\nHost: x\r\nRange: bytes=2-5\r\n\r\n";
    let ends = |fault: Fault, end: &str| {
        let server = started();
        server.fault_once(Asked::Get, 0, fault.clone());
        let reply = String::from_utf8(spoken(&server, get.as_bytes())).unwrap();
        assert!(reply.ends_with(end), "{fault:?}: {reply}");
        let again = String::from_utf8(spoken(&server, get.as_bytes())).unwrap();
        assert!(again.ends_with("Content-Length: 4\r\n\r\n2345"), "{fault:?}: {again}");
        reply
    };
    ends(Fault::Short(1), "Content-Length: 3\r\n\r\n234");
    ends(Fault::Long(2), "Content-Length: 6\r\n\r\n234567");
    ends(Fault::Behind(3), "2345xxx");
    ends(Fault::Flip(1), "\r\n\r\n2245");
    ends(Fault::Whole, "Content-Length: 10\r\n\r\n0123456789");
    ends(
        Fault::Chunked(3),
        "chunked\r\n\r\n3;odd=\"a;b\"\r\n234\r\n1;odd=\"a;b\"\r\n5\r\n0\r\nX-Trailer: 1\r\n\r\n",
    );
    ends(Fault::BadChunk("zz"), "2\r\n23\r\nzz\r\n45\r\n0\r\n\r\n");
    ends(Fault::UntilClose, "bytes\r\n\r\n2345");
    ends(Fault::Cut(Place::BeforeHead), "");
    ends(Fault::Cut(Place::InHead(15)), "HTTP/1.1 206 Pa");
    ends(Fault::Cut(Place::BehindHead), "Content-Length: 4\r\n\r\n");
    ends(Fault::Cut(Place::InBody(2)), "Content-Length: 4\r\n\r\n23");
    ends(Fault::Raw(b"junk".to_vec()), "junk");
    assert!(ends(Fault::Interim(&[100, 103]), "2345").starts_with("HTTP/1.1 100 Continue\r\nX-Before"));
    assert!(ends(Fault::LongHead(64 << 10), "2345").len() > 64 << 10);
    assert!(!ends(Fault::Without("ETag"), "2345").contains("ETag"));
    assert!(ends(Fault::Header("Content-Range", "bytes 0-3/10".into()), "2345").contains("bytes 0-3/10"));
    let busy = ends(Fault::Error(503, "SlowDown", Some(7)), "</Error>");
    assert!(busy.contains("503 Slow Down") && busy.contains("Retry-After: 7"), "{busy}");
    let moved = ends(Fault::Redirect(307, "eu-west-9", Some("http://h:1".into())), "</Error>");
    assert!(
        moved.contains("Location: http://h:1/b/k") && moved.contains("x-amz-bucket-region: eu-west-9"),
        "{moved}"
    );
}

#[test]
fn an_object_is_replaced_before_a_range_of_it_is_read() {
    let server = started();
    server.fault_once(Asked::Get, 0, Fault::Replace(b"abcdefgh".to_vec()));
    let before = server.etag("b", "k").unwrap();
    let reply = asked(&server, "GET /b/k", "Range: bytes=2-5\r\n", b"");
    assert!(text(&reply) == "cdef" && reply.0.contains("bytes 2-5/8"), "{}", reply.0);
    server.fault_once(Asked::Get, 0, Fault::Replace(b"more".to_vec()));
    assert_eq!(status(&asked(&server, "GET /b/k", &format!("If-Match: \"{before}\"\r\n"), b"")), 412);
}

#[test]
fn resets_and_silence_are_what_they_say() {
    let server = started();
    for place in [Place::BeforeHead, Place::InHead(9), Place::BehindHead, Place::InBody(3)] {
        server.fault_once(Asked::Get, 0, Fault::Reset(place));
        let mut stream = TcpStream::connect(server.address()).unwrap();
        stream.write_all(b"GET /b/k HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
        let error = stream.read_to_end(&mut Vec::new()).unwrap_err();
        assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset, "{place:?}");
    }
    server.fault_once(Asked::Get, 0, Fault::Late(Duration::from_millis(120)));
    let start = Instant::now();
    assert_eq!(status(&asked(&server, "GET /b/k", "", b"")), 200);
    assert!(start.elapsed() >= Duration::from_millis(120));
    server.fault_once(Asked::Put, 0, Fault::Forget);
    assert_eq!(status(&asked(&server, "PUT /b/new", "", b"bytes")), 200);
    assert_eq!(server.size("b", "new"), Some(0));
}
