//! How long a wire's thread waits, and its calls: until the server is silent, or the time is over.

use std::time::{Duration, Instant};

use forebay_error::{Error, ErrorKind};
use forebay_remote::stop;

use super::base::{Wire, WireState};
use super::replies::{ReplyBatch, WakeReason, WireLost};
use super::table::CallTable;

/// A reply that is lost among others is noticed by then, or after twice the silence, once enough of them have come. Chosen.
const MAX_OVERTAKEN: Duration = Duration::from_mins(2);

impl Wire {
    /// How long to wait at most, after what woke the thread last. `idle_since`: when this wait began.
    pub(super) fn next_wait(
        &self,
        state: &mut WireState,
        batch: &mut ReplyBatch,
        reason: WakeReason,
        idle_since: Instant,
    ) -> Result<Duration, WireLost> {
        let now = Instant::now();
        state.sleeps_idle = false;
        // A server that answers all the time needs no check of each call's time.
        let is_lively = reason != WakeReason::TimedOut
            && !state.is_closing
            && !state.table.has_parked()
            && !batch.liveness.is_due(now);
        if is_lively { Ok(self.check_interval) } else { self.limit(state, batch, now, idle_since) }
    }

    /// Looks how long calls have waited, behind a reply: where replies come faster than they are taken, nothing waits for them.
    #[inline]
    pub(super) fn check(&self, state: &mut WireState, batch: &mut ReplyBatch) -> Result<(), WireLost> {
        let now = batch.last_reply;
        if !batch.liveness.is_due(now) || state.table.is_idle() {
            return Ok(());
        }
        self.limit(state, batch, now, now).map(drop)
    }

    fn limit(
        &self,
        state: &mut WireState,
        batch: &mut ReplyBatch,
        now: Instant,
        idle_since: Instant,
    ) -> Result<Duration, WireLost> {
        let (alive, is_news) = batch.liveness.check(batch.last_reply, now);
        if is_news {
            self.server.clock.heard(alive);
        }
        let idle = self.server.options.idle;
        let mut limit = idle;
        if let Some(oldest) = state.table.oldest_asked() {
            let alive = alive.max(batch.liveness.taken(state.bytes_taken(), now)).max(oldest);
            // What a slow link brings is not cut off for what it has not brought yet.
            let overtaken = state.table.oldest_overtaken().filter(|_| !batch.liveness.is_receiving());
            limit = limit.min(self.silence_left(&state.table, (alive, overtaken), now)?);
        } else if state.table.is_idle() {
            if state.is_closing || idle_since.elapsed() >= idle {
                return Err(WireLost::Idle);
            }
            limit = limit.min(idle.saturating_sub(idle_since.elapsed()));
            state.sleeps_idle = true;
        }
        if let Some(until) = state.table.next_parked() {
            limit = limit.min(until.saturating_duration_since(now));
        }
        if !state.table.is_idle() {
            if stop::is_stopped() {
                return Err(WireLost::Broken(stop::stopped()));
            }
            limit = limit.min(self.check_interval);
        }
        Ok(limit)
    }

    /// How long calls that were asked are still waited for, on this connection: `alive` is when the server last showed that it answers,
    /// or the first of them was asked; `overtaken` when one was whose reply may be lost.
    fn silence_left(
        &self,
        table: &CallTable,
        (alive, overtaken): (Instant, Option<Instant>),
        now: Instant,
    ) -> Result<Duration, WireLost> {
        let limits = self.server.wait_limits();
        let silence = limits.silence;
        let left =
            |since: Instant, most| Duration::saturating_sub(most, now.saturating_duration_since(since));
        self.server.clock.waits(now);
        let mut least = left(alive, silence);
        if let Some(asked) = overtaken {
            least = least.min(left(asked, self.overtaken_limit(silence)));
        }
        if let Some(began) = table.oldest() {
            least = least.min(self.server.clock.left(began, now, limits));
        }
        if least.is_zero() {
            return Err(WireLost::Broken(Error::new(ErrorKind::Timeout, "the server is silent")));
        }
        Ok(least)
    }

    /// How long a call may go unanswered while later ones are answered: a server that answers one of them within each silence gets to it
    /// by then.
    fn overtaken_limit(&self, silence: Duration) -> Duration {
        (silence * (self.depth as u32 + 1)).min(MAX_OVERTAKEN.max(silence * 2))
    }
}
