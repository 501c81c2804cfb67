//! HTTP/1.1: heads, bodies, TLS, proxies; connections of an endpoint, and the threads that serve them.
//!
//! | module | what it has |
//! |---|---|
//! | `call` | a request, and where its reply goes |
//! | `site` | where requests are sent to |
//! | `head`, `framing` | from bytes to the head of a reply, and to the end of its body |
//! | `socket`, `tls`, `stream`, `input`, `outgoing` | bytes of a connection |
//! | `certificates` | which certificates of servers are trusted, and why one is not |
//! | `failed` | at which step a connection failed |
//! | `exchange` | a call on its connection |
//! | `opening`, `tunnel`, `line` | connections that are being made, also through proxies, and those that are ready |
//! | `addresses` | addresses of the site's name, and connections to each |
//! | `job`, `pool` | calls that wait, and connections without a call: what threads share |
//! | `mail`, `poller`, `table`, `load`, `thread_list`, `worker` | a thread: what wakes it, the connections that it serves, and how busy it is |

mod addresses;
pub(crate) mod call;
mod certificates;
mod exchange;
mod failed;
mod framing;
#[cfg(feature = "fuzz")]
pub(crate) mod fuzz;
mod head;
mod input;
mod job;
mod line;
mod load;
mod mail;
mod opening;
mod outgoing;
mod poller;
mod pool;
pub(crate) mod site;
mod socket;
mod stream;
mod table;
#[cfg(test)]
mod tests;
mod thread_list;
mod tls;
mod tunnel;
mod worker;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use forebay_remote::process::ProcessId;
use forebay_remote::stop::{is_stopped, stopped};

use call::{Ask, Body, Heads, Resume, Sink};
pub(crate) use failed::{ProxyFailed, TlsFailed};
use job::Job;
pub(crate) use pool::LONG_WORK;
#[doc(hidden)]
pub use pool::silent_after;
use pool::{Limits, Pool};
use site::Site;

/// The head of a reply at the beginning of these bytes, how many of them it has, and whether the connection may be used again. `None`: it
/// has not ended yet.
pub(crate) fn head_of(
    came: &[u8],
    method: call::Method,
) -> forebay_error::Result<Option<(call::ReplyHead, usize, bool)>> {
    let found = head::HeadReader::default().read(came, method)?;
    Ok(found.map(|found| (found.head, found.bytes, found.keeps)))
}

/// How calls reach a site, for receipts.
#[derive(Clone, Debug, Default)]
pub(crate) struct NetworkFacts {
    /// "TCP", "TLS 1.3"; empty where there was no connection.
    pub(crate) transport: &'static str,
    /// Connections that are open.
    pub(crate) connections: usize,
    /// Addresses that took no connection, and why.
    pub(crate) left_out: Vec<(SocketAddr, String)>,
    /// How often the server was silent for 10 s or longer, and how long in all.
    pub(crate) silences: (u64, Duration),
}

/// The connections to a site. Threads serve them; these end when there was no call for some seconds.
#[derive(Debug)]
pub(crate) struct Network {
    pool: Arc<Pool>,
    process: ProcessId,
}

impl Network {
    /// None yet.
    pub(crate) fn new(heads: Arc<dyn Heads>, site: Site) -> Arc<Self> {
        Self::with_limits(heads, site, Limits::default())
    }

    /// The same, all of whose connections lead to one address of the site's name.
    pub(crate) fn to(heads: Arc<dyn Heads>, site: Site, to: SocketAddr) -> Arc<Self> {
        Self::with_limits(heads, site, Limits { to: Some(to), ..Limits::default() })
    }

    fn with_limits(heads: Arc<dyn Heads>, site: Site, limits: Limits) -> Arc<Self> {
        forebay_sys::descriptor_table::make_room();
        Arc::new(Self { pool: Pool::new(heads, site, limits), process: ProcessId::current() })
    }

    /// Starts a call. The sink gets its end, perhaps before this returns. A call that a server closed a kept connection on,
    /// before a byte of its reply came, is sent again on another one; all other errors are the sink's.
    pub(crate) fn start(&self, ask: Ask, body: Body, sink: Box<dyn Sink>) -> Arc<dyn Resume> {
        let job = Job::new(ask, body, sink);
        let place = job.place.clone();
        if let Err(error) = self.process.check() {
            job.end(Err(error));
        } else if is_stopped() {
            job.end(Err(stopped()));
        } else if self.pool.push(job)
            && let Err(error) = worker::spawn(&self.pool)
        {
            self.pool.end_waiting(&error);
        }
        place
    }

    /// Allows this number of connections at a time; calls beyond them wait. 16 at first.
    pub(crate) fn allow(&self, connections: usize) {
        self.pool.allow(connections);
    }

    /// How calls reach the site now.
    pub(crate) fn facts(&self) -> NetworkFacts {
        // A lock of the parent's may be held for ever.
        if self.process.is_current() { self.pool.facts() } else { NetworkFacts::default() }
    }

    /// For tests: bytes of bodies that were copied behind the kernel's copy, or the decryption: those that came with a head.
    #[cfg(test)]
    pub(crate) fn copied(&self) -> u64 {
        self.pool.copied.load(std::sync::atomic::Ordering::Relaxed)
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        // In a forked child its locks may be held for ever, and its threads are the parent's.
        if self.process.is_current() {
            self.pool.end();
        }
    }
}
