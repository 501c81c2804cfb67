//! What dialects have in common.

use forebay_error::Error;

use super::memory::HostRegion;
use super::operation::{NotMoved, Operation};
use super::reached::{NoSession, Reached};
use crate::wire::call::ReplyHead;

/// How a server moves bytes by RDMA. Its functions wait: threads of the peer call them.
pub(super) trait Dialect: Send + Sync {
    /// As receipts have it.
    fn name(&self) -> &'static str;

    fn reached(&self) -> &Reached;

    /// Bytes of an operation at most.
    fn most_bytes(&self) -> u64;

    /// Whether an operation can be a part of an upload.
    fn takes_parts(&self) -> bool;

    /// Moves an operation's bytes. Nothing of the server's arrives behind it, unless a key lives on.
    fn transfer(&self, operation: &Operation) -> Ended;

    /// Ends sessions that have ended at the other side, or are idle for long. Whether there are others.
    fn look_after(&self) -> Result<bool, Error>;

    /// Why there are fewer sessions than operations.
    fn shortage(&self) -> Option<Error>;
}

/// An operation that a dialect has ended.
pub(super) struct Ended {
    pub(super) end: End,
    /// Memory whose key could not be ended: sessions of its domain can use it.
    pub(super) kept: Option<HostRegion>,
}

/// How.
pub(super) enum End {
    /// All bytes are where they belong.
    Moved(ReplyHead),
    /// None moved, which says no more than that of other operations.
    Not(NotMoved),
    /// The server does not move these by RDMA, and its reason.
    Declined(&'static str),
    /// The server's reply is not believed, and why.
    Wrong(&'static str),
    /// The server stored an object, and has no word of RDMA for it.
    Unknown,
    /// There is no session.
    NoSession(NoSession),
}

/// An attempt that has failed.
pub(super) struct Failed {
    pub(super) ended: Box<Ended>,
    /// Another one may go well, once.
    pub(super) is_again: bool,
}

impl From<Ended> for Failed {
    fn from(ended: Ended) -> Self {
        Self { ended: Box::new(ended), is_again: false }
    }
}

impl From<End> for Failed {
    fn from(end: End) -> Self {
        Ended::from(end).into()
    }
}

impl Failed {
    pub(super) fn again(ended: Ended, is_again: bool) -> Self {
        Self { ended: Box::new(ended), is_again }
    }
}

/// Does it, and once more where that may help.
pub(super) fn twice(attempt: impl Fn() -> Result<ReplyHead, Failed>) -> Ended {
    let first = match attempt() {
        // Memory that others can use has no second attempt.
        Err(failed) if failed.is_again && failed.ended.kept.is_none() => attempt(),
        ended => ended,
    };
    match first {
        Ok(head) => End::Moved(head).into(),
        Err(failed) => *failed.ended,
    }
}

impl From<End> for Ended {
    fn from(end: End) -> Self {
        Self { end, kept: None }
    }
}

impl Ended {
    /// No session uses the memory: its key ends, and the operation behind it.
    pub(super) fn behind(region: Option<HostRegion>, end: End) -> Self {
        let kept = region.and_then(|mut region| region.end().err().map(|error| (region, error)));
        match kept {
            None => end.into(),
            Some((region, error)) => Self::kept(region, error),
        }
    }

    /// The key lives on.
    pub(super) fn kept(region: HostRegion, error: Error) -> Self {
        Self { end: End::Not(NotMoved::Failed(error)), kept: Some(region) }
    }
}
