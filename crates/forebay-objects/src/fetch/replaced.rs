//! An object that was replaced while it was read.

use std::sync::Arc;

use forebay_error::Result;

use super::object::ObjectFetch;
use super::plan::RangeId;
use super::route::Route;
use crate::calls::etag::replaced;
use crate::wire::call::{Body, ReplyHead, Room, Sink};

/// The head of the object that is there now; a range of the one that was opened waits for it.
struct Look {
    object: Arc<ObjectFetch>,
    route: Arc<Route>,
    range: RangeId,
    found: Option<String>,
}

/// Looks what is there now, and fails all that was asked of the object.
pub(super) fn look(object: Arc<ObjectFetch>, route: Arc<Route>, range: RangeId) {
    let mut ask = route.target.ask(None);
    ask.query.clear();
    let network = route.endpoint().network.clone();
    let look = Look { object, route, range, found: None };
    network.start(ask, Body::None, Box::new(look));
}

impl Sink for Look {
    fn head(&mut self, head: ReplyHead) -> Result<()> {
        let is_there = head.status == 200;
        self.found = Some(if is_there {
            head.header("etag").unwrap_or("unknown").to_owned()
        } else {
            "removed".to_owned()
        });
        Ok(())
    }

    fn room(&mut self) -> Room {
        Room::Enough
    }

    fn filled(&mut self, _: usize) {}

    fn end(self: Box<Self>, _: Result<()>) {
        let error = replaced(self.route.target.etag.as_deref(), self.found.as_deref());
        self.object.fail_all(&error);
        self.object.ended(self.range, &Err(error), false);
    }
}
