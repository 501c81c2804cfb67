//! Objects do what every source must, by the server in the process; by real ones: `real_servers`.
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

#[path = "../../forebay-engine/tests/common/mod.rs"]
mod common;
mod server;

use common::{Target, config, install_gpu};
use fake_s3::{Asked, FakeS3};
use forebay_config::{CachePolicy, IoBackend};
use forebay_contract::{Case, KEY, LEN, Subject, listings, pattern, run_reads, uploads, whole_file};
use forebay_engine::{File, Session, Way};
use server::named;

#[test]
fn objects_keep_the_contract_of_reads() {
    install_gpu();
    let server = named(FakeS3::start());
    for io in [IoBackend::Auto, IoBackend::Threads] {
        let session = Session::with_config(config(io, CachePolicy::Auto)).unwrap();
        for target in Target::ALL {
            let buffer = |len| target.buffer(&session, len);
            let make = || {
                server.put("bucket", "a folder/an object", pattern(KEY, 0, LEN));
                let file = File::open("s3://bucket/a%20folder/an%20object").unwrap();
                let outside = Box::new(|| pattern(KEY, 0, LEN));
                Subject { name: "object", file, outside, is_slow: false }
            };
            run_reads(&session, &buffer, &make);
            let Subject { file, outside, .. } = make();
            let case =
                Case { session: &session, file: &file, outside: &*outside, buffer: &buffer, is_slow: false };
            let receipt = whole_file(&case);
            assert_eq!(receipt.moved[Way::Requested], LEN as u64, "{receipt}");
        }
    }
}

#[test]
fn objects_keep_the_contract_of_new_files_and_folders() {
    let server = named(FakeS3::start());
    server.make_bucket("bucket");
    let number = std::sync::atomic::AtomicU32::new(0);
    let url = || {
        let number = number.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        format!("s3://bucket/folder/new%20one%25{number}")
    };
    uploads(url);
    listings("s3://bucket/folder", "s3://bucket/none", url);
    assert_eq!(server.open_uploads(), 0);
    assert!(server.requests(Asked::List) > 0);
}
