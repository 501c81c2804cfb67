//! What the connections of a client share: the requests that wait for them, and what has happened.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
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
    /// How many are in it.
    pub(super) waiting: AtomicUsize,
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
            self.waiting.store(0, Ordering::SeqCst);
            (std::mem::take(&mut queue.jobs), std::mem::take(&mut queue.parts))
        };
        for job in jobs {
            job.refuse(error).tell();
        }
        for (job, _) in parts {
            job.ended(Some(error.clone())).tell();
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
        {
            let mut queue = lock(&self.queue);
            queue.jobs.push_back(job);
            self.waiting.store(queue.len(), Ordering::SeqCst);
        }
        self.feed();
    }

    /// Adds parts for other wires than the one that had them.
    pub(super) fn pass_on(self: &Arc<Self>, parts: Vec<(Arc<Job>, Part)>) {
        {
            let mut queue = lock(&self.queue);
            queue.parts.extend(parts);
            self.waiting.store(queue.len(), Ordering::SeqCst);
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
        // A job is added before room is looked for, and room made before a job is looked for: one of the two threads sees both.
        let mut now = None;
        while self.waiting.load(Ordering::SeqCst) > 0 {
            let free = self.wires.iter().take(self.connections()).filter(|wire| wire.has_room());
            let Some(wire) = free.min_by_key(|wire| wire.busy()) else { return };
            if !wire.reserve() {
                continue;
            }
            match self.next() {
                Some(found) => wire.issue(self, found, *now.get_or_insert_with(Instant::now)),
                None => wire.release(),
            }
        }
    }

    /// The next part that waits. Locked within the state of a wire.
    pub(super) fn next(&self) -> Option<(Arc<Job>, Part)> {
        let mut queue = lock(&self.queue);
        let found = queue.parts.pop().or_else(|| queue.cut(self.limits));
        self.waiting.store(queue.len(), Ordering::SeqCst);
        found
    }
}

impl Queue {
    fn len(&self) -> usize {
        self.jobs.len() + self.parts.len()
    }

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
