//! What the tests share: the environment that names a server, and bytes that are looked at.
#![allow(
    clippy::unwrap_used,
    dead_code,
    unreachable_pub,
    reason = "helpers of tests; not each test has need of each"
)]

use std::sync::{Mutex, PoisonError};

use fake_s3::FakeS3;
use forebay_engine::File;
use forebay_error::Result;
use forebay_objects::Bucket;

/// The bucket of all tests.
pub const BUCKET: &str = "bucket";
/// Bytes of an object: three ranges.
pub const LEN: usize = 26_000_003;
/// Bytes beside a range.
const GUARD: usize = 64;

static ENVIRONMENT: Mutex<()> = Mutex::new(());

/// Does something while these variables are set. Clients read them when they are made.
pub fn with<T>(variables: &[(&str, String)], act: impl FnOnce() -> T) -> T {
    let _alone = ENVIRONMENT.lock().unwrap_or_else(PoisonError::into_inner);
    for (name, value) in variables {
        // SAFETY: all that reads or sets variables in these tests holds the lock, or goes through the standard library.
        unsafe { std::env::set_var(name, value) };
    }
    let done = act();
    for (name, _) in variables {
        // SAFETY: as above.
        unsafe { std::env::remove_var(name) };
    }
    done
}

/// The same with those of a server.
pub fn at<T>(server: &FakeS3, act: impl FnOnce() -> T) -> T {
    with(&server.environment(), act)
}

/// A bucket of a server.
pub fn bucket(server: &FakeS3) -> Bucket {
    server.make_bucket(BUCKET);
    at(server, || Bucket::of(BUCKET)).unwrap()
}

/// Bytes of which no two ranges are alike.
pub fn pattern(len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    fake_s3::fill_pattern(7, 0, &mut bytes);
    bytes
}

/// A server with one object, `key`.
pub fn started(bytes: &[u8]) -> FakeS3 {
    let server = FakeS3::start();
    server.put(BUCKET, "key", bytes);
    server
}

pub fn opened(server: &FakeS3) -> File {
    try_open(server, "s3://bucket/key").unwrap()
}

pub fn try_open(server: &FakeS3, url: &str) -> Result<File> {
    forebay_objects::register();
    at(server, || File::open(url))
}

/// Reads between guards, which stay as they are, whether it ends well or not.
pub fn read(file: &File, offset: usize, len: usize) -> Result<Vec<u8>> {
    let mut place = vec![0xAA; len + 2 * GUARD];
    let got = file.read_host(&mut place[GUARD..GUARD + len], offset as u64);
    let mut guards = place[..GUARD].iter().chain(&place[GUARD + len..]);
    assert!(guards.all(|byte| *byte == 0xAA), "bytes beside the range");
    got?;
    Ok(place[GUARD..GUARD + len].to_vec())
}
