//! Listeners and their addresses, queue pairs and their numbers, and how peers find each other.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::mpsc::{RecvTimeoutError, Sender, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, Weak};
use std::time::Instant;

use forebay_error::Result;
use forebay_verbs::{Options, QueueEnd, STOP_SLICE, Why, gid_of, random_first};

use crate::end::End;
use crate::lock;
use crate::machine::{FakeDevice, Machine};

/// The machine with its listeners.
#[derive(Debug)]
pub(crate) struct Network {
    pub(crate) machine: Arc<Machine>,
    pub(crate) listeners: Mutex<HashMap<SocketAddr, Sender<Request>>>,
    pub(crate) queues: Queues,
}

/// Queue pairs that are paired in band, by number. Numbers are never used again.
#[derive(Debug, Default)]
pub(crate) struct Queues(Mutex<(u32, HashMap<u32, Weak<End>>)>);

impl Queues {
    /// A new queue pair of a device.
    pub(crate) fn next(&self, device: &FakeDevice) -> Result<QueueEnd> {
        let mut list = lock(&self.0);
        list.0 += 1;
        // Real devices keep the first ones for themselves.
        let number = 16 + list.0;
        let first = random_first()?;
        let own = QueueEnd { number, first, gid: gid_of(device.address), lid: 0, port: 1, mtu: device.mtu };
        own.check()?;
        Ok(own)
    }

    pub(crate) fn add(&self, number: u32, end: &Arc<End>) {
        let ends = &mut lock(&self.0).1;
        ends.retain(|_, end| end.strong_count() > 0);
        ends.insert(number, Arc::downgrade(end));
    }

    /// Joins an end to its peer once both have heard of each other as they are. Else each reaches nothing, as with a device.
    pub(crate) fn join(&self, end: &Arc<End>, peer: u32) {
        let other = lock(&self.0).1.get(&peer).and_then(Weak::upgrade);
        let Some(other) = other else { return };
        if let (Some(here), Some(there)) = (&end.queue, &other.queue)
            && here.names(there)
            && there.names(here)
        {
            End::join(end, &other);
        }
    }
}

/// A peer that wants to connect.
#[derive(Debug)]
pub(crate) struct Request {
    pub(crate) end: Arc<End>,
    pub(crate) from: SocketAddr,
    pub(crate) private_data: Vec<u8>,
    pub(crate) answer: SyncSender<Option<Vec<u8>>>,
}

/// Asks the listener at an address; its private data, once it has accepted.
pub(crate) fn ask(
    network: &Network,
    end: &Arc<End>,
    from: SocketAddr,
    to: SocketAddr,
    options: &Options,
) -> Result<Vec<u8>> {
    options.check_private_data(56)?;
    let unreachable =
        || Why::Unreachable.error("cannot connect: the peer does not answer").with("address", to);
    if network.machine.is_cut(to.ip()) {
        return Err(unreachable());
    }
    let rejected = |()| Why::Rejected.error("cannot connect: rejected").with("address", to);
    let (answer, answered) = sync_channel(1);
    let private_data = options.private_data.clone();
    let request = Request { end: Arc::clone(end), from, private_data, answer };
    let any =
        SocketAddr::new(if to.is_ipv4() { IpAddr::from([0; 4]) } else { IpAddr::from([0; 16]) }, to.port());
    let listener = {
        let listeners = lock(&network.listeners);
        listeners.get(&to).or_else(|| listeners.get(&any)).cloned()
    };
    listener.ok_or(()).and_then(|listener| listener.send(request).map_err(drop)).map_err(rejected)?;
    let until = Instant::now() + options.timeout;
    loop {
        options.stop.check()?;
        let left = until.saturating_duration_since(Instant::now());
        match answered.recv_timeout(left.min(STOP_SLICE)) {
            Ok(Some(private_data)) => return Ok(private_data),
            Ok(None) | Err(RecvTimeoutError::Disconnected) => return Err(rejected(())),
            Err(RecvTimeoutError::Timeout) if left.is_zero() => return Err(unreachable()),
            Err(RecvTimeoutError::Timeout) => {}
        }
    }
}
