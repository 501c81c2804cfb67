//! A session: a connection that is paired with an end of the server's, and the name by which requests mean it.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use forebay_remote::stop;
use forebay_s3_rdma::rc1::{ConnectAnswer, SessionId};
use forebay_verbs::{Connection, Domain, Options, Stop};

use crate::wire::Network;

/// A session. One operation at a time uses it.
pub(super) struct Session {
    // Dropped first: afterwards nothing of the server's arrives by it.
    connection: Box<dyn Connection>,
    pub(super) domain: Arc<dyn Domain>,
    /// As long as it does, keys of the domain can be used.
    pub(super) living: Arc<()>,
    /// To the server that has it.
    pub(super) network: Arc<Network>,
    pub(super) name: SessionId,
    /// Bytes of an operation at most.
    pub(super) most: u64,
    /// How long the server keeps it without an operation.
    idle: Duration,
    used: Instant,
    /// Requests that named it.
    requests: u64,
}

/// Time that a request may take to its server: a session that ends sooner is not used any more.
pub(super) const MARGIN: Duration = Duration::from_secs(5);

impl Session {
    pub(super) fn new(
        connection: Box<dyn Connection>,
        (domain, network, living): (Arc<dyn Domain>, Arc<Network>, Arc<()>),
        answer: &ConnectAnswer,
    ) -> Self {
        let (most, idle) = (answer.operation_bytes, Duration::from_secs(answer.idle_seconds.into()));
        let (name, used) = (answer.session, Instant::now());
        Self { connection, domain, living, network, name, most, idle, used, requests: 0 }
    }

    /// With what connections are made. The server alone posts operations: RDMA WRITEs, and this many READs at a time.
    pub(super) fn options(reads: u8) -> Options {
        Options {
            receives: 2,
            receive_size: 64,
            sends: 2,
            send_size: 64,
            reads_in: reads,
            stop: Stop::when(stop::is_stopped),
            ..Options::default()
        }
    }

    /// The number of its next request. The server moves nothing for one that is not above those before.
    pub(super) fn next_number(&mut self) -> u64 {
        self.requests += 1;
        self.requests
    }

    /// An operation begins, or has ended.
    pub(super) fn touch(&mut self) {
        self.used = Instant::now();
    }

    /// Ends the connection. The server still has the session of this name.
    pub(super) fn close(self) -> (Arc<Network>, SessionId) {
        drop(self.connection);
        (self.network, self.name)
    }

    /// Whether it can still be used, as far as this side knows.
    pub(super) fn is_alive(&mut self) -> bool {
        let is_kept = self.used.elapsed() + MARGIN < self.idle;
        is_kept && self.connection.arm().is_ok() && self.connection.down().is_none()
    }
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Session").field("most", &self.most).finish_non_exhaustive()
    }
}
