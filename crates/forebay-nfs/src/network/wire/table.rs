//! Calls under way on one connection. A call keeps its entry, and its place in the session, until it is answered or fails.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use forebay_remote::retry::RetryPauses;

use super::call::{CallState, HEADER, RDMA_HEADER, SendRanges, WireCall};
use crate::network::job::{IoJob, JobPart, NextStep};
use crate::network::server::{NfsServer, NfsSession};
use crate::protocol::handle::{CallLimits, NfsVersion};
use crate::protocol::io_call::{IoOperation, IoReply};
use crate::protocol::rpc::next_xid;
use crate::protocol::v4::SequenceSlot;
use crate::protocol::xdr::{Malformed, XdrWriter};

/// The calls of a wire.
pub(crate) struct CallTable {
    pub(crate) calls: Box<[WireCall]>,
    to_send: VecDeque<usize>,
    /// Which wire it is of, and of how many: they take the session's slots in batch.
    wire: (usize, usize),
    /// Some calls may be parked.
    parks: bool,
    /// The session that was used last.
    epoch: u32,
    /// Entries that have a slot in it.
    room: Arc<AtomicUsize>,
    /// The entry behind the one that was answered last: replies mostly come in the order of calls.
    expected: usize,
    /// Replies to calls.
    answered: u64,
    /// Bytes that the socket has taken, where calls are sent by one: of this connection.
    sent: u64,
}

impl CallTable {
    pub(crate) fn new(depth: usize, wire: (usize, usize)) -> Self {
        let now = Instant::now();
        let call = || WireCall {
            xid: 0,
            state: CallState::Free,
            part: None,
            job: None,
            place: None,
            header: [0; RDMA_HEADER + HEADER],
            reads: None,
            len: 0,
            sent: 0,
            sequence: (0, 0),
            is_known: false,
            began: now,
            asked: now,
            answered_before: 0,
            pauses: RetryPauses::default(),
        };
        let calls = (0..depth).map(|_| call()).collect();
        let room = Arc::new(AtomicUsize::new(depth));
        Self {
            calls,
            to_send: VecDeque::with_capacity(depth),
            wire,
            parks: false,
            epoch: 0,
            room,
            expected: 0,
            answered: 0,
            sent: 0,
        }
    }

    /// How many calls have room: fewer where a new session has fewer slots.
    pub(crate) fn room(&self) -> Arc<AtomicUsize> {
        self.room.clone()
    }

    /// The slot of an entry; slot 0 is for calls without bytes.
    const fn slot(&self, index: usize) -> u32 {
        (1 + index * self.wire.1 + self.wire.0) as u32
    }

    /// An entry for a call that has a slot in a session of `slots`: its own, or a free one that it moves to. `None`: it has to wait.
    fn with_slot(&mut self, index: usize, slots: u32) -> Result<Option<usize>, Malformed> {
        if self.slot(index) < slots {
            return Ok(Some(index));
        }
        if self.slot(0) >= slots {
            return Err(Malformed(
                "a session has fewer slots than the one before, and none for this connection",
            ));
        }
        let may = |other: &usize| self.slot(*other) < slots && self.calls[*other].state == CallState::Free;
        let Some(other) = (0..index).find(may) else { return Ok(None) };
        let (below, above) = self.calls.split_at_mut(index);
        std::mem::swap(&mut below[other], &mut above[0]);
        // The number of the last call is the slot's.
        std::mem::swap(&mut below[other].sequence, &mut above[0].sequence);
        Ok(Some(other))
    }

    /// Takes note of a new session.
    fn enter(&mut self, session: &NfsSession) {
        self.epoch = session.epoch;
        if let Some(granted) = session.granted {
            let room = (0..self.calls.len()).filter(|index| self.slot(*index) < granted.slots).count();
            // Without any the first wire is what tells.
            self.room.store(room.max(usize::from(self.wire.0 == 0)), Ordering::Relaxed);
        }
    }

    /// Whether nothing is under way.
    pub(crate) fn is_idle(&self) -> bool {
        self.calls.iter().all(|call| call.state == CallState::Free)
    }

    /// Since when the oldest call waits that is sent, or to be sent.
    pub(crate) fn oldest_asked(&self) -> Option<Instant> {
        let waiting =
            self.calls.iter().filter(|call| !matches!(call.state, CallState::Free | CallState::Parked(_)));
        waiting.map(|call| call.asked).min()
    }

    /// Since when the oldest call waits that more replies have overtaken than a server in its senses sends before it: twice as many as
    /// there is room for calls, of which half at most were asked for before.
    pub(crate) fn oldest_overtaken(&self) -> Option<Instant> {
        let most = 2 * self.calls.len() as u64;
        let is_overtaken =
            |call: &&WireCall| call.state == CallState::Sent && self.answered - call.answered_before >= most;
        self.calls.iter().filter(is_overtaken).map(|call| call.asked).min()
    }

    /// Replies to calls so far.
    pub(crate) const fn answered(&self) -> u64 {
        self.answered
    }

    pub(crate) const fn count_reply(&mut self) {
        self.answered += 1;
    }

    /// Bytes that the connection's socket has taken.
    pub(crate) const fn sent(&self) -> u64 {
        self.sent
    }

    /// Since when the first of them has got nowhere.
    pub(crate) fn oldest(&self) -> Option<Instant> {
        let waiting =
            self.calls.iter().filter(|call| !matches!(call.state, CallState::Free | CallState::Parked(_)));
        waiting.map(|call| call.began).min()
    }

    /// A free entry. There is one: entries are reserved.
    pub(crate) fn free(&self) -> Result<usize, Malformed> {
        let free = self.calls.iter().position(|call| call.state == CallState::Free);
        free.ok_or(Malformed("a wire has more calls than room"))
    }

    /// Puts a part into a free entry.
    #[inline]
    pub(crate) fn put(
        &mut self,
        server: &NfsServer,
        index: usize,
        (job, part): (Arc<IoJob>, JobPart),
        now: Instant,
    ) -> Result<(), Malformed> {
        let call = &mut self.calls[index];
        (call.job, call.part) = (Some(job), Some(part));
        (call.began, call.pauses) = (now, RetryPauses::default());
        // What cannot be asked ends by this error alone: an entry that has it would give it to another wire, too.
        self.ask(server, index, now).inspect_err(|_| drop(self.end(index)))
    }

    /// Asks for the rest of a call's part, as a new call.
    pub(crate) fn ask(&mut self, server: &NfsServer, index: usize, now: Instant) -> Result<(), Malformed> {
        let session = server.session();
        if session.epoch != self.epoch {
            self.enter(&session);
        }
        let slots = session.granted.map_or(u32::MAX, |granted| granted.slots);
        let Some(index) = self.with_slot(index, slots)? else {
            self.park(index);
            return Ok(());
        };
        let slot = self.slot(index);
        let call = &mut self.calls[index];
        let (Some(part), Some(job)) = (&mut call.part, &call.job) else {
            return Err(Malformed("a call of nothing"));
        };
        // A session after a restart may take less in a call.
        if session.granted.is_some() {
            part.limit(session.limits());
        }
        call.place = session.granted.map(|granted| {
            if call.sequence.0 != session.epoch {
                call.sequence = (session.epoch, 0);
            }
            call.sequence.1 += 1;
            call.is_known = false;
            SequenceSlot {
                session: granted.session,
                slot,
                sequence: call.sequence.1,
                highest: granted.slots - 1,
            }
        });
        call.xid = next_xid();
        if call.reads.as_ref().is_some_and(|file| Arc::ptr_eq(file, job.file()))
            && part.io.operation == IoOperation::Read
        {
            let io = part.io;
            call.read_another(io);
        } else {
            let mut to = XdrWriter::new(&mut call.header[RDMA_HEADER..]);
            to.u32(0);
            let what = (server.version, &job.file().handle);
            part.io.encode(&mut to, what, call.xid, &server.who, call.place.as_ref());
            call.len = to.finish()?;
            let is_read = server.version == NfsVersion::V3 && part.io.operation == IoOperation::Read;
            call.reads = is_read.then(|| job.file().clone());
            let mark = 1 << 31 | (call.len + call.payload() - 4) as u32;
            call.header[RDMA_HEADER..RDMA_HEADER + 4].copy_from_slice(&mark.to_be_bytes());
        }
        self.send(index, now);
        Ok(())
    }

    /// The server did not take the call into account: the next one in the slot has the same number.
    pub(crate) fn take_back_place(&mut self, index: usize) {
        let sequence = &mut self.calls[index].sequence.1;
        *sequence = sequence.saturating_sub(1);
    }

    fn send(&mut self, index: usize, now: Instant) {
        let call = &mut self.calls[index];
        (call.state, call.sent, call.asked) = (CallState::Queued, 0, now);
        call.answered_before = self.answered;
        self.to_send.push_back(index);
    }

    /// All calls are to be sent on a new connection, as they are, oldest first. Returns how many had been sent before.
    pub(crate) fn send_all_again(&mut self) -> usize {
        self.to_send.clear();
        self.sent = 0;
        let mut lost: Vec<_> = (0..self.calls.len())
            .filter(|index| !matches!(self.calls[*index].state, CallState::Free | CallState::Parked(_)))
            .collect();
        lost.sort_by_key(|index| self.calls[*index].began);
        let again = lost.iter().filter(|index| self.calls[**index].sent > 0).count();
        for index in &lost {
            let call = &mut self.calls[*index];
            call.is_known |= call.state != CallState::Queued;
        }
        let now = Instant::now();
        for index in lost {
            self.send(index, now);
        }
        again
    }

    /// Whether some calls may be parked.
    pub(crate) const fn has_parked(&self) -> bool {
        self.parks
    }

    /// Parked calls whose time has come are asked anew.
    pub(crate) fn unpark(&mut self, server: &NfsServer) -> Result<(), Malformed> {
        if !self.parks {
            return Ok(());
        }
        self.parks = self.next_parked().is_some();
        let now = Instant::now();
        for index in 0..self.calls.len() {
            if matches!(self.calls[index].state, CallState::Parked(until) if until <= now) {
                // The server owed nothing meanwhile.
                server.clock.asked(now);
                self.ask(server, index, now)?;
            }
        }
        Ok(())
    }

    /// When the next parked call's time comes.
    pub(crate) fn next_parked(&self) -> Option<Instant> {
        let until = |call: &WireCall| match call.state {
            CallState::Parked(until) => Some(until),
            _ => None,
        };
        self.calls.iter().filter_map(until).min()
    }

    /// The call is asked anew: at once the first time, then later and later.
    pub(crate) fn again(&mut self, index: usize) {
        let call = &mut self.calls[index];
        let is_first = call.pauses == RetryPauses::default();
        let pause = call.pauses.next_pause();
        let pause = if is_first { Duration::ZERO } else { pause };
        self.parks = true;
        call.state = CallState::Parked(Instant::now() + pause);
    }

    /// Lets a call wait; each time longer.
    pub(crate) fn park(&mut self, index: usize) {
        self.parks = true;
        let call = &mut self.calls[index];
        call.state = CallState::Parked(Instant::now() + call.pauses.next_pause());
    }

    /// The call that is to be sent next, if messages are sent whole.
    pub(crate) fn first_to_send(&self) -> Option<usize> {
        self.to_send.front().copied()
    }

    /// It was sent as a whole.
    pub(crate) fn has_sent_first(&mut self) {
        if let Some(index) = self.to_send.pop_front() {
            let call = &mut self.calls[index];
            (call.state, call.sent) = (CallState::Sent, call.len);
        }
    }

    /// The next call to send.
    pub(crate) fn next_to_send(&self) -> Option<SendRanges> {
        self.to_send.front().map(|index| self.calls[*index].left())
    }

    /// Notes that bytes of it were sent.
    pub(crate) fn has_sent(&mut self, bytes: usize) {
        let Some(index) = self.to_send.front().copied() else { return };
        let call = &mut self.calls[index];
        call.sent += bytes;
        self.sent += bytes as u64;
        if call.sent == call.len + call.payload() {
            call.state = CallState::Sent;
            self.to_send.pop_front();
        }
    }

    /// The call that a reply is of. A reply to a call not sent yet is wrong.
    #[inline]
    pub(crate) fn find(&mut self, xid: u32) -> Result<Option<usize>, Malformed> {
        let is_it = |call: &WireCall| {
            call.xid == xid && !matches!(call.state, CallState::Free | CallState::Parked(_))
        };
        let expected = self.calls.get(self.expected).is_some_and(is_it).then_some(self.expected);
        let Some(index) = expected.or_else(|| self.calls.iter().position(is_it)) else { return Ok(None) };
        if self.calls[index].state != CallState::Sent {
            return Err(Malformed("a reply to a call that was not sent yet"));
        }
        self.expected = if index + 1 == self.calls.len() { 0 } else { index + 1 };
        Ok(Some(index))
    }

    /// Frees an entry. A call that no connection has sent as a whole takes no number of its slot.
    #[inline]
    pub(crate) fn end(&mut self, index: usize) -> Option<Arc<IoJob>> {
        if self.calls[index].state == CallState::Queued {
            self.to_send.retain(|other| *other != index);
            if !self.calls[index].is_known {
                self.take_back_place(index);
            }
        }
        let call = &mut self.calls[index];
        call.state = CallState::Free;
        call.part = None;
        call.job.take()
    }

    /// Takes a call out, to be made elsewhere.
    pub(crate) fn give(&mut self, index: usize) -> Option<(Arc<IoJob>, JobPart)> {
        let part = self.calls[index].part;
        self.end(index).zip(part)
    }

    /// Takes note of a reply that moved bytes. `None`: the entry has what to ask for next, of the same job; a new part of it only if
    /// `limits` are given.
    #[inline]
    pub(crate) fn note_reply(
        &mut self,
        index: usize,
        reply: IoReply,
        limits: Option<CallLimits>,
        now: Instant,
    ) -> Option<NextStep> {
        let call = &mut self.calls[index];
        let (Some(job), Some(part)) = (&call.job, &mut call.part) else { return Some(NextStep::Wait) };
        let next = job.note_reply(part, reply, limits);
        if next.is_none() {
            (call.pauses, call.began) = (RetryPauses::default(), now);
        }
        next
    }
}

#[cfg(test)]
mod tests {
    use forebay_source::HostRange;

    use super::*;
    use crate::network::job::{Direction, FileTarget, IoRequest};
    use crate::network::options::NfsOptions;
    use crate::protocol::handle::NfsHandle;
    use crate::protocol::io_call::IoCall;

    fn job(file: Arc<FileTarget>) -> Arc<IoJob> {
        let request = IoRequest {
            file,
            direction: Direction::Read,
            offset: 0,
            memory: HostRange::new(std::ptr::null(), 1),
            registered: None,
            state: None,
            durable: false,
        };
        // SAFETY: nothing is sent, so nothing is moved.
        unsafe { IoJob::new(request, Box::new(drop), Instant::now()) }
    }

    #[test]
    fn an_entry_does_not_keep_what_could_not_be_asked() {
        let server =
            NfsServer::new("server".to_owned(), Vec::new(), NfsVersion::V4(1), NfsOptions::default());
        server.grant(1);
        let mut table = CallTable::new(1, (0, 1));
        let file = FileTarget { handle: NfsHandle::new(&[1]).unwrap(), name: "file".to_owned() };
        let io = IoCall { operation: IoOperation::Read, offset: 0, count: 1, tells_state: false };
        let part = JobPart { io, memory: HostRange::new(std::ptr::null(), 1), at: 0, is_placed: false };
        table.put(&server, 0, (job(Arc::new(file)), part), Instant::now()).unwrap_err();
        assert!(table.give(0).is_none());
    }

    /// The server's slot stands where the last call that it has seen left it.
    #[test]
    fn a_call_that_was_never_sent_takes_no_number() {
        let server =
            NfsServer::new("server".to_owned(), Vec::new(), NfsVersion::V4(1), NfsOptions::default());
        server.grant(2);
        let mut table = CallTable::new(1, (0, 1));
        let file = Arc::new(FileTarget { handle: NfsHandle::new(&[1]).unwrap(), name: "file".to_owned() });
        let io = IoCall { operation: IoOperation::Read, offset: 0, count: 1, tells_state: false };
        let mut sequence = |steps: fn(&mut CallTable)| {
            let part = JobPart { io, memory: HostRange::new(std::ptr::null(), 1), at: 0, is_placed: false };
            table.put(&server, 0, (job(file.clone()), part), Instant::now()).unwrap();
            steps(&mut table);
            table.end(0);
            table.calls[0].place.map(|place| place.sequence)
        };
        assert_eq!(sequence(|_| {}), Some(1));
        // Half a call is none.
        assert_eq!(sequence(|table| table.has_sent(9)), Some(1));
        assert_eq!(sequence(CallTable::has_sent_first), Some(1));
        assert_eq!(
            sequence(|table| {
                table.has_sent_first();
                table.send_all_again();
            }),
            Some(2)
        );
        // It may have come by the connection before.
        assert_eq!(sequence(|_| {}), Some(3));
    }

    #[test]
    fn the_header_of_an_entry_is_that_of_its_call() {
        let file = |byte: u8, len| {
            Arc::new(FileTarget {
                handle: NfsHandle::new(&vec![byte; len]).unwrap(),
                name: "file".to_owned(),
            })
        };
        let (one, other) = (file(1, 28), file(2, 64));
        let write = IoOperation::Write { durable: true };
        let calls = [
            (&one, IoOperation::Read, 0, 4096),
            (&one, IoOperation::Read, 1 << 40, 1 << 20),
            (&other, IoOperation::Read, 7, 9),
            (&other, write, 7, 9),
            (&other, IoOperation::Read, 9, 7),
            (&other, IoOperation::Commit, 0, 0),
        ];
        for version in [NfsVersion::V3, NfsVersion::V4(0)] {
            let server = NfsServer::new("server".to_owned(), Vec::new(), version, NfsOptions::default());
            let mut table = CallTable::new(1, (0, 1));
            for (file, operation, offset, count) in calls {
                let job = job(file.clone());
                let io = IoCall { operation, offset, count, tells_state: false };
                let part =
                    JobPart { io, memory: HostRange::new(std::ptr::null(), 1), at: 0, is_placed: false };
                table.put(&server, 0, (job, part), Instant::now()).unwrap();
                let call = &mut table.calls[0];
                let mut place = [0; HEADER];
                let mut to = XdrWriter::new(&mut place);
                io.encode(&mut to, (version, &file.handle), call.xid, &server.who, None);
                let len = to.finish().unwrap();
                assert_eq!(call.message(0), &place[..len], "{version} {operation:?}");
                table.end(0);
            }
        }
    }
}
