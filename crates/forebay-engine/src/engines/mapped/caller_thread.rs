//! Small batches whose pages are all pinned: the caller's own thread starts the one kernel, and the thread that polls
//! the ticket completes it. No other thread has to wake up.

use std::collections::VecDeque;
use std::hint::spin_loop;
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, TryLockError};
use std::time::{Duration, Instant};

use forebay_config::{CachePolicy, Objective, allowed_cpus};
use forebay_error::Result;
use forebay_gpu::{Context, Device, Event, Naps, Stream, Wait};

use super::gather::{CopyList, ListContents};
use super::reclaimer::Pin;
use super::state::{CopyWork, MappedState};
use super::transfer::{InPlaceTransfer, MappedJob};
use super::window::{PinnedFile, inside, windows_of};
use crate::engines::permission::Permission;
use crate::io::plan::{CELL, Part};
use crate::request::ticket::CallerPolled;
use crate::request::transfer::Batch;
use crate::runtime::lock;
use crate::runtime::slot_pool::SlotPool;
use crate::source::Descriptors;
use crate::source::piece::Direction;
use crate::source::version::FileVersion;
use crate::tuning::callers::{LONG_PART, MAX_POLLING_CALLERS, PART, STREAM_SLOTS};
use crate::tuning::machine::{LONGEST_NAP, LOOK, POLL};
use crate::tuning::mapped::BATCH_PIECES;

/// What a thread needs to start a batch by itself.
struct BatchSlot {
    /// The slot's place in the pool.
    at: usize,
    list: CopyList,
    stream: Box<dyn Stream>,
    event: Box<dyn Event>,
    /// For each window the last batch that asked for it.
    seen: Vec<u32>,
    batch_number: u32,
}

impl BatchSlot {
    fn new(device: &Arc<dyn Device>, at: usize) -> Result<Self> {
        let stream = device.stream(Context::PRIMARY)?;
        let event = stream.event()?;
        Ok(Self {
            at,
            list: CopyList::new(device, BATCH_PIECES)?,
            stream,
            event,
            seen: Vec::new(),
            batch_number: 0,
        })
    }

    /// A new batch: none of the windows has been asked for.
    fn begin(&mut self, windows: usize) {
        self.batch_number = self.batch_number.wrapping_add(1);
        if self.batch_number == 0 {
            self.seen.clear();
            self.batch_number = 1;
        }
        if self.seen.len() < windows {
            self.seen.resize(windows, 0);
        }
    }

    /// Whether this batch asks for the window for the first time.
    fn is_new(&mut self, window: usize) -> bool {
        std::mem::replace(&mut self.seen[window], self.batch_number) != self.batch_number
    }
}

/// The slots of one device.
pub(super) struct BatchSlots {
    /// Slots of batches in flight are taken out of their places.
    pool: SlotPool<Option<BatchSlot>>,
    /// Threads that wait for a batch right now.
    waiting: AtomicUsize,
    /// Kernels have been loaded. (Loading waits for all streams, so a caller's thread must not do it.)
    may_gather: AtomicBool,
    /// CPUs that this process may run on.
    cpus: usize,
}

impl BatchSlots {
    pub(super) fn new() -> Self {
        Self {
            pool: SlotPool::new(STREAM_SLOTS),
            waiting: AtomicUsize::new(0),
            may_gather: AtomicBool::new(false),
            cpus: allowed_cpus(),
        }
    }

    /// Whether kernels run here.
    pub(super) fn allow(&self, can_gather: bool) {
        self.may_gather.store(can_gather, Ordering::Release);
    }

    fn borrow(&self, device: &Arc<dyn Device>) -> Option<BatchSlot> {
        let (at, mut place) = self.pool.find(Option::is_some)?;
        if let Some(slot) = place.as_mut() {
            return slot.take();
        }
        let slot = BatchSlot::new(device, at).ok()?;
        *place = Some(None);
        Some(slot)
    }

    fn give_back(&self, slot: BatchSlot) {
        let place = self.pool.place(slot.at);
        *lock(place) = Some(Some(slot));
    }

    /// A call on the stream failed: waits for its remaining work, and does not use it again.
    fn discard(&self, slot: BatchSlot) {
        // Where the device is broken this fails at once, and nothing is under way.
        let _ = slot.stream.synchronize(Wait::Block);
        let at = slot.at;
        drop(slot);
        *lock(self.pool.place(at)) = None;
    }
}

/// A batch with all that it needs to be started here.
pub(crate) struct ReadyBatch {
    slot: BatchSlot,
    pinned: Arc<PinnedFile>,
    version: FileVersion,
    pins: Vec<Arc<Pin>>,
    cuts: Vec<(u32, u64)>,
    written: ListContents,
}

impl MappedState {
    /// Whether the caller's thread can start this batch: all of its pages are pinned, and a slot is free.
    pub(super) fn ready_batch(&self, batch: &Batch) -> Option<ReadyBatch> {
        if batch.direction == Direction::Write
            || batch.memory.context != Context::PRIMARY
            || self.cache.is_empty()
            || matches!(self.permission, Permission::Never(_))
            || !self.slots.may_gather.load(Ordering::Acquire)
        {
            return None;
        }
        let file = batch.file.descriptors()?;
        let bytes = small_bytes(batch)?;
        if self.stage.policy(&batch.file) == CachePolicy::Bypass || self.cache.refuses(file) {
            return None;
        }
        let (version, pinned) = self.cache.look_up(file.buffered.as_raw_fd()).ok()?;
        let pinned = pinned.filter(|_| !file.is_strange(&version))?;
        if version.len < PART && self.permission == Permission::Auto {
            return None;
        }
        let mut slot = self.slots.borrow(&self.cache.device)?;
        let Some((pins, cuts)) = self.pins_of_all(batch, &pinned, version.len, &mut slot) else {
            self.slots.give_back(slot);
            return None;
        };
        if !self.cache.has_kept(&pinned, batch, version.len) {
            self.slots.give_back(slot);
            return None;
        }
        note_use(batch, file, &pinned, bytes);
        let written = slot.list.write(batch, 0..batch.pieces.len() as u32, &pinned, version.len);
        Some(ReadyBatch { slot, pinned, version, pins, cuts, written })
    }

    /// The pins of all windows that a batch touches, if they are all there; and the entries that the end of the file
    /// cuts.
    #[allow(clippy::type_complexity, reason = "two plain lists")]
    fn pins_of_all(
        &self,
        batch: &Batch,
        pinned: &PinnedFile,
        len: u64,
        slot: &mut BatchSlot,
    ) -> Option<(Vec<Arc<Pin>>, Vec<(u32, u64)>)> {
        let use_pin = self.cache.user(pinned);
        let windows = pinned.windows();
        let (mut pins, mut cuts) = (Vec::with_capacity(windows.min(batch.pieces.len() + 1)), Vec::new());
        slot.begin(windows);
        for (entry, piece) in batch.pieces.iter().enumerate() {
            let (start, end) = inside(piece, len);
            if end - start < piece.len as u64 {
                cuts.push((entry as u32, end - start));
            }
            for window in windows_of(start, end) {
                if slot.is_new(window) {
                    pins.push(use_pin(window)?);
                }
            }
        }
        Some((pins, cuts))
    }

    /// Starts it. What cannot start has failed in its completion by then.
    pub(super) fn start_ready(
        self: &Arc<Self>,
        ready: ReadyBatch,
        job: MappedJob,
    ) -> Option<Arc<CallerPolledBatch>> {
        let ReadyBatch { slot, pinned, version, pins, cuts, written } = ready;
        let all = Part::Entries { first: 0, last: job.batch.pieces.len() as u32 };
        let mut transfer = InPlaceTransfer {
            job,
            pinned,
            version,
            todo: VecDeque::new(),
            copied: vec![all],
            pins,
            in_flight: 0,
            cover: 0,
            bytes: written.bytes,
            by_resident: false,
            error: None,
            held: Vec::new(),
            rest: Vec::new(),
            rest_bytes: 0,
            reason: None,
            cuts,
            left_out: Vec::new(),
        };
        let others = self.slots.waiting.load(Ordering::Relaxed);
        let pieces = slot.list.pieces(&written);
        // SAFETY: the pins of all windows are held; the submitter vouched for its memory.
        let pulled = unsafe { self.callers.pull_short_batch(Context::PRIMARY, others, pieces) };
        if !matches!(pulled, Ok(false)) {
            transfer.by_resident = true;
            self.end_batch(StartedBatch { slot, transfer }, pulled.map(drop));
            return None;
        }
        let queued = match written.longest {
            0 => Ok(()),
            // SAFETY: the batch holds the pins of all windows, and the list, until it has ended; the submitter
            // vouched for its memory.
            longest => unsafe { slot.stream.scatter(slot.list.reach(), written.count, longest) },
        };
        match queued.and_then(|()| slot.stream.record(slot.event.as_ref())) {
            Ok(()) => Some(Arc::new(CallerPolledBatch::new(self, StartedBatch { slot, transfer }))),
            Err(error) => {
                transfer.fail(error);
                // The copy may have been queued although the call failed.
                self.slots.discard(slot);
                let repeated = transfer.conclude(self, true);
                debug_assert!(repeated.is_none(), "it has failed");
                None
            }
        }
    }

    /// Gives back what a batch holds, and concludes the transfer.
    fn end_batch(&self, StartedBatch { slot, mut transfer }: StartedBatch, done: Result<()>) {
        let slots = &self.slots;
        match done {
            Ok(()) => slots.give_back(slot),
            Err(error) => {
                transfer.fail(error);
                slots.discard(slot);
            }
        }
        if transfer.error.is_some() || transfer.is_good() {
            let repeated = transfer.conclude(self, true);
            debug_assert!(repeated.is_none(), "it is good, or has failed");
            return;
        }
        // Reading again takes too long for a thread that only polls.
        if let Err(CopyWork::Changed(transfer)) = self.hand_over(CopyWork::Changed(Box::new(transfer)))
            && let Some(repeated) = transfer.conclude(self, false)
        {
            repeated.finish(self);
        }
    }
}

/// The bytes of a batch of small pieces, if it is small itself.
fn small_bytes(batch: &Batch) -> Option<usize> {
    if batch.pieces.len() > BATCH_PIECES {
        return None;
    }
    let mut bytes = 0;
    for piece in &batch.pieces {
        if piece.len > CELL {
            return None;
        }
        bytes += piece.len;
    }
    (bytes <= LONG_PART).then_some(bytes)
}

/// The file is in use, by this source.
fn note_use(batch: &Batch, file: &Descriptors, pinned: &PinnedFile, bytes: usize) {
    if let Some(source) = batch.file.opened() {
        pinned.set_owner(source);
    }
    file.demand.fetch_add(bytes as u64, Ordering::Relaxed);
}

/// A batch in flight that ends when a thread polls it: the ticket's thread, or the copy thread if that one stopped
/// polling. In a forked child the ticket does not poll.
pub(crate) struct CallerPolledBatch {
    state: Arc<MappedState>,
    started: Instant,
    /// The thread that sees it end takes this.
    batch: Mutex<Option<StartedBatch>>,
    has_ended: AtomicBool,
    /// The copy thread polls it, too.
    is_watched: AtomicBool,
}

/// What a batch holds until it has ended.
struct StartedBatch {
    slot: BatchSlot,
    transfer: InPlaceTransfer,
}

impl CallerPolledBatch {
    fn new(state: &Arc<MappedState>, batch: StartedBatch) -> Self {
        Self {
            state: state.clone(),
            started: Instant::now(),
            batch: Mutex::new(Some(batch)),
            has_ended: AtomicBool::new(false),
            is_watched: AtomicBool::new(false),
        }
    }

    fn wait_by(&self, poll: Duration, deadline: Option<Instant>) -> bool {
        const SPINS: usize = 8;
        let begun = Instant::now();
        let mut naps = None;
        while !self.look() {
            let now = Instant::now();
            if deadline.is_some_and(|deadline| now >= deadline) {
                return false;
            }
            if now - begun < poll {
                (0..SPINS).for_each(|_| spin_loop());
                continue;
            }
            let naps = naps.get_or_insert_with(Naps::start);
            let left = deadline.map_or(LONGEST_NAP, |deadline| deadline - now);
            naps.sleep(self.nap().min(left));
        }
        true
    }

    /// How long a waiter polls, by their number.
    fn poll_time(&self, waiters: usize) -> Duration {
        match self.state.objective {
            Objective::Latency => Duration::MAX,
            Objective::Throughput if waiters <= MAX_POLLING_CALLERS && self.state.slots.cpus > 1 => POLL,
            Objective::Throughput | Objective::Cpu => Duration::ZERO,
        }
    }

    /// How long to sleep before the next look: an eighth of the time that it has taken.
    pub(super) fn nap(&self) -> Duration {
        (self.started.elapsed() / 8).clamp(LOOK, LONGEST_NAP)
    }

    /// Waits until it has ended, or another thread has seen it end.
    pub(super) fn finish(&self) {
        let Some(batch) = lock(&self.batch).take() else { return };
        self.has_ended.store(true, Ordering::Release);
        let done = batch.slot.event.wait(Wait::Block);
        self.state.end_batch(batch, done);
    }
}

impl CallerPolled for CallerPolledBatch {
    fn has_landed(&self) -> bool {
        self.has_ended.load(Ordering::Acquire)
    }

    fn look(&self) -> bool {
        if self.has_landed() {
            return true;
        }
        let mut held = match self.batch.try_lock() {
            Ok(held) => held,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return false,
        };
        let Some(batch) = &*held else { return true };
        let done = batch.slot.event.is_done();
        if matches!(done, Ok(false)) {
            return false;
        }
        let batch = held.take();
        self.has_ended.store(true, Ordering::Release);
        drop(held);
        if let Some(batch) = batch {
            self.state.end_batch(batch, done.map(drop));
        }
        true
    }

    fn wait(&self, deadline: Option<Instant>) -> bool {
        if self.look() {
            return true;
        }
        if deadline.is_none() && self.state.objective == Objective::Cpu {
            self.finish();
            return true;
        }
        let waiting = &self.state.slots.waiting;
        let poll = self.poll_time(waiting.fetch_add(1, Ordering::Relaxed) + 1);
        let has_ended = self.wait_by(poll, deadline);
        waiting.fetch_sub(1, Ordering::Relaxed);
        has_ended
    }

    fn watch(self: Arc<Self>) {
        if self.look() || self.is_watched.swap(true, Ordering::AcqRel) {
            return;
        }
        if self.state.hand_over(CopyWork::Watch(self.clone())).is_err() {
            self.finish();
        }
    }
}
