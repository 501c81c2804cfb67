//! Reads of a bucket that several sites have: the nearest one is asked first, and the next where it is gone, or has not the object.

use std::sync::Arc;
use std::time::{Duration, Instant};

use forebay_error::{Error, ErrorKind, Result};
use forebay_remote::endpoint::ServerUnreachable;
use forebay_remote::stop;
use forebay_sys::threads;

use super::bucket::Bucket;
use super::refusal::Refusal;
use crate::ObjectUrl;
use crate::account::Account;
use crate::endpoint::Endpoint;
use crate::pace::deadline;
use crate::wire::call::{Body, Method};

/// How long a read of a site fails before the next one is asked: gateways that are started again take less.
pub(crate) const PATIENCE: Duration = Duration::from_secs(1);
/// Between two rounds of all sites.
const PAUSE: Duration = Duration::from_millis(100);

impl Bucket {
    /// The same for reads that may go to other sites, where the environment names some and the bucket's URL none.
    pub fn anywhere(mut self) -> Result<Self> {
        if self.named.is_none() {
            let all = Account::of_sites()?;
            self.sites = if all.len() > 1 { all.into() } else { [].into() };
        }
        Ok(self)
    }

    /// Whether reads may go to other sites.
    pub(crate) fn has_sites(&self) -> bool {
        !self.sites.is_empty()
    }

    /// The name of the site that is asked first, where sites have names.
    #[must_use]
    pub fn site_name(&self) -> Option<&str> {
        self.endpoint.account.site_name()
    }

    /// The bucket at each of the sites: those that are gone are the last.
    pub(crate) fn at_sites(&self) -> Result<Vec<Self>> {
        self.look_at_gone();
        let (gone, there): (Vec<_>, Vec<_>) =
            self.sites.iter().cloned().partition(|account| account.is_gone());
        there.into_iter().chain(gone).map(|account| self.at(account)).collect()
    }

    /// The bucket at one site.
    pub(crate) fn at(&self, account: Arc<Account>) -> Result<Self> {
        let endpoint = Endpoint::of_account(account, &self.name)?;
        Ok(Self { endpoint, sites: [].into(), ..self.clone() })
    }

    /// Does a read at the first site that has an answer. Where one that is gone may have it, all are asked in turn for as long as a call
    /// to that one alone may fail.
    pub(crate) fn read<T>(&self, read: impl Fn(&Self) -> Result<T, Refusal>) -> Result<T, Refusal> {
        if !self.has_sites() {
            return read(self);
        }
        let began = Instant::now();
        loop {
            let mut refusals = Vec::new();
            for bucket in self.at_sites()? {
                let end = read(&Self { patience: PATIENCE, ..bucket.clone() });
                bucket.note(end.as_ref().err());
                match end {
                    Err(refusal) if refusal.leaves_to_next() => refusals.push((bucket, refusal)),
                    end => return end,
                }
            }
            if !refusals.iter().any(|(bucket, refusal)| bucket.may_come_back(refusal, began)) {
                return Err(joined(refusals));
            }
            // A site that is gone is asked at once where its name leads nowhere.
            stop::sleep(PAUSE)?;
        }
    }

    /// Whether its server is gone, and reads that began then go on asking it: as long as they would without other sites.
    pub(crate) fn may_come_back(&self, refusal: &Refusal, began: Instant) -> bool {
        let (now, endpoint) = (Instant::now(), &self.endpoint);
        // Its server has taken a connection before.
        let is_known = !endpoint.network.facts().transport.is_empty();
        refusal.is_gone
            && !refusal.error.is_caused_by::<ServerUnreachable>()
            && endpoint.budget.goes_on(deadline(), began, now, is_known)
    }

    /// Asks sites that are gone, once in a while, whether they are back. No read waits for that.
    pub(crate) fn look_at_gone(&self) {
        for account in self.sites.iter().filter(|account| account.is_to_be_asked()) {
            let Ok(bucket) = self.at(account.clone()) else { continue };
            let bucket = bucket.hasty(Duration::ZERO);
            // Without the thread it is asked the next time.
            let _ = threads::spawn("forebay-site", move || {
                let end = bucket.call(&bucket.ask(Method::Head, ""), &Body::None);
                bucket.note(end.err().as_ref());
            });
        }
    }

    /// Keeps in mind whether the site is there.
    pub(crate) fn note(&self, refusal: Option<&Refusal>) {
        let account = &self.endpoint.account;
        match refusal {
            Some(refusal) if refusal.is_gone => account.is_gone_now(),
            Some(refusal) if refusal.status == 0 => {}
            _ => account.is_there_now(),
        }
    }
}

impl Refusal {
    /// Whether another site may have the answer.
    fn leaves_to_next(&self) -> bool {
        self.is_gone || self.status == 404
    }
}

/// One error of all sites: that of one that is gone, where one is, since it may have the object.
fn joined(mut all: Vec<(Bucket, Refusal)>) -> Refusal {
    let words: Vec<_> = all.iter().map(|(bucket, refusal)| (bucket.site_name(), &refusal.error)).collect();
    let each = of_each(&words);
    let at = all.iter().position(|(_, refusal)| refusal.is_gone).unwrap_or(0);
    let (_, mut refusal) = all.swap_remove(at);
    refusal.error = refusal.error.with("sites", each);
    refusal
}

/// What each site says: `near: …; far: …`.
pub(crate) fn of_each(all: &[(Option<&str>, &Error)]) -> String {
    let each = all.iter().map(|(name, error)| format!("{}: {}", name.unwrap_or("?"), error.message()));
    each.collect::<Vec<_>>().join("; ")
}

/// Other sites, and why they have not the same bytes.
pub(crate) type Others = Vec<(String, String)>;

/// The error of a read that began at one site and cannot go on at the others.
pub(crate) fn cannot_go_on(from: &str, cause: &Error, others: &Others, url: &ObjectUrl) -> Error {
    let text = format!(
        "cannot read the object: site {from} does not answer any more, and no other one has the same bytes"
    );
    let kind = if cause.kind() == ErrorKind::NotFound { ErrorKind::Busy } else { cause.kind() };
    let each = others.iter().map(|(name, why)| format!("{name}: {why}")).collect::<Vec<_>>().join("; ");
    let error = Error::new(kind, text).with("sites", format!("{from}: {}; {each}", cause.message()));
    let folder = url.key.rsplit_once('/').map_or("", |(folder, _)| folder);
    let at = |site: &str| {
        let there = ObjectUrl { site: Some(site.to_owned()), ..url.with_key(folder) };
        forebay_error::quoted(&there.to_string())
    };
    others.iter().fold(error, |error, (other, _)| {
        error.hint(format!("compare the sites: forebay s3 sync --dryrun {} {}", at(from), at(other)))
    })
}
