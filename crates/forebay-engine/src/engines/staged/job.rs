//! A batch on its way through the lanes, and the queue that lanes take work from.

use std::collections::VecDeque;
use std::ops::Deref;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use forebay_config::CachePolicy;
use forebay_error::Error;

use super::width::Meter;
use crate::engines::mounts::read::MountRead;
use crate::io::plan::{Plan, Work};
use crate::request::cancel::Cancel;
use crate::request::receipt::{Moved, Refusal};
use crate::request::ticket::Completion;
use crate::request::transfer::Batch;
use crate::runtime::lock::lock;
use crate::source::piece::Direction;
use crate::source::residency::Warmth;
use crate::source::{Descriptors, Fill, WriteIntent};

/// The engine that has a drive move a job's bytes straight to or from the device's memory.
pub(crate) trait DirectMover: Send + Sync + std::fmt::Debug {
    /// The drive refused a range. Returns why, if the range may be staged; otherwise the caller gets the error.
    fn refused(&self, errno: i32, direction: Direction) -> Option<Arc<Refusal>>;
}

/// How many lanes may help, those of the lowest numbers: cold work needs few, warm work many.
#[derive(Clone, Debug)]
pub(crate) enum JobWidth {
    Fixed(usize),
    /// As many as turn out to be best.
    Learnt(Arc<Meter>),
}

impl JobWidth {
    pub(crate) fn lanes(&self) -> usize {
        match self {
            Self::Fixed(lanes) => *lanes,
            Self::Learnt(meter) => meter.width(),
        }
    }
}

/// The parts of a job.
pub(crate) struct JobParts {
    pub(crate) batch: Arc<Batch>,
    pub(crate) plan: Plan,
    /// Index of the batch's first entry in the completion.
    pub(crate) base: u32,
    pub(crate) cache: CachePolicy,
    /// Alignment that O_DIRECT reads are rounded out to.
    pub(crate) align: u64,
    pub(crate) width: JobWidth,
    /// What samples tell of the page cache.
    pub(crate) warmth: Warmth,
    /// Set if a drive moves the bytes to or from the caller's memory.
    pub(crate) mover: Option<Arc<dyn DirectMover>>,
    /// Set if the server of a mounted file may be asked beside the kernel.
    pub(crate) mount: Option<Arc<MountRead>>,
    pub(crate) completion: Arc<Completion>,
}

/// A batch with its plan. Lanes take its works one by one.
pub(crate) struct Job {
    parts: JobParts,
    next: AtomicUsize,
    /// Allocates pages ahead of its writes.
    _intent: Option<WriteIntent>,
}

impl Deref for Job {
    type Target = JobParts;
    fn deref(&self) -> &JobParts {
        &self.parts
    }
}

impl Job {
    pub(crate) fn new(parts: JobParts) -> Arc<Self> {
        let intent = match (parts.batch.direction, parts.batch.file.source().fill()) {
            (Direction::Write, Fill::Descriptor(file)) => file.intend(&parts.batch.pieces),
            _ => None,
        };
        let job = Arc::new(Self { parts, next: AtomicUsize::new(0), _intent: intent });
        let this: Arc<dyn Cancel> = job.clone();
        job.completion.on_cancel(Arc::downgrade(&this));
        job
    }

    /// Whether O_DIRECT may be used, so that memory and offsets should be aligned.
    pub(crate) fn wants_direct(&self) -> bool {
        match self.batch.file.source().fill() {
            Fill::Descriptor(file) => {
                file.direct.is_some() && !file.is_memory && self.cache != CachePolicy::Keep
            }
            Fill::Requests(_) => false,
        }
    }

    /// The alignment that O_DIRECT asks of memory.
    pub(crate) fn memory_align(&self) -> u64 {
        match self.batch.file.source().fill() {
            Fill::Descriptor(Descriptors { direct: Some((_, alignment)), .. }) => {
                u64::from(alignment.memory.max(1))
            }
            _ => 1,
        }
    }

    /// A job that stages one of its works, which the drive refused.
    pub(crate) fn staged(&self, work: Work) -> Arc<Self> {
        let JobParts { batch, base, cache, align, width, completion, .. } = &self.parts;
        Self::new(JobParts {
            batch: batch.clone(),
            plan: Plan::of_work(work),
            base: *base,
            cache: *cache,
            align: *align,
            width: width.clone(),
            warmth: Warmth::Mixed,
            mover: None,
            mount: None,
            completion: completion.clone(),
        })
    }

    /// Fails all its works.
    pub(crate) fn refuse(&self, error: &Error) {
        for entry in 0..self.batch.pieces.len() as u32 {
            self.completion.fail(self.base + entry, 0, error.clone());
        }
        while self.take().is_some() {
            self.completion.work_done(Moved::default());
        }
    }

    /// Gives up a work that was taken.
    pub(crate) fn leave_out(&self, work: Work) {
        match work {
            Work::Chunk { entry, start, .. } => {
                let before = start - self.batch.pieces[entry as usize].offset;
                self.completion.leave_out(self.base + entry, before);
            }
            Work::Run { first, last, start, .. } => {
                for entry in first..last {
                    let before = start.saturating_sub(self.batch.pieces[entry as usize].offset);
                    self.completion.leave_out(self.base + entry, before);
                }
            }
            Work::Pack { first, last } => {
                (first..last).for_each(|entry| self.completion.leave_out(self.base + entry, 0));
            }
        }
        self.completion.work_done(Moved::default());
    }

    fn take(&self) -> Option<Work> {
        self.plan.work(self.next.fetch_add(1, Ordering::Relaxed))
    }

    fn is_for(&self, lane: usize, may_hold: bool) -> bool {
        self.width.lanes() > lane && (may_hold || self.completion.may_copy())
    }

    fn is_taken(&self) -> bool {
        self.next.load(Ordering::Relaxed) >= self.plan.len()
    }
}

impl Cancel for Job {
    fn cancel(&self) {
        let all = self.plan.len();
        // From here on no lane is given a work.
        let next = self.next.swap(all, Ordering::Relaxed);
        (next..all).filter_map(|index| self.plan.work(index)).for_each(|work| self.leave_out(work));
    }
}

/// Jobs with work left. Lanes take from the front and rotate, so that a small job never waits for a large one.
#[derive(Default)]
pub(crate) struct WorkQueue {
    jobs: Mutex<VecDeque<Arc<Job>>>,
    /// A hint that saves the lock when the queue is empty.
    some: AtomicBool,
}

impl WorkQueue {
    fn jobs(&self) -> MutexGuard<'_, VecDeque<Arc<Job>>> {
        lock(&self.jobs)
    }

    pub(crate) fn push(&self, job: Arc<Job>) {
        let mut jobs = self.jobs();
        jobs.push_back(job);
        self.some.store(true, Ordering::SeqCst);
    }

    /// Ends all jobs with an error.
    pub(crate) fn refuse(&self, error: &Error) {
        let jobs = {
            let mut jobs = self.jobs();
            self.some.store(false, Ordering::SeqCst);
            std::mem::take(&mut *jobs)
        };
        for job in jobs {
            job.refuse(error);
        }
    }

    /// The next work for lane `lane`. A lane gets works whose copies have to wait for the user's work only if it `may_hold`
    /// them.
    pub(crate) fn take(&self, lane: usize, may_hold: bool) -> Option<(Arc<Job>, Work)> {
        if !self.some.load(Ordering::SeqCst) {
            return None;
        }
        let mut jobs = self.jobs();
        let mut at = 0;
        while at < jobs.len() {
            if !jobs[at].is_for(lane, may_hold) {
                at += 1;
                continue;
            }
            let job = jobs.remove(at)?;
            let Some(work) = job.take() else { continue };
            if !job.is_taken() {
                jobs.push_back(job.clone());
            }
            self.some.store(!jobs.is_empty(), Ordering::SeqCst);
            return Some((job, work));
        }
        self.some.store(!jobs.is_empty(), Ordering::SeqCst);
        None
    }

    /// Whether there is work for any lane. Only a hint.
    pub(crate) fn has_any(&self) -> bool {
        self.some.load(Ordering::Relaxed)
    }

    /// Whether lane `lane` would find work.
    pub(crate) fn has_work(&self, lane: usize, may_hold: bool) -> bool {
        let is_there = |job: &Arc<Job>| !job.is_taken() && job.is_for(lane, may_hold);
        self.some.load(Ordering::SeqCst) && self.jobs().iter().any(is_there)
    }
}
