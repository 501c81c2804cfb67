//! The part of an operation that the CPU does: bytes between a file and host memory.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::Thread;

use forebay_config::CachePolicy;
use forebay_error::Error;
use forebay_gpu::Device;

use crate::engines::mapped::MappedJob;
use crate::engines::staged::Stage;
use crate::engines::staged::past_end::PastEnd;
use crate::engines::warmth_of;
use crate::io::plan::aligned_out;
use crate::io::segment::{Segment, granularity};
use crate::request::completion::Completion;
use crate::request::file::File;
use crate::request::receipt::{Election, Moved};
use crate::request::totals::Totals;
use crate::request::transfer::{Batch, Memory};
use crate::runtime::lock;
use crate::source::piece::{Direction, Piece};
use crate::source::residency::Warmth;
use crate::tuning::plan::CELL;

/// Hands a job to the engine `mapped`.
pub(crate) type PullStart = Box<dyn Fn(MappedJob) + Send + Sync>;

/// The engines that a session uses for operations on one device's memory.
pub(crate) struct StreamEngines {
    /// Jobs between files and host memory.
    pub(crate) stage: Stage,
    pub(crate) host: Arc<dyn Device>,
    /// Jobs straight to the memory, where the stream cannot copy or the memory is the host's.
    pub(crate) straight: Stage,
    /// The same by the engine `mapped`, where only that is allowed.
    pub(crate) start_pull: Option<PullStart>,
    pub(crate) election: Arc<Election>,
    pub(crate) totals: Arc<Totals>,
}

/// Bytes of a file and of host memory (or of a device's, for jobs that go straight).
pub(super) struct FileTask {
    pub(super) batch: Batch,
    /// Bytes that are read before the wanted ones, since reads may be aligned out.
    pub(super) lead: u64,
    /// Wanted bytes.
    pub(super) len: u64,
    /// Where the wanted bytes begin in their buffer.
    pub(super) skip: u64,
}

/// The result of a task.
pub(super) struct ChunkAnswer {
    pub(super) stream: u64,
    pub(super) first: u32,
    pub(super) chunk: u32,
    pub(super) end: ChunkEnd,
    pub(super) moved: Moved,
}

/// What a chunk came to: good bytes from its start, and why there are no more, unless the file has no more.
pub(super) type ChunkEnd = (u64, Option<Error>);

/// What other threads leave for the server.
#[derive(Default)]
pub(super) struct ServerInbox {
    pub(super) answers: Mutex<Vec<ChunkAnswer>>,
    /// Operations or answers arrived since the last look.
    pub(super) has_news: AtomicBool,
    pub(super) sleeping: AtomicBool,
    /// Operations that are not over.
    pub(super) open: AtomicUsize,
    pub(super) thread: std::sync::OnceLock<Thread>,
}

impl ServerInbox {
    /// Tells the server that something arrived, and wakes it if it sleeps.
    pub(super) fn wake(&self) {
        self.has_news.store(true, Ordering::SeqCst);
        if self.sleeping.swap(false, Ordering::SeqCst)
            && let Some(thread) = self.thread.get()
        {
            thread.unpark();
        }
    }

    fn put(&self, answer: ChunkAnswer) {
        lock(&self.answers).push(answer);
        self.wake();
    }
}

/// Reads a few bytes that the page cache has into host memory, on this thread. `None` if it may take longer.
pub(super) fn read_warm(
    engines: &StreamEngines,
    file: &File,
    (offset, len): (u64, usize),
    host: u64,
) -> Option<(ChunkEnd, Moved)> {
    let descriptors = file.descriptors()?;
    if let Err(error) = descriptors.check() {
        return Some(((0, Some(error)), Moved::default()));
    }
    let policy = engines.stage.policy(file);
    if len > CELL || descriptors.warmth_of_small(offset, len as u64, policy) != Warmth::Warm {
        return None;
    }
    let mut segment = Segment::whole(offset, len, host);
    let align = granularity(file.descriptors());
    if !segment.read_cached(descriptors, align, policy, Warmth::Warm) {
        if !descriptors.is_memory {
            return None;
        }
        if let Err(error) = segment.run_blocking(Direction::Read, descriptors, align) {
            return Some(((0, Some(error)), Moved::default()));
        }
    }
    Some(((segment.good() as u64, None), segment.moved()))
}

/// A read into a buffer of `len` bytes at `buffer`: aligned out for O_DIRECT where it will come from the disk. Warm bytes
/// are put where `address` (that of the device) lets wide copies be used.
pub(super) fn read_task(engines: &StreamEngines, batch: Batch, buffer: usize, address: u64) -> FileTask {
    let exact = |mut batch: Batch| {
        let len = batch.pieces[0].len as u64;
        batch.pieces[0].address += address % 16;
        FileTask { batch, lead: 0, len, skip: address % 16 }
    };
    let piece = batch.pieces[0];
    let end = piece.offset + piece.len as u64;
    let (low, high) = aligned_out(piece.offset, end, granularity(batch.file.descriptors()));
    let fits = high - low <= buffer as u64;
    let has_direct = batch.file.descriptors().is_some_and(|file| file.direct.is_some());
    let policy = engines.stage.policy(&batch.file);
    if !has_direct || !fits || policy == CachePolicy::Keep || warmth_of(&batch, policy) == Warmth::Warm {
        return exact(batch);
    }
    let mut batch = batch;
    batch.pieces[0] = Piece { offset: low, address: piece.address, len: (high - low) as usize };
    let lead = piece.offset - low;
    FileTask { batch, lead, len: piece.len as u64, skip: lead }
}

/// A batch of one piece.
pub(super) fn one(file: &File, memory: Memory, direction: Direction, (offset, len): (u64, usize)) -> Batch {
    let address = memory.address;
    let pieces = vec![Piece { offset, address, len }];
    Batch { file: file.clone(), memory, direction, pieces, allow_short: true }
}

/// Starts a task; its answer comes into the inbox.
pub(super) fn start(
    engines: &StreamEngines,
    inbox: &Arc<ServerInbox>,
    task: FileTask,
    (stream, first, chunk): (u64, u32, u32),
) {
    let FileTask { batch, lead, len, .. } = task;
    let inbox = inbox.clone();
    // The closure needs the completion, which is created after it.
    let place: Arc<Mutex<Option<Arc<Completion>>>> = Arc::default();
    let kept = place.clone();
    let after = move || {
        let Some(completion) = lock(&kept).take() else { return };
        let (good, error) = completion.ends().swap_remove(0);
        let good = good.saturating_sub(lead).min(len);
        let moved = completion.moved().up_to(good);
        inbox.put(ChunkAnswer { stream, first, chunk, end: (good, error), moved });
    };
    let is_host = batch.memory.device.info().is_host;
    let wanted = batch.pieces.iter().map(|piece| piece.len as u64).collect();
    let make = |works: usize| {
        let (election, totals) = (engines.election.clone(), Arc::default());
        let completion = Completion::new(wanted, works, vec![true], election, totals, Some(Box::new(after)));
        *lock(&place) = Some(completion.clone());
        completion
    };
    let mut batch = batch;
    // A file without a known length is read to its end.
    let beyond = PastEnd::cut(&mut batch).unwrap_or(None);
    let batch = Arc::new(batch);
    if let (false, Some(pull)) = (is_host, &engines.start_pull) {
        let completion = make(1);
        if let Some(beyond) = beyond {
            beyond.continue_later(&completion, 0, engines.straight.clone());
        }
        return pull(MappedJob { batch, base: 0, completion });
    }
    let stage = if is_host { &engines.stage } else { &engines.straight };
    let warmth = stage.warmth(&batch);
    let staged = stage.plan(&batch, warmth, None);
    let works = staged.works();
    // One more than there are, so that a plan without works looks at the end of the file, too.
    let completion = make(works + 1);
    if let Some(beyond) = beyond {
        beyond.continue_later(&completion, 0, stage.clone());
    }
    if works > 0 {
        stage.submit(&staged.job(0, completion.clone()));
    }
    completion.work_done(Moved::default());
}
