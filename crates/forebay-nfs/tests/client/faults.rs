//! Servers that fail, lie, restart or are silent: each request ends right, no byte is wrong, and none is written beside its range.

use std::net::TcpListener;
use std::os::fd::AsRawFd;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use fake_nfs::{Asked, Fault, Seen, Server};
use forebay_error::{ErrorKind, Result};
use forebay_nfs::{NfsFile, NfsOptions, NfsUrl, open};

use crate::alone::{is_alone, this_test};

const VERSIONS: [&str; 3] = ["3", "4.0", "4.1"];
const LEN: usize = 3_500_001;
const GUARD: usize = 64;

fn pattern(len: usize) -> Vec<u8> {
    forebay_contract::pattern(1, 0, len)
}

fn patient() -> NfsOptions {
    NfsOptions {
        connections: 2,
        depth: 3,
        silence: Duration::from_millis(300),
        deadline: Duration::from_secs(20),
        ..NfsOptions::default()
    }
}

fn hasty() -> NfsOptions {
    NfsOptions { deadline: Duration::from_millis(900), ..patient() }
}

fn started(bytes: &[u8]) -> Server {
    let server = Server::start();
    server.put("/export/file", bytes.to_vec());
    server
}

fn opened(server: &Server, version: &str, options: &NfsOptions) -> NfsFile {
    open(&NfsUrl::parse(&server.url("/export/file", version)).unwrap(), options).unwrap()
}

/// Reads all between guards, which stay as they are whatever comes of it.
fn read(file: &NfsFile, len: usize) -> Result<Vec<u8>> {
    let mut place = vec![0xAA; len + 2 * GUARD];
    let got = file.read_at(&mut place[GUARD..GUARD + len], 0);
    let guards = place[..GUARD].iter().chain(&place[GUARD + len..]);
    assert!(guards.into_iter().all(|byte| *byte == 0xAA), "bytes beside the range");
    Ok(place[GUARD..GUARD + got?].to_vec())
}

/// A fault of the `nth` call of a kind, once.
fn once(asked: Asked, nth: u64, fault: Fault) -> impl FnMut(&Seen) -> Option<Fault> + Send {
    move |seen| (seen.asked == asked && seen.before == nth).then(|| fault.clone())
}

#[test]
fn reads_are_right_whatever_goes_wrong_once() {
    let bytes = pattern(LEN);
    let faults = [
        Fault::Short(1),
        Fault::Short(777_777),
        Fault::NoReply,
        Fault::Close,
        Fault::CloseAfter(0),
        Fault::CloseAfter(3),
        Fault::CloseAfter(100),
        Fault::CloseAfter(400_000),
        Fault::Late(Duration::from_millis(150)),
        Fault::Late(Duration::from_millis(900)),
        Fault::Overtaken,
        Fault::Twice,
        Fault::OtherXid,
        Fault::Fragments(1),
        Fault::Fragments(4093),
        Fault::Truncated(1),
        Fault::Truncated(500_000),
        Fault::Record(vec![]),
        Fault::Record(vec![0xFF; 5000]),
        Fault::Status(10008),
        Fault::Status(10013),
        Fault::Restart,
    ];
    for version in VERSIONS {
        for fault in &faults {
            for nth in [0, 2] {
                let server = started(&bytes);
                let file = opened(&server, version, &patient());
                server.faults(once(Asked::Read, nth, fault.clone()));
                let got =
                    read(&file, LEN).unwrap_or_else(|error| panic!("{version} {fault:?} {nth}: {error:?}"));
                assert!(got == bytes, "{version} {fault:?} {nth}");
                // The client works again.
                assert!(read(&file, LEN).unwrap() == bytes, "{version} {fault:?} {nth}");
            }
        }
    }
}

#[test]
fn every_word_of_a_reply_may_lie() {
    let bytes = pattern(100_000);
    for version in VERSIONS {
        // Words of the header and of the READ's head; all but the last ones are before the bytes.
        for at in (4..160).step_by(4) {
            for more in [1, 0x7FFF_FFFF, 0x8000_0000, u32::MAX] {
                let server = started(&bytes);
                let file = opened(&server, version, &hasty());
                server.faults(once(Asked::Read, 0, Fault::Word(at, more)));
                // A lie that looks like the truth (an error's number, fewer bytes, other bytes) is believed. `read` checks the guards.
                let _ = read(&file, bytes.len());
                server.faults(|_| None);
                assert!(read(&file, bytes.len()).unwrap() == bytes, "{version} {at} {more:#x}");
            }
        }
    }
}

#[test]
fn a_server_that_always_lies_is_given_up() {
    let bytes = pattern(10_000);
    for version in VERSIONS {
        // Where the reply has the number of bytes.
        let count = match version {
            "3" => 116,
            "4.0" => 56,
            _ => 100,
        };
        for fault in [Fault::Record(vec![0xFF; 64]), Fault::Truncated(12), Fault::Word(count, 20_000)] {
            let server = started(&bytes);
            let file = opened(&server, version, &patient());
            server.faults({
                let fault = fault.clone();
                move |seen| (seen.asked == Asked::Read).then(|| fault.clone())
            });
            let began = Instant::now();
            let error = read(&file, bytes.len()).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Io, "{error:?}");
            assert!(error.to_string().starts_with("cannot read the server's reply"), "{error}");
            assert!(began.elapsed() < Duration::from_secs(15), "{version} {fault:?}");
            server.faults(|_| None);
            assert!(read(&file, bytes.len()).unwrap() == bytes);
        }
    }
}

#[test]
fn a_silent_server_is_given_up_in_time() {
    let bytes = pattern(10_000);
    for version in VERSIONS {
        let server = started(&bytes);
        let file = opened(&server, version, &hasty());
        server.faults(|seen| (seen.asked != Asked::Other).then_some(Fault::NoReply));
        let began = Instant::now();
        let error = read(&file, bytes.len()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Timeout, "{error:?}");
        assert!(began.elapsed() < Duration::from_secs(5));
        server.faults(|_| None);
        assert!(read(&file, bytes.len()).unwrap() == bytes);
    }
}

#[test]
fn a_server_that_is_gone_for_good_is_given_up_in_time() {
    for version in VERSIONS {
        let server = started(&pattern(1000));
        let file = opened(&server, version, &hasty());
        drop(server);
        let began = Instant::now();
        assert_eq!(read(&file, 1000).unwrap_err().kind(), ErrorKind::Timeout, "{version}");
        assert!(file.attributes().is_err());
        assert!(began.elapsed() < Duration::from_secs(15));
    }
}

#[test]
fn waiting_that_the_server_asks_for_ends_at_the_deadline() {
    let server = started(&pattern(1000));
    for (version, status) in [("3", 10008), ("4.1", 10008), ("4.0", 10013)] {
        let file = opened(&server, version, &hasty());
        server.faults(move |seen| (seen.asked == Asked::Read).then_some(Fault::Status(status)));
        let error = read(&file, 1000).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Busy, "{error:?}");
        assert!(file.client().traffic().waited > 2);
        server.faults(|_| None);
        assert!(read(&file, 1000).unwrap() == pattern(1000));
    }
}

#[test]
fn stale_and_refused_are_told_as_they_are() {
    let bytes = pattern(10_000);
    for version in VERSIONS {
        let server = started(&bytes);
        let file = opened(&server, version, &patient());
        server.put("/export/file", pattern(20_000));
        let error = read(&file, bytes.len()).unwrap_err();
        assert!(error.to_string().contains("stale handle"), "{error}");
        assert!(file.attributes().unwrap_err().to_string().contains("stale handle"));
        // The name is of another file now.
        assert!(read(&opened(&server, version, &patient()), 20_000).unwrap() == pattern(20_000));
        server.faults(|seen| (seen.asked == Asked::Read).then_some(Fault::Status(13)));
        let error = read(&opened(&server, version, &patient()), 20_000).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::PermissionDenied);
        assert!(!error.hints().is_empty());
    }
}

#[test]
fn a_read_beyond_the_end_is_short() {
    let bytes = pattern(3 << 20);
    let server = started(&bytes);
    let file = opened(&server, "4.1", &patient());
    assert_eq!(file.read_at(&mut vec![0; 4 << 20], 0).unwrap(), 3 << 20);
    assert_eq!(file.read_at(&mut vec![0; 4 << 20], (3 << 20) - 1).unwrap(), 1);
    assert_eq!(file.read_at(&mut [0; 100], 5 << 20).unwrap(), 0);
    assert_eq!(file.read_at(&mut [], 0).unwrap(), 0);
    let error = file.read_at(&mut [0; 100], i64::MAX as u64 - 50).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidInput);
}

#[test]
fn replies_that_come_twice_after_a_reconnect_are_taken_once() {
    let bytes = pattern(LEN);
    for version in VERSIONS {
        let server = started(&bytes);
        let file = opened(&server, version, &patient());
        server.faults(|seen| match (seen.asked, seen.before) {
            (Asked::Read, 0) => Some(Fault::Close),
            (Asked::Read, 1..) => Some(Fault::Twice),
            _ => None,
        });
        assert!(read(&file, LEN).unwrap() == bytes, "{version}");
        assert!(read(&file, LEN).unwrap() == bytes, "{version}");
        assert!(file.client().traffic().resent > 0 && file.client().traffic().strange > 0, "{version}");
    }
}

#[test]
fn a_file_that_is_cut_meanwhile_is_a_short_read() {
    let bytes = pattern(LEN);
    for version in VERSIONS {
        let server = Arc::new(started(&bytes));
        let file = opened(&server, version, &NfsOptions { connections: 1, depth: 1, ..patient() });
        // The second piece finds the file cut within it; of the fourth nothing is left.
        let cut = (1 << 20) + 77_777;
        server.faults(move |seen| (seen.asked == Asked::Read && seen.before == 1).then_some(Fault::Cut(cut)));
        assert!(read(&file, LEN).unwrap() == bytes[..cut as usize], "{version}");
        assert_eq!(file.attributes().unwrap().size, cut);
        assert!(read(&file, LEN).unwrap() == bytes[..cut as usize], "{version}");
    }
}

#[test]
fn writes_are_durable_and_right_whatever_goes_wrong_once() {
    let old = vec![0x11; LEN + 100];
    let new = pattern(LEN);
    let faults = [
        Fault::Short(1),
        Fault::Short(99_999),
        Fault::NoReply,
        Fault::Close,
        Fault::CloseAfter(70),
        Fault::Twice,
        Fault::Overtaken,
        Fault::Truncated(9),
        Fault::Status(10008),
        Fault::Restart,
    ];
    for version in VERSIONS {
        for fault in &faults {
            for (asked, nth) in [(Asked::Write, 0), (Asked::Write, 3), (Asked::Commit, 0)] {
                let server = started(&old);
                let file = opened(&server, version, &patient());
                server.faults(once(asked, nth, fault.clone()));
                let done = file.write_at(&new, 50);
                let done =
                    done.unwrap_or_else(|error| panic!("{version} {fault:?} {asked:?} {nth}: {error:?}"));
                assert_eq!(done, LEN, "{version} {fault:?} {asked:?} {nth}");
                let found = server.durable("/export/file");
                assert!(found[50..50 + LEN] == new, "{version} {fault:?} {asked:?} {nth}");
                assert!(
                    found[..50].iter().chain(&found[50 + LEN..]).all(|byte| *byte == 0x11),
                    "{version} {fault:?}"
                );
            }
        }
    }
}

#[test]
fn what_a_server_forgot_before_the_commit_is_written_again() {
    for version in VERSIONS {
        let server = started(&vec![0; LEN]);
        let file = opened(&server, version, &patient());
        server.faults(|seen| (seen.asked == Asked::Commit && seen.before < 2).then_some(Fault::Forget));
        assert_eq!(file.write_at(&pattern(LEN), 0).unwrap(), LEN);
        assert!(server.durable("/export/file") == pattern(LEN));
        assert_eq!((server.count(Asked::Write), server.count(Asked::Commit)), (3 * 4, 3), "{version}");
        // Between two pieces of one write.
        server.faults(|seen| (seen.asked == Asked::Write && seen.before == 12 + 2).then_some(Fault::Forget));
        let other: Vec<_> = pattern(LEN).iter().map(|byte| !byte).collect();
        assert_eq!(file.write_at(&other, 0).unwrap(), LEN);
        assert!(server.durable("/export/file") == other);
    }
}

#[test]
fn a_server_that_always_forgets_is_an_error_in_the_end() {
    for version in VERSIONS {
        let server = started(&vec![0; LEN]);
        let file = opened(&server, version, &patient());
        server.faults(|seen| (seen.asked == Asked::Commit).then_some(Fault::Forget));
        let error = file.write_at(&pattern(LEN), 0).unwrap_err();
        assert_eq!(error.message(), "cannot write: the server loses bytes that it has accepted");
        server.faults(|_| None);
        assert_eq!(file.write_at(&pattern(LEN), 0).unwrap(), LEN);
        assert!(server.durable("/export/file") == pattern(LEN));
    }
}

#[test]
fn no_space_in_the_middle_ends_the_write() {
    for version in VERSIONS {
        for status in [28, 69, 30] {
            let server = started(&[]);
            let file = opened(&server, version, &patient());
            server.faults(once(Asked::Write, 2, Fault::Status(status)));
            let kind = file.write_at(&pattern(LEN), 0).unwrap_err().kind();
            assert_eq!(kind, if status == 30 { ErrorKind::ReadOnly } else { ErrorKind::NoSpace });
            server.faults(|_| None);
            assert_eq!(file.write_at(&pattern(LEN), 0).unwrap(), LEN);
            assert!(server.durable("/export/file") == pattern(LEN), "{version}");
        }
    }
}

#[test]
fn restarts_under_load_cost_no_byte() {
    let bytes = pattern(8 << 20);
    for version in VERSIONS {
        let server = Arc::new(started(&bytes));
        let file = opened(&server, version, &patient());
        server.faults(|seen| (seen.asked == Asked::Read).then_some(Fault::Late(Duration::from_millis(20))));
        let reads = AtomicU64::new(0);
        std::thread::scope(|scope| {
            let (file, bytes, reads) = (&file, &bytes, &reads);
            let read = |reader: usize| {
                for round in 0..6 {
                    let (start, len) = ((reader * 700_001 + round * 13) % (4 << 20), 3_000_003);
                    let mut place = vec![0; len];
                    assert_eq!(file.read_at(&mut place, start as u64).unwrap(), len);
                    assert!(place == bytes[start..start + len], "{version}");
                    reads.fetch_add(1, Ordering::Relaxed);
                }
            };
            let readers: Vec<_> = (0..4).map(|reader| scope.spawn(move || read(reader))).collect();
            // One that fails ends it.
            while reads.load(Ordering::Relaxed) < 20
                && !readers.iter().any(std::thread::ScopedJoinHandle::is_finished)
            {
                std::thread::sleep(Duration::from_millis(300));
                server.restart();
            }
        });
        assert!(file.client().traffic().connections > 2);
    }
}

/// Threads of wires in this process.
fn wires() -> usize {
    let names = std::fs::read_dir("/proc/self/task").unwrap().flatten();
    let names = names.filter_map(|task| std::fs::read_to_string(task.path().join("comm")).ok());
    names.filter(|name| name.starts_with("forebay-nfs-")).count()
}

/// Descriptors of this process that threads of wires are woken by.
fn signals() -> usize {
    let open = std::fs::read_dir("/proc/self/fd").unwrap().flatten();
    let names = open.filter_map(|fd| std::fs::read_link(fd.path()).ok());
    names.filter(|name| name.to_string_lossy().contains("eventfd")).count()
}

#[test]
fn what_nothing_uses_is_closed_and_made_again() {
    // Other tests have wires of their own.
    if !is_alone() {
        return;
    }
    let server = started(&pattern(1000));
    let options =
        NfsOptions { idle: Duration::from_millis(100), silence: Duration::from_secs(5), ..patient() };
    let file = opened(&server, "4.1", &options);
    for round in 1..4 {
        assert!(read(&file, 1000).unwrap() == pattern(1000));
        assert_eq!((file.client().traffic().connections, wires()), (round, 1));
        let began = Instant::now();
        while wires() > 0 {
            assert!(began.elapsed() < Duration::from_secs(5), "a thread that nothing uses");
            std::thread::sleep(Duration::from_millis(20));
        }
        assert_eq!(signals(), 0);
    }
    // So is the connection for all else: while it is used it stays, and its session outlives it.
    let idle = Duration::from_secs(1);
    let other = opened(&server, "4.1", &NfsOptions { idle, ..patient() });
    let before = server.connections();
    for connections in [before, before + 1] {
        for _ in 0..6 {
            other.attributes().unwrap();
            std::thread::sleep(idle / 5);
        }
        assert_eq!((server.connections(), server.wrong_slots()), (connections, 0));
        std::thread::sleep(idle * 2);
    }
    // The server closes a connection that nothing uses.
    assert!(read(&file, 1000).unwrap() == pattern(1000));
    server.restart();
    assert!(read(&file, 1000).unwrap() == pattern(1000));
    drop(file);
    let began = Instant::now();
    while wires() > 0 {
        assert!(began.elapsed() < Duration::from_secs(5), "a thread behind the last file");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Parts not sent when a request failed are never sent: the memory is the caller's again.
#[test]
fn a_request_that_failed_asks_for_nothing_more() {
    const IO: u32 = 5;
    for version in VERSIONS {
        let server = started(&pattern(LEN));
        server.faults(|seen| (seen.asked == Asked::Read && seen.before == 0).then_some(Fault::Status(IO)));
        let file = opened(&server, version, &NfsOptions { connections: 1, depth: 1, ..patient() });
        assert_eq!(read(&file, LEN).unwrap_err().kind(), ErrorKind::Io, "{version}");
        assert_eq!(read(&file, 1).unwrap(), pattern(1), "{version}");
        assert_eq!(server.count(Asked::Read), 2, "{version}");
    }
}

/// A server that receives little ahead: what it does not read stays with the client.
fn narrow(bytes: &[u8]) -> Server {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let little = 32 << 10;
    // SAFETY: pointer and length are of a local variable.
    let set = unsafe {
        let place = (&raw const little).cast();
        libc::setsockopt(listener.as_raw_fd(), libc::SOL_SOCKET, libc::SO_RCVBUF, place, 4)
    };
    assert_eq!(set, 0);
    let server = Server::start_on(listener);
    server.put("/export/file", bytes.to_vec());
    server
}

/// The first WRITE is not answered, and the rest not read for so long.
fn unread(server: &Server, time: Duration) {
    server.faults(once(Asked::Write, server.count(Asked::Write), Fault::Unread(time)));
}

#[test]
fn what_a_connection_has_not_sent_when_it_is_given_up_is_never_sent() {
    for version in VERSIONS {
        let server = narrow(&vec![0; LEN]);
        let file = opened(&server, version, &NfsOptions { connections: 1, ..patient() });
        let time = Duration::from_millis(1500);
        unread(&server, time);
        assert_eq!(file.write_at(&vec![1; LEN], 0).unwrap(), LEN);
        assert_eq!(file.write_at(&vec![2; LEN], 0).unwrap(), LEN);
        // The server reads the rest of the first connection.
        std::thread::sleep(time);
        assert_eq!(server.count(Asked::Write), 1 + 2 * 4, "{version}");
        assert!(server.durable("/export/file").iter().all(|byte| *byte == 2), "{version}");
    }
}

/// The URL that a child of the next test writes to until it is killed.
const ENDING: &str = "FOREBAY_NFS_TEST_ENDING";

#[test]
fn what_a_process_has_not_sent_when_it_ends_is_never_sent() {
    if let Ok(url) = std::env::var(ENDING) {
        let options = NfsOptions { connections: 1, ..NfsOptions::default() };
        open(&NfsUrl::parse(&url).unwrap(), &options).unwrap().write_at(&vec![1; LEN], 0).unwrap();
    }
    let ends = |version, mut this_test: Command| {
        let (server, time) = (narrow(&vec![0; LEN]), Duration::from_secs(3));
        unread(&server, time);
        let mut child = this_test.env(ENDING, server.url("/export/file", version)).spawn().unwrap();
        while server.count(Asked::Write) == 0 {
            std::thread::sleep(Duration::from_millis(10));
        }
        // It sends what the connection takes.
        std::thread::sleep(Duration::from_millis(200));
        child.kill().unwrap();
        child.wait().unwrap();
        std::thread::sleep(time);
        assert_eq!(server.count(Asked::Write), 1, "{version}");
    };
    std::thread::scope(|scope| {
        for version in VERSIONS {
            let this_test = this_test();
            scope.spawn(move || ends(version, this_test));
        }
    });
}

#[test]
fn a_server_that_has_forgotten_the_connection_is_noticed_before_it_is_silent() {
    if !fake_nfs::may_vanish() {
        return println!("skipped: no right to let connections vanish (CAP_NET_ADMIN)");
    }
    let server = started(&pattern(1000));
    let file = opened(&server, "4.1", &NfsOptions { silence: Duration::from_secs(12), ..patient() });
    server.faults(once(Asked::Read, 0, Fault::Vanish));
    let began = Instant::now();
    assert!(read(&file, 1000).unwrap() == pattern(1000));
    assert!(began.elapsed() < Duration::from_secs(11), "{:?}", began.elapsed());
    assert!(file.client().traffic().resent > 0);
}
