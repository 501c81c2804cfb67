//! Stream slots: what a caller's thread needs to move bytes by itself.

use std::sync::{Arc, Mutex};

use forebay_error::Result;
use forebay_gpu::{Context, CopyPiece, DefaultStream, Device, Stream, Wait};

use super::pack::{PackLauncher, PackWait, Packs};
use super::signal::{CopyWait, MarkedStream};
use crate::request::copy_order::CopyOrder;
use crate::runtime::lock::lock;
use crate::runtime::pinned::PinnedPages;
use crate::runtime::slot_pool::SlotPool;
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

/// The slots of a device.
pub(super) struct StreamSlots {
    device: Arc<dyn Device>,
    pool: SlotPool<StreamSlot>,
    /// For each context.
    packs: Mutex<Vec<Arc<Packs>>>,
}

impl StreamSlots {
    pub(super) fn new(device: Arc<dyn Device>) -> Self {
        Self { device, pool: SlotPool::new(STREAM_SLOTS), packs: Mutex::default() }
    }

    /// Works with a slot. `None` if none is free.
    pub(super) fn with<T>(
        &self,
        context: Context,
        work: impl FnOnce(&StreamSlot) -> Result<T>,
    ) -> Result<Option<T>> {
        let Some((_, mut place)) = self.pool.find(|slot| slot.context == context) else { return Ok(None) };
        if place.is_none() {
            *place = Some(StreamSlot::new(&self.device, context, self.packs_of(context))?);
        }
        place.as_ref().map(work).transpose()
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
