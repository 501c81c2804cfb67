//! The engine `p2p`: the drive's own DMA into and out of memory in a PCI BAR. No byte crosses the host's memory.
//!
//! Such memory has addresses that O_DIRECT takes as they are, so a piece needs no slot: a small synchronous transfer is
//! one call on the caller's thread, everything else goes through the lanes' rings straight at the caller's addresses.
//! What O_DIRECT cannot address (unaligned heads and tails) is staged. Whether a drive really reaches the memory is tried
//! first ([`trial`]); an error that says that it does not, later on, has the range staged and the engine refused.

mod cut;
mod run;
mod trial;

use std::sync::{Arc, OnceLock};

use forebay_config::CachePolicy;
use forebay_error::{Error, Result};
use forebay_gpu::Device;

use self::cut::{Alignment, Cut};
use self::run::Attempted;
use crate::engines::staged::Stage;
use crate::engines::staged::job::DirectMover;
use crate::engines::staged::sync::{Callers, MAX_CALLER_BYTES};
use crate::engines::{
    AskedBatch, Claim, DeviceOptions, Done, Engine, EngineCandidate, EngineParts, Known, Permission, Ran,
    Taken,
};
use crate::io::plan::Part;
use crate::io::refusal;

use crate::request::file::File;
use crate::request::receipt::{EngineKind, ReceiptPart, Refusal, Way};
use crate::request::transfer::{Batch, Transfer};
use crate::source::Descriptors;
use crate::source::piece::{Direction, Piece};

/// The engine for one device.
pub(crate) struct P2p {
    device: Arc<dyn Device>,
    /// Found out by the first transfer that asks.
    device_id: OnceLock<trial::DeviceId>,
    samples: trial::Samples,
    mode: Permission,
    /// Heads and tails may not be staged.
    strict: bool,
    /// Plans jobs for the lanes, which ask the drive.
    stage: Stage,
    callers: Arc<Callers>,
}

/// Parts of a batch that the drive moves by itself. All of it, where no parts are named.
struct Reachable {
    placed: Option<Vec<Part>>,
    /// The staged pieces, and their bytes.
    rest: Vec<Part>,
    left: u64,
    mover: Arc<dyn DirectMover>,
}

/// A drive and memory that it reaches.
#[derive(Clone, Copy, Debug)]
struct Reached {
    key: trial::Key,
    /// Bytes that the drive refuses after all fail: no other engine is allowed.
    only: bool,
}

impl DirectMover for Reached {
    fn refused(&self, errno: i32, direction: Direction) -> Option<Arc<Refusal>> {
        let refusal = refusal::of_errno(errno, direction);
        if refusal::is_for_good(errno) {
            trial::refuse(self.key, refusal.clone());
        }
        (!self.only).then_some(refusal)
    }
}

/// How the engine comes into the lists of devices.
pub(crate) struct P2pCandidate;

impl EngineCandidate for P2pCandidate {
    fn kind(&self) -> EngineKind {
        EngineKind::P2p
    }

    fn permission(&self, options: &DeviceOptions<'_>) -> Permission {
        match options.device.can_place() {
            Ok(()) => options.permit(EngineKind::P2p),
            Err(error) => Permission::refused_by(EngineKind::P2p, &error),
        }
    }

    fn make(&self, parts: &EngineParts<'_>, permission: Permission) -> Result<Arc<dyn Engine>> {
        Ok(Arc::new(P2p::new(parts, permission)))
    }
}

/// Bytes that the CPU has written to a BAR wait in its buffers, and then are on their way, until something is read back:
/// a drive could otherwise read what was there before.
pub(crate) fn settle(address: u64) {
    std::sync::atomic::fence(std::sync::atomic::Ordering::SeqCst);
    // SAFETY: callers name an address in mapped memory; a byte of it is read.
    unsafe { std::ptr::read_volatile(address as *const u8) };
}

impl P2p {
    fn new(parts: &EngineParts<'_>, mode: Permission) -> Self {
        let device = parts.device.clone();
        let strict = parts.config.strict.iter().any(|word| word == "all");
        let samples = trial::Samples::new(device.clone());
        let (stage, callers) = (parts.stage.clone(), parts.callers.clone());
        Self { device, device_id: OnceLock::new(), samples, mode, strict, stage, callers }
    }

    /// Whether nothing else may be used.
    fn is_all(&self) -> bool {
        self.mode == Permission::Only
    }

    /// The part of a batch that the drive moves.
    fn takes(&self, batch: &Batch, known: &Known<'_>) -> Result<Reachable, Arc<Refusal>> {
        let (file, alignment) = rules(known)?;
        let (placed, rest, left) = match cut::cut(&batch.pieces, alignment) {
            Cut::All => (None, Vec::new(), 0),
            Cut::Some(parts) if parts.placed.is_empty() => return Err(nothing_aligned(alignment)),
            Cut::Some(parts) if self.forbids(parts.left, parts.hopeless) => {
                return Err(partly_aligned(alignment, parts.left));
            }
            Cut::Some(parts) => (Some(parts.placed), parts.rest, parts.left),
        };
        let first = batch.pieces.iter().find_map(|piece| Some((piece, alignment.middle(piece)?)));
        let Some((piece, (low, high))) = first else {
            return Err(refusal::refusal("there is nothing to move", None));
        };
        let address = piece.address + (low - piece.offset);
        let sample = Piece { offset: low, address, len: (high - low) as usize };
        let key = self.check(&batch.file, file, batch.direction, sample)?;
        if batch.direction == Direction::Write {
            settle(address);
        }
        Ok(Reachable { placed, rest, left, mover: Arc::new(Reached { key, only: self.is_all() }) })
    }

    /// Whether the `left` bytes must not be staged.
    fn forbids(&self, left: u64, hopeless: Option<u32>) -> bool {
        self.is_all() && (hopeless.is_some() || (self.strict && left > 0))
    }

    fn check(
        &self,
        file: &File,
        descriptors: &Descriptors,
        direction: Direction,
        sample: Piece,
    ) -> Result<trial::Key, Arc<Refusal>> {
        let device_id = self.device_id.get_or_init(|| trial::DeviceId::of(self.device.as_ref()));
        let key = trial::Key::new(*device_id, descriptors, direction);
        trial::verdict(key, &self.samples, file, descriptors, sample)?;
        Ok(key)
    }

    /// Why nothing but the engine is allowed, and it cannot.
    fn error(&self, refusal: &Refusal, file: &File) -> Error {
        refusal::error(refusal).with("file", file.name()).with("device", &self.device.info().name)
    }
}

impl Engine for P2p {
    fn kind(&self) -> EngineKind {
        EngineKind::P2p
    }

    unsafe fn run(&self, transfer: &Transfer, known: &Known<'_>) -> Result<Ran> {
        if !(1..=MAX_CALLER_BYTES).contains(&transfer.len) {
            return Ok(if self.is_all() { Ran::Later } else { Ran::Passed(None) });
        }
        // SAFETY: passed on.
        Ok(match unsafe { self.run_here(transfer, known) }? {
            Attempted::Done(good, moved) => {
                let is_divided = moved[Way::Drive] < moved.total();
                Ran::Done(Done { refusal: is_divided.then(unaligned_ends), ..Done::new(good, moved) })
            }
            Attempted::Busy => Ran::Later,
            Attempted::Refused(refusal) if self.is_all() => {
                return Err(self.error(&refusal, known.file));
            }
            Attempted::Refused(refusal) => Ran::Passed(Some(ReceiptPart::Now(refusal))),
        })
    }

    fn claim(&self, asked: &AskedBatch<'_>) -> Result<Claim> {
        let bytes = asked.bytes();
        if bytes == 0 || asked.parts.is_some() {
            return Ok(Claim::Passed(None));
        }
        match self.takes(asked.batch, asked.known) {
            Ok(Reachable { placed, rest, left, mover }) => {
                let work = Box::new(self.stage.plan_placed(asked, placed.as_deref(), mover));
                let refusal = (left > 0).then(unaligned_ends);
                Ok(Claim::Taken(Taken { work, bytes: bytes - left, left: rest, refusal }))
            }
            Err(refusal) if self.is_all() => Err(self.error(&refusal, asked.known.file)),
            Err(refusal) => Ok(Claim::Passed(Some(ReceiptPart::Now(refusal)))),
        }
    }
}

fn unaligned_ends() -> ReceiptPart<Refusal> {
    ReceiptPart::Now(refusal::refusal(
        "heads and tails that O_DIRECT cannot address are staged",
        Some("align offsets, lengths and addresses to 4096 bytes"),
    ))
}

/// The cheap check: is the source a file that O_DIRECT can move?
fn rules<'a>(known: &Known<'a>) -> Result<(&'a Descriptors, Alignment), Arc<Refusal>> {
    let Some(descriptors) = known.descriptors else {
        return Err(refusal::refusal("the source is not a file of the kernel's", None));
    };
    if descriptors.is_memory {
        return Err(refusal::refusal("the file is memory: there is no drive to move its bytes", None));
    }
    let Some((_, direct)) = &descriptors.direct else {
        let text = known.file.direct_refused().unwrap_or("no descriptor for it");
        return Err(refusal::refusal(
            format!("the file has no O_DIRECT: {text}"),
            Some("keep the file on a local ext4 or xfs file system"),
        ));
    };
    if known.policy == CachePolicy::Keep {
        let text = "the cache policy keep sends all bytes through the page cache";
        return Err(refusal::refusal(text, Some("use the cache policy auto or bypass: unset FOREBAY_CACHE")));
    }
    Ok((descriptors, Alignment { offset: known.align, memory: trial::memory_alignment(*direct) }))
}

fn nothing_aligned(alignment: Alignment) -> Arc<Refusal> {
    let Alignment { offset, memory } = alignment;
    refusal::refusal(
        format!("no part of it is aligned for O_DIRECT ({offset} bytes in the file, {memory} in memory)"),
        Some("align offsets, lengths and addresses to 4096 bytes"),
    )
}

fn partly_aligned(alignment: Alignment, left: u64) -> Arc<Refusal> {
    let Alignment { offset, memory } = alignment;
    refusal::refusal(
        format!(
            "{left} bytes are not aligned for O_DIRECT ({offset} bytes in the file, {memory} in memory) and would be \
             staged"
        ),
        Some("align offsets, lengths and addresses to 4096 bytes"),
    )
}
