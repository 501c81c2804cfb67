//! A wire over TCP: records in a stream.

use std::io::IoSliceMut;
use std::mem::take;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use forebay_error::{Error, ErrorKind};
use forebay_remote::endpoint::abort;

use super::base::{SharedWires, Wire};
use super::input::{RecordInput, RecordStream};
use super::link::WireLink;
use super::replies::{ReplyBatch, WakeReason, WireLost};
use super::signal::WakeSignal;
use crate::lock;
use crate::network::addresses::WireDestination;
use crate::network::connect::{end_in_order, end_unsent, has_low_port, keep_alive};
use crate::protocol::io_call::{IoCall, IoReply};
use crate::protocol::rpc;
use crate::protocol::xdr::XdrReader;

/// The most bytes of a reply before those of a READ.
const HEAD: usize = 1024;

/// The most bytes behind those of a READ: pad, and the file's state.
const BEHIND: usize = 128;

impl Wire {
    /// Makes a connection, and receives until it is of no use any more. `port`: that of the connection that was lost before.
    pub(super) fn run_tcp(
        self: &Arc<Self>,
        shared: &Arc<SharedWires>,
        signal: &WakeSignal,
        port: &mut u16,
    ) -> WireLost {
        let options = &self.server.options;
        // A port that does not work is not tried again.
        let (stream, destination) = match self.server.connect(self.index, take(port)) {
            Ok(connected) => connected,
            Err(error) => return WireLost::Broken(error),
        };
        *port = stream.local_addr().map_or(0, |address| address.port());
        end_unsent(&stream);
        keep_alive(&stream, options.probe_after());
        self.connected(shared, (stream.try_clone().ok().map(WireLink::Tcp), destination.clone()));
        let batch = ReplyBatch::new(self.check_interval);
        let mut link = WireSocket { wire: self, signal, fd: stream.as_raw_fd(), destination, batch };
        let mut input = RecordInput::new();
        let lost = loop {
            if let Err(lost) = self.receive_one(shared, &mut link, &mut input) {
                break lost;
            }
        };
        let mut state = lock(&self.state);
        state.link = None;
        // Calls sent meanwhile are sent again.
        if matches!(lost, WireLost::Idle) && state.table.is_idle() {
            // A port below 1024 would rest for a minute.
            if !has_low_port(&stream) {
                end_in_order(&stream);
            }
        } else {
            abort(&stream);
        }
        lost
    }

    fn receive_one(
        self: &Arc<Self>,
        shared: &Arc<SharedWires>,
        link: &mut WireSocket<'_>,
        input: &mut RecordInput,
    ) -> Result<(), WireLost> {
        let mut head = [0; HEAD];
        let len = input.head(link, &mut head)?;
        let mut from = XdrReader::new(&head[..len]);
        if link.destination.is_left() {
            return Err(WireLost::of_left());
        }
        let xid = rpc::reply_xid(&mut from)?;
        let Some((index, part, place)) = self.claim(xid)? else {
            shared.traffic.strange.fetch_add(1, Ordering::Relaxed);
            link.batch.liveness.strange()?;
            return input.skip(link);
        };
        link.batch.liveness.receives();
        let mut reply = part.io.decode(&mut from, self.server.version, place.as_ref())?;
        if let IoReply::Read { count, state, .. } = &mut reply {
            let count = *count;
            let here = from.rest().len().min(count as usize);
            // SAFETY: `count` is at most the length requested. The memory is the caller's until the call ends, which
            // only this thread does, and no other thread touches it meanwhile.
            unsafe {
                std::ptr::copy_nonoverlapping(from.rest().as_ptr(), part.memory.start, here);
                input.read(link, part.memory.first(count as usize).after(here))?;
            }
            if part.io.has_state_behind(self.server.version) {
                let mut behind = [0; BEHIND];
                let ahead = &from.rest()[here..];
                let ahead = &ahead[..ahead.len().min(BEHIND)];
                behind[..ahead.len()].copy_from_slice(ahead);
                let more = input.some(link, &mut behind[ahead.len()..])?;
                match IoCall::decode_behind(&behind[..ahead.len() + more], count)? {
                    Ok(told) => *state = told,
                    // The bytes are of no use without it: all of it is asked anew.
                    Err(status) => reply = IoReply::Failed(status),
                }
            }
        }
        input.skip(link)?;
        link.batch.last_reply = Instant::now();
        let checked = {
            let mut state = lock(&self.state);
            self.answered(shared, &mut state, (index, reply), &mut link.batch);
            state.send_queued();
            self.check(&mut state, &mut link.batch)
        };
        self.finish(shared, &mut link.batch)?;
        checked
    }
}

/// The socket as the thread sees it.
struct WireSocket<'a> {
    wire: &'a Wire,
    signal: &'a WakeSignal,
    fd: RawFd,
    destination: WireDestination,
    batch: ReplyBatch,
}

impl RecordStream for WireSocket<'_> {
    type Error = WireLost;

    fn receive(&mut self, into: &mut [IoSliceMut<'_>]) -> Result<usize, WireLost> {
        loop {
            // SAFETY: all-zero bytes are a valid msghdr; the ranges are borrowed for the call. IoSliceMut is an iovec.
            let got = unsafe {
                let mut message: libc::msghdr = std::mem::zeroed();
                message.msg_iov = into.as_mut_ptr().cast();
                message.msg_iovlen = into.len();
                libc::recvmsg(self.fd, &mut message, libc::MSG_DONTWAIT)
            };
            match got {
                1.. => {
                    self.batch.liveness.received(got as usize);
                    return Ok(got as usize);
                }
                0 => {
                    return Err(WireLost::Broken(Error::new(
                        ErrorKind::Io,
                        "the server closed the connection",
                    )));
                }
                _ => match std::io::Error::last_os_error() {
                    error if error.kind() == std::io::ErrorKind::WouldBlock => self.wait()?,
                    error if error.kind() == std::io::ErrorKind::Interrupted => {}
                    error => return Err(WireLost::Broken(Error::from_io(&error, "the connection broke"))),
                },
            }
        }
    }
}

impl WireSocket<'_> {
    /// Waits until the socket has bytes; sends the rest meanwhile.
    fn wait(&mut self) -> Result<(), WireLost> {
        let (idle_since, mut reason) = (Instant::now(), WakeReason::Signalled);
        loop {
            let (wants_to_send, limit) = {
                let mut state = lock(&self.wire.state);
                state.table.unpark(&self.wire.server)?;
                if state.link.is_none() {
                    return Err(WireLost::Broken(Error::from_errno(
                        libc::EMFILE,
                        "cannot send on a connection",
                    )));
                }
                self.wire.check_destination(&mut state)?;
                state.send_queued();
                let limit = self.wire.next_wait(&mut state, &mut self.batch, reason, idle_since)?;
                (state.table.first_to_send().is_some(), limit)
            };
            reason = self.signal.wait(self.fd, wants_to_send, limit);
            if reason == WakeReason::Readable {
                return Ok(());
            }
        }
    }
}
