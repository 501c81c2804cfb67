//! Refusals of servers and faults of clients: alike over TCP and by RDMA.

use std::io::{BufRead, BufReader};
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use fake_nfs::{Asked, Fault, Placing, Seen, Server};
use fake_verbs::Fake;
use forebay_error::{ErrorKind, Result};
use forebay_nfs::{Direction, NfsFile, NfsOptions, NfsUrl, RdmaOptions, open};
use forebay_source::HostRange;

use crate::alone::this_test;

const VERSIONS: [&str; 4] = ["3", "4.0", "4.1", "4.2"];
const LEN: usize = 3_500_001;
const GUARD: usize = 64;

fn pattern(len: usize) -> Vec<u8> {
    forebay_contract::pattern(1, 0, len)
}

/// A server, reached one way in one version.
struct Bed {
    // Dropped first: it serves by the server.
    placing: Option<Placing>,
    server: Arc<Server>,
    options: NfsOptions,
    version: &'static str,
}

impl Bed {
    fn file(&self) -> Result<NfsFile> {
        open(&NfsUrl::parse(&self.server.url("/export/file", self.version)).unwrap(), &self.options)
    }

    fn name(&self) -> String {
        format!("{}, {}", self.version, if self.placing.is_some() { "RDMA" } else { "TCP" })
    }

    /// Everything works.
    fn check(&self, file: &NfsFile, bytes: &[u8]) {
        assert!(read(file, bytes.len()).unwrap() == bytes, "{}", self.name());
        let new: Vec<_> = bytes.iter().map(|byte| !byte).collect();
        assert_eq!(file.write_at(&new, 0).unwrap(), new.len(), "{}", self.name());
        assert!(self.server.durable("/export/file") == new, "{}", self.name());
    }
}

/// Does the same over TCP and by RDMA, in each version.
fn each(bytes: &[u8], prepare: impl Fn(&Server), test: impl Fn(&Bed)) {
    for version in VERSIONS {
        for by_rdma in [false, true] {
            let server = Arc::new(Server::start());
            prepare(&server);
            server.put("/export/file", bytes.to_vec());
            let mut options = NfsOptions {
                connections: 2,
                depth: 3,
                silence: Duration::from_millis(500),
                deadline: Duration::from_secs(20),
                ..NfsOptions::default()
            };
            let mut placing = None;
            if by_rdma {
                let fake = Fake::new();
                placing = Some(Placing::start(&fake, server.clone()));
                options.rdma = Some(RdmaOptions::by(Arc::new(fake), Placing::address()));
            }
            test(&Bed { placing, server, options, version });
        }
    }
}

/// Reads all between guards, which stay as they are whatever comes of it.
fn read(file: &NfsFile, len: usize) -> Result<Vec<u8>> {
    let mut place = vec![0xAA; len + 2 * GUARD];
    let got = file.read_at(&mut place[GUARD..GUARD + len], 0);
    let guards = place[..GUARD].iter().chain(&place[GUARD + len..]);
    assert!(guards.into_iter().all(|byte| *byte == 0xAA), "bytes beside the range");
    Ok(place[GUARD..GUARD + got?].to_vec())
}

/// A status of the `nth` call of a kind, once.
fn once(asked: Asked, nth: u64, status: u32) -> impl FnMut(&Seen) -> Option<Fault> + Send {
    move |seen| (seen.asked == asked && seen.before == nth).then_some(Fault::Status(status))
}

fn always(asked: Asked, status: u32) -> impl FnMut(&Seen) -> Option<Fault> + Send {
    move |seen| (seen.asked == asked).then_some(Fault::Status(status))
}

#[test]
fn who_is_not_let_in_is_told_what_to_do() {
    let bytes = pattern(10_000);
    each(
        &bytes,
        |_| {},
        |bed| {
            // An export with root_squash, or a path that is another user's; and one with sec=krb5.
            for status in [1, 13, 10016] {
                bed.server.faults(always(Asked::Open, status));
                let error = bed.file().unwrap_err();
                assert_eq!(error.kind(), ErrorKind::PermissionDenied, "{}: {error:?}", bed.name());
                assert!(!error.hints().is_empty(), "{}: {error:?}", bed.name());
                bed.server.faults(|_| None);
                let file = bed.file().unwrap();
                for asked in [Asked::Read, Asked::Write] {
                    bed.server.faults(always(asked, status));
                    let error = match asked {
                        Asked::Read => read(&file, bytes.len()).unwrap_err(),
                        _ => file.write_at(&bytes, 0).unwrap_err(),
                    };
                    assert_eq!(error.kind(), ErrorKind::PermissionDenied, "{}: {error:?}", bed.name());
                    assert!(!error.hints().is_empty(), "{}: {error:?}", bed.name());
                }
                bed.server.faults(|_| None);
            }
            bed.check(&bed.file().unwrap(), &bytes);
        },
    );
}

#[test]
fn a_server_that_asks_to_wait_is_waited_for() {
    let bytes = pattern(LEN);
    each(
        &bytes,
        |_| {},
        |bed| {
            // DELAY (JUKEBOX), and a time of grace.
            for status in [10008, 10013] {
                bed.server.faults(once(Asked::Other, bed.server.count(Asked::Other), status));
                let file = bed.file().unwrap();
                for asked in [Asked::Read, Asked::Write, Asked::Commit] {
                    let waited = file.client().traffic().waited;
                    bed.server.faults(once(asked, bed.server.count(asked), status));
                    match asked {
                        Asked::Read => assert!(read(&file, LEN).unwrap() == bytes, "{}", bed.name()),
                        _ => assert_eq!(file.write_at(&bytes, 0).unwrap(), LEN, "{}", bed.name()),
                    }
                    assert_eq!(file.client().traffic().waited, waited + 1, "{} {asked:?}", bed.name());
                }
                assert!(bed.server.durable("/export/file") == bytes, "{}", bed.name());
            }
            assert_eq!(bed.server.wrong_slots(), 0, "{}", bed.name());
        },
    );
}

#[test]
fn a_write_without_room_ends_with_what_is_under_way() {
    let bytes = pattern(LEN);
    each(
        &bytes,
        |_| {},
        |bed| {
            let file = bed.file().unwrap();
            for (status, kind) in [
                (28, ErrorKind::NoSpace),
                (69, ErrorKind::NoSpace),
                (27, ErrorKind::NoSpace),
                (30, ErrorKind::ReadOnly),
            ] {
                // The third of four pieces; no COMMIT follows.
                let commits = bed.server.count(Asked::Commit);
                bed.server.faults(once(Asked::Write, bed.server.count(Asked::Write) + 2, status));
                assert_eq!(file.write_at(&bytes, 0).unwrap_err().kind(), kind, "{}", bed.name());
                assert_eq!(bed.server.count(Asked::Commit), commits, "{}", bed.name());
                // Nothing reads the memory any more: what is there now goes nowhere.
                bed.server.faults(once(Asked::Commit, commits, status));
                assert_eq!(file.write_at(&bytes, 0).unwrap_err().kind(), kind, "{}", bed.name());
            }
            bed.server.faults(|_| None);
            bed.check(&file, &bytes);
        },
    );
}

#[test]
fn a_session_that_comes_back_with_fewer_slots_is_used() {
    let bytes = pattern(LEN);
    each(
        &bytes,
        |server| server.limit(64 << 10),
        |bed| {
            if !bed.version.starts_with("4.1") && !bed.version.starts_with("4.2") {
                return;
            }
            let file = bed.file().unwrap();
            bed.check(&file, &bytes);
            // Three for six entries on two connections.
            bed.server.slots(4);
            bed.server.refuse_places(10052, 6);
            let now: Vec<_> = bytes.iter().map(|byte| !byte).collect();
            for _ in 0..3 {
                assert!(read(&file, LEN).unwrap() == now, "{}", bed.name());
            }
            assert_eq!(bed.server.wrong_slots(), 0, "{}", bed.name());
            // None for the connections: an error, in time.
            bed.server.slots(1);
            bed.server.refuse_places(10052, 6);
            assert!(read(&file, LEN).is_err(), "{}", bed.name());
        },
    );
}

/// A connection whose calls have no slot in the new session, while the old one still answers repeated calls.
#[test]
fn a_connection_that_loses_its_slots_gives_no_bytes_of_another_call() {
    let bytes = pattern(LEN);
    each(
        &bytes,
        |server| server.limit(64 << 10),
        |bed| {
            if ["3", "4.0"].contains(&bed.version) {
                return;
            }
            for _ in 0..4 {
                bed.server.slots(u64::MAX);
                let file = bed.file().unwrap();
                assert!(read(&file, LEN).unwrap() == bytes, "{}", bed.name());
                bed.server.slots(2);
                bed.server.refuse_places(10055, 1);
                if let Ok(got) = read(&file, LEN) {
                    let at = got.iter().zip(&bytes).position(|(got, wanted)| got != wanted);
                    assert_eq!((at, got.len()), (None, LEN), "{}", bed.name());
                }
            }
        },
    );
}

#[test]
fn a_session_that_is_lost_is_made_anew() {
    let bytes = pattern(LEN);
    each(
        &bytes,
        |_| {},
        |bed| {
            if ["3", "4.0"].contains(&bed.version) {
                return;
            }
            // STALE_CLIENTID, EXPIRED, BADSESSION, BADSLOT, CONN_NOT_BOUND, SEQ_MISORDERED, SEQ_FALSE_RETRY, DEADSESSION; and DELAY.
            for status in [10022, 10011, 10052, 10053, 10055, 10063, 10076, 10078, 10008] {
                let file = bed.file().unwrap();
                for calls in [1, 3] {
                    bed.server.refuse_places(status, calls);
                    assert!(read(&file, LEN).unwrap() == bytes, "{} {status} {calls}", bed.name());
                    bed.server.refuse_places(status, calls);
                    assert_eq!(file.write_at(&bytes, 0).unwrap(), LEN, "{} {status} {calls}", bed.name());
                    bed.server.refuse_places(status, calls);
                    assert_eq!(
                        file.attributes().unwrap().size,
                        LEN as u64,
                        "{} {status} {calls}",
                        bed.name()
                    );
                }
                assert!(bed.server.durable("/export/file") == bytes, "{} {status}", bed.name());
            }
            // A slot that was refused is at the number where the server saw it last.
            assert_eq!(bed.server.wrong_slots(), 0, "{}", bed.name());
        },
    );
}

#[test]
fn a_session_that_is_lost_each_time_is_an_error_in_the_end() {
    let bytes = pattern(10_000);
    each(
        &bytes,
        |_| {},
        |bed| {
            if ["3", "4.0"].contains(&bed.version) {
                return;
            }
            let hasty = NfsOptions { deadline: Duration::from_millis(700), ..bed.options.clone() };
            let file =
                open(&NfsUrl::parse(&bed.server.url("/export/file", bed.version)).unwrap(), &hasty).unwrap();
            bed.server.refuse_places(10052, u32::MAX);
            for error in [read(&file, bytes.len()).unwrap_err(), file.attributes().unwrap_err()] {
                assert!(error.to_string().contains("does not keep the session"), "{}: {error:?}", bed.name());
            }
            bed.server.refuse_places(0, 0);
            bed.check(&file, &bytes);
        },
    );
}

#[test]
fn the_longest_handles_are_used() {
    let bytes = pattern(LEN);
    for len in [64, 115, 128] {
        let prepare = |server: &Server| server.handles(len);
        each(&bytes, prepare, |bed| {
            if bed.version == "3" && len > 64 {
                // Version 3 has none of more than 64 bytes: the reply is a lie.
                let error = bed.file().unwrap_err();
                assert!(error.to_string().starts_with("cannot read the server's reply"), "{error}");
                return;
            }
            let file = bed.file().unwrap();
            assert_eq!(file.handle().bytes().len(), len, "{}", bed.name());
            bed.check(&file, &bytes);
        });
    }
}

#[test]
fn a_forked_child_gets_an_error_and_the_parent_goes_on() {
    each(
        &pattern(1000),
        |_| {},
        |bed| {
            let file = bed.file().unwrap();
            assert!(read(&file, 1000).unwrap() == pattern(1000));
            // SAFETY: the child makes no calls but those of the test, which take no lock that another thread may hold, and ends.
            let child = unsafe { libc::fork() };
            if child == 0 {
                let mut place = [0; 10];
                let is_right =
                    file.read_at(&mut place, 0).is_err_and(|error| error.kind() == ErrorKind::Unsupported);
                // SAFETY: ends the child.
                unsafe { libc::_exit(i32::from(!is_right)) };
            }
            let mut status = 0;
            // SAFETY: the place has 4 bytes.
            assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
            assert_eq!(status, 0, "{}", bed.name());
            bed.check(&file, &pattern(1000));
        },
    );
}

#[test]
fn ten_thousand_requests_wait_their_turn() {
    let bytes = pattern(40_960_000);
    each(
        &bytes,
        |_| {},
        |bed| {
            if !["3", "4.1"].contains(&bed.version) {
                return;
            }
            let file = bed.file().unwrap();
            let mut place = vec![0u8; bytes.len()];
            let (tell, told) = std::sync::mpsc::channel();
            for (index, part) in place.chunks_mut(4096).enumerate() {
                let tell = tell.clone();
                let answer = Box::new(move |result| tell.send(result).unwrap());
                let memory = HostRange::of_mut(part);
                // SAFETY: the parts lie apart, and live until all are answered below.
                unsafe { file.start(Direction::Read, index as u64 * 4096, memory, answer) };
            }
            for _ in 0..10_000 {
                assert_eq!(told.recv().unwrap().unwrap(), 4096, "{}", bed.name());
            }
            assert!(place == bytes, "{}", bed.name());
            assert_eq!(file.client().traffic().resent, 0, "{}", bed.name());
        },
    );
}

/// The URL that a child of the next test writes to, for ever.
const VICTIM: &str = "FOREBAY_NFS_TEST_VICTIM";

#[test]
fn a_client_that_is_killed_harms_nobody() {
    let options = NfsOptions { connections: 2, depth: 4, ..NfsOptions::default() };
    if let Ok(url) = std::env::var(VICTIM) {
        let file = open(&NfsUrl::parse(&url).unwrap(), &options).unwrap();
        println!("\nwriting");
        for round in (0..=u8::MAX).cycle() {
            file.write_at(&vec![round; 4 << 20], 0).unwrap();
        }
    }
    let bytes = pattern(LEN);
    for version in ["3", "4.1"] {
        let server = Server::start();
        server.put("/export/file", bytes.clone());
        server.put("/export/other", vec![0; 4 << 20]);
        let file = open(&NfsUrl::parse(&server.url("/export/file", version)).unwrap(), &options).unwrap();
        for _ in 0..4 {
            let mut command = this_test();
            command.env(VICTIM, server.url("/export/other", version)).stdout(Stdio::piped());
            let mut child = command.spawn().unwrap();
            let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
            assert!(lines.any(|line| line.unwrap() == "writing"));
            let before = server.count(Asked::Write);
            while server.count(Asked::Write) < before + 10 {
                assert!(read(&file, LEN).unwrap() == bytes, "{version}");
            }
            child.kill().unwrap();
            child.wait().unwrap();
            assert!(read(&file, LEN).unwrap() == bytes, "{version}");
        }
        assert_eq!(file.client().traffic().resent, 0, "{version}");
        // What the server has is of one round for each call.
        let found = server.durable("/export/other");
        assert!(found.chunks(1 << 20).all(|call| call.iter().all(|byte| *byte == call[0])), "{version}");
    }
}
