//! Bytes between a server and memory: each version, each length and offset, several wires.

use fake_nfs::{Asked, Server};
use forebay_error::ErrorKind;
use forebay_nfs::{NfsFile, NfsOptions, NfsUrl, open};

const VERSIONS: [&str; 4] = ["3", "4.0", "4.1", "4.2"];

fn pattern(len: usize) -> Vec<u8> {
    forebay_contract::pattern(1, 0, len)
}

fn opened(server: &Server, path: &str, version: &str, options: &NfsOptions) -> NfsFile {
    open(&NfsUrl::parse(&server.url(path, version)).unwrap(), options).unwrap()
}

#[test]
fn every_version_reads_and_writes_the_same_bytes() {
    let bytes = pattern(5_000_003);
    for version in VERSIONS {
        let server = Server::start();
        server.put("/export/dir/file", bytes.clone());
        let file = opened(&server, "/export/dir/file", version, &NfsOptions::default());
        assert_eq!(file.opened().size, bytes.len() as u64);
        assert!(file.client().version().to_string().ends_with(version), "{version}");
        for (offset, len) in
            [(0, 1), (1, 3), (4095, 4098), (7, 1 << 20), (0, 5_000_003), (4_999_000, 5000), (9_000_000, 7)]
        {
            let mut place = vec![0xAA; len + 16];
            let got = file.read_at(&mut place[8..8 + len], offset as u64).unwrap();
            let expected = &bytes[offset.min(bytes.len())..(offset + len).min(bytes.len())];
            assert_eq!(got, expected.len(), "{version} {offset} {len}");
            assert!(place[8..8 + got] == *expected, "{version} {offset} {len}");
            let guards = place[..8].iter().chain(&place[8 + got..]);
            assert!(guards.into_iter().all(|byte| *byte == 0xAA), "{version} {offset} {len}");
        }
        let mut expected = bytes.clone();
        for (offset, len) in [(0, 5), (1_000_001, 3_000_001), (5_000_000, 1003)] {
            let new: Vec<_> = pattern(len).iter().map(|byte| byte ^ 0x5A).collect();
            assert_eq!(file.write_at(&new, offset as u64).unwrap(), len);
            expected.resize(expected.len().max(offset + len), 0);
            expected[offset..offset + len].copy_from_slice(&new);
            assert!(
                server.durable("/export/dir/file") == expected,
                "{version}: the written bytes are durable"
            );
        }
        assert_eq!(file.attributes().unwrap().size, expected.len() as u64);
        assert_eq!(server.wrong_slots(), 0, "{version}");
    }
}

#[test]
fn several_wires_carry_one_read() {
    let bytes = pattern(32 << 20);
    for version in ["3", "4.1"] {
        let server = Server::start();
        server.put("/x/file", bytes.clone());
        // Each call takes a while, so that the next one needs another wire.
        server.faults(|seen| {
            (seen.asked == Asked::Read).then_some(fake_nfs::Fault::Late(std::time::Duration::from_millis(20)))
        });
        let options = NfsOptions { connections: 4, depth: 2, ..NfsOptions::default() };
        let file = opened(&server, "/x/file", version, &options);
        let mut place = vec![0; bytes.len()];
        assert_eq!(file.read_at(&mut place, 0).unwrap(), bytes.len());
        assert!(place == bytes);
        assert_eq!(file.client().traffic().connections, 4);
        assert_eq!(file.client().traffic().read, bytes.len() as u64);
    }
}

#[test]
fn limits_of_the_server_are_kept() {
    let bytes = pattern(300_000);
    for version in VERSIONS {
        let server = Server::start();
        server.limit(8192);
        server.put("/x/file", bytes.clone());
        let file = opened(&server, "/x/file", version, &NfsOptions::default());
        assert_eq!(file.client().limits().read, 8192);
        let mut place = vec![0; bytes.len()];
        assert_eq!(file.read_at(&mut place, 0).unwrap(), bytes.len());
        assert!(place == bytes);
        assert_eq!(server.count(Asked::Read), 300_000u64.div_ceil(8192), "{version}");
        assert_eq!(file.write_at(&bytes, 0).unwrap(), bytes.len());
        assert_eq!(server.count(Asked::Write), 300_000u64.div_ceil(8192), "{version}");
        assert_eq!(server.count(Asked::Commit), 1, "{version}");
    }
}

#[test]
fn the_first_version_tried_that_the_server_speaks_is_used() {
    for (three, four, expected) in
        [(true, Some(2), "v4.1"), (true, Some(0), "v4.0"), (true, None, "v3"), (false, Some(1), "v4.1")]
    {
        let server = Server::start();
        server.versions(three, four);
        server.put("/x/file", pattern(10));
        let port = server.address().port();
        let url = NfsUrl::parse(&format!("nfs://127.0.0.1:{port}/x/file?mountport={port}")).unwrap();
        let file = open(&url, &NfsOptions::default()).unwrap();
        assert_eq!(file.client().version().to_string(), expected);
    }
    let server = Server::start();
    server.versions(true, None);
    server.put("/x/file", pattern(10));
    let error =
        open(&NfsUrl::parse(&server.url("/x/file", "4.1")).unwrap(), &NfsOptions::default()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error:?}");
}

#[test]
fn what_cannot_be_opened_says_why() {
    let server = Server::start();
    server.put("/x/file", pattern(10));
    for version in VERSIONS {
        let of = |path| {
            open(&NfsUrl::parse(&server.url(path, version)).unwrap(), &NfsOptions::default()).unwrap_err()
        };
        assert_eq!(of("/x/other").kind(), ErrorKind::NotFound, "{version}");
        assert_eq!(of("/y/file").kind(), ErrorKind::NotFound, "{version}");
        assert_eq!(of("/x").kind(), ErrorKind::IsDirectory, "{version}");
    }
    let gone = {
        let server = Server::start();
        server.url("/x/file", "4.1")
    };
    let error = open(&NfsUrl::parse(&gone).unwrap(), &NfsOptions::default()).unwrap_err();
    assert!(error.to_string().starts_with("cannot connect to the server: Connection refused"), "{error}");
    assert!(error.hints()[0].starts_with("nothing listens on port"), "{error:?}");
    let url = NfsUrl::parse("nfs://no-such-host.invalid/x").unwrap();
    let error = open(&url, &NfsOptions::default()).unwrap_err();
    assert_eq!(
        error.to_string(),
        "cannot find the server: its name has no address (server=no-such-host.invalid)"
    );
}
