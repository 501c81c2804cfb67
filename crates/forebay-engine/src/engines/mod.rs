//! The engines: each joins one capability of a source with one kind of memory.
//!
//! A device has an ordered list of them ([`elect`]). A request walks down the list once: a small synchronous transfer is
//! offered to [`Engine::run`], everything else to [`Engine::claim`], batch by batch. An engine takes all of it, or parts,
//! or passes with a reason; what it leaves goes to the next one. The works of all engines end in one completion. What
//! each did is written down in a [`Walk`](explain::Walk), from which the receipt is made ([`explain`]).
//!
//! A program adds an engine of its own by [`register`]: `examples/toy_engine.rs` is a whole one.

pub(crate) mod elect;
pub(crate) mod explain;
pub(crate) mod mapped;
pub(crate) mod noop;
pub(crate) mod p2p;
pub(crate) mod permission;
pub(crate) mod staged;

use std::cell::OnceCell;
use std::sync::{Arc, Mutex};

use forebay_config::{CachePolicy, Config};
use forebay_error::{Error, ErrorKind, Result};
use forebay_gpu::Device;

use self::explain::Walk;
use crate::io::plan::Part;
use crate::io::segment::granularity;
use crate::request::copy_order::CopyOrder;
use crate::request::file::File;
use crate::request::receipt::{EngineKind, Moved, Note, Refusal};
use crate::request::ticket::{CallerPolled, Completion};
use crate::request::transfer::{Batch, Transfer};
use crate::runtime::lock::lock;
use crate::source::piece::{Direction, Piece};
use crate::source::residency::Warmth;
use crate::source::{Descriptors, Fill};

/// Moves bytes between a source and the memory of one device.
pub trait Engine: Send + Sync {
    /// Which one it is.
    fn kind(&self) -> EngineKind;

    /// Moves a transfer on the calling thread, if that is the best way; most leave it to the lanes.
    ///
    /// # Safety
    /// The transfer's memory is valid, and nobody else uses it, until this returns.
    unsafe fn run(&self, transfer: &Transfer, known: &Known<'_>) -> Result<Ran> {
        let _ = (transfer, known);
        Ok(Ran::Passed(None))
    }

    /// Takes a batch on, or those parts of it that it can move. Nothing moves before [`Work::start`]. An error ends the
    /// whole submission: for an engine that was asked for, and no other.
    fn claim(&self, asked: &Asked<'_>) -> Result<Claim>;

    /// Makes ready for works that it took, and says what holds it back. Called before they start.
    fn prepare(&self) -> Result<Vec<Note>> {
        Ok(Vec::new())
    }

    /// What receipts say of it beside its name.
    fn about(&self) -> Result<About> {
        Ok(About::default())
    }

    /// This session is about to write to the file.
    fn before_write(&self, file: &File) {
        let _ = file;
    }
}

/// What receipts say of an engine beside its name.
#[derive(Clone, Debug, Default)]
pub struct About {
    /// The mode that it works in, if it has several.
    pub mode: Option<&'static str>,
    /// What is worth knowing of it.
    pub notes: Vec<Note>,
}

/// What is known of a request's file: found out once, at the door.
pub struct Known<'a> {
    /// The file.
    pub file: &'a File,
    /// What happens to the page cache: as the file says, or otherwise as the session says.
    pub policy: CachePolicy,
    pub(crate) fill: Fill<'a>,
    /// What O_DIRECT asks of offsets.
    pub(crate) align: u64,
    pub(crate) order: CopyOrder,
}

impl<'a> Known<'a> {
    pub(crate) fn of(file: &'a File, policy: CachePolicy, order: CopyOrder) -> Self {
        let fill = file.source().fill();
        let policy = match &fill {
            Fill::Descriptor(file) => file.cache.unwrap_or(policy),
            Fill::Requests(_) => policy,
        };
        Self { file, policy, fill, align: granularity(file.source().as_ref()), order }
    }

    /// The file's descriptors; `None` for a source that has none.
    pub(crate) fn descriptors(&self) -> Option<&'a Descriptors> {
        match self.fill {
            Fill::Descriptor(file) => Some(file),
            Fill::Requests(_) => None,
        }
    }
}

/// A batch, or parts of it, on the way down the list.
pub struct Asked<'a> {
    /// The batch.
    pub batch: &'a Arc<Batch>,
    /// The parts that are left of it; `None`: all of it.
    pub parts: Option<Vec<Part>>,
    /// What is known of its file.
    pub known: &'a Known<'a>,
    /// It is the only batch of its submission, and comes after nothing.
    pub(crate) is_alone: bool,
    warmth: OnceCell<Warmth>,
}

impl<'a> Asked<'a> {
    pub(crate) fn new(batch: &'a Arc<Batch>, known: &'a Known<'a>, is_alone: bool) -> Self {
        Self { batch, parts: None, known, is_alone, warmth: OnceCell::new() }
    }

    /// What samples say of the batch's residency; asked when first needed.
    pub(crate) fn warmth(&self) -> Warmth {
        *self.warmth.get_or_init(|| warmth_of(self.batch, self.known.policy))
    }

    /// Bytes that are left.
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

/// What came of an engine's attempt on the calling thread.
pub enum Ran {
    /// The transfer is done.
    Done(Done),
    /// A matter for the next engine; why, where this one would have been better.
    Passed(Option<Arc<Refusal>>),
    /// A matter for other threads than the caller's.
    Later,
}

/// A transfer that was done on the calling thread.
pub struct Done {
    /// Bytes that are good, from its start.
    pub good: usize,
    /// How they went.
    pub moved: Moved,
    /// Why another engine than this one moved them in the end.
    pub refusal: Option<Arc<Refusal>>,
    /// What is worth knowing.
    pub note: Option<Arc<Note>>,
}

impl Done {
    /// Nothing to add.
    pub fn new(good: usize, moved: Moved) -> Self {
        Self { good, moved, refusal: None, note: None }
    }
}

/// What an engine takes of a batch.
pub enum Claim {
    /// All that was left, or a part.
    Taken(Taken),
    /// Nothing; why, where it would have been better.
    Passed(Option<Arc<Refusal>>),
}

/// Works that an engine took on.
pub struct Taken {
    /// What starts them.
    pub work: Box<dyn Work>,
    /// Bytes that they move, as far as that is known.
    pub bytes: u64,
    /// What goes to the next engine.
    pub left: Vec<Part>,
    /// Why something is left.
    pub refusal: Option<Arc<Refusal>>,
}

/// Works that are ready to start.
pub trait Work: Send {
    /// How many there are: each ends by one [`Completion::work_done`].
    fn count(&self) -> usize;

    /// What is worth knowing of them, in place of [`Engine::about`].
    fn about(&self) -> Option<About> {
        None
    }

    /// Starts them. What cannot start fails in the completion, where the batch's first entry has the number
    /// `onward.base`. What cannot be moved after all may be handed on.
    fn start(self: Box<Self>, onward: Onward) -> Option<Arc<dyn CallerPolled>>;
}

/// Where works end, and where those go that an engine gives back in flight.
#[derive(Clone)]
pub struct Onward {
    /// What works are told to.
    pub completion: Arc<Completion>,
    /// The number of the batch's first entry there.
    pub base: u32,
    pub(crate) list: Arc<[Arc<dyn Engine>]>,
    /// Where the engines behind this one begin.
    pub(crate) next: usize,
    /// The session's cache policy.
    pub(crate) policy: CachePolicy,
}

impl Onward {
    /// Hands parts of a batch to the engines further down. The caller still has one of its own works to end.
    pub fn hand_on(&self, batch: &Arc<Batch>, parts: &[Part]) {
        let known = Known::of(&batch.file, self.policy, CopyOrder::Free);
        let asked = Asked { parts: Some(parts.to_vec()), ..Asked::new(batch, &known, false) };
        match claim_along(&self.list, self.next, asked, &mut Walk::default()) {
            Ok(claimed) => {
                self.completion.expect(claimed.iter().map(|claimed| claimed.taken.work.count()).sum());
                for claimed in claimed {
                    claimed.start(self.clone());
                }
            }
            Err(error) => self.fail(batch, parts, &error),
        }
    }

    /// These parts of a batch cannot be moved.
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
    /// Where the engines behind it begin.
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

/// Walks down the list from `first` until nothing is left of a batch.
pub(crate) fn claim_along(
    list: &[Arc<dyn Engine>],
    first: usize,
    mut asked: Asked<'_>,
    walk: &mut Walk,
) -> Result<Vec<Claimed>> {
    let mut all = Vec::with_capacity(1);
    for (index, engine) in list.iter().enumerate().skip(first) {
        match engine.claim(&asked)? {
            Claim::Passed(refusal) => walk.tell(engine.kind(), 0, refusal),
            Claim::Taken(mut taken) => {
                walk.tell(engine.kind(), taken.bytes, taken.refusal.take());
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

/// How an engine of a program's own is made for a device.
type Make = Box<dyn Fn(&Arc<dyn Device>, &Config) -> Result<Arc<dyn Engine>> + Send + Sync>;

static REGISTERED: Mutex<Vec<(&str, Make)>> = Mutex::new(Vec::new());

/// Makes an engine known to sessions that are opened later: it serves devices where `FOREBAY_ENGINE` or
/// [`Config::engine`] names it, and no others. The first of a name stays.
pub fn register(
    name: &'static str,
    make: impl Fn(&Arc<dyn Device>, &Config) -> Result<Arc<dyn Engine>> + Send + Sync + 'static,
) {
    let mut all = lock(&REGISTERED);
    if all.iter().all(|(other, _)| *other != name) {
        all.push((name, Box::new(make)));
    }
}

/// The name as it was registered.
pub(crate) fn registered(name: &str) -> Option<&'static str> {
    lock(&REGISTERED).iter().find(|(other, _)| *other == name).map(|(other, _)| *other)
}

/// A registered engine for a device; `None` if nobody registered that name.
pub(crate) fn make(name: &str, device: &Arc<dyn Device>, config: &Config) -> Option<Result<Arc<dyn Engine>>> {
    lock(&REGISTERED).iter().find(|(other, _)| *other == name).map(|(_, make)| make(device, config))
}
