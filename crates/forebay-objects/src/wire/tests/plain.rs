//! Replies as servers send them.

use std::io::Write;
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use super::super::Network;
use super::super::call::{Body, Method};
use super::server::{Places, answers, ask, get, network, pattern, reply, request, server, start};
use crate::lock;

#[test]
fn bodies_come_and_the_connection_is_used_again() {
    let connections = Arc::new(AtomicUsize::new(0));
    let counter = connections.clone();
    let network = network(server(move |stream, _| {
        counter.fetch_add(1, Relaxed);
        answers(stream, |_, head| reply(&pattern(head.split(' ').nth(1).unwrap()[1..].parse().unwrap())));
    }));
    for size in [0, 1, 999, 1000, 1001, 100_000, 3_000_000] {
        assert_eq!(get(&network, &size.to_string()).body(), pattern(size), "{size}");
    }
    assert_eq!(connections.load(Relaxed), 1);
    let all: Vec<_> = (0..64).map(|_| get(&network, "300000")).collect();
    for one in &all {
        assert_eq!(one.body(), pattern(300_000));
    }
    let most = connections.load(Relaxed);
    assert!((2..=16).contains(&most), "{most}");
}

#[test]
fn a_server_that_closes_after_each_reply_costs_a_connection_and_no_failure() {
    for says_so in [true, false] {
        let network = network(server(move |mut stream, _| {
            request(&mut stream).unwrap();
            let close = if says_so { "Connection: close\r\n" } else { "" };
            let head = format!("HTTP/1.1 200 OK\r\nContent-Length: 4\r\n{close}\r\nbody");
            stream.write_all(head.as_bytes()).unwrap();
        }));
        for _ in 0..20 {
            assert_eq!(get(&network, "").body(), b"body");
        }
        let all: Vec<_> = (0..40).map(|_| get(&network, "")).collect();
        assert!(all.iter().all(|one| one.body() == b"body"));
    }
}

/// Writes pieces with pauses.
fn slowly(stream: &mut TcpStream, pieces: &[&[u8]]) {
    stream.set_nodelay(true).unwrap();
    for piece in pieces {
        stream.write_all(piece).unwrap();
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// A server that answers each request with these pieces.
fn pieces(all: Vec<Vec<u8>>) -> Arc<Network> {
    network(server(move |mut stream, _| {
        while request(&mut stream).is_some() {
            slowly(&mut stream, &all.iter().map(Vec::as_slice).collect::<Vec<_>>());
        }
    }))
}

#[test]
fn a_head_that_comes_byte_by_byte_is_whole() {
    let whole =
        [&b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nA: b\r\n\r\n"[..], &reply(b"body")]
            .concat();
    let network = pieces(whole.iter().map(|byte| vec![*byte]).collect());
    assert_eq!(get(&network, "").body(), b"body");
    let network = pieces(vec![whole]);
    for _ in 0..3 {
        let (result, reply) = get(&network, "").end();
        result.unwrap();
        assert_eq!((reply.head.unwrap().status, reply.body), (200, b"body".to_vec()));
    }
}

#[test]
fn chunks_come_without_their_coding_and_the_connection_stays() {
    let connections = Arc::new(AtomicUsize::new(0));
    let (counter, body) = (connections.clone(), pattern(200_000));
    let mut sent = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n".to_vec();
    for chunk in body.chunks(66_000) {
        sent.extend_from_slice(format!("{:X};a=b\r\n", chunk.len()).as_bytes());
        sent.extend_from_slice(chunk);
        sent.extend_from_slice(b"\r\n");
    }
    sent.extend_from_slice(b"0\r\nTrailer: x\r\n\r\n");
    let network = network(server(move |stream, _| {
        counter.fetch_add(1, Relaxed);
        answers(stream, |_, _| sent.clone());
    }));
    for _ in 0..5 {
        let places = Places { step: 70_000, ..Places::default() };
        assert_eq!(start(&network, ask(Method::Get, ""), Body::None, places).body(), body);
    }
    assert_eq!(connections.load(Relaxed), 1);
    // Of each body: the bytes that came with the head, and with sizes of chunks.
    let copied = network.copied() / 5;
    assert!(copied <= (8 << 10) + 3 * 256, "{copied} bytes were copied");
}

#[test]
fn a_body_without_a_length_ends_with_the_connection() {
    let network = network(server(|mut stream, _| {
        request(&mut stream).unwrap();
        stream.write_all(b"HTTP/1.1 200 OK\r\n\r\n").unwrap();
        stream.write_all(&pattern(100_000)).unwrap();
    }));
    for _ in 0..3 {
        assert_eq!(get(&network, "").body(), pattern(100_000));
    }
}

#[test]
fn replies_without_a_body_leave_the_connection_in_order() {
    let network = network(server(|stream, number| {
        assert_eq!(number, 0, "another connection");
        answers(stream, |number, head| match number % 3 {
            0 => b"HTTP/1.1 204 No Content\r\nContent-Length: 9\r\n\r\n".to_vec(),
            1 => b"HTTP/1.1 304 Not Modified\r\nContent-Length: 9\r\n\r\n".to_vec(),
            _ => {
                assert!(head.starts_with("HEAD"));
                b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n".to_vec()
            }
        });
    }));
    for _ in 0..3 {
        for (method, status) in [(Method::Delete, 204), (Method::Get, 304), (Method::Head, 200)] {
            let (result, reply) = start(&network, ask(method, ""), Body::None, Places::default()).end();
            result.unwrap();
            assert_eq!(reply.head.map(|head| (head.status, head.length)), Some((status, Some(9))));
            assert!(reply.body.is_empty());
        }
    }
}

#[test]
fn a_sink_without_room_pauses_its_call_alone() {
    let network = network(server(|stream, _| answers(stream, |_, _| reply(&pattern(2_000_000)))));
    let paused: Vec<_> = (0..4)
        .map(|_| {
            start(&network, ask(Method::Get, ""), Body::None, Places { most: 10_000, ..Places::default() })
        })
        .collect();
    assert_eq!(get(&network, "").body().len(), 2_000_000);
    for call in &paused {
        while lock(&call.place).pauses == 0 {
            std::thread::sleep(Duration::from_millis(1));
        }
        for most in [10_000, 400_000, 400_000, usize::MAX] {
            lock(&call.place).most = most;
            call.resume.resume();
        }
        assert_eq!(call.body(), pattern(2_000_000));
        // Behind the end it changes nothing.
        call.resume.resume();
    }
}

#[test]
fn a_rest_that_nobody_wants_is_read_over_where_it_is_short() {
    for (size, enough, connections) in [(100_000, 60_000, 1), (3_000_000, 60_000, 4)] {
        let counter = Arc::new(AtomicUsize::new(0));
        let made = counter.clone();
        let network = network(server(move |stream, _| {
            made.fetch_add(1, Relaxed);
            answers(stream, |_, _| reply(&pattern(size)));
        }));
        for _ in 0..4 {
            let places = Places { enough, ..Places::default() };
            assert_eq!(start(&network, ask(Method::Get, ""), Body::None, places).body(), pattern(enough));
        }
        assert_eq!(counter.load(Relaxed), connections, "{size}");
        let places = Places { refuses: true, ..Places::default() };
        let (result, reply) = start(&network, ask(Method::Get, ""), Body::None, places).end();
        assert_eq!(result.unwrap_err().message(), "refused");
        assert!(reply.body.is_empty());
    }
}

#[test]
fn bytes_behind_a_body_are_not_taken_for_the_next_reply() {
    let network =
        network(server(|stream, _| answers(stream, |_, _| [reply(b"body"), reply(b"strange")].concat())));
    for _ in 0..5 {
        assert_eq!(get(&network, "").body(), b"body");
    }
}

/// Long bodies are received many bytes at a time; those of a server that becomes slow come nevertheless, and so does the next reply.
#[test]
fn a_server_that_becomes_slow_within_a_long_body_is_waited_for() {
    let body = Arc::new(pattern(12_000_000));
    let sent = body.clone();
    let network = network(server(move |mut stream, _| {
        request(&mut stream).unwrap();
        let (fast, slow) = sent.split_at(9_000_000);
        stream
            .write_all(format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", sent.len()).as_bytes())
            .unwrap();
        stream.write_all(fast).unwrap();
        // Together fewer bytes than are waited for, in a time longer than the limit of silence.
        for piece in slow[..480_000].chunks(60_000) {
            stream.write_all(piece).unwrap();
            std::thread::sleep(Duration::from_millis(400));
        }
        stream.write_all(&slow[480_000..]).unwrap();
        request(&mut stream).unwrap();
        stream.write_all(&reply(b"short")).unwrap();
    }));
    let places = Places { step: 2 << 20, ..Places::default() };
    assert_eq!(start(&network, ask(Method::Get, ""), Body::None, places).body(), *body);
    assert_eq!(get(&network, "").body(), b"short");
}
