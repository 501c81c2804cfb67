//! A wire over RDMA: the server writes bytes of a READ into memory of the caller, and reads those of a WRITE from there. The memory is
//! registered for each call, by a key that ends before the caller is told.

use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use forebay_error::{Error, ErrorKind, Result};
use forebay_verbs::{Access, Completion, Connection, Domain, Memory, Options, Post, Region, Why};

use super::base::{Link, Lost, Shared, Wire, pump};
use super::table::{Call, Table};
use crate::ask::{Operation, Said};
use crate::job::Part;
use crate::lock;
use crate::rdma::{self, Body, Chunk, Segment};
use crate::rpc;
use crate::session::Server;
use crate::xdr::{Malformed, Reader, Writer};

/// Bytes of a receive: Linux's server sends more inline than it was told to.
const RECEIVE: u32 = 16 << 10;

/// The longest call: header, credential, handle.
const CALL_MOST: usize = 1024;

/// What RFC 8797 has a client say when it connects: magic, version, no remote invalidation, 4096 bytes each way.
const PRIVATE: [u8; 8] = [0xf6, 0xab, 0x0e, 0x18, 1, 0, 3, 3];

/// A connection with what is registered for its calls.
pub(super) struct RdmaLink {
    // Dropped first: afterwards nothing of the server's arrives.
    connection: Box<dyn Connection>,
    regions: Box<[Option<Region>]>,
    domain: Arc<dyn Domain>,
    /// Calls that the server takes at a time: one until its first reply.
    credits: usize,
    in_flight: usize,
    /// Why a call could not be sent.
    refused: Option<Error>,
}

/// A connection to the server for `depth` calls at a time.
fn connect(server: &Server, depth: usize) -> Result<RdmaLink> {
    let options = &server.options;
    let (_, to) = server.rdma_address()?;
    let domain = server.domain()?;
    let with = Options {
        private_data: PRIVATE.to_vec(),
        receives: depth as u32 + 2,
        receive_size: RECEIVE,
        sends: depth as u32 * 2,
        send_size: CALL_MOST as u32,
        timeout: options.connect,
        ..Options::default()
    };
    let connection = domain.connect(to, &with).inspect_err(|error| {
        if !matches!(Why::of(error), Some(Why::Rejected | Why::Unreachable)) {
            server.forget_domain(&domain);
        }
    })?;
    let regions = (0..depth).map(|_| None).collect();
    Ok(RdmaLink { connection, regions, domain, credits: 1, in_flight: 0, refused: None })
}

/// Whether the server takes RDMA, if that is asked for: found out when a file is opened, not when it is read.
pub(crate) fn try_out(server: &Server) -> Result<()> {
    if server.options.rdma.is_none() {
        return Ok(());
    }
    connect(server, 1).map(drop).map_err(|error| error.hint("FOREBAY_NFS=tcp"))
}

impl Wire {
    /// Makes a connection, and receives until it is of no use any more.
    pub(super) fn run_rdma(self: &Arc<Self>, shared: &Arc<Shared>) -> Lost {
        match connect(&self.server, self.depth) {
            Ok(link) => {
                let fd = link.connection.descriptor().as_raw_fd();
                // Memory of a domain that is gone: the server could not reach it.
                let is_lost = |call: &Call| !call.is_of(&link.domain);
                self.fail(
                    shared,
                    is_lost,
                    &Why::DeviceRemoved.error("cannot read: the RDMA device was replaced"),
                );
                self.connected(shared, Some(Link::Rdma(link)));
                self.receive_rdma(shared, fd)
            }
            Err(error) => Lost::Broken(error),
        }
    }

    fn receive_rdma(self: &Arc<Self>, shared: &Arc<Shared>, fd: i32) -> Lost {
        let (mut completions, mut bytes) = (Vec::with_capacity(64), Vec::with_capacity(RECEIVE as usize));
        let (mut heard, mut idle_since) = (Instant::now(), Instant::now());
        loop {
            match self.completions(&mut completions, heard, idle_since) {
                Ok(None) => {}
                Ok(Some(limit)) => {
                    self.poll(fd, false, limit);
                    continue;
                }
                Err(lost) => return lost,
            }
            idle_since = Instant::now();
            for completion in completions.drain(..) {
                match completion {
                    Completion::Received(message) => {
                        if let Err(lost) = self.received(shared, message, &mut bytes) {
                            return lost;
                        }
                        heard = Instant::now();
                    }
                    Completion::Done { .. } => {}
                    Completion::Failed { why, .. } => {
                        return Lost::Broken(Error::new(
                            ErrorKind::Io,
                            format!("the connection broke: {why}"),
                        ));
                    }
                }
            }
        }
    }

    /// Takes completions; or says how long to wait for some.
    fn completions(
        &self,
        into: &mut Vec<Completion>,
        heard: Instant,
        idle_since: Instant,
    ) -> Result<Option<std::time::Duration>, Lost> {
        let mut state = lock(&self.state);
        state.table.unpark(&self.server)?;
        pump(&mut state);
        let Some(Link::Rdma(link)) = &mut state.link else {
            return Err(Lost::Broken(Error::new(ErrorKind::Io, "the connection is gone")));
        };
        if let Some(error) = link.refused.take() {
            let is_limit = Why::of(&error) == Some(Why::Memlock);
            return Err(if is_limit { Lost::Refused(error) } else { Lost::Broken(error) });
        }
        let mut any = link.connection.poll(into).map_err(Lost::Broken)?;
        if any == 0 {
            link.connection.arm().map_err(Lost::Broken)?;
            any = link.connection.poll(into).map_err(Lost::Broken)?;
        }
        if any > 0 {
            return Ok(None);
        }
        if let Some(why) = link.connection.down() {
            return Err(Lost::Broken(Error::new(ErrorKind::Io, format!("the connection is down: {why:?}"))));
        }
        self.limit(&state, heard, idle_since).map(Some)
    }

    /// `bytes` has room for a message.
    fn received(
        self: &Arc<Self>,
        shared: &Arc<Shared>,
        message: forebay_verbs::Message,
        bytes: &mut Vec<u8>,
    ) -> Result<(), Lost> {
        bytes.clear();
        {
            let mut state = lock(&self.state);
            let Some(Link::Rdma(link)) = &mut state.link else { return Ok(()) };
            bytes.extend_from_slice(link.connection.bytes(&message).map_err(Lost::Broken)?);
            link.connection.post_receive(message).map_err(Lost::Broken)?;
        }
        let mut from = Reader::new(bytes);
        let head = rdma::reply(&mut from)?;
        let written = match head.body {
            Body::Message(written) => written,
            Body::OtherVersions(..) | Body::WrongChunks => return self.refused(shared, head.xid, head.body),
        };
        if rpc::reply_xid(&mut from)? != head.xid {
            return Err(Malformed("two numbers of a call").into());
        }
        let Some((index, part, place)) = self.claim(head.xid)? else {
            shared.traffic.strange.fetch_add(1, Ordering::Relaxed);
            return Ok(());
        };
        let said = part.ask.decode(&mut from, self.server.version, place.as_ref())?;
        let offered = if part.ask.operation == Operation::Read { part.ask.count } else { 0 };
        if written.is_some_and(|written| written > offered.into()) {
            return Err(Malformed("more bytes were placed than there is room for").into());
        }
        if let Said::Read { count, .. } = said {
            take(&part, count as usize, written, from.rest())?;
        }
        self.granted(head.credits);
        self.answered(shared, index, said)
    }

    /// Notes how many calls the server takes at a time; 0 is meant as 1.
    fn granted(&self, credits: u32) {
        if let Some(Link::Rdma(link)) = &mut lock(&self.state).link {
            link.credits = (credits as usize).clamp(1, self.depth);
        }
    }

    fn refused(self: &Arc<Self>, shared: &Arc<Shared>, xid: u32, body: Body) -> Result<(), Lost> {
        let Some((index, ..)) = self.claim(xid)? else { return Ok(()) };
        let rejected = match body {
            Body::OtherVersions(low, high) => rpc::Rejected::Versions(low, high),
            _ => rpc::Rejected::Arguments,
        };
        self.answered(shared, index, Said::Rejected(rejected))
    }
}

/// The bytes of a READ are in their place, or in the message, if the server did not use the chunk.
fn take(part: &Part, count: usize, written: Option<u64>, inline: &[u8]) -> Result<(), Malformed> {
    match written {
        Some(written) if written >= count as u64 => Ok(()),
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
    /// Ends the key of a call. Afterwards the server reaches its memory no more.
    pub(super) fn release(&mut self, index: usize) {
        self.regions[index] = None;
        self.in_flight = self.in_flight.saturating_sub(1);
    }

    /// Sends calls, as many as the server takes.
    pub(super) fn pump(&mut self, table: &mut Table) {
        while self.in_flight < self.credits
            && self.refused.is_none()
            && let Some(index) = table.first_to_send()
        {
            match self.send(table, index) {
                Ok(()) => {
                    self.in_flight += 1;
                    table.has_sent_first();
                }
                // The thread tells; the calls stay.
                Err(error) => self.refused = Some(error),
            }
        }
    }

    fn send(&mut self, table: &Table, index: usize) -> Result<()> {
        let call = &table.calls[index];
        if !call.is_of(&self.domain) {
            return Err(Why::DeviceRemoved.error("cannot read: the RDMA device was replaced"));
        }
        let Some(part) = &call.part else { return Err(Malformed("a call of nothing").into()) };
        let message = call.message();
        let access = match part.ask.operation {
            Operation::Read => Some(Access::WRITE | Access::REMOTE_WRITE),
            Operation::Write { .. } => Some(Access::READ | Access::REMOTE_READ),
            Operation::Commit => None,
        };
        let mut chunk = Chunk::None;
        if let Some(registered) = call.registered() {
            chunk = Chunk::Write(registered.segment(part.buffer as u64, part.ask.count)?);
        } else if let Some(access) = access {
            let memory = Memory::Host { address: part.buffer, len: part.ask.count as usize };
            // SAFETY: the request lends the memory until it is answered, which is after the region's end.
            let region = unsafe { self.domain.register(memory, access) }?;
            let segment =
                Segment { key: region.remote_key(), len: part.ask.count, address: region.address() };
            chunk = match part.ask.operation {
                Operation::Read => Chunk::Write(segment),
                // The bytes belong behind their number, which is the last word of the call.
                _ => Chunk::Read(message.len() as u32, segment),
            };
            self.regions[index] = Some(region);
        }
        let mut place = [0; CALL_MOST];
        let mut to = Writer::new(&mut place);
        rdma::call(&mut to, call.xid, self.regions.len() as u32, chunk);
        to.raw(message);
        let len = to.finish()?;
        self.connection.send(index as u64, &place[..len], Post::QUIET)
    }
}
