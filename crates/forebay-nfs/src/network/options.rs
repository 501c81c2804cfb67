//! Options of the client.

use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use forebay_error::Result;
use forebay_remote::namespace::NetworkNamespace;
use forebay_remote::silence::WaitLimits;
use forebay_verbs::Fabric;

/// How a client talks to its server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NfsOptions {
    /// Connections that carry bytes, 1 to 16. They are made when there is work for them.
    pub connections: usize,
    /// Further addresses of the server, or their names; its port is the same there. Connections that carry bytes are spread over all of
    /// them, once they were shown to lead to the same server. 15 at most.
    pub further: Vec<String>,
    /// Calls under way on each, 1 to 64.
    pub depth: usize,
    /// How long a connection may take to be made.
    pub connect: Duration,
    /// How long a server that has never answered is waited for: nothing says that it will.
    pub first_answer: Duration,
    /// How long a server may be silent while calls wait, before they are sent again on a new connection.
    pub silence: Duration,
    /// Connections come from a port below 1024, where the process may have one: many exports ask for that.
    pub low_ports: bool,
    /// Bytes by RDMA; all else goes over TCP. `None`: all by TCP.
    pub rdma: Option<RdmaOptions>,
    /// After how long a connection that nothing uses is closed; its thread ends with it.
    pub idle: Duration,
    /// How long the connections and the session of a server are kept behind its last file, for the next one that is opened; of
    /// RDMA the session alone.
    pub keep: Duration,
    /// After how long an address of [`NfsOptions::further`] is looked at again that was left out.
    pub left_out: Duration,
    /// How long calls are sent again, or wait because the server asks for it, before they fail.
    pub deadline: Duration,
    /// The network namespace that all connections are made in, where the same address is the same server; `None`: that of the thread that opens
    /// the file. Threads of other ones make none.
    pub network: Option<NetworkNamespace>,
}

/// How many ranges are registered for calls, or being registered, and how many ever were.
#[derive(Debug, Default)]
pub(crate) struct RegionCounts {
    pub(crate) now: AtomicUsize,
    pub(crate) begun: AtomicUsize,
}

/// Where a server takes RDMA, and by what.
#[derive(Clone, Debug)]
pub struct RdmaOptions {
    /// The devices.
    pub fabric: Arc<dyn Fabric>,
    /// The server's address on the fabric; `None`: that of its name.
    pub address: Option<IpAddr>,
    /// Those of [`NfsOptions::further`], in their order, where they are others on the fabric.
    pub further: Vec<IpAddr>,
    /// Its port.
    pub port: u16,
    /// Only addresses that this NIC leads to carry bytes.
    pub(crate) nic: Option<String>,
    /// Ranges of memory that are registered for calls under way: of all servers on the fabric, because they share what may be locked.
    pub(crate) held: Arc<RegionCounts>,
}

impl RdmaOptions {
    /// The port of servers over RDMA.
    pub const PORT: u16 = 20049;

    /// By this machine's devices, to the server's own address.
    pub fn of_machine() -> Result<Self> {
        // One for the process: files of one server share their connections.
        static RDMA: OnceLock<RdmaOptions> = OnceLock::new();
        let verbs = forebay_verbs::verbs()?;
        Ok(RDMA.get_or_init(|| Self::new(Arc::new(verbs), None, Self::PORT)).clone())
    }

    /// By a fabric, to an address.
    pub fn by(fabric: Arc<dyn Fabric>, to: SocketAddr) -> Self {
        Self::new(fabric, Some(to.ip()), to.port())
    }

    /// The same, with the addresses on the fabric of [`NfsOptions::further`].
    #[must_use]
    pub fn and_to(mut self, further: &[IpAddr]) -> Self {
        self.further = further.to_vec();
        self
    }

    fn new(fabric: Arc<dyn Fabric>, address: Option<IpAddr>, port: u16) -> Self {
        Self { fabric, address, further: Vec::new(), port, nic: None, held: Arc::default() }
    }
}

impl PartialEq for RdmaOptions {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.fabric, &other.fabric)
            && (self.address, &self.further, self.port) == (other.address, &other.further, other.port)
            && self.nic == other.nic
    }
}

impl Eq for RdmaOptions {}

impl Default for NfsOptions {
    fn default() -> Self {
        Self {
            connections: 8,
            further: Vec::new(),
            depth: 8,
            connect: Duration::from_secs(5),
            first_answer: Duration::from_secs(30),
            silence: Duration::from_mins(1),
            low_ports: true,
            rdma: None,
            idle: Duration::from_secs(30),
            keep: Duration::from_secs(5),
            left_out: Duration::from_mins(1),
            deadline: Duration::from_mins(5),
            network: None,
        }
    }
}

/// After how long without a sign of life a server is asked for one, at most.
const PROBE_AFTER: Duration = Duration::from_secs(5);

impl NfsOptions {
    /// The same with no more than `limit` for a question: to connect, and to be answered.
    #[must_use]
    pub fn within(mut self, limit: Duration) -> Self {
        for time in [&mut self.connect, &mut self.first_answer, &mut self.silence, &mut self.deadline] {
            *time = limit.min(*time);
        }
        self
    }

    /// After how long a server that calls wait for is asked for a sign of life.
    pub(crate) fn probe_after(&self) -> Duration {
        PROBE_AFTER.min(self.silence / 4)
    }

    /// How long a server is waited for.
    pub(crate) const fn wait_limits(&self) -> WaitLimits {
        WaitLimits { silence: self.silence, deadline: self.deadline }
    }

    /// An error where this thread is to make no connection: what it reaches by the server's address may be another one.
    pub(crate) fn check_network(&self) -> Result<()> {
        self.network.map_or(Ok(()), NetworkNamespace::check)
    }

    /// The same within the allowed range, with connections from this thread's network namespace.
    pub(crate) fn checked(mut self) -> Self {
        self.connections = self.connections.clamp(1, 16);
        self.depth = self.depth.clamp(1, 64);
        self.network = self.network.or_else(NetworkNamespace::of_thread);
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_makes_no_time_longer() {
        let limit = Duration::from_secs(2);
        let short = NfsOptions { connect: Duration::from_secs(1), ..NfsOptions::default() }.within(limit);
        let times = [short.connect, short.first_answer, short.silence, short.deadline];
        assert_eq!(times, [Duration::from_secs(1), limit, limit, limit]);
        assert_eq!(short.idle, NfsOptions::default().idle);
    }
}
