//! What a thread needs to move bytes by itself, and who has it at the moment.

use std::cell::Cell;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use forebay_error::Result;
use forebay_gpu::{Context, CopyPiece, DefaultStream, Device, Stream, Wait};

use super::pack::{Ferry, Packs, Patience};
use super::signal::{Manner, Marked};
use crate::request::copy_order::CopyOrder;
use crate::runtime::pinned::PinnedPages;

/// Desks per device: more callers at once go through the lanes.
pub(super) const DESKS: usize = 64;
/// Room for [`SMALL`](super::SMALL) bytes aligned out to the coarsest granularity: a whole huge page, since device and
/// disk deal with many small pages far more slowly.
const ROOM: usize = 2 << 20;

/// Every use waits for its copies.
pub(super) struct Desk {
    context: Context,
    /// Its stream. Before the pages that it uses.
    pub(super) ferry: Ferry,
    pub(super) pages: PinnedPages,
    /// For small copies, together with those of other callers.
    pub(super) packs: Arc<Packs>,
}

impl Desk {
    fn new(device: &Arc<dyn Device>, context: Context, packs: Arc<Packs>) -> Result<Self> {
        let default = device.default_stream(context, DefaultStream::PerThread)?;
        let marked = Marked::new(device.stream(context)?, default)?;
        let pages = PinnedPages::new(device, ROOM + Ferry::ROOM)?;
        // SAFETY: the pages live as long as the desk, and nothing else lies behind the room.
        let ferry = unsafe { Ferry::new(marked, &pages, ROOM) };
        Ok(Self { context, ferry, pages, packs })
    }

    /// Whatever is in flight, although a later step failed, is waited for.
    pub(super) fn clear(&self) {
        let _ = self.stream().synchronize(Wait::Block);
    }

    pub(super) fn stream(&self) -> &dyn Stream {
        self.ferry.marked.stream()
    }

    /// Copies go on the calling thread's default stream from now on, or on one of the desk's own.
    pub(super) fn choose_stream(&self, is_default: bool) {
        self.ferry.marked.on_default.set(is_default);
    }

    pub(super) fn wait(&self, manner: Manner<'_>) -> Result<()> {
        self.ferry.marked.wait(manner)
    }

    /// Moves a piece together with those of other callers, and waits.
    ///
    /// # Safety
    /// As [`Packs::carry`].
    pub(super) unsafe fn carry(&self, piece: CopyPiece, patience: Patience, order: CopyOrder) -> Result<()> {
        self.choose_stream(false);
        // SAFETY: passed on.
        unsafe { self.packs.carry(piece, &self.ferry, patience, order) }
    }
}

/// One place. Neighbours are used by other threads: none shares a cache line with them.
#[derive(Default)]
#[repr(align(128))]
struct Place(Mutex<Option<Desk>>);

/// The desks of a device. Each thread comes back to the one that it had last, so that threads do not meet.
pub(super) struct Desks {
    device: Arc<dyn Device>,
    places: Vec<Place>,
    /// Places that a desk was made in, or tried to.
    used: AtomicUsize,
    /// For each context.
    packs: Mutex<Vec<Arc<Packs>>>,
}

thread_local! {
    /// Where this thread was last.
    static LAST: Cell<usize> = const { Cell::new(0) };
}

impl Desks {
    pub(super) fn new(device: Arc<dyn Device>) -> Self {
        let places = (0..DESKS).map(|_| Place::default()).collect();
        Self { device, places, used: AtomicUsize::new(0), packs: Mutex::default() }
    }

    /// Does some work at a desk. `None` if there is none.
    pub(super) fn with<T>(
        &self,
        context: Context,
        work: impl FnOnce(&Desk) -> Result<T>,
    ) -> Result<Option<T>> {
        let Some(mut place) = self.find(context) else { return Ok(None) };
        if place.is_none() {
            *place = Some(Desk::new(&self.device, context, self.packs_of(context))?);
        }
        place.as_ref().map(work).transpose()
    }

    fn find(&self, context: Context) -> Option<MutexGuard<'_, Option<Desk>>> {
        loop {
            let used = self.used.load(Ordering::Acquire);
            let last = LAST.get().min(used);
            for at in (last..used).chain(0..last) {
                // One that somebody panicked at may have copies in flight: it is left alone.
                if let Ok(place) = self.places[at].0.try_lock()
                    && place.as_ref().is_none_or(|desk| desk.context == context)
                {
                    LAST.set(at);
                    return Some(place);
                }
            }
            // Somebody else may be the first at a new place: then there is another, or none.
            let more = |used: usize| (used < DESKS).then_some(used + 1);
            let new = self.used.fetch_update(Ordering::AcqRel, Ordering::Acquire, more).ok()?;
            LAST.set(new);
        }
    }

    fn packs_of(&self, context: Context) -> Arc<Packs> {
        let mut all = self.packs.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(packs) = all.iter().find(|packs| packs.context() == context) {
            return packs.clone();
        }
        let packs = Arc::new(Packs::new(self.device.clone(), context));
        all.push(packs.clone());
        packs
    }
}
