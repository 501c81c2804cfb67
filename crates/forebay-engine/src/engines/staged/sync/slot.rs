//! Stream slots: what a caller's thread needs to move bytes by itself.

use std::cell::{OnceCell, RefCell};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Instant;

use forebay_config::Resident as Permission;
use forebay_error::Result;
use forebay_gpu::{Context, CopyPiece, DefaultStream, Device, DeviceRange, Event, Stream, Wait};

use super::signal::{CopyWait, MarkedStream};
use crate::engines::resident::{Posted, Resident, ResidentWay};
use crate::runtime::lock;
use crate::runtime::pinned::PinnedPages;
use crate::runtime::slot_pool::SlotPool;
use crate::tuning::callers::{FEW_CALLERS, LONG_PART, MAX_CROWD_POLLED_BYTES, STREAM_SLOTS};
use crate::tuning::machine::HUGE_PAGE;
use crate::tuning::plan::CELL;
use crate::tuning::resident::MEMORY_CACHE_TIME;

const BLOCKS: usize = forebay_gpu::Resident::BLOCKS as usize;

/// Longest transfer, aligned out, for which a slot needs no memory of its own: [`MAX_CROWD_POLLED_BYTES`] between two pages. Many
/// threads that read a little wait for no huge pages to be cleared so.
const SHORT_SLOT_BYTES: usize = MAX_CROWD_POLLED_BYTES + 2 * 4096;
/// A slot's part of the memory for those, with room for its stream's word behind: the parts of all slots are one huge page.
const SHORT_SLOT_STRIDE: usize = HUGE_PAGE / STREAM_SLOTS;

/// Pinned memory for a part of a long read, and the end of the copy from it.
pub(super) struct LongBuffer {
    pub(super) pages: PinnedPages,
    pub(super) end: Box<dyn Event>,
}

/// Pinned memory of a slot for one transfer.
#[derive(Clone, Copy)]
pub(super) struct SlotRoom {
    pub(super) host: *mut u8,
    /// Where the device reaches it.
    pub(super) reach: u64,
}

impl SlotRoom {
    /// From byte `at` of these pages on.
    fn of(pages: &PinnedPages, at: usize) -> Self {
        Self { host: pages.as_ptr().wrapping_add(at), reach: pages.reach() + at as u64 }
    }

    /// Where the device reaches this byte of it.
    pub(super) fn reach_of(self, host: *const u8) -> u64 {
        self.reach + (host as u64 - self.host as u64)
    }

    /// The byte that the device reaches there.
    pub(super) fn byte_at(self, reach: u64) -> *const u8 {
        self.host.wrapping_add((reach - self.reach) as usize)
    }
}

/// Memory that kernels reach, each with the time when that was known.
#[derive(Default)]
struct KnownMemory {
    /// By the driver's answer: the whole allocation around the address.
    told: Option<(Instant, DeviceRange)>,
    /// The last allocation found so, and the time of its last use.
    used: Option<(Instant, DeviceRange)>,
}

impl KnownMemory {
    /// Whether kernels reach all of this memory. Asks, unless the driver has just told, or the call before used the same memory and
    /// began just before `now`, when this one did: nothing is freed, and made anew for other uses, in so short a time.
    fn holds(
        &mut self,
        memory: DeviceRange,
        now: Instant,
        ask: impl FnOnce() -> Option<DeviceRange>,
    ) -> bool {
        let is_known = |(when, range): &(Instant, DeviceRange)| {
            now.saturating_duration_since(*when) < MEMORY_CACHE_TIME && range.holds(memory)
        };
        let mut holds = self.used.as_ref().is_some_and(is_known) || self.told.as_ref().is_some_and(is_known);
        if !holds {
            let told = ask();
            holds = told.is_some_and(|range| range.holds(memory));
            self.told = told.map(|range| (now, range));
        }
        self.used = holds.then_some((now, memory));
        holds
    }
}

/// A stream with pinned memory for one caller at a time. Every use waits for its copies.
pub(super) struct StreamSlot {
    device: Arc<dyn Device>,
    context: Context,
    /// Its number, and its mailbox's.
    index: usize,
    /// Dropped before the pages that it uses.
    marked: MarkedStream,
    /// Of many slots: its part is for short transfers, and for the stream's word.
    shared: Arc<PinnedPages>,
    /// For transfers of up to `bytes`: made when it is needed.
    own: OnceCell<PinnedPages>,
    bytes: usize,
    long: [OnceCell<LongBuffer>; 2],
    /// For copies beside those of other callers.
    pub(super) resident: Arc<Resident>,
    known: RefCell<KnownMemory>,
}

impl StreamSlot {
    /// For transfers of up to `bytes`.
    fn new(
        device: &Arc<dyn Device>,
        resident: Arc<Resident>,
        index: usize,
        (shared, bytes): (Arc<PinnedPages>, usize),
    ) -> Result<Self> {
        let context = resident.context();
        let default = device.default_stream(context, DefaultStream::PerThread)?;
        let word = SlotRoom::of(&shared, index * SHORT_SLOT_STRIDE + SHORT_SLOT_BYTES);
        // SAFETY: the pages live as long as the slot, and nothing else lies behind its bytes.
        let marked = unsafe { MarkedStream::new(device.stream(context)?, default, (word.host, word.reach)) }?;
        let (device, long, known, own) =
            (device.clone(), Default::default(), RefCell::default(), OnceCell::new());
        Ok(Self { device, context, index, marked, shared, own, bytes, long, resident, known })
    }

    /// Memory for a transfer of up to `len` bytes, aligned out.
    pub(super) fn room(&self, len: usize) -> Result<SlotRoom> {
        if len <= SHORT_SLOT_BYTES {
            return Ok(SlotRoom::of(&self.shared, self.index * SHORT_SLOT_STRIDE));
        }
        if let Some(own) = self.own.get() {
            return Ok(SlotRoom::of(own, 0));
        }
        let made = PinnedPages::new(&self.device, self.bytes)?;
        Ok(SlotRoom::of(self.own.get_or_init(|| made), 0))
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
        // With what an alignment adds.
        let made = LongBuffer {
            pages: PinnedPages::new(&self.device, LONG_PART + CELL)?,
            end: self.stream().event()?,
        };
        Ok(place.get_or_init(|| made))
    }

    /// Whether kernels reach all of this memory. `now`: when the call began.
    pub(super) fn is_kernels_memory(&self, memory: DeviceRange, now: Instant) -> bool {
        let ask = || self.device.kernels_memory(self.context, memory.start);
        self.known.borrow_mut().holds(memory, now, ask)
    }

    /// Whether the kernel is to copy a piece that came from a disk.
    pub(super) fn takes_cold(&self, piece: CopyPiece) -> bool {
        let is_reached =
            || self.is_kernels_memory(DeviceRange::new(piece.dst, piece.len as usize), Instant::now());
        self.resident.takes_cold(self.index, is_reached)
    }

    /// The slot's mailbox.
    pub(super) fn mailbox(&self) -> usize {
        self.index
    }

    /// Posts a piece in one of the slot's two mailboxes, to be copied beside those of other callers.
    ///
    /// # Safety
    /// As [`Resident::post`].
    pub(super) unsafe fn post(
        &self,
        is_second: bool,
        piece: CopyPiece,
        way: &mut ResidentWay<'_>,
    ) -> Result<Option<Posted<'_>>> {
        // Few callers' second mailboxes are of other blocks than their first ones.
        let mailbox = if is_second { STREAM_SLOTS + (self.index ^ (BLOCKS / 2)) } else { self.index };
        // SAFETY: passed on; the mailbox is the slot's own.
        unsafe { self.resident.post(mailbox, piece, way) }
    }

    /// Copies a piece beside those of other callers, and waits. Returns whether it was copied.
    ///
    /// # Safety
    /// As [`Resident::post`].
    pub(super) unsafe fn copy_resident(&self, piece: CopyPiece, mut way: ResidentWay<'_>) -> Result<bool> {
        // SAFETY: passed on.
        unsafe { self.post(false, piece, &mut way) }?.map_or(Ok(false), Posted::finish)
    }
}

/// A slot's place, by its number.
pub(super) type SparePlace<'a> = (usize, MutexGuard<'a, Option<StreamSlot>>);

/// The slots of a device.
pub(super) struct StreamSlots {
    device: Arc<dyn Device>,
    pool: SlotPool<StreamSlot>,
    /// Of a slot's own pinned pages.
    bytes: usize,
    most: usize,
    /// The short memory of the first few places, and of all others: made when it is needed.
    shared: [Mutex<Option<Arc<PinnedPages>>>; 2],
    permission: Permission,
    /// For each context.
    residents: Mutex<Vec<Arc<Resident>>>,
}

impl StreamSlots {
    /// At most `most` slots with `bytes` each. Where the resident kernel may be used there are no more than it has mailboxes.
    pub(super) fn new(
        device: Arc<dyn Device>,
        permission: Permission,
        (most, bytes): (usize, usize),
    ) -> Self {
        let (pool, shared, residents) = (SlotPool::new(most), Default::default(), Mutex::default());
        Self { device, pool, bytes, most, shared, permission, residents }
    }

    /// Works with a slot. `None` if none is free.
    pub(super) fn with<T>(
        &self,
        context: Context,
        work: impl FnOnce(&StreamSlot) -> Result<T>,
    ) -> Result<Option<T>> {
        self.find(context)?.as_deref().and_then(Option::as_ref).map(work).transpose()
    }

    /// The same for work that can be done without one: a slot that cannot be made is none, and no error.
    pub(super) fn with_any<T>(
        &self,
        context: Context,
        work: impl FnOnce(&StreamSlot) -> Result<T>,
    ) -> Result<Option<T>> {
        let place = self.find(context).unwrap_or_default();
        place.as_deref().and_then(Option::as_ref).map(work).transpose()
    }

    /// The place of a slot that no thread uses; the slot is made if need be.
    fn find(&self, context: Context) -> Result<Option<MutexGuard<'_, Option<StreamSlot>>>> {
        let Some((index, mut place)) = self.pool.find(|slot| slot.context == context) else {
            return Ok(None);
        };
        if place.is_none() {
            let memory = (self.shared(index)?, self.bytes);
            *place = Some(StreamSlot::new(&self.device, self.resident_of(context), index, memory)?);
        }
        Ok(Some(place))
    }

    /// The short memory of a place: of the first few a little, so that a first call does not clear a huge page; of the others one for
    /// all.
    fn shared(&self, index: usize) -> Result<Arc<PinnedPages>> {
        let is_first = index < FEW_CALLERS;
        let (shared, slots) =
            if is_first { (&self.shared[0], FEW_CALLERS) } else { (&self.shared[1], self.most) };
        let mut shared = lock(shared);
        if let Some(shared) = &*shared {
            return Ok(shared.clone());
        }
        let made = Arc::new(PinnedPages::new(&self.device, slots * SHORT_SLOT_STRIDE)?);
        Ok(shared.insert(made).clone())
    }

    /// Places that no caller uses, whose mailboxes are the holder's meanwhile.
    pub(super) fn spare(&self, most: usize) -> Vec<SparePlace<'_>> {
        self.pool.spare(most)
    }

    pub(super) fn resident_of(&self, context: Context) -> Arc<Resident> {
        let mut all = lock(&self.residents);
        if let Some(resident) = all.iter().find(|resident| resident.context() == context) {
            return resident.clone();
        }
        let resident = Arc::new(Resident::new(self.device.clone(), context, self.permission));
        all.push(resident.clone());
        resident
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::time::Duration;

    use super::*;

    #[test]
    fn memory_that_is_used_again_and_again_is_asked_about_once() {
        let (known, start, asked) = (RefCell::<KnownMemory>::default(), Instant::now(), Cell::new(0));
        let holds = |(address, len), micros: u64| {
            let memory = DeviceRange::new(address, len);
            let ask = || {
                asked.set(asked.get() + 1);
                Some(DeviceRange::new(4096, (1 << 20) - 4096))
            };
            known.borrow_mut().holds(memory, start + Duration::from_micros(micros), ask)
        };
        assert!((0..20).all(|call| holds((8192, 4096), 900 * call)) && asked.get() == 1);
        assert!(holds((8192, 1), 17_000) && asked.get() == 1, "a call that began earlier");
        assert!(holds((16_384, 4096), 17_100) && asked.get() == 2, "what lies beside it may have changed");
        assert!(holds((32_768, 4096), 17_200) && asked.get() == 2, "the driver has just told");
        assert!(!holds((32_768, 1 << 20), 17_300) && asked.get() == 3, "more than there is");
        assert!(holds((8192, 1), 18_200) && asked.get() == 3);
        assert!(holds((8192, 1), 19_200) && asked.get() == 4, "it may be other memory by now");
        let later = start + Duration::from_micros(19_300);
        assert!(!known.borrow_mut().holds(DeviceRange::new(2 << 20, 1), later, || None), "it is gone");
        assert!(holds((8192, 1), 19_400) && asked.get() == 5, "nothing is known any more");
    }
}
