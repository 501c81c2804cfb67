//! Listening and accepting.

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use forebay_error::{Error, Result};

use super::cm::{Event, Id};
use super::connection::VerbsConnection;
use super::domain::VerbsDomain;
use super::errors::check;
use super::load::Libraries;
use super::pair::QueuePair;
use super::sys;
use crate::{Connection, Domain, Incoming, Listener, Options, Stop, Why};

pub(super) struct VerbsListener {
    id: Id,
    libraries: &'static Libraries,
    address: SocketAddr,
    /// One for each device by which peers have come.
    domains: Vec<Arc<VerbsDomain>>,
}

impl VerbsListener {
    pub(super) fn new(libraries: &'static Libraries, at: SocketAddr) -> Result<Self> {
        let id = Id::new(libraries)?;
        id.bind(at)?;
        // SAFETY: the identifier lives.
        check(unsafe { libraries.cm.rdma_listen(id.raw(), 128) }, "cannot listen")
            .map_err(|error| error.with("address", at))?;
        let address = id.local_address().unwrap_or(at);
        Ok(Self { id, libraries, address, domains: Vec::new() })
    }

    /// The domain on the device by which a peer has come.
    fn domain(&mut self, id: &Id) -> Result<Arc<VerbsDomain>> {
        if let Some(domain) = self.domains.iter().find(|domain| domain.inner.context() == id.context()) {
            return Ok(Arc::clone(domain));
        }
        let local =
            id.local_address().ok_or_else(|| Why::NoRoute.error("a connection without an address"))?;
        let anchor = Id::new(self.libraries)?;
        anchor.bind(SocketAddr::new(local.ip(), 0))?;
        let domain = Arc::new(VerbsDomain::new(self.libraries, anchor, Some(local.ip()))?);
        if domain.inner.context() != id.context() {
            return Err(Error::new(forebay_error::ErrorKind::Internal, "two devices have one address")
                .with("address", local));
        }
        self.domains.push(Arc::clone(&domain));
        Ok(domain)
    }
}

impl fmt::Debug for VerbsListener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("VerbsListener").field("address", &self.address).finish_non_exhaustive()
    }
}

impl Listener for VerbsListener {
    fn address(&self) -> SocketAddr {
        self.address
    }

    fn next(&mut self, timeout: Duration) -> Result<Option<Box<dyn Incoming>>> {
        let until = Instant::now() + timeout;
        loop {
            let Some(event) = self.id.channel.next(until, Stop::NEVER)? else { return Ok(None) };
            match event.kind {
                sys::EVENT_CONNECT_REQUEST => {
                    let id = Id::adopt(self.libraries, event.id)?;
                    let domain = self.domain(&id)?;
                    return Ok(Some(Box::new(VerbsIncoming::new(id, domain, event))));
                }
                sys::EVENT_DEVICE_REMOVAL => return Err(Why::DeviceRemoved.error("cannot listen any more")),
                _ => {}
            }
        }
    }
}

struct VerbsIncoming {
    id: Id,
    domain: Arc<VerbsDomain>,
    private_data: Vec<u8>,
    limits: (u8, u8),
}

impl VerbsIncoming {
    fn new(id: Id, domain: Arc<VerbsDomain>, event: Event) -> Self {
        // What the peer asked for, as far as the device can.
        let (reads_in, reads_out) = domain.inner.limits;
        let limits = (reads_in.min(event.responder_resources), reads_out.min(event.initiator_depth));
        Self { id, domain, private_data: event.private_data, limits }
    }
}

impl fmt::Debug for VerbsIncoming {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("VerbsIncoming").field("peer", &self.id.peer_address()).finish_non_exhaustive()
    }
}

impl Incoming for VerbsIncoming {
    fn private_data(&self) -> &[u8] {
        &self.private_data
    }

    fn domain(&self) -> Arc<dyn Domain> {
        Arc::clone(&self.domain) as Arc<dyn Domain>
    }

    fn accept(self: Box<Self>, options: &Options) -> Result<Box<dyn Connection>> {
        options.check_private_data(196)?;
        let Self { id, domain, private_data, limits } = *self;
        let peer = id.peer_address().ok_or_else(|| Why::NoRoute.error("a connection without an address"))?;
        let mut connection = VerbsConnection::new(&domain.inner, options, peer, |attributes| {
            QueuePair::managed(&domain.inner, id, attributes)
        })?;
        connection.accept(options, limits, private_data)?;
        Ok(Box::new(connection))
    }

    fn reject(self: Box<Self>) -> Result<()> {
        self.id.reject()
    }
}
