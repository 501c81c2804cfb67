//! Listeners and their addresses, and how peers find each other.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::mpsc::{RecvTimeoutError, Sender, SyncSender, sync_channel};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use forebay_error::Result;
use forebay_verbs::{Options, STOP_SLICE, Why};

use crate::end::End;
use crate::lock;
use crate::machine::Machine;

/// The machine with its listeners.
#[derive(Debug)]
pub(crate) struct Network {
    pub(crate) machine: Arc<Machine>,
    pub(crate) listeners: Mutex<HashMap<SocketAddr, Sender<Request>>>,
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
