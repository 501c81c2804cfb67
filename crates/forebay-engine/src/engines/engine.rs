//! The trait of engines, and how a batch goes down a list of them.

use std::cell::OnceCell;
use std::sync::Arc;
use std::time::Instant;

use forebay_config::CachePolicy;
use forebay_error::{Error, ErrorKind, Result};

use super::explain::Walk;
use crate::io::plan::Part;
use crate::io::segment::granularity;
use crate::request::completion::Completion;
use crate::request::copy_order::CallOrder;
use crate::request::file::File;
use crate::request::receipt::{EngineKind, Moved, Note, ReceiptPart, Refusal};
use crate::request::ticket::CallerPolled;
use crate::request::transfer::{Batch, Transfer};
use crate::source::Descriptors;
use crate::source::piece::{Direction, Piece};
use crate::source::residency::Warmth;

/// Moves bytes between a source and the memory of one device.
pub trait Engine: Send + Sync {
    /// The kind that receipts name.
    fn kind(&self) -> EngineKind;

    /// Moves a transfer on the calling thread, if that is fastest. The default passes: other threads do it by
    /// [`Engine::claim`].
    ///
    /// # Safety
    /// The transfer's memory is valid, and nobody else uses it, until this returns.
    unsafe fn run(&self, transfer: &Transfer, known: &Known<'_>) -> Result<Ran> {
        let _ = (transfer, known);
        Ok(Ran::Later)
    }

    /// Takes a batch, or those parts of it that it can move. Nothing moves before [`Work::start`]. An error fails the
    /// whole submission: return one only from an engine that the user asked for by name, and pass otherwise.
    fn claim(&self, asked: &AskedBatch<'_>) -> Result<Claim>;

    /// Starts what its works need (threads, rings, pinned memory). Returns notes on what makes it slower than it could
    /// be. Called before the works start.
    fn prepare(&self) -> Result<Vec<Note>> {
        Ok(Vec::new())
    }

    /// What receipts say about it beside its name.
    fn about(&self) -> Result<EngineFacts> {
        Ok(EngineFacts::default())
    }

    /// Called before this session writes to the file: drop what the write makes stale.
    fn before_write(&self, file: &File) {
        let _ = file;
    }
}

/// What receipts say about an engine beside its name.
#[derive(Clone, Debug, Default)]
pub struct EngineFacts {
    /// The mode that it works in, if it has several.
    pub mode: Option<&'static str>,
    /// Notes for the receipt.
    pub notes: Vec<Note>,
}

/// Facts about a request's file, found once per request before any engine sees it.
pub struct Known<'a> {
    /// The file.
    pub file: &'a File,
    /// The cache policy of the file, else of the session.
    pub policy: CachePolicy,
    /// The file's descriptors; `None` for a source that has none.
    pub(crate) descriptors: Option<&'a Descriptors>,
    /// Granularity of O_DIRECT offsets in bytes, at least a page.
    pub(crate) align: u64,
    /// Of device copies that wait for work on the default streams.
    pub(crate) order: Option<&'a CallOrder<'a>>,
    /// When a synchronous call began: what need not be the time to the nanosecond asks no clock.
    pub(crate) began: Option<Instant>,
}

impl<'a> Known<'a> {
    pub(crate) fn of(file: &'a File, policy: CachePolicy) -> Self {
        let descriptors = file.descriptors();
        let policy = descriptors.and_then(|file| file.cache).unwrap_or(policy);
        let align = granularity(descriptors);
        Self { file, policy, descriptors, align, order: None, began: None }
    }
}

/// A batch, or the parts of it that engines further up the list left.
pub struct AskedBatch<'a> {
    /// The batch.
    pub batch: &'a Arc<Batch>,
    /// The parts still to be taken; `None`: the whole batch.
    pub parts: Option<Vec<Part>>,
    /// The state of its file.
    pub known: &'a Known<'a>,
    /// The batch is the only one of its submission, and its copies wait for no prior work.
    pub(crate) is_alone: bool,
    warmth: OnceCell<Warmth>,
}

impl<'a> AskedBatch<'a> {
    pub(crate) fn new(batch: &'a Arc<Batch>, known: &'a Known<'a>, is_alone: bool) -> Self {
        Self { batch, parts: None, known, is_alone, warmth: OnceCell::new() }
    }

    /// Page-cache residency of the batch, from samples. The first call samples; later calls return the same.
    pub(crate) fn warmth(&self) -> Warmth {
        *self.warmth.get_or_init(|| warmth_of(self.batch, self.known.policy))
    }

    /// Bytes still to be taken.
    pub fn bytes(&self) -> u64 {
        let all = |pieces: &[Piece]| pieces.iter().map(|piece| piece.len as u64).sum::<u64>();
        let of_part = |part: &Part| match *part {
            Part::Entries { first, last } => all(&self.batch.pieces[first as usize..last as usize]),
            Part::Range { start, end, .. } => end - start,
        };
        match &self.parts {
            None => all(&self.batch.pieces),
            Some(parts) => parts.iter().map(of_part).sum(),
        }
    }
}

/// Page-cache residency of a batch, from samples. Reads that bypass the cache count as cold; writes and sources without
/// a descriptor as mixed.
pub(crate) fn warmth_of(batch: &Batch, cache: CachePolicy) -> Warmth {
    match (batch.direction, cache, batch.file.descriptors()) {
        (Direction::Read, CachePolicy::Bypass, _) => Warmth::Cold,
        (Direction::Read, _, Some(file)) => {
            file.warmth(batch.pieces.iter().map(|piece| (piece.offset, piece.len as u64)))
        }
        _ => Warmth::Mixed,
    }
}

/// The result of [`Engine::run`].
pub enum Ran {
    /// The transfer is done.
    Done(Done),
    /// The next engine may run it. The reason, if this engine would have been better.
    Passed(Option<ReceiptPart<Refusal>>),
    /// No engine runs it on the calling thread: it goes to [`Engine::claim`].
    Later,
}

/// A transfer that was done on the calling thread.
pub struct Done {
    /// Valid bytes, from the transfer's start.
    pub good: usize,
    /// Bytes by the way they took.
    pub moved: Moved,
    /// Why a part went another way than this engine's own.
    pub refusal: Option<ReceiptPart<Refusal>>,
    /// A note for the receipt.
    pub note: Option<ReceiptPart<Note>>,
}

impl Done {
    /// Without a refusal or a note.
    pub fn new(good: usize, moved: Moved) -> Self {
        Self { good, moved, refusal: None, note: None }
    }
}

/// What an engine takes of a batch.
pub enum Claim {
    /// All that was asked, or parts of it.
    Taken(Taken),
    /// Nothing. The reason, if this engine would have been better.
    Passed(Option<ReceiptPart<Refusal>>),
}

/// Works that an engine took on.
pub struct Taken {
    /// What starts them.
    pub work: Box<dyn Work>,
    /// Bytes that they are expected to move.
    pub bytes: u64,
    /// The parts for the next engine.
    pub left: Vec<Part>,
    /// Why these parts are left.
    pub refusal: Option<ReceiptPart<Refusal>>,
}

/// Works that are ready to start.
pub trait Work: Send {
    /// The number of works. Each ends with exactly one [`Completion::work_done`].
    fn count(&self) -> usize;

    /// Replaces [`Engine::about`] for the receipt of these works.
    fn about(&self) -> Option<EngineFacts> {
        None
    }

    /// Starts them. A work that cannot start fails its entries in the completion; the batch's first entry is number
    /// `onward.base` there. Parts that turn out not to be movable go to [`Onward::hand_on`]. Returns what the waiting
    /// caller must poll, for works that no other thread ends.
    fn start(self: Box<Self>, onward: Onward) -> Option<Arc<dyn CallerPolled>>;
}

/// The completion of works, and the engines further down for parts that an engine gives back in flight.
#[derive(Clone)]
pub struct Onward {
    /// Records the results of works.
    pub completion: Arc<Completion>,
    /// The number of the batch's first entry in the completion.
    pub base: u32,
    pub(crate) list: Arc<[Arc<dyn Engine>]>,
    /// Index of the first engine below this one in the list.
    pub(crate) next: usize,
    /// The session's cache policy.
    pub(crate) policy: CachePolicy,
}

impl Onward {
    /// Hands parts of a batch to the engines further down. Call it before the last own [`Completion::work_done`], so
    /// that the completion cannot resolve before the new works are counted.
    ///
    /// # Safety
    /// The parts are of the batch that the engine took, and no works of its own move them any more.
    pub unsafe fn hand_on(&self, batch: &Arc<Batch>, parts: &[Part]) {
        let known = Known::of(&batch.file, self.policy);
        let asked = AskedBatch { parts: Some(parts.to_vec()), ..AskedBatch::new(batch, &known, false) };
        match claim_along(&self.list, self.next, asked, &mut Walk::default()) {
            Ok(claimed) => {
                self.completion.expect(claimed.iter().map(|claimed| claimed.taken.work.count()).sum());
                for claimed in claimed {
                    if let Some(polled) = claimed.start(self.clone()) {
                        polled.watch();
                    }
                }
            }
            Err(error) => self.fail(batch, parts, &error),
        }
    }

    /// Fails these parts of a batch.
    pub fn fail(&self, batch: &Batch, parts: &[Part], error: &Error) {
        for part in parts {
            let (entries, start) = match *part {
                Part::Range { entry, start, .. } => (entry..entry + 1, Some(start)),
                Part::Entries { first, last } => (first..last, None),
            };
            for entry in entries {
                let at = start.map_or(0, |start| start - batch.pieces[entry as usize].offset);
                self.completion.fail(self.base + entry, at, error.clone());
            }
        }
    }
}

/// What one engine of the list took.
pub(crate) struct Claimed {
    pub(crate) taken: Taken,
    /// Index of the first engine below it in the list.
    next: usize,
}

impl Claimed {
    pub(crate) fn works(&self) -> usize {
        self.taken.work.count()
    }

    pub(crate) fn start(self, onward: Onward) -> Option<Arc<dyn CallerPolled>> {
        self.taken.work.start(Onward { next: self.next, ..onward })
    }
}

/// Offers a batch to the engines from `first` down until nothing is left of it.
pub(crate) fn claim_along(
    list: &[Arc<dyn Engine>],
    first: usize,
    mut asked: AskedBatch<'_>,
    walk: &mut Walk,
) -> Result<Vec<Claimed>> {
    let mut all = Vec::with_capacity(1);
    for (index, engine) in list.iter().enumerate().skip(first) {
        match engine.claim(&asked)? {
            Claim::Passed(refusal) => walk.record(engine.kind(), 0, refusal),
            Claim::Taken(mut taken) => {
                walk.record(engine.kind(), taken.bytes, taken.refusal.take());
                let left = std::mem::take(&mut taken.left);
                all.push(Claimed { taken, next: index + 1 });
                if left.is_empty() {
                    return Ok(all);
                }
                asked.parts = Some(left);
            }
        }
    }
    Err(no_engine(asked.known.file))
}

#[cold]
fn no_engine(file: &File) -> Error {
    Error::new(ErrorKind::Unsupported, "no engine takes this transfer")
        .with("file", file.name())
        .hint("leave the choice of the engine to forebay: unset FOREBAY_ENGINE")
}
