//! The engine `mapped`: page-cache pages that a device reads in place.
//!
//! A [`PinCache`] keeps the registered windows of one device. The copy thread registers them and carries out
//! transfers; the reclaimer unregisters, and watches memory and the copy thread. Both start when a transfer needs them. Small
//! batches whose pages are all pinned need neither: see [`caller_thread`].

mod announced;
mod budget;
mod caller_thread;
mod candidate;
mod copy_thread;
mod credit;
mod eligibility;
mod found;
mod gather;
mod map;
mod pace;
mod pin_cache;
mod pin_room;
mod readers;
mod reclaimer;
mod region;
mod registrar;
mod route;
mod state;
#[cfg(test)]
mod tests;
mod threads;
mod transfer;
mod window;

use std::os::fd::AsRawFd;
use std::sync::atomic::Ordering;
use std::sync::{Arc, LazyLock, OnceLock};

use forebay_config::{CachePolicy, Config};
use forebay_error::{Error, Result};
use forebay_gpu::{Access, Context, Device};

pub use self::budget::{Budget, Limiter};
use self::caller_thread::{CallerPolledBatch, ReadyBatch};
pub(crate) use self::candidate::MappedCandidate;
pub(crate) use self::eligibility::Reason;
use self::found::FoundFile;
pub use self::map::{Gathering, Map, Offsets, RawGather};
use self::readers::Reader;
use self::reclaimer::Pin;
use self::region::WINDOW;
use self::registrar::PaidUse;
pub(crate) use self::state::in_place;
use self::state::{MappedState, closed, writers_note};
use self::threads::EngineThreads;
pub(crate) use self::transfer::MappedJob;
use self::transfer::SecondRead;
use self::window::{MIN_WORTH, PinnedFile, TOO_LITTLE};
use crate::engines::staged::Stage;
use crate::engines::staged::sync::{Callers, MAX_CALLER_BYTES, Pulled};
use crate::engines::{AskedBatch, Claim, Done, Engine, Known, Onward, Permission, Ran, Taken, Work};
use crate::io::plan::Part;
use crate::request::file::File;
use crate::request::receipt::{CountedPlaces, Election, EngineKind, Moved, ReceiptPart, Refusal, Way};
use crate::request::ticket::CallerPolled;
use crate::request::transfer::{Batch, Transfer};
use crate::source::piece::{Direction, access_for};
use crate::source::residency::Warmth;
use crate::source::version::FileVersion;
use crate::source::writers::Writers;
use crate::source::{Descriptors, FileSource};
use crate::tuning::callers::PART;
use crate::tuning::plan::CHUNK;

/// The engine for one device.
pub(crate) struct Mapped {
    state: Arc<MappedState>,
    threads: OnceLock<Result<Arc<EngineThreads>>>,
}

/// The bytes that the caller's thread has moved.
pub(crate) struct InPlaceOutcome {
    pub(crate) moved: Moved,
    /// Possible writers meanwhile.
    pub(crate) writers: Writers,
    /// Why it was not moved in place after all.
    pub(crate) reason: Option<Reason>,
}

/// The pinned pages, and their budget.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PinReport {
    /// Bytes that this session keeps pinned for the device, without those that maps hold.
    pub bytes: u64,
    /// Files that they belong to.
    pub files: usize,
    /// Bytes that the process has pinned, for all devices, maps included.
    pub process_bytes: u64,
    /// The most that the process may pin now.
    pub budget: Budget,
    /// How fast pages are registered, in pieces of which size, and for which part of the time.
    pub registering: String,
}

impl Mapped {
    pub(crate) fn new(
        device: Arc<dyn Device>,
        config: &Config,
        permission: Permission,
        stage: Stage,
        callers: Arc<Callers>,
    ) -> Self {
        Self {
            state: Arc::new(MappedState::new(device, config, permission, stage, callers)),
            threads: OnceLock::new(),
        }
    }

    pub(crate) fn mode(&self) -> &Permission {
        &self.state.permission
    }

    /// Whether a batch that is not wholly in place is better read by callers, many of which are at work.
    fn may_read_short_batch(&self, batch: &Batch) -> bool {
        *self.mode() != Permission::Only
            && self.state.callers.may_read_short_batch(batch)
            && self.state.callers.were_many()
    }

    /// Whether the engine takes a batch; else why not.
    pub(crate) fn takes(&self, batch: &Batch, warmth: Warmth) -> std::result::Result<(), Reason> {
        if let Permission::Never(refusal) = &self.state.permission {
            return Err(Reason::from(refusal));
        }
        let Some(owner) = batch.file.opened() else {
            return Err(Reason::new("the source is not a file"));
        };
        let file = &owner.descriptors;
        if batch.memory.context != Context::PRIMARY {
            return Err(Reason::new("the memory belongs to a context other than the device's primary one"));
        }
        if batch.direction == Direction::Write && !(file.is_memory && file.nature.is_writable) {
            return Err(Reason::new(
                "only tmpfs files that are open for reading and writing are written in place",
            ));
        }
        eligibility::kind(file, access_for(batch.direction))?;
        if self.state.permission == Permission::Only {
            return Ok(());
        }
        let bytes = batch.pieces.iter().map(|piece| piece.len as u64).sum();
        let end = batch.pieces.iter().map(|piece| piece.offset + piece.len as u64).max().unwrap_or(0);
        self.is_worth_a_look(file, batch.direction, bytes, end)?;
        match warmth {
            Warmth::Cold if self.state.stage.policy(&batch.file) == CachePolicy::Bypass => {
                Err(Reason::new("the page cache is to be bypassed (FOREBAY_CACHE)"))
            }
            Warmth::Cold => Err(Reason::new("its pages are not in the page cache")
                .hint("read it once through the page cache: cat FILE > /dev/null, or FOREBAY_CACHE=keep")),
            _ => self.may_be_pinned(owner, batch, end),
        }
    }

    /// Refuses early where the copy thread would refuse for sure.
    fn may_be_pinned(
        &self,
        owner: &Arc<FileSource>,
        batch: &Batch,
        end: u64,
    ) -> std::result::Result<(), Reason> {
        let (cache, direction, file) = (&self.state.cache, batch.direction, &owner.descriptors);
        let fd = file.buffered.as_raw_fd();
        let (version, known) = cache.look_up(fd).map_err(|error| Reason::from(&error))?;
        if direction == Direction::Write && end > version.len {
            return Err(Reason::new("the write makes the file longer")
                .hint("give the file its length first (truncate -s)"));
        }
        let settle = cache.least_settle(file);
        if version.is_young(settle) && known.is_none() {
            return Err(eligibility::young(settle));
        }
        let access = access_for(direction);
        if let Some(Err(reason)) = eligibility::known(cache.device.as_ref(), file.nature.mount, access) {
            return Err(reason);
        }
        // Only the engine's threads remove the file again.
        self.start().map_err(|error| Reason::from(&error))?;
        let entered = cache.enter(owner, fd, access);
        let (version, pinned) = entered.map_err(|error| Reason::from(&error))?;
        self.state.readers.note_reader();
        let demand = route::demand(batch, version.len);
        let (bytes, others_copy) = (route::asked_for(&demand), self.state.has_others());
        cache.count_demand(&pinned, Reader { direction, bytes, others_copy }, &demand)?;
        let may_wait = direction == Direction::Read && cache.paces_itself() && pinned.is_new_to(&demand);
        if may_wait && route::is_all_small(batch) {
            return Err(Reason::new(
                "a range is read whole in small pieces: registering would keep waiting a program that allocates memory for \
                 them, and is for pages that are read for the third time",
            )
            .hint("to have them registered at once: FOREBAY_PIN_PACE=0"));
        }
        Ok(())
    }

    /// Cheap questions first: small files, and files of which little was read.
    fn is_worth_a_look(
        &self,
        file: &Descriptors,
        direction: Direction,
        bytes: u64,
        end: u64,
    ) -> std::result::Result<(), Reason> {
        if !file.nature.is_regular || file.nature.opened_len.max(end) < PART {
            return Err(Reason::new("the file is too small for pinning its pages to pay"));
        }
        if direction == Direction::Write && bytes < CHUNK {
            return Err(Reason::new("the write is too small to be done in place"));
        }
        let demand = file.demand.fetch_add(bytes, Ordering::Relaxed) + bytes;
        if demand < MIN_WORTH && self.state.cache.is_empty() {
            return Err(Reason::new(TOO_LITTLE));
        }
        Ok(())
    }

    /// Queues a batch, or fails it.
    pub(crate) fn submit(&self, job: MappedJob) {
        match self.start() {
            Ok(()) => self.state.push(job),
            Err(error) => job.refuse(&error),
        }
    }

    /// Prepares a batch that the caller's thread can start: see [`MappedState::ready_batch`].
    pub(crate) fn ready_batch(&self, batch: &Batch) -> Option<ReadyBatch> {
        self.state.ready_batch(batch)
    }

    /// Starts it. What cannot start has failed in its completion by then.
    pub(crate) fn start_ready(&self, ready: ReadyBatch, job: MappedJob) -> Option<Arc<CallerPolledBatch>> {
        self.state.start_ready(ready, job)
    }

    /// A function that queues batches later, from any thread.
    pub(crate) fn submitter(&self) -> Result<impl Fn(MappedJob) + Send + 'static> {
        self.start()?;
        // A stream that reaches this after the session has ended must not keep its threads alive.
        let state = Arc::downgrade(&self.state);
        Ok(move |job: MappedJob| match state.upgrade() {
            Some(state) => state.push(job),
            None => job.refuse(&closed()),
        })
    }

    fn start(&self) -> Result<()> {
        let threads = self.threads.get_or_init(|| EngineThreads::start(&self.state));
        threads.as_ref().map(|_| ()).map_err(Error::clone)
    }

    /// Moves a transfer on this thread if all pages that it needs are pinned. `None` if that is impossible; then the
    /// pages may be registered for the next one.
    ///
    /// # Safety
    /// The transfer's memory is valid.
    pub(crate) unsafe fn run_here(
        &self,
        transfer: &Transfer,
        known: &Known<'_>,
    ) -> Option<Result<InPlaceOutcome>> {
        if transfer.direction == Direction::Write
            || transfer.len == 0
            || matches!(self.state.permission, Permission::Never(_))
        {
            return None;
        }
        let file = known.descriptors?;
        if transfer.memory.context != Context::PRIMARY
            || known.policy == CachePolicy::Bypass
            || file.nature.opened_len.max(transfer.offset + transfer.len as u64) < PART
        {
            return None;
        }
        let found = self.look_up(transfer, known, file)?;
        let FoundFile { version, pinned, .. } = &*found;
        let is_now = || FileVersion::of(file.buffered.as_raw_fd()).is_ok_and(|now| now == *version);
        let pins = self.pins_of(pinned, version.len, transfer)?;
        if !pinned.has_kept(transfer.offset, transfer.offset + transfer.len as u64) {
            self.state.cache.discard(pinned);
            return None;
        }
        let page = pins.first()?.address()? + transfer.offset % WINDOW;
        let piece = pins.iter().map(|pin| pin.piece()).min().unwrap_or(WINDOW);
        // Small reads look once, when they have copied.
        if transfer.len > MAX_CALLER_BYTES && !is_now() {
            self.state.cache.discard_changed(file, pinned);
            return None;
        }
        // SAFETY: the pins keep the pages registered and mapped until the copies are done; the caller vouches for the
        // memory.
        let copied = unsafe { self.state.callers.pull(transfer, page, piece, (known.began, known.order)) };
        drop(pins);
        match copied {
            Ok(Pulled::Busy) => None,
            Ok(Pulled::Done { resident }) => {
                if is_now() {
                    let bytes = transfer.len as u64;
                    if transfer.len > MAX_CALLER_BYTES {
                        pinned.note_pulled(bytes);
                    }
                    let resident = if resident { bytes } else { 0 };
                    let moved = Moved::of(Way::Mapped, bytes).by_resident(resident);
                    return Some(Ok(InPlaceOutcome { moved, writers: pinned.suspects(), reason: None }));
                }
                self.state.cache.discard_changed(file, pinned);
                Some(self.run_again(transfer))
            }
            Err(error) => Some(Err(error.with("file", transfer.file.name()))),
        }
    }

    /// The pins of all windows that a transfer needs, if they are all there and the file reaches far enough.
    fn pins_of(&self, pinned: &PinnedFile, len: u64, transfer: &Transfer) -> Option<Vec<Arc<Pin>>> {
        let end = transfer.offset.checked_add(transfer.len as u64)?;
        if end > len {
            return None;
        }
        (transfer.offset / WINDOW..=(end - 1) / WINDOW)
            .map(|window| self.state.cache.use_pin(pinned, window as usize))
            .collect()
    }

    /// The file if the transfer's first pages are pinned; from time to time asks for those that are not.
    fn look_up(&self, transfer: &Transfer, known: &Known<'_>, file: &Descriptors) -> Option<Arc<FoundFile>> {
        let len = transfer.len as u64;
        let small = transfer.len <= MAX_CALLER_BYTES;
        // Requests passed to `takes` are counted there. Reads by callers never get there.
        let is_ours =
            small || (self.state.permission != Permission::Only && self.state.callers.reads_long(known));
        let (before, counted) = match () {
            () if small => file.count_small(len),
            () if is_ours => (file.demand.fetch_add(len, Ordering::Relaxed), len),
            () => (file.demand.load(Ordering::Relaxed), len),
        };
        if before + counted < MIN_WORTH && self.state.permission != Permission::Only {
            return None;
        }
        let steps = (before + counted) / CHUNK != before / CHUNK;
        let cache = &self.state.cache;
        if cache.is_empty() && !steps {
            return None;
        }
        let window = (transfer.offset / WINDOW) as usize;
        let found = cache.find_pinned(file.identity, window);
        match &found {
            None if is_ours && steps => {
                self.ask_for_later(transfer, file, (window, counted.max(CHUNK)));
            }
            _ => {}
        }
        found
    }

    /// Reads on callers' threads add up: asks for a window if it is worth registering by now. Nobody waits for it.
    fn ask_for_later(&self, transfer: &Transfer, file: &Descriptors, (window, bytes): (usize, u64)) {
        if file.check().is_err() || self.start().is_err() || self.state.cache.refuses(file) {
            return;
        }
        let Some(source) = transfer.file.opened() else { return };
        let fd = file.buffered.as_raw_fd();
        let Ok((_, pinned)) = self.state.cache.enter(source, fd, Access::ReadOnly) else { return };
        if window >= pinned.windows() {
            // The file was cut meanwhile, perhaps to nothing.
            return;
        }
        // `others_copy`: this reader does not wait for the registration.
        let reader = Reader { direction: transfer.direction, bytes, others_copy: true };
        let cache = &self.state.cache;
        let is_worth_it = cache.count_demand(&pinned, reader, &[(window, bytes)]).is_ok();
        // This transfer goes another way all the same.
        let ask = |window, terms| {
            let registrar = |request| self.state.register(request);
            let _ = cache.ask(source, file, &pinned, window, terms, &registrar);
        };
        // Callers who read it now would have read it all before it is registered.
        let next = (window + 1) % pinned.windows();
        let is_long = transfer.len > MAX_CALLER_BYTES && cache.paces_itself();
        if is_long
            && pinned.is_worth_it(window, false)
            && pinned.visits(next) > 0
            && pinned.is_unasked(next)
            && let Some(terms) = cache.pay_for(&pinned, next, PaidUse::Later)
        {
            ask(next, terms);
        } else if is_worth_it && !(is_long && cache.can_pay(&pinned, window)) {
            ask(window, cache.policy(&pinned, reader, (window, 0)));
        }
    }

    fn run_again(&self, transfer: &Transfer) -> Result<InPlaceOutcome> {
        let batch = Arc::new(Batch::of(transfer));
        let parts = vec![Part::Entries { first: 0, last: 1 }];
        let election = Arc::new(Election {
            engine: EngineKind::Staged,
            refused: Vec::new(),
            notes: Vec::new(),
            mode: None,
            places: CountedPlaces::default(),
        });
        let outcome = SecondRead::new(&self.state, &batch, parts, &election, None).finish(&self.state);
        let (good, error) = outcome.entries.into_iter().next().unwrap_or_default();
        if let Some(error) = error {
            return Err(error);
        }
        if good < transfer.len as u64 && !transfer.allow_short {
            return Err(crate::request::completion::short_read(good, transfer.len as u64)
                .with("file", transfer.file.name()));
        }
        Ok(InPlaceOutcome {
            moved: outcome.moved,
            writers: Writers::Nobody,
            reason: Some(Reason::new(transfer::CHANGED)),
        })
    }

    /// This session is about to write to the file: its pins go first.
    pub(crate) fn forget(&self, file: &Descriptors) {
        if !self.state.cache.is_empty() {
            self.state.cache.before_write(file.identity);
        }
    }

    /// Pins a whole file.
    pub(crate) fn map(&self, file: &File) -> Result<Map> {
        if let Permission::Never(refusal) = &self.state.permission {
            return Err(Reason::from(refusal).error().with("file", file.name()));
        }
        self.start()?;
        Map::new(self.state.clone(), file)
    }

    /// See [`MappedState::pin_later`].
    pub(crate) fn pin_later(&self, file: &File, range: (u64, u64)) -> std::result::Result<(), Reason> {
        if let Permission::Never(refusal) = &self.state.permission {
            return Err(Reason::from(refusal));
        }
        self.start().map_err(|error| Reason::from(&error))?;
        self.state.pin_later(file, range)
    }

    /// Lets go of pins that nothing uses: of one file or of all. Bytes.
    pub(crate) fn trim(&self, file: Option<&Descriptors>) -> u64 {
        let id = match file.map(|file| FileVersion::of(file.buffered.as_raw_fd())) {
            Some(Ok(version)) => Some(version.id()),
            Some(Err(_)) => return 0,
            None => None,
        };
        self.state.cache.trim(id)
    }

    pub(crate) fn report(&self) -> PinReport {
        let (bytes, files) = self.state.cache.holdings();
        let (process_bytes, budget) = (budget::pinned(), self.state.cache.budget());
        let registering = pace::of_device(self.state.cache.device.info().uuid).to_string();
        PinReport { bytes, files, process_bytes, budget, registering }
    }

    /// Makes sure that the trial page of the file's file system was tried.
    pub(crate) fn try_out(&self, file: &Descriptors, direction: Direction) {
        // The verdict is checked again when the pages are registered.
        let _ = self.state.cache.verdict(file, access_for(direction));
    }

    /// Whether the device can read this file's pages in place: by the rules, and by one page that is registered and
    /// read.
    pub(crate) fn probe(&self, file: &Descriptors) -> std::result::Result<(), Reason> {
        if let Permission::Never(refusal) = &self.state.permission {
            return Err(Reason::from(refusal));
        }
        self.state.cache.verdict(file, Access::ReadOnly)
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        if let Some(Ok(threads)) = self.threads.get() {
            threads.shut_down();
        }
    }
}

/// Why a small transfer is staged whose pages are not pinned.
static NOT_PINNED: LazyLock<Refusal> = LazyLock::new(|| {
    Reason::new("its pages are not pinned, and a small transfer alone does not pin them").refusal()
});

impl Engine for Arc<Mapped> {
    fn kind(&self) -> EngineKind {
        EngineKind::Mapped
    }

    unsafe fn run(&self, transfer: &Transfer, known: &Known<'_>) -> Result<Ran> {
        // SAFETY: passed on.
        match unsafe { self.run_here(transfer, known) } {
            None if *self.mode() == Permission::Only => Ok(Ran::Later),
            None => Ok(Ran::Passed(Some(ReceiptPart::Always(&NOT_PINNED)))),
            Some(done) => {
                let done = done?;
                let note = writers_note(done.writers)
                    .filter(|_| done.moved[Way::Mapped] > 0)
                    .map(ReceiptPart::Always);
                let refusal = done.reason.map(|reason| ReceiptPart::Now(Arc::new(reason.refusal())));
                Ok(Ran::Done(Done { good: done.moved.total() as usize, moved: done.moved, refusal, note }))
            }
        }
    }

    fn claim(&self, asked: &AskedBatch<'_>) -> Result<Claim> {
        if asked.parts.is_some() {
            // The drive's rest of a batch is too small to pin pages for it.
            return Ok(Claim::Passed(None));
        }
        let taken = |work: Box<dyn Work>| {
            // How much of it is moved in place shows when it ends.
            Ok(Claim::Taken(Taken { work, bytes: 0, left: Vec::new(), refusal: None }))
        };
        if asked.is_alone
            && let Some(ready) = self.ready_batch(asked.batch)
        {
            let (engine, batch) = (self.clone(), asked.batch.clone());
            return taken(Box::new(CallerStart { engine, batch, ready }));
        }
        match self.takes(asked.batch, asked.warmth()) {
            // Splitting it between two engines would cost more than the callers' way for all of it.
            Ok(()) if asked.is_alone && self.may_read_short_batch(asked.batch) => Ok(Claim::Passed(None)),
            Ok(()) => taken(Box::new(Queued { engine: self.clone(), batch: asked.batch.clone() })),
            Err(reason) if *self.mode() == Permission::Only => {
                Err(reason.error().with("file", asked.known.file.name()))
            }
            Err(reason) => Ok(Claim::Passed(Some(ReceiptPart::Now(Arc::new(reason.refusal()))))),
        }
    }

    fn before_write(&self, file: &File) {
        if let Some(file) = file.descriptors() {
            self.forget(file);
        }
    }
}

/// A batch whose pages are all pinned: the submitting thread starts it.
struct CallerStart {
    engine: Arc<Mapped>,
    batch: Arc<Batch>,
    ready: ReadyBatch,
}

impl Work for CallerStart {
    fn count(&self) -> usize {
        1
    }

    fn start(self: Box<Self>, onward: Onward) -> Option<Arc<dyn CallerPolled>> {
        let Self { engine, batch, ready } = *self;
        let job = MappedJob { batch, base: onward.base, completion: onward.completion };
        engine.start_ready(ready, job).map(|flight| flight as Arc<dyn CallerPolled>)
    }
}

/// A batch for the engine's own thread.
struct Queued {
    engine: Arc<Mapped>,
    batch: Arc<Batch>,
}

impl Work for Queued {
    fn count(&self) -> usize {
        1
    }

    fn start(self: Box<Self>, onward: Onward) -> Option<Arc<dyn CallerPolled>> {
        let Self { engine, batch } = *self;
        engine.submit(MappedJob { batch, base: onward.base, completion: onward.completion });
        None
    }
}
