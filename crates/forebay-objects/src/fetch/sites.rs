//! Sites that have the same bucket: a read that was begun at one goes on at another where that one has the same bytes.

use std::sync::Arc;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Release};
use std::time::Instant;

use forebay_error::{Error, Result};
use forebay_sys::threads;

use super::object::ObjectFetch;
use super::route::Route;

impl ObjectFetch {
    /// Whether another site is looked for.
    pub(super) fn is_looking(&self) -> bool {
        self.sites.as_ref().is_some_and(|sites| sites.is_looking.load(Acquire))
    }

    /// Why reads do not go on at another site, where there are some.
    pub(crate) fn stays_at_site(&self) -> Option<&'static str> {
        self.sites.as_ref()?.why_none()
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
            let end = object.move_on(&route, &error, is_removed);
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

    /// Goes on at another site that has the same bytes. Whether there is one.
    pub(super) fn move_on(&self, from: &Arc<Route>, cause: &Error, has_lost: bool) -> Result<bool> {
        let Some(sites) = &self.sites else { return Ok(false) };
        if !Arc::ptr_eq(from, &self.route()) {
            return Ok(true);
        }
        let found = sites.elsewhere(from, cause, has_lost)?;
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
        // The thread clears it, and may have ended by now.
        if begun.is_err() {
            sites.is_looking_back.store(false, Release);
        }
    }

    fn return_to_nearest(&self) {
        let Some(sites) = &self.sites else { return };
        let Ok(nearest) = sites.bucket.at(sites.bucket.endpoint.account.clone()) else { return };
        match sites.at(&nearest, &self.target) {
            Ok(Some(route)) => self.go_to(route, false),
            Ok(None) => {}
            // Its bytes are others: it is not looked at again.
            Err(_) => return,
        }
        sites.is_looking_back.store(false, Release);
    }
}
