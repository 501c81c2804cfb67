//! Connections that lend files without signed requests: they give what the key of their first request gives now, and no more.

use std::io::{ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use forebay_gateway::AccountEntry;

use crate::node::{FileReply, Node, exchange, lends_files, reopened_for_writing};
use crate::served::{KEY, SECRET};

const UPGRADE: [(&str, &str); 3] =
    [("x-forebay-file", "read"), ("connection", "upgrade"), ("upgrade", "forebay-files")];

fn begun(node: &Node, key: &str) -> UnixStream {
    let connection = node.connect();
    let reply = exchange(&connection, &node.head("GET", "/bucket/k", key, &UPGRADE));
    assert_eq!((reply.status, reply.file.is_some()), (101, true), "{}", reply.text);
    connection
}

/// What a file has; empty where none came.
fn bytes_of(reply: FileReply) -> Vec<u8> {
    let mut bytes = Vec::new();
    reply.file.map(|mut file| file.read_to_end(&mut bytes).unwrap());
    bytes
}

/// Whether the gateway closes the connection behind these bytes.
fn is_closed(mut connection: &UnixStream, ask: &str) -> bool {
    connection.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    // It may be closed before they are sent.
    let _ = connection.write_all(ask.as_bytes());
    let read = connection.read_to_end(&mut Vec::new());
    read.map_or_else(|error| error.kind() == ErrorKind::ConnectionReset, |_| true)
}

fn two_accounts() -> Node {
    let other = AccountEntry { directory: "other".into(), ..AccountEntry::new("other", SECRET) };
    let node = Node::with(vec![AccountEntry::new(KEY, SECRET), other]);
    node.bucket.put("k", b"bytes").unwrap();
    let theirs = node.directory.path().join("other/bucket");
    std::fs::create_dir_all(&theirs).unwrap();
    std::fs::write(theirs.join("k"), b"theirs").unwrap();
    node
}

#[test]
fn further_files_come_without_signed_requests() {
    if !lends_files() {
        return;
    }
    let node = two_accounts();
    node.bucket.put("a folder/k+k", b"others").unwrap();
    let connection = begun(&node, KEY);
    let reply = exchange(&connection, "/bucket/k\n");
    let etag = reply.header("etag").unwrap().to_owned();
    for name in
        ["etag", "x-forebay-length", "x-forebay-modified", "x-amz-checksum-crc64nvme", "x-amz-checksum-type"]
    {
        let signed = node.head("GET", "/bucket/k", KEY, &[UPGRADE[0], ("x-amz-checksum-mode", "ENABLED")]);
        assert_eq!(reply.header(name), node.send(&signed).header(name), "{name}");
    }
    let file = reply.file.as_ref().unwrap();
    assert_eq!(reopened_for_writing(file).unwrap_err().raw_os_error(), Some(libc::EROFS));
    assert_eq!(bytes_of(reply), b"bytes");
    assert_eq!(bytes_of(exchange(&connection, "/bucket/a%20folder/k+k\n")), b"others");
    assert_eq!(bytes_of(exchange(&connection, &format!("/bucket/k {etag}\n"))), b"bytes");
    // Another object of the name is seen, and is none of the ETag.
    node.bucket.put("k", b"new").unwrap();
    assert_eq!(bytes_of(exchange(&connection, "/bucket/k\n")), b"new");
    for ask in [
        &format!("/bucket/k {etag}"),
        "/bucket/none",
        "/none/k",
        "/bucket",
        "/",
        "/bucket/%",
        "/bucket/%FF",
        "/bucket/../other/bucket/k",
        "/bucket/%2E%2E/other/bucket/k",
        "/bucket/.forebay/k",
    ] {
        let reply = exchange(&connection, &format!("{ask}\n"));
        assert_eq!((reply.status, reply.file.is_some()), (421, false), "{ask}: {}", reply.text);
    }
    assert_eq!(bytes_of(exchange(&connection, "/bucket/k\n")), b"new");
    // An account of another directory has that one's.
    assert_eq!(bytes_of(exchange(&begun(&node, "other"), "/bucket/k\n")), b"theirs");
}

#[test]
fn a_key_that_is_gone_or_has_another_secret_ends_them() {
    if !lends_files() {
        return;
    }
    let node = two_accounts();
    let (ours, theirs) = (begun(&node, KEY), begun(&node, "other"));
    let changed = AccountEntry::new("other", "another secret");
    node.gateway.accounts.replace(vec![changed]).unwrap();
    assert!(is_closed(&ours, "/bucket/k\n"));
    assert!(is_closed(&theirs, "/bucket/k\n"));
    // One whose directory is another now has that one's.
    node.gateway.accounts.replace(vec![AccountEntry::new(KEY, SECRET)]).unwrap();
    let moved = begun(&node, KEY);
    let entry = AccountEntry { directory: "other".into(), ..AccountEntry::new(KEY, SECRET) };
    node.gateway.accounts.replace(vec![entry]).unwrap();
    assert_eq!(bytes_of(exchange(&moved, "/bucket/k\n")), b"theirs");
}

#[test]
fn requests_that_get_no_file_get_no_such_connection() {
    if !lends_files() {
        return;
    }
    let node = two_accounts();
    for (target, extra, status) in [
        ("/bucket/none", None, 404),
        ("/bucket/k", Some(("if-match", "\"x\"")), 412),
        ("/bucket/k", Some(("range", "bytes=0-1")), 400),
    ] {
        let headers: Vec<_> = UPGRADE.into_iter().chain(extra).collect();
        let connection = node.connect();
        assert_eq!(exchange(&connection, &node.head("GET", target, KEY, &headers)).status, status);
        assert!(exchange(&connection, "/bucket/k\r\n\r\n").file.is_none());
    }
    // Of another name, and of one that asks for bytes.
    for (header, upgrade) in
        [(("x-forebay-file", "read"), "websocket"), (("x-other", "read"), "forebay-files")]
    {
        let headers = [header, UPGRADE[1], ("upgrade", upgrade)];
        let reply = exchange(&node.connect(), &node.head("GET", "/bucket/k", KEY, &headers));
        assert_eq!(reply.status, 200, "{}", reply.text);
    }
    // Over TCP there are none.
    let reply = node.gateway.raw().ask("GET", "/bucket/k", &UPGRADE, b"");
    assert_eq!((reply.status, reply.code().as_str()), (501, "NotImplemented"));
}

#[test]
fn asks_that_are_none_end_them() {
    if !lends_files() {
        return;
    }
    let node = two_accounts();
    let signed = node.head("GET", "/bucket/k", KEY, &UPGRADE);
    for ask in ["/bucket/k\n/bucket/k\n", &signed, "\u{fc}\n", "bucket/k\n", &"k".repeat(100_000)] {
        assert!(is_closed(&begun(&node, KEY), ask), "{ask}");
    }
    // An ask that came before the answer.
    let early = node.connect();
    assert!(is_closed(&early, &format!("{signed}/bucket/k\n")));
}

#[test]
fn they_count_as_connections_of_their_account_and_end_with_the_server() {
    if !lends_files() {
        return;
    }
    let one = AccountEntry { connections: Some(1), ..AccountEntry::new("one", SECRET) };
    let mut node = Node::with(vec![AccountEntry::new(KEY, SECRET), one]);
    node.bucket.put("k", b"bytes").unwrap();
    let connection = begun(&node, "one");
    assert_eq!(node.ask("GET", "/bucket/k", "one", &UPGRADE).status, 503);
    assert_eq!(bytes_of(exchange(&connection, "/bucket/k\n")), b"bytes");
    let begin = Instant::now();
    node.gateway.end();
    assert!(begin.elapsed() < Duration::from_secs(4), "{:?}", begin.elapsed());
    assert!(is_closed(&connection, "/bucket/k\n"));
}

#[test]
fn the_client_opens_files_by_them() {
    if !lends_files() {
        return;
    }
    let node = two_accounts();
    let count = |status: u16| {
        let figures = node.gateway.raw().unsigned("GET", "/metrics", &[]).text();
        let name = format!("forebay_s3_requests_total{{operation=\"GetObject\",status=\"{status}\"}} ");
        figures.lines().find_map(|line| line.strip_prefix(&name)).map_or(0, |count| count.parse().unwrap())
    };
    for _ in 0..5 {
        assert!(node.open("s3://bucket/k").unwrap().raw_fd().is_some());
    }
    assert_eq!((count(101), count(200)), (1, 4));
    node.bucket.put("k", b"new").unwrap();
    assert_eq!(node.read(&node.open("s3://bucket/k").unwrap()), b"new");
    assert_eq!(count(101), 1);
}
