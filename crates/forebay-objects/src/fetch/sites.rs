//! Sites that have the same bucket: a read that was begun at one goes on at another where that one has the same bytes.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Release};
use std::time::Instant;

use forebay_error::{Error, Result};
use forebay_sys::threads;

use super::object::{ObjectFetch, Target};
use super::route::Route;
use crate::calls::sites::{PATIENCE, cannot_go_on};
use crate::calls::{Bucket, ObjectHead};

/// The sites that an object may be read from.
pub(crate) struct Sites {
    bucket: Bucket,
    /// The checksum of the object that was opened.
    crc64: Option<String>,
    /// One is looked for: no range begins.
    is_looking: AtomicBool,
    /// The nearest one is looked at, or has other bytes.
    is_looking_back: AtomicBool,
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
    fn at(&self, bucket: Bucket, target: &Target) -> Result<Option<Arc<Route>>, String> {
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
    fn elsewhere(&self, from: &Route, cause: &Error) -> Result<Option<Arc<Route>>> {
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

impl ObjectFetch {
    /// Whether another site is looked for.
    pub(super) fn is_looking(&self) -> bool {
        self.sites.as_ref().is_some_and(|sites| sites.is_looking.load(Acquire))
    }

    /// A range failed. Whether its bytes may be asked for at another site: its own one is gone, or has the object no more.
    pub(super) fn leaves_site(&self, route: &Arc<Route>, error: &Error, is_removed: bool) -> bool {
        let Some(sites) = &self.sites else { return false };
        if !Arc::ptr_eq(route, &self.route()) {
            return true;
        }
        if !is_removed && !route.is_gone(error) {
            return false;
        }
        if !is_removed {
            route.endpoint().account.is_gone_now();
        }
        if sites.is_looking.swap(true, AcqRel) {
            return true;
        }
        let (myself, route, error) = (self.myself(), route.clone(), error.clone());
        let begun = threads::spawn("forebay-site", move || {
            let Some(object) = myself.upgrade() else { return };
            let end = object.move_on(&route, &error);
            if let Err(error) = &end {
                object.fail_all(error);
            }
            object.looked();
        });
        if begun.is_err() {
            sites.is_looking.store(false, Release);
        }
        begun.is_ok()
    }

    /// Goes on at another site that has the same bytes. Whether there is one; an error: the others have other bytes, or none.
    pub(super) fn move_on(&self, from: &Arc<Route>, cause: &Error) -> Result<bool> {
        let Some(sites) = &self.sites else { return Ok(false) };
        if !Arc::ptr_eq(from, &self.route()) {
            return Ok(true);
        }
        let found = sites.elsewhere(from, cause)?;
        if let Some(route) = &found {
            self.go_to(route.clone(), true);
        }
        Ok(found.is_some())
    }

    fn looked(&self) {
        if let Some(sites) = &self.sites {
            sites.is_looking.store(false, Release);
        }
        self.schedule(Instant::now());
    }

    /// Has reads go on at the nearest site again, where it is back and has the same bytes.
    pub(super) fn look_back(&self) {
        let Some(sites) = &self.sites else { return };
        let nearest = &sites.bucket.endpoint.account;
        if self.route().endpoint().account.site_name() == nearest.site_name() {
            return;
        }
        if nearest.is_gone() {
            return sites.bucket.look_at_gone();
        }
        if sites.is_looking_back.swap(true, AcqRel) {
            return;
        }
        let myself = self.myself();
        let begun = threads::spawn("forebay-site", move || {
            if let Some(object) = myself.upgrade() {
                object.return_to_nearest();
            }
        });
        sites.is_looking_back.store(begun.is_ok(), Release);
    }

    fn return_to_nearest(&self) {
        let Some(sites) = &self.sites else { return };
        let Ok(nearest) = sites.bucket.at(sites.bucket.endpoint.account.clone()) else { return };
        match sites.at(nearest, &self.target) {
            Ok(Some(route)) => self.go_to(route, false),
            Ok(None) => {}
            // Its bytes are others: it is not looked at again.
            Err(_) => return,
        }
        sites.is_looking_back.store(false, Release);
    }
}
