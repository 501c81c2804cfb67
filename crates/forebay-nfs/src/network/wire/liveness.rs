//! Signs of life of a server, for a receiving thread: replies, parts of replies, or other bytes.

use std::mem::take;
use std::time::{Duration, Instant};

use crate::protocol::xdr::Malformed;

/// How often a wire's thread looks how long calls have waited, whatever comes meanwhile.
pub(super) const CHECK_INTERVAL: Duration = Duration::from_millis(250);

/// Consecutive replies to unknown calls before the connection is dropped. Chosen: more than any wire has calls.
const MAX_STRANGE: u32 = 1024;

/// A server is not silent while at least this many bytes of a reply come, or of calls go, within each silence. Chosen: a drip is less,
/// any link more.
const PROGRESS_BYTES: usize = 16 << 10;

/// The connection, as it looks from here.
pub(super) struct Liveness {
    /// How often to look how long calls have waited, and when to do it next: a look at each reply costs more than the reply.
    every: Duration,
    due: Instant,
    /// A reply of ours has come since it was looked at.
    is_answered: bool,
    /// Replies to unknown calls since the last one to a known call.
    strange: u32,
    /// A reply of ours is being received.
    is_receiving: bool,
    /// Bytes of such that have come since `progress`, which is when they were last enough.
    bytes: usize,
    progress: Instant,
    /// Bytes of calls that had reached the server's side when they were last enough, and when that was.
    taken: (u64, Instant),
}

impl Liveness {
    pub(super) fn new(every: Duration) -> Self {
        let now = Instant::now();
        Self {
            every,
            due: now + every,
            is_answered: false,
            strange: 0,
            is_receiving: false,
            bytes: 0,
            progress: now,
            taken: (0, now),
        }
    }

    /// Bytes came.
    #[inline]
    pub(super) const fn received(&mut self, bytes: usize) {
        if self.is_receiving {
            self.bytes = self.bytes.saturating_add(bytes);
        }
    }

    /// What comes from now on is of a reply of ours, which its number tells.
    #[inline]
    pub(super) const fn receives(&mut self) {
        self.is_receiving = true;
    }

    /// A reply of ours has come.
    #[inline]
    pub(super) const fn answered(&mut self) {
        (self.strange, self.is_receiving, self.is_answered) = (0, false, true);
    }

    /// A reply to an unknown call has come.
    pub(super) fn strange(&mut self) -> Result<(), Malformed> {
        self.strange += 1;
        if self.strange > MAX_STRANGE {
            return Err(Malformed("replies to calls that were not made, one after the other"));
        }
        Ok(())
    }

    /// Whether a reply of ours is being received.
    pub(super) const fn is_receiving(&self) -> bool {
        self.is_receiving
    }

    /// Whether it is time to look how long calls have waited.
    #[inline]
    pub(super) fn is_due(&self, now: Instant) -> bool {
        now >= self.due
    }

    /// It is looked at now. When the server last showed that it answers, and whether it did so since the last look.
    pub(super) fn check(&mut self, last_reply: Instant, now: Instant) -> (Instant, bool) {
        self.due = now + self.every;
        let mut is_news = take(&mut self.is_answered);
        if self.bytes >= PROGRESS_BYTES {
            (self.bytes, self.progress, is_news) = (0, now, true);
        }
        (last_reply.max(self.progress), is_news)
    }

    /// This many bytes of calls have reached the server's side. When they were last enough for a sign of life of the way there: the server
    /// may be dead behind it.
    pub(super) const fn taken(&mut self, bytes: u64, now: Instant) -> Instant {
        if bytes.saturating_sub(self.taken.0) >= PROGRESS_BYTES as u64 {
            self.taken = (bytes, now);
        }
        self.taken.1
    }
}
