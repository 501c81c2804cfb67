//! The pinned windows of one device: which there are, which are worth having, which go first.

use std::collections::HashMap;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, Weak};
use std::time::{Duration, Instant};

use forebay_error::Result;
use forebay_gpu::{Access, Device};

use super::bell::Bell;
use super::budget::{self, Budget, Gauge, Reservation};
use super::grounds::{self, Reason};
use super::pin::{Pin, Reaper};
use super::region::Region;
use super::version::{FileId, FileVersion};
use crate::source::{Descriptors, Source, residency, touch};

/// Bytes that are registered at once: large enough to be cheap, small enough for the first copy to begin soon.
pub(crate) const WINDOW: u64 = 64 << 20;
/// A window is worth registering once this part of it was asked for: registering costs about a sixth of the CPU time
/// that staging takes.
const WORTH: u64 = 4;
/// Less than this is cheaper staged than registered.
pub(crate) const WORTH_LEAST: u64 = 8 << 20;
/// Pins of files that nobody has open go after this.
const LINGER: Duration = Duration::from_secs(10);
/// Pins that were not used for so long give way to others.
const IDLE: Duration = Duration::from_secs(30);
/// How long a window that was declined is not looked at again.
const RETRY: Duration = Duration::from_millis(100);
/// How long to wait for others' unregistering.
const UNREGISTER: Duration = Duration::from_secs(10);
/// How long nothing is pinned after memory ran short.
const HOLD_OFF: Duration = Duration::from_secs(30);

/// One state of one file, and its windows on this device.
#[derive(Debug)]
pub(crate) struct Pinned {
    pub(crate) access: Access,
    version: Mutex<FileVersion>,
    /// Mapped as long as any window is pinned.
    region: Mutex<Weak<Region>>,
    windows: Box<[Window]>,
    /// Whether anybody has the file open.
    owner: Mutex<Weak<dyn Source>>,
    /// The file is not in this state any more.
    is_stale: AtomicBool,
}

#[derive(Debug, Default)]
struct Window {
    state: Mutex<State>,
    /// Bytes asked for while it was not pinned.
    demand: AtomicU64,
    /// Milliseconds on the shelf's clock.
    last_use: AtomicU64,
    use_before: AtomicU64,
}

#[derive(Debug, Default)]
enum State {
    #[default]
    Empty,
    /// The registrar has it.
    Pending(Instant),
    Pinned(Arc<Pin>),
    /// Not before this time of the shelf's clock.
    Declined(Reason, u64),
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Pinned {
    fn new(version: FileVersion, access: Access, owner: &Arc<dyn Source>) -> Self {
        let count = version.len.div_ceil(WINDOW) as usize;
        Self {
            access,
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
        let made = Arc::new(Region::map(file.buffered.as_raw_fd(), self.len(), self.access)?);
        *region = Arc::downgrade(&made);
        Ok(made)
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

    fn window(&self, index: usize) -> Option<&Window> {
        self.windows.get(index)
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

    fn is_open(&self) -> bool {
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
    fn touch(&self, now: u64) {
        let last = self.last_use.swap(now, Ordering::Relaxed);
        if last != now {
            self.use_before.store(last, Ordering::Relaxed);
        }
    }

    /// Lets go of the window. One in use is kept: it could not be registered anew while it is registered still. Only a
    /// file that is forgotten lets go of those too; they stay registered until their users are done.
    fn release(&self, even_in_use: bool) -> u64 {
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

/// What can be had of a window.
#[derive(Debug)]
pub(crate) enum Answer {
    /// Here it is.
    Ready(Arc<Pin>),
    /// It is being registered, since then.
    Pending(Instant),
    /// Not now, for this reason.
    No(Reason),
}

/// Why what is seldom read is not pinned.
pub(crate) const TOO_LITTLE: &str =
    "too little of it was read so far for pinning its pages to be worth the while";

/// How much a caller wants a window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Want {
    /// It asks for so many bytes of it: if that is worth it.
    Bytes(u64),
    /// In any case, cold or not.
    Surely,
}

/// What the registrar is asked to do.
pub(crate) struct Request {
    pub(crate) source: Arc<dyn Source>,
    pub(crate) pinned: Arc<Pinned>,
    pub(crate) window: usize,
    pub(crate) want: Want,
    pub(crate) reservation: Reservation,
}

/// The windows of one device.
pub(crate) struct Shelf {
    pub(crate) device: Arc<dyn Device>,
    pub(crate) reaper: Arc<Reaper>,
    /// Rung when a registration has ended.
    pub(crate) bell: Bell,
    pub(crate) option: Option<u64>,
    pub(crate) settle: Duration,
    files: RwLock<HashMap<FileId, Arc<Pinned>>>,
    count: AtomicUsize,
    gauge: Gauge,
    clock: Instant,
    held_off_until: AtomicU64,
}

impl Shelf {
    pub(crate) fn new(device: Arc<dyn Device>, option: Option<u64>, settle: Duration) -> Self {
        Self {
            reaper: Arc::new(Reaper::new(device.clone())),
            device,
            bell: Bell::default(),
            option,
            settle,
            files: RwLock::default(),
            count: AtomicUsize::new(0),
            gauge: Gauge::default(),
            clock: Instant::now(),
            held_off_until: AtomicU64::new(0),
        }
    }

    fn now(&self) -> u64 {
        self.clock.elapsed().as_millis() as u64 + 1
    }

    /// Whether it knows no file: then nobody need ask for one.
    pub(crate) fn is_empty(&self) -> bool {
        self.count.load(Ordering::Relaxed) == 0
    }

    /// The budget as it is now.
    pub(crate) fn budget(&self) -> Budget {
        self.gauge.read(self.option)
    }

    /// The file's state, and what is known of it in that state. A file that is known in another one is let go.
    pub(crate) fn look_up(&self, fd: RawFd) -> Result<(FileVersion, Option<Arc<Pinned>>)> {
        let version = FileVersion::of(fd)?;
        let known = self.files.read().unwrap_or_else(PoisonError::into_inner).get(&version.id()).cloned();
        let Some(pinned) = known else { return Ok((version, None)) };
        if pinned.version() == version {
            return Ok((version, Some(pinned)));
        }
        // It may be that this process is writing it in place just now.
        let version = pinned.compare(fd)?;
        match version {
            (version, true) => Ok((version, Some(pinned))),
            (version, false) => {
                self.discard(&pinned);
                Ok((version, None))
            }
        }
    }

    /// The file in its present state, known from now on.
    pub(crate) fn enter(
        &self,
        source: &Arc<dyn Source>,
        fd: RawFd,
        access: Access,
    ) -> Result<(FileVersion, Arc<Pinned>)> {
        let (version, known) = self.look_up(fd)?;
        if let Some(pinned) = known {
            if pinned.access == access || pinned.access == Access::ReadWrite {
                *lock(&pinned.owner) = Arc::downgrade(source);
                return Ok((version, pinned));
            }
            self.discard(&pinned);
        }
        let mut files = self.files.write().unwrap_or_else(PoisonError::into_inner);
        let made = Arc::new(Pinned::new(version, access, source));
        let pinned = files.entry(version.id()).or_insert(made).clone();
        self.count.store(files.len(), Ordering::Relaxed);
        // Somebody else may have entered it at the same time, in an earlier or later state.
        Ok((pinned.version(), pinned))
    }

    /// Forgets one state of a file. Its windows go when their users are done.
    pub(crate) fn discard(&self, pinned: &Arc<Pinned>) {
        pinned.is_stale.store(true, Ordering::SeqCst);
        let mut files = self.files.write().unwrap_or_else(PoisonError::into_inner);
        let id = pinned.version().id();
        if files.get(&id).is_some_and(|known| Arc::ptr_eq(known, pinned)) {
            files.remove(&id);
        }
        self.count.store(files.len(), Ordering::Relaxed);
        drop(files);
        pinned.windows.iter().for_each(|window| {
            window.release(true);
        });
    }

    /// Forgets a file that is about to be written. A memory file that is written in place keeps its pages.
    pub(crate) fn before_write(&self, id: FileId) {
        let known = self.files.read().unwrap_or_else(PoisonError::into_inner).get(&id).cloned();
        if let Some(pinned) = known
            && pinned.access == Access::ReadOnly
        {
            self.discard(&pinned);
        }
    }

    /// The pin of a window for a transfer that needs it, if it has one.
    pub(crate) fn use_pin(&self, pinned: &Pinned, index: usize) -> Option<Arc<Pin>> {
        pinned.window(index)?.touch(self.now());
        pinned.pin(index)
    }

    /// Asks for a window. What is worth registering is handed to `registrar`.
    pub(crate) fn ask(
        &self,
        source: &Arc<dyn Source>,
        file: &Descriptors,
        pinned: &Arc<Pinned>,
        index: usize,
        want: Want,
        registrar: &dyn Fn(Request),
    ) -> Answer {
        let Some(window) = pinned.window(index) else {
            return Answer::No(Reason::new("the range lies beyond the end of the file"));
        };
        let now = self.now();
        window.touch(now);
        if let Want::Bytes(bytes) = want {
            window.demand.fetch_add(bytes, Ordering::Relaxed);
        }
        let mut state = lock(&window.state);
        match &*state {
            State::Pinned(pin) => return Answer::Ready(pin.clone()),
            State::Pending(since) => return Answer::Pending(*since),
            State::Declined(reason, until) if now < *until && want != Want::Surely || *until == u64::MAX => {
                return Answer::No(reason.clone());
            }
            State::Declined(..) | State::Empty => {}
        }
        // Nobody else asks for it meanwhile; its lock is free for whoever looks for room.
        let since = Instant::now();
        *state = State::Pending(since);
        drop(state);
        let (start, len) = pinned.extent(index);
        let granted = self
            .is_worth_it(file, pinned, window, (start, len), want)
            .and_then(|()| self.reserve(len, window.use_before.load(Ordering::Relaxed), want));
        match granted {
            Ok(reservation) => {
                let (source, pinned) = (source.clone(), pinned.clone());
                registrar(Request { source, pinned, window: index, want, reservation });
                Answer::Pending(since)
            }
            Err(reason) => {
                // Finding out costs more than a small read: not again for a while.
                let until = now + RETRY.as_millis() as u64;
                *lock(&window.state) = State::Declined(reason.clone(), until);
                Answer::No(reason)
            }
        }
    }

    fn is_worth_it(
        &self,
        file: &Descriptors,
        pinned: &Pinned,
        window: &Window,
        (start, len): (u64, u64),
        want: Want,
    ) -> std::result::Result<(), Reason> {
        let version = pinned.version();
        if version.is_young(self.settle) {
            return Err(young(self.settle));
        }
        if want == Want::Surely {
            return Ok(());
        }
        // The short end of a large file goes with the rest of it.
        let most = if version.len > WINDOW { len.min(version.len - start) } else { u64::MAX };
        if window.demand.load(Ordering::Relaxed) < (len / WORTH).max(WORTH_LEAST).min(most) {
            return Err(Reason::new(TOO_LITTLE));
        }
        if self.now() < self.held_off_until.load(Ordering::Relaxed) {
            return Err(Reason::new("memory ran short a moment ago: nothing is pinned for a while")
                .hint("free memory, or raise the cgroup's limit"));
        }
        if !residency::is_whole(file, start, len.min(version.len - start)) {
            return Err(Reason::new("not all of its pages are in the page cache")
                .hint("read it once through the page cache: cat FILE > /dev/null, or FOREBAY_CACHE=keep"));
        }
        Ok(())
    }

    fn reserve(&self, len: u64, asked_before: u64, want: Want) -> std::result::Result<Reservation, Reason> {
        let budget = match Reservation::take(len, &self.budget()) {
            Ok(reservation) => return Ok(reservation),
            Err(budget) => budget,
        };
        let evicted = self.make_room(len, if want == Want::Surely { self.now() } else { asked_before });
        if evicted && want == Want::Surely {
            self.reaper.settle(UNREGISTER);
            if let Ok(reservation) = Reservation::take(len, &self.budget()) {
                return Ok(reservation);
            }
        }
        Err(over(&budget))
    }

    /// Lets go of at least `len` bytes that have not been used since `before`, or of closed files. False if there are
    /// not so many: then nothing is let go, since whoever reads more than the budget in turns would only ever find
    /// what it needs gone.
    fn make_room(&self, len: u64, before: u64) -> bool {
        let idle = self.now().saturating_sub(IDLE.as_millis() as u64);
        let files: Vec<_> =
            self.files.read().unwrap_or_else(PoisonError::into_inner).values().cloned().collect();
        let mut victims = Vec::new();
        for file in &files {
            let closed = !file.is_open();
            for window in &file.windows {
                let last = window.last_use.load(Ordering::Relaxed);
                let is_free =
                    matches!(&*lock(&window.state), State::Pinned(pin) if Arc::strong_count(pin) == 1);
                if is_free && (closed || last < before.max(idle)) {
                    victims.push((!closed, last, window));
                }
            }
        }
        victims.sort_unstable_by_key(|(is_open, last, _)| (*is_open, *last));
        let mut found = 0;
        let count = victims
            .iter()
            .take_while(|_| {
                found < len && {
                    found += WINDOW;
                    true
                }
            })
            .count();
        if found < len {
            return false;
        }
        victims[..count].iter().for_each(|(_, _, window)| {
            window.release(false);
        });
        true
    }

    /// Lets go of everything, or of one file; the bytes.
    pub(crate) fn trim(&self, id: Option<FileId>) -> u64 {
        let files: Vec<_> =
            self.files.read().unwrap_or_else(PoisonError::into_inner).values().cloned().collect();
        let chosen = files.iter().filter(|file| id.is_none_or(|id| file.version().id() == id));
        let bytes = chosen.map(|file| file.release()).sum();
        self.reaper.settle(UNREGISTER);
        bytes
    }

    /// Bytes pinned on this device that the shelf could let go, and files.
    pub(crate) fn holdings(&self) -> (u64, usize) {
        let files = self.files.read().unwrap_or_else(PoisonError::into_inner);
        let of = |file: &Arc<Pinned>| -> u64 {
            file.windows
                .iter()
                .map(|window| match &*lock(&window.state) {
                    State::Pinned(pin) => pin.len(),
                    _ => 0,
                })
                .sum()
        };
        let bytes: Vec<u64> = files.values().map(of).filter(|bytes| *bytes > 0).collect();
        (bytes.iter().sum(), bytes.len())
    }

    /// Forgets files that nobody has open, and pins that exceed the budget by now.
    pub(crate) fn tidy(&self) {
        let now = self.now();
        let linger = LINGER.as_millis() as u64;
        let files: Vec<_> =
            self.files.read().unwrap_or_else(PoisonError::into_inner).values().cloned().collect();
        for file in files.iter().filter(|file| !file.is_open()) {
            let last = file.windows.iter().map(|window| window.last_use.load(Ordering::Relaxed)).max();
            if last.unwrap_or(0) + linger < now {
                self.discard(file);
            }
        }
        let (bytes, pinned) = (self.gauge.read(self.option).bytes, budget::pinned());
        if pinned > bytes {
            self.shed(pinned - bytes);
        }
    }

    /// Memory runs short: lets go of the least recently used half, and pins nothing for a while.
    pub(crate) fn relieve(&self) {
        self.held_off_until.store(self.now() + HOLD_OFF.as_millis() as u64, Ordering::Relaxed);
        self.shed(self.holdings().0.div_ceil(2));
    }

    fn shed(&self, bytes: u64) {
        let files: Vec<_> =
            self.files.read().unwrap_or_else(PoisonError::into_inner).values().cloned().collect();
        let mut windows: Vec<_> = files
            .iter()
            .flat_map(|file| file.windows.iter())
            .filter(|window| matches!(&*lock(&window.state), State::Pinned(_)))
            .collect();
        windows.sort_unstable_by_key(|window| window.last_use.load(Ordering::Relaxed));
        let mut gone = 0;
        for window in windows {
            if gone >= bytes {
                break;
            }
            gone += window.release(false);
        }
    }

    /// What the rules and trials say of this device and a file.
    pub(crate) fn verdict(&self, file: &Descriptors, access: Access) -> std::result::Result<(), Reason> {
        grounds::verdict(&self.device, file, access)
    }
}

/// Why the pages of a file that has just been written are not pinned.
pub(crate) fn young(settle: Duration) -> Reason {
    Reason::new("the file was changed a moment ago").hint(format!(
        "its pages are pinned once it was left alone for {} ms (FOREBAY_PIN_SETTLE)",
        settle.as_millis()
    ))
}

fn over(budget: &Budget) -> Reason {
    Reason::new(format!(
        "the budget of pinned page cache is used up: {} MiB of {} MiB ({})",
        budget::pinned() >> 20,
        budget.bytes >> 20,
        budget.limiter
    ))
    .hint("close files that are not needed, call trim(), or free memory")
}
