//! From a batch to a job of the lanes: cache policy, residency, how many lanes may help, the plan.
pub(crate) mod job;
pub(crate) mod past_end;
pub(crate) mod sync;
pub(crate) mod width;
pub(crate) mod workers;

use std::sync::Arc;

use forebay_config::{CachePolicy, Config};
use forebay_error::Result;

use self::job::{DirectMover, Job, JobParts, JobWidth, of_file};
use self::sync::{Attempt, Callers, MAX_CALLER_BYTES, ShortBatch};
use self::width::SourceKind;
use self::workers::{LaneWidth, Lanes};
use crate::engines::mount_read::{MountRead, MountReads};
use crate::engines::{AskedBatch, Claim, Done, Engine, Known, Onward, Ran, Taken, Work, warmth_of};
use crate::io::plan::{CELL, Limits, Part, Plan};
use crate::request::cancel::Cancel;
use crate::request::completion::Completion;
use crate::request::file::File;
use crate::request::receipt::{Election, EngineKind, Moved, Note};
use crate::request::ticket::CallerPolled;
use crate::request::transfer::{Batch, Transfer};
use crate::source::piece::Direction;
use crate::source::residency::Warmth;
use crate::tuning::lanes::{COLD_LANES, DEPTH, EXPECTED_BYTES};
use crate::tuning::plan::MAX_REQUEST;
use crate::tuning::width::MIN_WORKS;

/// Makes jobs for the lanes of a device, and hands them over.
#[derive(Clone)]
pub(crate) struct Stage {
    lanes: Arc<Lanes>,
    slot_size: usize,
    cache: CachePolicy,
    mounts: MountReads,
}

/// A batch with all that its job needs but the completion.
pub(crate) struct Staged {
    batch: Arc<Batch>,
    plan: Plan,
    align: u64,
    width: JobWidth,
    warmth: Warmth,
    cache: CachePolicy,
    mover: Option<Arc<dyn DirectMover>>,
    mount: Option<Arc<MountRead>>,
}

impl Staged {
    /// How many works it has.
    pub(crate) fn works(&self) -> usize {
        self.plan.len()
    }

    /// As a job whose entries start at `base` of the completion.
    pub(crate) fn job(self, base: u32, completion: Arc<Completion>) -> Arc<Job> {
        let Self { batch, plan, align, width, warmth, cache, mover, mount } = self;
        Job::new(JobParts { batch, plan, base, cache, align, width, warmth, mover, mount, completion })
    }
}

impl Stage {
    pub(crate) fn new(lanes: Arc<Lanes>, config: &Config) -> Self {
        Self { lanes, slot_size: config.slot_size, cache: config.cache, mounts: MountReads::new(config) }
    }

    /// What happens to the page cache: as the file says, or otherwise as the session says.
    pub(crate) fn policy(&self, file: &File) -> CachePolicy {
        Known::of(file, self.cache).policy
    }

    /// What samples say of a batch's residency.
    pub(crate) fn warmth(&self, batch: &Batch) -> Warmth {
        warmth_of(batch, self.policy(&batch.file))
    }

    /// Plans a batch, or some parts of a read.
    pub(crate) fn plan(&self, batch: &Arc<Batch>, warmth: Warmth, parts: Option<&[Part]>) -> Staged {
        let known = Known::of(&batch.file, self.cache);
        self.plan_known(batch, &known, warmth, parts)
    }

    fn plan_known(
        &self,
        batch: &Arc<Batch>,
        known: &Known<'_>,
        warmth: Warmth,
        parts: Option<&[Part]>,
    ) -> Staged {
        let is_cold = warmth == Warmth::Cold && batch.direction == Direction::Read;
        let merge = self.merges(batch, known, is_cold);
        self.plan_for(batch, known, warmth, parts, (is_cold, merge, false))
    }

    /// Plans what a drive moves by itself: all of a batch, or some parts. It never waits for the CPU, so few lanes do.
    pub(crate) fn plan_placed(
        &self,
        asked: &AskedBatch<'_>,
        parts: Option<&[Part]>,
        mover: Arc<dyn DirectMover>,
    ) -> StagedWork {
        let staged = self.plan_for(asked.batch, asked.known, Warmth::Cold, parts, (true, false, true));
        let staged = Staged { mover: Some(mover), ..staged };
        StagedWork { stage: self.clone(), staged, by_kernel: None }
    }

    fn plan_for(
        &self,
        batch: &Arc<Batch>,
        known: &Known<'_>,
        warmth: Warmth,
        parts: Option<&[Part]>,
        (is_cold, merge, is_placed): (bool, bool, bool),
    ) -> Staged {
        let width = self.width(batch, is_cold, is_placed);
        let align = known.align;
        let shape = batch.file.requests().map(crate::source::Requests::shape).unwrap_or_default();
        let limits = if shape.preferred > self.slot_size && self.lanes.are_of_host() {
            // Bytes come straight into the caller's memory, and no lane has to help: no slot bounds a request.
            Limits { slot: shape.preferred.min(MAX_REQUEST).max(self.slot_size), lanes: 0, align, merge }
        } else {
            Limits { slot: self.slot_size, lanes: self.lanes.spare(width.lanes()), align, merge }
        };
        let plan = match parts {
            None => Plan::new(&batch.pieces, batch.direction, limits),
            Some(parts) => Plan::of_parts(&batch.pieces, batch.direction, parts, limits),
        };
        if plan.len() > 1 {
            self.lanes.begin(plan.len().min(width.lanes()));
        }
        let (cache, batch) = (known.policy, batch.clone());
        Staged { batch, plan, align, width, warmth, cache, mover: None, mount: None }
    }

    /// Lanes for a large warm read that is to come.
    pub(crate) fn expect(&self, known: &Known<'_>, (offset, len): (u64, u64)) {
        let is_large = len >= EXPECTED_BYTES && known.policy != CachePolicy::Bypass;
        let Some(file) = known.descriptors.filter(|_| is_large) else { return };
        if file.warmth(std::iter::once((offset, len))) != Warmth::Warm {
            return;
        }
        let kind = if file.is_memory { SourceKind::Memory } else { SourceKind::Cache };
        let works = len.div_ceil(self.slot_size as u64);
        self.lanes.expect(self.lanes.meter(kind).width().min(works as usize));
    }

    /// How many lanes may help.
    fn width(&self, batch: &Batch, is_cold: bool, is_placed: bool) -> JobWidth {
        let learnt = |kind| JobWidth::Learnt(self.lanes.meter(kind).clone());
        let small = || batch.pieces.iter().all(|piece| piece.len <= CELL);
        let bytes: usize = batch.pieces.iter().map(|piece| piece.len).sum();
        if is_cold && bytes > self.slot_size {
            self.lanes.begin(COLD_LANES.min(self.lanes.count()));
        }
        match is_cold && self.lanes.has_ring().unwrap_or(false) {
            true if small() => {
                let lanes = batch.pieces.len() / (4 * DEPTH);
                JobWidth::Fixed(lanes.clamp(1, self.lanes.count()))
            }
            true if is_placed => JobWidth::Fixed(COLD_LANES.min(self.lanes.count())),
            true => learnt(SourceKind::Drive),
            false if batch.direction == Direction::Write => learnt(SourceKind::Write),
            false => learnt(warm_kind(batch)),
        }
    }

    /// Whether neighbours of a batch are better moved together. The host's memory is reached without a slot, unless
    /// O_DIRECT asks for alignment: there a slot saves calls, and pages that two of them would read.
    fn merges(&self, batch: &Batch, known: &Known<'_>, is_cold: bool) -> bool {
        let Some(file) = known.descriptors else { return false };
        let by_direct = file.direct.is_some() && !file.is_memory && known.policy != CachePolicy::Keep;
        !self.lanes.are_of_host() || (by_direct && (is_cold || batch.direction == Direction::Write))
    }

    /// Hands a job over. One that cannot start fails in its completion.
    pub(crate) fn submit(&self, job: &Arc<Job>) {
        if let Err(error) = self.lanes.submit(job.clone()) {
            job.refuse(&error);
        }
    }

    /// Hands a job over when the server of its file has said what that is; without a trace of the job on the thread that asks.
    fn submit_beside(&self, job: Arc<Job>, mount: Arc<MountRead>) {
        let (stage, checks) = (self.clone(), self.mounts.checks(&mount));
        checks.add(Box::new(move || {
            mount.begin(&job.batch.file, job.warmth != Warmth::Cold, &job.completion);
            drop(mount);
            match stage.lanes.has_ring() {
                // Nothing else can fail.
                Ok(_) => drop(stage.lanes.submit(job)),
                Err(error) => job.refuse(&error),
            }
        }));
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
            whole.on_cancel(Arc::downgrade(&this));
        }
        completion
    }

    /// Bytes a second that lanes read of what a batch asks for, once they have found their best number.
    pub(crate) fn rate(&self, batch: &Batch) -> Option<f64> {
        self.lanes.meter(warm_kind(batch)).found().map(|(_, rate)| rate)
    }

    /// Something else kept lanes from copying: what they measure now is not what they can do.
    pub(crate) fn discard_rates(&self) {
        for kind in SourceKind::ALL {
            self.lanes.meter(kind).starve();
        }
    }

    /// Whether lanes work.
    pub(crate) fn is_busy(&self) -> bool {
        self.lanes.are_busy()
    }

    /// What held back the lanes that work by now, and what they measured. Starts the first.
    pub(crate) fn notes(&self) -> Result<(Vec<Note>, usize)> {
        let (mut notes, count) = self.lanes.notes()?;
        let measured = SourceKind::ALL.into_iter().filter_map(|kind| self.lanes.measured(kind));
        notes.extend(measured.map(|width| width.note()));
        Ok((notes, count))
    }

    /// Has the receipt say how many lanes turned out to be best, if this job is long enough to tell.
    fn report_width(&self, job: &Job) {
        let JobWidth::Learnt(meter) = &job.width else { return };
        let kind = SourceKind::ALL.into_iter().find(|kind| Arc::ptr_eq(self.lanes.meter(*kind), meter));
        let Some(kind) = kind.filter(|_| !meter.is_fixed() && job.plan.len() as u64 >= MIN_WORKS) else {
            return;
        };
        // Not the lanes themselves: one of them would end itself if the session is gone by then.
        let meter = meter.clone();
        let completion = Arc::downgrade(&job.completion);
        job.completion.look_again(Box::new(move || {
            if let (Some(found), Some(completion)) = (LaneWidth::of(&meter, kind), completion.upgrade()) {
                completion.note(found.note());
            }
            false
        }));
    }
}

/// What a batch that does not go to a drive reads of.
fn warm_kind(batch: &Batch) -> SourceKind {
    match batch.file.descriptors() {
        Some(file) if file.is_memory => SourceKind::Memory,
        _ if batch.file.requests().is_some() => SourceKind::Server,
        _ => SourceKind::Cache,
    }
}

/// The engines `staged` and `host`: small transfers on the caller's thread, all else by the lanes.
pub(crate) struct ByLanes {
    pub(crate) kind: EngineKind,
    pub(crate) stage: Stage,
    pub(crate) callers: Arc<Callers>,
}

impl Engine for ByLanes {
    fn kind(&self) -> EngineKind {
        self.kind
    }

    unsafe fn run(&self, transfer: &Transfer, known: &Known<'_>) -> Result<Ran> {
        if self.stage.mounts.may_take(known, transfer.direction, transfer.len as u64)
            && warmth_of(&Batch::of(transfer), known.policy) != Warmth::Warm
        {
            return Ok(Ran::Later);
        }
        if transfer.len > MAX_CALLER_BYTES && !self.gains_nothing_by_lanes(transfer, known)? {
            if self.kind == EngineKind::Host || transfer.direction == Direction::Write {
                return Ok(Ran::Later);
            }
            // SAFETY: passed on.
            return Ok(unsafe { self.callers.run_long(transfer, known) }?.into());
        }
        // SAFETY: passed on.
        Ok(unsafe { self.callers.run(transfer, known, known.align) }?.into())
    }

    fn claim(&self, asked: &AskedBatch<'_>) -> Result<Claim> {
        let bytes = asked.bytes();
        if asked.is_alone
            && asked.parts.is_none()
            && self.callers.may_read_short_batch(asked.batch)
            && asked.warmth() == Warmth::Warm
        {
            let (stage, callers, batch) = (self.stage.clone(), self.callers.clone(), asked.batch.clone());
            let work = Box::new(FewWork { stage, callers, batch });
            return Ok(Claim::Taken(Taken { work, bytes, left: Vec::new(), refusal: None }));
        }
        let staged = self.stage.plan_known(asked.batch, asked.known, asked.warmth(), asked.parts.as_deref());
        let (mount, by_kernel) = match self.stage.mounts.of(asked) {
            Ok(mount) => (mount, None),
            Err(why) => (None, Some(why)),
        };
        let staged = Staged { mount, ..staged };
        let work = Box::new(StagedWork { stage: self.stage.clone(), staged, by_kernel });
        Ok(Claim::Taken(Taken { work, bytes, left: Vec::new(), refusal: None }))
    }

    fn prepare(&self) -> Result<Vec<Note>> {
        self.stage.lanes.notes().map(|(notes, _)| notes)
    }
}

impl From<Attempt> for Ran {
    fn from(attempt: Attempt) -> Self {
        match attempt {
            Attempt::Done(good, moved) => Self::Done(Done::new(good, moved)),
            Attempt::Busy => Self::Later,
        }
    }
}

impl ByLanes {
    /// A large warm read into host memory where there is one lane: the caller's own thread is as fast.
    fn gains_nothing_by_lanes(&self, transfer: &Transfer, known: &Known<'_>) -> Result<bool> {
        // Memory beyond what the file can fill may not be there.
        Ok(self.kind == EngineKind::Host
            && self.stage.lanes.count() == 1
            && transfer.direction == Direction::Read
            && transfer.offset + transfer.len as u64 <= known.file.len_lately()?
            && warmth_of(&Batch::of(transfer), CachePolicy::Auto) == Warmth::Warm)
    }
}

/// A warm batch of few small pieces: the submitting thread reads it, or it becomes a job for the lanes.
struct FewWork {
    stage: Stage,
    callers: Arc<Callers>,
    batch: Arc<Batch>,
}

impl Work for FewWork {
    fn count(&self) -> usize {
        1
    }

    fn start(self: Box<Self>, onward: Onward) -> Option<Arc<dyn CallerPolled>> {
        let Self { stage, callers, batch } = *self;
        let completion = onward.completion.clone();
        // SAFETY: the submitter vouched for the memory until the completion resolves.
        let moved = match unsafe { callers.read_short_batch(&batch) } {
            Ok(Some(moved)) => moved,
            Ok(None) => {
                let begun = ShortBatch::begin(&callers, &batch);
                completion.look_again(Box::new(move || {
                    drop(begun);
                    false
                }));
                let staged = stage.plan(&batch, Warmth::Warm, None);
                completion.expect(staged.works());
                Box::new(StagedWork { stage, staged, by_kernel: None }).start(onward);
                Moved::default()
            }
            Err(error) => {
                let all = [Part::Entries { first: 0, last: batch.pieces.len() as u32 }];
                onward.fail(&batch, &all, &of_file(error, &batch.file));
                Moved::default()
            }
        };
        // A caller that finds the transfer resolved finds its file released.
        drop(batch);
        completion.work_done(moved);
        None
    }
}

/// A job for the lanes.
pub(crate) struct StagedWork {
    stage: Stage,
    staged: Staged,
    /// Why the server of a mounted file is not asked.
    by_kernel: Option<Note>,
}

impl Work for StagedWork {
    fn count(&self) -> usize {
        self.staged.works()
    }

    fn start(self: Box<Self>, onward: Onward) -> Option<Arc<dyn CallerPolled>> {
        let Self { stage, staged, by_kernel } = *self;
        if let Some(why) = by_kernel {
            onward.completion.note(why);
        }
        let mount = staged.mount.clone();
        let job = staged.job(onward.base, onward.completion);
        stage.report_width(&job);
        match mount {
            Some(mount) => stage.submit_beside(job, mount),
            None => stage.submit(&job),
        }
        None
    }
}
