//! Endpoints of the process: one for an account and a site.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex};

use forebay_error::Result;

use crate::account::{Account, ChecksumMode};
use crate::lock;
use crate::wire::Network;
use crate::wire::site::Site;

/// An endpoint: what all calls to it share.
#[derive(Debug)]
pub(crate) struct Endpoint {
    pub(crate) account: Arc<Account>,
    pub(crate) site: Site,
    pub(crate) network: Arc<Network>,
    /// It took an object without a checksum that it had refused with one.
    refuses_checksums: AtomicBool,
}

static ENDPOINTS: Mutex<Vec<Arc<Endpoint>>> = Mutex::new(Vec::new());

impl Endpoint {
    /// That of a bucket, by the environment of now.
    pub(crate) fn of(bucket: &str) -> Result<Arc<Self>> {
        let account = Account::of_environment()?;
        let site = account.site(bucket)?;
        let mut all = lock(&ENDPOINTS);
        let found = all.iter().find(|one| Arc::ptr_eq(&one.account, &account) && one.site == site);
        if let Some(found) = found {
            return Ok(found.clone());
        }
        let new = Self::new(account, site);
        all.push(new.clone());
        Ok(new)
    }

    pub(crate) fn new(account: Arc<Account>, site: Site) -> Arc<Self> {
        let network = Network::new(account.clone(), site.clone());
        Arc::new(Self { account, site, network, refuses_checksums: AtomicBool::new(false) })
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
