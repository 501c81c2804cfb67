//! How calls end: answered, sent again, or given up.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use forebay_error::Error;

use super::base::{SharedWires, Wire, WireState};
use super::call::{CallState, WireCall};
use super::link::WireLink;
use super::replies::{ReplyBatch, WireLost};
use crate::lock;
use crate::network::connect::lacks_low_port;
use crate::network::job::JobPart;
use crate::protocol::io_call::IoReply;
use crate::protocol::status::NfsStatus;
use crate::protocol::v4::SequenceSlot;
use crate::protocol::xdr::Malformed;

impl Wire {
    /// The call that a reply is of, which is being received from now on.
    pub(super) fn claim(
        &self,
        xid: u32,
    ) -> Result<Option<(usize, JobPart, Option<SequenceSlot>)>, Malformed> {
        let mut state = lock(&self.state);
        let Some(index) = state.table.find(xid)? else { return Ok(None) };
        let call = &mut state.table.calls[index];
        call.state = CallState::Receiving;
        Ok(call.part.map(|part| (index, part, call.place)))
    }

    /// Goes on with a call that was answered. What it makes is sent by the next `WireState::send_queued`.
    pub(super) fn answered(
        &self,
        shared: &SharedWires,
        state: &mut WireState,
        (index, reply): (usize, IoReply),
        batch: &mut ReplyBatch,
    ) {
        let traffic = &shared.traffic;
        state.table.count_reply();
        batch.liveness.answered();
        // Otherwise it ends with the others, at the next check of how long calls have waited.
        if self.server.clock.is_in_doubt() {
            self.server.clock.heard(batch.last_reply);
        }
        let took = batch.last_reply.saturating_duration_since(state.table.calls[index].asked);
        forebay_source::round_trip(took);
        match reply {
            IoReply::Committed { .. } => {
                traffic.commits.fetch_add(1, Ordering::Relaxed);
                traffic.commit_nanos.fetch_add(took.as_nanos() as u64, Ordering::Relaxed)
            }
            IoReply::Read { count, .. } => traffic.read.fetch_add(count.into(), Ordering::Relaxed),
            IoReply::Written { count, .. } => traffic.written.fetch_add(count.into(), Ordering::Relaxed),
            _ => 0,
        };
        if let Some(WireLink::Rdma(link)) = &mut state.link {
            // The server reaches the memory no more: by its key, or by any key of a connection that is gone.
            batch.kept_key = link.release(index).err();
            if batch.kept_key.is_some() {
                state.link = None;
            }
        }
        let (error, next) = match reply {
            IoReply::Failed(status) | IoReply::SequenceRefused(status) => {
                let is_of_slot = matches!(reply, IoReply::SequenceRefused(_));
                let Some(error) = self.refused(shared, state, (index, status, is_of_slot), batch) else {
                    return;
                };
                (Some(error), None)
            }
            IoReply::Rejected(rejected) => (Some(rejected.error(doing(state, index))), None),
            moved => {
                let limits = (self.keeps_entries() && !shared.queue.has_parts()).then_some(shared.limits);
                match state.table.note_reply(index, moved, limits, batch.last_reply) {
                    None => match state.table.ask(&self.server, index, batch.last_reply) {
                        Ok(()) => return,
                        // The entry has the bytes of the call before, which must not be sent again for this part.
                        Err(malformed) => (Some(malformed.into()), None),
                    },
                    next => (None, next),
                }
            }
        };
        if let Some(job) = state.table.end(index) {
            batch.end(job, |job| next.unwrap_or_else(|| job.ended(error)));
        }
        self.refill(shared, state, index, batch);
    }

    /// The server has refused a call, or its place in a slot; `None`: it is asked again.
    fn refused(
        &self,
        shared: &SharedWires,
        state: &mut WireState,
        (index, status, is_of_slot): (usize, NfsStatus, bool),
        batch: &mut ReplyBatch,
    ) -> Option<Error> {
        let has_time = state.table.calls[index].began.elapsed() < self.server.options.deadline;
        if status.is_to_wait() {
            if is_of_slot {
                state.table.take_back_place(index);
            }
            if !has_time {
                return Some(status.error(doing(state, index), self.server.who.uid()));
            }
            shared.traffic.waited.fetch_add(1, Ordering::Relaxed);
            state.table.park(index);
            return None;
        }
        let is_lost = status.is_session_lost() && self.server.version.has_session();
        if !has_time || !is_lost && !status.is_uncached() {
            return Some(self.error(state, index, status));
        }
        if is_lost {
            batch.lost_session = Some(state.table.calls[index].epoch());
        }
        state.table.again(index);
        None
    }

    /// The error of a call that failed with this status.
    fn error(&self, state: &WireState, index: usize, status: NfsStatus) -> Error {
        let doing = doing(state, index);
        match &state.link {
            Some(WireLink::Tcp(stream))
                if status.is_refusal() && self.server.options.low_ports && lacks_low_port(stream) =>
            {
                NfsStatus::without_low_port(doing)
            }
            _ => status.error(doing, self.server.who.uid()),
        }
    }

    /// Gives a free entry to the next part that waits.
    #[inline]
    fn refill(&self, shared: &SharedWires, state: &mut WireState, index: usize, batch: &mut ReplyBatch) {
        if !shared.queue.is_empty() && self.keeps_entries() {
            let mut put = Ok(false);
            shared.queue.take(1, shared.limits, |job, part| {
                put = state
                    .table
                    .put(&self.server, index, (job.clone(), part), batch.last_reply)
                    .map(|()| true);
                if let Err(malformed) = put {
                    batch.end(job, |job| job.ended(Some(malformed.into())));
                }
            });
            if put == Ok(true) {
                return;
            }
        }
        self.release(1);
        // Room is made before what waits is looked for: see `SharedWires::feed`.
        batch.made_room |= !shared.queue.is_empty();
    }

    /// Does what a batch left. The next calls have gone: a wire that has nothing to do waits for nobody.
    pub(super) fn finish(&self, shared: &Arc<SharedWires>, batch: &mut ReplyBatch) -> Result<(), WireLost> {
        if std::mem::take(&mut batch.made_room) {
            shared.feed();
        }
        for (job, next) in batch.ended.drain(..) {
            shared.follow(&job, next);
        }
        batch.lost_session.take().map_or(Ok(()), |epoch| self.server.renew(epoch).map_err(WireLost::Refused))
    }

    /// Ends all calls with an error. There is no connection.
    pub(super) fn fail_all(&self, shared: &Arc<SharedWires>, error: &Error) {
        self.fail(shared, |_| true, error);
    }

    /// Ends calls with an error that have waited for long enough, and after the first of a silent server the calls
    /// queued behind them. Later calls have their own time. There is no connection.
    pub(super) fn fail_given_up(&self, shared: &Arc<SharedWires>, error: &Error) {
        let (now, limits, clock) = (Instant::now(), self.server.wait_limits(), &self.server.clock);
        if clock.is_given_up(now, limits) {
            shared.queue.fail(error, |job| clock.gives_up(job.asked(), now, limits));
        }
        let is_over = |call: &WireCall| {
            now.saturating_duration_since(call.began) >= limits.deadline
                || clock.gives_up(call.began, now, limits)
        };
        self.fail(shared, is_over, error);
    }

    /// Ends some calls with an error. There is no connection.
    pub(super) fn fail(&self, shared: &Arc<SharedWires>, which: impl Fn(&WireCall) -> bool, error: &Error) {
        let now = Instant::now();
        for index in 0..self.depth {
            let ended = {
                let mut state = lock(&self.state);
                let call = &state.table.calls[index];
                // A caller that was just told may have begun another one.
                if call.state == CallState::Free || call.began > now || !which(call) {
                    continue;
                }
                state.table.end(index)
            };
            self.release(1);
            if let Some(job) = ended {
                let next = job.ended(Some(error.clone()));
                shared.follow(&job, next);
            }
        }
        shared.feed();
    }
}

fn doing(state: &WireState, index: usize) -> &'static str {
    use crate::protocol::io_call::IoOperation;
    match state.table.calls[index].part.map(|part| part.io.operation) {
        Some(IoOperation::Write { .. }) => "cannot write",
        Some(IoOperation::Commit) => "cannot make the file durable",
        _ => "cannot read",
    }
}
