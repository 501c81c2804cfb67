//! The port of this side. Alone in its program: other tests' connections would take the port meanwhile.

use std::time::Duration;

use fake_nfs::{Asked, Fault, Seen, Server};
use forebay_nfs::{NfsOptions, NfsUrl, open};

/// Servers that keep replies know a call that comes again by the port, too. Whether the port is free is the system's: where it was not
/// once, all is tried anew. A port by chance would be the one before three times in 46 million.
#[test]
fn a_connection_that_is_made_anew_has_the_port_of_the_one_before() {
    let all: Vec<_> = (0..6).map_while(|_| ports_after_faults().err()).collect();
    assert!(all.len() < 6, "{all:?}");
}

fn ports_after_faults() -> Result<(), Vec<u16>> {
    let server = Server::start();
    server.put("/export/file", vec![7; 1000]);
    let options = NfsOptions { connections: 1, silence: Duration::from_secs(2), ..NfsOptions::default() };
    let file = open(&NfsUrl::parse(&server.url("/export/file", "3")).unwrap(), &options).unwrap();
    for fault in [Fault::Close, Fault::NoReply, Fault::CloseAfter(7)] {
        let (before, reads) = (server.ports().len(), server.count(Asked::Read));
        server.faults(move |seen: &Seen| {
            (seen.asked == Asked::Read && seen.before == reads).then(|| fault.clone())
        });
        let mut place = vec![0; 1000];
        assert_eq!(file.read_at(&mut place, 0).unwrap(), 1000);
        assert!(place.iter().all(|byte| *byte == 7));
        let ports = server.ports();
        assert!(ports.len() > before, "a connection more");
        if ports[ports.len() - 1] != ports[ports.len() - 2] {
            return Err(ports);
        }
    }
    Ok(())
}
