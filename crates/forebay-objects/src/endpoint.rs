//! Endpoints of the process: one for an account and a site.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex};

use forebay_error::Result;
use forebay_remote::process::OfProcess;

use crate::account::{Account, ChecksumMode};
use crate::local::LocalGateway;
use crate::lock;
use crate::pace::{Budget, Durations, Turns, deadline};
use crate::wire::Network;
use crate::wire::site::Site;

/// Endpoints that are kept, the last that were used: a program that changes its keys often does not keep them all.
const KEPT: usize = 16;

/// Ranges that wait for requests of their transfer. Where they had no connections, requests of other places would wait for theirs.
const WAITING_RANGES: usize = 64;

/// An endpoint: what all calls to it share.
#[derive(Debug)]
pub(crate) struct Endpoint {
    pub(crate) account: Arc<Account>,
    pub(crate) site: Site,
    pub(crate) network: Arc<Network>,
    /// It took an object without a checksum that it had refused with one.
    refuses_checksums: AtomicBool,
    /// Pauses that the server asked for.
    pub(crate) budget: Budget,
    /// How many ranges are under way.
    pub(crate) turns: Turns,
    /// How long ranges take.
    pub(crate) durations: Durations,
    /// The gateway's socket, where it is on this node.
    pub(crate) local: LocalGateway,
}

/// A forked child has connections of its own.
static ENDPOINTS: OfProcess<Mutex<Vec<Arc<Endpoint>>>> = OfProcess::new();

impl Endpoint {
    /// That of a bucket, by the environment of now.
    pub(crate) fn of(bucket: &str) -> Result<Arc<Self>> {
        Self::of_account(Account::of_environment()?, bucket)
    }

    /// That of a bucket, for an account.
    pub(crate) fn of_account(account: Arc<Account>, bucket: &str) -> Result<Arc<Self>> {
        let site = account.site(bucket)?;
        let mut all = lock(ENDPOINTS.get());
        let is_it = |one: &Arc<Self>| Arc::ptr_eq(&one.account, &account) && one.site == site;
        let found = all.iter().position(is_it).map(|index| all.remove(index));
        let endpoint = found.unwrap_or_else(|| Self::new(account, site));
        if all.len() >= KEPT {
            all.remove(0);
        }
        all.push(endpoint.clone());
        Ok(endpoint)
    }

    pub(crate) fn new(account: Arc<Account>, site: Site) -> Arc<Self> {
        let network = Network::new(account.clone(), site.clone());
        let (budget, turns) = (Budget::new(deadline()), Turns::new());
        let refuses_checksums = AtomicBool::new(false);
        let durations = Durations::default();
        let local = LocalGateway::new(&site);
        let new = Self { account, site, network, refuses_checksums, budget, turns, durations, local };
        new.allow(new.turns.limit());
        Arc::new(new)
    }

    /// Allows connections for ranges that move bytes, for those that wait for requests, and some for other calls.
    pub(crate) fn allow(&self, ranges: usize) {
        self.network.allow(ranges + WAITING_RANGES + 4);
    }

    /// Whether objects are sent with checksums.
    pub(crate) fn sends_checksums(&self) -> bool {
        let mode = self.account.settings().request_checksums;
        mode == ChecksumMode::WhenSupported && !self.refuses_checksums.load(Relaxed)
    }

    /// From now on objects are sent without.
    pub(crate) fn refuse_checksums(&self) {
        self.refuses_checksums.store(true, Relaxed);
    }
}
