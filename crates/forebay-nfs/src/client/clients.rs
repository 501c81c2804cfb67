//! Clients of the process: see [`forebay_remote::kept`]. Connections are worth it: each takes a port, of which few are below 1024, and
//! servers write down on stable storage which clients they have.

use std::sync::Arc;
use std::time::{Duration, Instant};

use forebay_error::Result;
use forebay_remote::kept::{KeptClient, KeptClients};
use forebay_remote::namespace::NetworkNamespace;

use crate::client::nfs_client::NfsClient;
use crate::network::options::NfsOptions;
use crate::network::server::NfsServer;
use crate::network::wire::SharedWires;
use crate::protocol::handle::{CallLimits, NfsVersion};
use crate::protocol::rpc::Credential;

static CLIENTS: KeptClients<KeptServer> = KeptClients::new();

/// A client that has no file.
struct KeptServer {
    server: Arc<NfsServer>,
    /// `None`: nothing was found on the server.
    shared: Option<Arc<SharedWires>>,
}

/// What files that share a client have in common.
#[derive(PartialEq)]
struct ClientKey {
    server: String,
    port: u16,
    version: NfsVersion,
    who: Credential,
    options: NfsOptions,
}

impl ClientKey {
    fn of(server: &NfsServer) -> Self {
        Self {
            server: server.name.clone(),
            port: server.port(),
            version: server.version,
            who: server.who.clone(),
            options: server.options.clone(),
        }
    }
}

impl KeptClient for KeptServer {
    type Key = ClientKey;
    type Client = NfsClient;

    fn all() -> &'static KeptClients<Self> {
        &CLIENTS
    }

    fn key(&self) -> ClientKey {
        ClientKey::of(&self.server)
    }

    fn namespace(&self) -> Option<NetworkNamespace> {
        self.server.options.network
    }

    /// Its connections first, then, with its last thread or here, its session.
    fn end(self, patience: Duration) {
        if !patience.is_zero() {
            self.server.set_patience(patience);
        }
        if let Some(shared) = self.shared {
            shared.close();
        }
        let until = Instant::now() + patience;
        while Arc::strong_count(&self.server) > 1 && Instant::now() < until {
            std::thread::sleep(Duration::from_micros(500));
        }
    }
}

impl KeptServer {
    /// Keeps it until its time is over, or ends it now where it has nothing that waits for its server.
    fn keep(self, time: Duration) {
        // Over RDMA each connection has memory locked, of which there is little.
        if (time.is_zero() || self.server.options.rdma.is_some())
            && let Some(shared) = &self.shared
        {
            shared.close();
        }
        if !time.is_zero() || self.server.has_session_to_end() {
            CLIENTS.keep(self, time);
        }
    }
}

/// A server that the process knows.
pub(crate) struct KnownServer {
    pub(crate) server: Arc<NfsServer>,
    /// None where nothing was found on it.
    pub(crate) client: Option<Arc<NfsClient>>,
    /// It had no file any more.
    pub(crate) was_kept: bool,
}

impl KnownServer {
    /// One that was not known.
    pub(crate) fn new(server: NfsServer) -> Self {
        Self { server: Arc::new(server), client: None, was_kept: false }
    }

    /// Looks for something on the server, which is kept where it has answered, whatever it said.
    pub(crate) fn look<T>(&self, look: impl FnOnce(&NfsServer) -> Result<T>) -> Result<T> {
        look(&self.server).inspect_err(|_| {
            if self.client.is_none() && !self.server.time_to_keep().is_zero() {
                keep_server(self.server.clone());
            }
        })
    }

    /// `None`: the server takes other calls than when it was kept. It is to be made anew, and this one ends.
    pub(crate) fn unless_outdated(self, limits: CallLimits) -> Option<Self> {
        match &self.client {
            Some(client) if self.was_kept && client.limits() != self.server.limits(limits) => {
                client.outdate();
                None
            }
            _ => Some(self),
        }
    }
}

/// The server of this name and port, as this user reaches it by these options.
pub(crate) fn known(
    (name, port): (&str, u16),
    version: NfsVersion,
    options: &NfsOptions,
) -> Option<KnownServer> {
    let key = ClientKey {
        server: name.to_owned(),
        port,
        version,
        who: Credential::of_process(),
        options: options.clone(),
    };
    let used = |client: Arc<NfsClient>| {
        let server = client.server_of().clone();
        KnownServer { server, client: Some(client), was_kept: false }
    };
    let again = |kept: KeptServer| {
        let client = kept.shared.map(NfsClient::again);
        (KnownServer { server: kept.server, client: client.clone(), was_kept: true }, client)
    };
    CLIENTS.find(key, used, again)
}

/// Whether there is one that has files, or had.
pub(crate) fn is_known((name, port): (&str, u16), version: NfsVersion, options: &NfsOptions) -> bool {
    // A kept client stays.
    known((name, port), version, options).is_some_and(|known| {
        if known.client.is_none() {
            keep_server(known.server);
            return false;
        }
        true
    })
}

/// A client that has files from now on.
pub(crate) fn add(client: &Arc<NfsClient>) {
    CLIENTS.add(ClientKey::of(client.server_of()), client);
}

/// A client has no file any more. One that is outdated is not used again.
pub(crate) fn keep(shared: Arc<SharedWires>, is_outdated: bool) {
    let server = shared.server.clone();
    let is_fit = !is_outdated && shared.has_slots();
    let time = if is_fit { server.time_to_keep() } else { Duration::ZERO };
    KeptServer { server, shared: Some(shared) }.keep(time);
}

/// A server on which a path was not found: the next path may be there.
pub(crate) fn keep_server(server: Arc<NfsServer>) {
    let time = server.time_to_keep();
    KeptServer { server, shared: None }.keep(time);
}
