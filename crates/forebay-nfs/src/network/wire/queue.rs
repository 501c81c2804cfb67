//! The calls that wait for connections of a client, and counters of the connections.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use forebay_error::Error;

use crate::lock;
use crate::network::job::{IoJob, JobPart};
use crate::protocol::handle::CallLimits;

/// Jobs that have calls left to make, and parts that a connection gave back.
#[derive(Default)]
pub(super) struct CallQueue {
    waiting: Mutex<WaitingCalls>,
    /// How many are in it. A job of which all calls were made may still be counted.
    count: AtomicUsize,
    has_parts: AtomicBool,
}

#[derive(Default)]
struct WaitingCalls {
    jobs: VecDeque<Arc<IoJob>>,
    /// Of jobs, from wires that have no connection.
    parts: Vec<(Arc<IoJob>, JobPart)>,
}

/// Counters since the client was made.
#[derive(Debug, Default)]
pub(crate) struct TrafficCounters {
    pub(crate) read: AtomicU64,
    pub(crate) written: AtomicU64,
    pub(crate) commits: AtomicU64,
    pub(crate) commit_nanos: AtomicU64,
    pub(crate) connections: AtomicU64,
    pub(crate) resent: AtomicU64,
    pub(crate) waited: AtomicU64,
    pub(crate) strange: AtomicU64,
}

impl CallQueue {
    pub(super) fn is_empty(&self) -> bool {
        self.count.load(Ordering::SeqCst) == 0
    }

    /// Whether parts wait that a wire without a connection had.
    pub(super) fn has_parts(&self) -> bool {
        self.has_parts.load(Ordering::Relaxed)
    }

    pub(super) fn push(&self, job: Arc<IoJob>) {
        self.change(|waiting| waiting.jobs.push_back(job));
    }

    pub(super) fn give_back(&self, parts: Vec<(Arc<IoJob>, JobPart)>) {
        self.change(|waiting| waiting.parts.extend(parts));
    }

    /// Takes at most `most` parts; how many there were.
    #[inline]
    pub(super) fn take(
        &self,
        most: usize,
        limits: CallLimits,
        mut into: impl FnMut(Arc<IoJob>, JobPart),
    ) -> usize {
        self.change(|waiting| {
            let mut taken = 0;
            while taken < most
                && let Some((job, part)) = waiting.parts.pop().or_else(|| waiting.cut(limits))
            {
                into(job, part);
                taken += 1;
            }
            taken
        })
    }

    /// Ends what waits of some jobs with an error.
    pub(super) fn fail(&self, error: &Error, which: impl Fn(&IoJob) -> bool) {
        let WaitingCalls { jobs, parts } = self.change(|waiting| waiting.take(which));
        for job in jobs {
            job.refuse(error).complete();
        }
        for (job, _) in parts {
            job.ended(Some(error.clone())).complete();
        }
    }

    #[inline]
    fn change<T>(&self, change: impl FnOnce(&mut WaitingCalls) -> T) -> T {
        let mut waiting = lock(&self.waiting);
        let result = change(&mut waiting);
        self.has_parts.store(!waiting.parts.is_empty(), Ordering::Relaxed);
        self.count.store(waiting.jobs.len() + waiting.parts.len(), Ordering::SeqCst);
        result
    }
}

impl WaitingCalls {
    /// Takes out what is of some jobs.
    fn take(&mut self, which: impl Fn(&IoJob) -> bool) -> Self {
        let (jobs, left) = std::mem::take(&mut self.jobs).into_iter().partition(|job| which(job));
        let (parts, others) = std::mem::take(&mut self.parts).into_iter().partition(|(job, _)| which(job));
        (self.jobs, self.parts) = (left, others);
        Self { jobs, parts }
    }

    /// The next part of the first job that has one.
    #[inline]
    fn cut(&mut self, limits: CallLimits) -> Option<(Arc<IoJob>, JobPart)> {
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
