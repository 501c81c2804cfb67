//! Requests with a body.

use std::io::{Read, Write};
use std::time::Duration;

use forebay_source::HostRange;

use super::super::call::{Body, Method};
use super::server::{Places, ask, network, pattern, reply, request, server, start};

/// The body of a request.
fn body(stream: &mut impl Read, head: &str) -> Vec<u8> {
    let length = head.lines().find_map(|line| line.strip_prefix("content-length: ")).unwrap();
    let mut body = vec![0; length.parse().unwrap()];
    stream.read_exact(&mut body).unwrap();
    body
}

#[test]
fn bodies_are_sent_from_where_they_lie() {
    let network = network(server(|mut stream, _| {
        while let Some(head) = request(&mut stream) {
            let sum: u64 = body(&mut stream, &head).iter().map(|byte| u64::from(*byte)).sum();
            stream.write_all(&reply(sum.to_string().as_bytes())).unwrap();
        }
    }));
    for size in [1, 1000, 20_000_000] {
        let bytes = pattern(size);
        let sum: u64 = bytes.iter().map(|byte| u64::from(*byte)).sum();
        for body in [Body::Memory(HostRange::of(&bytes)), Body::Bytes(bytes.as_slice().into())] {
            let started = start(&network, ask(Method::Put, ""), body, Places::default());
            assert_eq!(started.body(), sum.to_string().as_bytes());
        }
    }
}

/// Servers refuse uploads before these have ended, and some close the connection then.
#[test]
fn an_early_refusal_is_read_while_the_body_is_sent() {
    for closes in [true, false] {
        let network = network(server(move |mut stream, _| {
            request(&mut stream).unwrap();
            stream.read_exact(&mut [0; 1000]).unwrap();
            stream.write_all(b"HTTP/1.1 403 Forbidden\r\nContent-Length: 6\r\n\r\ndenied").unwrap();
            if !closes {
                std::thread::sleep(Duration::from_secs(30));
            }
        }));
        let bytes = vec![7; 30_000_000];
        for _ in 0..3 {
            let (result, reply) =
                start(&network, ask(Method::Put, ""), Body::Memory(HostRange::of(&bytes)), Places::default())
                    .end();
            result.unwrap();
            assert_eq!((reply.head.unwrap().status, &reply.body[..]), (403, &b"denied"[..]));
        }
    }
}

#[test]
fn a_connection_that_is_lost_within_an_upload_is_an_error() {
    let network = network(server(|mut stream, _| {
        request(&mut stream).unwrap();
        stream.read_exact(&mut [0; 1000]).unwrap();
    }));
    let bytes = vec![7; 30_000_000];
    let error =
        start(&network, ask(Method::Put, ""), Body::Memory(HostRange::of(&bytes)), Places::default()).error();
    assert_eq!(error.kind(), forebay_error::ErrorKind::Io, "{error:?}");
}
