//! Servers that always send something, but never the expected reply: each request ends in time all the same.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::sync_channel;
use std::time::{Duration, Instant};

use fake_nfs::{Asked, Fault, Server};
use forebay_error::ErrorKind;
use forebay_nfs::{NfsFile, NfsOptions, NfsUrl, open};
use forebay_remote::stop::stop_waiting;

use crate::alone::is_alone;

const VERSIONS: [&str; 3] = ["3", "4.0", "4.1"];
const LEN: usize = 10_000;
/// More often than a wire looks how long calls have waited.
const OFTEN: Duration = Duration::from_millis(30);

fn options() -> NfsOptions {
    NfsOptions {
        connections: 1,
        depth: 3,
        silence: Duration::from_millis(400),
        deadline: Duration::from_millis(1500),
        ..NfsOptions::default()
    }
}

fn started() -> Server {
    let server = Server::start();
    server.put("/export/file", vec![7; LEN]);
    server
}

fn opened(server: &Server, version: &str, options: &NfsOptions) -> NfsFile {
    open(&NfsUrl::parse(&server.url("/export/file", version)).unwrap(), options).unwrap()
}

/// What it gives, and when. It may hang: the test fails then.
fn timed<T: Send + 'static>(what: &str, work: impl FnOnce() -> T + Send + 'static) -> (T, Duration) {
    let (tell, told) = sync_channel(1);
    let began = Instant::now();
    std::thread::spawn(move || tell.send(work()));
    let given = told.recv_timeout(Duration::from_secs(20));
    (given.unwrap_or_else(|_| panic!("{what}: no end")), began.elapsed())
}

fn in_all_versions(test: impl Fn(&'static str) + Sync) {
    let test = &test;
    std::thread::scope(|scope| {
        for version in VERSIONS {
            scope.spawn(move || test(version));
        }
    });
}

#[test]
fn a_reply_that_is_lost_among_others_is_noticed() {
    in_all_versions(|version| {
        let server = started();
        let (silence, deadline) = (Duration::from_millis(800), Duration::from_mins(1));
        let file = opened(&server, version, &NfsOptions { silence, deadline, ..options() });
        server.faults(|seen| match (seen.asked, seen.before) {
            (Asked::Read, 0) => Some(Fault::NoReply),
            (Asked::Read, _) => Some(Fault::Late(Duration::from_millis(5))),
            _ => None,
        });
        let over = Arc::new(AtomicBool::new(false));
        let read = {
            let file = file.clone();
            move || file.read_at(&mut [0; 100], 0).unwrap()
        };
        let lost = std::thread::spawn(read.clone());
        while server.count(Asked::Read) == 0 {
            std::thread::sleep(Duration::from_millis(1));
        }
        let neighbours: Vec<_> = (0..2)
            .map(|_| {
                let (read, over) = (read.clone(), over.clone());
                std::thread::spawn(move || while !over.load(Ordering::Relaxed) && read() == 100 {})
            })
            .collect();
        let (count, took) = timed(version, move || lost.join().unwrap());
        over.store(true, Ordering::Relaxed);
        for neighbour in neighbours {
            neighbour.join().unwrap();
        }
        // Longer than a silence for each call that may be under way.
        assert!(took > silence * 3, "{version} {took:?}");
        assert_eq!((count, file.client().traffic().connections), (100, 2), "{version}");
    });
}

#[test]
fn a_read_ends_in_time_whatever_comes_in_place_of_its_reply() {
    for fault in [Fault::Drip(OFTEN), Fault::Flood(OFTEN), Fault::Flood(Duration::ZERO)] {
        in_all_versions(|version| {
            let server = started();
            let file = opened(&server, version, &options());
            let always = fault.clone();
            server.faults(move |seen| (seen.asked == Asked::Read).then(|| always.clone()));
            let what = format!("{version} {fault:?}");
            let read = file.clone();
            let (result, took) = timed(&what, move || read.read_at(&mut [0; LEN], 0));
            let kind = result.unwrap_err().kind();
            // Many strange records say more than silence.
            assert!([ErrorKind::Timeout, ErrorKind::Io].contains(&kind), "{what} {kind:?}");
            assert!(took < Duration::from_secs(8), "{what} {took:?}");
            server.faults(|_| None);
            assert_eq!(file.read_at(&mut [0; LEN], 0).unwrap(), LEN, "{what}");
        });
    }
}

/// A link that takes longer for a reply than a silence, and longer for two than a reply that is lost among others is missed after, but
/// brings bytes. One reply of three comes behind another one.
#[test]
fn a_slow_link_is_no_silence() {
    const SLOW: usize = 400_000;
    let server = started();
    server.put("/export/large", vec![9; SLOW]);
    let url = NfsUrl::parse(&server.url("/export/large", "4.1")).unwrap();
    let file = open(&url, &NfsOptions { deadline: Duration::from_millis(600), ..options() }).unwrap();
    server.faults(|seen| match (seen.asked, seen.before) {
        (Asked::Read, 0) => Some(Fault::Overtaken),
        (Asked::Read, _) => Some(Fault::Slow(20_000, OFTEN * 3)),
        _ => None,
    });
    let began = Instant::now();
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| assert_eq!(file.read_at(&mut vec![0; SLOW], 0).unwrap(), SLOW));
        }
    });
    let missed_after = options().silence * (options().depth as u32 + 1);
    assert!(began.elapsed() > 2 * missed_after, "{:?}", began.elapsed());
    assert_eq!(file.client().traffic().resent, 0);
}

/// The same the other way: the server has nothing to answer before a call has arrived.
#[test]
fn a_slow_link_to_the_server_is_no_silence() {
    const SLOW: usize = 3 << 20;
    in_all_versions(|version| {
        let server = started();
        server.put("/export/large", vec![0; SLOW]);
        let url = NfsUrl::parse(&server.url("/export/large", version)).unwrap();
        let file = open(&url, &NfsOptions { deadline: Duration::from_secs(10), ..options() }).unwrap();
        server.receive_slowly(32 << 10, OFTEN * 2);
        let began = Instant::now();
        assert_eq!(file.write_at(&vec![9; SLOW], 0).unwrap(), SLOW, "{version}");
        assert!(began.elapsed() > 12 * options().silence, "{version} {:?}", began.elapsed());
        assert_eq!(file.client().traffic().resent, 0, "{version}");
    });
}

/// Its kernel takes what its buffers hold: no answer.
#[test]
fn a_server_that_takes_calls_and_answers_none_is_silent() {
    in_all_versions(|version| {
        let server = started();
        let file = opened(&server, version, &options());
        server.faults(|seen| (seen.asked == Asked::Write).then_some(Fault::Unread(Duration::from_mins(1))));
        let later = file.clone();
        let first = std::thread::spawn(move || file.write_at(&vec![9; 2 << 20], 0));
        std::thread::sleep(Duration::from_millis(800));
        // All that waits for it has one clock.
        let (result, took) = timed(version, move || later.write_at(&[9; 100], 0));
        assert!(took < Duration::from_millis(1200), "{version} {took:?}");
        for result in [result, first.join().unwrap()] {
            assert_eq!(result.unwrap_err().kind(), ErrorKind::Timeout, "{version}");
        }
    });
}

#[test]
fn opening_ends_in_time_whatever_comes_in_place_of_a_reply() {
    for fault in [Fault::Drip(OFTEN), Fault::Flood(OFTEN), Fault::Flood(Duration::ZERO)] {
        in_all_versions(|version| {
            let server = started();
            let file = opened(&server, version, &options());
            let (always, all) = (fault.clone(), [Asked::Other, Asked::Open]);
            server.faults(move |seen| all.contains(&seen.asked).then(|| always.clone()));
            let what = format!("{version} {fault:?}");
            let asked = file.clone();
            let (result, took) = timed(&what, move || asked.attributes());
            assert_eq!(result.unwrap_err().kind(), ErrorKind::Timeout, "{what}");
            assert!(took < Duration::from_secs(4), "{what} {took:?}");
            // A server that has never answered.
            let first_answer = Duration::from_millis(700);
            let options = NfsOptions { first_answer, connections: 2, ..options() };
            let url = NfsUrl::parse(&server.url("/export/file", version)).unwrap();
            let (result, took) = timed(&what, move || open(&url, &options).map(drop));
            // What answers a session's calls has answered.
            assert_eq!(result.unwrap_err().kind(), ErrorKind::Timeout, "{what}");
            assert!(took < Duration::from_secs(6), "{what} {took:?}");
        });
    }
}

#[test]
fn a_reply_that_the_server_always_forgets_is_an_error_in_the_end() {
    const UNCACHED: u32 = 10068;
    let server = started();
    let file = opened(&server, "4.1", &options());
    server.faults(|seen| (seen.asked == Asked::Read).then_some(Fault::Status(UNCACHED)));
    let read = file.clone();
    let (result, took) = timed("READ", move || read.read_at(&mut [0; LEN], 0));
    assert_eq!(result.unwrap_err().kind(), ErrorKind::Io);
    assert!((Duration::from_millis(1400)..Duration::from_secs(8)).contains(&took), "{took:?}");
    server.faults(|_| None);
    server.refuse_places(UNCACHED, u32::MAX);
    let asked = file.clone();
    let (result, took) = timed("GETATTR", move || asked.attributes());
    assert!(result.unwrap_err().message().contains("forgotten its reply"));
    assert!((Duration::from_millis(1400)..Duration::from_secs(8)).contains(&took), "{took:?}");
    // Once is none.
    server.refuse_places(UNCACHED, 1);
    file.attributes().unwrap();
    server.refuse_places(UNCACHED, 1);
    assert_eq!(file.read_at(&mut [0; LEN], 0).unwrap(), LEN);
}

#[test]
fn waiting_stops_when_it_is_to_whatever_comes() {
    // It stops all that waits in the process.
    if !is_alone() {
        return;
    }
    let patient =
        NfsOptions { silence: Duration::from_mins(1), deadline: Duration::from_mins(5), ..options() };
    for fault in [Fault::Drip(OFTEN), Fault::Flood(OFTEN)] {
        for version in VERSIONS {
            let what = format!("{version} {fault:?}");
            let server = started();
            let file = opened(&server, version, &patient);
            let always = fault.clone();
            server.faults(move |_| Some(always.clone()));
            let (read, asked) = (file.clone(), file.clone());
            let (results, took) = timed(&what, move || {
                let asking = std::thread::spawn(move || asked.attributes().map(drop));
                let reading = std::thread::spawn(move || read.read_at(&mut [0; LEN], 0).map(drop));
                std::thread::sleep(Duration::from_millis(600));
                stop_waiting(true);
                [asking.join().unwrap(), reading.join().unwrap()]
            });
            stop_waiting(false);
            for result in results {
                assert_eq!(result.unwrap_err().kind(), ErrorKind::Cancelled, "{what}");
            }
            assert!(took < Duration::from_secs(3), "{what} {took:?}");
        }
    }
}
