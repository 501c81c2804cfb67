//! Objects by RDMA, over a fabric in the process: transfers, refusals, faults.

use std::fmt::Write as _;
use std::path::Path;
use std::time::{Duration, Instant};

use fake_verbs::{Fake, FakeDevice, Fault, Side, What};
use forebay_gateway::AccountEntry;
use forebay_s3_rdma::headers::{BYTES, OTHER_TOKEN, REASON, REPLY, TOKEN};
use forebay_s3_rdma::rc1::{CONNECT, ConnectAnswer, DISCONNECT, SESSION};
use forebay_verbs::{Kind, Transport};

use crate::client::{Client, Target, connect_body, gateway, gateway_with, post_signed};
use crate::served::raw::{Raw, Reply};
use crate::served::{Gateway, pattern};

const CU: &str = "00007f7c4a000000:00100000:001820a5:0000:012f4b:1:00000000000000000000ffff0a000001";
const MIB: usize = 1 << 20;

pub fn said(reply: &Reply, name: &str) -> String {
    reply.header(name).unwrap_or_default()
}

/// The answer to a GET whose bytes came in the body.
#[track_caller]
pub fn assert_declined(reply: &Reply, reason: &str, bytes: &[u8]) {
    assert_eq!((reply.status / 100, said(reply, REPLY).as_str()), (2, "501"), "{}", reply.head);
    assert_eq!((said(reply, REASON).as_str(), said(reply, BYTES).as_str()), (reason, ""), "{}", reply.head);
    assert!(reply.body == bytes);
}

#[track_caller]
pub fn assert_refused(reply: &Reply, status: u16, code: &str) {
    assert_eq!((reply.status, reply.code().as_str()), (status, code), "{}{}", reply.head, reply.text());
    assert_eq!(said(reply, BYTES), "", "{}", reply.head);
}

#[track_caller]
pub fn assert_moved(reply: &Reply, status: u16, bytes: usize) {
    assert_eq!(reply.status, status, "{}{}", reply.head, reply.text());
    let replied = if status == 206 { "206" } else { "200" };
    assert_eq!(
        (said(reply, REPLY).as_str(), said(reply, BYTES)),
        (replied, bytes.to_string()),
        "{}",
        reply.head
    );
    assert_eq!((said(reply, "content-length").as_str(), reply.body.len()), ("0", 0), "{}", reply.head);
}

#[test]
fn objects_of_all_sizes_go_both_ways() {
    let fake = Fake::new();
    let gateway = gateway(&fake);
    let mut client = Client::connect(&fake, &gateway.raw());
    for len in [0, 1, 4096, MIB - 1, MIB, MIB + 1, 2 * MIB, 5 * MIB + 3] {
        let bytes = pattern(len);
        let source = client.memory(&bytes);
        let put = client.put("/bkt/k", &source, &[]);
        assert_moved(&put, 200, len);
        assert!(std::fs::read(gateway.directory().join("bkt/k")).unwrap() == bytes);
        let target = client.memory(&vec![0xee; len]);
        let got = client.get("/bkt/k", &target, &[]);
        assert_moved(&got, 200, len);
        assert!(target.bytes() == bytes, "{len}");
        assert_eq!(said(&got, "etag"), said(&put, "etag"));
    }
    let counts = fake.counts();
    assert_eq!((counts.sends, counts.refused, counts.written), (0, 0, counts.read));
}

#[test]
fn ranges_parts_and_metadata() {
    let fake = Fake::new();
    let gateway = gateway(&fake);
    let mut client = Client::connect(&fake, &gateway.raw());
    let bytes = pattern(3 * MIB);
    let put = client.put("/bkt/k", &client.memory(&bytes), &[("x-amz-meta-colour", "blue")]);
    assert_moved(&put, 200, 3 * MIB);
    let target = client.memory(&vec![0; MIB]);
    let got = client.get("/bkt/k", &target, &[("range", "bytes=1000-1049575")]);
    assert_moved(&got, 206, MIB);
    assert!(*target.bytes() == bytes[1000..1000 + MIB]);
    assert_eq!(said(&got, "content-range"), "bytes 1000-1049575/3145728");
    assert_eq!(said(&got, "x-amz-meta-colour"), "blue");
    let all = client.memory(&vec![0; 3 * MIB]);
    let got = client.get("/bkt/k", &all, &[("x-amz-checksum-mode", "ENABLED")]);
    assert_eq!(said(&got, "x-amz-checksum-crc64nvme"), said(&put, "x-amz-checksum-crc64nvme"));
    assert_moved(&client.get("/bkt/k?partNumber=1", &all, &[]), 206, 3 * MIB);
    assert_refused(&client.get("/bkt/k", &target, &[("range", "bytes=3145728-")]), 416, "InvalidRange");
    assert_refused(&client.get("/bkt/none", &target, &[]), 404, "NoSuchKey");
    assert_eq!(said(&client.get("/bkt/none", &target, &[]), REPLY), "");
}

#[test]
fn an_upload_by_parts() {
    let fake = Fake::new();
    let gateway = gateway(&fake);
    let mut client = Client::connect(&fake, &gateway.raw());
    let id = client.raw.ask("POST", "/bkt/big?uploads", &[], b"").between("UploadId");
    let (first, last) = (pattern(5 * MIB), pattern(MIB + 7));
    let mut list = String::new();
    for (number, bytes) in [(1, &first), (2, &last)] {
        let put =
            client.put(&format!("/bkt/big?partNumber={number}&uploadId={id}"), &client.memory(bytes), &[]);
        assert_moved(&put, 200, bytes.len());
        let etag = said(&put, "etag");
        write!(list, "<Part><PartNumber>{number}</PartNumber><ETag>{etag}</ETag></Part>").unwrap();
    }
    let document = format!("<CompleteMultipartUpload>{list}</CompleteMultipartUpload>");
    let ended = client.raw.ask("POST", &format!("/bkt/big?uploadId={id}"), &[], document.as_bytes());
    assert_eq!(ended.status, 200, "{}", ended.text());
    assert!(std::fs::read(gateway.directory().join("bkt/big")).unwrap() == [first, last].concat());
    let missing = client.put("/bkt/big?partNumber=1&uploadId=none", &client.memory(b"x"), &[]);
    assert_refused(&missing, 404, "NoSuchUpload");
    assert_eq!(said(&missing, REPLY), "");
}

#[test]
fn memory_of_another_size_is_declined_and_stays_as_it_is() {
    let fake = Fake::new();
    let gateway = gateway(&fake);
    let mut client = Client::connect(&fake, &gateway.raw());
    client.raw.put("/bkt/k", &pattern(1000));
    for len in [999, 1001] {
        let target = client.memory(&vec![0xee; len]);
        assert_declined(&client.get("/bkt/k", &target, &[]), "size", &pattern(1000));
        assert!(target.bytes().iter().all(|byte| *byte == 0xee));
    }
    let target = client.memory(&[0; 10]);
    let ranged = client.get("/bkt/k", &target, &[("range", "bytes=990-1010")]);
    assert_moved(&ranged, 206, 10);
    // More than an operation moves, by the token alone.
    let five = (5 << 30) + 1;
    assert_declined(&client.get_of("/bkt/k", &target, five, &[]), "size", &pattern(1000));
    let put = client.put_of("/bkt/k", &target, five, &[]);
    assert_refused(&put, 400, "EntityTooLarge");
    assert_eq!(said(&put, REASON), "size");
    assert!(client.raw.get("/bkt/k").body == pattern(1000));
    assert_eq!(fake.counts().read, 0);
}

#[test]
fn a_session_that_is_not_there() {
    let fake = Fake::new();
    let gateway = gateway(&fake);
    let mut client = Client::connect(&fake, &gateway.raw());
    client.raw.put("/bkt/k", b"old");
    let target = client.memory(b"new");
    let session = client.answer.session.text();
    let end = |raw: &Raw| raw.ask("POST", DISCONNECT, &[(SESSION, &session)], b"");
    assert_eq!((end(&client.raw).status, end(&client.raw).status), (200, 200));
    assert_refused(&client.raw.ask("POST", DISCONNECT, &[(SESSION, "1")], b""), 400, "InvalidRDMAToken");
    assert_declined(&client.get("/bkt/k", &target, &[]), "session", b"old");
    let put = client.put("/bkt/k", &target, &[]);
    assert_refused(&put, 409, "RDMASessionExpired");
    assert_eq!((said(&put, REASON).as_str(), said(&put, REPLY).as_str()), ("session", ""));
    assert_eq!(client.raw.get("/bkt/k").body, b"old");
}

#[test]
fn sessions_belong_to_their_account() {
    let fake = Fake::new();
    let (ana, ben) = (AccountEntry::new("ana", "secret-ana"), AccountEntry::new("ben", "secret-ben"));
    let gateway = gateway_with(&fake, vec![ana.clone(), ben], |_| {});
    let raw = |key: &str| Raw::new(gateway.address, key, &format!("secret-{key}"));
    raw("ana").put("/bkt/k", b"old");
    let mut client = Client::connect(&fake, &raw("ana"));
    let target = client.memory(b"new");
    client.raw = raw("ben");
    assert_refused(&client.get("/bkt/k", &target, &[]), 403, "AccessDenied");
    assert_refused(&client.put("/bkt/k", &target, &[]), 403, "AccessDenied");
    let session = client.answer.session.text();
    assert_refused(&client.raw.ask("POST", DISCONNECT, &[(SESSION, &session)], b""), 403, "AccessDenied");
    assert!(target.bytes() == b"new" && raw("ana").get("/bkt/k").body == b"old");
    client.raw = raw("ana");
    assert_moved(&client.get("/bkt/k", &target, &[]), 200, 3);
    // An account that is gone takes its sessions along.
    gateway.accounts.replace(vec![AccountEntry::new("ben", "secret-ben")]).unwrap();
    let until = Instant::now() + Duration::from_secs(10);
    while sessions(&gateway) != 0 {
        assert!(Instant::now() < until, "the session is still there");
        std::thread::sleep(Duration::from_millis(50));
    }
    gateway.accounts.replace(vec![ana]).unwrap();
    assert_declined(&client.get("/bkt/k", &target, &[]), "session", b"old");
}

/// As `/metrics` has it.
fn figure(gateway: &Gateway, name: &str) -> u64 {
    let text = gateway.raw().unsigned("GET", "/metrics", &[]).text();
    let line = text.lines().find(|line| line.split(' ').next() == Some(name));
    line.and_then(|line| line.split(' ').nth(1)?.parse().ok()).unwrap_or_else(|| panic!("no {name}: {text}"))
}

fn sessions(gateway: &Gateway) -> u64 {
    figure(gateway, "forebay_s3_rdma_sessions")
}

#[test]
fn what_is_not_signed_is_refused() {
    let fake = Fake::new();
    let gateway = gateway(&fake);
    let mut client = Client::connect(&fake, &gateway.raw());
    client.raw.put("/bkt/k", b"old");
    let target = client.memory(b"new");
    let token = client.token(&target, 3);
    for name in [TOKEN, "x-amz-rdma-later", OTHER_TOKEN] {
        for method in ["GET", "PUT", "HEAD", "DELETE"] {
            let reply = client.raw.with_unsigned(method, "/bkt/k", name, &token);
            assert_eq!(reply.status, 403, "{method} {name}");
        }
    }
    let url = client.raw.presigned("/bkt/k", 60);
    assert_eq!(client.raw.unsigned("GET", &url, &[(TOKEN, &token)]).status, 403);
    assert_eq!(client.raw.unsigned("GET", "/bkt/k", &[(TOKEN, &token)]).status, 403);
    assert!(target.bytes() == b"new" && client.raw.get("/bkt/k").body == b"old");
    assert_moved(&client.get("/bkt/k", &target, &[]), 200, 3);
}

#[test]
fn malformed_tokens() {
    let fake = Fake::new();
    let gateway = gateway(&fake);
    let raw = gateway.raw();
    raw.put("/bkt/k", b"old");
    for token in ["hello", "rc:1", "rc:000102030405060708090a0b0c0d0e0f:0:0:0"] {
        for method in ["GET", "PUT"] {
            let reply = raw.ask(method, "/bkt/k", &[(TOKEN, token)], b"");
            assert_refused(&reply, 400, "InvalidRDMAToken");
            assert_eq!(said(&reply, REPLY), "");
        }
    }
    let two = [(TOKEN, CU), (OTHER_TOKEN, CU)];
    assert_refused(&raw.ask("PUT", "/bkt/k", &two, b""), 400, "InvalidRDMAToken");
    assert_eq!(raw.get("/bkt/k").body, b"old");
}

#[test]
fn other_dialects_get_bodies_and_store_nothing() {
    let fake = Fake::new();
    for gateway in [gateway(&fake), Gateway::start()] {
        let raw = gateway.raw();
        raw.put("/bkt", b"");
        raw.put("/bkt/k", b"old");
        let id = raw.ask("POST", "/bkt/big?uploads", &[], b"").between("UploadId");
        let hip = "01".repeat(44);
        let rc1 = "rc:000102030405060708090a0b0c0d0e0f:1:7f00:3:5";
        for (name, token) in [(TOKEN, CU), (OTHER_TOKEN, CU), (TOKEN, &hip)] {
            let head = [(name, token)];
            assert_declined(&raw.ask("GET", "/bkt/k", &head, b""), "dialect", b"old");
            let ranged = raw.ask("GET", "/bkt/k", &[head[0], ("range", "bytes=1-1")], b"");
            assert_declined(&ranged, "dialect", b"l");
            for target in ["/bkt/k", "/bkt/new", &format!("/bkt/big?partNumber=1&uploadId={id}")] {
                let put = raw.ask("PUT", target, &head, b"");
                assert_refused(&put, 501, "RDMANotSupported");
                assert_eq!((said(&put, REPLY).as_str(), said(&put, REASON).as_str()), ("501", "dialect"));
            }
        }
        let put = raw.ask("PUT", "/bkt/new", &[(TOKEN, rc1)], b"");
        assert!(matches!(put.status, 409 | 501), "{}", put.head);
        assert_eq!(raw.get("/bkt/k").body, b"old");
        assert_eq!(raw.get("/bkt/new").status, 404);
    }
}

#[test]
fn connecting_needs_a_signed_body() {
    let fake = Fake::new();
    let gateway = gateway(&fake);
    let raw = gateway.raw();
    let body = connect_body(&fake, 4);
    assert_eq!(post_signed(&raw, CONNECT, &body).status, 200);
    // The signature covers the head alone, another body, or nothing.
    assert_refused(&raw.ask("POST", CONNECT, &[], body.as_bytes()), 403, "AccessDenied");
    let other = raw.head("POST", CONNECT, &[], body.len(), &crate::client::sha256(b"other"));
    assert_refused(&raw.send(&other, body.as_bytes(), "POST"), 400, "BadDigest");
    assert_eq!(raw.unsigned("POST", CONNECT, &[]).status, 403);
    let wrong = Raw::new(gateway.address, "somebody", "secret-of-ours");
    assert_eq!(post_signed(&wrong, CONNECT, &body).status, 403);
    for body in ["", "{}", &body.replace("\"version\":1", "\"version\":9"), &"x".repeat(4096)] {
        assert_refused(&post_signed(&raw, CONNECT, body), 400, "InvalidRDMAToken");
    }
    assert_eq!(post_signed(&raw, CONNECT, &"x".repeat(4097)).status, 400);
    assert_ne!(raw.ask("GET", CONNECT, &[], b"").status, 200);
    // A server without RDMA.
    let plain = Gateway::start();
    let refused = post_signed(&plain.raw(), CONNECT, &body);
    assert!(ConnectAnswer::parse(refused.status, &refused.body).is_err() && refused.status >= 400);
}

#[test]
fn a_queue_end_is_of_the_address_that_its_client_comes_from() {
    let fake = Fake::new();
    let entries = || vec![AccountEntry::new("ana", "secret-ana")];
    let strict = gateway_with(&fake, entries(), |rdma| rdma.any_client = false);
    let raw = Raw::new(strict.address, "ana", "secret-ana");
    let body = connect_body(&fake, 4);
    let refused = post_signed(&raw, CONNECT, &body);
    assert_refused(&refused, 403, "AccessDenied");
    assert!(refused.text().contains("GID"), "{}", refused.text());
    assert_eq!(sessions(&strict), 0);
    // By the address that it comes from.
    let of = |address: &str| body.replace("0a000001", address);
    assert_refused(&post_signed(&raw, CONNECT, &of("7f000002")), 403, "AccessDenied");
    let own = post_signed(&raw, CONNECT, &of("7f000001"));
    assert_eq!(own.status, 200, "{}", own.text());
}

#[test]
fn limits_of_sessions() {
    let fake = Fake::new();
    let entries = ["ana", "ben"].map(|key| AccountEntry::new(key, format!("secret-{key}"))).to_vec();
    let gateway = gateway_with(&fake, entries, |rdma| {
        rdma.sessions = 2;
        rdma.idle_time = Duration::from_secs(1);
    });
    let raw = |key: &str| Raw::new(gateway.address, key, &format!("secret-{key}"));
    raw("ana").put("/bkt/k", b"old");
    let mut first = Client::connect(&fake, &raw("ana"));
    let mut second = Client::connect(&fake, &raw("ana"));
    let target = first.memory(b"new");
    assert_moved(&first.get("/bkt/k", &target, &[]), 200, 3);
    // The one that was idle for longest gives way.
    let body = connect_body(&fake, 4);
    assert_eq!(post_signed(&raw("ana"), CONNECT, &body).status, 200);
    assert_eq!(sessions(&gateway), 2);
    let other = second.memory(b"new");
    assert_declined(&second.get("/bkt/k", &other, &[]), "session", b"old");
    assert_eq!(post_signed(&raw("ben"), CONNECT, &body).status, 200);
    // Idle ones end, whether their account asks or not.
    let until = Instant::now() + Duration::from_millis(1500);
    while Instant::now() < until {
        assert_moved(&first.get("/bkt/k", &target, &[]), 200, 3);
        std::thread::sleep(Duration::from_millis(200));
    }
    std::thread::sleep(Duration::from_millis(1100));
    assert_declined(&first.get("/bkt/k", &target, &[]), "session", b"old");
    let none = gateway_with(&fake, vec![AccountEntry::new("ana", "secret-ana")], |rdma| rdma.sessions = 0);
    let ana = Raw::new(none.address, "ana", "secret-ana");
    assert_refused(&post_signed(&ana, CONNECT, &body), 503, "SlowDown");
}

#[test]
fn a_write_that_fails_ends_the_session_and_the_body_comes() {
    let len = 3 * MIB;
    for what in [What::Disconnect, What::Unreachable, What::Refuse, What::Vanish] {
        let fake = Fake::new();
        let gateway = gateway(&fake);
        let mut client = Client::connect(&fake, &gateway.raw());
        client.raw.put("/bkt/k", &pattern(len));
        let target = client.memory(&vec![0xee; len]);
        fake.inject(Fault::on(Side::Server, Kind::Write, what).after(1));
        assert_declined(&client.get("/bkt/k", &target, &[]), "transfer", &pattern(len));
        // What was behind the fault never arrives.
        std::thread::sleep(Duration::from_millis(20));
        assert!(target.bytes()[MIB..].iter().all(|byte| *byte == 0xee), "{what:?}");
        assert_declined(&client.get("/bkt/k", &target, &[]), "session", &pattern(len));
        assert_eq!(sessions(&gateway), 0);
        let mut again = Client::connect(&fake, &gateway.raw());
        let target = again.memory(&vec![0; len]);
        assert_moved(&again.get("/bkt/k", &target, &[]), 200, len);
        assert!(target.bytes() == pattern(len));
    }
}

#[test]
fn a_read_that_fails_stores_nothing() {
    let len = 3 * MIB;
    for what in [What::Disconnect, What::Unreachable, What::Refuse] {
        let fake = Fake::new();
        let gateway = gateway(&fake);
        let mut client = Client::connect(&fake, &gateway.raw());
        client.raw.put("/bkt/k", b"old");
        let source = client.memory(&pattern(len));
        fake.inject(Fault::on(Side::Server, Kind::Read, what).after(2));
        let put = client.put("/bkt/k", &source, &[]);
        assert_refused(&put, 500, "RDMATransferFailed");
        assert_eq!((said(&put, REASON).as_str(), said(&put, REPLY).as_str()), ("transfer", ""));
        assert_eq!(client.raw.get("/bkt/k").body, b"old");
        assert_refused(&client.put("/bkt/k", &source, &[]), 409, "RDMASessionExpired");
        assert!(files(gateway.directory()).is_empty(), "{:?}", files(gateway.directory()));
    }
}

/// Files beside the object itself.
fn files(directory: &Path) -> Vec<String> {
    let names = std::fs::read_dir(directory.join("bkt")).unwrap().flatten();
    let names = names.filter(|entry| entry.path().is_file()).map(|entry| entry.file_name());
    names.map(|name| name.to_string_lossy().into_owned()).filter(|name| name != "k").collect()
}

#[test]
fn keys_that_do_not_reach() {
    let fake = Fake::new();
    let gateway = gateway(&fake);
    let raw = gateway.raw();
    raw.put("/bkt/k", &pattern(100));
    // A key that there is not, and memory beyond the registered.
    for (key, beyond) in [(1_u32, 0_u64), (0, 4096)] {
        let client = Client::connect(&fake, &raw);
        let target = client.memory(&[0xee; 100]);
        let mut token = client.token_of(&target, 100);
        token.memory.key ^= key << 20;
        token.memory.address += beyond;
        let got = raw.ask("GET", "/bkt/k", &[(TOKEN, &token.text())], b"");
        assert_declined(&got, "transfer", &pattern(100));
        assert!(target.bytes().iter().all(|byte| *byte == 0xee));
        let client = Client::connect(&fake, &raw);
        let target = client.memory(&[1; 100]);
        let mut token = client.token_of(&target, 100);
        token.memory.key ^= key << 20;
        token.memory.address += beyond;
        let put = raw.ask("PUT", "/bkt/k", &[(TOKEN, &token.text())], b"");
        assert_refused(&put, 500, "RDMATransferFailed");
        assert!(raw.get("/bkt/k").body == pattern(100));
    }
}

#[test]
fn checksums_and_conditions() {
    let fake = Fake::new();
    let gateway = gateway(&fake);
    let mut client = Client::connect(&fake, &gateway.raw());
    let source = client.memory(b"123456789");
    let wrong = [("x-amz-checksum-crc64nvme", "rosUhgp5mIk=")];
    assert_refused(&client.put("/bkt/k", &source, &wrong), 400, "BadDigest");
    assert_eq!(client.raw.get("/bkt/k").status, 404);
    let put = client.put("/bkt/k", &source, &[("x-amz-checksum-crc64nvme", "rosUhgp5mIg=")]);
    assert_moved(&put, 200, 9);
    assert_eq!(said(&put, "x-amz-checksum-crc64nvme"), "rosUhgp5mIg=");
    // The session is as good as before. Conditions fail before a byte moves.
    let before = fake.counts();
    let etag = said(&put, "etag");
    let known = client.get("/bkt/k", &source, &[("if-none-match", &etag)]);
    assert_eq!((known.status, said(&known, REPLY).as_str()), (304, ""));
    assert_refused(&client.get("/bkt/k", &source, &[("if-match", "\"x\"")]), 412, "PreconditionFailed");
    assert_refused(&client.put("/bkt/k", &source, &[("if-none-match", "*")]), 412, "PreconditionFailed");
    assert_refused(&client.put("/bkt/k", &source, &[("if-match", "\"x\"")]), 412, "PreconditionFailed");
    assert_eq!(fake.counts(), before);
    assert_moved(&client.put("/bkt/k", &source, &[("if-match", &etag)]), 200, 9);
    let body = client.raw.ask("PUT", "/bkt/k", &[(TOKEN, &client.token(&source, 9))], b"a body");
    assert_refused(&body, 400, "InvalidRequest");
}

#[test]
fn clients_that_cannot_be_read_and_accounts_that_may_not_write() {
    let fake = Fake::new();
    let mut reader = AccountEntry::new("reader", "secret-reader");
    reader.read_only = true;
    let gateway = gateway_with(&fake, vec![reader, AccountEntry::new("ana", "secret-ana")], |_| {});
    let ana = Raw::new(gateway.address, "ana", "secret-ana");
    ana.put("/bkt/k", b"old");
    let mut client = Client::connect(&fake, &Raw::new(gateway.address, "reader", "secret-reader"));
    let target = client.memory(b"new");
    assert_refused(&client.put("/bkt/k", &target, &[]), 403, "AccessDenied");
    assert_moved(&client.get("/bkt/k", &target, &[]), 200, 3);
    assert!(target.bytes() == b"old");
    let mut unread = Client::connect_with(&fake, &ana, 0);
    let target = unread.memory(b"new");
    assert_refused(&unread.put("/bkt/k", &target, &[]), 501, "RDMANotSupported");
    assert_moved(&unread.get("/bkt/k", &target, &[]), 200, 3);
}

#[test]
fn requests_of_a_session_take_turns() {
    let fake = Fake::new();
    let gateway = gateway(&fake);
    let client = Client::connect(&fake, &gateway.raw());
    client.raw.put("/bkt/k", &pattern(2 * MIB));
    let targets: Vec<Target> = (0..4).map(|_| client.memory(&vec![0; 2 * MIB])).collect();
    std::thread::scope(|scope| {
        for target in &targets {
            let (raw, token) = (client.raw.clone(), client.token(target, 2 * MIB as u64));
            scope.spawn(move || {
                let reply = raw.ask("GET", "/bkt/k", &[(TOKEN, &token)], b"");
                // One that a later one overtook is late.
                if said(&reply, REPLY) == "501" {
                    assert_declined(&reply, "session", &pattern(2 * MIB));
                } else {
                    assert_moved(&reply, 200, 2 * MIB);
                }
            });
        }
    });
    let moved = targets.iter().filter(|target| target.bytes() == pattern(2 * MIB)).count();
    let untouched = targets.iter().filter(|target| target.bytes().iter().all(|byte| *byte == 0)).count();
    assert_eq!(moved + untouched, 4);
    assert!(targets[3].bytes() == pattern(2 * MIB), "none overtook it");
    assert_eq!(figure(&gateway, "forebay_s3_rdma_sent_bytes_total"), (moved * 2 * MIB) as u64);
}

#[test]
fn a_request_that_comes_again_or_late_moves_nothing() {
    let fake = Fake::new();
    let gateway = gateway(&fake);
    let mut client = Client::connect(&fake, &gateway.raw());
    client.raw.put("/bkt/k", b"old");
    let (target, source) = (client.memory(b"..."), client.memory(b"new"));
    let (late, first) = (client.token(&target, 3), client.token(&target, 3));
    let get = |token: &str| gateway.raw().ask("GET", "/bkt/k", &[(TOKEN, token)], b"");
    assert_moved(&get(&first), 200, 3);
    let put = client.token(&source, 3);
    assert_moved(&client.raw.ask("PUT", "/bkt/new", &[(TOKEN, &put)], b""), 200, 3);
    assert_eq!(client.raw.ask("DELETE", "/bkt/new", &[], b"").status, 204);
    let before = fake.counts();
    for token in [&first, &late] {
        assert_declined(&get(token), "session", b"old");
    }
    let again = client.raw.ask("PUT", "/bkt/new", &[(TOKEN, &put)], b"");
    assert_refused(&again, 409, "RDMASessionExpired");
    assert_eq!(said(&again, REASON), "session");
    // Whatever became of the first: what it may be doing to the memory goes on.
    let missing = client.token(&target, 3);
    let ask = || client.raw.ask("GET", "/bkt/none", &[(TOKEN, &missing)], b"");
    assert_refused(&ask(), 404, "NoSuchKey");
    assert_refused(&ask(), 404, "NoSuchKey");
    assert_eq!(fake.counts(), before);
    assert_eq!(client.raw.get("/bkt/new").status, 404);
    assert_moved(&client.get("/bkt/k", &target, &[]), 200, 3);
}

#[test]
fn a_device_without_pairing_and_one_that_is_removed() {
    let mut device = FakeDevice::new("fake0", "10.0.0.1".parse().unwrap());
    device.transport = Transport::Iwarp;
    let iwarp = Fake::with(vec![device]);
    let served = gateway(&iwarp);
    let body = connect_body(&Fake::new(), 4);
    let refused = post_signed(&served.raw(), CONNECT, &body);
    assert_refused(&refused, 501, "RDMANotSupported");
    assert_eq!(said(&refused, REASON), "dialect");

    let fake = Fake::new();
    let served = gateway(&fake);
    let mut client = Client::connect(&fake, &served.raw());
    client.raw.put("/bkt/k", b"old");
    let target = client.memory(b"new");
    fake.remove_device("fake0");
    assert_declined(&client.get("/bkt/k", &target, &[]), "transfer", b"old");
    assert_refused(&client.put("/bkt/k", &target, &[]), 409, "RDMASessionExpired");
    assert_refused(&post_signed(&client.raw, CONNECT, &body), 501, "RDMANotSupported");
    assert!(target.bytes() == b"new");
}

#[test]
fn tokens_are_not_logged() {
    let fake = Fake::new();
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("log");
    let log = path.clone();
    let mut gateway = crate::client::gateway_of(&fake, |options| options.access_log = Some(log));
    let mut client = Client::connect(&fake, &gateway.raw());
    client.raw.put("/bkt/k", b"old");
    let target = client.memory(b"new");
    assert_moved(&client.get("/bkt/k", &target, &[]), 200, 3);
    let token = client.token_of(&target, 3);
    gateway.end();
    let text = std::fs::read_to_string(path).unwrap();
    assert!(text.contains("GetObject") && text.contains("RdmaConnect"), "{text}");
    let secrets = [token.session.text(), format!("{:x}", token.memory.address)];
    assert!(secrets.iter().all(|secret| !text.contains(secret)), "{text}");
}
