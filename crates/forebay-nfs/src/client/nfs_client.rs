//! Requests to one server, dealt to its wires.

use std::fmt;
use std::mem::ManuallyDrop;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use forebay_error::{Error, ErrorKind, Result};
use forebay_remote::process::ProcessId;
use forebay_remote::stop::{is_stopped, stopped};
use forebay_verbs::{Device, Domain};

use crate::client::clients;
use crate::network::addresses::LeftOutAddress;
use crate::network::job::{Answer, IoJob, IoRequest};
use crate::network::server::NfsServer;
use crate::network::wire::SharedWires;
use crate::protocol::handle::{CallLimits, NfsVersion};

/// A server in use: its wires, and requests that wait for them. Ends [some time](crate::NfsOptions::keep) after its last file, and with its
/// last request.
pub struct NfsClient {
    /// Handed on when the client has no file any more.
    shared: ManuallyDrop<Arc<SharedWires>>,
    /// Its threads are in that process alone.
    process: ProcessId,
    is_outdated: AtomicBool,
}

/// Counters since a client was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ServerTraffic {
    /// Calls that were answered.
    pub calls: u64,
    /// Bytes that came.
    pub read: u64,
    /// Bytes that the server took.
    pub written: u64,
    /// COMMITs that were answered.
    pub commits: u64,
    /// The time from each of them to its answer, together.
    pub commit_time: Duration,
    /// Connections that were made.
    pub connections: u64,
    /// Calls that were sent again, on another connection.
    pub resent: u64,
    /// Calls that waited because the server asked for it.
    pub waited: u64,
    /// Replies to unknown calls, or repeated ones.
    pub strange: u64,
}

impl NfsClient {
    pub(crate) fn new(server: Arc<NfsServer>, limits: CallLimits) -> Arc<Self> {
        Self::again(Arc::new(SharedWires::new(server, limits)))
    }

    /// One that had no file any more. It is like a new one, except for its counters, which continue.
    pub(crate) fn again(shared: Arc<SharedWires>) -> Arc<Self> {
        shared.reopen();
        Arc::new(Self {
            shared: ManuallyDrop::new(shared),
            process: ProcessId::current(),
            is_outdated: AtomicBool::new(false),
        })
    }

    /// The server takes other calls than those that it makes: it ends with its last file.
    pub(crate) fn outdate(&self) {
        self.is_outdated.store(true, Ordering::Relaxed);
    }

    /// The version that is spoken.
    pub fn version(&self) -> NfsVersion {
        self.shared.server.version
    }

    /// The server's name.
    pub fn server(&self) -> &str {
        &self.shared.server.name
    }

    /// Its addresses.
    pub fn addresses(&self) -> &[SocketAddr] {
        &self.shared.server.addresses
    }

    /// How many addresses bytes go to at present: with the first, those that were shown to be the server's.
    pub fn addresses_in_use(&self) -> usize {
        self.shared.server.addresses_in_use()
    }

    /// Addresses that [`crate::NfsOptions::further`] names and that are not used, with the reason.
    pub fn left_out(&self) -> Vec<LeftOutAddress> {
        self.shared.server.further.left_out()
    }

    /// The most bytes of one call.
    pub fn limits(&self) -> CallLimits {
        self.shared.limits
    }

    /// What carries the bytes: `TCP`, or `RDMA`.
    pub fn transport(&self) -> &'static str {
        if self.is_rdma() { "RDMA" } else { "TCP" }
    }

    /// Whether that is RDMA.
    pub fn is_rdma(&self) -> bool {
        self.shared.server.options.rdma.is_some()
    }

    /// The protection domain of its connections, for memory that the server is to write to: see [`forebay_verbs::RegisteredMemory`]. An error
    /// where bytes go over TCP. Where several NICs lead to the server, each has its own: see [`crate::NfsFile::by_nic`].
    pub fn domain(&self) -> Result<Arc<dyn Domain>> {
        self.shared.server.domain_in_use()
    }

    /// The NICs that lead to its addresses, in their order; none where bytes go over TCP.
    pub fn nics(&self) -> Vec<Device> {
        self.shared.server.nics()
    }

    /// How long calls wait for the server before they fail.
    pub fn deadline(&self) -> Duration {
        self.shared.server.options.deadline
    }

    /// Connections that may be in use.
    pub fn connections(&self) -> usize {
        self.shared.connections()
    }

    /// Records how long a request took. The server may be silent for that much longer than the options say.
    pub fn record_duration(&self, duration: Duration) {
        self.shared.server.record_duration(duration);
    }

    /// Ends, with an error, calls that wait for room on a connection. Calls already sent end by themselves.
    pub fn fail_waiting(&self, error: &Error) {
        self.shared.fail_waiting(error);
    }

    /// How often the server was silent for ten seconds or longer while something waited for it, and answered again; and how long in all.
    pub fn silences(&self) -> (u64, Duration) {
        self.shared.server.clock.silences()
    }

    /// The counters so far.
    pub fn traffic(&self) -> ServerTraffic {
        let of = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let counters = &self.shared.traffic;
        ServerTraffic {
            calls: self.shared.calls(),
            read: of(&counters.read),
            written: of(&counters.written),
            commits: of(&counters.commits),
            commit_time: Duration::from_nanos(of(&counters.commit_nanos)),
            connections: of(&counters.connections),
            resent: of(&counters.resent),
            waited: of(&counters.waited),
            strange: of(&counters.strange),
        }
    }

    pub(crate) fn server_of(&self) -> &Arc<NfsServer> {
        &self.shared.server
    }

    /// Whether this process is a child of the client's.
    pub fn is_elsewhere(&self) -> bool {
        !self.process.is_current()
    }

    /// An error in a child of the client's process.
    pub(crate) fn check_process(&self) -> Result<()> {
        self.process.check()
    }

    /// Starts a request; `answer` is called once, from any thread, perhaps before this returns.
    ///
    /// # Safety
    /// The request's memory is valid, and nobody else uses it (for a write: nobody changes it), until the answer.
    pub(crate) unsafe fn start(&self, request: IoRequest, answer: Answer) {
        let end = request.offset.checked_add(request.memory.len as u64);
        let refused = if let Err(error) = self.check_process() {
            Some(error)
        } else if is_stopped() {
            Some(stopped())
        } else if end.is_none_or(|end| i64::try_from(end).is_err()) {
            Some(Error::new(ErrorKind::InvalidInput, "the range goes beyond what a file can have"))
        } else {
            None
        };
        if let Some(error) = refused {
            return answer(Err(request.name(error)));
        }
        if request.memory.len == 0 {
            return answer(Ok(0));
        }
        let now = Instant::now();
        // SAFETY: passed on.
        self.shared.push(unsafe { IoJob::new(request, answer, now) }, now);
    }
}

impl Drop for NfsClient {
    fn drop(&mut self) {
        // SAFETY: it is taken once, and nothing uses the client any more.
        let shared = unsafe { ManuallyDrop::take(&mut self.shared) };
        // A child's connections are its parent's. Requests under way hold their wires.
        if !self.is_elsewhere() {
            clients::keep(shared, self.is_outdated.load(Ordering::Relaxed));
        }
    }
}

impl fmt::Debug for NfsClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NfsClient").field("server", &self.server()).finish_non_exhaustive()
    }
}
