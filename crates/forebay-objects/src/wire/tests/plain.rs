//! Replies as servers send them.

use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use super::server::{answers, get, network, pattern, reply, server};

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
            super::server::request(&mut stream).unwrap();
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
