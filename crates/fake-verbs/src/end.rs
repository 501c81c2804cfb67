//! One end of a connection: what arrives there, and what it carries out at the other.

use std::collections::VecDeque;
use std::mem;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, Weak};
use std::time::{Duration, Instant};

use forebay_error::{Error, Result};
use forebay_verbs::{Access, Down, Failure, Kind, Options, QueueEnd, Transport};

use crate::faults::{Entry, Side, What};
use crate::lock;
use crate::machine::{Attached, Machine, next_number};
use crate::op::{Action, Op, Own};
use crate::queue::Queue;
use crate::table::{Asker, Refusal, Span};

/// Where an end is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place {
    pub(crate) device: usize,
    pub(crate) domain: u64,
    pub(crate) side: Side,
}

/// What waits to be polled.
#[derive(Debug)]
pub(crate) enum Ended {
    Message { slot: u32, bytes: Box<[u8]>, len: u32, invalidated: Option<u32>, immediate: Option<u32> },
    Done { id: u64, kind: Kind },
    Failed { id: u64, kind: Kind, why: Failure },
}

#[derive(Debug, Default)]
pub(crate) struct State {
    pub(crate) receives: VecDeque<(u32, Box<[u8]>)>,
    pub(crate) ended: VecDeque<Ended>,
    pub(crate) in_flight: u32,
    pub(crate) down: Option<Down>,
    armed: bool,
    signalled: bool,
}

/// Operations that could not be carried out when they were posted.
#[derive(Debug, Default)]
struct Late {
    queue: VecDeque<(Option<Instant>, Op<'static>)>,
    held: Vec<(u32, Op<'static>)>,
}

impl Late {
    /// After a message: one fewer to hold others for.
    fn carried(&mut self, kind: Kind) {
        if kind == Kind::Send {
            for (left, _) in &mut self.held {
                *left = left.saturating_sub(1);
            }
        }
    }
}

/// How carrying out an operation ended.
enum Verdict {
    Done,
    /// The peer has no receive posted, and this side waits for one.
    NotReady,
    /// This end is down by it, and the peer's too if so said.
    Broken {
        why: Failure,
        peer: Option<Down>,
    },
}

#[derive(Debug)]
pub(crate) struct End {
    pub(crate) number: u64,
    pub(crate) place: Place,
    pub(crate) signal: OwnedFd,
    machine: Arc<Machine>,
    sends: u32,
    waits: bool,
    reads_in: u8,
    reads_out: u8,
    peer: OnceLock<Weak<End>>,
    /// Where it is paired in band.
    pub(crate) queue: Option<Queue>,
    /// Whether the state says that it is down; to be asked without locking.
    gone: AtomicBool,
    /// Whether the peer does not hear of its end.
    mute: AtomicBool,
    state: Mutex<State>,
    late: Mutex<Late>,
}

impl End {
    /// An end with all its receives posted; of a queue pair that is paired in band, if so.
    pub(crate) fn new(
        machine: &Arc<Machine>,
        place: Place,
        options: &Options,
        own: Option<QueueEnd>,
    ) -> Result<Arc<Self>> {
        let buffer = |slot| (slot, vec![0; options.receive_size as usize].into_boxed_slice());
        let state = State { receives: (0..options.receives).map(buffer).collect(), ..State::default() };
        let reads = machine.device(place.device).map_or(0, |device| device.reads);
        let end = Arc::new(Self {
            number: next_number(),
            place,
            signal: event_descriptor()?,
            machine: Arc::clone(machine),
            sends: options.sends,
            waits: options.receiver_retries > 0,
            reads_in: options.reads_in.min(reads),
            reads_out: options.reads_out,
            peer: OnceLock::new(),
            queue: own.map(Queue::new),
            gone: AtomicBool::new(false),
            // Paired in band, a peer hears of an end by messages of programs alone.
            mute: AtomicBool::new(own.is_some()),
            state: Mutex::new(state),
            late: Mutex::default(),
        });
        let attached: Weak<dyn Attached> = Arc::downgrade(&end) as _;
        machine.add_end(attached);
        Ok(end)
    }

    /// Makes two ends a connection.
    pub(crate) fn join(one: &Arc<Self>, other: &Arc<Self>) {
        let _ = one.peer.set(Arc::downgrade(other));
        let _ = other.peer.set(Arc::downgrade(one));
    }

    pub(crate) fn state(&self) -> std::sync::MutexGuard<'_, State> {
        lock(&self.state)
    }

    pub(crate) fn is_down(&self) -> bool {
        self.gone.load(Ordering::Acquire)
    }

    fn peer(&self) -> Option<Arc<Self>> {
        self.peer.get()?.upgrade()
    }

    fn asker(&self) -> Asker {
        Asker { domain: self.place.domain, connection: self.number }
    }

    /// Counts an operation in, if there is room in the queue.
    pub(crate) fn reserve(&self) -> bool {
        let mut state = self.state();
        let room = state.in_flight < self.sends;
        state.in_flight += u32::from(room);
        room
    }

    /// Carries out an operation that was counted in, now or when its turn comes.
    pub(crate) fn post(self: &Arc<Self>, op: Op<'_>) {
        let fault = self.machine.faults.take(self.place.side, op.kind());
        if self.replace(fault, &op) {
            return;
        }
        let mut late = lock(&self.late);
        match fault {
            Some(What::Hold(count)) => late.held.push((count, op.owned())),
            Some(What::Delay(delay)) => {
                late.queue.push_back((Some(Instant::now() + delay), op.owned()));
                self.resume_later(delay);
            }
            _ if !late.queue.is_empty() => late.queue.push_back((None, op.owned())),
            _ if self.carry_out(&op) => {
                late.carried(op.kind());
                self.pump(&mut late);
            }
            _ => late.queue.push_back((None, op.owned())),
        }
    }

    /// Faults that take the place of the operation.
    fn replace(&self, fault: Option<What>, op: &Op<'_>) -> bool {
        match fault {
            Some(What::Lose) => self.complete(op, None),
            Some(What::Unreachable) => {
                self.complete(op, Some(Failure::Unreachable));
                self.take_down(Down::Failed(Failure::Unreachable));
            }
            Some(What::Refuse) => {
                let why = Failure::RemoteInvalid;
                self.complete(op, Some(why));
                self.take_down(Down::Failed(why));
                self.disconnect_both();
            }
            Some(What::Vanish) => {
                self.mute.store(true, Ordering::Release);
                self.disconnect();
                self.complete(op, Some(Failure::Flushed));
            }
            Some(What::Disconnect) => {
                self.disconnect_both();
                self.complete(op, Some(Failure::Flushed));
            }
            Some(What::RemoveDevice) => {
                self.machine.remove_device(self.place.device);
                self.complete(op, Some(Failure::Flushed));
            }
            _ => return false,
        }
        true
    }

    /// Carries out what waits, as far as it can be now.
    pub(crate) fn resume(&self) {
        self.pump(&mut lock(&self.late));
    }

    fn resume_later(self: &Arc<Self>, delay: Duration) {
        let end = Arc::downgrade(self);
        // A thread of its own: few operations of a test are late.
        std::thread::spawn(move || {
            std::thread::sleep(delay);
            if let Some(end) = end.upgrade() {
                end.resume();
            }
        });
    }

    fn pump(&self, late: &mut Late) {
        if late.queue.is_empty() && late.held.is_empty() {
            return;
        }
        while !self.is_down() {
            if let Some((due, op)) = late.queue.front() {
                if due.is_some_and(|due| due > Instant::now()) || !self.carry_out(op) {
                    return;
                }
                let kind = op.kind();
                late.queue.pop_front();
                late.carried(kind);
            } else if let Some(at) = late.held.iter().position(|(left, _)| *left == 0) {
                let (_, op) = late.held.remove(at);
                late.queue.push_back((None, op));
            } else {
                return;
            }
        }
        let queued = mem::take(&mut late.queue).into_iter().map(|(_, op)| op);
        for op in queued.chain(mem::take(&mut late.held).into_iter().map(|(_, op)| op)) {
            self.complete(&op, Some(Failure::Flushed));
        }
    }

    /// Carries out an operation; false if the peer is not ready for it.
    fn carry_out(&self, op: &Op<'_>) -> bool {
        if self.is_down() {
            self.complete(op, Some(Failure::Flushed));
            return true;
        }
        let peer = self.peer();
        let verdict = match &op.action {
            Action::Bind { keys, to, access } => {
                let bound = self.machine.change_table().bind(*keys, self.asker(), (to.key, to.span), *access);
                self.own(op, bound, Failure::WindowBind)
            }
            Action::Invalidate { key } => {
                let done = self.machine.change_table().invalidate(*key, self.asker());
                self.own(op, done, Failure::WindowBind)
            }
            _ => match &peer {
                Some(peer) if !peer.is_down() => self.carry_to(peer, op),
                _ => Verdict::Broken { why: Failure::Unreachable, peer: None },
            },
        };
        match verdict {
            Verdict::NotReady => return false,
            Verdict::Done => self.complete(op, None),
            Verdict::Broken { why, peer: peer_down } => {
                self.complete(op, Some(why));
                self.take_down(Down::Failed(why));
                if let (Some(peer), Some(down)) = (peer, peer_down) {
                    peer.take_down(down);
                }
            }
        }
        true
    }

    /// The verdict on what the table of keys said of this side's own request.
    fn own(&self, op: &Op<'_>, said: Result<(), Refusal>, why: Failure) -> Verdict {
        self.note(op, said.err());
        said.map_or(Verdict::Broken { why, peer: None }, |()| Verdict::Done)
    }

    fn carry_to(&self, peer: &Self, op: &Op<'_>) -> Verdict {
        match &op.action {
            Action::Send { bytes, invalidate } => self.deliver(peer, op, bytes, *invalidate),
            Action::Write { from, to, immediate } => {
                let span = Span { address: to.address, len: from.span.len };
                let written =
                    self.copy(peer, op, (*from, Access::READ), (to.key, span, Access::REMOTE_WRITE));
                match written {
                    Verdict::Done if immediate.is_some() => self.deliver(peer, op, &[], None),
                    written => written,
                }
            }
            Action::Read { into, from } => {
                if self.reads_out.min(peer.reads_in) == 0 {
                    return Verdict::Broken { why: Failure::RemoteInvalid, peer: None };
                }
                let span = Span { address: from.address, len: into.span.len };
                self.copy(peer, op, (*into, Access::WRITE), (from.key, span, Access::REMOTE_READ))
            }
            Action::Probe | Action::Bind { .. } | Action::Invalidate { .. } => Verdict::Done,
        }
    }

    /// Copies between this side's memory and the peer's, if both keys open theirs.
    fn copy(&self, peer: &Self, op: &Op<'_>, own: (Own, Access), other: (u32, Span, Access)) -> Verdict {
        let (own, own_right) = own;
        let (key, span, right) = other;
        let ended = Some(Down::Disconnected);
        // Held while bytes move: memory is deregistered, and an end is down, only between copies.
        let table = self.machine.table();
        let here = match table.find(own.key, self.asker(), own.span, own_right) {
            Ok(here) => here,
            Err(refusal) => {
                self.note(op, Some(refusal));
                return Verdict::Broken { why: Failure::LocalProtection, peer: None };
            }
        };
        let there = match table.find(key, peer.asker(), span, right) {
            Ok(there) if !peer.is_down() => there,
            Ok(_) => return Verdict::Broken { why: Failure::Unreachable, peer: None },
            Err(refusal) => {
                self.note(op, Some(refusal));
                return Verdict::Broken { why: Failure::RemoteAccess, peer: ended };
            }
        };
        let (from, to) = if right == Access::REMOTE_WRITE { (here, there) } else { (there, here) };
        // SAFETY: both ranges lie within regions of the table, whose memory stays while they are in it; the table is held. That
        // others read and write it meanwhile is what those who registered it agreed to. They may overlap: `copy` allows it.
        unsafe { std::ptr::copy(from as *const u8, to as *mut u8, span.len as usize) };
        drop(table);
        self.note(op, None);
        Verdict::Done
    }

    /// Puts a message into the peer's next receive.
    fn deliver(&self, peer: &Self, op: &Op<'_>, bytes: &[u8], invalidate: Option<u32>) -> Verdict {
        let ended = Some(Down::Disconnected);
        let mut state = peer.state();
        if state.down.is_some() {
            return Verdict::Broken { why: Failure::Unreachable, peer: None };
        }
        let Some((slot, mut buffer)) = state.receives.pop_front() else {
            if self.waits {
                return Verdict::NotReady;
            }
            return Verdict::Broken { why: Failure::ReceiverNotReady, peer: None };
        };
        let Some(place) = buffer.get_mut(..bytes.len()) else {
            let why = Failure::LocalLength;
            state.ended.push_back(Ended::Failed { id: slot.into(), kind: Kind::Receive, why });
            return Verdict::Broken { why: Failure::RemoteInvalid, peer: Some(Down::Failed(why)) };
        };
        if let Some(key) = invalidate {
            // The table and a state are not locked together.
            drop(state);
            if let Err(refusal) = self.machine.change_table().invalidate(key, peer.asker()) {
                self.note(op, Some(refusal));
                return Verdict::Broken { why: Failure::RemoteInvalid, peer: ended };
            }
            state = peer.state();
        }
        place.copy_from_slice(bytes);
        let immediate = op.immediate();
        // A WRITE was noted with its bytes.
        if immediate.is_none() {
            self.note(op, None);
        }
        let len = bytes.len() as u32;
        let message = Ended::Message { slot, bytes: buffer, len, invalidated: invalidate, immediate };
        peer.put(&mut state, message);
        Verdict::Done
    }

    fn note(&self, op: &Op<'_>, refused: Option<Refusal>) {
        self.machine.journal.note(Entry {
            connection: self.number,
            side: self.place.side,
            kind: op.kind(),
            remote: op.remote(),
            len: op.len(),
            refused,
        });
    }

    fn complete(&self, op: &Op<'_>, failure: Option<Failure>) {
        let (id, kind) = (op.id, op.kind());
        let mut state = self.state();
        match failure {
            None if op.quiet => state.in_flight -= 1,
            None => self.put(&mut state, Ended::Done { id, kind }),
            Some(why) => self.put(&mut state, Ended::Failed { id, kind, why }),
        }
    }

    fn put(&self, state: &mut State, ended: Ended) {
        state.ended.push_back(ended);
        self.signal(state, false);
    }

    fn signal(&self, state: &mut State, always: bool) {
        if (state.armed || always) && !state.signalled {
            (state.armed, state.signalled) = (false, true);
            write_event(&self.signal);
        }
    }

    /// Has the next change make the descriptor readable.
    pub(crate) fn arm(&self) {
        let mut state = self.state();
        if mem::take(&mut state.signalled) {
            read_event(&self.signal);
        }
        state.armed = true;
    }

    /// Ends the connection, and tells the peer if it can.
    pub(crate) fn disconnect(&self) {
        if self.mute.load(Ordering::Acquire) {
            self.take_down(Down::Disconnected);
        } else {
            self.disconnect_both();
        }
    }

    fn disconnect_both(&self) {
        self.take_down(Down::Disconnected);
        if let Some(peer) = self.peer() {
            peer.take_down(Down::Disconnected);
        }
    }

    /// Whether its device knows WRITEs with a number.
    pub(crate) fn has_immediates(&self) -> bool {
        let device = self.machine.device(self.place.device);
        device.is_none_or(|device| device.transport != Transport::Iwarp)
    }

    /// Has the peer go on, if it waits for a receive.
    pub(crate) fn resume_peer(&self) {
        if let Some(peer) = self.peer()
            && peer.waits
        {
            peer.resume();
        }
    }
}

impl Attached for End {
    fn device(&self) -> usize {
        self.place.device
    }

    /// This end is down: receives are flushed, and nothing of the peer's is under way into its memory afterwards.
    fn take_down(&self, down: Down) {
        {
            let mut state = self.state();
            if state.down.is_some() {
                return;
            }
            state.down = Some(down);
            self.gone.store(true, Ordering::Release);
            for (slot, _) in mem::take(&mut state.receives) {
                let flushed = Ended::Failed { id: slot.into(), kind: Kind::Receive, why: Failure::Flushed };
                state.ended.push_back(flushed);
            }
            self.signal(&mut state, true);
        }
        // Waits for copies that are under way: they hold the table.
        drop(self.machine.change_table());
    }
}

fn event_descriptor() -> Result<OwnedFd> {
    // SAFETY: no pointers; the descriptor is new and nobody else's.
    unsafe {
        let fd = libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK);
        if fd < 0 {
            Err(Error::last_os("cannot make an event descriptor"))
        } else {
            Ok(OwnedFd::from_raw_fd(fd))
        }
    }
}

fn write_event(fd: &OwnedFd) {
    let one = 1_u64;
    // SAFETY: eight bytes of a local variable.
    unsafe { libc::write(fd.as_raw_fd(), (&raw const one).cast(), 8) };
}

fn read_event(fd: &OwnedFd) {
    let mut count = 0_u64;
    // SAFETY: eight bytes of a local variable.
    unsafe { libc::read(fd.as_raw_fd(), (&raw mut count).cast(), 8) };
}
