//! A wire over RDMA: the server writes bytes of a READ into memory of the caller, and reads those of a WRITE from there. The memory is
//! registered for each call, by a key that ends before the caller gets the result.

use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use forebay_error::{Error, ErrorKind};
use forebay_verbs::{Completion, Failure, Why};

use super::base::{SharedWires, Wire, WireState};
use super::call::WireCall;
use super::call_region::CallRegion;
use super::link::WireLink;
use super::rdma_link::{PROBE, RETRY_INTERVAL, connect_in_turn, is_limit};
use super::read_reply::ReadReply;
use super::replies::{ReplyBatch, WakeReason, WireLost};
use super::signal::WakeSignal;
use super::table::CallTable;
use crate::lock;
use crate::network::job::{IoJob, JobPart};
use crate::protocol::handle::NfsVersion;
use crate::protocol::io_call::{IoOperation, IoReply};
use crate::protocol::rdma::{self, ReplyBody};
use crate::protocol::rpc;
use crate::protocol::xdr::{Malformed, XdrReader};

impl Wire {
    /// Makes a connection, and receives until it is of no use any more.
    pub(super) fn run_rdma(self: &Arc<Self>, shared: &Arc<SharedWires>, signal: &WakeSignal) -> WireLost {
        let waits = |has_others: bool| self.waits(shared, has_others);
        let connected = self
            .server
            .connect_by(self.index, |address| connect_in_turn(&self.server, address, self.depth, waits));
        match connected {
            Ok((link, destination)) => {
                let fd = link.connection.descriptor().as_raw_fd();
                // Memory of a domain that is gone: the server could not reach it.
                let is_lost = |call: &WireCall| !call.is_of(&link.domain);
                self.fail(
                    shared,
                    is_lost,
                    &Why::DeviceRemoved.error("cannot read: the RDMA device was replaced"),
                );
                self.connected(shared, (Some(WireLink::Rdma(link)), destination));
                self.receive_rdma(shared, signal, fd)
            }
            Err(error) if is_limit(&error) && shared.others(self).0 => WireLost::NoLockedMemory,
            // Nobody knows whether the NIC will lead to one again.
            Err(error) if Why::of(&error) == Some(Why::NoRoute) && self.server.leads_nowhere() => {
                WireLost::Refused(error)
            }
            Err(error) => lost(error),
        }
    }

    /// Whether to wait for memory of a connection: while others have some, or may get a connection. Once one has, it does the work.
    fn waits(&self, shared: &SharedWires, has_others: bool) -> bool {
        lock(&self.state).is_refused = true;
        let (work, are_made) = shared.others(self);
        !work && (has_others || are_made)
    }

    /// Leaves its calls to wires that have connections, and takes none for a while.
    pub(super) fn hand_over_calls(self: &Arc<Self>, shared: &Arc<SharedWires>, signal: &WakeSignal) {
        let until = Instant::now() + self.server.options.idle;
        let mut kept = 0;
        loop {
            // No more calls come where no entry is left.
            kept += self.reserve(self.depth);
            let (given, is_closing) = self.take_all_calls();
            kept += given.len();
            shared.pass_on(given);
            let left = until.saturating_duration_since(Instant::now());
            if is_closing || left.is_zero() {
                break;
            }
            // Woken by a call for which an entry was reserved before.
            signal.wait(-1, false, left);
        }
        self.release(kept);
        shared.feed();
    }

    /// Takes out all calls; and whether no more will come.
    fn take_all_calls(&self) -> (Vec<(Arc<IoJob>, JobPart)>, bool) {
        let mut state = lock(&self.state);
        let table = &mut state.table;
        let given = (0..self.depth).filter_map(|index| table.give(index)).collect();
        (given, state.is_closing)
    }

    fn receive_rdma(self: &Arc<Self>, shared: &Arc<SharedWires>, signal: &WakeSignal, fd: i32) -> WireLost {
        let mut completions = Vec::with_capacity(64);
        let (mut batch, mut reason) = (ReplyBatch::new(self.check_interval), WakeReason::Signalled);
        loop {
            let taken = self.completions(shared, &mut completions, &mut batch, reason);
            let finished = if batch.is_done() { Ok(()) } else { self.finish(shared, &mut batch) };
            reason = match taken.and_then(|taken| finished.map(|()| taken)) {
                Ok(None) => WakeReason::Readable,
                Ok(Some(limit)) => signal.wait(fd, false, limit),
                Err(lost) => return lost,
            }
        }
    }

    /// Takes completions, all that are there under one lock, until something is left to do behind it; or says how long to wait for
    /// some.
    fn completions(
        &self,
        shared: &SharedWires,
        into: &mut Vec<Completion>,
        batch: &mut ReplyBatch,
        reason: WakeReason,
    ) -> Result<Option<Duration>, WireLost> {
        let mut state = lock(&self.state);
        state.table.unpark(&self.server)?;
        self.check_destination(&mut state)?;
        state.send_queued();
        let has_timed_out = reason == WakeReason::TimedOut;
        let oldest = if has_timed_out { state.table.oldest_asked() } else { None };
        let link = loop {
            let Some(WireLink::Rdma(link)) = &mut state.link else {
                let gone = || Error::new(ErrorKind::Io, "the connection is gone");
                return Err(WireLost::Broken(batch.kept_key.take().unwrap_or_else(gone)));
            };
            if let Some(error) = link.refused.take() {
                return Err(lost(error));
            }
            let mut any = link.connection.poll(into).map_err(WireLost::Broken)?;
            if any == 0 {
                link.connection.arm().map_err(WireLost::Broken)?;
                any = link.connection.poll(into).map_err(WireLost::Broken)?;
            }
            if any == 0 {
                break link;
            }
            let now = Instant::now();
            for completion in into.drain(..) {
                self.completed(shared, &mut state, (completion, now), batch)?;
            }
            state.send_queued();
            self.check(&mut state, batch)?;
            if !batch.is_done() || state.table.has_parked() {
                return Ok(None);
            }
        };
        let last_reply = batch.last_reply;
        if let Some(why) = link.connection.down() {
            return Err(WireLost::Broken(Error::new(
                ErrorKind::Io,
                format!("the connection is down: {why:?}"),
            )));
        }
        let mut most = if has_timed_out { self.server.options.probe_after() } else { Duration::MAX };
        let may_probe = link.in_flight > 0 && !self.refuses_probes.load(Ordering::Relaxed);
        if let Some(oldest) = oldest.filter(|_| may_probe) {
            most = link.probe(last_reply.max(oldest), most);
        }
        let memlock_wait = link.memlock_wait.take();
        let waits_for_others = link.in_flight == 0;
        let limit =
            self.next_wait(&mut state, batch, reason, last_reply).map_err(|lost| match &memlock_wait {
                // With calls in flight it is the server that is silent: they are sent again, and what they had locked is free then.
                Some(error) if waits_for_others => WireLost::Refused(error.clone()),
                _ => lost,
            })?;
        Ok(Some(limit.min(if memlock_wait.is_some() { RETRY_INTERVAL } else { most })))
    }

    fn completed(
        &self,
        shared: &SharedWires,
        state: &mut WireState,
        (completion, now): (Completion, Instant),
        batch: &mut ReplyBatch,
    ) -> Result<(), WireLost> {
        let message = match completion {
            Completion::Received(message) => message,
            Completion::Done { .. } => return Ok(()),
            Completion::Failed { id, why, .. } => {
                let is_refused = matches!(why, Failure::RemoteInvalid | Failure::RemoteAccess);
                self.refuses_probes.fetch_or(id == PROBE && is_refused, Ordering::Relaxed);
                return Err(WireLost::Broken(Error::new(
                    ErrorKind::Io,
                    format!("the connection broke: {why}"),
                )));
            }
        };
        let WireState { table, link, .. } = state;
        let Some(WireLink::Rdma(link)) = link else { return Ok(()) };
        let bytes = link.connection.bytes(&message).map_err(WireLost::Broken)?;
        let (credits, answered) = read(bytes, (table, &link.regions), self.server.version)?;
        link.connection.post_receive(message).map_err(WireLost::Broken)?;
        // 0 is meant as 1.
        link.credits = credits.map_or(link.credits, |credits| (credits as usize).clamp(1, self.depth));
        let Some(answered) = answered else {
            shared.traffic.strange.fetch_add(1, Ordering::Relaxed);
            return Ok(batch.liveness.strange()?);
        };
        batch.last_reply = now;
        self.answered(shared, state, answered, batch);
        Ok(())
    }
}

/// What an error means for the connection: another one would not lock more memory.
fn lost(error: Error) -> WireLost {
    if is_limit(&error) { WireLost::Refused(error) } else { WireLost::Broken(error) }
}

/// A message: its call, its contents, and the calls that the server takes at a time; no call: the call is unknown.
type ReceivedReply = (Option<u32>, Option<(usize, IoReply)>);

/// The usual reply to a READ, if it is one, and fits its call.
#[inline]
fn read_usual(bytes: &[u8], table: &mut CallTable, regions: &[Option<CallRegion>]) -> Option<ReceivedReply> {
    let ReadReply { xid, credits, written, count, is_end, state } = ReadReply::of(bytes)?;
    let index = table.find(xid).ok()??;
    let part = table.calls[index].part.as_ref()?;
    let io = &part.io;
    let fits = io.operation == IoOperation::Read && (1..=io.count).contains(&count);
    if !fits || !(count..=io.count).contains(&written) {
        return None;
    }
    if let Some(region) = &regions[index] {
        region.deliver(part, count as usize);
    }
    Some((Some(credits), Some((index, IoReply::Read { count, is_end, state: Some(state) }))))
}

/// Reads a message. The bytes of a READ are in their place afterwards.
fn read(
    bytes: &[u8],
    (table, regions): (&mut CallTable, &[Option<CallRegion>]),
    version: NfsVersion,
) -> Result<ReceivedReply, Malformed> {
    if version == NfsVersion::V3
        && let Some(received) = read_usual(bytes, table, regions)
    {
        return Ok(received);
    }
    let mut from = XdrReader::new(bytes);
    let head = rdma::reply(&mut from)?;
    let written = match head.body {
        ReplyBody::Message(written) => written,
        ReplyBody::OtherVersions(low, high) => {
            let reply = IoReply::Rejected(rpc::RejectedCall::Versions(low, high));
            return Ok((None, table.find(head.xid)?.map(|index| (index, reply))));
        }
        ReplyBody::WrongChunks => {
            let reply = IoReply::Rejected(rpc::RejectedCall::Arguments);
            return Ok((None, table.find(head.xid)?.map(|index| (index, reply))));
        }
    };
    if rpc::reply_xid(&mut from)? != head.xid {
        return Err(Malformed("two numbers of a call"));
    }
    let Some(index) = table.find(head.xid)? else { return Ok((None, None)) };
    let call = &table.calls[index];
    let Some(part) = &call.part else { return Ok((None, None)) };
    let reply = part.io.decode(&mut from, version, call.place.as_ref())?;
    let offered = if part.io.operation == IoOperation::Read { part.io.count } else { 0 };
    if written.is_some_and(|written| written > offered.into()) {
        return Err(Malformed("more bytes were placed than there is room for"));
    }
    if let IoReply::Read { count, .. } = reply {
        take((part, regions[index].as_ref()), count as usize, written, from.rest())?;
    }
    Ok((Some(head.credits), Some((index, reply))))
}

/// The bytes of a READ are in their place, or in the message, if the server did not use the chunk.
fn take(
    (part, region): (&JobPart, Option<&CallRegion>),
    count: usize,
    written: Option<u64>,
    inline: &[u8],
) -> Result<(), Malformed> {
    match written {
        Some(written) if written >= count as u64 => {
            if let Some(region) = region {
                region.deliver(part, count);
            }
            Ok(())
        }
        None if part.is_placed && count > 0 => Err(Malformed("bytes in the message that were to be placed")),
        None if inline.len() >= count => {
            // SAFETY: the memory is the caller's until the call ends, which only this thread does.
            unsafe { std::ptr::copy_nonoverlapping(inline.as_ptr(), part.memory.start, count) };
            Ok(())
        }
        _ if count == 0 => Ok(()),
        _ => Err(Malformed("fewer bytes were placed than it says")),
    }
}
