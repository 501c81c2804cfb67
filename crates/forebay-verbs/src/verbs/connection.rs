//! A connection: a queue pair with memory of its own for messages.

use std::ffi::c_int;
use std::fmt;
use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use forebay_error::{Error, ErrorKind, Result};
use forebay_sys::HostRange;

use super::errors::check_errno;
use super::memory::{Inner, Mr, Mw};
use super::pair::{Path, QueuePair};
use super::queue::{Posted, Queue, SendQueue};
use super::sys;
use crate::{
    Access, Completion, Connection, Down, Failure, Kind, Local, Memory, Message, Options, Pages, Post,
    Region, Remote, Transport, Why, Window, check_length,
};

/// Marks the numbers of receives at the device.
const RECEIVE: u64 = 1 << 63;
/// Completions that are taken from the device at a time.
const BUNCH: usize = 16;
/// Completions that are polled into a vector without room.
const ROOM: usize = 64;

static NUMBERS: AtomicU64 = AtomicU64::new(1);

/// Registered memory of equal parts, which the device and this side use in turns.
struct Slots {
    region: Region,
    size: u32,
    pages: Pages,
}

impl Slots {
    fn new(domain: &Arc<Inner>, count: u32, size: u32) -> Result<Self> {
        let pages = Pages::new(count as usize * size as usize)?;
        let memory = Memory::Host(pages.range());
        // SAFETY: the pages go after the region; this side looks only at parts that the device is not using, between a
        // completion and the next posting.
        let region = unsafe { domain.register(memory, Access::WRITE) }?;
        Ok(Self { region, size, pages })
    }

    /// A part as the device names it.
    fn part(&self, slot: u32, len: u32) -> sys::Sge {
        let addr = self.region.memory().start + u64::from(slot) * u64::from(self.size);
        sys::Sge { addr, length: len, lkey: self.region.local_key() }
    }

    /// The first bytes of a part, if it has them.
    fn memory(&self, slot: u32, len: usize) -> Option<HostRange> {
        let at = slot as usize * self.size as usize;
        self.pages.range().part(at..at + len).filter(|_| len <= self.size as usize)
    }
}

/// Fields are dropped in this order: first the queue pair, then what it uses.
pub(super) struct VerbsConnection {
    pair: QueuePair,
    queue: Queue,
    receives: Slots,
    /// The receives whose messages the user has.
    taken: Vec<bool>,
    sends: Option<Slots>,
    domain: Arc<Inner>,
    posted: SendQueue,
    both: OwnedFd,
    number: u64,
    peer: SocketAddr,
    private_data: Vec<u8>,
    send_size: u32,
    inline: u32,
    down: Option<Down>,
}

impl VerbsConnection {
    /// The queue pair that `make` makes, with all receives posted.
    pub(super) fn new(
        domain: &Arc<Inner>,
        options: &Options,
        peer: SocketAddr,
        make: impl FnOnce(&mut sys::QpInitAttr) -> Result<QueuePair>,
    ) -> Result<Self> {
        let queue = Queue::new(domain, options.receives + options.sends)?;
        let mut attributes = sys::QpInitAttr {
            qp_context: ptr::null_mut(),
            send_cq: queue.raw(),
            recv_cq: queue.raw(),
            srq: ptr::null_mut(),
            cap: sys::QpCap {
                max_send_wr: options.sends,
                max_recv_wr: options.receives,
                max_send_sge: 1,
                max_recv_sge: 1,
                max_inline_data: options.inline,
            },
            qp_type: sys::QP_RC,
            sq_sig_all: 0,
        };
        // Where a later step fails, it goes before its queue does.
        let pair = make(&mut attributes)?;
        let inline = attributes.cap.max_inline_data.min(options.send_size);
        let slots = if options.send_size > inline { options.sends } else { 0 };
        let sends = (slots > 0).then(|| Slots::new(domain, slots, options.send_size)).transpose()?;
        let mut connection = Self {
            receives: Slots::new(domain, options.receives.max(1), options.receive_size.max(1))?,
            taken: vec![false; options.receives as usize],
            sends,
            domain: Arc::clone(domain),
            posted: SendQueue::new(options.sends, slots),
            both: both(queue.fd(), pair.id().channel.fd())?,
            number: NUMBERS.fetch_add(1, Ordering::Relaxed),
            peer,
            private_data: Vec::new(),
            send_size: options.send_size,
            inline,
            down: None,
            queue,
            pair,
        };
        for slot in 0..options.receives {
            connection.receive_into(slot)?;
        }
        Ok(connection)
    }

    pub(super) fn connect(&mut self, options: &Options) -> Result<()> {
        self.private_data = self.pair.id().connect(options, self.domain.limits)?.private_data;
        Ok(())
    }

    pub(super) fn accept(
        &mut self,
        options: &Options,
        limits: (u8, u8),
        private_data: Vec<u8>,
    ) -> Result<()> {
        self.private_data = private_data;
        self.pair.id().accept(options, limits)
    }

    /// Pairs it in band.
    pub(super) fn join(&mut self, path: &Path, peer: SocketAddr) -> Result<()> {
        self.peer = peer;
        self.pair.join(&self.domain, path)
    }

    /// The queue pair's number.
    pub(super) fn queue_number(&self) -> u32 {
        self.pair.number()
    }

    fn receive_into(&mut self, slot: u32) -> Result<()> {
        let mut sge = self.receives.part(slot, self.receives.size);
        let mut request = sys::RecvWr {
            wr_id: RECEIVE | u64::from(slot),
            next: ptr::null_mut(),
            sg_list: &raw mut sge,
            num_sge: 1,
        };
        let mut bad = ptr::null_mut();
        // SAFETY: the queue pair lives; the request is copied; its memory is registered as long as the queue pair lives.
        let code =
            unsafe { ((*self.domain.context()).post_recv)(self.pair.raw(), &raw mut request, &raw mut bad) };
        check_errno(code, "cannot post a receive")
    }

    /// Posts an operation of which `fill` sets what is its own.
    fn post(
        &mut self,
        (id, kind): (u64, Kind),
        post: Post,
        slot: Option<u32>,
        sge: Option<sys::Sge>,
        fill: impl FnOnce(&mut sys::SendWr),
    ) -> Result<()> {
        let (number, told) = self.posted.next(post.quiet);
        let mut sge = sge;
        // SAFETY: zero is a value of each field.
        let mut request: sys::SendWr = unsafe { std::mem::zeroed() };
        request.wr_id = number;
        if let Some(sge) = &mut sge {
            (request.sg_list, request.num_sge) = (sge, 1);
        }
        request.send_flags = u32::from(post.fence) * sys::SEND_FENCE + u32::from(told) * sys::SEND_SIGNALED;
        fill(&mut request);
        let mut bad = ptr::null_mut();
        // SAFETY: the queue pair lives; the request is copied, and inline bytes with it; other memory is named by keys.
        let code =
            unsafe { ((*self.domain.context()).post_send)(self.pair.raw(), &raw mut request, &raw mut bad) };
        check_errno(code, "cannot post an operation").inspect_err(|_| self.posted.give_slot(slot))?;
        self.posted.push(Posted { id, kind, quiet: post.quiet, slot }, told);
        Ok(())
    }

    fn check_room(&self) -> Result<()> {
        if self.down.is_some() {
            return Err(Why::Down.error("cannot post: the connection is down"));
        }
        if self.posted.is_full() {
            return Err(Why::QueueFull.error("cannot post: the queue is full"));
        }
        Ok(())
    }

    fn remote(
        &mut self,
        (id, kind): (u64, Kind),
        opcode: u32,
        local: Local<'_>,
        remote: Remote,
        post: Post,
    ) -> Result<()> {
        self.check_room()?;
        self.post((id, kind), post, None, Some(sge_of(local)), |request| {
            request.opcode = opcode;
            (request.remote_addr, request.rkey) = (remote.address, remote.key);
        })
    }

    /// What a completion of the device means to the user, if anything.
    fn completion(&mut self, wc: &sys::Wc) -> Option<Completion> {
        let why = (wc.status != 0).then(|| failure(wc.status));
        if let Some(why) = why {
            self.failed(why);
        }
        if wc.wr_id & RECEIVE != 0 {
            let slot = wc.wr_id as u32;
            if let Some(why) = why {
                return Some(Completion::Failed { id: slot.into(), kind: Kind::Receive, why });
            }
            if let Some(taken) = self.taken.get_mut(slot as usize) {
                *taken = true;
            }
            return Some(Completion::Received(message(self.number, slot, wc)));
        }
        let Posted { id, kind, quiet, .. } = self.posted.pop(wc.wr_id)?;
        match why {
            Some(why) => Some(Completion::Failed { id, kind, why }),
            None => (!quiet).then_some(Completion::Done { id, kind }),
        }
    }

    /// The first failure: the reason is rdma_cm's event, where there is one.
    fn failed(&mut self, why: Failure) {
        if self.down.is_none() {
            // An event that cannot be read leaves the failure as the reason.
            let _ = self.note_events();
            self.go_down(if why == Failure::Flushed { Down::Disconnected } else { Down::Failed(why) });
        }
    }

    fn go_down(&mut self, down: Down) {
        if self.down.is_none() {
            self.pair.disconnect(&self.domain);
            self.down = Some(down);
        }
    }

    fn note_events(&mut self) -> Result<()> {
        while let Some(event) = self.pair.id().channel.take()? {
            match event.kind {
                sys::EVENT_DISCONNECTED | sys::EVENT_ADDR_CHANGE => self.go_down(Down::Disconnected),
                sys::EVENT_DEVICE_REMOVAL => {
                    self.go_down(Down::DeviceRemoved);
                    // The event may come after the flushed work requests that it caused, and after what they made of `down`.
                    self.down = Some(Down::DeviceRemoved);
                }
                _ => {}
            }
        }
        Ok(())
    }

    fn check(&self, message: &Message) -> Result<()> {
        let is_its = message.connection() == self.number;
        if is_its && self.taken.get(message.slot() as usize) == Some(&true) {
            return Ok(());
        }
        Err(Error::new(ErrorKind::InvalidInput, "the message is another connection's"))
    }
}

fn sge_of(local: Local<'_>) -> sys::Sge {
    sys::Sge { addr: local.address, length: local.len, lkey: local.region.local_key() }
}

/// A receive that was taken.
fn message(connection: u64, slot: u32, wc: &sys::Wc) -> Message {
    let has = |flag| wc.wc_flags & flag != 0;
    // The bytes of a WRITE are counted there, and do not lie in the receive.
    let len = if wc.opcode == sys::WC_RECV_RDMA_WITH_IMM { 0 } else { wc.byte_len };
    let invalidated = has(sys::WC_WITH_INV).then_some(wc.invalidated_rkey);
    let immediate = has(sys::WC_WITH_IMM).then(|| u32::from_be(wc.invalidated_rkey));
    Message::new(connection, slot, len, invalidated).with_immediate(immediate)
}

fn failure(status: u32) -> Failure {
    match status {
        1 => Failure::LocalLength,
        4 | 8 => Failure::LocalProtection,
        5 => Failure::Flushed,
        6 => Failure::WindowBind,
        9 => Failure::RemoteInvalid,
        10 => Failure::RemoteAccess,
        11 => Failure::RemoteOperation,
        12 | 20 => Failure::Unreachable,
        13 => Failure::ReceiverNotReady,
        other => Failure::Other(other),
    }
}

/// One descriptor for two.
fn both(one: c_int, other: c_int) -> Result<OwnedFd> {
    // SAFETY: the descriptor is new; the event is a local variable.
    unsafe {
        let raw = libc::epoll_create1(libc::EPOLL_CLOEXEC);
        if raw < 0 {
            return Err(Error::last_os("cannot make an event descriptor"));
        }
        let epoll = OwnedFd::from_raw_fd(raw);
        for fd in [one, other] {
            let mut event = libc::epoll_event { events: libc::EPOLLIN as u32, u64: fd as u64 };
            if libc::epoll_ctl(epoll.as_raw_fd(), libc::EPOLL_CTL_ADD, fd, &raw mut event) != 0 {
                return Err(Error::last_os("cannot set up an event descriptor"));
            }
        }
        Ok(epoll)
    }
}

impl Connection for VerbsConnection {
    fn number(&self) -> u64 {
        self.number
    }

    fn peer(&self) -> SocketAddr {
        self.peer
    }

    fn private_data(&self) -> &[u8] {
        &self.private_data
    }

    fn send(&mut self, id: u64, bytes: &[u8], post: Post) -> Result<()> {
        check_length(bytes, self.send_size)?;
        self.check_room()?;
        let len = bytes.len() as u32;
        let slot = if len > self.inline { self.posted.take_slot() } else { None };
        let place = slot
            .zip(self.sends.as_ref())
            .and_then(|(slot, sends)| Some((sends.memory(slot, bytes.len())?, sends.part(slot, len))));
        let sge = match place {
            Some((memory, part)) => {
                // SAFETY: the slot has room for them, and is nobody else's until its operation has ended.
                unsafe { memory.bytes_mut().copy_from_slice(bytes) };
                part
            }
            None if len > self.inline => {
                return Err(Why::QueueFull.error("cannot send: no memory for it is free"));
            }
            None => sys::Sge { addr: bytes.as_ptr() as u64, length: len, lkey: 0 },
        };
        self.post((id, Kind::Send), post, slot, Some(sge), |request| {
            request.opcode = sys::WR_SEND;
            if slot.is_none() {
                request.send_flags |= sys::SEND_INLINE;
            }
            if let Some(key) = post.invalidate {
                (request.opcode, request.invalidate_rkey) = (sys::WR_SEND_WITH_INV, key);
            }
        })
    }

    fn write(&mut self, id: u64, from: Local<'_>, to: Remote, post: Post) -> Result<()> {
        self.remote((id, Kind::Write), sys::WR_RDMA_WRITE, from, to, post)
    }

    fn write_with_immediate(
        &mut self,
        id: u64,
        from: Local<'_>,
        to: Remote,
        immediate: u32,
        post: Post,
    ) -> Result<()> {
        if self.domain.device.transport == Transport::Iwarp {
            return Err(Why::Unsupported.error("cannot write with a number: iWARP has no such operation"));
        }
        self.check_room()?;
        self.post((id, Kind::Write), post, None, Some(sge_of(from)), |request| {
            (request.opcode, request.invalidate_rkey) = (sys::WR_RDMA_WRITE_WITH_IMM, immediate.to_be());
            (request.remote_addr, request.rkey) = (to.address, to.key);
        })
    }

    fn read(&mut self, id: u64, into: Local<'_>, from: Remote, post: Post) -> Result<()> {
        self.remote((id, Kind::Read), sys::WR_RDMA_READ, into, from, post)
    }

    fn probe(&mut self, id: u64) -> Result<()> {
        self.check_room()?;
        // No bytes, no key, no address.
        self.post((id, Kind::Write), Post::QUIET, None, None, |request| request.opcode = sys::WR_RDMA_WRITE)
    }

    fn bind(
        &mut self,
        id: u64,
        window: &mut Window,
        to: Local<'_>,
        access: Access,
        post: Post,
    ) -> Result<()> {
        self.check_room()?;
        let mr = to.region.handle::<Mr>().and_then(|handle| handle.raw);
        let mw = window.handle::<Mw>().and_then(|handle| handle.raw);
        let (Some(mr), Some(mw)) = (mr, mw) else {
            return Err(Error::new(ErrorKind::InvalidInput, "the window or the memory is another fabric's"));
        };
        let key = window.next_key();
        self.post((id, Kind::Bind), post, None, None, |request| {
            request.opcode = sys::WR_BIND_MW;
            (request.mw, request.mw_rkey, request.mw_mr) = (mw.as_ptr(), key, mr.as_ptr());
            (request.mw_addr, request.mw_length) = (to.address, to.len.into());
            request.mw_access = access.bits() & (Access::REMOTE_READ | Access::REMOTE_WRITE).bits();
        })?;
        // SAFETY: the window lives as long as its handle; some providers bind anew only from the key that is noted here.
        unsafe { (*mw.as_ptr()).rkey = key };
        window.set_bound(key);
        Ok(())
    }

    fn invalidate(&mut self, id: u64, window: &mut Window, post: Post) -> Result<()> {
        self.check_room()?;
        let key = window.key();
        self.post((id, Kind::Invalidate), post, None, None, |request| {
            (request.opcode, request.invalidate_rkey) = (sys::WR_LOCAL_INV, key);
        })?;
        window.set_invalid();
        Ok(())
    }

    fn poll(&mut self, out: &mut Vec<Completion>) -> Result<usize> {
        let room = if out.capacity() > out.len() { out.capacity() - out.len() } else { ROOM };
        let before = out.len();
        // SAFETY: zero is a value of each field.
        let mut bunch: [sys::Wc; BUNCH] = unsafe { std::mem::zeroed() };
        loop {
            let wanted = BUNCH.min(room - (out.len() - before));
            let count = self.queue.poll(&mut bunch[..wanted]);
            let count = usize::try_from(count).map_err(|_| {
                Error::new(ErrorKind::Io, "cannot take completions").with("device", &self.domain.device.name)
            })?;
            for wc in &bunch[..count] {
                let completion = self.completion(wc);
                out.extend(completion);
            }
            if count < wanted || out.len() - before == room {
                return Ok(out.len() - before);
            }
        }
    }

    fn bytes(&self, message: &Message) -> Result<&[u8]> {
        self.check(message)?;
        let memory = self.receives.memory(message.slot(), message.len());
        let memory = memory.ok_or_else(|| Error::new(ErrorKind::Internal, "the message is not there"))?;
        // SAFETY: the device has written the part, and gets it again with the message, which is borrowed until then.
        Ok(unsafe { memory.bytes() })
    }

    fn post_receive(&mut self, message: Message) -> Result<()> {
        self.check(&message)?;
        if self.down.is_some() {
            return Err(Why::Down.error("cannot post a receive: the connection is down"));
        }
        self.taken[message.slot() as usize] = false;
        self.receive_into(message.slot())
    }

    fn arm(&mut self) -> Result<()> {
        self.queue.drain();
        self.note_events()?;
        check_errno(self.queue.arm(), "cannot ask for completion events")
    }

    fn descriptor(&self) -> BorrowedFd<'_> {
        self.both.as_fd()
    }

    fn down(&self) -> Option<Down> {
        self.down
    }

    fn disconnect(&mut self) {
        self.go_down(Down::Disconnected);
    }
}

impl Drop for VerbsConnection {
    fn drop(&mut self) {
        if self.domain.libraries.is_own_process() {
            self.pair.disconnect(&self.domain);
        }
    }
}

impl fmt::Debug for VerbsConnection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("VerbsConnection")
            .field("number", &self.number)
            .field("peer", &self.peer)
            .field("down", &self.down)
            .finish_non_exhaustive()
    }
}
