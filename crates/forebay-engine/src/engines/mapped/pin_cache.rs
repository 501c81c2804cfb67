//! The pinned windows of one device: their list, when to register one, which to evict first.

use std::collections::HashMap;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::atomic::{AtomicI32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::{Duration, Instant};

use forebay_config::Config;
use forebay_error::{Error, ErrorKind, Result};
use forebay_gpu::{Access, Device};
use forebay_sys::OwnLine;

use super::budget::{self, Budget, BudgetGauge};
use super::credit;
use super::eligibility::{self, Reason};
use super::found::{FoundFile, FoundFiles};
use super::pace::{self, LanesPace, RegisterPace};
use super::readers::Reader;
use super::reclaimer::{Pin, Reclaimer};
use super::region::{self, MAX_FILE_LEN};
use super::registrar::{PaidUse, PinPolicy, PinRequest, PinTerms, Promise};
use super::window::{PinnedFile, TOO_LITTLE, WindowAnswer, WindowState};
use crate::engines::staged::sync::MAX_CALLER_BYTES;
use crate::request::transfer::Batch;
use crate::runtime::lock;
use crate::runtime::wake_queue::WakeQueue;
use crate::source::piece::Direction;
use crate::source::version::{FileId, FileVersion, STEPS};
use crate::source::writers::Writers;
use crate::source::{Descriptors, FileSource};
use crate::tuning::machine::{BRIEF_WAIT, PATIENCE};
use crate::tuning::mapped::{AHEAD, FAST_ALONE, FAST_ENOUGH};

/// The windows of one device.
pub(crate) struct PinCache {
    pub(crate) device: Arc<dyn Device>,
    pub(crate) reclaimer: Arc<Reclaimer>,
    /// Wakes threads that wait for the end of a registration.
    pub(crate) wake_queue: WakeQueue,
    pub(crate) option: Option<u64>,
    pub(crate) settle: Duration,
    /// Registering at fewer GB/s is slow. 0: windows are registered at once, whatever it costs.
    pace: u64,
    pub(super) lanes_pace: LanesPace,
    files: RwLock<HashMap<FileId, Arc<PinnedFile>>>,
    /// Changed under the lock of `files`.
    found: FoundFiles,
    count: OwnLine<AtomicUsize>,
    gauge: BudgetGauge,
    clock: Instant,
    pub(super) held_off_until: AtomicU64,
    /// A thread that blocks SIGIO: see [`Writers::of`].
    pub(super) listener: AtomicI32,
}

impl PinCache {
    pub(crate) fn new(device: Arc<dyn Device>, config: &Config) -> Self {
        Self {
            reclaimer: Arc::new(Reclaimer::new(device.clone())),
            device,
            wake_queue: WakeQueue::default(),
            option: config.pin_budget,
            settle: config.pin_settle,
            pace: config.pin_pace,
            lanes_pace: LanesPace::default(),
            files: RwLock::default(),
            found: FoundFiles::default(),
            count: OwnLine::default(),
            gauge: BudgetGauge::default(),
            clock: Instant::now(),
            held_off_until: AtomicU64::new(0),
            listener: AtomicI32::new(0),
        }
    }

    pub(super) fn now(&self) -> u64 {
        self.clock.elapsed().as_millis() as u64 + 1
    }

    /// Whether it knows no file.
    pub(crate) fn is_empty(&self) -> bool {
        self.count.load(Ordering::Relaxed) == 0
    }

    /// How long this file must have been left alone. A memory file has no direct writes that end late: where nobody has
    /// it open for writing, its last change was whole when it showed.
    pub(crate) fn settle_of(&self, file: &Descriptors, writers: Writers) -> Duration {
        if file.is_memory && writers == Writers::Nobody { self.least_settle(file) } else { self.settle }
    }

    /// As [`PinCache::settle_of`], if nobody has it open for writing.
    pub(crate) fn least_settle(&self, file: &Descriptors) -> Duration {
        if file.is_memory { self.settle.min(STEPS) } else { self.settle }
    }

    /// Possible writers of a file that had this version before.
    pub(crate) fn writers(&self, file: &Descriptors, version: &FileVersion) -> Writers {
        Writers::of(file, version, self.listener.load(Ordering::Relaxed))
    }

    /// Asks again for possible writers of a file.
    fn ask_writers(&self, file: &Descriptors, pinned: &Arc<PinnedFile>) {
        let was_watched = pinned.is_watched();
        pinned.set_writers(self.writers(file, &pinned.version()));
        // From now on the version shows every change. Pages lost earlier must be found now.
        if was_watched && !pinned.is_watched() && !pinned.has_kept_all() {
            self.discard(pinned);
        }
    }

    /// The budget as it is now.
    pub(crate) fn budget(&self) -> Budget {
        self.gauge.read(self.option)
    }

    /// The file's state, and the pages pinned in that state. An entry of another state is dropped.
    pub(crate) fn look_up(&self, fd: RawFd) -> Result<(FileVersion, Option<Arc<PinnedFile>>)> {
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

    /// The file, if this window of it has a pin, in the state that was registered. Whether it still is in that state shows when
    /// its bytes were copied: small reads come often, and do not look twice.
    pub(super) fn find_pinned(&self, id: FileId, window: usize) -> Option<Arc<FoundFile>> {
        if let Some(found) = self.found.get(id) {
            return found.pinned.has_pin(window).then_some(found);
        }
        let files = self.files.read().unwrap_or_else(PoisonError::into_inner);
        let pinned = files.get(&id).filter(|pinned| pinned.has_pin(window))?;
        Some(self.found.keep(id, pinned.clone()))
    }

    /// The file in its present state, known from now on.
    pub(crate) fn enter(
        &self,
        source: &Arc<FileSource>,
        fd: RawFd,
        access: Access,
    ) -> Result<(FileVersion, Arc<PinnedFile>)> {
        let (version, known) = self.look_up(fd)?;
        if version.len > MAX_FILE_LEN {
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
        let made = Arc::new(PinnedFile::new(version, access, source));
        let pinned = files.entry(version.id()).or_insert(made).clone();
        self.count.store(files.len(), Ordering::Relaxed);
        // Another thread may have entered it at the same time, in an earlier or later state.
        Ok((pinned.version(), pinned))
    }

    /// Forgets one state of a file. Its windows go when their users are done.
    pub(crate) fn discard(&self, pinned: &Arc<PinnedFile>) {
        pinned.is_stale.store(true, Ordering::SeqCst);
        let mut files = self.files.write().unwrap_or_else(PoisonError::into_inner);
        let id = pinned.version().id();
        if files.get(&id).is_some_and(|known| Arc::ptr_eq(known, pinned)) {
            files.remove(&id);
            self.found.lose(id);
        }
        self.count.store(files.len(), Ordering::Relaxed);
        drop(files);
        pinned.windows.iter().for_each(|window| {
            window.release(true);
        });
    }

    /// Forgets a file that has changed, unless this process wrote it in place.
    pub(crate) fn discard_changed(&self, file: &Descriptors, pinned: &Arc<PinnedFile>) {
        if !pinned.compare(file.buffered.as_raw_fd()).is_ok_and(|(_, same)| same) {
            self.discard(pinned);
        }
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
    pub(crate) fn use_pin(&self, pinned: &PinnedFile, index: usize) -> Option<Arc<Pin>> {
        self.user(pinned)(index)
    }

    /// As [`PinCache::use_pin`], for many windows at the same time.
    pub(crate) fn user<'a>(&self, pinned: &'a PinnedFile) -> impl Fn(usize) -> Option<Arc<Pin>> + use<'a> {
        let now = self.now();
        move |index| {
            pinned.window(index)?.touch(now);
            pinned.pin(index)
        }
    }

    /// Counts the bytes that a request asks for of each window. Fine if any of them is pinned, or worth asking for by
    /// now. This is the one place where demand is counted.
    pub(crate) fn count_demand(
        &self,
        pinned: &PinnedFile,
        reader: Reader,
        demand: &[(usize, u64)],
    ) -> std::result::Result<(), Reason> {
        let now = self.now();
        let slow = self.slow(pinned, self.least(reader));
        let bytes: u64 = demand.iter().map(|(_, bytes)| bytes).sum();
        if bytes > MAX_CALLER_BYTES as u64 {
            // Shorter reads pay for nothing, and come from many threads at once.
            pinned.earn(bytes);
        }
        let mut verdict = Err(None);
        for (index, bytes) in demand {
            let Some(window) = pinned.window(*index) else { continue };
            window.touch(now);
            pinned.count(*index, reader, *bytes, slow.is_some());
            match &*lock(&window.state) {
                WindowState::Pinned(_) => verdict = Ok(()),
                WindowState::Declined(reason, until) if is_declined(*until, now) => {
                    verdict = verdict.map_err(|before| before.or_else(|| Some(reason.clone())));
                }
                _ if pinned.may_be_paid_for(*index, reader, *bytes) => verdict = Ok(()),
                WindowState::Queued(_) if reader.direction == Direction::Read => {
                    verdict = verdict
                        .map_err(|before| before.or_else(|| Some(in_background(self.pace_of(pinned)))));
                }
                _ if pinned.is_worth_it(*index, slow.is_some()) => verdict = Ok(()),
                _ if slow.is_some() => verdict = verdict.map_err(|before| before.or_else(|| slow.clone())),
                _ => {}
            }
        }
        verdict.map_err(|reason| reason.unwrap_or_else(|| Reason::new(TOO_LITTLE)))
    }

    /// Asks for a window. Windows worth registering are passed to `registrar`. See [`PinCache::policy`].
    ///
    /// The window's lock is not held while the budget looks for room, which may look at this window, too. Its state keeps other
    /// threads from asking for it meanwhile.
    pub(crate) fn ask(
        &self,
        source: &Arc<FileSource>,
        file: &Descriptors,
        pinned: &Arc<PinnedFile>,
        index: usize,
        terms: PinTerms,
        registrar: &dyn Fn(PinRequest),
    ) -> WindowAnswer {
        let Some(window) = pinned.window(index) else {
            return WindowAnswer::No(Reason::new("the range lies beyond the end of the file"));
        };
        let (now, policy) = (self.now(), terms.policy);
        window.touch(now);
        let mut state = lock(&window.state);
        if let Some(answer) = self.answer_by_state(&state, pinned, index, (policy, terms.least), now) {
            return answer;
        }
        let since = Instant::now();
        let is_background = policy.is_background();
        *state = if is_background { WindowState::Queued(since) } else { WindowState::Pending(since) };
        drop(state);
        let (_, len) = pinned.extent(index);
        let granted = self
            .may_be_registered(file, pinned, policy)
            .and_then(|()| self.reserve(len, window.use_before.load(Ordering::Relaxed), policy));
        let reservation = match granted {
            Ok(reservation) => Arc::new(reservation),
            Err(reason) => {
                let until = self.retry();
                let mut state = lock(&window.state);
                // A caller that waits may have taken it over.
                if matches!(&*state, WindowState::Queued(by) | WindowState::Pending(by) if *by == since) {
                    *state = WindowState::Declined(reason.clone(), until);
                }
                return WindowAnswer::No(reason);
            }
        };
        registrar(PinRequest {
            source: (!is_background).then(|| source.clone()),
            pinned: pinned.clone(),
            window: index,
            terms,
            reservation,
            since,
            pin: Pin::default(),
            was_watched: false,
        });
        if is_background {
            WindowAnswer::No(in_background(self.pace_of(pinned)))
        } else {
            WindowAnswer::Pending(since)
        }
    }

    /// The answer of a window in this state. `None`: it is to be registered now.
    fn answer_by_state(
        &self,
        state: &WindowState,
        pinned: &PinnedFile,
        index: usize,
        (policy, least): (PinPolicy, f64),
        now: u64,
    ) -> Option<WindowAnswer> {
        match state {
            WindowState::Pinned(pin) => Some(WindowAnswer::Ready(pin.clone())),
            WindowState::Pending(since) => Some(WindowAnswer::Pending(*since)),
            WindowState::Declined(reason, until)
                if *until == u64::MAX || (policy != PinPolicy::Always && is_declined(*until, now)) =>
            {
                Some(WindowAnswer::No(reason.clone()))
            }
            WindowState::Queued(_) if policy == PinPolicy::Background => {
                Some(WindowAnswer::No(in_background(self.pace_of(pinned))))
            }
            WindowState::Declined(..) | WindowState::Empty
                if matches!(policy, PinPolicy::Background | PinPolicy::AtOnce) =>
            {
                let slow = self.slow(pinned, least);
                let reason = || slow.clone().unwrap_or_else(|| Reason::new(TOO_LITTLE));
                (!pinned.is_worth_it(index, slow.is_some())).then(|| WindowAnswer::No(reason()))
            }
            WindowState::Declined(..) | WindowState::Empty | WindowState::Queued(_) => None,
        }
    }

    /// When to ask again whether a window may be registered: finding out costs more than a small read.
    pub(super) fn retry(&self) -> u64 {
        self.now() + BRIEF_WAIT.as_millis() as u64
    }

    /// How fast this file's pages are registered: as those of its file system, as long as it has none that were.
    pub(super) fn pace_of(&self, pinned: &PinnedFile) -> RegisterPace {
        let own = *lock(&pinned.pace);
        if own.is_known() { own } else { pace::of_mount(self.mount_key(pinned)) }
    }

    pub(super) fn mount_key(&self, pinned: &PinnedFile) -> eligibility::MountKey {
        eligibility::key(self.device.as_ref(), pinned.version().device, pinned.access)
    }

    /// Registering at fewer GB/s is slow for this reader: by the lanes it has its bytes sooner, even in the first visit.
    fn least(&self, reader: Reader) -> f64 {
        match self.pace {
            0 => 0.0,
            pace if reader.keeps_lanes_idle() => FAST_ALONE.min(pace as f64),
            pace => (self.lanes_pace.gb_per_second() * AHEAD).max(pace as f64),
        }
    }

    /// Why this file's pages are not registered in the first visits, if they are not.
    fn slow(&self, pinned: &PinnedFile, least: f64) -> Option<Reason> {
        let pace = self.pace_of(pinned);
        pace.is_slow(least, pinned.is_memory).then(|| pace.reason())
    }

    /// How a window that a reader asks for is registered, and at how many GB/s that is not slow. At once where it keeps no other
    /// copies waiting and is fast enough. Writes wait: while they go another way the file has a new version all the time.
    pub(super) fn policy(
        &self,
        pinned: &PinnedFile,
        reader: Reader,
        (window, bytes): (usize, u64),
    ) -> PinTerms {
        let least = self.least(reader);
        let repays = || reader.keeps_lanes_idle() && self.pace_of(pinned).is_known_to_reach(FAST_ENOUGH);
        // A request that keeps the lanes busy does not wait for a trial: it runs in parallel.
        let is_told = || reader.keeps_lanes_idle() || self.pace_of(pinned).is_known();
        let is_fast = || (is_told() && self.slow(pinned, least).is_none()) || repays();
        let is_at_once = self.pace == 0
            || reader.direction == Direction::Write
            || (!reader.others_copy && pinned.is_large_part(window, reader, bytes) && is_fast());
        PinTerms::of(if is_at_once { PinPolicy::AtOnce } else { PinPolicy::Background }, least)
    }

    /// As [`PinCache::policy`], or paid for by the file's readers.
    pub(super) fn terms(
        &self,
        pinned: &Arc<PinnedFile>,
        reader: Reader,
        (window, bytes): (usize, u64),
    ) -> PinTerms {
        let terms = self.policy(pinned, reader, (window, bytes));
        let may_be_paid = terms.policy == PinPolicy::Background
            && pinned.may_be_paid_for(window, reader, bytes)
            && pinned.is_unasked(window);
        let paid = may_be_paid.then(|| self.pay_for(pinned, window, PaidUse::Now)).flatten();
        paid.unwrap_or(terms)
    }

    /// Has the readers of a file pay for a window, if they have saved as much.
    pub(super) fn pay_for(&self, pinned: &Arc<PinnedFile>, window: usize, when: PaidUse) -> Option<PinTerms> {
        let (cost, least) = self.cost_of(pinned, window, when);
        Some(PinTerms::paid(Promise::make(pinned, cost, when)?, least))
    }

    /// Whether the readers of a file can ever save as much as a window costs that they read in place later.
    pub(super) fn can_pay(&self, pinned: &PinnedFile, window: usize) -> bool {
        self.cost_of(pinned, window, PaidUse::Later).0 <= credit::most(pinned.len())
    }

    /// The cost of a window for a file's readers, and the GB/s of registering at which it is nothing.
    fn cost_of(&self, pinned: &PinnedFile, window: usize, when: PaidUse) -> (f64, f64) {
        let least = match self.lanes_pace.gb_per_second() {
            0.0 => self.pace as f64,
            pace => pace * AHEAD,
        };
        let (_, len) = pinned.extent(window);
        let spared = if when == PaidUse::Now { len } else { 0 };
        (credit::cost(credit::expected(len, self.pace_of(pinned)), least, spared), least)
    }

    /// Whether the cost of registering matters.
    pub(super) fn paces_itself(&self) -> bool {
        self.pace > 0
    }

    /// Why a window that was asked for is not registered after all: meanwhile that turned out to be slow.
    pub(super) fn reconsider(&self, request: &PinRequest) -> Option<Reason> {
        if matches!(request.terms.policy, PinPolicy::Announced | PinPolicy::Paid | PinPolicy::Always) {
            return None;
        }
        self.slow(&request.pinned, request.terms.least)
            .filter(|_| !request.pinned.is_worth_it(request.window, true))
    }

    /// Whether anything but its pages speaks against a window. Those are looked at when their turn comes: counting the small folios
    /// of 11.2 GB takes 50 ms, and most windows may turn out not to be worth it by then.
    fn may_be_registered(
        &self,
        file: &Descriptors,
        pinned: &Arc<PinnedFile>,
        policy: PinPolicy,
    ) -> std::result::Result<(), Reason> {
        let version = pinned.version();
        let least = self.least_settle(file);
        if version.is_young(least) {
            return Err(eligibility::young(least));
        }
        if pinned.writers() != Some(Writers::Nobody) {
            self.ask_writers(file, pinned);
        }
        let writers = pinned.writers().unwrap_or(Writers::Untold);
        let settle = self.settle_of(file, writers);
        if version.is_young(settle) {
            return Err(eligibility::young(settle));
        }
        if pinned.is_watched() && !region::tells_pages() {
            return Err(Reason::new(
                "a write to the file may be under way, and whether that takes pages from it cannot be seen \
                 (/proc/self/pagemap)",
            ));
        }
        if policy == PinPolicy::Always {
            return Ok(());
        }
        if writers == Writers::Somebody {
            return Err(Reason::new("somebody has the file open for writing")
                .hint("its pages are pinned once it is closed"));
        }
        if self.is_held_off() {
            return Err(short_of_memory());
        }
        Ok(())
    }

    /// Bytes pinned on this device that may be released, and files.
    pub(crate) fn holdings(&self) -> (u64, usize) {
        let bytes = self.all_files().into_iter().map(|file| file.bytes()).filter(|bytes| *bytes > 0);
        bytes.fold((0, 0), |(sum, files), bytes| (sum + bytes, files + 1))
    }

    /// The periodic work of its reclaimer. `is_pressed` tells whether memory ran short.
    pub(super) fn maintain(&self, is_pressed: impl FnOnce() -> bool) {
        if self.is_empty() {
            return;
        }
        self.forget_closed();
        self.recheck_writers();
        if is_pressed() && self.holdings().0 > 0 {
            self.release_half();
        }
    }

    /// Forgets closed files, and pins that exceed the budget by now.
    fn forget_closed(&self) {
        let now = self.now();
        let linger = PATIENCE.as_millis() as u64;
        let files = self.all_files();
        for file in files.iter().filter(|file| !file.is_open()) {
            let last = file.windows.iter().map(|window| window.last_use.load(Ordering::Relaxed)).max();
            if last.unwrap_or(0) + linger < now {
                self.discard(file);
            }
        }
        let (bytes, pinned) = (self.gauge.read(self.option).bytes, budget::pinned());
        if pinned > bytes {
            self.release_oldest(pinned - bytes);
        }
    }

    /// Finds out whether writes may still be under way where that was so when pages were pinned, so that they need no
    /// checks any more; and drops files that have lost pages.
    fn recheck_writers(&self) {
        let now = self.now();
        for pinned in self.all_files().iter().filter(|pinned| pinned.is_watched() && pinned.is_due(now)) {
            let owner = lock(&pinned.owner).upgrade();
            if let Some(owner) = owner {
                self.ask_writers(&owner.descriptors, pinned);
            }
            if !pinned.has_kept_all() {
                self.discard(pinned);
            }
        }
    }

    /// Whether the file still has all pinned pages that a batch needs, if that is in doubt. If not, it is
    /// forgotten.
    pub(crate) fn has_kept(&self, pinned: &Arc<PinnedFile>, batch: &Batch, len: u64) -> bool {
        if !pinned.is_watched() || pinned.has_kept_batch(batch, len) {
            return true;
        }
        self.discard(pinned);
        false
    }

    fn known(&self, id: FileId) -> Option<Arc<PinnedFile>> {
        self.files.read().unwrap_or_else(PoisonError::into_inner).get(&id).cloned()
    }

    pub(super) fn all_files(&self) -> Vec<Arc<PinnedFile>> {
        self.files.read().unwrap_or_else(PoisonError::into_inner).values().cloned().collect()
    }

    /// Whether memory ran short a moment ago.
    pub(super) fn is_held_off(&self) -> bool {
        self.now() < self.held_off_until.load(Ordering::Relaxed)
    }

    /// Whether what they say will not change.
    pub(crate) fn is_final(&self, file: &Descriptors, access: Access) -> bool {
        eligibility::known(self.device.as_ref(), file.nature.mount, access).is_some()
            || eligibility::rules(self.device.as_ref(), file, access).is_err()
    }

    /// Whether this device is known not to read the file's pages in place.
    pub(crate) fn refuses(&self, file: &Descriptors) -> bool {
        let known = eligibility::known(self.device.as_ref(), file.nature.mount, Access::ReadOnly);
        matches!(known, Some(Err(_)))
    }

    /// The verdict of rules and trials on this device and a file.
    pub(crate) fn verdict(&self, file: &Descriptors, access: Access) -> std::result::Result<(), Reason> {
        eligibility::verdict(&self.device, file, access)
    }
}

/// Whether a window that was declined until then still is.
fn is_declined(until: u64, now: u64) -> bool {
    now < until || until == u64::MAX
}

/// Why nothing is pinned for a while.
pub(super) fn short_of_memory() -> Reason {
    Reason::new("memory ran short a moment ago: nothing is pinned for a while")
        .hint("free memory, or raise the cgroup's limit")
}

/// Why a window is staged that is worth registering.
fn in_background(pace: RegisterPace) -> Reason {
    Reason::new(format!("its pages are registered beside other copies ({pace})"))
        .hint("to have them registered at once: FOREBAY_PIN_PACE=0")
}
