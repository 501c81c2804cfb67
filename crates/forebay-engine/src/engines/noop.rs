//! The engine `noop`: nothing moves. It measures forebay itself.

use std::sync::Arc;

use forebay_error::Result;

use super::{AskedBatch, Claim, Done, Engine, Known, Onward, Ran, Taken, Work};
use crate::request::receipt::{EngineKind, Moved, Way};
use crate::request::ticket::CallerPolled;
use crate::request::transfer::Transfer;

pub(crate) struct Noop;

impl Engine for Noop {
    fn kind(&self) -> EngineKind {
        EngineKind::Noop
    }

    unsafe fn run(&self, transfer: &Transfer, _known: &Known<'_>) -> Result<Ran> {
        Ok(Ran::Done(Done::new(transfer.len, all_of(transfer.len as u64))))
    }

    fn claim(&self, asked: &AskedBatch<'_>) -> Result<Claim> {
        let bytes = asked.bytes();
        Ok(Claim::Taken(Taken { work: Box::new(Nothing(bytes)), bytes, left: Vec::new(), refusal: None }))
    }
}

/// The number of bytes that do not move.
struct Nothing(u64);

impl Work for Nothing {
    fn count(&self) -> usize {
        1
    }

    fn start(self: Box<Self>, onward: Onward) -> Option<Arc<dyn CallerPolled>> {
        onward.completion.work_done(all_of(self.0));
        None
    }
}

fn all_of(bytes: u64) -> Moved {
    Moved::of(Way::Cached, bytes)
}
