//! Writes receipts: the engine that moved the bytes, and why no better one did. No other module does.

use std::sync::{Arc, OnceLock};

use crate::request::file::File;
use crate::request::receipt::{Election, EngineKind, Note, ReceiptPart, Refusal};

/// What one engine did with a request.
#[derive(Clone, Debug)]
struct Step {
    kind: EngineKind,
    /// Bytes that it moved or will move.
    bytes: u64,
    /// Why it did not move more.
    refusal: Option<ReceiptPart<Refusal>>,
}

/// Most steps of a walk. No list has more engines that report something.
pub(super) const MAX_STEPS: usize = 6;

/// What the engines of the list did with a request, in their order. All batches of a submission share one walk. The
/// size is fixed: a request allocates nothing for it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Walk {
    steps: [Option<Step>; MAX_STEPS],
    note: Option<ReceiptPart<Note>>,
}

impl Walk {
    /// Adds what an engine did. Keeps the first refusal of each engine.
    #[inline]
    pub(crate) fn record(&mut self, kind: EngineKind, bytes: u64, refusal: Option<ReceiptPart<Refusal>>) {
        if bytes > 0 || refusal.is_some() {
            self.add(kind, bytes, refusal);
        }
    }

    fn add(&mut self, kind: EngineKind, bytes: u64, refusal: Option<ReceiptPart<Refusal>>) {
        let is_its = |step: &&mut Option<Step>| step.as_ref().is_none_or(|step| step.kind == kind);
        match self.steps.iter_mut().find(is_its) {
            Some(Some(step)) => {
                step.bytes += bytes;
                step.refusal = step.refusal.take().or(refusal);
            }
            Some(free) => *free = Some(Step { kind, bytes, refusal }),
            // All steps are used: the receipt leaves the engine out.
            None => {}
        }
    }

    /// Sets the note.
    pub(crate) fn note(&mut self, note: Option<ReceiptPart<Note>>) {
        self.note = note;
    }

    /// Whether the election at device level needs no change.
    pub(crate) fn is_empty(&self) -> bool {
        self.steps().next().is_none() && self.note.is_none()
    }

    fn steps(&self) -> impl Iterator<Item = &Step> {
        self.steps.iter().map_while(Option::as_ref)
    }

    /// The engine that moved most bytes, the first in the list if two moved as many.
    fn mover(&self) -> Option<EngineKind> {
        let (mut most, mut mover) = (0, None);
        for step in self.steps() {
            if step.bytes > most {
                (most, mover) = (step.bytes, Some(step.kind));
            }
        }
        mover
    }

    /// Whether other requests can share the election: all reasons are the same for many requests, and no text states
    /// numbers of bytes.
    fn is_shared(&self) -> bool {
        let is_of_many = |step: &Step| match step.refusal {
            None => true,
            Some(ReceiptPart::Always(_)) => step.bytes == 0,
            Some(ReceiptPart::Now(_)) => false,
        };
        self.steps().all(is_of_many) && !matches!(self.note, Some(ReceiptPart::Now(_)))
    }

    /// Whether the same engines moved bytes and gave the same reasons. Compares refusals and notes by address.
    fn is_like(&self, other: &Self) -> bool {
        let same = |one: &Option<Step>, other: &Option<Step>| match (one, other) {
            (Some(one), Some(other)) => {
                one.kind == other.kind
                    && (one.bytes > 0) == (other.bytes > 0)
                    && ReceiptPart::is_same(one.refusal.as_ref(), other.refusal.as_ref())
            }
            (None, None) => true,
            _ => false,
        };
        ReceiptPart::is_same(self.note.as_ref(), other.note.as_ref())
            && self.steps.iter().zip(&other.steps).all(|(one, other)| same(one, other))
    }

    /// The election of `base`, which is about the device, changed by what the engines did with this request.
    pub(crate) fn elect(&self, base: &Election) -> Election {
        let mut made = base.clone();
        let total: u64 = self.steps().map(|step| step.bytes).sum();
        for Step { kind, bytes, refusal } in self.steps() {
            made.refused.retain(|refusal| refusal.engine != *kind);
            let Some(refusal) = refusal.as_ref().filter(|_| *bytes < total || total == 0) else { continue };
            let mut refusal = Refusal::clone(refusal);
            if *bytes > 0 {
                refusal.reason = format!("{} ({} of {total} bytes)", refusal.reason, total - bytes);
            }
            made.refused.push(refusal);
        }
        if let Some(note) = self.note.as_deref().filter(|note| !made.notes.contains(note)) {
            made.notes.push(note.clone());
        }
        if let Some(kind) = self.mover() {
            made.engine = kind;
        }
        made
    }
}

/// Elections of a device that requests share. Most requests lead to one of a few elections, and so allocate nothing.
#[derive(Debug, Default)]
pub(crate) struct ElectionCache([OnceLock<CachedElection>; 8]);

/// An election, with the base and the walk that it follows from.
#[derive(Debug)]
struct CachedElection {
    base: Arc<Election>,
    walk: Walk,
    mover: Option<EngineKind>,
    made: Arc<Election>,
}

impl ElectionCache {
    /// The election that a walk leads to from `base`.
    pub(crate) fn elect(&self, base: &Arc<Election>, walk: &Walk) -> Arc<Election> {
        if let ([Some(only), None, ..], None) = (&walk.steps, &walk.note)
            && only.refusal.is_none()
            && only.kind == base.engine
        {
            return base.clone();
        }
        let mover = walk.mover();
        let keep = || {
            let made = Arc::new(walk.elect(base));
            CachedElection { base: base.clone(), walk: walk.clone(), mover, made }
        };
        for place in &self.0 {
            let kept = match place.get() {
                Some(kept) => kept,
                None if walk.is_shared() => place.get_or_init(keep),
                None => break,
            };
            if Arc::ptr_eq(&kept.base, base) && kept.mover == mover && kept.walk.is_like(walk) {
                return kept.made.clone();
            }
        }
        Arc::new(walk.elect(base))
    }
}

/// An address of a server that is not used.
fn left_out((text, hint): (String, String)) -> Note {
    Note { text, hint: Some(hint) }
}

/// The election with a note why the file has no O_DIRECT, if it has none, or how its bytes travel.
pub(crate) fn with_file(election: &Arc<Election>, file: &File) -> Arc<Election> {
    let facts = file.source().facts();
    let is_memory = file.descriptors().is_some_and(|file| file.is_memory);
    let through_cache = file.direct_refused().filter(|_| !is_memory).map(|reason| Note {
        text: format!("cold bytes go through the page cache: {reason}"),
        hint: Some("keep the file on a local ext4 or xfs file system".to_owned()),
    });
    let way = facts.way.map(|text| Note { text, hint: None });
    if way.is_none() && through_cache.is_none() {
        return election.clone();
    }
    let mut with = Election::clone(election);
    with.notes.extend(way);
    with.notes.extend(facts.left_out.into_iter().map(left_out));
    with.notes.extend(through_cache);
    Arc::new(with)
}
