//! What the connections of a client share: the requests that wait for them, and what has happened.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use forebay_error::Error;

use super::base::Wire;
use crate::handle::Limits;
use crate::job::{Job, Part};
use crate::lock;
use crate::session::Server;

/// What wires share.
pub(crate) struct Shared {
    pub(crate) server: Arc<Server>,
    pub(crate) limits: Limits,
    wires: Vec<Arc<Wire>>,
    /// How many of them are given work.
    used: AtomicUsize,
    queue: Mutex<Queue>,
    /// How many are in it. A job of which all calls were made may still be counted.
    pub(super) waiting: AtomicUsize,
    /// Parts from wires without a connection are among them.
    has_parts: AtomicBool,
    pub(crate) traffic: Counters,
}

/// What waits for wires.
#[derive(Default)]
struct Queue {
    jobs: VecDeque<Arc<Job>>,
    /// Of jobs, from wires that have no connection.
    parts: Vec<(Arc<Job>, Part)>,
}

/// What has happened since the client was made.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub(crate) calls: AtomicU64,
    pub(crate) read: AtomicU64,
    pub(crate) written: AtomicU64,
    pub(crate) connections: AtomicU64,
    pub(crate) resent: AtomicU64,
    pub(crate) waited: AtomicU64,
    pub(crate) strange: AtomicU64,
}

impl Shared {
    /// Wires to a server, as many as its session has room for.
    pub(crate) fn new(server: Arc<Server>, limits: Limits) -> Self {
        let options = &server.options;
        let most = server.slots();
        let connections = options.connections.min(most.max(1));
        let depth = options.depth.min((most / connections).max(1));
        Self {
            limits,
            wires: (0..connections)
                .map(|index| Wire::new(server.clone(), (index, connections), depth))
                .collect(),
            used: AtomicUsize::new(connections),
            server,
            queue: Mutex::default(),
            waiting: AtomicUsize::new(0),
            has_parts: AtomicBool::new(false),
            traffic: Counters::default(),
        }
    }

    /// How many wires there are to use.
    pub(crate) fn connections(&self) -> usize {
        self.used.load(Ordering::Relaxed)
    }

    /// Has the first `most` of them do what comes from now on.
    pub(crate) fn use_at_most(&self, most: usize) {
        self.used.store(most.clamp(1, self.wires.len()), Ordering::Relaxed);
    }

    /// Ends what waits for a wire with an error.
    pub(crate) fn fail_waiting(&self, error: &Error) {
        let (jobs, parts) = {
            let mut queue = lock(&self.queue);
            let waiting = (std::mem::take(&mut queue.jobs), std::mem::take(&mut queue.parts));
            self.count(&queue);
            waiting
        };
        for job in jobs {
            job.refuse(error).complete();
        }
        for (job, _) in parts {
            job.ended(Some(error.clone())).complete();
        }
    }

    /// No more requests will come.
    pub(crate) fn close(&self) {
        for wire in &self.wires {
            wire.close();
        }
    }

    /// Adds a job, or one that has more to do.
    pub(crate) fn push(self: &Arc<Self>, job: Arc<Job>) {
        // All wires share a job.
        let share = job.calls(self.limits).div_ceil(self.connections());
        {
            let mut queue = lock(&self.queue);
            queue.jobs.push_back(job);
            self.count(&queue);
        }
        self.feed_each(share);
    }

    /// Adds parts for other wires than the one that had them.
    pub(super) fn pass_on(self: &Arc<Self>, parts: Vec<(Arc<Job>, Part)>) {
        {
            let mut queue = lock(&self.queue);
            queue.parts.extend(parts);
            self.count(&queue);
        }
        self.feed();
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
        self.feed_each(1);
    }

    /// The same, at most `share` parts to a wire at a time: these are sent under one lock.
    fn feed_each(self: &Arc<Self>, share: usize) {
        // A job is added before room is looked for, and room made before a job is looked for: one of the two threads sees both.
        let mut now = None;
        while self.waiting.load(Ordering::SeqCst) > 0 {
            let free = self.wires.iter().take(self.connections()).filter(|wire| wire.has_room());
            let Some(wire) = free.min_by_key(|wire| wire.busy()) else { return };
            let reserved = wire.reserve(share);
            if reserved > 0 {
                wire.issue(self, reserved, *now.get_or_insert_with(Instant::now));
            }
        }
    }

    /// Whether parts wait that a wire without a connection had.
    pub(super) fn has_parts(&self) -> bool {
        self.has_parts.load(Ordering::Relaxed)
    }

    /// Takes at most `most` parts that wait; how many there were. Called within the state of a wire.
    #[inline]
    pub(super) fn take(&self, most: usize, mut into: impl FnMut(Arc<Job>, Part)) -> usize {
        let mut queue = lock(&self.queue);
        let mut taken = 0;
        while taken < most
            && let Some((job, part)) = queue.parts.pop().or_else(|| queue.cut(self.limits))
        {
            into(job, part);
            taken += 1;
        }
        self.count(&queue);
        taken
    }

    fn count(&self, queue: &Queue) {
        self.has_parts.store(!queue.parts.is_empty(), Ordering::Relaxed);
        self.waiting.store(queue.jobs.len() + queue.parts.len(), Ordering::SeqCst);
    }
}

impl Queue {
    /// The next part of the first job that has one.
    #[inline]
    fn cut(&mut self, limits: Limits) -> Option<(Arc<Job>, Part)> {
        loop {
            let job = self.jobs.front()?;
            match job.next(limits) {
                Some((part, true)) => return Some((job.clone(), part)),
                Some((part, false)) => return self.jobs.pop_front().map(|job| (job, part)),
                None => drop(self.jobs.pop_front()),
            }
        }
    }
}
