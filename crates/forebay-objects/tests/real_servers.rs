//! The contract of sources over objects of a real server: `FOREBAY_TEST_S3=s3://BUCKET/PREFIX`, with the variables of AWS that lead to
//! it. `tests/s3/check` runs it beside each server.
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

#[path = "../../forebay-engine/tests/common/mod.rs"]
mod common;

use std::sync::atomic::{AtomicU32, Ordering};

use common::{Target, config, install_gpu};
use forebay_config::{CachePolicy, IoBackend};
use forebay_contract::{KEY, LEN, Subject, listings, pattern, run_reads, uploads};
use forebay_engine::{File, Session};
use forebay_source::opener_of;

/// The prefix of a run's objects; none without a server.
fn prefix() -> Option<String> {
    let Ok(prefix) = std::env::var("FOREBAY_TEST_S3") else {
        println!("skipped: FOREBAY_TEST_S3 names no bucket");
        return None;
    };
    forebay_objects::register();
    install_gpu();
    Some(prefix)
}

fn put(session: &Session, url: &str, bytes: &[u8]) {
    let upload = opener_of(url).unwrap().make(url.as_ref(), 0o644).unwrap();
    let file = File::from_source(upload.source()).unwrap();
    let mut buffer = session.host_buffer(bytes.len()).unwrap();
    buffer.copy_from_slice(bytes).unwrap();
    session.write(&file, 0, &buffer).unwrap();
    upload.finish(true).unwrap();
}

#[test]
fn reads() {
    let Some(prefix) = prefix() else { return };
    let session = Session::with_config(config(IoBackend::Auto, CachePolicy::Auto)).unwrap();
    let url = format!("{prefix}/a%20folder/obj%20ect");
    put(&session, &url, &pattern(KEY, 0, LEN));
    for target in Target::ALL {
        let buffer = |len| target.buffer(&session, len);
        let make = || Subject {
            name: "object",
            file: File::open(&url).unwrap(),
            outside: Box::new(|| pattern(KEY, 0, LEN)),
            is_slow: false,
        };
        run_reads(&session, &buffer, &make);
    }
}

#[test]
fn new_files_and_folders() {
    let Some(prefix) = prefix() else { return };
    let number = AtomicU32::new(0);
    let url = || format!("{prefix}/folder/new%20one%25{}", number.fetch_add(1, Ordering::Relaxed));
    uploads(url);
    listings(&format!("{prefix}/folder"), &format!("{prefix}/none"), url);
}
