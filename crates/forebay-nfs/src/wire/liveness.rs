//! Whether the server is alive on one connection: what came when, and how long calls still wait for more.

use std::time::{Duration, Instant};

use forebay_error::{Error, ErrorKind};

use super::base::{State, Wire};
use super::replies::{Lost, ReplyBatch, WakeReason};
use crate::outage;
use crate::xdr::Malformed;

/// How often a wire's thread looks how long calls have waited, whatever comes meanwhile.
pub(super) const CHECK_INTERVAL: Duration = Duration::from_millis(250);

/// A reply that is lost among others is noticed by then, or after twice the silence. Chosen.
const MAX_OVERTAKEN: Duration = Duration::from_mins(2);

/// Replies in a row that are none of ours, before the connection is given up. Chosen: more than any wire has calls.
const MAX_STRANGE: u32 = 1024;

/// A server is not silent while so many bytes of a reply come within each silence. Chosen: a drip is less, any link more.
const PROGRESS_BYTES: usize = 16 << 10;

/// What a receiving thread knows of its server.
pub(super) struct Liveness {
    /// When it last looked how long calls have waited.
    checked: Instant,
    /// Replies that were none of ours, since the last one that was.
    strange: u32,
    /// A reply of ours is being received.
    is_receiving: bool,
    /// Bytes of such that have come since `progress`, which is when they were last enough.
    bytes: usize,
    progress: Instant,
}

impl Liveness {
    pub(super) fn new() -> Self {
        let now = Instant::now();
        Self { checked: now, strange: 0, is_receiving: false, bytes: 0, progress: now }
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
        (self.strange, self.is_receiving) = (0, false);
    }

    /// A reply has come that is none of ours.
    pub(super) fn strange(&mut self) -> Result<(), Malformed> {
        self.strange += 1;
        if self.strange > MAX_STRANGE {
            return Err(Malformed("replies to calls that were not made, one after the other"));
        }
        Ok(())
    }

    /// When the server last showed that it answers.
    fn alive_at(&mut self, last_reply: Instant, now: Instant) -> Instant {
        if self.bytes >= PROGRESS_BYTES {
            (self.bytes, self.progress) = (0, now);
        }
        last_reply.max(self.progress)
    }
}

impl Wire {
    /// How long to wait at most, after what woke the thread last. `idle_since`: when this wait began.
    pub(super) fn next_wait(
        &self,
        state: &State,
        batch: &mut ReplyBatch,
        reason: WakeReason,
        idle_since: Instant,
    ) -> Result<Duration, Lost> {
        let now = Instant::now();
        // Who is spoken to all the time need not look at each call's time each time.
        let is_lively = reason != WakeReason::TimedOut
            && !state.is_closing
            && !state.table.has_parked()
            && !self.is_due(batch, now);
        if is_lively { Ok(self.check_interval) } else { self.limit(state, batch, now, idle_since) }
    }

    /// Looks how long calls have waited, behind a reply: where replies come faster than they are taken, nothing waits for them.
    #[inline]
    pub(super) fn check(&self, state: &State, batch: &mut ReplyBatch) -> Result<(), Lost> {
        let now = batch.last_reply;
        if !self.is_due(batch, now) || state.table.is_idle() {
            return Ok(());
        }
        self.limit(state, batch, now, now).map(drop)
    }

    fn is_due(&self, batch: &ReplyBatch, now: Instant) -> bool {
        now.saturating_duration_since(batch.liveness.checked) >= self.check_interval
    }

    fn limit(
        &self,
        state: &State,
        batch: &mut ReplyBatch,
        now: Instant,
        idle_since: Instant,
    ) -> Result<Duration, Lost> {
        batch.liveness.checked = now;
        let (options, limits) = (&self.server.options, self.server.wait_limits());
        let silence = limits.0;
        // A call that comes while this thread sleeps, and is sent at once, wakes nobody: its silence is seen in time.
        let mut limit = options.idle.min(silence);
        if let Some(oldest) = state.table.oldest_asked() {
            // A call that came after a pause is waited for from then on.
            let alive = batch.liveness.alive_at(batch.last_reply, now);
            let unanswered = now.saturating_duration_since(alive.max(oldest));
            let age = now.saturating_duration_since(oldest);
            for (waited, most) in [(unanswered, silence), (age, self.overtaken_limit(silence))] {
                if waited >= most {
                    return Err(Lost::Broken(Error::new(ErrorKind::Timeout, "the server is silent")));
                }
                limit = limit.min(most.saturating_sub(waited));
            }
            self.server.outage.waits(now);
            let left =
                state.table.oldest().map_or(limit, |began| self.server.outage.left(began, now, limits));
            if left.is_zero() {
                return Err(Lost::Broken(Error::new(ErrorKind::Timeout, "the server is silent")));
            }
            limit = limit.min(left);
        } else if state.table.is_idle() {
            if state.is_closing || idle_since.elapsed() >= options.idle {
                return Err(Lost::Idle);
            }
            limit = limit.min(options.idle.saturating_sub(idle_since.elapsed()));
        }
        if let Some(until) = state.table.next_parked() {
            limit = limit.min(until.saturating_duration_since(now));
        }
        if !state.table.is_idle() {
            if outage::is_stopped() {
                return Err(Lost::Broken(outage::stopped()));
            }
            limit = limit.min(self.check_interval);
        }
        Ok(limit)
    }

    /// How long a call may go unanswered while others are answered: a server that answers one of them within each silence gets to it
    /// by then.
    fn overtaken_limit(&self, silence: Duration) -> Duration {
        (silence * (self.depth as u32 + 1)).min(MAX_OVERTAKEN.max(silence * 2))
    }
}
