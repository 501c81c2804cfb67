//! A queue pair that knows no peer.

use std::net::SocketAddr;
use std::sync::Arc;

use forebay_error::{Error, ErrorKind, Result};
use forebay_verbs::{Connection, Options, QueueEnd, UnpairedEnd, Why};

use crate::connection::FakeConnection;
use crate::end::End;
use crate::memory::FakeMemory;
use crate::network::Network;

#[derive(Debug)]
pub(crate) struct FakeUnpaired {
    pub(crate) network: Arc<Network>,
    pub(crate) end: Arc<End>,
    pub(crate) own: QueueEnd,
    pub(crate) options: Options,
    pub(crate) memory: FakeMemory,
}

impl UnpairedEnd for FakeUnpaired {
    fn own(&self) -> QueueEnd {
        self.own
    }

    fn pair(self: Box<Self>, peer: &QueueEnd) -> Result<Box<dyn Connection>> {
        peer.check()?;
        let Self { network, end, options, memory, .. } = *self;
        let device = network.machine.device(end.place.device);
        device.ok_or_else(|| Why::DeviceRemoved.error("cannot pair: the device was removed"))?;
        if network.machine.is_cut(peer.address()) {
            return Err(Why::Unreachable
                .error("cannot pair: the peer does not answer")
                .with("address", peer.address()));
        }
        if !end.queue.as_ref().is_some_and(|queue| queue.pair(*peer)) {
            return Err(Error::new(ErrorKind::Internal, "the end is paired already"));
        }
        network.queues.join(&end, peer.number);
        let peer = SocketAddr::new(peer.address(), 0);
        Ok(Box::new(FakeConnection::new(end, peer, Vec::new(), &options, Some(memory))))
    }
}
