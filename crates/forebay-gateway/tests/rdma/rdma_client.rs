//! forebay's own client and the gateway, by RDMA over a fabric in the process: no byte of an object is in a body.

use std::os::unix::fs::FileExt as _;
use std::sync::Arc;

use fake_verbs::{Fake, Fault, Side, What};
use forebay_engine::{File, Session};
use forebay_error::{ErrorKind, Result};
use forebay_gateway::{AccountEntry, RdmaOptions};
use forebay_source::opener_of;
use forebay_verbs::Kind;

use crate::served::{Gateway, KEY, SECRET, pattern};

const MIB: usize = 1 << 20;

/// The dialects, and whether each is rc1.
const DIALECTS: [(&str, bool); 2] = [("rc1", true), ("hipobj-rc-v2", false)];

fn rdma(fake: &Fake, rc1: bool) -> RdmaOptions {
    let options = RdmaOptions::new(Arc::new(fake.serving()), Some("10.0.0.1".parse().unwrap()));
    // The connection comes by loopback.
    RdmaOptions { any_client: true, rc1, ..options }
}

/// A gateway with the bucket `bkt`.
fn started(fake: &Fake, rc1: bool) -> Gateway {
    let rdma = rdma(fake, rc1);
    let gateway = Gateway::with(vec![AccountEntry::new(KEY, SECRET)], |options| options.rdma = Some(rdma));
    assert_eq!(gateway.raw().put("/bkt", b"").status, 200);
    gateway
}

/// Does something while the environment leads to the gateway, with this `FOREBAY_S3_RDMA`.
fn wishing<T>(gateway: &Gateway, fabric: &Fake, wish: &str, act: impl FnOnce() -> T) -> T {
    forebay_objects::register();
    gateway.client(|| {
        forebay_objects::use_fabric(Arc::new(fabric.clone()));
        // SAFETY: all that sets variables in these tests holds the lock of `client`.
        unsafe { std::env::set_var("FOREBAY_S3_RDMA", wish) };
        act()
    })
}

fn write(key: &str, bytes: &[u8]) -> Result<String> {
    let url = format!("s3://bkt/{key}");
    let session = Session::open()?;
    let upload = opener_of(&url).unwrap().make(url.as_ref(), 0o644)?;
    let file = File::from_source(upload.source())?;
    let mut buffer = session.host_buffer(bytes.len())?;
    buffer.copy_from_slice(bytes)?;
    let receipt = session.write(&file, 0, &buffer)?;
    upload.finish(true)?;
    Ok(receipt.to_string())
}

fn read(key: &str, len: usize) -> Result<(Vec<u8>, String)> {
    let session = Session::open()?;
    let file = File::open(format!("s3://bkt/{key}"))?;
    let mut buffer = session.host_buffer(len)?;
    let receipt = session.read_into(&file, 0, &mut buffer, 0..len)?;
    Ok((buffer.to_vec()?, receipt.to_string()))
}

#[test]
fn objects_of_all_sizes_go_both_ways_and_no_body_has_a_byte() {
    for (dialect, rc1) in DIALECTS {
        let fake = Fake::new();
        let gateway = started(&fake, rc1);
        // The last two are uploads in parts, which go by rc1 alone.
        let sizes = [1, 4096, 5 * MIB + 3, 16 * MIB, 40 * MIB + 1];
        for len in &sizes[..if rc1 { 5 } else { 3 }] {
            both_ways(&fake, &gateway, dialect, *len);
        }
    }
}

fn both_ways(fake: &Fake, gateway: &Gateway, dialect: &str, len: usize) {
    let (before, bytes) = (fake.counts(), pattern(len));
    let by_fabric = || {
        let now = fake.counts();
        (now.read - before.read + now.written - before.written) as usize
    };
    wishing(gateway, fake, "require", || {
        write("key", &bytes).unwrap();
        assert_eq!(by_fabric(), len, "PUT of {len} bytes by {dialect}");
        let (came, receipt) = read("key", len).unwrap();
        assert!(came == bytes, "{len}: {receipt}");
        let note = format!("{len} bytes by RDMA into host memory: S3 by RDMA, {dialect}, server 127.0.0.1");
        assert!(receipt.contains(&note), "{receipt}");
    });
    // Two trials of 64 KiB, with the first read alone.
    let trial = 2 * len.min(64 << 10);
    let further = by_fabric() - 2 * len;
    assert!(further == 0 || further == trial, "GET of {len} bytes by {dialect}: {further} more");
    // What came by RDMA is what HTTP has.
    let plain = gateway.raw().ask("GET", "/bkt/key", &[], b"");
    assert!(plain.body == bytes, "{len}");
}

#[test]
fn ranges_and_an_object_that_is_replaced() {
    for (_, rc1) in DIALECTS {
        let fake = Fake::new();
        let gateway = started(&fake, rc1);
        let bytes = pattern(3 * MIB);
        wishing(&gateway, &fake, "require", || {
            write("key", &bytes).unwrap();
            let file = File::open("s3://bkt/key").unwrap();
            for (offset, len) in [(0, 1), (1, 4095), (4097, MIB), (3 * MIB - 5, 5)] {
                let mut part = vec![0; len];
                file.read_host(&mut part, offset as u64).unwrap();
                assert!(part == bytes[offset..offset + len], "{offset}");
            }
            write("key", &pattern(2 * MIB)).unwrap();
            let error = file.read_host(&mut vec![0; MIB], 0).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Busy, "{error}");
            assert!(error.to_string().contains("replaced"), "{error}");
        });
    }
}

#[test]
fn the_last_bytes_of_an_object_of_four_gibibytes_and_a_byte() {
    for (_, rc1) in DIALECTS {
        let fake = Fake::new();
        let gateway = started(&fake, rc1);
        let sparse = std::fs::File::create(gateway.directory().join("bkt/big")).unwrap();
        sparse.write_all_at(b"xy", (1 << 32) - 1).unwrap();
        wishing(&gateway, &fake, "require", || {
            let mut last = [0; 2];
            File::open("s3://bkt/big").unwrap().read_host(&mut last, (1 << 32) - 1).unwrap();
            assert_eq!(&last, b"xy");
        });
    }
}

#[test]
fn a_gateway_that_begins_anew_has_new_sessions() {
    for (_, rc1) in DIALECTS {
        let fake = Fake::new();
        let mut gateway = started(&fake, rc1);
        let bytes = pattern(3 * MIB);
        let file = wishing(&gateway, &fake, "require", || {
            write("key", &bytes).unwrap();
            File::open("s3://bkt/key").unwrap()
        });
        let mut came = vec![0; 3 * MIB];
        file.read_host(&mut came, 0).unwrap();
        assert!(came == bytes);
        gateway.begin_anew(|options| options.rdma = Some(rdma(&fake, rc1)));
        let mut came = vec![0; 3 * MIB];
        file.read_host(&mut came, 0).unwrap();
        assert!(came == bytes);
    }
}

#[test]
fn a_fabric_that_breaks_leaves_the_bytes_right() {
    let faults = [
        (true, Side::Server, Kind::Write, 0),
        (true, Side::Server, Kind::Write, 3),
        (true, Side::Server, Kind::Read, 0),
        (true, Side::Server, Kind::Read, 7),
        (false, Side::Server, Kind::Write, 0),
        (false, Side::Client, Kind::Write, 0),
        (false, Side::Client, Kind::Write, 1),
    ];
    for rc1 in [true, false] {
        let fake = Fake::new();
        let gateway = started(&fake, rc1);
        let bytes = pattern(20 * MIB);
        for (_, side, kind, skip) in faults.into_iter().filter(|fault| fault.0 == rc1) {
            wishing(&gateway, &fake, "prefer", || {
                write("key", &bytes).unwrap();
                fake.inject(Fault::on(side, kind, What::Unreachable).after(skip));
                write("key", &bytes).unwrap_or_else(|error| panic!("{kind:?} {skip}: {error:?}"));
                for _ in 0..3 {
                    assert!(read("key", bytes.len()).unwrap().0 == bytes, "{kind:?} {skip}");
                }
            });
        }
    }
}
