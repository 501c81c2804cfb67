//! The way to a server: the NIC that leads there, and connections of HTTP to the same address.

use std::sync::{Arc, Weak};
use std::time::Duration;

use forebay_error::Error;
use forebay_verbs::{Domain, Why};

use super::fabric::{is_no_nic, reach};
use crate::account::Account;
use crate::wire::Network;
use crate::wire::site::Site;

/// How long a server is not asked again that does not take RDMA.
pub(super) const DECLINED: Duration = Duration::from_mins(10);
/// The same where something failed, or it had too many sessions.
pub(super) const REST: Duration = Duration::from_secs(10);

/// The way to a server.
#[derive(Clone, Debug)]
pub(super) struct Reached {
    pub(super) domain: Arc<dyn Domain>,
    /// To one address: other machines behind the same name do not have its sessions.
    pub(super) network: Arc<Network>,
    /// Held by all that may have connections of the domain.
    living: Arc<()>,
}

/// Why there is no session.
pub(super) struct NoSession {
    pub(super) error: Error,
    /// For how long the server is not asked again.
    pub(super) pause: Duration,
    /// This machine has no RDMA on the way to the server.
    pub(super) is_no_nic: bool,
    /// The server does not know the dialect: it may know another one.
    pub(super) is_not_spoken: bool,
}

impl NoSession {
    pub(super) fn of_machine(error: Error) -> Self {
        let is_no_nic = is_no_nic(&error);
        let pause = if Why::of(&error) == Some(Why::DeviceRemoved) { REST } else { DECLINED };
        Self { error, pause, is_no_nic, is_not_spoken: false }
    }

    pub(super) fn of_server(error: Error, pause: Duration) -> Self {
        Self { error, pause, is_no_nic: false, is_not_spoken: false }
    }
}

impl Reached {
    pub(super) fn new(account: &Arc<Account>, site: &Site, calls: usize) -> Result<Self, NoSession> {
        let (address, domain) = reach(site).map_err(NoSession::of_machine)?;
        let network = Network::to(account.clone(), site.clone(), address);
        network.allow(calls);
        Ok(Self { domain, network, living: Arc::default() })
    }

    /// Whether both are the same, and not two to one server.
    pub(super) fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.living, &other.living)
    }

    /// As long as it lives, keys of the domain can be used.
    pub(super) fn living(&self) -> Weak<()> {
        Arc::downgrade(&self.living)
    }
}
