//! Threads of a network, addresses, and keys that have to be waited for.

use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use forebay_error::{Error, ErrorKind, Result};
use forebay_source::HostRange;

use super::super::call::{Ask, Body, Heads, Method, ReplyHead, Room, Sink};
use super::super::pool::Limits;
use super::super::{Network, worker};
use super::server::{PlainHeads, answers, ask, get, network, pattern, reply, request, server};
use crate::lock;

/// Waits until this is so.
fn until(what: &str, is_so: impl Fn() -> bool) {
    let began = Instant::now();
    while !is_so() {
        assert!(began.elapsed() < super::server::LIMIT, "{what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn several_threads_share_connections_and_calls() {
    let network = network(server({
        let whole = reply(&pattern(100_000));
        move |stream, _| answers(stream, |_, _| whole.clone())
    }));
    assert_eq!(get(&network, "").body(), pattern(100_000));
    for _ in 0..3 {
        worker::spawn(&network.pool).unwrap();
    }
    network.allow(64);
    for is_busy in [true, false, true] {
        network.pool.set_busy(is_busy);
        let all: Vec<_> = (0..100).map(|_| get(&network, "")).collect();
        assert!(all.iter().all(|one| one.body() == pattern(100_000)));
    }
    let connections: usize = network.pool.in_use().iter().map(|(_, open)| open).sum();
    assert!((2..=64).contains(&connections), "{connections}");
}

#[test]
fn connections_without_a_call_end_and_then_the_threads() {
    let (tell, told) = channel();
    let tell = Mutex::new(tell);
    let site = server(move |mut stream, number| {
        while request(&mut stream).is_some() {
            let keep = if number == 0 { "Keep-Alive: timeout=0\r\n" } else { "" };
            let text = format!("HTTP/1.1 200 OK\r\nContent-Length: 4\r\n{keep}\r\nbody");
            std::io::Write::write_all(&mut stream, text.as_bytes()).unwrap();
        }
        lock(&tell).send(number).unwrap();
    });
    let (keep, thread) = (Duration::from_millis(300), Duration::from_millis(100));
    let limits = Limits { keep, thread, ..Limits::default() };
    let network = Network::with_limits(Arc::new(PlainHeads), site, limits);
    for number in 0..3 {
        // The server ends the first one at once; the others are kept, and used again.
        assert_eq!(get(&network, "").body(), b"body", "{number}");
    }
    let ended = |told: &Receiver<usize>| told.recv_timeout(super::server::LIMIT).unwrap();
    assert_eq!([ended(&told), ended(&told)], [0, 1]);
    until("the thread ends", || !network.pool.has_threads());
    assert_eq!(get(&network, "").body(), b"body");
    drop(network);
    assert_eq!(ended(&told), 2);
}

/// A sink that panics where it is to give room.
struct BadSink;

impl Sink for BadSink {
    fn head(&mut self, _: ReplyHead) -> Result<()> {
        Ok(())
    }

    fn room(&mut self) -> Room {
        // Without a message of the panic hook.
        std::panic::resume_unwind(Box::new("on purpose"));
    }

    fn filled(&mut self, _: usize) {}

    fn end(self: Box<Self>, result: Result<()>) {
        assert_eq!(result.unwrap_err().kind(), ErrorKind::Internal);
    }
}

#[test]
fn a_sink_that_panics_ends_the_calls_of_its_thread_and_no_later_ones() {
    let network = network(server(|stream, _| answers(stream, |_, _| reply(b"body"))));
    network.start(ask(Method::Get, ""), Body::None, Box::new(BadSink));
    until("other calls go on", || {
        let (result, reply) = get(&network, "").end();
        result.is_ok() && reply.body == b"body"
    });
}

#[test]
fn an_address_that_takes_no_connection_is_left_out() {
    let connections = Arc::new(AtomicUsize::new(0));
    let counter = connections.clone();
    let site = server(move |stream, _| {
        counter.fetch_add(1, Relaxed);
        answers(stream, |_, _| reply(b"body"));
    });
    let dead = TcpListener::bind("127.0.0.2:0").unwrap().local_addr().unwrap();
    let alive = SocketAddr::from(([127, 0, 0, 1], site.port));
    let network = network(site);
    network.pool.know(&[dead, alive]);
    let all: Vec<_> = (0..40).map(|_| get(&network, "")).collect();
    assert!(all.iter().all(|one| one.body() == b"body"));
    let facts = network.facts();
    assert_eq!(facts.left_out.len(), 1, "{facts:?}");
    assert!(facts.left_out[0].0 == dead && facts.left_out[0].1.contains("refused"), "{facts:?}");
    assert_eq!(network.pool.in_use(), [(alive, connections.load(Relaxed))]);
}

/// Keys that come later.
#[derive(Debug)]
struct SlowHeads(AtomicUsize);

impl Heads for SlowHeads {
    fn are_keys_at_hand(&self) -> bool {
        self.0.load(Relaxed) > 1
    }

    fn head(&self, ask: &Ask, body: &Body) -> Result<Vec<u8>> {
        match self.0.fetch_add(1, Relaxed) {
            0 => Err(Error::new(ErrorKind::PermissionDenied, "no keys")),
            1 => {
                std::thread::sleep(Duration::from_millis(300));
                PlainHeads.head(ask, body)
            }
            _ => PlainHeads.head(ask, body),
        }
    }
}

#[test]
fn keys_are_waited_for_beside_the_threads_and_their_error_is_the_calls() {
    let site = server(|stream, _| answers(stream, |_, _| reply(b"body")));
    // A thread that has nothing to do stays for the call whose keys are waited for.
    let limits = Limits { thread: Duration::from_millis(50), ..Limits::default() };
    let network = Network::with_limits(Arc::new(SlowHeads(AtomicUsize::new(0))), site, limits);
    assert_eq!(get(&network, "").error().message(), "no keys");
    assert_eq!(get(&network, "").body(), b"body");
    let all: Vec<_> = (0..20).map(|_| get(&network, "")).collect();
    assert!(all.iter().all(|one| one.body() == b"body"));
}

/// Memory of a call is not touched behind its end, also where it ends within its body.
#[test]
fn no_byte_comes_behind_the_end() {
    struct Half(Vec<u8>, usize, std::sync::mpsc::Sender<Vec<u8>>);
    impl Sink for Half {
        fn head(&mut self, _: ReplyHead) -> Result<()> {
            Ok(())
        }
        fn room(&mut self) -> Room {
            if self.1 >= 1000 {
                return Room::Enough;
            }
            Room::Memory(HostRange::of_mut(&mut self.0[self.1..1000]))
        }
        fn filled(&mut self, bytes: usize) {
            self.1 += bytes;
        }
        fn end(self: Box<Self>, result: Result<()>) {
            result.unwrap();
            self.2.send(self.0).unwrap();
        }
    }
    let network = network(server(|stream, _| answers(stream, |_, _| reply(&vec![7; 50_000]))));
    for _ in 0..10 {
        let (tell, told) = channel();
        network.start(ask(Method::Get, ""), Body::None, Box::new(Half(vec![0; 2000], 0, tell)));
        let memory = told.recv_timeout(super::server::LIMIT).unwrap();
        assert!(memory[..1000].iter().all(|byte| *byte == 7) && memory[1000..].iter().all(|byte| *byte == 0));
    }
}
