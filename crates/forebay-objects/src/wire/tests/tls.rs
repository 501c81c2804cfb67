//! TLS and proxies. The certificates are of a CA whose key was thrown away; they are valid from 2020 to 2120.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use forebay_error::ErrorKind;
use forebay_source::HostRange;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ServerConfig, ServerConnection, StreamOwned, SupportedProtocolVersion};

use super::super::call::{Body, Method};
use super::super::site::{Proxy, Site};
use super::server::{Places, answers, ask, get, network, pattern, reply, request, server, start};

fn pem(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("src/wire/tests/pem").join(name)
}

type TlsServer = StreamOwned<ServerConnection, TcpStream>;

/// A server with this certificate.
fn tls_server(
    certificate: &str,
    version: &'static SupportedProtocolVersion,
    serve: impl Fn(TlsServer, usize) + Send + Sync + 'static,
) -> Site {
    let chain = vec![CertificateDer::from_pem_file(pem(certificate)).unwrap()];
    let key = PrivateKeyDer::from_pem_file(pem("server.key")).unwrap();
    let config = ServerConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .with_protocol_versions(&[version])
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(chain, key)
        .unwrap();
    let config = Arc::new(config);
    let mut site = server(move |stream, number| {
        let session = ServerConnection::new(config.clone()).unwrap();
        serve(StreamOwned::new(session, stream), number);
    });
    site.tls = true;
    site.ca_file = Some(pem("ca.pem").to_str().unwrap().to_owned());
    site
}

const V12: &SupportedProtocolVersion = &rustls::version::TLS12;
const V13: &SupportedProtocolVersion = &rustls::version::TLS13;

fn by_size(stream: impl Read + Write) {
    answers(stream, |_, head| {
        reply(&pattern(head.split(' ').nth(1).unwrap().rsplit('/').next().unwrap().parse().unwrap()))
    });
}

#[test]
fn bodies_come_by_both_versions_and_the_connection_is_used_again() {
    for (version, name) in [(V12, "TLS 1.2"), (V13, "TLS 1.3")] {
        let connections = Arc::new(AtomicUsize::new(0));
        let counter = connections.clone();
        let network = network(tls_server("server.pem", version, move |stream, _| {
            counter.fetch_add(1, Relaxed);
            by_size(stream);
        }));
        for size in [0, 1, 1001, 20_000, 3_000_000] {
            assert_eq!(get(&network, &size.to_string()).body(), pattern(size), "{size}");
        }
        assert_eq!(connections.load(Relaxed), 1);
        let all: Vec<_> = (0..40).map(|_| get(&network, "300000")).collect();
        assert!(all.iter().all(|one| one.body() == pattern(300_000)));
        assert_eq!(network.facts().transport, name);
    }
}

#[test]
fn uploads_and_pauses_work_by_tls() {
    let network = network(tls_server("server.pem", V13, |mut stream, _| {
        while let Some(head) = request(&mut stream) {
            let length = head.lines().find_map(|line| line.strip_prefix("content-length: ")).unwrap();
            let mut body = vec![0; length.parse().unwrap()];
            stream.read_exact(&mut body).unwrap();
            stream.write_all(&reply(&body)).unwrap();
        }
    }));
    for size in [1, 100, 3_000_000] {
        let bytes = pattern(size);
        let places = Places { most: size / 2, step: 70_000, ..Places::default() };
        let call = start(&network, ask(Method::Put, ""), Body::Memory(HostRange::of(&bytes)), places);
        while crate::lock(&call.place).pauses == 0 {
            std::thread::yield_now();
        }
        crate::lock(&call.place).most = usize::MAX;
        call.resume.resume();
        assert_eq!(call.body(), bytes);
    }
}

#[test]
fn a_body_without_a_length_needs_the_end_of_tls() {
    for ends in [true, false] {
        let network = network(tls_server("server.pem", V13, move |mut stream, _| {
            request(&mut stream).unwrap();
            stream.write_all(b"HTTP/1.1 200 OK\r\n\r\nbody").unwrap();
            if ends {
                stream.conn.send_close_notify();
                stream.flush().unwrap();
            }
        }));
        let (result, reply) = get(&network, "").end();
        assert_eq!(reply.body, b"body");
        assert_eq!(result.is_ok(), ends, "{result:?}");
    }
}

#[test]
fn certificates_that_are_not_trusted_say_why() {
    let error = |site: Site| {
        let error = get(&network(site), "1").error();
        (error.kind(), error.to_string(), error.hints().join("; "))
    };
    let site = |certificate| tls_server(certificate, V13, |stream, _| by_size(stream));
    let (kind, text, hint) = error(site("elsewhere.pem"));
    assert_eq!(kind, ErrorKind::PermissionDenied);
    assert!(text.contains("another name") && text.contains("elsewhere.example"), "{text}");
    assert!(hint.contains("AWS_ENDPOINT_URL"), "{hint}");
    let (_, text, hint) = error(site("expired.pem"));
    assert!(text.contains("not valid at this time") && hint.contains("date"), "{text} {hint}");
    let (_, text, hint) = error(Site { ca_file: None, ..site("server.pem") });
    assert!(text.contains("not trusted") && text.contains("issuer=forebay test CA"), "{text}");
    assert!(hint.contains("AWS_CA_BUNDLE"), "{hint}");
    let (kind, text, _) = error(Site { ca_file: Some("/dev/null".to_owned()), ..site("server.pem") });
    assert!(kind == ErrorKind::InvalidInput && text.contains("path=/dev/null"), "{text}");
    let plain = server(|mut stream, _| {
        stream.read_exact(&mut [0; 10]).unwrap();
        stream.write_all(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n").unwrap();
    });
    let (_, text, hint) = error(Site { tls: true, ca_file: site("server.pem").ca_file, ..plain });
    assert!(text.contains("does not speak TLS") && hint.contains("http://127.0.0.1"), "{text}");
}

/// A proxy that takes one user.
fn proxy() -> Site {
    server(|mut stream, _| {
        let head = request(&mut stream).unwrap();
        let is_allowed = head.contains("proxy-authorization: Basic dTpw\r\n");
        let mut words = head.split(' ');
        if head.starts_with("GET") {
            stream.write_all(&reply(&pattern(17))).unwrap();
        } else if !is_allowed {
            let _ =
                stream.write_all(b"HTTP/1.1 407 Proxy Authentication Required\r\nContent-Length: 0\r\n\r\n");
        } else {
            assert_eq!(words.next(), Some("CONNECT"));
            let there = TcpStream::connect(words.next().unwrap()).unwrap();
            stream.write_all(b"HTTP/1.1 200 Connection established\r\nVia: test\r\n\r\n").unwrap();
            let (mut back, mut to) = (there.try_clone().unwrap(), stream.try_clone().unwrap());
            std::thread::spawn(move || std::io::copy(&mut back, &mut to));
            let _ = std::io::copy(&mut stream, &mut &there);
        }
    })
}

#[test]
fn proxies_connect_for_tls_and_take_plain_requests() {
    let through = |site: Site, authorization: Option<&str>| {
        let proxy = proxy();
        let authorization = authorization.map(ToOwned::to_owned);
        network(Site { proxy: Some(Proxy { host: proxy.host, port: proxy.port, authorization }), ..site })
    };
    let user = Some("Basic dTpw");
    let far = || tls_server("server.pem", V13, |stream, _| by_size(stream));
    let by_tls = through(far(), user);
    for _ in 0..2 {
        assert_eq!(get(&by_tls, "300000").body(), pattern(300_000));
    }
    let plain = Site { host: "some.where".to_owned(), port: 81, ..server(|_, _| {}) };
    assert_eq!(get(&through(plain, user), "17").body(), pattern(17));
    let refused = through(far(), None);
    let error = get(&refused, "1").error();
    assert!(
        error.kind() == ErrorKind::PermissionDenied && error.to_string().contains("status=407"),
        "{error:?}"
    );
    assert!(!format!("{by_tls:?}").contains("dTpw"), "{by_tls:?}");
}
