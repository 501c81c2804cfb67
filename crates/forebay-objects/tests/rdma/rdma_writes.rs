//! New objects by RDMA: a server in the process reads parts and whole objects from memory, over a fabric in the process.

use std::sync::Arc;

use fake_verbs::{Fake, Fault, Side, What};
use forebay_engine::{File, Receipt, Session};
use forebay_error::Result;
use forebay_objects::Bucket;
use forebay_source::opener_of;
use forebay_verbs::Kind;

use crate::rdma_server::{Lie, Named};

/// Two parts of 16 MiB, and a shorter one.
pub const LEN: usize = 35_000_003;
/// An object of one call.
pub const SHORT: usize = 1_000_003;

pub fn pattern(len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    fake_s3::fill_pattern(7, 0, &mut bytes);
    bytes
}

/// Writes an object of several parts, and compares it.
pub fn upload(server: &Named, len: usize) -> Result<Receipt> {
    let (session, bytes) = (Session::open().unwrap(), pattern(len));
    let upload = opener_of("s3://bucket/new").unwrap().make("s3://bucket/new".as_ref(), 0o644)?;
    let file = File::from_source(upload.source())?;
    let mut buffer = session.host_buffer(len)?;
    buffer.copy_from_slice(&bytes)?;
    let receipt = session.write(&file, 0, &buffer)?;
    upload.finish(true)?;
    assert!(server.s3().get("bucket", "new").unwrap() == bytes, "other bytes: {receipt}");
    assert_eq!(server.s3().open_uploads(), 0);
    Ok(receipt)
}

pub fn put(server: &Named) -> Result<()> {
    let bytes = pattern(SHORT);
    Bucket::of("bucket")?.put("short", &bytes)?;
    assert!(server.s3().get("bucket", "short").unwrap() == bytes);
    Ok(())
}

/// Reads an object: the server gives a session.
pub fn proven(server: &Named) {
    server.s3().put("bucket", "key", pattern(LEN));
    let session = Session::open().unwrap();
    let (mut buffer, file) = (session.host_buffer(LEN).unwrap(), File::open("s3://bucket/key").unwrap());
    while !session.read_into(&file, 0, &mut buffer, 0..LEN).unwrap().to_string().contains("by RDMA") {}
}

#[test]
fn parts_are_read_from_memory_and_no_byte_is_in_a_body() {
    let server = Named::start(Fake::new(), "prefer");
    let receipt = upload(&server, LEN).unwrap();
    // The shorter last part is sent when the upload ends.
    let text = receipt.to_string();
    assert!(text.contains("bytes by RDMA from host memory: S3 by RDMA, rc1, server"), "{text}");
    assert_eq!(server.body_bytes(), 0, "{text}");
    assert!(server.transfers() >= 3);
    assert_eq!(server.fabric.counts().read, LEN as u64);
}

#[test]
fn no_put_goes_by_rdma_before_the_server_has_given_a_session() {
    let server = Named::start(Fake::new(), "prefer");
    put(&server).unwrap();
    assert_eq!((server.body_bytes(), server.transfers(), server.connects()), (SHORT as u64, 0, 0));
    proven(&server);
    let (body, transfers) = (server.body_bytes(), server.transfers());
    put(&server).unwrap();
    assert_eq!((server.body_bytes(), server.transfers()), (body, transfers + 1));
    drop(server);
    // Where it is required, it is asked.
    let server = Named::start(Fake::new(), "require");
    put(&server).unwrap();
    upload(&server, LEN).unwrap();
    assert_eq!(server.body_bytes(), 0);
    drop(server);
    let server = Named::start(Fake::new(), "off");
    put(&server).unwrap();
    upload(&server, LEN).unwrap();
    assert_eq!((server.body_bytes(), server.connects()), ((SHORT + LEN) as u64, 0));
}

#[test]
fn an_object_of_which_nothing_was_stored_is_sent_again_in_a_body() {
    for lie in [
        Lie::StoresNothing,
        Lie::Truncates,
        Lie::TruncatesWithWords,
        Lie::Declines,
        Lie::Status501,
        Lie::Fewer,
        Lie::Silent,
        Lie::Forgets,
    ] {
        let server = Named::start(Fake::new(), "prefer");
        proven(&server);
        server.lie(lie, 1000);
        put(&server).unwrap();
        let transfers = server.transfers();
        upload(&server, LEN).unwrap_or_else(|error| panic!("{lie:?}: {error:?}"));
        if matches!(lie, Lie::StoresNothing | Lie::Declines | Lie::Status501 | Lie::Fewer) {
            assert_eq!(server.transfers(), transfers, "tried again: {lie:?}");
        }
    }
}

/// The reply was lost, and the object is there: it is not sent again.
#[test]
fn an_object_that_is_there_is_not_sent_again() {
    let server = Named::start(Fake::new(), "prefer");
    proven(&server);
    let body = server.body_bytes();
    server.lie(Lie::Silent, 1);
    put(&server).unwrap();
    assert_eq!(server.body_bytes(), body);
}

#[test]
fn where_it_is_required_a_server_that_stores_nothing_is_an_error() {
    let server = Named::start(Fake::new(), "require");
    put(&server).unwrap();
    server.lie(Lie::StoresNothing, 1000);
    let error = Bucket::of("bucket").unwrap().put("other", &pattern(SHORT)).unwrap_err();
    assert!(error.to_string().contains("does not say that it has read the bytes"), "{error}");
    assert_eq!(server.s3().get("bucket", "other"), None);
    assert!(upload(&server, LEN).is_err());
    assert_eq!(server.body_bytes(), 0);
}

#[test]
fn bytes_that_the_fabric_does_not_bring_come_in_a_body() {
    let server = Named::start(Fake::new(), "prefer");
    proven(&server);
    server.fabric.inject(Fault::on(Side::Server, Kind::Read, What::Unreachable).times(1000));
    put(&server).unwrap();
    upload(&server, LEN).unwrap();
    assert!(server.body_bytes() >= (LEN + SHORT) as u64);
    drop(server);
    // Nobody has the memory any more.
    let server = Named::start(Fake::new(), "prefer");
    proven(&server);
    server.fabric.limit_locked(4096);
    upload(&server, LEN).unwrap();
    forebay_objects::use_fabric(Arc::new(Fake::with(Vec::new())));
}

#[test]
fn what_was_stored_is_compared_by_its_checksum() {
    let server = Named::start(Fake::new(), "prefer");
    proven(&server);
    // Without one, the object itself is asked for its own.
    let body = server.body_bytes();
    server.lie(Lie::NoSum, 1);
    put(&server).unwrap();
    assert_eq!(server.body_bytes(), body);
    drop(server);
    let server = Named::start(Fake::new(), "prefer");
    proven(&server);
    let body = server.body_bytes();
    server.lie(Lie::OtherSum, 1);
    put(&server).unwrap();
    assert_eq!(server.body_bytes(), body + SHORT as u64);
}
