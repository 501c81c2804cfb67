//! One state of one file, in windows: what is pinned of it on one device.

use std::os::fd::RawFd;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::Instant;

use forebay_error::Result;
use forebay_gpu::Access;

use super::eligibility::Reason;
use super::pin::Pin;
use super::pin_cache::{Answer, Worth};
use super::region::Region;
use super::writers::Writers;
use crate::runtime::lock::lock;
use crate::source::piece::Direction;
use crate::source::version::FileVersion;
use crate::source::{Descriptors, Fill, Source, touch};

/// Bytes that are registered at once: large enough to be cheap, small enough for the first copy to begin soon.
pub(crate) const WINDOW: u64 = 64 << 20;

/// One state of one file, and its windows on this device.
#[derive(Debug)]
pub(crate) struct Pinned {
    pub(crate) access: Access,
    /// Of a memory file: its pages are small, as a rule, and no write takes them from it unless its times tell.
    pub(super) is_memory: bool,
    /// Who may be writing to it, as a number; none yet if nobody asked.
    writers: AtomicU8,
    /// When the keeper saw it first, and when it asks again, on the shelf's clock.
    seen_at: AtomicU64,
    audit_at: AtomicU64,
    pub(super) version: Mutex<FileVersion>,
    /// Mapped as long as any window is pinned.
    pub(super) region: Mutex<Weak<Region>>,
    pub(super) windows: Box<[Window]>,
    /// Whether anybody has the file open.
    pub(super) owner: Mutex<Weak<dyn Source>>,
    /// The file is not in this state any more.
    pub(super) is_stale: AtomicBool,
}

#[derive(Debug, Default)]
pub(super) struct Window {
    pub(super) state: Mutex<State>,
    /// Bytes asked for by requests that did not find all that they needed pinned.
    pub(super) demand: AtomicU64,
    /// Milliseconds on the shelf's clock.
    pub(super) last_use: AtomicU64,
    pub(super) use_before: AtomicU64,
}

#[derive(Debug, Default)]
pub(super) enum State {
    #[default]
    Empty,
    /// The registrar has it.
    Pending(Instant),
    Pinned(Arc<Pin>),
    /// Not before this time of the shelf's clock.
    Declined(Reason, u64),
}

impl Pinned {
    pub(super) fn new(version: FileVersion, access: Access, owner: &Arc<dyn Source>) -> Self {
        let count = version.len.div_ceil(WINDOW) as usize;
        let is_memory = matches!(owner.fill(), Fill::Descriptor(file) if file.is_memory);
        Self {
            access,
            is_memory,
            writers: AtomicU8::new(u8::MAX),
            seen_at: AtomicU64::new(0),
            audit_at: AtomicU64::new(0),
            version: Mutex::new(version),
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
    /// pages, which the kernel does not notice. They are its pages still, in the state that is answered. `None` if
    /// somebody else has changed it.
    pub(crate) fn touch(&self, fd: RawFd) -> Option<FileVersion> {
        let mut version = lock(&self.version);
        if FileVersion::of(fd).ok()? != *version {
            return None;
        }
        touch(fd);
        let now = FileVersion::of(fd).ok().filter(|now| now.len == version.len)?;
        *version = now;
        Some(now)
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

    /// Who may be writing to it, as far as that was asked.
    pub(crate) fn writers(&self) -> Option<Writers> {
        Writers::numbered(self.writers.load(Ordering::SeqCst))
    }

    /// Writes down who may be writing. Once it was nobody that stays: a later write gives the file another version.
    pub(super) fn set_writers(&self, writers: Writers) {
        let still_asks = |before| (before != Writers::Nobody as u8).then_some(writers as u8);
        let _ = self.writers.fetch_update(Ordering::SeqCst, Ordering::SeqCst, still_asks);
    }

    /// Whether a write may be under way that takes pages from the file when it ends, which its version does not tell.
    pub(crate) fn is_watched(&self) -> bool {
        !self.is_memory && self.writers() != Some(Writers::Nobody)
    }

    /// Who may be writing, as receipts tell of reads in place.
    pub(crate) fn suspects(&self) -> Writers {
        if self.is_watched() { self.writers().unwrap_or(Writers::Untold) } else { Writers::Nobody }
    }

    /// Whether a range of pinned pages is still the file's, should that be in doubt.
    pub(crate) fn has_kept(&self, start: u64, end: u64) -> bool {
        let is_whole = |region: Arc<Region>| region.is_whole(start, end - start);
        !self.is_watched() || start >= end || lock(&self.region).upgrade().is_some_and(is_whole)
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
        (start, (end - start).next_multiple_of(4096))
    }

    pub(super) fn window(&self, index: usize) -> Option<&Window> {
        self.windows.get(index)
    }

    /// A request asks for so many bytes of a window.
    pub(super) fn count(&self, index: usize, direction: Direction, bytes: u64, is_slow: bool) {
        let Some(window) = self.window(index) else { return };
        let all = window.demand.fetch_add(bytes, Ordering::Relaxed) + bytes;
        if is_slow {
            // Only time tells.
            return;
        }
        let worth = self.worth(index);
        let is_enough = match direction {
            Direction::Read => bytes >= worth.at_once,
            Direction::Write => all >= worth.written,
        };
        if is_enough {
            window.demand.fetch_max(worth.in_all + 1, Ordering::Relaxed);
        }
    }

    /// Whether enough of a window was asked for to register it: much of it at once, or more than it has. Where registering
    /// is slow: whether somebody came by for the third time.
    pub(super) fn is_worth_it(&self, index: usize, is_slow: bool) -> bool {
        let worth = self.worth(index);
        let in_all = if is_slow { worth.slow } else { worth.in_all };
        self.window(index).is_some_and(|window| window.demand.load(Ordering::Relaxed) > in_all)
    }

    fn worth(&self, index: usize) -> Worth {
        let len = self.len();
        let start = index as u64 * WINDOW;
        Worth::of(WINDOW.min(len.saturating_sub(start)), len > WINDOW)
    }

    /// The pin of a window, if it has one.
    pub(crate) fn pin(&self, index: usize) -> Option<Arc<Pin>> {
        match &*lock(&self.window(index)?.state) {
            State::Pinned(pin) => Some(pin.clone()),
            _ => None,
        }
    }

    pub(crate) fn set_pinned(&self, index: usize, pin: Pin) {
        if let Some(window) = self.window(index) {
            let mut state = lock(&window.state);
            // Whoever makes it stale afterwards finds the pin and lets it go.
            *state = if self.is_stale() { State::Empty } else { State::Pinned(Arc::new(pin)) };
        }
    }

    /// A registration failed: for good (as long as the file stays as it is), or until somebody asks again.
    pub(crate) fn set_failed(&self, index: usize, reason: Option<Reason>) {
        if let Some(window) = self.window(index) {
            *lock(&window.state) = reason.map_or(State::Empty, |reason| State::Declined(reason, u64::MAX));
        }
    }

    /// A window is not registered this time.
    pub(crate) fn put_off(&self, index: usize, reason: Reason) {
        if let Some(window) = self.window(index) {
            *lock(&window.state) = State::Declined(reason, 0);
        }
    }

    /// What became of a window that was asked for.
    pub(crate) fn answer(&self, index: usize) -> Answer {
        match self.window(index).map(|window| lock(&window.state)).as_deref() {
            Some(State::Pinned(pin)) => Answer::Ready(pin.clone()),
            Some(State::Pending(since)) => Answer::Pending(*since),
            Some(State::Declined(reason, _)) => Answer::No(reason.clone()),
            Some(State::Empty) => Answer::No(Reason::new("its pages were let go of meanwhile")),
            None => Answer::No(Reason::new("the range lies beyond the end of the file")),
        }
    }

    /// How many windows it has.
    pub(crate) fn windows(&self) -> usize {
        self.windows.len()
    }

    /// Somebody has the file open by this source.
    pub(super) fn set_owner(&self, source: &Arc<dyn Source>) {
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
        self.windows.iter().any(|window| matches!(&*lock(&window.state), State::Pending(_)))
    }

    /// Lets go of all windows that nobody uses; the bytes.
    pub(crate) fn release(&self) -> u64 {
        self.windows.iter().map(|window| window.release(false)).sum()
    }
}

impl Window {
    pub(super) fn touch(&self, now: u64) {
        // Uses that follow each other closely are one visit.
        const VISIT: u64 = 1000;
        let last = self.last_use.swap(now, Ordering::Relaxed);
        if now > last + VISIT {
            self.use_before.store(last, Ordering::Relaxed);
        }
    }

    /// Lets go of the window. One in use is kept: it could not be registered anew while it is registered still. Only a
    /// file that is forgotten lets go of those too; they stay registered until their users are done.
    pub(super) fn release(&self, even_in_use: bool) -> u64 {
        let mut state = lock(&self.state);
        match &*state {
            State::Pinned(pin) if even_in_use || Arc::strong_count(pin) == 1 => {
                let bytes = pin.len();
                *state = State::Empty;
                bytes
            }
            _ => 0,
        }
    }
}
