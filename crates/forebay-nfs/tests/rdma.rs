//! Bytes by RDMA, over a fabric in the process: the server places them, by keys that end with their call; each fault ends right.
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use std::sync::Arc;
use std::time::Duration;

use fake_nfs::{Asked, Lie, Placing, Server};
use fake_verbs::{Fake, Fault as Cut, Side, What};
use forebay_error::{ErrorKind, Result};
use forebay_nfs::{File, Options, Rdma, Url, open};
use forebay_verbs::Kind;

const VERSIONS: [&str; 3] = ["3", "4.0", "4.1"];
const LEN: usize = 3_500_001;
const GUARD: usize = 64;

fn pattern(len: usize) -> Vec<u8> {
    (0..len as u64).map(|at| (at.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 40) as u8).collect()
}

fn options(fake: &Fake) -> Options {
    let rdma = Rdma {
        fabric: Arc::new(fake.clone()),
        address: Some(Placing::address().ip()),
        port: Placing::address().port(),
    };
    Options {
        connections: 2,
        depth: 4,
        silence: Duration::from_secs(4),
        deadline: Duration::from_secs(20),
        rdma: Some(rdma),
        ..Options::default()
    }
}

fn bed(bytes: &[u8]) -> (Fake, Arc<Server>, Placing) {
    let (fake, server) = (Fake::new(), Arc::new(Server::start()));
    server.put("/export/file", bytes.to_vec());
    let placing = Placing::start(&fake, server.clone());
    (fake, server, placing)
}

fn opened(server: &Server, version: &str, fake: &Fake) -> File {
    open(&Url::parse(&server.url("/export/file", version)).unwrap(), &options(fake)).unwrap()
}

fn read(file: &File, offset: usize, len: usize) -> Result<Vec<u8>> {
    let mut place = vec![0xAA; len + 2 * GUARD];
    let got = file.read_at(&mut place[GUARD..GUARD + len], offset as u64);
    let guards = place[..GUARD].iter().chain(&place[GUARD + len..]);
    assert!(guards.into_iter().all(|byte| *byte == 0xAA), "bytes beside the range");
    Ok(place[GUARD..GUARD + got?].to_vec())
}

#[test]
fn the_server_places_every_byte_and_no_other() {
    let bytes = pattern(LEN);
    for version in VERSIONS {
        let (fake, server, _placing) = bed(&bytes);
        let file = opened(&server, version, &fake);
        let (tcp, mut asked) = (server.connections(), 0);
        for (offset, len) in
            [(0, 1), (1, 3), (4095, 4098), (7, 1 << 20), (0, LEN), (LEN - 5, 100), (LEN + 7, 9)]
        {
            let expected = &bytes[offset.min(LEN)..(offset + len).min(LEN)];
            assert!(read(&file, offset, len).unwrap() == expected, "{version} {offset} {len}");
            asked += expected.len() as u64;
        }
        // The fabric's own count: all by RDMA WRITE, none inline.
        assert_eq!(fake.counts().written, asked, "{version} {:?}", file.client().traffic());
        assert_eq!((file.client().traffic().read, fake.counts().refused), (asked, 0));
        assert_eq!(file.client().traffic().resent, 0);
        let new: Vec<_> = bytes.iter().map(|byte| !byte).collect();
        assert_eq!(file.write_at(&new[..LEN - 77], 50).unwrap(), LEN - 77);
        let found = server.durable("/export/file");
        assert!(
            found[50..LEN - 27] == new[..LEN - 77]
                && found[..50] == bytes[..50]
                && found[LEN - 27..] == bytes[LEN - 27..]
        );
        assert_eq!(fake.counts().read, LEN as u64 - 77);
        assert_eq!(server.connections(), tcp, "no other connection over TCP");
        assert_eq!(server.wrong_slots(), 0);
    }
}

#[test]
fn lies_cost_a_connection_and_no_byte() {
    let bytes = pattern(LEN);
    for version in VERSIONS {
        for lie in [
            Lie::Placed,
            Lie::NoCredits,
            Lie::ManyCredits,
            Lie::TwoNumbers,
            Lie::Noise,
            Lie::Twice,
            Lie::Beyond,
            Lie::Late,
        ] {
            let (fake, server, placing) = bed(&bytes);
            let file = opened(&server, version, &fake);
            placing.lie(lie);
            assert!(read(&file, 0, LEN).unwrap() == bytes, "{version} {lie:?}");
            if lie == Lie::Late {
                std::thread::sleep(Duration::from_millis(200));
            }
            assert!(read(&file, 0, LEN).unwrap() == bytes, "{version} {lie:?}");
            let refused = u64::from(matches!(lie, Lie::Beyond | Lie::Late));
            assert_eq!(fake.counts().refused, refused, "{version} {lie:?}");
        }
    }
}

#[test]
fn chunks_that_are_refused_end_the_call() {
    let (fake, server, placing) = bed(&pattern(10_000));
    let file = opened(&server, "3", &fake);
    placing.lie(Lie::WrongChunks);
    assert_eq!(read(&file, 0, 10_000).unwrap_err().kind(), ErrorKind::Io);
    assert!(read(&file, 0, 10_000).unwrap() == pattern(10_000));
}

#[test]
fn a_server_may_put_few_bytes_into_the_message() {
    for version in VERSIONS {
        let (fake, server, placing) = bed(&pattern(501));
        let file = opened(&server, version, &fake);
        placing.lie(Lie::Inline);
        assert!(read(&file, 0, 501).unwrap() == pattern(501));
        assert_eq!(fake.counts().written, 0);
    }
}

#[test]
fn connections_that_break_cost_no_byte() {
    let bytes = pattern(LEN);
    for version in VERSIONS {
        for (side, kind, what) in [
            (Side::Client, Kind::Send, What::Disconnect),
            (Side::Client, Kind::Send, What::Unreachable),
            (Side::Client, Kind::Send, What::Lose),
            (Side::Client, Kind::Send, What::Delay(Duration::from_millis(100))),
            (Side::Server, Kind::Send, What::Disconnect),
            (Side::Server, Kind::Send, What::Lose),
            (Side::Server, Kind::Send, What::Hold(1)),
            (Side::Server, Kind::Write, What::Disconnect),
            (Side::Server, Kind::Write, What::Delay(Duration::from_millis(600))),
        ] {
            for after in [0, 2] {
                let (fake, server, _placing) = bed(&bytes);
                let options = Options { silence: Duration::from_millis(300), ..options(&fake) };
                let file =
                    open(&Url::parse(&server.url("/export/file", version)).unwrap(), &options).unwrap();
                fake.inject(Cut::on(side, kind, what).after(after));
                let got = read(&file, 0, LEN);
                assert!(got.is_ok_and(|got| got == bytes), "{version} {side:?} {kind:?} {what:?} {after}");
                assert!(read(&file, 0, LEN).unwrap() == bytes);
            }
        }
    }
}

#[test]
fn writes_survive_what_breaks() {
    let bytes = pattern(LEN);
    for version in VERSIONS {
        for (side, kind) in
            [(Side::Client, Kind::Send), (Side::Server, Kind::Read), (Side::Server, Kind::Send)]
        {
            let (fake, server, _placing) = bed(&vec![0; LEN]);
            let file = opened(&server, version, &fake);
            fake.inject(Cut::on(side, kind, What::Disconnect).after(1));
            assert_eq!(file.write_at(&bytes, 0).unwrap(), LEN);
            assert!(server.durable("/export/file") == bytes, "{version} {side:?} {kind:?}");
        }
        let (fake, server, _placing) = bed(&vec![0; LEN]);
        let file = opened(&server, version, &fake);
        server.faults(|seen| {
            (seen.asked == Asked::Commit && seen.before == 0).then_some(fake_nfs::Fault::Forget)
        });
        assert_eq!(file.write_at(&bytes, 0).unwrap(), LEN);
        assert!(server.durable("/export/file") == bytes);
    }
}

#[test]
fn a_device_that_is_removed_ends_the_request_in_time() {
    let (fake, server, _placing) = bed(&pattern(LEN));
    let options = Options { deadline: Duration::from_millis(800), ..options(&fake) };
    let file = open(&Url::parse(&server.url("/export/file", "3")).unwrap(), &options).unwrap();
    assert!(read(&file, 0, LEN).unwrap() == pattern(LEN));
    fake.remove_device("fake0");
    assert_eq!(read(&file, 0, LEN).unwrap_err().kind(), ErrorKind::Timeout);
}

#[test]
fn a_server_without_rdma_is_told_when_the_file_is_opened() {
    let (fake, server) = (Fake::new(), Arc::new(Server::start()));
    server.put("/export/file", pattern(100));
    let _placing = Placing::start(&fake, server.clone());
    let mut options = options(&fake);
    if let Some(rdma) = &mut options.rdma {
        rdma.port = 1;
    }
    let error = open(&Url::parse(&server.url("/export/file", "3")).unwrap(), &options).unwrap_err();
    assert_eq!(forebay_verbs::Why::of(&error), Some(forebay_verbs::Why::Rejected), "{error:?}");
    assert!(error.hints().iter().any(|hint| hint == "FOREBAY_NFS=tcp"));
}
