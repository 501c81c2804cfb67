//! Listening and accepting.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use forebay_error::{Error, Result};
use forebay_verbs::{Connection, Domain, Incoming, Listener, Options, Why};

use crate::connection::FakeConnection;
use crate::domain::FakeDomain;
use crate::end::End;
use crate::faults::Side;
use crate::lock;
use crate::network::{Network, Request};

#[derive(Debug)]
pub(crate) struct FakeListener {
    network: Arc<Network>,
    address: SocketAddr,
    domain: Arc<FakeDomain>,
    requests: Receiver<Request>,
}

impl FakeListener {
    pub(crate) fn new(network: &Arc<Network>, at: SocketAddr) -> Result<Self> {
        let device = network.machine.device_at(Some(at.ip())).or_else(|| network.machine.device_at(None));
        let (index, device) =
            device.ok_or_else(|| Why::NoDevice.error("cannot listen").with("address", at))?;
        let (sender, requests) = channel();
        let mut listeners = lock(&network.listeners);
        let mut address = at;
        if at.port() == 0 {
            let free =
                (20000..u16::MAX).find(|port| !listeners.contains_key(&SocketAddr::new(at.ip(), *port)));
            address.set_port(free.unwrap_or_default());
        }
        if listeners.contains_key(&address) {
            return Err(Error::from_errno(libc::EADDRINUSE, "cannot listen").with("address", at));
        }
        listeners.insert(address, sender);
        let domain = FakeDomain::new(network, Side::Server, (index, &device));
        Ok(Self { network: Arc::clone(network), address, domain, requests })
    }
}

impl Listener for FakeListener {
    fn address(&self) -> SocketAddr {
        self.address
    }

    fn next(&mut self, timeout: Duration) -> Result<Option<Box<dyn Incoming>>> {
        Ok(self.requests.recv_timeout(timeout).ok().map(|request| {
            Box::new(FakeIncoming { request, domain: Arc::clone(&self.domain) }) as Box<dyn Incoming>
        }))
    }
}

impl Drop for FakeListener {
    fn drop(&mut self) {
        lock(&self.network.listeners).remove(&self.address);
    }
}

#[derive(Debug)]
struct FakeIncoming {
    request: Request,
    domain: Arc<FakeDomain>,
}

impl Incoming for FakeIncoming {
    fn private_data(&self) -> &[u8] {
        &self.request.private_data
    }

    fn domain(&self) -> Arc<dyn Domain> {
        Arc::clone(&self.domain) as Arc<dyn Domain>
    }

    fn accept(self: Box<Self>, options: &Options) -> Result<Box<dyn Connection>> {
        options.check_private_data(196)?;
        let Self { request, domain } = *self;
        let end = End::new(domain.machine(), domain.place(), options, None)?;
        End::join(&request.end, &end);
        if request.answer.send(Some(options.private_data.clone())).is_err() {
            return Err(Why::Unreachable.error("cannot accept: the peer has given up"));
        }
        Ok(Box::new(FakeConnection::new(end, request.from, request.private_data, options, None)))
    }

    fn reject(self: Box<Self>) -> Result<()> {
        // Best effort: the peer may have given up.
        let _ = self.request.answer.send(None);
        Ok(())
    }
}
