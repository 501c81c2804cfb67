//! A connection over RDMA, and the memory that is registered for its calls.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use forebay_error::{Error, Result};
use forebay_remote::stop;
use forebay_verbs::{Access, Connection, DeviceRange, Domain, Options, Post, Route, Stop, Why};

use super::call_region::{CallRegion, OtherRegions, RegionCount};
use super::table::CallTable;
use crate::network::options::{RdmaOptions, RegionCounts};
use crate::network::server::NfsServer;
use crate::protocol::io_call::IoOperation;
use crate::protocol::rdma::{self, RdmaChunk, RdmaSegment};
use crate::protocol::xdr::{Malformed, XdrWriter};

/// Bytes of a receive: Linux's server sends more inline than the client announced.
const RECEIVE: u32 = 16 << 10;

/// The longest call: header, credential, handle.
const MAX_CALL_BYTES: usize = 1024;

/// The number of an operation that is of no call.
pub(super) const PROBE: u64 = u64::MAX;

/// What RFC 8797 has a client say when it connects: magic, version, no remote invalidation, 4096 bytes each way.
const PRIVATE_DATA: [u8; 8] = [0xf6, 0xab, 0x0e, 0x18, 1, 0, 3, 3];

/// A connection with the memory registered for its calls.
pub(super) struct RdmaLink {
    // Dropped first: afterwards nothing of the server's arrives.
    pub(super) connection: Box<dyn Connection>,
    pub(super) regions: Box<[Option<CallRegion>]>,
    /// How many there are on all connections of the process.
    held: Arc<RegionCounts>,
    /// Why no memory could be locked for a call that waits for what others have.
    pub(super) memlock_wait: Option<Error>,
    pub(super) domain: Arc<dyn Domain>,
    /// Calls that the server takes at a time: one until its first reply.
    pub(super) credits: usize,
    pub(super) in_flight: usize,
    /// When the server was last asked for a sign of life.
    probed: Instant,
    /// Why a call could not be sent.
    pub(super) refused: Option<Error>,
}

/// What the server may do with the memory of a call, if it has some.
fn access(operation: IoOperation) -> Option<Access> {
    match operation {
        IoOperation::Read => Some(Access::WRITE | Access::REMOTE_WRITE),
        IoOperation::Write { .. } => Some(Access::READ | Access::REMOTE_READ),
        IoOperation::Commit => None,
    }
}

/// How soon it is tried again to lock memory of which others have some.
pub(super) const RETRY_INTERVAL: Duration = Duration::from_millis(10);

pub(super) fn is_limit(error: &Error) -> bool {
    Why::of(error) == Some(Why::Memlock)
}

/// A connection to the server. Its own memory may have to wait for that of others' calls: `waits` decides, and knows whether there are
/// some.
pub(super) fn connect_in_turn(
    server: &NfsServer,
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
fn connect(server: &NfsServer, address: Option<usize>, depth: usize) -> Result<RdmaLink> {
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
pub fn takes_rdma(rdma: &RdmaOptions, address: IpAddr, limit: Duration) -> Result<SocketAddr> {
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
pub(crate) fn try_out(server: &NfsServer) -> Result<()> {
    if server.options.rdma.is_none() {
        return Ok(());
    }
    connect_in_turn(server, None, 1, |has_others| has_others)
        .map(drop)
        .map_err(|error| if stop::is_stopped() { error } else { error.hint("FOREBAY_NFS=tcp") })
}

/// Whether a further address takes RDMA.
pub(crate) fn try_out_at(server: &NfsServer, address: usize) -> Result<()> {
    connect_in_turn(server, Some(address), 1, |has_others| has_others).map(drop)
}

impl RdmaLink {
    /// Asks the server whether it still has the connection, when no reply has come for `every`. Returns the time until the next question.
    /// A call that arrived leaves nothing to be repeated: a server that is gone without a word would not be missed.
    pub(super) fn probe(&mut self, last_reply: Instant, every: Duration) -> Duration {
        let left = every.saturating_sub(last_reply.max(self.probed).elapsed());
        if !left.is_zero() {
            return left;
        }
        self.probed = Instant::now();
        // Where there is no room for it, earlier posts show it.
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
    pub(super) fn send_queued(&mut self, table: &mut CallTable) {
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
    fn send(&mut self, table: &mut CallTable, index: usize) -> Result<bool> {
        let call = &mut table.calls[index];
        if !call.is_of(&self.domain) {
            return Err(Why::DeviceRemoved.error("cannot read: the RDMA device was replaced"));
        }
        let Some(part) = &call.part else { return Err(Malformed("a call of nothing").into()) };
        let mut chunk = RdmaChunk::None;
        if let Some(registered) = call.registered() {
            let remote = registered.remote(DeviceRange::new(part.memory.address(), part.io.count as usize));
            let remote = remote.map_err(|_| Malformed("a range beyond the registered memory"))?;
            chunk = RdmaChunk::Write(RdmaSegment {
                key: remote.key,
                len: part.io.count,
                address: remote.address,
            });
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
            let segment =
                RdmaSegment { key: region.remote_key(), len: part.io.count, address: region.memory().start };
            chunk = match part.io.operation {
                IoOperation::Read => RdmaChunk::Write(segment),
                // The bytes belong behind their number, which is the last word of the call.
                _ => RdmaChunk::Read(call.message_len() as u32, segment),
            };
            self.regions[index] = Some(new);
        }
        let (xid, len) = (call.xid, chunk.header_len());
        let mut to = XdrWriter::new(call.rdma_header(len));
        rdma::call(&mut to, xid, self.regions.len() as u32, chunk);
        to.finish()?;
        self.connection.send(index as u64, call.message(len), Post::QUIET)?;
        Ok(true)
    }
}
