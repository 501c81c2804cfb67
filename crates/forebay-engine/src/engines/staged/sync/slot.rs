//! Stream slots: what a caller's thread needs to move bytes by itself.

use std::cell::Cell;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use forebay_error::Result;
use forebay_gpu::{Context, CopyPiece, DefaultStream, Device, Stream, Wait};

use super::pack::{PackLauncher, PackWait, Packs};
use super::signal::{CopyWait, MarkedStream};
use crate::request::copy_order::CopyOrder;
use crate::runtime::lock::lock;
use crate::runtime::pinned::PinnedPages;
use crate::tuning::callers::{SLOT_BYTES, STREAM_SLOTS};

/// A stream with pinned memory for one caller at a time. Every use waits for its copies.
pub(super) struct StreamSlot {
    context: Context,
    /// Its stream. Dropped before the pages that it uses.
    pub(super) launcher: PackLauncher,
    pub(super) pages: PinnedPages,
    /// For small copies, together with those of other callers.
    pub(super) packs: Arc<Packs>,
}

impl StreamSlot {
    fn new(device: &Arc<dyn Device>, context: Context, packs: Arc<Packs>) -> Result<Self> {
        let default = device.default_stream(context, DefaultStream::PerThread)?;
        let marked = MarkedStream::new(device.stream(context)?, default)?;
        let pages = PinnedPages::new(device, SLOT_BYTES + PackLauncher::ROOM)?;
        // SAFETY: the pages live as long as the slot, and nothing else lies behind the room.
        let launcher = unsafe { PackLauncher::new(marked, &pages, SLOT_BYTES) };
        Ok(Self { context, launcher, pages, packs })
    }

    /// Waits for copies in flight after a later step failed.
    pub(super) fn clear(&self) {
        let _ = self.stream().synchronize(Wait::Block);
    }

    pub(super) fn stream(&self) -> &dyn Stream {
        self.launcher.marked.stream()
    }

    /// Whether further copies use the calling thread's default stream, or the slot's own.
    pub(super) fn choose_stream(&self, is_default: bool) {
        self.launcher.marked.on_default.set(is_default);
    }

    pub(super) fn wait(&self, wait: CopyWait<'_>) -> Result<()> {
        self.launcher.marked.wait(wait)
    }

    /// Moves a piece together with those of other callers, and waits.
    ///
    /// # Safety
    /// As [`Packs::copy_with_others`].
    pub(super) unsafe fn copy_with_others(
        &self,
        piece: CopyPiece,
        pack_wait: PackWait,
        order: CopyOrder,
    ) -> Result<()> {
        self.choose_stream(false);
        // SAFETY: passed on.
        unsafe { self.packs.copy_with_others(piece, &self.launcher, pack_wait, order) }
    }
}

/// A slot's place. Other threads use its neighbours: no two share a cache line.
#[derive(Default)]
#[repr(align(128))]
struct SlotPlace(Mutex<Option<StreamSlot>>);

/// The slots of a device. A thread uses its last slot again, so that threads do not meet.
pub(super) struct StreamSlots {
    device: Arc<dyn Device>,
    places: Vec<SlotPlace>,
    /// Places where the creation of a slot was tried.
    used: AtomicUsize,
    /// For each context.
    packs: Mutex<Vec<Arc<Packs>>>,
}

thread_local! {
    /// The place that this thread used last.
    static LAST: Cell<usize> = const { Cell::new(0) };
}

impl StreamSlots {
    pub(super) fn new(device: Arc<dyn Device>) -> Self {
        let places = (0..STREAM_SLOTS).map(|_| SlotPlace::default()).collect();
        Self { device, places, used: AtomicUsize::new(0), packs: Mutex::default() }
    }

    /// Works with a slot. `None` if none is free.
    pub(super) fn with<T>(
        &self,
        context: Context,
        work: impl FnOnce(&StreamSlot) -> Result<T>,
    ) -> Result<Option<T>> {
        let Some(mut place) = self.find(context) else { return Ok(None) };
        if place.is_none() {
            *place = Some(StreamSlot::new(&self.device, context, self.packs_of(context))?);
        }
        place.as_ref().map(work).transpose()
    }

    fn find(&self, context: Context) -> Option<MutexGuard<'_, Option<StreamSlot>>> {
        loop {
            let used = self.used.load(Ordering::Acquire);
            let last = LAST.get().min(used);
            for at in (last..used).chain(0..last) {
                // A slot whose user panicked may have copies in flight: it is not used again.
                if let Ok(place) = self.places[at].0.try_lock()
                    && place.as_ref().is_none_or(|slot| slot.context == context)
                {
                    LAST.set(at);
                    return Some(place);
                }
            }
            // Another thread may take the new place first: then there is another, or none.
            let more = |used: usize| (used < STREAM_SLOTS).then_some(used + 1);
            let new = self.used.fetch_update(Ordering::AcqRel, Ordering::Acquire, more).ok()?;
            LAST.set(new);
        }
    }

    fn packs_of(&self, context: Context) -> Arc<Packs> {
        let mut all = lock(&self.packs);
        if let Some(packs) = all.iter().find(|packs| packs.context() == context) {
            return packs.clone();
        }
        let packs = Arc::new(Packs::new(self.device.clone(), context));
        all.push(packs.clone());
        packs
    }
}
