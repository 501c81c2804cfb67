//! Clients that are wrong, late, slow or hostile: each is refused by its name, and nothing of it stays.

use std::io::{Read, Write};
use std::time::{Duration, Instant};

use forebay_gateway::AccountEntry;

use crate::served::raw::{Raw, read_reply};
use crate::served::{Gateway, KEY, SECRET, short};

fn started() -> Gateway {
    let gateway = Gateway::with(vec![AccountEntry::new(KEY, SECRET)], short);
    gateway.bucket("bkt");
    assert_eq!(gateway.raw().put("/bkt/old", b"old").status, 200);
    gateway
}

#[test]
fn wrong_keys_clocks_and_urls() {
    let gateway = started();
    let raw = gateway.raw();
    let code = |raw: &Raw| raw.get("/bkt/old").code();
    assert_eq!(code(&Raw { secret: "another".into(), ..raw.clone() }), "SignatureDoesNotMatch");
    assert_eq!(code(&Raw { key: "nobody".into(), ..raw.clone() }), "InvalidAccessKeyId");
    assert_eq!(code(&Raw { skew: -3600, ..raw.clone() }), "RequestTimeTooSkewed");
    assert_eq!(code(&Raw { skew: 3600, ..raw.clone() }), "RequestTimeTooSkewed");

    let plain = |target: &str| {
        let mut socket = raw.connect();
        write!(socket, "GET {target} HTTP/1.1\r\nhost: {}\r\n\r\n", raw.address).unwrap();
        read_reply(&mut socket, "GET")
    };
    assert_eq!(plain("/bkt/old").code(), "AccessDenied");
    assert_eq!(plain("/bkt?list-type=2").code(), "AccessDenied");
    assert_eq!(plain(&raw.presigned("/bkt/old", 60)).text(), "old");
    let early = Raw { skew: -120, ..raw.clone() };
    assert_eq!(plain(&early.presigned("/bkt/old", 60)).status, 403);
    let forged = raw.presigned("/bkt/old", 60).replace("Expires=60", "Expires=600");
    assert_eq!(plain(&forged).code(), "SignatureDoesNotMatch");
    assert_eq!(plain("/healthz").text(), "ok\n");
}

#[test]
fn bodies_that_are_not_as_said() {
    let gateway = started();
    let raw = gateway.raw();
    // Shorter: the connection ends early.
    let mut socket = raw.connect();
    socket.write_all(raw.head("PUT", "/bkt/new", &[], 1000, "UNSIGNED-PAYLOAD").as_bytes()).unwrap();
    socket.write_all(b"short").unwrap();
    socket.shutdown(std::net::Shutdown::Write).unwrap();
    // The client is gone as far as the server knows: a refusal, or no answer.
    let reply = read_reply(&mut socket, "PUT");
    assert!(reply.status == 0 || reply.code() == "IncompleteBody", "{reply:?}");
    assert_eq!(raw.get("/bkt/new").code(), "NoSuchKey");
    // Silent: it is waited for no longer than allowed.
    let mut socket = raw.connect();
    socket.write_all(raw.head("PUT", "/bkt/new", &[], 1000, "UNSIGNED-PAYLOAD").as_bytes()).unwrap();
    socket.write_all(b"short").unwrap();
    let begin = Instant::now();
    let reply = read_reply(&mut socket, "PUT");
    assert!(reply.status == 0 || reply.code() == "RequestTimeout", "{reply:?}");
    assert!(begin.elapsed() < Duration::from_secs(10));
    // Longer: what is too much is no request.
    let mut socket = raw.connect();
    socket.write_all(raw.head("PUT", "/bkt/long", &[], 3, "UNSIGNED-PAYLOAD").as_bytes()).unwrap();
    socket.write_all(b"abcdef\r\n\r\n").unwrap();
    assert_eq!(read_reply(&mut socket, "PUT").status, 200);
    let reply = read_reply(&mut socket, "PUT");
    assert!([0, 400].contains(&reply.status), "{reply:?}");
    assert_eq!(raw.get("/bkt/long").text(), "abc");
    // Another than was signed.
    let hash = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
    let mut socket = raw.connect();
    socket.write_all(raw.head("PUT", "/bkt/new", &[], 3, hash).as_bytes()).unwrap();
    socket.write_all(b"abc").unwrap();
    assert_eq!(read_reply(&mut socket, "PUT").code(), "BadDigest");
    assert_eq!(raw.get("/bkt/new").code(), "NoSuchKey");
}

#[test]
fn forms_are_taken_as_their_policy_says_and_no_further() {
    let gateway = started();
    let raw = gateway.raw();
    let key = ("key", "new/${filename}");
    let conditions =
        r#",["starts-with","$key","new/"],["content-length-range",1,9],["eq","$x-amz-meta-a","b"]"#;
    let meta = ("x-amz-meta-a", "b");
    let reply = raw.form("bkt", conditions, &[key, meta, ("success_action_status", "201")], b"bytes");
    assert_eq!(reply.code(), "AccessDenied", "a field that no condition has: {reply:?}");
    let conditions = format!(r#"{conditions},["starts-with","$content-type",""]"#);
    let kind = ("content-type", "text/x");
    let reply = raw.form("bkt", &conditions, &[key, meta, kind], b"bytes");
    assert_eq!(reply.status, 204, "{reply:?}");
    let got = raw.get("/bkt/new/f");
    assert_eq!((got.text().as_str(), got.header("content-type").as_deref()), ("bytes", Some("text/x")));
    assert_eq!(got.header("x-amz-meta-a").as_deref(), Some("b"));
    let code = |raw: &Raw, conditions: &str, fields: &[(&str, &str)], file: &[u8]| {
        let reply = raw.form("bkt", conditions, fields, file);
        assert_ne!(reply.status / 100, 2, "{reply:?}");
        reply.code()
    };
    assert_eq!(code(&raw, &conditions, &[key, meta, kind], b"ten bytes!"), "EntityTooLarge");
    let broken = "AccessDenied";
    assert_eq!(code(&raw, &conditions, &[("key", "old"), meta, kind], b"x"), broken);
    assert_eq!(code(&raw, &conditions, &[key, ("x-amz-meta-a", "c"), kind], b"x"), broken);
    let other = Raw { secret: "another".into(), ..raw.clone() };
    assert_eq!(code(&other, &conditions, &[key, meta, kind], b"x"), "SignatureDoesNotMatch");
    let late = Raw { skew: -3600, ..raw.clone() };
    assert_eq!(code(&late, &conditions, &[key, meta, kind], b"x"), "RequestTimeTooSkewed");
    assert_eq!(raw.plain_form("bkt", &[("key", "old")], b"x").code(), "AccessDenied");
    // A policy without a signature is malformed, whatever it says.
    let policy = r#"{"expiration":"2099-01-01T00:00:00Z","conditions":[["eq","$key","new"]]}"#;
    let policy = base64_simd::STANDARD.encode_to_string(policy);
    assert_eq!(raw.plain_form("bkt", &[("key", "old"), ("policy", &policy)], b"x").status, 400);
    assert_eq!(raw.get("/bkt/old").text(), "old");
    // Its length must be known.
    let mut socket = raw.connect();
    let head = "POST /bkt HTTP/1.1\r\nhost: x\r\ncontent-type: multipart/form-data; boundary=b\r\ntransfer-encoding: chunked";
    write!(socket, "{head}\r\n\r\n5\r\n--b--\r\n0\r\n\r\n").unwrap();
    assert_eq!(read_reply(&mut socket, "POST").code(), "MissingContentLength");
}

#[test]
fn signatures_of_version_2_are_refused() {
    let gateway = started();
    let raw = gateway.raw();
    let end = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs() + 600;
    let key = ring::hmac::Key::new(ring::hmac::HMAC_SHA1_FOR_LEGACY_USE_ONLY, SECRET.as_bytes());
    let signature = ring::hmac::sign(&key, format!("GET\n\n\n{end}\n/bkt/old").as_bytes());
    let signature = base64_simd::STANDARD.encode_to_string(signature.as_ref());
    let signature = signature.replace('+', "%2B").replace('/', "%2F").replace('=', "%3D");
    let mut socket = raw.connect();
    let url = format!("/bkt/old?AWSAccessKeyId={KEY}&Expires={end}&Signature={signature}");
    write!(socket, "GET {url} HTTP/1.1\r\nhost: {}\r\n\r\n", raw.address).unwrap();
    let reply = read_reply(&mut socket, "GET");
    assert_eq!(reply.code(), "InvalidRequest", "{reply:?}");
    assert!(reply.text().contains("version 2"), "{reply:?}");
}

#[test]
fn what_is_too_large() {
    let gateway = started();
    let raw = gateway.raw();
    let xml = vec![b' '; 5 << 20];
    let reply = raw.ask("POST", "/bkt?delete", &[], &xml);
    assert!([400, 413].contains(&reply.status) || reply.status == 0, "{reply:?}");
    let long = "x".repeat(40_000);
    assert_eq!(raw.ask("GET", "/bkt/old", &[("x-amz-meta-long", &long)], b"").status, 431);
    // A chunk whose signature would be compared when all of it is held.
    let chunk = format!("300000;chunk-signature={}\r\n", "0".repeat(64));
    let mut socket = raw.connect();
    let length = [("x-amz-decoded-content-length", "3145728")];
    let head = raw.head("PUT", "/bkt/new", &length, 3_200_000, "STREAMING-AWS4-HMAC-SHA256-PAYLOAD");
    socket.write_all(format!("{head}{chunk}").as_bytes()).unwrap();
    assert_eq!(read_reply(&mut socket, "PUT").code(), "EntityTooLarge");
    let user = "x".repeat(2100);
    assert_eq!(raw.ask("PUT", "/bkt/new", &[("x-amz-meta-a", &user)], b"").code(), "MetadataTooLarge");
    assert_eq!(raw.put(&format!("/bkt/{}", "k".repeat(1100)), b"").code(), "KeyTooLongError");
    assert_eq!(raw.ask("POST", "/bkt?delete", &[], b"<Delete></Delete>").status, 400);
    assert_eq!(raw.ask("POST", "/bkt?delete", &[], b"<Delete><Object>").status, 400);
    // Another document than was meant.
    let document = b"<Delete><Object><Key>old</Key></Object></Delete>";
    let md5 = |sum: &str| raw.ask("POST", "/bkt?delete", &[("content-md5", sum)], document).code();
    assert_eq!(md5("JfnnlDI7RTiF9RgfG2JNCw=="), "BadDigest");
    assert_eq!(md5("JfnnlDI7"), "InvalidDigest");
    let document = b"<Delete><Object><Key>none</Key></Object></Delete>";
    let right = [("content-md5", "EpvYphShtu0A5NGVEQm6CQ==")];
    assert_eq!(raw.ask("POST", "/bkt?delete", &right, document).status, 200);
    assert_eq!(raw.put("/bkt/k?partNumber=10001&uploadId=x", b"").status, 400);
    assert_eq!(raw.get("/bkt/old").text(), "old");
}

/// Also that of no bytes, and of a document that is put.
/// XML has no control characters: an answer with one was 500, for good where a file had it in its name.
#[test]
fn control_characters_are_refused_before_anything_is_done() {
    let gateway = started();
    let raw = gateway.raw();
    for target in [
        "/bkt?list-type=2&prefix=%01",
        "/bkt?delimiter=%02",
        "/bkt?key-marker=%03&versions=",
        "/bkt?prefix=%1F&uploads=",
        "/?prefix=%01",
        "/bkt?list-type=2&max-keys=3%06",
    ] {
        assert_eq!(raw.get(target).code(), "InvalidArgument", "{target}");
    }
    assert_eq!(raw.get("/bkt?encoding-type=url&list-type=2&prefix=%01").between("Prefix"), "%01");
    assert_eq!(raw.get("/bkt?list-type=2&prefix=%09").status, 200);
    // An object may have one in its key, or a file in its name: a listing says so, or has it encoded.
    assert_eq!(raw.put("/bkt/d/a%01", b"odd").status, 200);
    assert_eq!(raw.get("/bkt/d/a%01").text(), "odd");
    assert_eq!(raw.get("/bkt?list-type=2").code(), "InvalidArgument");
    assert!(raw.get("/bkt?list-type=2").text().contains("encoding-type=url"));
    assert_eq!(raw.get("/bkt?encoding-type=url&list-type=2&prefix=d").between("Key"), "d/a%01");
    assert_eq!(raw.get("/bkt?delimiter=%2F&list-type=2").between("Prefix"), "");
    assert_eq!(raw.ask("POST", "/bkt/a%01?uploads=", &[], b"").code(), "InvalidArgument");
    let tagged = raw.ask("PUT", "/bkt/tagged", &[("x-amz-tagging", "a=%01")], b"");
    assert_eq!(tagged.code(), "InvalidTag");
    // Not one of the keys is removed.
    let asked = b"<Delete><Object><Key>old</Key></Object><Object><Key>a&#x1;</Key></Object></Delete>";
    assert_eq!(raw.ask("POST", "/bkt?delete=", &[], asked).code(), "MalformedXML");
    assert_eq!(raw.get("/bkt/old").text(), "old");
}

#[test]
fn a_wrong_content_md5_is_refused_with_each_document() {
    let gateway = started();
    let raw = gateway.raw();
    let (other, of_nothing) = ("JfnnlDI7RTiF9RgfG2JNCw==", "1B2M2Y8AsgTpgAmY7PhCfg==");
    let ask = |method: &str, target: &str, sum: &str, body: &str| {
        raw.ask(method, target, &[("content-md5", sum)], body.as_bytes())
    };
    let tags = "<Tagging><TagSet><Tag><Key>a</Key><Value>b</Value></Tag></TagSet></Tagging>";
    let sum = base64_simd::STANDARD.encode_to_string(s3s_md5(tags));
    assert_eq!(ask("PUT", "/bkt/old?tagging", other, tags).code(), "BadDigest");
    assert_eq!(ask("PUT", "/bkt/old?tagging", "JfnnlDI7", tags).code(), "InvalidDigest");
    assert!(!raw.get("/bkt/old?tagging").text().contains("<Key>a</Key>"));
    assert_eq!(ask("PUT", "/bkt/old?tagging", &sum, tags).status, 200);
    assert!(raw.get("/bkt/old?tagging").text().contains("<Key>a</Key>"));
    assert_eq!(ask("POST", "/bkt/new?uploads", other, "").code(), "BadDigest");
    assert_eq!(ask("POST", "/bkt/new?uploads", of_nothing, "").status, 200);
    assert_eq!(ask("PUT", "/other", other, "").code(), "BadDigest");
    assert_eq!(ask("PUT", "/bkt/new", other, "").code(), "BadDigest");
    assert_eq!(ask("PUT", "/bkt/new", of_nothing, "").status, 200);
    let copy = [("content-md5", other), ("x-amz-copy-source", "/bkt/old")];
    assert_eq!(raw.ask("PUT", "/bkt/new", &copy, b"").code(), "BadDigest");
    assert_eq!(raw.get("/bkt/new").text(), "");
}

fn s3s_md5(text: &str) -> [u8; 16] {
    use s3s::crypto::{Checksum as _, Md5};
    let mut md5 = Md5::new();
    md5.update(text.as_bytes());
    md5.finalize()
}

#[test]
fn slow_heads_and_idle_connections_are_closed() {
    let gateway = started();
    let raw = gateway.raw();
    let closed_within = |first: &[u8], least: u64, most: u64| {
        let mut socket = raw.connect();
        socket.write_all(first).unwrap();
        let begin = Instant::now();
        let mut byte = [0];
        // A byte now and then does not help.
        while begin.elapsed() < Duration::from_secs(10) {
            socket.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
            match socket.read(&mut byte) {
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock && !first.is_empty() => {
                    if socket.write_all(b"x").is_err() {
                        break;
                    }
                }
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
                _ => break,
            }
        }
        let took = begin.elapsed();
        assert!((Duration::from_millis(least)..Duration::from_millis(most)).contains(&took), "{took:?}");
    };
    closed_within(b"GET / HTTP/1.1\r\nx-slow: ", 300, 2000);
    closed_within(b"", 1500, 5000);
    let mut socket = raw.connect();
    write!(socket, "GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n").unwrap();
    assert_eq!(read_reply(&mut socket, "GET").status, 200);
    let text = String::from_utf8(plain_metrics(&raw)).unwrap();
    assert!(text.contains("operation=\"Health\",status=\"200\"} 1"), "{text}");
    assert!(!text.contains("operation=\"Refused\",status=\"200\""), "{text}");
    assert!(text.contains("forebay_s3_connections_overdue_total 2"), "{text}");
}

#[test]
fn figures_have_a_listener_of_their_own_where_it_is_asked_for() {
    let (tell, told) = std::sync::mpsc::channel();
    let gateway = Gateway::with(vec![AccountEntry::new(KEY, SECRET)], move |options| {
        // A port that is free now.
        let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        options.metrics = Some(free);
        tell.send(free).unwrap();
    });
    let raw = gateway.raw();
    assert!(!String::from_utf8(plain_metrics(&raw)).unwrap().contains("forebay_s3_connections"));
    let apart = Raw { address: told.recv().unwrap(), ..raw.clone() };
    let text = String::from_utf8(plain_metrics(&apart)).unwrap();
    assert!(text.contains("forebay_s3_connections_total"), "{text}");
    let mut socket = apart.connect();
    write!(socket, "GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n").unwrap();
    assert_eq!(read_reply(&mut socket, "GET").text(), "ok\n");
}

fn plain_metrics(raw: &Raw) -> Vec<u8> {
    let mut socket = raw.connect();
    write!(socket, "GET /metrics HTTP/1.1\r\nhost: x\r\n\r\n").unwrap();
    read_reply(&mut socket, "GET").body
}

#[test]
fn accounts_have_their_own_and_no_more() {
    let entry = |key: &str, change: fn(&mut AccountEntry)| {
        let mut entry = AccountEntry::new(key, SECRET);
        change(&mut entry);
        entry
    };
    let entries = vec![
        entry("all", |_| {}),
        entry("reads", |entry| entry.read_only = true),
        entry("below", |entry| entry.directory = "bkt".into()),
        entry("one", |entry| entry.connections = Some(1)),
    ];
    let gateway = Gateway::with(entries.clone(), short);
    let by = |key: &str| Raw::new(gateway.address, key, SECRET);
    assert_eq!(by("all").put("/bkt/sub/k", b"bytes").status, 200);
    assert_eq!(by("reads").get("/bkt/sub/k").text(), "bytes");
    // Each call that changes something; with what it needs, so that nothing else refuses it.
    let id = by("all").ask("POST", "/bkt/sub/k?uploads", &[], b"").between("UploadId");
    let upload = format!("uploadId={id}");
    let part = format!("/bkt/sub/k?partNumber=1&{upload}");
    let etag = by("all").put(&part, b"part").header("etag").unwrap();
    let complete = format!(
        "<CompleteMultipartUpload><Part><PartNumber>1</PartNumber><ETag>{etag}</ETag></Part></CompleteMultipartUpload>"
    );
    let tags = "<Tagging><TagSet><Tag><Key>a</Key><Value>b</Value></Tag></TagSet></Tagging>";
    let from = ("x-amz-copy-source", "/bkt/sub/k");
    for (method, target, headers, body) in [
        ("PUT", "/new", &[][..], ""),
        ("DELETE", "/bkt", &[], ""),
        ("PUT", "/bkt/sub/k", &[], "other"),
        ("PUT", "/bkt/copy", &[from], ""),
        ("DELETE", "/bkt/sub/k", &[], ""),
        ("POST", "/bkt?delete", &[], "<Delete><Object><Key>sub/k</Key></Object></Delete>"),
        ("PUT", "/bkt/sub/k?tagging", &[], tags),
        ("DELETE", "/bkt/sub/k?tagging", &[], ""),
        ("POST", "/bkt/sub/k?uploads", &[], ""),
        ("PUT", &part, &[], "other"),
        ("PUT", &part, &[from], ""),
        ("POST", &format!("/bkt/sub/k?{upload}"), &[], &complete),
        ("DELETE", &format!("/bkt/sub/k?{upload}"), &[], ""),
    ] {
        let reply = by("reads").ask(method, target, headers, body.as_bytes());
        assert_eq!(reply.code(), "AccessDenied", "{method} {target}: {reply:?}");
    }
    assert_eq!(by("reads").get("/bkt/sub/k").text(), "bytes");
    let listed = by("reads").get(&format!("/bkt/sub/k?{upload}"));
    assert!(listed.text().contains(etag.trim_matches('"')), "{listed:?}");
    assert_eq!(by("reads").get("/bkt?uploads").text().matches("<Upload>").count(), 1);
    assert_eq!(by("below").get("/sub/k").text(), "bytes");
    assert_eq!(by("below").get("/bkt/sub/k").code(), "NoSuchBucket");
    // What the gateway keeps in the buckets of an account below is nobody's object.
    assert_eq!(by("all").put("/bkt/sub/.forebay/lock", b"").code(), "InvalidArgument");
    assert_eq!(by("all").get("/bkt/sub/.forebay/lock").code(), "NoSuchKey");
    assert_eq!(by("below").put("/sub/k", b"bytes").status, 200);
    assert!(!by("all").get("/bkt").text().contains(".forebay"));

    let one = by("one");
    let mut held = one.connect();
    held.write_all(one.head("GET", "/bkt/sub/k", &[], 0, "UNSIGNED-PAYLOAD").as_bytes()).unwrap();
    assert_eq!(read_reply(&mut held, "GET").status, 200);
    assert_eq!(one.get("/bkt/sub/k").status, 503);
    drop(held);
    let begin = Instant::now();
    while one.get("/bkt/sub/k").status != 200 {
        assert!(begin.elapsed() < Duration::from_secs(10));
    }
    // A key that is taken away is refused on connections that are open, too.
    let all = by("all");
    let mut open = all.connect();
    let head = all.head("GET", "/bkt/sub/k", &[], 0, "UNSIGNED-PAYLOAD");
    open.write_all(head.as_bytes()).unwrap();
    assert_eq!(read_reply(&mut open, "GET").status, 200);
    gateway.accounts.replace(entries[1..].to_vec()).unwrap();
    open.write_all(head.as_bytes()).unwrap();
    assert_eq!(read_reply(&mut open, "GET").code(), "InvalidAccessKeyId");
}

#[test]
fn a_server_that_leaves_says_so_first_and_ends_what_runs() {
    let gateway = Gateway::with(vec![AccountEntry::new(KEY, SECRET)], |options| {
        options.leave_time = Duration::from_secs(1);
    });
    gateway.bucket("bkt");
    let raw = gateway.raw();
    let mut slow = raw.connect();
    slow.write_all(raw.head("PUT", "/bkt/k", &[], 6, "UNSIGNED-PAYLOAD").as_bytes()).unwrap();
    slow.write_all(b"abc").unwrap();
    gateway.stop();
    let health = || {
        let mut socket = std::net::TcpStream::connect(raw.address).ok()?;
        write!(socket, "GET /healthz HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").ok()?;
        Some(read_reply(&mut socket, "GET").status)
    };
    assert_eq!(health(), Some(503));
    // Requests are still taken meanwhile.
    assert_eq!(raw.put("/bkt/other", b"x").status, 200);
    let begin = Instant::now();
    while health().is_some_and(|status| status != 0) {
        assert!(begin.elapsed() < Duration::from_secs(10));
        std::thread::sleep(Duration::from_millis(50));
    }
    slow.write_all(b"def").unwrap();
    assert_eq!(read_reply(&mut slow, "PUT").status, 200);
    assert_eq!(std::fs::read(gateway.directory().join("bkt/k")).unwrap(), b"abcdef");
}

#[test]
fn the_access_log_has_a_line_a_request_and_no_signatures() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("log");
    let gateway = Gateway::with(vec![AccountEntry::new(KEY, SECRET)], |options| {
        options.access_log = Some(path.clone());
    });
    gateway.bucket("bkt");
    let raw = gateway.raw();
    raw.put("/bkt/k", b"bytes");
    let url = raw.presigned("/bkt/k", 60);
    let mut socket = raw.connect();
    write!(socket, "GET {url} HTTP/1.1\r\nhost: {}\r\n\r\n", raw.address).unwrap();
    assert_eq!(read_reply(&mut socket, "GET").text(), "bytes");
    drop(gateway);
    let log = std::fs::read_to_string(&path).unwrap();
    assert_eq!(log.lines().count(), 3, "{log}");
    assert!(log.contains(" forebay PutObject PUT /bkt/k 200 in=5 out=0 "), "{log}");
    assert!(log.contains(" forebay GetObject GET /bkt/k 200 in=0 out=5 "), "{log}");
    assert!(!log.contains("Signature") && !log.contains(SECRET), "{log}");
}
