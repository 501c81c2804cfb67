//! From the environment and profiles to an endpoint, keys, and signed heads of requests.

use std::sync::Arc;

use forebay_error::{Error, ErrorKind, Result};

use crate::wire::call::{Ask, Body, Heads};
pub(crate) use crate::wire::site::{Proxy, Site};

/// Who asks, and where: settings and keys of a profile.
#[derive(Debug)]
pub(crate) struct Account {}

impl Account {
    /// That of the environment and its profile, read anew where the environment changed. Asks nobody.
    pub(crate) fn of_environment() -> Result<Arc<Self>> {
        Err(Error::new(ErrorKind::Unsupported, "not written yet"))
    }

    /// Where requests for a bucket go.
    pub(crate) fn site(&self, _bucket: &str) -> Result<Site> {
        Err(Error::new(ErrorKind::Unsupported, "not written yet"))
    }

    /// The head of a request as it is sent, signed by the keys and the time of now, with `host` and `content-length`. Waits where
    /// keys have to be renewed; they are renewed in the background before.
    pub(crate) fn head(&self, _ask: &Ask, _body: &Body) -> Result<Vec<u8>> {
        Err(Error::new(ErrorKind::Unsupported, "not written yet"))
    }

    /// Who gave the keys, for receipts: "profile dev (SSO)". `None`: not asked yet.
    pub(crate) fn provider(&self) -> Option<String> {
        None
    }
}

impl Heads for Account {
    fn are_keys_at_hand(&self) -> bool {
        true
    }

    fn head(&self, ask: &Ask, body: &Body) -> Result<Vec<u8>> {
        Account::head(self, ask, body)
    }
}
