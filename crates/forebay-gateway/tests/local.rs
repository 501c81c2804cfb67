//! Objects by their files, for programs on the gateway's node: the bytes are the object's, and nobody gets more than the key allows.
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

#[path = "local/lending.rs"]
mod lending;
#[path = "local/node.rs"]
mod node;
#[path = "local/rights.rs"]
mod rights;
mod served;
#[path = "local/writes.rs"]
mod writes;

use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixListener;

use forebay_engine::{File, Session};
use forebay_error::ErrorKind;
use forebay_gateway::AccountEntry;
use node::{Node, as_user, can_be_another_user, duplicate, lends_files, reopened_for_writing};
use served::{KEY, SECRET, pattern};

const URL: &str = "s3://bucket/folder/a%20key";
const LEN: usize = 3_000_001;

#[test]
fn an_object_is_read_by_its_file() {
    if !lends_files() {
        return;
    }
    let node = Node::start();
    let bytes = pattern(LEN);
    node.bucket.put("folder/a key", &bytes).unwrap();
    let file = node.open(URL).unwrap();
    assert!(file.raw_fd().is_some(), "{:?}", file.facts());
    assert_eq!(
        (file.len().unwrap(), file.name(), file.access()),
        (LEN as u64, URL.to_owned(), (true, false))
    );
    assert!(node.read(&file) == bytes);

    let session = Session::open().unwrap();
    let mut buffer = session.host_buffer(LEN).unwrap();
    session.read(&file, 0, &mut buffer).unwrap();
    let way = format!("S3 gateway on this node, by its file: {}, keys of environment", node.gateway.address);
    assert_eq!(file.facts().way, Some(way));

    // The state is that of the same object by S3, and the store's checksum is there, too.
    let by_s3 = node.open_with("off", URL).unwrap();
    assert!(by_s3.raw_fd().is_none());
    assert_eq!(file.state().unwrap().unwrap(), by_s3.state().unwrap().unwrap());
    assert!(file.stored_sum().unwrap().is_ok());
    assert!(node.open_with("require", URL).unwrap().raw_fd().is_some());
}

#[test]
fn an_object_that_is_replaced_is_read_as_it_was_opened() {
    if !lends_files() {
        return;
    }
    let node = Node::start();
    node.bucket.put("k", b"old bytes").unwrap();
    let old = node.open("s3://bucket/k").unwrap();
    let state = old.state().unwrap();
    node.bucket.put("k", b"the new bytes").unwrap();
    let new = node.open("s3://bucket/k").unwrap();
    assert!(old.raw_fd().is_some() && new.raw_fd().is_some());
    assert_eq!((node.read(&old), node.read(&new)), (b"old bytes".to_vec(), b"the new bytes".to_vec()));
    assert!(old.state().unwrap() == state && new.state().unwrap() != state);
    node.bucket.delete("k").unwrap();
    assert_eq!(node.read(&new), b"the new bytes");
    assert_eq!(node.open("s3://bucket/k").unwrap_err().kind(), ErrorKind::NotFound);
    // A program that writes into the file changes the state.
    node.bucket.put("k", b"bytes").unwrap();
    let file = node.open("s3://bucket/k").unwrap();
    let state = file.state().unwrap();
    std::fs::write(node.path("k"), b"bytes of another program").unwrap();
    assert_ne!(file.state().unwrap(), state);
    assert!(file.stored_sum().unwrap().is_err());
}

#[test]
fn a_key_that_is_taken_away_opens_nothing() {
    if !lends_files() {
        return;
    }
    let node = Node::start();
    node.bucket.put("k", b"bytes").unwrap();
    assert!(node.open("s3://bucket/k").unwrap().raw_fd().is_some());
    node.gateway.accounts.replace(vec![AccountEntry::new("another", SECRET)]).unwrap();
    // Also on the connection that is open.
    let error = node.open("s3://bucket/k").unwrap_err();
    assert!(error.to_string().contains("InvalidAccessKeyId"), "{error}");
    let reply = node.ask("GET", "/bucket/k", KEY, &[("x-forebay-file", "read")]);
    assert_eq!((reply.status, reply.file.is_some()), (403, false));
}

#[test]
fn an_account_that_only_reads_gets_no_descriptor_that_writes() {
    let reader = AccountEntry { read_only: true, ..AccountEntry::new("reader", SECRET) };
    let node = Node::with(vec![AccountEntry::new(KEY, SECRET), reader]);
    node.bucket.put("k", b"bytes").unwrap();
    // As bad as it gets: everybody may write the file. But for the directories above it, that is.
    std::fs::set_permissions(node.path("k"), PermissionsExt::from_mode(0o666)).unwrap();
    let reply = node.ask("GET", "/bucket/k", "reader", &[("x-forebay-file", "read")]);
    // Without read-only mounts no descriptor goes out.
    assert_eq!((reply.status, reply.file.is_some()), if lends_files() { (200, true) } else { (409, false) });
    if let Some(file) = reply.file {
        assert!((&file).write_all(b"x").is_err());
        // Neither by its path in /proc nor by its mode, also for root and for the owner.
        assert_eq!(reopened_for_writing(&file).unwrap_err().raw_os_error(), Some(libc::EROFS));
        let mode = std::fs::Permissions::from_mode(0o777);
        assert_eq!(file.set_permissions(mode).unwrap_err().raw_os_error(), Some(libc::EROFS));
    }
    let reply = node.ask("PUT", "/bucket/k", "reader", &[("x-forebay-file", "write")]);
    assert_eq!((reply.status, reply.file.is_some()), (403, false));
    assert_eq!(std::fs::read(node.path("k")).unwrap(), b"bytes");
}

#[test]
fn another_user_gets_the_objects_of_its_key_and_no_more() {
    if !lends_files() {
        return;
    }
    if !can_be_another_user() {
        eprintln!("skipped: another user needs root");
        return;
    }
    let node = Node::start();
    let bytes = pattern(LEN);
    node.bucket.put("k", &bytes).unwrap();
    for mode in [0o600, 0o666] {
        std::fs::set_permissions(node.path("k"), PermissionsExt::from_mode(mode)).unwrap();
        as_user(12345, || {
            // The directory of buckets is closed to it.
            assert!(std::fs::File::open(node.path("k")).is_err());
            let file = node.open("s3://bucket/k").unwrap();
            assert!(file.raw_fd().is_some(), "{:?}", file.facts());
            assert!(node.read(&file) == bytes);
            assert!(reopened_for_writing(&duplicate(&file)).is_err());
        });
    }
}

#[test]
fn what_lies_elsewhere_is_no_object() {
    if !lends_files() {
        return;
    }
    let other = AccountEntry { directory: "other".into(), ..AccountEntry::new("other", SECRET) };
    let node = Node::with(vec![AccountEntry::new(KEY, SECRET), other]);
    node.bucket.put("k", b"bytes").unwrap();
    std::fs::write(node.directory.path().join("secret"), b"secret").unwrap();
    for (name, to) in [("out", "../../secret"), ("far", "/etc/passwd"), ("near", "k")] {
        std::os::unix::fs::symlink(to, node.path(name)).unwrap();
    }
    std::os::unix::fs::symlink("/etc", node.path("etc")).unwrap();
    let file = [("x-forebay-file", "read")];
    for (key, target, code) in [
        // A key of another directory.
        ("other", "/bucket/k", "NoSuchBucket"),
        // Links.
        (KEY, "/bucket/out", "NoSuchKey"),
        (KEY, "/bucket/far", "NoSuchKey"),
        (KEY, "/bucket/near", "NoSuchKey"),
        (KEY, "/bucket/etc/passwd", "NoSuchKey"),
        // Ways out.
        (KEY, "/bucket/../secret", "NoSuchKey"),
        (KEY, "/bucket/a/../../secret", "NoSuchKey"),
        (KEY, "/bucket/%2E%2E/secret", "NoSuchKey"),
        (KEY, "/bucket//etc/passwd", "NoSuchKey"),
        (KEY, "/bucket/.forebay/x", "NoSuchKey"),
        (KEY, "/../bucket/k", "InvalidBucketName"),
    ] {
        let reply = node.ask("GET", target, key, &file);
        assert!(reply.file.is_none() && reply.status >= 400, "{target}: {}", reply.text);
        assert!(reply.text.contains(code) || key == KEY, "{target}: {}", reply.text);
    }
    assert_eq!(node.ask("GET", "/bucket/k", KEY, &file).status, 200);
}

#[test]
fn files_are_asked_for_by_signed_requests_through_the_socket_alone() {
    if !lends_files() {
        return;
    }
    let node = Node::start();
    node.bucket.put("k", b"bytes").unwrap();
    let raw = node.gateway.raw();
    let over_tcp = raw.ask("GET", "/bucket/k", &[("x-forebay-file", "read")], b"");
    assert_eq!((over_tcp.status, over_tcp.code().as_str()), (501, "NotImplemented"));
    assert_eq!(raw.ask("PUT", "/bucket/new", &[("x-forebay-file", "write")], b"").code(), "NotImplemented");
    // Answers to strangers do not say where the socket is.
    assert!(raw.get("/bucket/k").header("x-forebay-local").is_some());
    let stranger = node.send("GET /bucket/k HTTP/1.1\r\nhost: x\r\nx-forebay-file: read\r\n\r\n");
    assert_eq!((stranger.status, stranger.file.is_some()), (403, false));
    let signed = raw.head("GET", "/bucket/k", &[], 0, "UNSIGNED-PAYLOAD");
    let added = signed.replacen("\r\n", "\r\nx-forebay-file: read\r\n", 1);
    let unsigned = node.send(&added);
    assert_eq!((unsigned.status, unsigned.file.is_some()), (403, false), "{}", unsigned.text);
    let by_url = raw.presigned("/bucket/k", 60);
    let by_url = node.send(&format!(
        "GET {by_url} HTTP/1.1\r\nhost: {}\r\nx-forebay-file: read\r\n\r\n",
        node.gateway.address
    ));
    assert_eq!((by_url.status, by_url.file.is_some()), (403, false), "{}", by_url.text);
    // A signature that nobody checks, beside that of the URL.
    let beside = node.send(&format!(
        "GET {} HTTP/1.1\r\nhost: {}\r\nx-forebay-file: read\r\n\
         authorization: AWS4-HMAC-SHA256 Credential=a, SignedHeaders=x-forebay-file, Signature=b\r\n\r\n",
        raw.presigned("/bucket/k", 60),
        node.gateway.address
    ));
    assert_eq!((beside.status, beside.file.is_some()), (400, false), "{}", beside.text);
    for (headers, status) in [
        (vec![("x-forebay-file", "write")], 400),
        (vec![("x-forebay-file", "read"), ("range", "bytes=0-1")], 400),
        (vec![("x-forebay-file", "read"), ("if-match", "\"x\"")], 412),
        (vec![("x-forebay-file", "read"), ("x-forebay-files", "read")], 200),
    ] {
        let reply = node.ask("GET", "/bucket/k", KEY, &headers);
        assert_eq!((reply.status, reply.file.is_some()), (status, status == 200), "{headers:?}");
    }
}

#[test]
fn a_socket_at_which_another_user_answers_is_not_used() {
    if !can_be_another_user() {
        eprintln!("skipped: another user needs root");
        return;
    }
    let node = Node::start();
    node.bucket.put("k", b"bytes").unwrap();
    std::fs::remove_file(&node.socket).unwrap();
    std::fs::set_permissions(node.sockets.path(), PermissionsExt::from_mode(0o777)).unwrap();
    let impostor = as_user(12345, || UnixListener::bind(&node.socket).unwrap());
    let file = node.open("s3://bucket/k").unwrap();
    assert!(file.raw_fd().is_none());
    let said = format!("{:?}", file.facts().left_out);
    assert!(said.contains("the gateway's socket is another user's"), "{said}");
    assert_eq!(node.read(&file), b"bytes");
    // It was not asked anything: a signed request is as good as a key for a while.
    let (mut connection, _) = impostor.accept().unwrap();
    assert_eq!(connection.read(&mut [0; 100]).unwrap(), 0);
    let error = node.open_with("require", "s3://bucket/k").unwrap_err();
    assert!(error.to_string().contains("another user's"), "{error}");
}

#[test]
fn a_gateway_that_begins_anew_is_found_again() {
    if !lends_files() {
        return;
    }
    let mut node = Node::start();
    node.bucket.put("k", b"bytes").unwrap();
    assert!(node.open("s3://bucket/k").unwrap().raw_fd().is_some());
    let before = node.socket.clone();
    node.restart();
    assert!(!before.exists());
    assert!(node.open("s3://bucket/k").unwrap().raw_fd().is_some());
}

#[test]
fn without_a_socket_objects_come_by_s3() {
    let gateway = served::Gateway::start();
    let bucket = gateway.bucket("bucket");
    bucket.put("k", b"bytes").unwrap();
    let open = |mode| node::open_at(&gateway, mode, "s3://bucket/k");
    let file = open("auto").unwrap();
    assert!(file.raw_fd().is_none() && file.facts().left_out.is_empty());
    let error = open("require").unwrap_err();
    assert!(error.to_string().contains("no gateway on this node announces itself"), "{error}");
    assert_eq!(open("sometimes").unwrap_err().kind(), ErrorKind::InvalidInput);
    assert!(File::is_url("s3://bucket/k"));
}
