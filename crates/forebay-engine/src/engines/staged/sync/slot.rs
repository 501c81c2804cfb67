//! Stream slots: what a caller's thread needs to move bytes by itself.

use std::cell::Cell;
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Instant;

use forebay_config::Resident as Permission;
use forebay_error::Result;
use forebay_gpu::{Context, CopyPiece, DefaultStream, Device, Stream, Wait};

use super::signal::{CopyWait, MarkedStream};
use crate::engines::resident::{Resident, ResidentWay};
use crate::runtime::lock::lock;
use crate::runtime::pinned::PinnedPages;
use crate::tuning::callers::{SLOT_BYTES, STREAM_SLOTS};
use crate::tuning::resident::KNOWN_MEMORY;

/// Bytes for the word of a slot's stream, in cache lines of its own.
const WORD_ROOM: usize = 256;

/// A stream with pinned memory for one caller at a time. Every use waits for its copies.
pub(super) struct StreamSlot {
    device: Arc<dyn Device>,
    context: Context,
    /// Its number, and its mailbox's.
    index: usize,
    /// Dropped before the pages that it uses.
    marked: MarkedStream,
    pub(super) pages: PinnedPages,
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
        let (device, known) = (device.clone(), Cell::new(None));
        Ok(Self { device, context, index, marked, pages, resident, known })
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
    permission: Permission,
    /// For each context.
    residents: Mutex<Vec<Arc<Resident>>>,
}

thread_local! {
    /// The place that this thread used last.
    static LAST: Cell<usize> = const { Cell::new(0) };
}

impl StreamSlots {
    pub(super) fn new(device: Arc<dyn Device>, permission: Permission) -> Self {
        let places = (0..STREAM_SLOTS).map(|_| SlotPlace::default()).collect();
        Self { device, places, used: AtomicUsize::new(0), permission, residents: Mutex::default() }
    }

    /// Works with a slot. `None` if none is free.
    pub(super) fn with<T>(
        &self,
        context: Context,
        work: impl FnOnce(&StreamSlot) -> Result<T>,
    ) -> Result<Option<T>> {
        let Some((index, mut place)) = self.find(context) else { return Ok(None) };
        if place.is_none() {
            *place = Some(StreamSlot::new(&self.device, self.resident_of(context), index)?);
        }
        place.as_ref().map(work).transpose()
    }

    fn find(&self, context: Context) -> Option<(usize, MutexGuard<'_, Option<StreamSlot>>)> {
        loop {
            let used = self.used.load(Ordering::Acquire);
            let last = LAST.get().min(used);
            for at in (last..used).chain(0..last) {
                // A slot whose user panicked may have copies in flight: it is not used again.
                if let Ok(place) = self.places[at].0.try_lock()
                    && place.as_ref().is_none_or(|slot| slot.context == context)
                {
                    LAST.set(at);
                    return Some((at, place));
                }
            }
            // Another thread may take the new place first: then there is another, or none.
            let more = |used: usize| (used < STREAM_SLOTS).then_some(used + 1);
            let new = self.used.fetch_update(Ordering::AcqRel, Ordering::Acquire, more).ok()?;
            LAST.set(new);
        }
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
