//! Sessions of version 4.1 and later: they end with their last file, where they are not kept, and a new one may take less than the one before.

use std::sync::Arc;
use std::time::{Duration, Instant};

use fake_nfs::{Asked, Fault, Server};
use forebay_error::Result;
use forebay_nfs::{NfsFile, NfsOptions, NfsUrl, open};

const LEN: usize = 3_500_001;

fn pattern(len: usize) -> Vec<u8> {
    forebay_contract::pattern(1, 0, len)
}

fn patient() -> NfsOptions {
    NfsOptions {
        connections: 2,
        depth: 3,
        silence: Duration::from_millis(300),
        deadline: Duration::from_secs(20),
        keep: Duration::ZERO,
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

fn read(file: &NfsFile, len: usize) -> Result<Vec<u8>> {
    let mut place = vec![0xAA; len];
    let got = file.read_at(&mut place, 0)?;
    Ok(place[..got].to_vec())
}

/// Servers keep what belongs to a session until its lease ends.
#[test]
fn sessions_end_with_their_last_file() {
    let server = started(&pattern(1000));
    let idle = Duration::from_millis(100);
    for (pause, connections) in [(Duration::ZERO, 0), (idle * 5, 1)] {
        let file = opened(&server, "4.1", &NfsOptions { idle, ..patient() });
        assert!(read(&file, 1000).unwrap() == pattern(1000));
        assert_eq!(server.sessions(), (1, 1));
        std::thread::sleep(pause);
        let before = server.connections();
        drop(file);
        // The last wire's thread may be the one that ends the session.
        assert_ended(&server, &format!("after {pause:?}"));
        assert_eq!(server.connections() - before, connections);
    }
}

/// Waits until the server has neither sessions nor clients.
fn assert_ended(server: &Server, what: &str) {
    let began = Instant::now();
    while server.sessions() != (0, 0) {
        assert!(began.elapsed() < Duration::from_secs(5), "{:?} {what}", server.sessions());
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn a_session_ends_whatever_happened_to_its_connection() {
    let server = started(&pattern(1000));
    let file = opened(&server, "4.1", &patient());
    assert!(read(&file, 1000).unwrap() == pattern(1000));
    server.close_connections();
    drop(file);
    assert_ended(&server, "after the server closed its connections");
    let file = opened(&server, "4.1", &hasty());
    server.faults(|seen| (seen.asked == Asked::Other).then_some(Fault::NoReply));
    file.attributes().unwrap_err();
    server.faults(|_| None);
    // What carries bytes is answered again.
    assert!(read(&file, 1000).unwrap() == pattern(1000));
    drop(file);
    assert_ended(&server, "after a question that was not answered");
}

#[test]
fn a_silent_server_does_not_hold_up_the_end_of_a_session() {
    let server = started(&pattern(1000));
    let idle = Duration::from_millis(100);
    let options = NfsOptions { idle, silence: Duration::from_secs(20), ..patient() };
    let file = opened(&server, "4.1", &options);
    std::thread::sleep(idle * 5);
    server.faults(|seen| (seen.asked == Asked::End).then_some(Fault::NoReply));
    let began = Instant::now();
    drop(file);
    assert!(began.elapsed() < Duration::from_millis(200), "{:?}", began.elapsed());
    while server.sessions() != (0, 1) {
        assert!(began.elapsed() < Duration::from_secs(5), "{:?}", server.sessions());
        std::thread::sleep(Duration::from_millis(1));
    }
    // It has ended the session; no more is asked of it.
    std::thread::sleep(Duration::from_millis(2500));
    assert_eq!((server.count(Asked::End), server.sessions()), (1, (0, 1)));
}

/// Calls in flight were cut to the old session's sizes, and so are later ones.
#[test]
fn a_server_that_takes_less_in_a_call_after_a_restart_is_read_and_written() {
    const SMALLER: u64 = (64 << 10) + 4096;
    let bytes = pattern(LEN);
    let server = Arc::new(started(&bytes));
    let file = opened(&server, "4.1", &patient());
    assert!(read(&file, LEN).unwrap() == bytes);
    let before = server.count(Asked::Read);
    server.faults({
        let server = Arc::downgrade(&server);
        move |seen| {
            let restarts = (seen.asked, seen.before) == (Asked::Read, before + 1);
            restarts.then(|| server.upgrade().unwrap().session_bytes(SMALLER));
            restarts.then_some(Fault::Restart)
        }
    });
    assert!(read(&file, LEN).unwrap() == bytes);
    let calls = server.count(Asked::Read) - before;
    // That of a call at least is read in the smaller ones.
    assert!(calls >= (1 << 20) / SMALLER, "{calls}");
    server.faults(|_| None);
    // Its end is within what a call has left.
    assert!(read(&file, LEN + 100_000).unwrap() == bytes);
    let new: Vec<_> = bytes.iter().map(|byte| !byte).collect();
    assert_eq!(file.write_at(&new, 0).unwrap(), LEN);
    assert!(server.durable("/export/file") == new);
    assert_eq!(server.wrong_slots(), 0);
}
