//! The state of a receiving thread: replies received, the reason of its wake-up, and the error of its connection.

use std::sync::Arc;
use std::time::{Duration, Instant};

use forebay_error::{Error, ErrorKind};

use super::liveness::Liveness;
use crate::network::job::{IoJob, NextStep};
use crate::protocol::xdr::Malformed;

/// Replies that are taken under one lock, and the work left after it.
pub(super) struct ReplyBatch {
    /// When the last ones came.
    pub(super) last_reply: Instant,
    pub(super) liveness: Liveness,
    pub(super) ended: Vec<(Arc<IoJob>, NextStep)>,
    /// Entries are free, and parts wait.
    pub(super) made_room: bool,
    /// The session that a call was refused in.
    pub(super) lost_session: Option<u32>,
    /// Why the connection was ended: a key of its could not be.
    pub(super) kept_key: Option<Error>,
}

impl ReplyBatch {
    /// `every`: how often to look how long calls have waited.
    pub(super) fn new(every: Duration) -> Self {
        Self {
            last_reply: Instant::now(),
            liveness: Liveness::new(every),
            ended: Vec::new(),
            made_room: false,
            lost_session: None,
            kept_key: None,
        }
    }

    /// Whether nothing is left to do.
    pub(super) const fn is_done(&self) -> bool {
        !self.made_room && self.ended.is_empty() && self.lost_session.is_none()
    }

    #[inline]
    pub(super) fn end(&mut self, job: Arc<IoJob>, next: impl FnOnce(&IoJob) -> NextStep) {
        match next(&job) {
            NextStep::Wait => {}
            next => self.ended.push((job, next)),
        }
    }
}

/// What ended a wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WakeReason {
    /// The connection has something.
    Readable,
    /// A caller queued a call, or the connection is to close.
    Signalled,
    /// The time is over.
    TimedOut,
}

/// Why a connection is of no use any more.
pub(super) enum WireLost {
    /// Nothing is to be done.
    Idle,
    /// It broke.
    Broken(Error),
    /// The server sends what is no reply.
    BadReply(Malformed),
    /// Another connection would not help.
    Refused(Error),
    /// No memory may be locked for one, but others work.
    NoLockedMemory,
}

impl WireLost {
    /// The address is not used any more.
    pub(super) fn of_left() -> Self {
        Self::Broken(Error::new(ErrorKind::Io, "the address of the connection is left out"))
    }
}

impl From<Malformed> for WireLost {
    fn from(malformed: Malformed) -> Self {
        Self::BadReply(malformed)
    }
}
