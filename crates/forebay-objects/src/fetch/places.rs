//! The sites that have the same bucket, and which of them has the same bytes.

use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex};
use std::time::Instant;

use forebay_error::{Error, Result};

use super::route::Route;
use super::target::Target;
use crate::account::GONE;
use crate::calls::sites::{Others, PATIENCE, cannot_go_on};
use crate::calls::{Bucket, ObjectHead};
use crate::lock;

/// The sites that an object may be read from.
pub(crate) struct Sites {
    pub(super) bucket: Bucket,
    /// The checksum of the object that was opened.
    crc64: Option<String>,
    /// One is looked for: no range begins.
    pub(super) is_looking: AtomicBool,
    /// The nearest one is looked at, or has other bytes.
    pub(super) is_looking_back: AtomicBool,
    /// Sites that have not the same bytes, and when they were asked.
    others: Mutex<Option<(Instant, Others)>>,
}

impl Sites {
    /// Those of a bucket, for an object that was opened at one of them.
    pub(crate) fn new(bucket: Bucket, at: &Bucket, crc64: Option<String>) -> Self {
        // The nearest one has not the object, or is gone and may have it.
        let is_missing = at.site_name() != bucket.site_name() && !bucket.endpoint.account.is_gone();
        let (is_looking, is_looking_back) = (AtomicBool::new(false), AtomicBool::new(is_missing));
        Self { bucket, crc64, is_looking, is_looking_back, others: Mutex::default() }
    }

    /// Why reads never go on at another site.
    pub(crate) fn why_none(&self) -> Option<&'static str> {
        self.crc64.is_none().then_some("the server gave no CRC-64/NVME to compare with")
    }

    /// Why an object is not known to be the same; `None`: it is.
    fn differs(&self, head: &ObjectHead, len: u64) -> Option<&'static str> {
        match (&self.crc64, head.crc64()) {
            _ if head.len != len => Some("it has an object of another length"),
            (Some(ours), Some(theirs)) if ours == theirs => None,
            (Some(_), Some(_)) => Some("it has an object with another CRC-64/NVME"),
            (None, _) => Some("the first site gave no CRC-64/NVME to compare with"),
            (_, None) => Some("it gives no CRC-64/NVME to compare"),
        }
    }

    /// Where the same bytes are at this site, or why they are not; `None`: it is gone.
    pub(super) fn at(&self, bucket: &Bucket, target: &Target) -> Result<Option<Arc<Route>>, String> {
        let bucket = bucket.clone().hasty(PATIENCE);
        let end = bucket.head_here(&target.key, None);
        bucket.note(end.as_ref().err());
        let head = match end {
            Ok(head) => head,
            Err(refusal) if refusal.is_gone => return Ok(None),
            Err(refusal) => return Err(refusal.error.message().to_owned()),
        };
        if let Some(why) = self.differs(&head, target.len) {
            return Err(why.to_owned());
        }
        let endpoint = bucket.endpoint_now().map_err(|error| error.message().to_owned())?;
        Ok(Some(Arc::new(Route::new(endpoint, Target { version: None, etag: head.etag, ..target.clone() }))))
    }

    /// Where the same bytes are, beside the site that failed; `None`: no other one is known to have them, and that one may come back. An
    /// error where it `has_lost` the object, so that nobody has it.
    pub(super) fn elsewhere(
        &self,
        from: &Route,
        cause: &Error,
        has_lost: bool,
    ) -> Result<Option<Arc<Route>>> {
        if !has_lost && lock(&self.others).as_ref().is_some_and(|(asked, _)| asked.elapsed() < GONE) {
            return Ok(None);
        }
        let name = from.endpoint().account.site_name();
        let (mut others, mut is_any_gone) = (Others::new(), false);
        for bucket in self.bucket.at_sites()?.into_iter().filter(|bucket| bucket.site_name() != name) {
            match self.at(&bucket, &from.target) {
                Ok(Some(route)) => {
                    *lock(&self.others) = None;
                    return Ok(Some(route));
                }
                Ok(None) => is_any_gone = true,
                Err(why) => others.push((bucket.site_name().unwrap_or("?").to_owned(), why)),
            }
        }
        if has_lost && !is_any_gone && !others.is_empty() {
            return Err(cannot_go_on(name.unwrap_or("?"), cause, &others, &from.target.url()));
        }
        // One that is gone may be back soon.
        *lock(&self.others) = (!is_any_gone && !others.is_empty()).then(|| (Instant::now(), others));
        Ok(None)
    }

    /// The error of a read that failed at a site for good: with what the other sites have.
    pub(super) fn explained(&self, from: &Route, error: Error) -> Error {
        let account = &from.endpoint().account;
        let others = lock(&self.others);
        match (&*others, account.is_gone()) {
            (Some((_, others)), true) => {
                cannot_go_on(account.site_name().unwrap_or("?"), &error, others, &from.target.url())
            }
            _ => error,
        }
    }
}
