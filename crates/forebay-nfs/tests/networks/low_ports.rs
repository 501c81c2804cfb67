//! Servers whose exports want ports below 1024, of which there are few: a program that opens many files has one for each connection.

use std::net::TcpListener;
use std::sync::Arc;
use std::time::Duration;

use fake_nfs::{Asked, Fault, Server};
use forebay_error::ErrorKind;
use forebay_nfs::{NfsOptions, NfsUrl, open};

use crate::network::alone;

const FILES: usize = 400;

/// Portmapper, mountd and NFS, where the first is looked for. Calls from ports above 1023 are refused.
fn started() -> Arc<Server> {
    let server = Arc::new(Server::start_on(TcpListener::bind("127.0.0.1:111").unwrap()));
    server.put("/export/dir/file", vec![7; 1000]);
    let of = Arc::downgrade(&server);
    server.faults(move |seen| {
        let port = of.upgrade()?.ports()[seen.connection as usize];
        (port >= 1024 && seen.asked != Asked::End).then_some(Fault::Status(1))
    });
    server
}

fn url(version: &str) -> NfsUrl {
    NfsUrl::parse(&format!("nfs://127.0.0.1:111/export/dir/file?version={version}")).unwrap()
}

#[test]
fn more_files_are_opened_than_there_are_ports_below_1024() {
    for (version, keep) in [
        ("3", Duration::from_secs(5)),
        ("3", Duration::ZERO),
        ("4.0", Duration::ZERO),
        ("4.1", Duration::ZERO),
    ] {
        alone(|| {
            let server = started();
            let options = NfsOptions { keep, ..NfsOptions::default() };
            for index in 0..FILES {
                let file = open(&url(version), &options)
                    .unwrap_or_else(|error| panic!("{version} {index} {error:?}"));
                assert_eq!(file.read_at(&mut [0; 1000], 0).unwrap(), 1000, "{version} {index}");
            }
            // The portmapper is asked from any port, and so is mountd, until it has refused that.
            let high = server.ports().iter().filter(|port| **port >= 1024).count();
            let expected = match (version, keep.is_zero()) {
                ("3", false) => FILES + 1,
                ("3", true) => 2 * FILES,
                _ => 0,
            };
            assert_eq!(high, expected, "{version} {keep:?}");
            assert!(server.connections() > 0);
        });
    }
}

/// Ports that rest after a connection to another server are of use for this one.
#[test]
fn ports_that_other_servers_have_are_taken_where_no_other_is_free() {
    alone(|| {
        let server = started();
        let other = Arc::new(Server::start());
        other.put("/export/file", vec![7; 1000]);
        let options = NfsOptions { connections: 1, keep: Duration::ZERO, ..NfsOptions::default() };
        let files: Vec<_> = (0..370)
            .map_while(|depth| {
                let options =
                    NfsOptions { depth: 1 + depth % 64, connections: 1 + depth / 64, ..options.clone() };
                open(&NfsUrl::parse(&other.url("/export/file", "4.0")).unwrap(), &options).ok()
            })
            .collect();
        assert_eq!(other.ports().iter().filter(|port| **port < 1024).count(), 359);
        let file = open(&url("3"), &options).unwrap();
        assert_eq!(file.read_at(&mut [0; 1000], 0).unwrap(), 1000);
        drop((server, files));
    });
}

#[test]
fn an_error_says_that_no_port_below_1024_is_free() {
    alone(|| {
        let server = started();
        let taken: Vec<_> = (665..1024).map(|port| TcpListener::bind(("0.0.0.0", port)).unwrap()).collect();
        for version in ["3", "4.0", "4.1"] {
            let error = open(&url(version), &NfsOptions::default()).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::PermissionDenied, "{error:?}");
            assert!(error.to_string().contains("none below is free"), "{version} {error}");
            assert!(error.hints().iter().any(|hint| hint.contains("insecure")), "{error:?}");
        }
        drop(taken);
        open(&url("3"), &NfsOptions::default()).unwrap();
        drop(server);
    });
}
