//! A queue pair that knows no peer: for pairing in band.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;

use forebay_error::Result;

use super::cm::Id;
use super::connection::VerbsConnection;
use super::memory::Inner;
use super::pair::{Path, QueuePair};
use super::port::Port;
use crate::{Connection, Options, QueueEnd, Transport, UnpairedEnd, Why, random_first};

pub(super) struct VerbsUnpaired {
    connection: VerbsConnection,
    path: Path,
}

impl VerbsUnpaired {
    /// A queue pair on the domain's own address.
    pub(super) fn new(domain: &Arc<Inner>, options: &Options) -> Result<Self> {
        let device = &domain.device;
        match device.transport {
            Transport::Infiniband => {}
            Transport::Iwarp | Transport::Other => {
                return Err(Why::Unsupported
                    .error("cannot pair in band: the RDMA device pairs by rdma_cm alone (iWARP)")
                    .with("device", &device.name));
            }
        }
        let local = domain
            .anchor
            .local_address()
            .ok_or_else(|| Why::NoRoute.error("an RDMA device without an address"))?;
        // No connection of rdma_cm's, but it tells of the device's removal.
        let id = Id::new(domain.libraries)?;
        let mut at = local;
        at.set_port(0);
        id.bind(at)?;
        if id.context() != domain.context() {
            return Err(Why::NoRoute
                .error("cannot pair in band: two devices have one address")
                .with("address", at));
        }
        let number = id.port();
        let port = Port::query(domain, number, local.ip())?;
        let nobody = SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), 0);
        let connection = VerbsConnection::new(domain, options, nobody, |attributes| {
            QueuePair::in_band(domain, id, options.reads_in, attributes)
        })?;
        let own = QueueEnd {
            number: connection.queue_number(),
            first: random_first()?,
            gid: port.gid,
            lid: port.lid,
            port: number,
            mtu: port.mtu,
        };
        let path = Path::new(domain, options, own, (port.gid_index, port.is_ethernet));
        Ok(Self { connection, path })
    }
}

impl fmt::Debug for VerbsUnpaired {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("VerbsUnpaired").field("own", &self.path.own).finish_non_exhaustive()
    }
}

impl UnpairedEnd for VerbsUnpaired {
    fn own(&self) -> QueueEnd {
        self.path.own
    }

    fn pair(self: Box<Self>, peer: &QueueEnd) -> Result<Box<dyn Connection>> {
        peer.check()?;
        let Self { mut connection, path } = *self;
        let path = Path { peer: *peer, ..path };
        let address = SocketAddr::new(peer.address(), 0);
        connection.join(&path, address).map_err(|error| error.with("peer", peer.address()))?;
        Ok(Box::new(connection))
    }
}
