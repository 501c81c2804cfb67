//! The part of an operation that the CPU does: bytes between a file and host memory.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::Thread;

use forebay_config::CachePolicy;
use forebay_error::Result;
use forebay_gpu::Device;

use super::staging_pool::PIECE;
use crate::engines::mapped::PullJob;
use crate::engines::staged::Stage;
use crate::engines::staged::past_end::PastEnd;
use crate::engines::warmth_of;
use crate::io::plan::aligned_out;
use crate::io::segment::{Segment, Way, granularity};
use crate::request::file::File;
use crate::request::receipt::{Election, Moved};
use crate::request::ticket::{Completion, Totals};
use crate::request::transfer::{Batch, Memory};
use crate::source::piece::{Direction, Piece};
use crate::source::residency::Warmth;
use crate::source::{Descriptors, Fill};

/// Hands a job to the engine `mapped`.
pub(crate) type Puller = Box<dyn Fn(PullJob) + Send + Sync>;

/// What a session has for the operations of one kind of memory.
pub(crate) struct Office {
    /// Jobs between files and host memory.
    pub(crate) stage: Stage,
    pub(crate) host: Arc<dyn Device>,
    /// Jobs straight to the memory, where the stream cannot copy or the memory is the host's.
    pub(crate) straight: Stage,
    /// The same by the engine `mapped`, where only that is allowed.
    pub(crate) puller: Option<Puller>,
    pub(crate) election: Arc<Election>,
    pub(crate) totals: Arc<Totals>,
}

/// Bytes of a file and of host memory (or of a device's, for jobs that go straight).
pub(super) struct Task {
    pub(super) batch: Batch,
    /// Bytes that are read before the wanted ones, and how many those are: reads may be aligned out.
    pub(super) lead: u64,
    pub(super) len: u64,
    /// Where the wanted ones begin in their room.
    pub(super) skip: u64,
}

/// What came of a task.
pub(super) struct Answer {
    pub(super) track: u64,
    pub(super) first: u32,
    pub(super) chunk: u32,
    pub(super) result: Result<u64>,
    pub(super) moved: Moved,
}

/// Where answers are put, from any thread.
#[derive(Default)]
pub(super) struct Letterbox {
    pub(super) answers: Mutex<Vec<Answer>>,
    /// There is something to look at.
    pub(super) mail: AtomicBool,
    pub(super) sleeping: AtomicBool,
    /// Operations that are not over.
    pub(super) open: AtomicUsize,
    pub(super) thread: std::sync::OnceLock<Thread>,
}

impl Letterbox {
    /// Wakes the courier if it sleeps.
    pub(super) fn ring(&self) {
        self.mail.store(true, Ordering::SeqCst);
        if self.sleeping.swap(false, Ordering::SeqCst)
            && let Some(thread) = self.thread.get()
        {
            thread.unpark();
        }
    }

    fn put(&self, answer: Answer) {
        self.answers.lock().unwrap_or_else(PoisonError::into_inner).push(answer);
        self.ring();
    }
}

/// What is known of the page cache before a small read.
fn warmth(file: &Descriptors, offset: u64, policy: CachePolicy) -> Warmth {
    if file.is_memory {
        Warmth::Warm
    } else if policy == CachePolicy::Bypass || !file.is_resident(offset) {
        Warmth::Cold
    } else {
        Warmth::Warm
    }
}

/// Reads a few bytes that the page cache has into host memory, on this thread. `None` if it may take longer.
pub(super) fn read_warm(
    office: &Office,
    file: &File,
    (offset, len): (u64, usize),
    host: u64,
) -> Option<(Result<u64>, Moved)> {
    let Fill::Descriptor(descriptors) = file.source().fill() else { return None };
    if let Err(error) = descriptors.check() {
        return Some((Err(error), Moved::default()));
    }
    let policy = office.stage.policy(file);
    if len > PIECE || warmth(descriptors, offset, policy) != Warmth::Warm {
        return None;
    }
    let mut segment = Segment {
        entry: 0,
        entries: 1,
        start: offset,
        len,
        address: host,
        base: offset,
        host: host as *mut u8,
        window: len,
        done: 0,
        cached: 0,
        placed: 0,
        way: Way::Cached,
        registered: false,
        failed: false,
        asks_cache: false,
        refused: None,
    };
    let align = granularity(file.source().as_ref());
    if !segment.read_cached(descriptors, align, policy, Warmth::Warm) {
        if !descriptors.is_memory {
            return None;
        }
        if let Err(error) = segment.run_blocking(Direction::Read, descriptors, align) {
            return Some((Err(error), Moved::default()));
        }
    }
    Some((Ok(segment.good() as u64), segment.moved()))
}

/// A read into a room of `len` bytes at `room`: aligned out for O_DIRECT where it will come from the disk. Warm bytes
/// are put where `address` (that of the device) lets wide copies be used.
pub(super) fn read_task(office: &Office, batch: Batch, room: usize, address: u64) -> Task {
    let exact = |mut batch: Batch| {
        let len = batch.pieces[0].len as u64;
        batch.pieces[0].address += address % 16;
        Task { batch, lead: 0, len, skip: address % 16 }
    };
    let piece = batch.pieces[0];
    let end = piece.offset + piece.len as u64;
    let (low, high) = aligned_out(piece.offset, end, granularity(batch.file.source().as_ref()));
    let fits = high - low <= room as u64;
    let has_direct = matches!(batch.file.source().fill(), Fill::Descriptor(file) if file.direct.is_some());
    let policy = office.stage.policy(&batch.file);
    if !has_direct || !fits || policy == CachePolicy::Keep || warmth_of(&batch, policy) == Warmth::Warm {
        return exact(batch);
    }
    let mut batch = batch;
    batch.pieces[0] = Piece { offset: low, address: piece.address, len: (high - low) as usize };
    let lead = piece.offset - low;
    Task { batch, lead, len: piece.len as u64, skip: lead }
}

/// Leaves out what was read beside the wanted bytes.
fn without_edges(mut moved: Moved, good: u64) -> Moved {
    let mut more = moved.total().saturating_sub(good);
    for bytes in [&mut moved.direct, &mut moved.buffered, &mut moved.cached, &mut moved.requested] {
        let less = more.min(*bytes);
        *bytes -= less;
        more -= less;
    }
    moved
}

/// A batch of one piece.
pub(super) fn one(file: &File, memory: Memory, direction: Direction, (offset, len): (u64, usize)) -> Batch {
    let address = memory.address;
    let pieces = vec![Piece { offset, address, len }];
    Batch { file: file.clone(), memory, direction, pieces, allow_short: true }
}

/// Starts a task; its answer comes into the letterbox.
pub(super) fn start(
    office: &Office,
    letterbox: &Arc<Letterbox>,
    task: Task,
    (track, first, chunk): (u64, u32, u32),
) {
    let Task { batch, lead, len, .. } = task;
    let letterbox = letterbox.clone();
    // The completion's own end needs the completion, which is made after it.
    let place: Arc<Mutex<Option<Arc<Completion>>>> = Arc::default();
    let kept = place.clone();
    let after = move || {
        let Some(completion) = kept.lock().unwrap_or_else(PoisonError::into_inner).take() else { return };
        let result = completion.results().swap_remove(0).map(|bytes| bytes.saturating_sub(lead).min(len));
        let good = result.as_ref().map_or(0, |bytes| *bytes);
        let moved = without_edges(completion.moved(), good);
        letterbox.put(Answer { track, first, chunk, result, moved });
    };
    let is_host = batch.memory.device.info().is_host;
    let wanted = batch.pieces.iter().map(|piece| piece.len as u64).collect();
    let make = |works: usize| {
        let (election, totals) = (office.election.clone(), Arc::default());
        let completion = Completion::new(wanted, works, vec![true], election, totals, Some(Box::new(after)));
        *place.lock().unwrap_or_else(PoisonError::into_inner) = Some(completion.clone());
        completion
    };
    let mut batch = batch;
    // A file that cannot tell its length is read as far as it goes.
    let beyond = PastEnd::cut(&mut batch).unwrap_or(None);
    let batch = Arc::new(batch);
    if let (false, Some(pull)) = (is_host, &office.puller) {
        let completion = make(1);
        if let Some(beyond) = beyond {
            beyond.tell(&completion, 0, office.straight.clone());
        }
        return pull(PullJob { batch, base: 0, completion });
    }
    let stage = if is_host { &office.stage } else { &office.straight };
    let warmth = stage.warmth(&batch);
    let staged = stage.plan(&batch, warmth, None);
    let works = staged.works();
    // One more than there are: without any, the end of the file is looked at, too.
    let completion = make(works + 1);
    if let Some(beyond) = beyond {
        beyond.tell(&completion, 0, stage.clone());
    }
    if works > 0 {
        stage.submit(&staged.job(0, completion.clone()));
    }
    completion.work_done(Moved::default());
}
