//! The list of a server's portmapper (rpcbind, RFC 1833): programs, transports and ports.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use forebay_error::Result;
use forebay_remote::silence::SilenceClock;

use crate::network::exchange::Exchange;
use crate::network::options::NfsOptions;
use crate::protocol::rpc::RpcProgram;
use crate::protocol::xdr::{Malformed, XdrReader};

/// Where portmappers listen.
pub const PORT: u16 = 111;
/// The version that knows transports by name.
const RPCBIND: RpcProgram = RpcProgram { number: 100_000, version: 4 };
/// Procedure: the whole list.
const DUMP: u32 = 4;
/// The most bytes of a name in it.
const MAX_NAME_BYTES: usize = 256;

/// A program that is listed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortmapService {
    /// Its number and version.
    pub program: RpcProgram,
    /// Its transport: `tcp`, `udp6`, `rdma`, …
    pub transport: String,
    /// Its port, where its address has one.
    pub port: Option<u16>,
}

/// Asks the portmapper at an address. It has `limit` to answer.
pub fn services(at: SocketAddr, limit: Duration) -> Result<Vec<PortmapService>> {
    let options = NfsOptions { low_ports: false, ..NfsOptions::default() }.within(limit);
    let mut portmap = Exchange::new(vec![at], options, SilenceClock::new(at.to_string()));
    portmap
        .call("cannot ask the portmapper", (RPCBIND, DUMP), None, |_| {}, get_list)
        .map_err(|error| error.with("service", "portmapper"))
}

/// The port by which a list has NFS over RDMA to an address.
pub fn rdma_port(services: &[PortmapService], address: IpAddr) -> Option<u16> {
    let transport = if address.is_ipv4() { "rdma" } else { "rdma6" };
    let is_it = |service: &&PortmapService| {
        service.program.number == crate::protocol::v3::PROGRAM.number && service.transport == transport
    };
    services.iter().find(is_it)?.port
}

/// Entries one behind the other, each with a word before it that says that there is one.
fn get_list(from: &mut XdrReader<'_>) -> Result<Vec<PortmapService>, Malformed> {
    let mut all = Vec::new();
    while from.bool()? {
        let program = RpcProgram { number: from.u32()?, version: from.u32()? };
        let mut text = || from.opaque(MAX_NAME_BYTES).map(|name| String::from_utf8_lossy(name).into_owned());
        let (transport, address, _owner) = (text()?, text()?, text()?);
        all.push(PortmapService { program, transport, port: port_of(&address) });
    }
    Ok(all)
}

/// The last two numbers of `10.0.0.1.78.81`.
fn port_of(address: &str) -> Option<u16> {
    let mut parts = address.rsplit('.').map(str::parse::<u8>);
    let (low, high) = (parts.next()?.ok()?, parts.next()?.ok()?);
    Some(u16::from(high) << 8 | u16::from(low))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::protocol::xdr::XdrWriter;

    fn list(entries: &[(u32, &str, &str)]) -> Vec<u8> {
        let mut place = [0; 1024];
        let mut to = XdrWriter::new(&mut place);
        for (number, transport, address) in entries {
            to.words(&[1, *number, 3]);
            for text in [*transport, *address, "superuser"] {
                to.opaque(text.as_bytes());
            }
        }
        to.u32(0);
        let len = to.finish().unwrap();
        place[..len].to_vec()
    }

    #[test]
    fn the_port_of_rdma_is_that_of_nfs_and_of_the_address() {
        let bytes = list(&[
            (100_003, "tcp", "0.0.0.0.8.1"),
            (100_227, "rdma", "0.0.0.0.1.1"),
            (100_003, "rdma", "0.0.0.0.78.81"),
            (100_003, "rdma6", "::.78.82"),
            (100_000, "local", "/run/rpcbind.sock"),
        ]);
        let found = get_list(&mut XdrReader::new(&bytes)).unwrap();
        assert_eq!((found.len(), found[0].port, found[4].port), (5, Some(2049), None));
        assert_eq!(rdma_port(&found, [10, 0, 0, 1].into()), Some(20049));
        assert_eq!(rdma_port(&found, "fd00::1".parse().unwrap()), Some(20050));
        assert_eq!(rdma_port(&found[..2], [10, 0, 0, 1].into()), None);
        assert!(get_list(&mut XdrReader::new(&bytes[..bytes.len() - 4])).is_err(), "cut short");
    }

    proptest! {
        #[test]
        fn no_list_breaks_the_reader(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = get_list(&mut XdrReader::new(&bytes));
            let _ = port_of(&String::from_utf8_lossy(&bytes));
        }
    }
}
