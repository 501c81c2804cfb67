//! How long a wire's thread waits, and its calls: until the server is silent, or the time is over.

use std::time::{Duration, Instant};

use forebay_error::{Error, ErrorKind};

use super::base::{State, Wire};
use super::replies::{Lost, ReplyBatch, WakeReason};
use crate::outage;

/// A reply that is lost among others is noticed by then, or after twice the silence. Chosen.
const MAX_OVERTAKEN: Duration = Duration::from_mins(2);

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
            && !batch.liveness.is_due(now, self.check_interval);
        if is_lively { Ok(self.check_interval) } else { self.limit(state, batch, now, idle_since) }
    }

    /// Looks how long calls have waited, behind a reply: where replies come faster than they are taken, nothing waits for them.
    #[inline]
    pub(super) fn check(&self, state: &State, batch: &mut ReplyBatch) -> Result<(), Lost> {
        let now = batch.last_reply;
        if !batch.liveness.is_due(now, self.check_interval) || state.table.is_idle() {
            return Ok(());
        }
        self.limit(state, batch, now, now).map(drop)
    }

    fn limit(
        &self,
        state: &State,
        batch: &mut ReplyBatch,
        now: Instant,
        idle_since: Instant,
    ) -> Result<Duration, Lost> {
        let alive = batch.liveness.check(batch.last_reply, now);
        if alive == now {
            self.server.outage.heard(now);
        }
        let (options, limits) = (&self.server.options, self.server.wait_limits());
        let silence = limits.0;
        // A call that comes while this thread sleeps, and is sent at once, wakes nobody: its silence is seen in time.
        let mut limit = options.idle.min(silence);
        if let Some(oldest) = state.table.oldest_asked() {
            // A call that came after a pause is waited for from then on.
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
