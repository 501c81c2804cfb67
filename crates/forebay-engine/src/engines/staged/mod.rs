//! From a batch to a job of the lanes: cache policy, residency, how many lanes may help, the plan.
pub(crate) mod job;
pub(crate) mod past_end;
pub(crate) mod sync;
pub(crate) mod workers;

use std::sync::Arc;

use forebay_config::{CachePolicy, Config};
use forebay_error::Result;

use self::job::{Job, JobParts, Placing};
use self::workers::Lanes;
use crate::io::plan::{CELL, Limits, Part, Plan};
use crate::io::segment::granularity;
use crate::request::cancel::Cancel;
use crate::request::file::File;
use crate::request::receipt::{Election, Note};
use crate::request::ticket::Completion;
use crate::request::transfer::Batch;
use crate::source::Fill;
use crate::source::piece::Direction;
use crate::source::residency::Warmth;

/// Lanes that cold bulk reads use: a few keep a disk busy, more would only cost CPU.
const COLD_LANES: usize = 2;
/// Cold small pieces for which another lane is worth waking: one lane's ring keeps a disk busy.
const COLD_PIECES_PER_LANE: usize = 512;

/// Makes jobs for the lanes of a device, and hands them over.
#[derive(Clone)]
pub(crate) struct Stage {
    lanes: Arc<Lanes>,
    slot_size: usize,
    cache: CachePolicy,
}

/// A batch with all that its job needs but the completion.
pub(crate) struct Staged {
    batch: Arc<Batch>,
    plan: Plan,
    align: u64,
    width: usize,
    warmth: Warmth,
    cache: CachePolicy,
    placing: Option<Arc<dyn Placing>>,
}

impl Staged {
    /// How many works it has.
    pub(crate) fn works(&self) -> usize {
        self.plan.len()
    }

    /// The batch.
    pub(crate) fn batch(&self) -> &Arc<Batch> {
        &self.batch
    }

    /// As a job whose entries start at `base` of the completion.
    pub(crate) fn job(self, base: u32, completion: Arc<Completion>) -> Arc<Job> {
        let Self { batch, plan, align, width, warmth, cache, placing } = self;
        Job::new(JobParts { batch, plan, base, cache, align, width, warmth, placing, completion })
    }
}

impl Stage {
    pub(crate) fn new(lanes: Arc<Lanes>, config: &Config) -> Self {
        Self { lanes, slot_size: config.slot_size, cache: config.cache }
    }

    /// What happens to the page cache: as the file says, or otherwise as the session says.
    pub(crate) fn policy(&self, file: &File) -> CachePolicy {
        match file.source().fill() {
            Fill::Descriptor(file) => file.cache.unwrap_or(self.cache),
            Fill::Requests(_) => self.cache,
        }
    }

    /// What samples say of a batch's residency.
    pub(crate) fn warmth(&self, batch: &Batch) -> Warmth {
        warmth_of(batch, self.policy(&batch.file))
    }

    /// Plans a batch, or some parts of a read.
    pub(crate) fn plan(&self, batch: &Arc<Batch>, warmth: Warmth, parts: Option<&[Part]>) -> Staged {
        let lanes = self.lanes.count();
        let align = granularity(batch.file.source().as_ref());
        let is_cold = warmth == Warmth::Cold && batch.direction == Direction::Read;
        let small = batch.pieces.iter().all(|piece| piece.len <= CELL);
        let width = match (is_cold && self.lanes.has_ring().unwrap_or(false), small) {
            (true, true) => (batch.pieces.len() / COLD_PIECES_PER_LANE).clamp(1, lanes),
            (true, false) => COLD_LANES.min(lanes),
            (false, _) => lanes,
        };
        let merge = self.merges(batch, is_cold);
        let limits = Limits { slot: self.slot_size, lanes: width.min(self.lanes.spare()), align, merge };
        let plan = match parts {
            None => Plan::new(&batch.pieces, batch.direction, limits),
            Some(parts) => Plan::of_parts(&batch.pieces, batch.direction, parts, limits),
        };
        let cache = self.policy(&batch.file);
        Staged { cache, batch: batch.clone(), plan, align, width, warmth, placing: None }
    }

    /// Plans what a drive moves by itself: all of a batch, or some parts. It never waits for the CPU, so few lanes do.
    pub(crate) fn plan_placed(
        &self,
        batch: &Arc<Batch>,
        parts: Option<&[Part]>,
        placing: Arc<dyn Placing>,
    ) -> Staged {
        let lanes = self.lanes.count();
        let align = granularity(batch.file.source().as_ref());
        let small = batch.pieces.iter().all(|piece| piece.len <= CELL);
        let width = match (self.lanes.has_ring().unwrap_or(false), small) {
            (true, true) => (batch.pieces.len() / COLD_PIECES_PER_LANE).clamp(1, lanes),
            (true, false) => COLD_LANES.min(lanes),
            (false, _) => lanes,
        };
        let limits =
            Limits { slot: self.slot_size, lanes: width.min(self.lanes.spare()), align, merge: false };
        let plan = match parts {
            None => Plan::new(&batch.pieces, batch.direction, limits),
            Some(parts) => Plan::of_parts(&batch.pieces, batch.direction, parts, limits),
        };
        let (cache, warmth) = (self.policy(&batch.file), Warmth::Cold);
        Staged { cache, batch: batch.clone(), plan, align, width, warmth, placing: Some(placing) }
    }

    /// Whether neighbours of a batch are better moved together. The host's memory is reached without a slot, unless
    /// O_DIRECT asks for alignment: there a slot saves calls, and pages that two of them would read.
    fn merges(&self, batch: &Batch, is_cold: bool) -> bool {
        let Fill::Descriptor(file) = batch.file.source().fill() else { return false };
        let by_direct =
            file.direct.is_some() && !file.is_memory && self.policy(&batch.file) != CachePolicy::Keep;
        !self.lanes.are_of_host() || (by_direct && (is_cold || batch.direction == Direction::Write))
    }

    /// Hands a job over. One that cannot start fails in its completion.
    pub(crate) fn submit(&self, job: &Arc<Job>) {
        if let Err(error) = self.lanes.submit(job.clone()) {
            job.refuse(&error);
        }
    }

    /// Hands parts of a batch over under a completion of their own, where every entry may be short. `after` runs when
    /// it resolves. It is cancelled with that of the `whole`.
    pub(crate) fn submit_parts(
        &self,
        batch: &Arc<Batch>,
        warmth: Warmth,
        parts: &[Part],
        election: &Arc<Election>,
        after: Option<Box<dyn FnOnce() + Send>>,
        whole: Option<&Completion>,
    ) -> Arc<Completion> {
        let staged = self.plan(batch, warmth, Some(parts));
        let works = staged.works();
        let wanted: Box<[u64]> = batch.pieces.iter().map(|piece| piece.len as u64).collect();
        let allow_short = vec![true; wanted.len()];
        let completion = Completion::new(wanted, works, allow_short, election.clone(), Arc::default(), after);
        if works > 0 {
            self.submit(&staged.job(0, completion.clone()));
        }
        if let Some(whole) = whole {
            let this: Arc<dyn Cancel> = completion.clone();
            whole.tell(Arc::downgrade(&this));
        }
        completion
    }

    /// What held back the lanes that work by now, and how many of them that were. Starts the first.
    pub(crate) fn notes(&self) -> Result<(Vec<Note>, usize)> {
        self.lanes.notes()
    }
}

/// What samples say of a batch's residency, under this policy.
pub(crate) fn warmth_of(batch: &Batch, cache: CachePolicy) -> Warmth {
    match (batch.direction, cache, batch.file.source().fill()) {
        (Direction::Read, CachePolicy::Bypass, _) => Warmth::Cold,
        (Direction::Read, _, Fill::Descriptor(file)) => {
            file.warmth(batch.pieces.iter().map(|piece| (piece.offset, piece.len as u64)))
        }
        _ => Warmth::Mixed,
    }
}
