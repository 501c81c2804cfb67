//! A wire over RDMA: the server writes bytes of a READ into memory of the caller, and reads those of a WRITE from there. The memory is
//! registered for each call, by a key that ends before the caller is told.

use std::net::{IpAddr, SocketAddr};
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use forebay_error::{Error, ErrorKind, Result};
use forebay_remote::stop;
use forebay_verbs::{Access, Completion, Connection, Domain, Failure, Options, Post, Route, Stop, Why};

use super::base::{Link, Shared, State, Wire, send_queued};
use super::call_region::{CallRegion, OtherRegions, RegionCount};
use super::read_reply::ReadReply;
use super::replies::{Lost, ReplyBatch, WakeReason};
use super::signal::Signal;
use super::table::{Call, Table};
use crate::lock;
use crate::network::job::{Job, Part};
use crate::network::options::{Rdma, RegionCounts};
use crate::network::session::Server;
use crate::protocol::handle::Version;
use crate::protocol::io_call::{Operation, Reply};
use crate::protocol::rdma::{self, Body, Chunk, Segment};
use crate::protocol::rpc;
use crate::protocol::xdr::{Malformed, Reader, Writer};

/// Bytes of a receive: Linux's server sends more inline than it was told to.
const RECEIVE: u32 = 16 << 10;

/// The longest call: header, credential, handle.
const MAX_CALL_BYTES: usize = 1024;

/// The number of an operation that is of no call.
const PROBE: u64 = u64::MAX;

/// What RFC 8797 has a client say when it connects: magic, version, no remote invalidation, 4096 bytes each way.
const PRIVATE_DATA: [u8; 8] = [0xf6, 0xab, 0x0e, 0x18, 1, 0, 3, 3];

/// A connection with what is registered for its calls.
pub(super) struct RdmaLink {
    // Dropped first: afterwards nothing of the server's arrives.
    connection: Box<dyn Connection>,
    regions: Box<[Option<CallRegion>]>,
    /// How many there are on all connections of the process.
    held: Arc<RegionCounts>,
    /// Why no memory could be locked for a call that waits for what others have.
    memlock_wait: Option<Error>,
    domain: Arc<dyn Domain>,
    /// Calls that the server takes at a time: one until its first reply.
    credits: usize,
    in_flight: usize,
    /// When the server was last asked for a sign of life.
    probed: Instant,
    /// Why a call could not be sent.
    refused: Option<Error>,
}

/// What the server may do with the memory of a call, if it has some.
fn access(operation: Operation) -> Option<Access> {
    match operation {
        Operation::Read => Some(Access::WRITE | Access::REMOTE_WRITE),
        Operation::Write { .. } => Some(Access::READ | Access::REMOTE_READ),
        Operation::Commit => None,
    }
}

/// How soon it is tried again to lock memory of which others have some.
const RETRY_INTERVAL: Duration = Duration::from_millis(10);

fn is_limit(error: &Error) -> bool {
    Why::of(error) == Some(Why::Memlock)
}

/// A connection to the server. Its own memory may have to wait for that of others' calls: `waits` decides, and knows whether there are
/// some.
fn connect_in_turn(
    server: &Server,
    address: Option<usize>,
    depth: usize,
    waits: impl Fn(bool) -> bool,
) -> Result<RdmaLink> {
    let (rdma, _) = server.rdma_address()?;
    let began = Instant::now();
    loop {
        let seen = OtherRegions::now(&rdma.held);
        match connect(server, address, depth) {
            Err(error)
                if is_limit(&error)
                    && waits(seen.has_others(&rdma.held))
                    && began.elapsed() < server.options.silence =>
            {
                stop::sleep(RETRY_INTERVAL)?;
            }
            Err(_) if stop::is_stopped() => return Err(stop::stopped().with("server", &server.name)),
            connected => return connected,
        }
    }
}

/// A connection to the server for `depth` calls at a time; to one of its further addresses, if that is named.
fn connect(server: &Server, address: Option<usize>, depth: usize) -> Result<RdmaLink> {
    let options = &server.options;
    let (rdma, mut to) = server.rdma_address()?;
    let domain = if let Some(address) = address {
        to = server.further_rdma_address(address)?;
        server.further_domain(address)?
    } else {
        server.domain()?
    };
    let with = Options {
        private_data: PRIVATE_DATA.to_vec(),
        receives: depth as u32 + 2,
        receive_size: RECEIVE,
        sends: depth as u32 * 2,
        send_size: MAX_CALL_BYTES as u32,
        timeout: options.connect,
        stop: Stop::when(stop::is_stopped),
        ..Options::default()
    };
    let connection = domain.connect(to, &with).inspect_err(|error| {
        if !matches!(Why::of(error), Some(Why::Rejected | Why::Unreachable | Why::Memlock)) {
            server.forget_domain(&domain);
        }
    })?;
    let regions = (0..depth).map(|_| None).collect();
    let held = rdma.held.clone();
    Ok(RdmaLink {
        connection,
        regions,
        held,
        memlock_wait: None,
        domain,
        credits: 1,
        in_flight: 0,
        probed: Instant::now(),
        refused: None,
    })
}

/// Whether a server at an address takes connections over RDMA: makes one that carries nothing, within twice `limit`, and ends it.
/// Returns where.
pub fn takes_rdma(rdma: &Rdma, address: IpAddr, limit: Duration) -> Result<SocketAddr> {
    let to = SocketAddr::new(rdma.address.unwrap_or(address), rdma.port);
    let at = |error: Error| error.with("address", to);
    let domain = rdma.fabric.open(&Route { timeout: limit, ..Route::to(to) }).map_err(at)?;
    let with = Options {
        private_data: PRIVATE_DATA.to_vec(),
        receives: 2,
        receive_size: 1024,
        sends: 2,
        send_size: 1024,
        timeout: limit,
        ..Options::default()
    };
    domain.connect(to, &with).map_err(at)?.disconnect();
    Ok(to)
}

/// Whether the server takes RDMA, if that is asked for: found out when a file is opened, not when it is read.
pub(crate) fn try_out(server: &Server) -> Result<()> {
    if server.options.rdma.is_none() {
        return Ok(());
    }
    connect_in_turn(server, None, 1, |has_others| has_others)
        .map(drop)
        .map_err(|error| if stop::is_stopped() { error } else { error.hint("FOREBAY_NFS=tcp") })
}

/// Whether a further address takes RDMA.
pub(crate) fn try_out_at(server: &Server, address: usize) -> Result<()> {
    connect_in_turn(server, Some(address), 1, |has_others| has_others).map(drop)
}

impl Wire {
    /// Makes a connection, and receives until it is of no use any more.
    pub(super) fn run_rdma(self: &Arc<Self>, shared: &Arc<Shared>, signal: &Signal) -> Lost {
        let waits = |has_others: bool| self.waits(shared, has_others);
        let connected = self
            .server
            .connect_by(self.index, |address| connect_in_turn(&self.server, address, self.depth, waits));
        match connected {
            Ok((link, destination)) => {
                let fd = link.connection.descriptor().as_raw_fd();
                // Memory of a domain that is gone: the server could not reach it.
                let is_lost = |call: &Call| !call.is_of(&link.domain);
                self.fail(
                    shared,
                    is_lost,
                    &Why::DeviceRemoved.error("cannot read: the RDMA device was replaced"),
                );
                self.connected(shared, (Some(Link::Rdma(link)), destination));
                self.receive_rdma(shared, signal, fd)
            }
            Err(error) if is_limit(&error) && shared.others(self).0 => Lost::NoLockedMemory,
            // Nobody knows whether the NIC will lead to one again.
            Err(error) if Why::of(&error) == Some(Why::NoRoute) && self.server.leads_nowhere() => {
                Lost::Refused(error)
            }
            Err(error) => lost(error),
        }
    }

    /// Whether to wait for memory of a connection: while others have some, or may get a connection. Once one has, it does the work.
    fn waits(&self, shared: &Shared, has_others: bool) -> bool {
        lock(&self.state).is_refused = true;
        let (work, are_made) = shared.others(self);
        !work && (has_others || are_made)
    }

    /// Leaves its calls to wires that have connections, and takes none for a while.
    pub(super) fn hand_over_calls(self: &Arc<Self>, shared: &Arc<Shared>, signal: &Signal) {
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
    fn take_all_calls(&self) -> (Vec<(Arc<Job>, Part)>, bool) {
        let mut state = lock(&self.state);
        let table = &mut state.table;
        let given = (0..self.depth).filter_map(|index| table.give(index)).collect();
        (given, state.is_closing)
    }

    fn receive_rdma(self: &Arc<Self>, shared: &Arc<Shared>, signal: &Signal, fd: i32) -> Lost {
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
        shared: &Shared,
        into: &mut Vec<Completion>,
        batch: &mut ReplyBatch,
        reason: WakeReason,
    ) -> Result<Option<Duration>, Lost> {
        let mut state = lock(&self.state);
        state.table.unpark(&self.server)?;
        self.check_destination(&mut state)?;
        send_queued(&mut state);
        let has_timed_out = reason == WakeReason::TimedOut;
        let oldest = if has_timed_out { state.table.oldest_asked() } else { None };
        let link = loop {
            let Some(Link::Rdma(link)) = &mut state.link else {
                let gone = || Error::new(ErrorKind::Io, "the connection is gone");
                return Err(Lost::Broken(batch.kept_key.take().unwrap_or_else(gone)));
            };
            if let Some(error) = link.refused.take() {
                return Err(lost(error));
            }
            let mut any = link.connection.poll(into).map_err(Lost::Broken)?;
            if any == 0 {
                link.connection.arm().map_err(Lost::Broken)?;
                any = link.connection.poll(into).map_err(Lost::Broken)?;
            }
            if any == 0 {
                break link;
            }
            let now = Instant::now();
            for completion in into.drain(..) {
                self.completed(shared, &mut state, (completion, now), batch)?;
            }
            send_queued(&mut state);
            self.check(&mut state, batch)?;
            if !batch.is_done() || state.table.has_parked() {
                return Ok(None);
            }
        };
        let last_reply = batch.last_reply;
        if let Some(why) = link.connection.down() {
            return Err(Lost::Broken(Error::new(ErrorKind::Io, format!("the connection is down: {why:?}"))));
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
                Some(error) if waits_for_others => Lost::Refused(error.clone()),
                _ => lost,
            })?;
        Ok(Some(limit.min(if memlock_wait.is_some() { RETRY_INTERVAL } else { most })))
    }

    fn completed(
        &self,
        shared: &Shared,
        state: &mut State,
        (completion, now): (Completion, Instant),
        batch: &mut ReplyBatch,
    ) -> Result<(), Lost> {
        let message = match completion {
            Completion::Received(message) => message,
            Completion::Done { .. } => return Ok(()),
            Completion::Failed { id, why, .. } => {
                let is_refused = matches!(why, Failure::RemoteInvalid | Failure::RemoteAccess);
                self.refuses_probes.fetch_or(id == PROBE && is_refused, Ordering::Relaxed);
                return Err(Lost::Broken(Error::new(ErrorKind::Io, format!("the connection broke: {why}"))));
            }
        };
        let State { table, link, .. } = state;
        let Some(Link::Rdma(link)) = link else { return Ok(()) };
        let bytes = link.connection.bytes(&message).map_err(Lost::Broken)?;
        let (credits, answered) = read(bytes, (table, &link.regions), self.server.version)?;
        link.connection.post_receive(message).map_err(Lost::Broken)?;
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
fn lost(error: Error) -> Lost {
    if is_limit(&error) { Lost::Refused(error) } else { Lost::Broken(error) }
}

/// What a message says to which call, and the calls that the server takes at a time; no call: it is none of ours.
type Received = (Option<u32>, Option<(usize, Reply)>);

/// The usual reply to a READ, if it is one, and fits its call.
#[inline]
fn read_usual(bytes: &[u8], table: &mut Table, regions: &[Option<CallRegion>]) -> Option<Received> {
    let ReadReply { xid, credits, written, count, is_end, state } = ReadReply::of(bytes)?;
    let index = table.find(xid).ok()??;
    let part = table.calls[index].part.as_ref()?;
    let io = &part.io;
    let fits = io.operation == Operation::Read && (1..=io.count).contains(&count);
    if !fits || !(count..=io.count).contains(&written) {
        return None;
    }
    if let Some(region) = &regions[index] {
        region.deliver(part, count as usize);
    }
    Some((Some(credits), Some((index, Reply::Read { count, is_end, state: Some(state) }))))
}

/// Reads a message. The bytes of a READ are in their place afterwards.
fn read(
    bytes: &[u8],
    (table, regions): (&mut Table, &[Option<CallRegion>]),
    version: Version,
) -> Result<Received, Malformed> {
    if version == Version::V3
        && let Some(received) = read_usual(bytes, table, regions)
    {
        return Ok(received);
    }
    let mut from = Reader::new(bytes);
    let head = rdma::reply(&mut from)?;
    let written = match head.body {
        Body::Message(written) => written,
        Body::OtherVersions(low, high) => {
            let reply = Reply::Rejected(rpc::Rejected::Versions(low, high));
            return Ok((None, table.find(head.xid)?.map(|index| (index, reply))));
        }
        Body::WrongChunks => {
            let reply = Reply::Rejected(rpc::Rejected::Arguments);
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
    let offered = if part.io.operation == Operation::Read { part.io.count } else { 0 };
    if written.is_some_and(|written| written > offered.into()) {
        return Err(Malformed("more bytes were placed than there is room for"));
    }
    if let Reply::Read { count, .. } = reply {
        take((part, regions[index].as_ref()), count as usize, written, from.rest())?;
    }
    Ok((Some(head.credits), Some((index, reply))))
}

/// The bytes of a READ are in their place, or in the message, if the server did not use the chunk.
fn take(
    (part, region): (&Part, Option<&CallRegion>),
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
            unsafe { std::ptr::copy_nonoverlapping(inline.as_ptr(), part.buffer, count) };
            Ok(())
        }
        _ if count == 0 => Ok(()),
        _ => Err(Malformed("fewer bytes were placed than it says")),
    }
}

impl RdmaLink {
    /// Asks the server whether it still has the connection, when no reply has come for `every`. Returns the time until the next question.
    /// A call that arrived leaves nothing to be repeated: a server that is gone without a word would not be missed.
    fn probe(&mut self, last_reply: Instant, every: Duration) -> Duration {
        let left = every.saturating_sub(last_reply.max(self.probed).elapsed());
        if !left.is_zero() {
            return left;
        }
        self.probed = Instant::now();
        // Where there is no room for it, what was posted before tells.
        let _ = self.connection.probe(PROBE);
        every
    }

    /// Ends the key of a call. Afterwards the server reaches its memory no more; after an error it does, as long as there is this
    /// connection.
    pub(super) fn release(&mut self, index: usize) -> Result<()> {
        self.in_flight = self.in_flight.saturating_sub(1);
        if let Some(call) = &mut self.regions[index] {
            call.region.try_release()?;
        }
        self.regions[index] = None;
        Ok(())
    }

    /// Whether calls wait for something else than replies.
    pub(super) const fn is_stuck(&self) -> bool {
        self.refused.is_some() || self.memlock_wait.is_some()
    }

    /// Sends calls, as many as the server takes.
    pub(super) fn send_queued(&mut self, table: &mut Table) {
        self.memlock_wait = None;
        while self.in_flight < self.credits
            && self.refused.is_none()
            && self.memlock_wait.is_none()
            && let Some(index) = table.first_to_send()
        {
            match self.send(table, index) {
                Ok(true) => {
                    self.in_flight += 1;
                    table.has_sent_first();
                }
                Ok(false) => {}
                // The thread tells; the calls stay.
                Err(error) => self.refused = Some(error),
            }
        }
    }

    /// Sends a call; false where its memory has to wait for that of others.
    fn send(&mut self, table: &mut Table, index: usize) -> Result<bool> {
        let call = &mut table.calls[index];
        if !call.is_of(&self.domain) {
            return Err(Why::DeviceRemoved.error("cannot read: the RDMA device was replaced"));
        }
        let Some(part) = &call.part else { return Err(Malformed("a call of nothing").into()) };
        let mut chunk = Chunk::None;
        if let Some(registered) = call.registered() {
            let remote = registered.remote(part.buffer as u64, part.io.count as usize);
            let remote = remote.map_err(|_| Malformed("a range beyond what is registered"))?;
            chunk = Chunk::Write(Segment { key: remote.key, len: part.io.count, address: remote.address });
        } else if let Some(access) = access(part.io.operation) {
            let (counted, seen) = RegionCount::new(&self.held);
            // SAFETY: the request lends the memory until it is answered, which is after the region's end.
            let new = match unsafe { CallRegion::new(self.domain.as_ref(), part, access, counted) } {
                Err(error) if is_limit(&error) && seen.has_others(&self.held) => {
                    self.memlock_wait = Some(error);
                    return Ok(false);
                }
                registered => registered?,
            };
            let region = &new.region;
            let segment = Segment { key: region.remote_key(), len: part.io.count, address: region.address() };
            chunk = match part.io.operation {
                Operation::Read => Chunk::Write(segment),
                // The bytes belong behind their number, which is the last word of the call.
                _ => Chunk::Read(call.message_len() as u32, segment),
            };
            self.regions[index] = Some(new);
        }
        let (xid, len) = (call.xid, chunk.header_len());
        let mut to = Writer::new(call.rdma_header(len));
        rdma::call(&mut to, xid, self.regions.len() as u32, chunk);
        to.finish()?;
        self.connection.send(index as u64, call.message(len), Post::QUIET)?;
        Ok(true)
    }
}
