//! One state of one file, in windows: its pinned pages on one device.

use std::collections::BTreeMap;
use std::ops::Range;
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::Instant;

use forebay_error::Result;
use forebay_gpu::Access;

use super::credit::Credit;
use super::eligibility::Reason;
use super::pace::RegisterPace;
use super::readers::Reader;
use super::reclaimer::Pin;
use super::region::{Region, WINDOW};
use crate::request::transfer::Batch;
use crate::runtime::{lock, sys};
use crate::source::piece::{Direction, Piece};
use crate::source::version::FileVersion;
use crate::source::writers::Writers;
use crate::source::{Descriptors, FileSource, touch};
use crate::tuning::mapped::PULLED_EARNS;

/// A read of this part of a window has it registered at once. A read of less would wait longer for the registration than
/// staging takes, and as long as the driver registers, other copies do not start: its window is registered when it is read
/// again.
const AT_ONCE: u64 = 4;
/// Writes of this part of a window have it registered, in one request or several.
const WRITTEN: u64 = 4;
/// Less than this is cheaper staged than registered.
pub(crate) const MIN_WORTH: u64 = 8 << 20;
/// Why rarely read windows are not pinned.
pub(crate) const TOO_LITTLE: &str = "too little of it was read so far: pinning its pages would not pay";

/// One state of one file, and its windows on this device.
#[derive(Debug)]
pub(crate) struct PinnedFile {
    pub(crate) access: Access,
    /// Of a memory file: its pages are small, as a rule, and no write takes them from it unless its times tell.
    pub(super) is_memory: bool,
    /// How fast its pages were registered.
    pub(super) pace: Mutex<RegisterPace>,
    /// The savings of its readers for registrations.
    pub(super) credit: Mutex<Credit>,
    /// Bytes that callers have read in place by long reads.
    pulled: AtomicU64,
    /// Its possible writers, as a number; none if not asked yet.
    writers: AtomicU8,
    /// When the reclaimer saw it first, and when it asks again, on the cache's clock.
    seen_at: AtomicU64,
    audit_at: AtomicU64,
    pub(super) version: Mutex<FileVersion>,
    /// How often that was changed, by writes in place.
    touched: AtomicU64,
    /// Mapped as long as any window is pinned.
    pub(super) region: Mutex<Weak<Region>>,
    pub(super) windows: Box<[Window]>,
    /// Whether anybody has the file open.
    pub(super) owner: Mutex<Weak<FileSource>>,
    /// The file is not in this state any more.
    pub(super) is_stale: AtomicBool,
}

#[derive(Debug, Default)]
pub(super) struct Window {
    pub(super) state: Mutex<WindowState>,
    /// Bytes asked for by requests that did not find all that they needed pinned.
    pub(super) demand: AtomicU64,
    /// Milliseconds on the cache's clock.
    pub(super) last_use: AtomicU64,
    pub(super) use_before: AtomicU64,
}

#[derive(Debug, Default)]
pub(super) enum WindowState {
    #[default]
    Empty,
    /// The registrar has it, and callers wait for it.
    Pending(Instant),
    /// Queued at this time to be registered piece by piece, beside copies. Nobody waits for it.
    Queued(Instant),
    Pinned(Arc<Pin>),
    /// Not before this time of the cache's clock.
    Declined(Reason, u64),
}

/// The answer to a request for a window.
#[derive(Debug)]
pub(crate) enum WindowAnswer {
    /// The window is registered.
    Ready(Arc<Pin>),
    /// The window is being registered since then.
    Pending(Instant),
    /// Not now, for this reason.
    No(Reason),
}

impl PinnedFile {
    pub(super) fn new(version: FileVersion, access: Access, owner: &Arc<FileSource>) -> Self {
        let count = version.len.div_ceil(WINDOW) as usize;
        let is_memory = owner.descriptors.is_memory;
        Self {
            access,
            is_memory,
            pace: Mutex::default(),
            credit: Mutex::default(),
            pulled: AtomicU64::new(0),
            writers: AtomicU8::new(u8::MAX),
            seen_at: AtomicU64::new(0),
            audit_at: AtomicU64::new(0),
            version: Mutex::new(version),
            touched: AtomicU64::new(0),
            region: Mutex::default(),
            windows: (0..count).map(|_| Window::default()).collect(),
            owner: Mutex::new(Arc::downgrade(owner)),
            is_stale: AtomicBool::new(false),
        }
    }

    pub(crate) fn version(&self) -> FileVersion {
        *lock(&self.version)
    }

    /// Bytes of the file.
    pub(crate) fn len(&self) -> u64 {
        self.version().len
    }

    /// The file's state now, and whether it is this one.
    pub(crate) fn compare(&self, fd: RawFd) -> Result<(FileVersion, bool)> {
        let version = lock(&self.version);
        let now = FileVersion::of(fd)?;
        Ok((now, now == *version))
    }

    /// Tells others, before its first byte or after its last, that the file is being written through its registered
    /// pages, which the kernel does not notice. The returned state still has these pages. `None` if
    /// another process has changed it.
    pub(crate) fn touch(&self, fd: RawFd) -> Option<FileVersion> {
        let mut version = lock(&self.version);
        if FileVersion::of(fd).ok()? != *version {
            return None;
        }
        touch(fd);
        let now = FileVersion::of(fd).ok().filter(|now| now.len == version.len)?;
        *version = now;
        self.touched.fetch_add(1, Ordering::Release);
        Some(now)
    }

    /// How often its version was changed so far. To be asked before the version.
    pub(super) fn touched(&self) -> u64 {
        self.touched.load(Ordering::Acquire)
    }

    /// The pages' addresses; mapped when the first window is registered.
    pub(crate) fn region(&self, file: &Descriptors) -> Result<Arc<Region>> {
        let mut region = lock(&self.region);
        if let Some(region) = region.upgrade() {
            return Ok(region);
        }
        let made = Arc::new(Region::map(file.for_pages(), (0, self.len()), self.access)?);
        *region = Arc::downgrade(&made);
        Ok(made)
    }

    // ---- writes that may be under way ---------------------------------------------------------------------------

    /// Its possible writers, if asked.
    pub(crate) fn writers(&self) -> Option<Writers> {
        Writers::numbered(self.writers.load(Ordering::SeqCst))
    }

    /// Records the possible writers. Once there is none, that stays: a later write gives the file another version.
    pub(super) fn set_writers(&self, writers: Writers) {
        let still_asks = |before| (before != Writers::Nobody as u8).then_some(writers as u8);
        let _ = self.writers.try_update(Ordering::SeqCst, Ordering::SeqCst, still_asks);
    }

    /// Whether a write may be under way that takes pages from the file when it ends, which its version does not tell.
    pub(crate) fn is_watched(&self) -> bool {
        !self.is_memory && self.writers() != Some(Writers::Nobody)
    }

    /// Possible writers, for receipts of reads in place.
    pub(crate) fn suspects(&self) -> Writers {
        if self.is_watched() { self.writers().unwrap_or(Writers::Untold) } else { Writers::Nobody }
    }

    /// Whether a range of pinned pages is still the file's, should that be in doubt.
    pub(crate) fn has_kept(&self, start: u64, end: u64) -> bool {
        let is_whole = |region: Arc<Region>| region.is_whole(start, end - start);
        !self.is_watched() || start >= end || lock(&self.region).upgrade().is_some_and(is_whole)
    }

    /// Whether a batch's pinned pages are still the file's. Few pieces are checked one by one, many as one range with
    /// the gaps between them.
    pub(super) fn has_kept_batch(&self, batch: &Batch, len: u64) -> bool {
        /// To ask for a piece takes as long as for this many bytes more.
        const ASK: u64 = 1 << 20;
        let is_there = |(window, (start, end))| self.pin(window).is_none() || self.has_kept(start, end);
        let hulls = touched(batch, len);
        let between: u64 = hulls.values().map(|(start, end)| end - start).sum();
        if between > batch.pieces.len() as u64 * ASK {
            return parts(batch, len).all(is_there);
        }
        hulls.into_iter().all(is_there)
    }

    /// Whether all that is pinned is still the file's.
    pub(crate) fn has_kept_all(&self) -> bool {
        (0..self.windows.len()).filter_map(|window| self.pin(window)).all(|pin| pin.is_whole())
    }

    /// Whether it is time to ask again: a second after the first question, two, four and so on.
    pub(super) fn is_due(&self, now: u64) -> bool {
        const FIRST: u64 = 1000;
        let (since, due) = (self.seen_at.load(Ordering::Relaxed), self.audit_at.load(Ordering::Relaxed));
        if since == 0 {
            self.seen_at.store(now, Ordering::Relaxed);
            self.audit_at.store(now + FIRST, Ordering::Relaxed);
        } else if now >= due {
            self.audit_at.store(now + (now - since), Ordering::Relaxed);
        }
        since != 0 && now >= due
    }

    /// The pages' mapping, if there is one.
    pub(crate) fn mapping(&self) -> Weak<Region> {
        lock(&self.region).clone()
    }

    /// The address of a file offset, as long as the caller holds any pin.
    pub(crate) fn address(&self, offset: u64) -> Option<u64> {
        lock(&self.region).upgrade().map(|region| region.address(offset))
    }

    pub(crate) fn is_stale(&self) -> bool {
        self.is_stale.load(Ordering::SeqCst)
    }

    /// Offset and whole pages of a window.
    pub(crate) fn extent(&self, window: usize) -> (u64, u64) {
        let start = window as u64 * WINDOW;
        let end = (start + WINDOW).min(self.len());
        (start, (end - start).next_multiple_of(sys::page()))
    }

    pub(super) fn window(&self, index: usize) -> Option<&Window> {
        self.windows.get(index)
    }

    /// Counts the bytes that a request asks for of a window.
    pub(super) fn count(&self, index: usize, reader: Reader, bytes: u64, is_slow: bool) {
        let Some(window) = self.window(index) else { return };
        let all = window.demand.fetch_add(bytes, Ordering::Relaxed) + bytes;
        if is_slow {
            // Only time tells.
            return;
        }
        let worth = self.worth(index);
        let is_enough = match reader.direction {
            Direction::Read => reader.at_once(bytes, all) >= worth.at_once,
            Direction::Write => all >= worth.written,
        };
        if is_enough {
            window.demand.fetch_max(worth.in_all + 1, Ordering::Relaxed);
        }
    }

    /// Whether enough of a window was asked for to register it: much of it at once, or more than it has. Where registering
    /// is slow: whether it is read for the third time.
    pub(super) fn is_worth_it(&self, index: usize, is_slow: bool) -> bool {
        let worth = self.worth(index);
        let in_all = if is_slow { worth.slow } else { worth.in_all };
        self.window(index).is_some_and(|window| window.demand.load(Ordering::Relaxed) > in_all)
    }

    /// How often a window was read, by the bytes that were asked for.
    pub(super) fn visits(&self, index: usize) -> u64 {
        self.window(index)
            .map_or(0, |window| window.demand.load(Ordering::Relaxed) / self.extent(index).1.max(1))
    }

    /// Whether no window of these is pinned or read for the third time. The bytes were counted.
    pub(super) fn is_new_to(&self, demand: &[(usize, u64)]) -> bool {
        demand.iter().all(|(index, _)| !self.is_worth_it(*index, true) && !self.has_pin(*index))
    }

    fn worth(&self, index: usize) -> WindowWorth {
        let len = self.len();
        let start = index as u64 * WINDOW;
        WindowWorth::of(WINDOW.min(len.saturating_sub(start)), len > WINDOW)
    }

    /// The pin of a window, if it has one.
    pub(crate) fn pin(&self, index: usize) -> Option<Arc<Pin>> {
        match &*lock(&self.window(index)?.state) {
            WindowState::Pinned(pin) => Some(pin.clone()),
            _ => None,
        }
    }

    /// Whether nobody waits for a window to be registered, and it is not.
    pub(super) fn is_unasked(&self, index: usize) -> bool {
        let is_unasked = |window: &Window| {
            matches!(
                &*lock(&window.state),
                WindowState::Empty | WindowState::Queued(_) | WindowState::Declined(..)
            )
        };
        self.window(index).is_some_and(is_unasked)
    }

    /// Whether a window has a pin.
    pub(super) fn has_pin(&self, index: usize) -> bool {
        let is_pinned = |window: &Window| matches!(&*lock(&window.state), WindowState::Pinned(_));
        self.window(index).is_some_and(is_pinned)
    }

    pub(crate) fn set_pinned(&self, index: usize, pin: Pin) {
        if let Some(window) = self.window(index) {
            let mut state = lock(&window.state);
            // A thread that makes it stale afterwards finds the pin and releases it.
            *state = if self.is_stale() { WindowState::Empty } else { WindowState::Pinned(Arc::new(pin)) };
        }
    }

    /// Whether a window is still to be registered beside copies, by the request of this time.
    pub(super) fn is_queued(&self, index: usize, by: Instant) -> bool {
        let is_it =
            |window: &Window| matches!(&*lock(&window.state), WindowState::Queued(since) if *since == by);
        self.window(index).is_some_and(is_it)
    }

    /// Whether a request that asks for this part of a window has it registered at once. The bytes were counted.
    pub(super) fn is_large_part(&self, index: usize, reader: Reader, bytes: u64) -> bool {
        let all = self.window(index).map_or(0, |window| window.demand.load(Ordering::Relaxed));
        reader.at_once(bytes, all) >= self.worth(index).at_once
    }

    /// Bytes of it are read: a part of that time may be lost to registrations.
    pub(super) fn earn(&self, bytes: u64) {
        lock(&self.credit).earn(bytes, self.len());
    }

    /// A caller has read bytes in place by a long read. That took less time than a read of its own: part of the difference is saved, too.
    pub(super) fn note_pulled(&self, bytes: u64) {
        self.pulled.fetch_add(bytes, Ordering::Relaxed);
        self.earn(bytes * PULLED_EARNS);
    }

    /// Bytes of such reads so far.
    pub(super) fn pulled(&self) -> u64 {
        self.pulled.load(Ordering::Relaxed)
    }

    /// Whether a request that asks for this part of a window, and others before it, may have it registered for what its readers have
    /// saved: it is read again, and not in small pieces. The bytes were counted.
    pub(super) fn may_be_paid_for(&self, index: usize, reader: Reader, bytes: u64) -> bool {
        // Small reads of many threads take no lock for this.
        let may_be_large = reader.direction == Direction::Read && reader.bytes >= MIN_WORTH;
        may_be_large && self.visits(index) >= 2 && self.is_large_part(index, reader, bytes)
    }

    /// A registration failed: for good (as long as the file stays as it is), or until it is asked for again.
    pub(crate) fn set_failed(&self, index: usize, reason: Option<Reason>) {
        if let Some(window) = self.window(index) {
            *lock(&window.state) =
                reason.map_or(WindowState::Empty, |reason| WindowState::Declined(reason, u64::MAX));
        }
    }

    /// A window is not registered this time.
    pub(crate) fn put_off(&self, index: usize, reason: Reason) {
        self.decline(index, reason, 0);
    }

    /// A window is not registered this time, nor asked for again until the cache's clock says `until`.
    pub(super) fn decline(&self, index: usize, reason: Reason, until: u64) {
        if let Some(window) = self.window(index) {
            *lock(&window.state) = WindowState::Declined(reason, until);
        }
    }

    /// Whether a window is registered, or will be as things stand.
    pub(super) fn is_coming(&self, index: usize) -> bool {
        let state = self.window(index).map(|window| lock(&window.state));
        matches!(
            state.as_deref(),
            Some(WindowState::Pinned(_) | WindowState::Pending(_) | WindowState::Queued(_))
        )
    }

    /// The state of a window that was asked for.
    pub(crate) fn answer(&self, index: usize) -> WindowAnswer {
        match self.window(index).map(|window| lock(&window.state)).as_deref() {
            Some(WindowState::Pinned(pin)) => WindowAnswer::Ready(pin.clone()),
            Some(WindowState::Pending(since)) => WindowAnswer::Pending(*since),
            Some(WindowState::Declined(reason, _)) => WindowAnswer::No(reason.clone()),
            Some(WindowState::Queued(_)) => WindowAnswer::No(Reason::new("its pages are not registered yet")),
            Some(WindowState::Empty) => WindowAnswer::No(Reason::new("its pages were released meanwhile")),
            None => WindowAnswer::No(Reason::new("the range lies beyond the end of the file")),
        }
    }

    /// How many windows it has.
    pub(crate) fn windows(&self) -> usize {
        self.windows.len()
    }

    /// The file is open by this source.
    pub(super) fn set_owner(&self, source: &Arc<FileSource>) {
        let mut owner = lock(&self.owner);
        if !std::ptr::addr_eq(owner.as_ptr(), Arc::as_ptr(source)) {
            *owner = Arc::downgrade(source);
        }
    }

    pub(super) fn is_open(&self) -> bool {
        lock(&self.owner).strong_count() > 0
    }

    /// Whether any window is about to be registered.
    pub(crate) fn is_pending(&self) -> bool {
        self.windows.iter().any(|window| matches!(&*lock(&window.state), WindowState::Pending(_)))
    }

    /// Bytes that are pinned of it.
    pub(super) fn bytes(&self) -> u64 {
        let of = |window: &Window| match &*lock(&window.state) {
            WindowState::Pinned(pin) => pin.len(),
            _ => 0,
        };
        self.windows.iter().map(of).sum()
    }

    /// Releases all windows that are not in use; the bytes.
    pub(crate) fn release(&self) -> u64 {
        self.windows.iter().map(|window| window.release(false)).sum()
    }
}

impl Window {
    pub(super) fn touch(&self, now: u64) {
        // Uses that follow each other closely are one visit.
        const VISIT: u64 = 1000;
        let last = self.last_use.load(Ordering::Relaxed);
        if now != last {
            self.last_use.store(now, Ordering::Relaxed);
        }
        if now > last + VISIT {
            self.use_before.store(last, Ordering::Relaxed);
        }
    }

    /// Releases the window. One in use is kept: it could not be registered anew while it is registered still. Only a
    /// file that is forgotten releases those too; they stay registered until their users are done.
    pub(super) fn release(&self, even_in_use: bool) -> u64 {
        let mut state = lock(&self.state);
        match &*state {
            WindowState::Pinned(pin) if even_in_use || Arc::strong_count(pin) == 1 => {
                let bytes = pin.len();
                *state = WindowState::Empty;
                bytes
            }
            WindowState::Queued(_) => {
                *state = WindowState::Empty;
                0
            }
            _ => 0,
        }
    }
}

/// Bytes that make a window worth registering.
struct WindowWorth {
    /// In one read.
    at_once: u64,
    /// In all writes.
    written: u64,
    /// More than this in all.
    in_all: u64,
    /// More than this in all, where registering is slow: two reads of it and a half, since one byte more than a read is counted
    /// as long as that is not known.
    slow: u64,
}

impl WindowWorth {
    /// For a window of `len` bytes. The short end of a file of several windows goes with the rest of it.
    fn of(len: u64, is_large: bool) -> Self {
        let most = if is_large { len } else { u64::MAX };
        let at_least = |bytes: u64| bytes.max(MIN_WORTH).min(most);
        let (at_once, written) = (at_least(len / AT_ONCE), at_least(len / WRITTEN));
        Self { at_once, written, in_all: at_least(len), slow: at_least(len).saturating_mul(5) / 2 }
    }
}

// ---- which windows a batch touches ------------------------------------------------------------------------------

/// The parts of a batch's pieces that lie in one window each.
pub(super) fn parts(batch: &Batch, len: u64) -> impl Iterator<Item = (usize, (u64, u64))> {
    batch.pieces.iter().flat_map(move |piece| {
        let (start, end) = inside(piece, len);
        windows_of(start, end).map(move |window| {
            let first = window as u64 * WINDOW;
            (window, (start.max(first), end.min(first + WINDOW)))
        })
    })
}

/// The range that a batch touches in each window, from the first to the last byte.
pub(super) fn touched(batch: &Batch, len: u64) -> BTreeMap<usize, (u64, u64)> {
    let mut touched = BTreeMap::new();
    for (window, (start, end)) in parts(batch, len) {
        let (first, last) = touched.entry(window).or_insert((start, end));
        (*first, *last) = (start.min(*first), end.max(*last));
    }
    touched
}

/// The part of a piece that a file of `len` bytes has.
pub(super) fn inside(piece: &Piece, len: u64) -> (u64, u64) {
    (piece.offset.min(len), (piece.offset + piece.len as u64).min(len))
}

/// The windows that a range of the file touches.
pub(super) fn windows_of(start: u64, end: u64) -> Range<usize> {
    if start == end { 0..0 } else { (start / WINDOW) as usize..((end - 1) / WINDOW + 1) as usize }
}

pub(super) fn window_end(offset: u64) -> u64 {
    (offset / WINDOW + 1) * WINDOW
}
