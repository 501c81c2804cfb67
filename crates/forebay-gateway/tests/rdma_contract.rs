//! Objects whose bytes go by RDMA do what every source must: GET and ranges into host memory and the software GPU's, PUT and parts; by each
//! dialect, over a fabric in the process.
//!
//! `FOREBAY_TEST_S3=s3://BUCKET` runs it with the server and the RDMA devices that there are, by the variables of S3.
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

#[path = "../../forebay-engine/tests/common/mod.rs"]
mod common;
mod served;

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use common::{Target, allow_dma_bufs, config, install_gpu};
use fake_verbs::Fake;
use forebay_config::{CachePolicy, IoBackend};
use forebay_contract::{KEY, LEN, Subject, pattern, run_reads, uploads};
use forebay_engine::{File, Session};
use forebay_gateway::{AccountEntry, RdmaOptions};
use forebay_objects::Bucket;
use served::{Gateway, SECRET};

/// Does something where `s3://BUCKET` is by RDMA alone.
fn each(check: impl Fn(&str)) {
    forebay_objects::register();
    install_gpu();
    allow_dma_bufs();
    // SAFETY: other tests of this file wait, by the lock of `client` or because there is one thread.
    let require = || unsafe { std::env::set_var("FOREBAY_S3_RDMA", "require") };
    if let Ok(bucket) = std::env::var("FOREBAY_TEST_S3") {
        require();
        return check(&bucket);
    }
    for rc1 in [true, false] {
        let fake = Fake::new();
        let options = RdmaOptions::new(Arc::new(fake.serving()), Some("10.0.0.1".parse().unwrap()));
        // The connection comes by loopback.
        let options = RdmaOptions { any_client: true, rc1, ..options };
        let entries = vec![AccountEntry::new(served::KEY, SECRET)];
        let gateway = Gateway::with(entries, |all| all.rdma = Some(options));
        assert_eq!(gateway.raw().put("/bkt", b"").status, 200);
        gateway.client(|| {
            forebay_objects::use_fabric(Arc::new(fake.clone()));
            require();
            check("s3://bkt");
        });
        let counts = fake.counts();
        assert!(counts.written + counts.read >= LEN as u64, "rc1 {rc1}: {counts:?}");
    }
}

#[test]
fn objects_keep_the_contract_of_reads() {
    each(|bucket| {
        let name = bucket.trim_start_matches("s3://");
        for io in [IoBackend::Auto, IoBackend::Threads] {
            let session = Session::with_config(config(io, CachePolicy::Auto)).unwrap();
            for target in Target::ALL {
                let make = || {
                    Bucket::of(name).unwrap().put("a folder/an object", &pattern(KEY, 0, LEN)).unwrap();
                    let file = File::open(format!("{bucket}/a%20folder/an%20object")).unwrap();
                    Subject {
                        name: "object",
                        file,
                        outside: Box::new(|| pattern(KEY, 0, LEN)),
                        is_slow: false,
                    }
                };
                run_reads(&session, &|len| target.buffer(&session, len), &make);
            }
        }
    });
}

#[test]
fn objects_keep_the_contract_of_new_files() {
    let number = AtomicU32::new(0);
    each(|bucket| {
        uploads(|| format!("{bucket}/folder/new%20one%25{}", number.fetch_add(1, Relaxed)));
    });
}
