//! A connection, over TCP or RDMA. The thread that has a call sends it, as far as that goes at once; a thread of the wire's own
//! receives, sends the rest, and makes the connection anew when it is lost.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::{Duration, Instant};

use forebay_error::{Error, ErrorKind};
use forebay_remote::retry::RetryPauses;
use forebay_remote::stop;
use forebay_sys::threads;

use super::link::WireLink;
use super::liveness::CHECK_INTERVAL;
use super::queue::{CallQueue, TrafficCounters};
use super::replies::WireLost;
use super::signal::WakeSignal;
use super::table::CallTable;
use crate::lock;
use crate::network::addresses::WireDestination;
use crate::network::exchange::{LOOK, NO_ANSWER};
use crate::network::job::{IoJob, JobPart, NextStep};
use crate::network::server::NfsServer;
use crate::protocol::handle::CallLimits;

/// How many connections in a row may end by a malformed reply before calls fail.
const MAX_BAD_REPLIES: u32 = 4;

/// The pause before a lost connection is made anew for the first time.
const FIRST_PAUSE: Duration = Duration::from_millis(50);

/// What wires share.
pub(crate) struct SharedWires {
    pub(crate) server: Arc<NfsServer>,
    pub(crate) limits: CallLimits,
    wires: Vec<Arc<Wire>>,
    pub(super) queue: CallQueue,
    pub(crate) traffic: TrafficCounters,
}

/// A connection, made when there is work for it.
pub(crate) struct Wire {
    pub(super) server: Arc<NfsServer>,
    pub(super) index: usize,
    pub(super) depth: usize,
    /// Calls that it takes at a time.
    room: Arc<AtomicUsize>,
    /// Entries of the table that are in use, or will be.
    busy: AtomicUsize,
    pub(super) state: Mutex<WireState>,
    /// The server breaks connections that are asked for a sign of life.
    pub(super) refuses_probes: AtomicBool,
    /// How often the thread looks how long calls have waited.
    pub(super) check_interval: Duration,
}

pub(super) struct WireState {
    pub(super) table: CallTable,
    pub(super) link: Option<WireLink>,
    /// Where that leads.
    pub(super) destination: WireDestination,
    pub(super) has_thread: bool,
    /// Ends the thread's wait.
    signal: WakeSignal,
    /// The thread sleeps without a call, and for long: the next one wakes it.
    pub(super) sleeps_idle: bool,
    /// No memory may be locked for a connection: known since the last attempt to make one.
    pub(super) is_refused: bool,
    pub(super) is_closing: bool,
}

impl WireState {
    /// Whether something is left to send that no reply will set in motion.
    fn needs_thread(&self) -> bool {
        match &self.link {
            Some(_) if self.destination.is_left() => true,
            Some(link) => link.needs_thread(&self.table),
            // What makes the connection sends. A thread that stands aside gives the call to another wire.
            None => self.is_refused && self.table.first_to_send().is_some(),
        }
    }

    /// Bytes of calls that have reached the server's side, where that can be known.
    pub(super) fn bytes_taken(&self) -> u64 {
        self.link.as_ref().map_or(0, |link| link.bytes_taken(&self.table))
    }

    /// Sends what can be sent at once: nothing to an address that was left, which the thread sees.
    #[inline]
    pub(super) fn send_queued(&mut self) {
        if self.table.first_to_send().is_some()
            && !self.destination.is_left()
            && let Some(link) = &mut self.link
        {
            link.send_queued(&mut self.table);
        }
    }
}

impl SharedWires {
    /// Wires to a server, as many as its session has room for.
    pub(crate) fn new(server: Arc<NfsServer>, limits: CallLimits) -> Self {
        let options = &server.options;
        let most = server.slots();
        let connections = options.connections.min(most.max(1));
        let depth = options.depth.min((most / connections).max(1));
        let wires: Vec<_> =
            (0..connections).map(|index| Wire::new(server.clone(), (index, connections), depth)).collect();
        let watching: Vec<_> = wires.iter().map(Arc::downgrade).collect();
        server.further.on_change(move || {
            for wire in watching.iter().filter_map(Weak::upgrade) {
                lock(&wire.state).signal.wake();
            }
        });
        Self { limits, wires, server, queue: CallQueue::default(), traffic: TrafficCounters::default() }
    }

    /// Whether the present session has a slot for each wire: one after a restart may have fewer.
    pub(crate) fn has_slots(&self) -> bool {
        self.wires.len() <= self.server.slots().max(1)
    }

    /// How many wires there are to use.
    pub(crate) fn connections(&self) -> usize {
        self.wires.len()
    }

    /// Ends what waits for a wire with an error.
    pub(crate) fn fail_waiting(&self, error: &Error) {
        self.queue.fail(error, |_| true);
    }

    /// Calls that were answered.
    pub(crate) fn calls(&self) -> u64 {
        self.wires.iter().map(|wire| lock(&wire.state).table.answered()).sum()
    }

    /// No more requests will come, or none for a while: connections end when they have nothing to do.
    pub(crate) fn close(&self) {
        for wire in &self.wires {
            wire.close();
        }
    }

    /// Requests come again.
    pub(crate) fn reopen(&self) {
        for wire in &self.wires {
            lock(&wire.state).is_closing = false;
        }
    }

    /// Adds a job, or one that has more to do.
    pub(crate) fn push(self: &Arc<Self>, job: Arc<IoJob>, now: Instant) {
        // All wires share a job.
        let share = job.calls(self.limits).div_ceil(self.connections());
        self.server.clock.asked(now);
        self.server.look_again();
        self.queue.push(job);
        self.feed_each(share, Some(now));
    }

    /// Adds parts for other wires than the one that had them.
    pub(super) fn pass_on(self: &Arc<Self>, parts: Vec<(Arc<IoJob>, JobPart)>) {
        self.queue.give_back(parts);
        self.feed();
    }

    /// Does what comes after the end of a part.
    pub(super) fn follow(self: &Arc<Self>, job: &Arc<IoJob>, next: NextStep) {
        match next {
            NextStep::Again => self.push(job.clone(), Instant::now()),
            next => next.complete(),
        }
    }

    /// Whether other wires have connections; and whether some are being made.
    pub(super) fn others(&self, wire: &Wire) -> (bool, bool) {
        let mut found = (false, false);
        for other in self.wires.iter().filter(|other| other.index != wire.index) {
            let state = lock(&other.state);
            found.0 |= state.link.is_some();
            found.1 |= state.link.is_none() && state.has_thread && !state.is_refused;
        }
        found
    }

    /// Gives waiting parts to wires, the least busy first, as far as these take them.
    pub(crate) fn feed(self: &Arc<Self>) {
        self.feed_each(1, None);
    }

    /// The same, at most `share` parts to a wire at a time: these are sent under one lock.
    fn feed_each(self: &Arc<Self>, share: usize, mut now: Option<Instant>) {
        // A job is added before room is looked for, and room made before a job is looked for: one of the two threads sees both.
        while !self.queue.is_empty() {
            let free = self.wires.iter().filter(|wire| wire.has_room());
            let Some(wire) = free.min_by_key(|wire| wire.busy()) else { return };
            let reserved = wire.reserve(share);
            if reserved > 0 {
                wire.issue(self, reserved, *now.get_or_insert_with(Instant::now));
            }
        }
    }
}

impl Wire {
    /// `number`: which wire, and of how many.
    pub(crate) fn new(server: Arc<NfsServer>, number: (usize, usize), depth: usize) -> Arc<Self> {
        let table = CallTable::new(depth, number);
        Arc::new(Self {
            check_interval: CHECK_INTERVAL.min(server.options.silence / 4),
            server,
            index: number.0,
            depth,
            room: table.room(),
            busy: AtomicUsize::new(0),
            state: Mutex::new(WireState {
                table,
                link: None,
                destination: WireDestination::default(),
                has_thread: false,
                signal: WakeSignal::default(),
                sleeps_idle: false,
                is_refused: false,
                is_closing: false,
            }),
            refuses_probes: AtomicBool::new(false),
        })
    }

    /// Calls under way.
    pub(crate) fn busy(&self) -> usize {
        self.busy.load(Ordering::SeqCst)
    }

    /// Whether a call more has room.
    pub(crate) fn has_room(&self) -> bool {
        self.busy() < self.room.load(Ordering::Relaxed)
    }

    /// Whether an entry whose call was answered may have another one.
    pub(super) fn keeps_entries(&self) -> bool {
        self.busy() <= self.room.load(Ordering::Relaxed)
    }

    /// Keeps entries for calls, at most `most`; how many.
    pub(crate) fn reserve(&self, most: usize) -> usize {
        let room = self.room.load(Ordering::Relaxed);
        let more = |busy: usize| (busy < room).then(|| busy + most.min(room - busy));
        let before = self.busy.try_update(Ordering::SeqCst, Ordering::SeqCst, more);
        before.map_or(0, |busy| most.min(room - busy))
    }

    /// Gives some back.
    pub(crate) fn release(&self, entries: usize) {
        self.busy.fetch_sub(entries, Ordering::SeqCst);
    }

    /// Makes calls of what waits, for which entries are reserved. Entries for which nothing waits are given back.
    pub(crate) fn issue(self: &Arc<Self>, shared: &Arc<SharedWires>, reserved: usize, now: Instant) {
        let mut state = lock(&self.state);
        let mut refused = Vec::new();
        let table = &mut state.table;
        let taken = shared.queue.take(reserved, shared.limits, |job, part| {
            let put = table.free().and_then(|index| table.put(&self.server, index, (job.clone(), part), now));
            refused.extend(put.err().map(|malformed| (job, Error::from(malformed))));
        });
        state.send_queued();
        let is_woken = state.needs_thread() || (state.sleeps_idle && !state.table.is_idle());
        let woken = is_woken.then(|| state.signal.clone());
        state.sleeps_idle &= !is_woken;
        if !state.has_thread && taken > refused.len() {
            match self.start(shared) {
                Ok(signal) => {
                    (state.has_thread, state.is_refused, state.signal) = (true, false, signal);
                }
                Err(error) => {
                    // Under the lock: another caller may start the thread the moment after.
                    let ended = (0..self.depth).filter_map(|index| state.table.end(index));
                    refused.extend(ended.map(|job| (job, error.clone())));
                }
            }
        }
        drop(state);
        self.release(reserved - taken + refused.len());
        for (job, error) in refused {
            let next = job.ended(Some(error));
            shared.follow(&job, next);
        }
        if let Some(signal) = woken {
            signal.wake();
        }
    }

    /// Starts the thread, which makes its connections from this thread's network namespace; what ends its wait.
    fn start(self: &Arc<Self>, shared: &Arc<SharedWires>) -> Result<WakeSignal, Error> {
        self.server.options.check_network()?;
        let (this, shared, signal) = (self.clone(), shared.clone(), WakeSignal::new());
        let (name, waits) = (format!("forebay-nfs-{}", self.index), signal.clone());
        let started = threads::spawn(name, move || this.run(&shared, &waits));
        started
            .map(|_| signal)
            .map_err(|error| Error::from_io(&error, "cannot start a thread for a connection"))
    }

    /// No more requests will come.
    pub(crate) fn close(&self) {
        let mut state = lock(&self.state);
        state.is_closing = true;
        state.signal.wake();
    }

    // ---- the wire's thread --------------------------------------------------------------------------------------

    fn run(self: &Arc<Self>, shared: &Arc<SharedWires>, signal: &WakeSignal) {
        let mut pauses = RetryPauses::from(FIRST_PAUSE);
        let (mut bad_replies, mut port, mut calls_before) = (0, 0, 0);
        loop {
            let lost = if self.server.options.rdma.is_some() {
                self.run_rdma(shared, signal)
            } else {
                self.run_tcp(shared, signal, &mut port)
            };
            let calls = {
                let mut state = lock(&self.state);
                // No byte arrives in memory of calls any more, nor leaves it.
                state.link = None;
                state.table.answered()
            };
            // Replies on this connection reset its pauses; those of other connections do not.
            if calls != calls_before {
                (pauses, bad_replies, calls_before) = (RetryPauses::from(FIRST_PAUSE), 0, calls);
            }
            match lost {
                WireLost::Idle => {}
                WireLost::BadReply(malformed) => {
                    bad_replies += 1;
                    let error = Error::from(malformed).with("server", &self.server.name);
                    if bad_replies > MAX_BAD_REPLIES {
                        self.fail_all(shared, &error);
                    } else {
                        self.fail_given_up(shared, &error);
                    }
                }
                WireLost::Refused(error) => self.fail_all(shared, &error),
                WireLost::NoLockedMemory => self.hand_over_calls(shared, signal),
                WireLost::Broken(error) => {
                    let deadline = self.server.wait_limits().deadline;
                    let error = Error::new(ErrorKind::Timeout, NO_ANSWER)
                        .with("server", &self.server.name)
                        .with("seconds", deadline.as_secs_f32())
                        .hint(LOOK)
                        .source(error);
                    self.fail_given_up(shared, &error);
                }
            }
            if stop::is_stopped() {
                let error = stop::stopped().with("server", &self.server.name);
                shared.fail_waiting(&error);
                self.fail_all(shared, &error);
            }
            {
                let mut state = lock(&self.state);
                if state.table.is_idle() {
                    (state.has_thread, state.signal) = (false, WakeSignal::default());
                    return;
                }
            }
            let (now, clock) = (Instant::now(), &self.server.clock);
            clock.waits(now);
            // The next round sees calls that must not wait, and cancelled calls.
            let left = clock.left(now, now, self.server.wait_limits()).max(FIRST_PAUSE);
            let _ = stop::sleep(pauses.next_pause().min(left));
        }
    }

    /// A connection is there: what was under way is sent again.
    pub(super) fn connected(
        &self,
        shared: &SharedWires,
        (link, destination): (Option<WireLink>, WireDestination),
    ) {
        let mut state = lock(&self.state);
        let again = state.table.send_all_again();
        shared.traffic.connections.fetch_add(1, Ordering::Relaxed);
        shared.traffic.resent.fetch_add(again as u64, Ordering::Relaxed);
        (state.link, state.destination) = (link, destination);
        (state.is_refused, state.sleeps_idle) = (false, false);
        state.send_queued();
    }

    /// Whether the connection may be used, behind a pause: its address may have been left, or there are others again.
    pub(super) fn check_destination(&self, state: &mut WireState) -> Result<(), WireLost> {
        if state.destination.is_left() {
            return Err(WireLost::of_left());
        }
        if state.table.is_idle() && self.server.is_surplus(self.index, &mut state.destination) {
            return Err(WireLost::Idle);
        }
        Ok(())
    }
}
