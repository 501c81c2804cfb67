//! The sites that have the same bucket, and which of them has the same bytes.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use forebay_error::{Error, Result};

use super::route::Route;
use super::target::Target;
use crate::calls::sites::{PATIENCE, cannot_go_on};
use crate::calls::{Bucket, ObjectHead};

/// The sites that an object may be read from.
pub(crate) struct Sites {
    pub(super) bucket: Bucket,
    /// The checksum of the object that was opened.
    crc64: Option<String>,
    /// One is looked for: no range begins.
    pub(super) is_looking: AtomicBool,
    /// The nearest one is looked at, or has other bytes.
    pub(super) is_looking_back: AtomicBool,
}

impl Sites {
    /// Those of a bucket, for an object that was opened at one of them.
    pub(crate) fn new(bucket: Bucket, at: &Bucket, crc64: Option<String>) -> Self {
        // The nearest one has not the object, or is gone and may have it.
        let is_missing = at.site_name() != bucket.site_name() && !bucket.endpoint.account.is_gone();
        let (is_looking, is_looking_back) = (AtomicBool::new(false), AtomicBool::new(is_missing));
        Self { bucket, crc64, is_looking, is_looking_back }
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
    pub(super) fn at(&self, bucket: Bucket, target: &Target) -> Result<Option<Arc<Route>>, String> {
        let bucket = bucket.hasty(PATIENCE);
        let end = bucket.head_here(&target.key, None);
        bucket.note(end.as_ref().err());
        let said = |text: &str| format!("{}: {text}", bucket.site_name().unwrap_or("?"));
        let head = match end {
            Ok(head) => head,
            Err(refusal) if refusal.is_gone => return Ok(None),
            Err(refusal) => return Err(said(refusal.error.message())),
        };
        if let Some(why) = self.differs(&head, target.len) {
            return Err(said(why));
        }
        let endpoint = bucket.endpoint_now().map_err(|error| said(error.message()))?;
        Ok(Some(Arc::new(Route::new(endpoint, Target { version: None, etag: head.etag, ..target.clone() }))))
    }

    /// Where the same bytes are, beside the site that failed. `None`: all others are gone, too.
    pub(super) fn elsewhere(&self, from: &Route, cause: &Error) -> Result<Option<Arc<Route>>> {
        let name = from.endpoint().account.site_name();
        let mut others = Vec::new();
        for bucket in self.bucket.at_sites()?.into_iter().filter(|bucket| bucket.site_name() != name) {
            match self.at(bucket, &from.target) {
                Ok(Some(route)) => return Ok(Some(route)),
                Ok(None) => {}
                Err(why) => others.push(why),
            }
        }
        if others.is_empty() {
            return Ok(None);
        }
        Err(cannot_go_on(name.unwrap_or("?"), cause, &others.join("; ")))
    }
}
