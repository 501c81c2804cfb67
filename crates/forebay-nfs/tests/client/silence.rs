//! Servers that are silent: what waits for them has one clock, and one that has never answered has little time.

use std::net::TcpListener;
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use fake_nfs::{Asked, Fault, Server};
use forebay_error::{ErrorKind, Result};
use forebay_nfs::{Direction, NfsFile, NfsOptions, NfsUrl, open, probe};
use forebay_remote::silence::silent;
use forebay_source::HostRange;

const VERSIONS: [&str; 3] = ["3", "4.0", "4.1"];
const PIECE: usize = 4096;
const REQUESTS: usize = 200;

fn options() -> NfsOptions {
    NfsOptions {
        connections: 2,
        depth: 3,
        silence: Duration::from_millis(400),
        deadline: Duration::from_millis(1500),
        ..NfsOptions::default()
    }
}

/// Starts many more requests than have room, and gives when they ended and how.
fn ends(file: &NfsFile, gone: impl FnOnce()) -> Vec<(Duration, Result<usize>)> {
    let mut place = vec![0u8; PIECE * REQUESTS];
    let (tell, told) = channel();
    let began = Instant::now();
    for (index, piece) in place.chunks_mut(PIECE).enumerate() {
        let tell = tell.clone();
        let answer = Box::new(move |result| drop(tell.send((began.elapsed(), result))));
        // SAFETY: the pieces lie apart, and stay until all are answered.
        unsafe { file.start(Direction::Read, (index * PIECE) as u64, HostRange::of_mut(piece), answer) };
    }
    gone();
    (0..REQUESTS).map(|_| told.recv_timeout(Duration::from_mins(1)).unwrap()).collect()
}

#[test]
fn what_is_queued_behind_calls_to_a_silent_server_ends_with_them() {
    std::thread::scope(|scope| {
        for version in VERSIONS {
            for is_gone in [false, true] {
                scope.spawn(move || all_end(version, is_gone));
            }
        }
    });
}

fn all_end(version: &str, is_gone: bool) {
    let server = Server::start();
    server.put("/export/file", vec![7; PIECE * REQUESTS]);
    let url = NfsUrl::parse(&server.url("/export/file", version)).unwrap();
    let file = open(&url, &options()).unwrap();
    server.faults(|seen| (seen.asked == Asked::Read).then_some(Fault::NoReply));
    let mut server = Some(server);
    let ended = ends(&file, || drop(server.take_if(|_| is_gone)));
    let (first, last) = (ended[0].0, ended[REQUESTS - 1].0);
    assert!(first >= Duration::from_millis(1400), "{version} {is_gone} {first:?}");
    assert!(last < first + Duration::from_secs(1), "{version} {is_gone} {first:?} {last:?}");
    for (_, result) in ended {
        // One that goes may refuse the session first.
        let kind = result.unwrap_err().kind();
        assert!(kind == ErrorKind::Timeout || is_gone, "{version} {kind:?}");
    }
    // The next call has less time, also where it is queued, unless the server answers.
    if server.is_some() {
        for (at, result) in ends(&file, || ()) {
            assert!(at >= Duration::from_millis(1400) && result.is_err(), "{version} {at:?}");
        }
    }
    let began = Instant::now();
    assert!(file.read_at(&mut [0; 100], 0).is_err());
    assert!(began.elapsed() < Duration::from_secs(4), "{version} {:?}", began.elapsed());
    if let Some(server) = server {
        server.faults(|_| None);
        assert_eq!(file.read_at(&mut [0; 100], 0).unwrap(), 100, "{version}");
    }
}

/// All that waits is given up by a question about a file: no connection for bytes has a call.
#[test]
fn what_is_asked_for_after_questions_were_given_up_has_some_time() {
    std::thread::scope(|scope| {
        for version in VERSIONS {
            scope.spawn(move || {
                let server = Server::start();
                server.put("/export/file", vec![7; PIECE]);
                let url = NfsUrl::parse(&server.url("/export/file", version)).unwrap();
                let file = open(&url, &options()).unwrap();
                server.faults(|seen| (seen.asked == Asked::Other).then_some(Fault::NoReply));
                for round in 0..3 {
                    let began = Instant::now();
                    let kind = file.attributes().unwrap_err().kind();
                    assert_eq!(kind, ErrorKind::Timeout, "{version} {round}");
                    let took = began.elapsed();
                    assert!(took >= Duration::from_millis(1400), "{version} {round} {took:?}");
                    assert!(took < Duration::from_secs(4), "{version} {round} {took:?}");
                }
                server.faults(|_| None);
                file.attributes().unwrap();
            });
        }
    });
}

/// The thread that waits for it had nothing to do, and sleeps.
#[test]
fn a_silence_is_told_after_ten_seconds_also_where_a_connection_was_idle() {
    let (server, name) = (Server::start(), "127.0.0.9");
    server.listen_at(name.parse().unwrap()).unwrap();
    server.put("/export/file", vec![7; PIECE]);
    let url = NfsUrl::parse(&server.url("/export/file", "3").replacen("127.0.0.1", name, 1)).unwrap();
    let (silence, deadline) = (Duration::from_secs(25), Duration::from_secs(25));
    let file = open(&url, &NfsOptions { connections: 1, silence, deadline, ..options() }).unwrap();
    assert_eq!(file.read_at(&mut [0; 100], 0).unwrap(), 100);
    std::thread::sleep(Duration::from_millis(800));
    server.faults(|seen| (seen.asked == Asked::Read).then_some(Fault::NoReply));
    std::thread::scope(|scope| {
        let began = Instant::now();
        let read = scope.spawn(|| file.read_at(&mut [0; 100], 0));
        while !silent().iter().any(|one| one.server == name) && began.elapsed() < silence {
            std::thread::sleep(Duration::from_millis(20));
        }
        let told = began.elapsed();
        server.faults(|_| None);
        server.restart();
        assert_eq!(read.join().unwrap().unwrap(), 100);
        assert!((Duration::from_secs(10)..Duration::from_secs(12)).contains(&told), "{told:?}");
    });
}

/// It listens, and that is all.
fn mute() -> (TcpListener, u16) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    (listener, port)
}

#[test]
fn a_server_that_has_never_answered_is_given_up_soon_and_named() {
    let (_listener, port) = mute();
    for version in VERSIONS {
        let name = format!("nfs://127.0.0.1:{port}/export/file");
        // Version 3 asks another port first.
        let mount = if version == VERSIONS[0] { format!("&mountport={port}") } else { String::new() };
        let text = format!("{name}?version={version}{mount}");
        let began = Instant::now();
        let options = NfsOptions { first_answer: Duration::from_secs(2), ..NfsOptions::default() };
        let error = open(&NfsUrl::parse(&text).unwrap(), &options).unwrap_err();
        // Once: not again for each part of the path.
        assert!(began.elapsed() < Duration::from_millis(3900), "{version} {:?}", began.elapsed());
        assert_eq!(error.kind(), ErrorKind::Timeout);
        let told = error.to_string();
        for fact in [format!("address=127.0.0.1:{port}"), format!("url={name}"), "seconds=2".to_owned()] {
            assert!(told.contains(&fact), "{told}");
        }
        let hints = error.hints().join("\n");
        assert!(hints.contains(&format!("port {port}")) && hints.contains("firewall"), "{hints}");
        assert!(hints.contains(&format!("forebay nfs probe '{text}'")), "{hints}");
    }
}

/// In the first version: it would be as silent in the others.
#[test]
fn a_probe_of_a_server_that_never_answers_ends_soon() {
    let (_listener, port) = mute();
    let began = Instant::now();
    let url = NfsUrl::parse(&format!("nfs://127.0.0.1:{port}/export/file")).unwrap();
    let error = probe(&url, &NfsOptions::default()).unwrap_err();
    assert!(began.elapsed() < Duration::from_secs(10), "{:?}", began.elapsed());
    assert!(error.to_string().contains(&format!("address=127.0.0.1:{port}")), "{error}");
}
