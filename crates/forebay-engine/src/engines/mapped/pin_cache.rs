//! The pinned windows of one device: which there are, which are worth having, which go first.

use std::collections::HashMap;
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicI32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::{Duration, Instant};

use forebay_config::Config;
use forebay_error::{Error, ErrorKind, Result};
use forebay_gpu::{Access, Device};

use super::budget::{self, Budget, Gauge, Reservation};
use super::eligibility::{self, Reason};
use super::pagemap;
use super::pin::{Pin, Reaper};
use super::region::LONGEST;
use super::route::{parts, touched};
use super::window::{Pinned, State, WINDOW};
use super::writers::Writers;
use crate::request::transfer::Batch;
use crate::runtime::lock::lock;
use crate::runtime::wake_queue::Bell;
use crate::source::piece::Direction;
use crate::source::version::{FileId, FileVersion, STEPS};
use crate::source::{Descriptors, Fill, Source, residency};

/// A read of this part of a window has it registered at once. Whoever asks for less waits longer for the registration than
/// staging takes, and as long as the driver registers, other copies do not start: for him the window is worth it when he
/// comes by again.
const AT_ONCE: u64 = 4;
/// Writes have one registered once they came to this part of it, in one request or several.
const WRITTEN: u64 = 4;
/// Less than this is cheaper staged than registered.
pub(crate) const WORTH_LEAST: u64 = 8 << 20;
/// Pins of files that nobody has open go after this.
const LINGER: Duration = Duration::from_secs(10);
/// Pins that were not used for so long give way to others.
const IDLE: Duration = Duration::from_secs(30);
/// How long a window that was declined is not looked at again.
const RETRY: Duration = Duration::from_millis(100);
/// How long to wait for others' unregistering.
const UNREGISTER: Duration = Duration::from_millis(500);
/// How long nothing is pinned after memory ran short.
const HOLD_OFF: Duration = Duration::from_secs(30);

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
    /// If it is worth it, by what was asked for so far: see [`Shelf::weigh`].
    IfWorth,
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
    /// Registering at fewer GB/s is slow.
    pace: u64,
    files: RwLock<HashMap<FileId, Arc<Pinned>>>,
    count: AtomicUsize,
    gauge: Gauge,
    clock: Instant,
    held_off_until: AtomicU64,
    /// A thread that blocks SIGIO: see [`Writers::of`].
    pub(super) listener: AtomicI32,
}

impl Shelf {
    pub(crate) fn new(device: Arc<dyn Device>, config: &Config) -> Self {
        Self {
            reaper: Arc::new(Reaper::new(device.clone())),
            device,
            bell: Bell::default(),
            option: config.pin_budget,
            settle: config.pin_settle,
            pace: config.pin_pace,
            files: RwLock::default(),
            count: AtomicUsize::new(0),
            gauge: Gauge::default(),
            clock: Instant::now(),
            held_off_until: AtomicU64::new(0),
            listener: AtomicI32::new(0),
        }
    }

    fn now(&self) -> u64 {
        self.clock.elapsed().as_millis() as u64 + 1
    }

    /// Whether it knows no file: then nobody need ask for one.
    pub(crate) fn is_empty(&self) -> bool {
        self.count.load(Ordering::Relaxed) == 0
    }

    /// How long this file must have been left alone. A memory file has no direct writes that end late: where nobody has
    /// it open for writing, its last change was whole when it showed.
    pub(crate) fn settle_of(&self, file: &Descriptors, writers: Writers) -> Duration {
        if file.is_memory && writers == Writers::Nobody { self.least_settle(file) } else { self.settle }
    }

    /// As [`Shelf::settle_of`], if nobody has it open for writing.
    pub(crate) fn least_settle(&self, file: &Descriptors) -> Duration {
        if file.is_memory { self.settle.min(STEPS) } else { self.settle }
    }

    /// Who may be writing to a file that had this version before.
    pub(crate) fn writers(&self, file: &Descriptors, version: &FileVersion) -> Writers {
        Writers::of(file, version, self.listener.load(Ordering::Relaxed))
    }

    /// Asks again who may be writing to a file.
    fn ask_writers(&self, file: &Descriptors, pinned: &Arc<Pinned>) {
        let was_watched = pinned.is_watched();
        pinned.set_writers(self.writers(file, &pinned.version()));
        // From now on the version tells all. What was lost before must show now.
        if was_watched && !pinned.is_watched() && !pinned.has_kept_all() {
            self.discard(pinned);
        }
    }

    /// The budget as it is now.
    pub(crate) fn budget(&self) -> Budget {
        self.gauge.read(self.option)
    }

    /// The file's state, and what is known of it in that state. A file that is known in another one is let go.
    pub(crate) fn look_up(&self, fd: RawFd) -> Result<(FileVersion, Option<Arc<Pinned>>)> {
        let version = FileVersion::of(fd)?;
        let Some(pinned) = self.known(version.id()) else { return Ok((version, None)) };
        if pinned.version() == version {
            return Ok((version, Some(pinned)));
        }
        // It may be that this process is writing it in place just now.
        let (version, is_same) = pinned.compare(fd)?;
        if is_same {
            return Ok((version, Some(pinned)));
        }
        self.discard(&pinned);
        Ok((version, None))
    }

    /// The file in its present state, known from now on.
    pub(crate) fn enter(
        &self,
        source: &Arc<dyn Source>,
        fd: RawFd,
        access: Access,
    ) -> Result<(FileVersion, Arc<Pinned>)> {
        let (version, known) = self.look_up(fd)?;
        if version.len > LONGEST {
            return Err(Error::new(ErrorKind::Unsupported, "files of more than a tebibyte are not mapped")
                .with("bytes", version.len));
        }
        if let Some(pinned) = known {
            if pinned.access == access || pinned.access == Access::ReadWrite {
                pinned.set_owner(source);
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
        if let Some(pinned) = self.known(id)
            && pinned.access == Access::ReadOnly
        {
            self.discard(&pinned);
        }
    }

    /// The pin of a window for a transfer that needs it, if it has one.
    pub(crate) fn use_pin(&self, pinned: &Pinned, index: usize) -> Option<Arc<Pin>> {
        self.user(pinned)(index)
    }

    /// As [`Shelf::use_pin`], for many windows at the same time.
    pub(crate) fn user<'a>(&self, pinned: &'a Pinned) -> impl Fn(usize) -> Option<Arc<Pin>> + use<'a> {
        let now = self.now();
        move |index| {
            pinned.window(index)?.touch(now);
            pinned.pin(index)
        }
    }

    /// Notes that a request asks for so many bytes of each window. Fine if any of them is pinned, or worth asking for by
    /// now. This is the one place where demand is counted.
    pub(crate) fn weigh(
        &self,
        pinned: &Pinned,
        direction: Direction,
        demand: &[(usize, u64)],
    ) -> std::result::Result<(), Reason> {
        let now = self.now();
        let slow = self.slow(pinned);
        let mut verdict = Err(None);
        for (index, bytes) in demand {
            let Some(window) = pinned.window(*index) else { continue };
            window.touch(now);
            pinned.count(*index, direction, *bytes, slow.is_some());
            match &*lock(&window.state) {
                State::Pinned(_) => verdict = Ok(()),
                State::Declined(reason, until) if is_declined(*until, now) => {
                    verdict = verdict.map_err(|before| before.or_else(|| Some(reason.clone())));
                }
                _ if pinned.is_worth_it(*index, slow.is_some()) => verdict = Ok(()),
                _ if slow.is_some() => verdict = verdict.map_err(|before| before.or_else(|| slow.clone())),
                _ => {}
            }
        }
        verdict.map_err(|reason| reason.unwrap_or_else(|| Reason::new(TOO_LITTLE)))
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
        let mut state = lock(&window.state);
        match &*state {
            State::Pinned(pin) => return Answer::Ready(pin.clone()),
            State::Pending(since) => return Answer::Pending(*since),
            State::Declined(reason, until)
                if *until == u64::MAX || (want != Want::Surely && is_declined(*until, now)) =>
            {
                return Answer::No(reason.clone());
            }
            State::Declined(..) | State::Empty if want != Want::Surely => {
                let slow = self.slow(pinned);
                if !pinned.is_worth_it(index, slow.is_some()) {
                    return Answer::No(slow.unwrap_or_else(|| Reason::new(TOO_LITTLE)));
                }
            }
            State::Declined(..) | State::Empty => {}
        }
        // Nobody else asks for it meanwhile; its lock is free for whoever looks for room.
        let since = Instant::now();
        *state = State::Pending(since);
        drop(state);
        let (start, len) = pinned.extent(index);
        let granted = self
            .may_be_registered(file, pinned, (start, len), want)
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

    /// Why this file's pages are not registered in the first visits, if they are not.
    fn slow(&self, pinned: &Pinned) -> Option<Reason> {
        let mount = pinned.version().device;
        eligibility::slow(self.device.as_ref(), mount, pinned.access, (self.pace, pinned.is_memory))
    }

    /// Why a window that was asked for is not registered after all: meanwhile that turned out to be slow.
    pub(super) fn reconsider(&self, request: &Request) -> Option<Reason> {
        if request.want == Want::Surely {
            return None;
        }
        self.slow(&request.pinned).filter(|_| !request.pinned.is_worth_it(request.window, true))
    }

    fn may_be_registered(
        &self,
        file: &Descriptors,
        pinned: &Arc<Pinned>,
        (start, len): (u64, u64),
        want: Want,
    ) -> std::result::Result<(), Reason> {
        let version = pinned.version();
        let least = self.least_settle(file);
        if version.is_young(least) {
            return Err(young(least));
        }
        if pinned.writers() != Some(Writers::Nobody) {
            self.ask_writers(file, pinned);
        }
        let writers = pinned.writers().unwrap_or(Writers::Untold);
        let settle = self.settle_of(file, writers);
        if version.is_young(settle) {
            return Err(young(settle));
        }
        if pinned.is_watched() && !pagemap::is_there() {
            return Err(Reason::new(
                "a write to the file may be under way, and whether that takes pages from it cannot be seen \
                 (/proc/self/pagemap)",
            ));
        }
        if want == Want::Surely {
            return Ok(());
        }
        if writers == Writers::Somebody {
            return Err(Reason::new("somebody has the file open for writing")
                .hint("its pages are pinned once it is closed"));
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
        let files = self.all_files();
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
        let bytes = self.release(id);
        self.reaper.settle(UNREGISTER);
        bytes
    }

    /// As [`Shelf::trim`], without waiting.
    pub(crate) fn release(&self, id: Option<FileId>) -> u64 {
        let files = self.all_files();
        let chosen = files.iter().filter(|file| id.is_none_or(|id| file.version().id() == id));
        chosen.map(|file| file.release()).sum()
    }

    /// Bytes pinned on this device that the shelf could let go, and files.
    pub(crate) fn holdings(&self) -> (u64, usize) {
        let of = |file: &Arc<Pinned>| -> u64 {
            file.windows
                .iter()
                .map(|window| match &*lock(&window.state) {
                    State::Pinned(pin) => pin.len(),
                    _ => 0,
                })
                .sum()
        };
        let bytes: Vec<u64> = self.all_files().iter().map(of).filter(|bytes| *bytes > 0).collect();
        (bytes.iter().sum(), bytes.len())
    }

    /// Forgets files that nobody has open, and pins that exceed the budget by now.
    pub(crate) fn tidy(&self) {
        let now = self.now();
        let linger = LINGER.as_millis() as u64;
        let files = self.all_files();
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

    /// Finds out whether writes may still be under way where that was so when pages were pinned, so that they need no
    /// looking at any more; and lets go of what the file has lost.
    pub(crate) fn audit(&self) {
        let now = self.now();
        for pinned in self.all_files().iter().filter(|pinned| pinned.is_watched() && pinned.is_due(now)) {
            let owner = lock(&pinned.owner).upgrade();
            if let Some(Fill::Descriptor(file)) = owner.as_ref().map(|owner| owner.fill()) {
                self.ask_writers(file, pinned);
            }
            if !pinned.has_kept_all() {
                self.discard(pinned);
            }
        }
    }

    /// Whether the file still has all pages that a batch needs of what is pinned, should that be in doubt. If not, it is
    /// forgotten.
    pub(crate) fn has_kept(&self, pinned: &Arc<Pinned>, batch: &Batch, len: u64) -> bool {
        if !pinned.is_watched() || Self::is_kept(pinned, batch, len) {
            return true;
        }
        self.discard(pinned);
        false
    }

    /// Few pieces are asked for one by one, many with what lies between them.
    fn is_kept(pinned: &Pinned, batch: &Batch, len: u64) -> bool {
        /// To ask for a piece takes as long as for so many bytes more.
        const ASK: u64 = 1 << 20;
        let is_there = |(window, (start, end))| pinned.pin(window).is_none() || pinned.has_kept(start, end);
        let hulls = touched(batch, len);
        let between: u64 = hulls.values().map(|(start, end)| end - start).sum();
        if between > batch.pieces.len() as u64 * ASK {
            return parts(batch, len).all(is_there);
        }
        hulls.into_iter().all(is_there)
    }

    fn known(&self, id: FileId) -> Option<Arc<Pinned>> {
        self.files.read().unwrap_or_else(PoisonError::into_inner).get(&id).cloned()
    }

    fn all_files(&self) -> Vec<Arc<Pinned>> {
        self.files.read().unwrap_or_else(PoisonError::into_inner).values().cloned().collect()
    }

    /// Memory runs short: lets go of the least recently used half, and pins nothing for a while.
    pub(crate) fn relieve(&self) {
        self.held_off_until.store(self.now() + HOLD_OFF.as_millis() as u64, Ordering::Relaxed);
        self.shed(self.holdings().0.div_ceil(2));
    }

    fn shed(&self, bytes: u64) {
        let files = self.all_files();
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

    /// Whether what they say will not change.
    pub(crate) fn is_final(&self, file: &Descriptors, access: Access) -> bool {
        eligibility::known(self.device.as_ref(), file.nature.mount, access).is_some()
            || eligibility::rules(self.device.as_ref(), file, access).is_err()
    }

    /// What the rules and trials say of this device and a file.
    pub(crate) fn verdict(&self, file: &Descriptors, access: Access) -> std::result::Result<(), Reason> {
        eligibility::verdict(&self.device, file, access)
    }
}

/// Whether a window that was declined until then still is.
fn is_declined(until: u64, now: u64) -> bool {
    now < until || until == u64::MAX
}

/// Bytes that make a window worth it.
pub(super) struct Worth {
    /// So many in one read.
    pub(super) at_once: u64,
    /// So many in all writes.
    pub(super) written: u64,
    /// More than this in all.
    pub(super) in_all: u64,
    /// More than this in all, where registering is slow: two visits and a half, since one byte more than a visit was noted
    /// where that was not known yet.
    pub(super) slow: u64,
}

impl Worth {
    /// For a window of `len` bytes. The short end of a file of several windows goes with the rest of it.
    pub(super) fn of(len: u64, is_large: bool) -> Self {
        let most = if is_large { len } else { u64::MAX };
        let at_least = |bytes: u64| bytes.max(WORTH_LEAST).min(most);
        let (at_once, written) = (at_least(len / AT_ONCE), at_least(len / WRITTEN));
        Self { at_once, written, in_all: at_least(len), slow: at_least(len).saturating_mul(5) / 2 }
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
