//! Large objects, whose bytes the kernel moves to the socket: whole ones, ranges, files that change meanwhile, readers that do not read.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use crate::served::raw::{Raw, read_reply};
use crate::served::{Gateway, pattern};

/// More than both sockets' buffers hold.
const LARGE: usize = 48 << 20;

fn started(bytes: &[u8]) -> Gateway {
    let gateway = Gateway::start();
    gateway.bucket("bkt");
    assert_eq!(gateway.raw().put("/bkt/large", bytes).status, 200);
    assert_eq!(gateway.raw().put("/bkt/small", b"small").status, 200);
    gateway
}

fn ask(raw: &Raw, socket: &mut TcpStream, target: &str, headers: &[(&str, &str)]) {
    socket.write_all(raw.head("GET", target, headers, 0, "UNSIGNED-PAYLOAD").as_bytes()).unwrap();
}

/// Reads the head and a part of the body.
fn begin(raw: &Raw, len: usize) -> (TcpStream, Vec<u8>) {
    let mut socket = raw.connect();
    ask(raw, &mut socket, "/bkt/large", &[]);
    let mut bytes = Vec::new();
    let mut piece = vec![0; 65_536];
    while bytes.len() < len {
        let got = socket.read(&mut piece).unwrap();
        assert!(got > 0, "the reply ended");
        bytes.extend_from_slice(&piece[..got]);
    }
    let end = bytes.windows(4).position(|four| four == b"\r\n\r\n").unwrap() + 4;
    assert!(bytes.starts_with(b"HTTP/1.1 200"));
    (socket, bytes.split_off(end))
}

#[test]
fn answers_of_one_connection_come_in_their_order() {
    let bytes = pattern((5 << 20) + 7);
    let gateway = started(&bytes);
    let raw = gateway.raw();
    let mut socket = raw.connect();
    // All are asked for before the first is read.
    for (target, range) in
        [("large", ""), ("small", ""), ("large", "bytes=1048575-3000000"), ("large", "bytes=-300000")]
    {
        let range = [("range", range)];
        ask(&raw, &mut socket, &format!("/bkt/{target}"), if range[0].1.is_empty() { &[] } else { &range });
    }
    socket.write_all(raw.head("HEAD", "/bkt/large", &[], 0, "UNSIGNED-PAYLOAD").as_bytes()).unwrap();
    ask(&raw, &mut socket, "/bkt/large", &[]);
    let mut rest = socket.try_clone().unwrap();
    let mut reader = std::io::BufReader::new(&mut rest);
    for (method, expected) in [
        ("GET", &bytes[..]),
        ("GET", b"small"),
        ("GET", &bytes[1_048_575..=3_000_000]),
        ("GET", &bytes[bytes.len() - 300_000..]),
        ("HEAD", b""),
        ("GET", &bytes[..]),
    ] {
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            let mut byte = [0];
            reader.read_exact(&mut byte).unwrap();
            head.push(byte[0]);
        }
        assert!(head.starts_with(b"HTTP/1.1 20"), "{}", String::from_utf8_lossy(&head));
        let mut body = vec![0; expected.len()];
        reader.read_exact(&mut body).unwrap();
        assert!(body == expected, "{method}");
    }
}

#[test]
fn an_object_that_is_replaced_is_read_whole() {
    let bytes = pattern(LARGE);
    let gateway = started(&bytes);
    let (mut socket, mut body) = begin(&gateway.raw(), 1 << 20);
    assert_eq!(gateway.raw().put("/bkt/large", &vec![7; LARGE]).status, 200);
    let mut rest = vec![0; LARGE - body.len()];
    socket.read_exact(&mut rest).unwrap();
    body.extend_from_slice(&rest);
    assert!(body == bytes);
    assert!(gateway.raw().get("/bkt/large").body == vec![7; LARGE]);
}

#[test]
fn a_file_that_becomes_shorter_ends_the_connection() {
    let bytes = pattern(LARGE);
    let gateway = started(&bytes);
    let (mut socket, mut body) = begin(&gateway.raw(), 1 << 20);
    let file = std::fs::File::options().write(true).open(gateway.directory().join("bkt/large")).unwrap();
    file.set_len(LARGE as u64 - 1).unwrap();
    let ended = socket.read_to_end(&mut body);
    assert!(ended.is_ok() || body.len() < LARGE);
    assert!(body.len() < LARGE && body == bytes[..body.len()], "{} bytes", body.len());
}

#[test]
fn clients_that_do_not_read_keep_no_threads() {
    let gateway = started(&pattern(LARGE));
    let raw = gateway.raw();
    // More than an account's threads.
    let asleep: Vec<_> = (0..100)
        .map(|_| {
            let mut socket = raw.connect();
            ask(&raw, &mut socket, "/bkt/large", &[]);
            socket
        })
        .collect();
    std::thread::sleep(Duration::from_secs(1));
    let begin = Instant::now();
    assert_eq!(raw.get("/bkt/small").text(), "small");
    assert_eq!(raw.get("/bkt/large").body.len(), LARGE);
    assert!(begin.elapsed() < Duration::from_secs(15), "{:?}", begin.elapsed());
    for mut socket in asleep.into_iter().take(3) {
        assert_eq!(read_reply(&mut socket, "GET").body.len(), LARGE);
    }
}
