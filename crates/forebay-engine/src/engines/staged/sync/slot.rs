//! Stream slots: what a caller's thread needs to move bytes by itself.

use std::cell::{Cell, OnceCell};
use std::ops::Range;
use std::sync::{Arc, Mutex};
use std::time::Instant;

use forebay_config::Resident as Permission;
use forebay_error::Result;
use forebay_gpu::{Context, CopyPiece, DefaultStream, Device, Event, Stream, Wait};

use super::signal::{CopyWait, MarkedStream};
use crate::engines::resident::{Resident, ResidentWay};
use crate::runtime::lock::lock;
use crate::runtime::pinned::PinnedPages;
use crate::runtime::slot_pool::SlotPool;
use crate::tuning::callers::{LONG_BYTES, SLOT_BYTES, STREAM_SLOTS};
use crate::tuning::resident::KNOWN_MEMORY;

/// Bytes for the word of a slot's stream, in cache lines of its own.
const WORD_ROOM: usize = 256;

/// Pinned memory for a part of a long read, and the end of the copy from it.
pub(super) struct LongBuffer {
    pub(super) pages: PinnedPages,
    pub(super) end: Box<dyn Event>,
}

/// A stream with pinned memory for one caller at a time. Every use waits for its copies.
pub(super) struct StreamSlot {
    device: Arc<dyn Device>,
    context: Context,
    /// Its number, and its mailbox's.
    index: usize,
    /// Dropped before the pages that it uses.
    marked: MarkedStream,
    pub(super) pages: PinnedPages,
    long: [OnceCell<LongBuffer>; 2],
    /// For copies beside those of other callers.
    pub(super) resident: Arc<Resident>,
    /// Memory that kernels reach, and when the driver said so.
    known: Cell<Option<(Instant, Range<u64>)>>,
}

impl StreamSlot {
    fn new(device: &Arc<dyn Device>, resident: Arc<Resident>, index: usize) -> Result<Self> {
        let context = resident.context();
        let default = device.default_stream(context, DefaultStream::PerThread)?;
        let marked = MarkedStream::new(device.stream(context)?, default)?;
        let pages = PinnedPages::new(device, SLOT_BYTES + WORD_ROOM)?;
        // SAFETY: the pages live as long as the slot, and nothing else lies behind its bytes.
        let marked = unsafe { marked.with_word(&pages, SLOT_BYTES) };
        let (device, long, known) = (device.clone(), Default::default(), Cell::new(None));
        Ok(Self { device, context, index, marked, pages, long, resident, known })
    }

    /// Waits for copies in flight after a later step failed.
    pub(super) fn clear(&self) {
        let _ = self.stream().synchronize(Wait::Block);
    }

    pub(super) fn stream(&self) -> &dyn Stream {
        self.marked.stream()
    }

    /// Whether further copies use the calling thread's default stream, or the slot's own.
    pub(super) fn choose_stream(&self, is_default: bool) {
        self.marked.on_default.set(is_default);
    }

    pub(super) fn wait(&self, wait: CopyWait<'_>) -> Result<()> {
        self.marked.wait(wait)
    }

    /// Memory for a part of a long read: the first, or the second, for reads of several parts. Made when it is needed.
    pub(super) fn long(&self, index: usize) -> Result<&LongBuffer> {
        let place = &self.long[index];
        if let Some(long) = place.get() {
            return Ok(long);
        }
        let made =
            LongBuffer { pages: PinnedPages::new(&self.device, LONG_BYTES)?, end: self.stream().event()? };
        Ok(place.get_or_init(|| made))
    }

    /// Whether kernels reach all of this memory. Asks the driver, unless it told of the same memory just now.
    pub(super) fn is_kernels_memory(&self, address: u64, len: usize) -> bool {
        let is_inside = |range: &Range<u64>| range.contains(&address) && len as u64 <= range.end - address;
        let known = self.known.take();
        if let Some((when, range)) = known
            && is_inside(&range)
            && when.elapsed() < KNOWN_MEMORY
        {
            self.known.set(Some((when, range)));
            return true;
        }
        let Some(range) = self.device.kernels_memory(self.context, address) else { return false };
        let is_inside = is_inside(&range);
        self.known.set(Some((Instant::now(), range)));
        is_inside
    }

    /// Copies a piece beside those of other callers, and waits. Returns whether it was copied.
    ///
    /// # Safety
    /// As [`Resident::copy`].
    pub(super) unsafe fn copy_resident(&self, piece: CopyPiece, way: ResidentWay) -> Result<bool> {
        // SAFETY: passed on; the mailbox is the slot's own.
        unsafe { self.resident.copy(self.index, piece, way) }
    }
}

/// The slots of a device.
pub(super) struct StreamSlots {
    device: Arc<dyn Device>,
    pool: SlotPool<StreamSlot>,
    permission: Permission,
    /// For each context.
    residents: Mutex<Vec<Arc<Resident>>>,
}

impl StreamSlots {
    pub(super) fn new(device: Arc<dyn Device>, permission: Permission) -> Self {
        Self { device, pool: SlotPool::new(STREAM_SLOTS), permission, residents: Mutex::default() }
    }

    /// Works with a slot. `None` if none is free.
    pub(super) fn with<T>(
        &self,
        context: Context,
        work: impl FnOnce(&StreamSlot) -> Result<T>,
    ) -> Result<Option<T>> {
        let Some((index, mut place)) = self.pool.find(|slot| slot.context == context) else {
            return Ok(None);
        };
        if place.is_none() {
            *place = Some(StreamSlot::new(&self.device, self.resident_of(context), index)?);
        }
        place.as_ref().map(work).transpose()
    }

    fn resident_of(&self, context: Context) -> Arc<Resident> {
        let mut all = lock(&self.residents);
        if let Some(resident) = all.iter().find(|resident| resident.context() == context) {
            return resident.clone();
        }
        let resident = Arc::new(Resident::new(self.device.clone(), context, self.permission));
        all.push(resident.clone());
        resident
    }
}
