//! A batch on its way through the lanes, and the queue that lanes take work from.

use std::collections::VecDeque;
use std::ops::Deref;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use forebay_config::CachePolicy;
use forebay_error::Error;

use super::width::Meter;
use crate::engines::mount_read::MountRead;
use crate::io::plan::{Plan, Work};
use crate::request::cancel::Cancel;
use crate::request::completion::Completion;
use crate::request::file::File;
use crate::request::receipt::{Moved, Refusal};
use crate::request::transfer::Batch;
use crate::runtime::lock;
use crate::source::piece::{Direction, Piece};
use crate::source::residency::Warmth;
use crate::source::{Descriptors, Shortage, WriteIntent, call_error};
use crate::tuning::machine::HUGE_PAGE;

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
    /// Bytes of its turn so far: see [`Job::ends_turn`].
    turn: AtomicUsize,
    /// Allocates pages ahead of its writes.
    _intent: Option<WriteIntent>,
    /// What of its writes there is no room for.
    shortages: Vec<Shortage>,
}

impl Deref for Job {
    type Target = JobParts;
    fn deref(&self) -> &JobParts {
        &self.parts
    }
}

impl Job {
    pub(crate) fn new(parts: JobParts) -> Arc<Self> {
        let (intent, shortages) = match (parts.batch.direction, parts.batch.file.descriptors()) {
            (Direction::Write, Some(file)) => {
                let pieces = &parts.batch.pieces;
                let shortages = if is_cut(&parts.plan, pieces) { file.reserve(pieces) } else { Vec::new() };
                (file.intend(pieces), shortages)
            }
            _ => (None, Vec::new()),
        };
        let job = Arc::new(Self {
            parts,
            next: AtomicUsize::new(0),
            turn: AtomicUsize::new(0),
            _intent: intent,
            shortages,
        });
        job.tell_shortages();
        let this: Arc<dyn Cancel> = job.clone();
        job.completion.on_cancel(Arc::downgrade(&this));
        job
    }

    /// Whether O_DIRECT may be used, so that memory and offsets should be aligned.
    pub(crate) fn wants_direct(&self) -> bool {
        let may = |file: &Descriptors| file.direct.is_some() && !file.is_memory;
        self.cache != CachePolicy::Keep && self.batch.file.descriptors().is_some_and(may)
    }

    /// How far the bytes of `start..end` may be written.
    pub(crate) fn reach(&self, start: u64, end: u64) -> u64 {
        let is_short = |shortage: &&Shortage| shortage.from < end && start < shortage.until;
        self.shortages.iter().find(is_short).map_or(end, |shortage| shortage.from.max(start))
    }

    /// Fails the entries that there is no room for, from their first byte without room on.
    fn tell_shortages(&self) {
        for Shortage { from, until, errno } in &self.shortages {
            for (entry, piece) in (self.base..).zip(&self.batch.pieces) {
                if piece.offset < *until && *from < piece.offset + piece.len as u64 {
                    let at = from.saturating_sub(piece.offset);
                    let error = call_error(*errno, Direction::Write, piece.offset + at);
                    self.completion.fail(entry, at, of_file(error, &self.batch.file));
                }
            }
        }
    }

    /// The alignment that O_DIRECT asks of memory.
    pub(crate) fn memory_align(&self) -> u64 {
        let direct = self.batch.file.descriptors().and_then(|file| file.direct.as_ref());
        direct.map_or(1, |(_, alignment)| u64::from(alignment.memory.max(1)))
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

    /// Fails the works that no lane has taken. What lanes have taken ends with its own result.
    pub(crate) fn refuse(&self, error: &Error) {
        while let Some(work) = self.take() {
            for (entry, before) in self.starts(work) {
                self.completion.fail(entry, before, error.clone());
            }
            self.completion.work_done(Moved::default());
        }
    }

    /// Gives up a work that was taken.
    pub(crate) fn leave_out(&self, work: Work) {
        for (entry, before) in self.starts(work) {
            self.completion.leave_out(entry, before);
        }
        self.completion.work_done(Moved::default());
    }

    /// The entries of a work, as the completion counts them, and the bytes of each that stand before the work.
    fn starts(&self, work: Work) -> impl Iterator<Item = (u32, u64)> {
        let start = match work {
            Work::Chunk { start, .. } | Work::Run { start, .. } => start,
            Work::Pack { .. } => 0,
        };
        work.entries().map(move |entry| {
            let before = start.saturating_sub(self.batch.pieces[entry as usize].offset);
            (self.base + entry, before)
        })
    }

    fn take(&self) -> Option<Work> {
        self.plan.work(self.next.fetch_add(1, Ordering::Relaxed))
    }

    fn is_for(&self, lane: usize, may_hold: bool) -> bool {
        self.width.lanes() > lane && (may_hold || self.completion.may_copy())
    }

    /// Whether another job's works come next. A source that is asked by requests makes one of neighbours: it gets works of a job up to
    /// the bytes of a large one, which other jobs wait for anyway.
    fn ends_turn(&self, work: Work) -> bool {
        let Work::Chunk { start, end, .. } = work else { return true };
        if self.batch.file.requests().is_none() {
            return true;
        }
        let taken = self.turn.fetch_add((end - start) as usize, Ordering::Relaxed) + (end - start) as usize;
        let is_over = taken >= HUGE_PAGE;
        if is_over {
            self.turn.store(0, Ordering::Relaxed);
        }
        is_over
    }

    fn is_taken(&self) -> bool {
        self.next.load(Ordering::Relaxed) >= self.plan.len()
    }
}

/// Whether several calls move the pieces. The rest of a plan of one work may be another engine's.
fn is_cut(plan: &Plan, pieces: &[Piece]) -> bool {
    let is_part = |work| matches!(work, Work::Chunk { entry, start, end } if end - start < pieces[entry as usize].len as u64);
    plan.len() > 1 || plan.work(0).is_some_and(is_part)
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
        self.refuse_if(error, |_| true);
    }

    /// The same of jobs of which this is true, by how many lanes may help.
    pub(crate) fn refuse_if(&self, error: &Error, is_refused: impl Fn(usize) -> bool) {
        let refused: VecDeque<_> = {
            let mut jobs = self.jobs();
            let (refused, others) =
                std::mem::take(&mut *jobs).into_iter().partition(|job| is_refused(job.width.lanes()));
            *jobs = others;
            self.some.store(!jobs.is_empty(), Ordering::SeqCst);
            refused
        };
        for job in refused {
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
            let job = jobs[at].clone();
            let work = job.take();
            if job.is_taken() {
                jobs.remove(at);
            } else if work.is_some_and(|work| job.ends_turn(work)) {
                jobs.remove(at);
                jobs.push_back(job.clone());
            }
            let Some(work) = work else { continue };
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

/// The error with its file. Those of a server have its URL.
pub(super) fn of_file(error: Error, file: &File) -> Error {
    let has_url = error.context().iter().any(|(key, _)| *key == "url");
    if has_url { error } else { error.with("file", file.name()) }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::io::plan::Limits;
    use crate::request::file::File;
    use crate::request::receipt::{CountedPlaces, Election, EngineKind};
    use crate::request::transfer::Memory;
    use crate::source::MemorySource;

    const LEN: usize = 1 << 20;

    /// Three entries, each of them one work.
    fn job() -> Arc<Job> {
        job_of(File::open(tempfile::NamedTempFile::new().unwrap().path()).unwrap())
    }

    fn job_of(file: File) -> Arc<Job> {
        let pieces: Vec<_> =
            (0..3).map(|at| Piece { offset: at * LEN as u64, address: 0, len: LEN }).collect();
        let limits = Limits { slot: LEN, lanes: 1, align: 1, merge: false };
        let plan = Plan::new(&pieces, Direction::Read, limits);
        assert_eq!(plan.len(), 3);
        let memory = Memory::new(forebay_gpu::host::device(), 0);
        let election = Arc::new(Election {
            engine: EngineKind::Host,
            refused: Vec::new(),
            notes: Vec::new(),
            mode: None,
            places: CountedPlaces::default(),
        });
        let completion =
            Completion::new([LEN as u64; 3].into(), 3, vec![false; 3], election, Arc::default(), None);
        Job::new(JobParts {
            batch: Arc::new(Batch { file, memory, direction: Direction::Read, pieces, allow_short: false }),
            plan,
            base: 0,
            cache: CachePolicy::Auto,
            align: 1,
            width: JobWidth::Fixed(1),
            warmth: Warmth::Warm,
            mover: None,
            mount: None,
            completion,
        })
    }

    #[test]
    fn entries_that_moved_before_the_lanes_end_keep_their_results() {
        let (job, queue) = (job(), WorkQueue::default());
        queue.push(job.clone());
        let _taken = queue.take(0, true).unwrap();
        queue.refuse(&crate::request::cancel::cancelled());
        assert!(!job.completion.is_done(), "a lane still moves the first");
        job.completion.work_done(Moved::default());
        assert!(job.completion.is_done());
        let results = job.completion.results();
        assert_eq!(results[0].as_ref().ok(), Some(&(LEN as u64)), "{results:?}");
        assert!(results[1].is_err() && results[2].is_err(), "{results:?}");
    }

    /// The jobs whose works lanes get, by number.
    fn order(jobs: &[Arc<Job>]) -> Vec<usize> {
        let queue = WorkQueue::default();
        for job in jobs {
            queue.push(job.clone());
        }
        let number = |taken: &Arc<Job>| jobs.iter().position(|job| Arc::ptr_eq(job, taken)).unwrap();
        std::iter::from_fn(|| queue.take(0, true).map(|(job, _)| number(&job))).collect()
    }

    #[test]
    fn sources_that_are_asked_by_requests_get_neighbours_in_turns_of_a_large_work() {
        assert_eq!(order(&[job(), job()]), [0, 1, 0, 1, 0, 1]);
        let requested = || {
            job_of(File::from_source(Arc::new(MemorySource::new(vec![0; 3 * LEN], Duration::ZERO))).unwrap())
        };
        assert_eq!(order(&[requested(), requested()]), [0, 0, 1, 1, 0, 1]);
    }
}
