//! Where ranges of an object are asked for: the endpoint by which it was opened, or one that the server sends them to.
//!
//! A server names a region, and no more than that: the host follows from the settings, so that nothing signed goes elsewhere.

use std::sync::atomic::AtomicU64;
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use forebay_error::{Error, ErrorKind};

use super::target::Target;
use crate::ObjectUrl;
use crate::calls::Refusal;
use crate::calls::sites::PATIENCE;
use crate::endpoint::Endpoint;

/// A site, and the object there.
pub(crate) struct Route {
    first: Arc<Endpoint>,
    /// The object as that site has it.
    pub(super) target: Target,
    /// The region by which the object was opened.
    region: String,
    /// The endpoint of another region, and since when ranges are asked for there.
    moved: OnceLock<(Instant, Arc<Endpoint>)>,
    /// Bytes that it gave.
    pub(super) bytes: AtomicU64,
}

impl Route {
    pub(super) fn new(first: Arc<Endpoint>, target: Target) -> Self {
        let region = first.account.region(&target.bucket);
        Self { first, target, region, moved: OnceLock::new(), bytes: AtomicU64::new(0) }
    }

    /// The object's URL at its site.
    pub(super) fn url(&self) -> ObjectUrl {
        let site = self.endpoint().account.site_name().map(str::to_owned);
        ObjectUrl { site, ..self.target.url() }
    }

    pub(super) fn endpoint(&self) -> &Arc<Endpoint> {
        self.moved.get().map_or(&self.first, |(_, endpoint)| endpoint)
    }

    /// Whether the server is gone: it was silent, or has refused or failed for longer than a read of one of several sites waits.
    pub(super) fn is_gone(&self, error: &Error) -> bool {
        let endpoint = self.endpoint();
        let (now, is_known) = (Instant::now(), !endpoint.network.facts().transport.is_empty());
        error.kind() == ErrorKind::Timeout || !endpoint.budget.goes_on(PATIENCE, now, now, is_known)
    }

    /// The region that a refused range is to be asked for in. `None`: it was refused for something else.
    pub(super) fn region_of<'a>(&self, refusal: &'a Refusal) -> Option<&'a str> {
        let region = refusal.region.as_deref().filter(|region| *region != self.region)?;
        matches!(refusal.status, 301 | 307 | 308 | 400).then_some(region)
    }

    /// Since when ranges are asked for in another region.
    pub(super) fn moved(&self) -> Option<Instant> {
        self.moved.get().map(|(since, _)| *since)
    }

    /// Ranges are asked for in that region from now on. `None`: it is no name of a region.
    pub(super) fn lead_to(&self, region: &str) -> Option<&Arc<Endpoint>> {
        let account = &self.first.account;
        account.learn_region(&self.target.bucket, region).ok()?;
        let endpoint = Endpoint::of_account(account.clone(), &self.target.bucket).ok()?;
        // Heads that are made from now on are signed for that region.
        Some(&self.moved.get_or_init(|| (Instant::now(), endpoint)).1)
    }
}
