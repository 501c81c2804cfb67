//! Objects by RDMA with hipobj-rc-v2: a server in the process, over a fabric in the process. The server and its lies: `rdma_server`.

use std::sync::Arc;
use std::time::Duration;

use crate::common::{allow_dma_bufs, config, install_gpu, pattern, soon, try_placed, turn};
use crate::rdma_server::{Lie, Named};
use crate::rdma_writes::upload;
use fake_verbs::{Fake, Fault, Side, What};
use forebay_config::{CachePolicy, IoBackend};
use forebay_engine::{File, Receipt, Session, Way};
use forebay_error::Result;
use forebay_objects::Bucket;
use forebay_verbs::Kind;

const KEY: u64 = 9;
const LEN: usize = 9_000_001;
/// An object that is read whole by one operation.
const SHORT: usize = 1_000_003;
/// Parts of 16 MiB, and a shorter one.
const LONG: usize = 35_000_003;

pub fn named(wish: &str) -> Named {
    install_gpu();
    let server = Named::start(Fake::new(), wish);
    server.speak_hipobj();
    server.s3().put("bucket", "key", pattern(KEY, 0, LEN));
    server.s3().put("bucket", "short", pattern(KEY, 0, SHORT));
    server
}

fn opened(key: &str) -> File {
    File::open(format!("s3://bucket/{key}")).unwrap()
}

fn session() -> Session {
    install_gpu();
    Session::with_config(config(IoBackend::Auto, CachePolicy::Auto)).unwrap()
}

/// Reads all of an object into host memory, which has other bytes before.
fn read(session: &Session, file: &File, len: usize) -> Result<Receipt> {
    let mut buffer = session.host_buffer(len + 64).unwrap();
    buffer.copy_from_slice(&vec![0xA5; len + 64]).unwrap();
    let receipt = session.read_into(file, 0, &mut buffer, 0..len)?;
    let bytes = buffer.to_vec().unwrap();
    assert!(bytes[..len] == pattern(KEY, 0, len), "wrong bytes: {receipt}");
    assert!(bytes[len..] == [0xA5; 64], "bytes beside the range");
    Ok(receipt)
}

/// Reads until the server's RDMA was tried.
fn proven(session: &Session, file: &File, len: usize) {
    let by_rdma = || read(session, file, len).unwrap().to_string().contains("by RDMA into host memory");
    assert!(soon(by_rdma));
}

#[test]
fn objects_and_ranges_come_into_host_memory_and_no_body_has_a_byte() {
    let (server, session) = (named("require"), session());
    for (key, len) in [("key", LEN), ("short", SHORT)] {
        let receipt = read(&session, &opened(key), len).unwrap();
        let text = receipt.to_string();
        let note =
            format!("{len} bytes by RDMA into host memory: S3 by RDMA, hipobj-rc-v2, server 127.0.0.1:");
        assert!(text.contains(&note), "{text}");
    }
    let file = opened("key");
    for (offset, len) in [(0, 1), (1, 4095), (4097, 1 << 20), (LEN as u64 - 5, 5)] {
        let mut part = vec![0; len];
        file.read_host(&mut part, offset).unwrap();
        assert!(part == pattern(KEY, offset, len), "{offset}");
    }
    assert_eq!((server.body_bytes(), server.connects()), (0, 1));
    // No transfer is left behind, here or there.
    assert!(soon(|| server.exchanges() == 0));
    server.fabric.limit_locked(64 << 20);
    for _ in 0..10 {
        read(&session, &file, LEN).unwrap();
    }
}

#[test]
fn objects_come_into_gpu_memory() {
    let _turn = turn();
    allow_dma_bufs();
    let (server, session) = (named("prefer"), session());
    let file = opened("key");
    try_placed(&session, &file, 4096);
    let body = server.body_bytes();
    let mut buffer = session.buffer(0, LEN).unwrap();
    buffer.copy_from_slice(&vec![0xA5; LEN]).unwrap();
    let receipt = session.read_into(&file, 0, &mut buffer, 0..LEN).unwrap();
    assert!(buffer.to_vec().unwrap() == pattern(KEY, 0, LEN), "{receipt}");
    assert_eq!((receipt.moved[Way::Server], server.body_bytes()), (LEN as u64, body), "{receipt}");
    assert!(receipt.to_string().contains("S3 by RDMA, hipobj-rc-v2, server"), "{receipt}");
}

pub fn put(server: &Named) -> Result<()> {
    let bytes = pattern(KEY, 0, SHORT);
    Bucket::of("bucket")?.put("put", &bytes)?;
    assert!(server.s3().get("bucket", "put").unwrap() == bytes);
    Ok(())
}

#[test]
fn objects_are_written_to_the_servers_memory_and_parts_by_http() {
    let server = named("require");
    put(&server).unwrap();
    assert_eq!((server.body_bytes(), server.connects()), (0, 1));
    assert_eq!(server.fabric.counts().written, SHORT as u64);
    let error = upload(&server, LONG).unwrap_err();
    assert!(error.to_string().contains("has no parts of uploads"), "{error}");
    assert_eq!((server.body_bytes(), server.fabric.counts().written), (0, SHORT as u64));
    drop(server);
    // By wish alone, a single PUT asks nobody.
    let server = named("prefer");
    put(&server).unwrap();
    assert_eq!((server.connects(), server.prepares(), server.body_bytes()), (0, 0, SHORT as u64));
    proven(&session(), &opened("key"), LEN);
    let body = server.body_bytes();
    put(&server).unwrap();
    assert_eq!(server.body_bytes(), body);
    let text = upload(&server, LONG).unwrap().to_string();
    assert_eq!(server.body_bytes(), body + LONG as u64, "{text}");
    assert!(text.contains("bytes by HTTP body: ") && text.contains("has no parts of uploads"), "{text}");
}

/// Lies of READY's answer to a GET, and what the receipt says of them.
const LIES: [(Lie, &str); 17] = [
    (Lie::Fewer, "another number of bytes went"),
    (Lie::More, "another number of bytes went"),
    (Lie::Half, "another number of bytes went"),
    (Lie::OtherCookie, "the answer is of another transfer"),
    (Lie::NoHeader, "the answer is of another protocol"),
    (Lie::OtherNumber, "its number does not come behind the bytes"),
    (Lie::NoNumber, "its number does not come behind the bytes"),
    (Lie::MovesNothing, "its number does not come behind the bytes"),
    (Lie::NoEtag, "there is no ETag"),
    (Lie::OtherEtag, "the object was replaced"),
    (Lie::OtherBytes, "another checksum"),
    (Lie::Status501, "reason=dialect"),
    (Lie::Declines, "reason=transfer"),
    (Lie::Beside, "reason=transfer"),
    (Lie::SlowDown, "too much to do"),
    (Lie::Forgets, ""),
    (Lie::WritesLater, ""),
];

#[test]
fn no_wrong_answer_is_believed_and_the_bytes_are_right() {
    let session = session();
    for (lie, said) in LIES {
        let server = named("prefer");
        let file = opened("short");
        proven(&session, &file, SHORT);
        server.lie(lie, 1000);
        let refused = server.refused();
        let text = read(&session, &file, SHORT).unwrap().to_string();
        assert!(text.contains(&format!("{SHORT} bytes by HTTP body: ")), "{lie:?}: {text}");
        assert!(text.contains(said) && !text.contains("by RDMA into host memory"), "{lie:?}: {text}");
        if matches!(lie, Lie::WritesLater | Lie::Beside) {
            assert!(soon(|| server.refused() > refused), "{lie:?}");
        }
        assert!(soon(|| server.exchanges() == 0), "{lie:?}: a transfer is left");
        assert!(soon(|| server.fabric.regions() == 0), "{lie:?}: memory is registered");
    }
}

#[test]
fn a_reply_that_is_lost_or_late_is_asked_for_again_or_waited_for() {
    let (server, session) = (named("prefer"), session());
    let file = opened("short");
    proven(&session, &file, SHORT);
    for lie in [Lie::Silent, Lie::Forgets, Lie::Late(Duration::from_millis(400))] {
        server.lie(lie, 1);
        let text = read(&session, &file, SHORT).unwrap().to_string();
        assert!(text.contains("by RDMA into host memory"), "{lie:?}: {text}");
    }
}

#[test]
fn where_a_transfer_is_not_prepared_bytes_come_in_a_body() {
    let session = session();
    for (lie, said) in [
        (Lie::Status501, "reason=dialect"),
        (Lie::NoHeader, "reason=dialect"),
        (Lie::OtherSize, "reason=size"),
        (Lie::SlowDown, "too much to do"),
        (Lie::NotFound, ""),
        (Lie::OtherPsn, ""),
    ] {
        let server = named("prefer");
        let file = opened("short");
        proven(&session, &file, SHORT);
        server.lie_at_prepare(lie, 1000);
        let text = read(&session, &file, SHORT).unwrap().to_string();
        assert!(text.contains("bytes by HTTP body: ") && text.contains(said), "{lie:?}: {text}");
        assert!(soon(|| server.exchanges() == 0), "{lie:?}: a transfer is left");
    }
}

#[test]
fn a_server_that_speaks_neither_dialect_is_asked_once() {
    let session = session();
    for lie in [Lie::Status501, Lie::NotFound, Lie::NoHeader] {
        let server = named("prefer");
        server.lie_at_prepare(lie, 1000);
        let file = opened("key");
        assert!(soon(|| read(&session, &file, LEN).unwrap().to_string().contains("does not take RDMA")));
        for _ in 0..3 {
            read(&session, &file, LEN).unwrap();
            put(&server).unwrap();
        }
        assert_eq!((server.connects(), server.prepares(), server.transfers()), (1, 1, 0), "{lie:?}");
    }
}

#[test]
fn an_object_that_was_not_stored_is_sent_again_in_a_body() {
    for lie in [
        Lie::Fewer,
        Lie::OtherCookie,
        Lie::NoHeader,
        Lie::OtherSum,
        Lie::Declines,
        Lie::Forgets,
        Lie::Silent,
        Lie::SlowDown,
        Lie::Status501,
    ] {
        let server = named("prefer");
        proven(&session(), &opened("key"), LEN);
        server.lie(lie, 1000);
        put(&server).unwrap_or_else(|error| panic!("{lie:?}: {error:?}"));
        upload(&server, LONG).unwrap_or_else(|error| panic!("{lie:?}: {error:?}"));
    }
    // A server that has stored nothing, and says that it has, is found out by the object's length.
    let server = named("require");
    put(&server).unwrap();
    server.s3().remove("bucket", "put");
    server.lie(Lie::StoresNothing, 1000);
    assert!(Bucket::of("bucket").unwrap().put("put", &pattern(KEY, 0, SHORT)).is_err());
    server.lie(Lie::NoSum, 1000);
    put(&server).unwrap();
    assert_eq!(server.body_bytes(), 0);
}

#[test]
fn what_the_fabric_does_not_bring_comes_in_a_body() {
    let server = named("prefer");
    let session = session();
    let file = opened("short");
    proven(&session, &file, SHORT);
    server.fabric.inject(Fault::on(Side::Server, Kind::Write, What::Unreachable).times(1000));
    let text = read(&session, &file, SHORT).unwrap().to_string();
    assert!(text.contains("bytes by HTTP body: "), "{text}");
    drop(server);
    let server = named("prefer");
    proven(&session, &opened("key"), LEN);
    server.fabric.inject(Fault::on(Side::Client, Kind::Write, What::Unreachable).times(1000));
    put(&server).unwrap();
    drop(server);
    let server = named("prefer");
    let file = opened("short");
    proven(&session, &file, SHORT);
    server.fabric.limit_locked(4096);
    let text = read(&session, &file, SHORT).unwrap().to_string();
    assert!(text.contains("bytes by HTTP body: cannot register memory"), "{text}");
    drop(server);
    let server = named("prefer");
    let file = opened("short");
    proven(&session, &file, SHORT);
    server.fabric.remove_device("fake0");
    let text = read(&session, &file, SHORT).unwrap().to_string();
    assert!(!text.contains("by RDMA into host memory"), "{text}");
    forebay_objects::use_fabric(Arc::new(Fake::with(Vec::new())));
}
