//! The engine `mapped`: page-cache pages that a device reads in place.
//!
//! A [`Shelf`] keeps the registered windows of one device. The puller's thread registers and carries out transfers, the
//! keeper's thread unregisters, and watches memory and the puller. They start when the first transfer needs them.

mod again;
mod bell;
mod budget;
mod grounds;
mod keeper;
mod map;

mod pin;
mod puller;
mod region;
mod registrar;
mod route;
mod shelf;
mod version;
mod window;

use std::collections::VecDeque;
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use forebay_config::{CachePolicy, Config, Objective};
use forebay_error::{Error, ErrorKind, Result};
use forebay_gpu::{Access, Context, Device};

pub use self::budget::{Budget, Limiter};
pub(crate) use self::grounds::Reason;
pub use self::map::{Gathering, Map, Offsets, RawGather};
pub(crate) use self::puller::PullJob;
use self::puller::Puller;
use self::shelf::{Answer, Request, Shelf, TOO_LITTLE, WORTH_LEAST, Want};
pub use self::version::FileVersion;
use self::window::{Pinned, WINDOW};
use crate::caller::{Callers, Pulled};
use crate::file::File;
use crate::plan::Part;
use crate::receipt::{Election, EngineKind, Moved, Note, Refusal};
use crate::segment::Warmth;
use crate::source::{Descriptors, Fill};
use crate::stage::Stage;
use crate::transfer::{Batch, Direction, Transfer};

/// Files below this are never worth pinning.
const SMALLEST_FILE: u64 = 256 << 10;
/// Writes in place start here: less goes as fast through the page cache.
const SMALLEST_WRITE: u64 = 1 << 20;

/// A registration that takes longer will never end.
const PATIENCE: Duration = Duration::from_secs(10);

/// How long somebody who needs registered pages waits for what is in the way.
const ENOUGH: Duration = Duration::from_secs(3);

/// Whether the engine may be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    /// Never, for this reason.
    Never(Refusal),
    /// Where it is worth it.
    Auto,
    /// It and nothing else.
    Only,
}

/// What the engine's threads share.
pub(crate) struct Shared {
    shelf: Arc<Shelf>,
    mode: Mode,
    objective: Objective,
    stage: Stage,
    queue: Mutex<VecDeque<PullJob>>,
    stop: AtomicBool,
    keeper_stops: Arc<AtomicBool>,
    /// Windows to register.
    requests: Mutex<VecDeque<Request>>,
    /// The puller, while its thread registers a window.
    parked: Mutex<Option<Parked>>,
    puller: Mutex<Option<JoinHandle<()>>>,
    is_closed: AtomicBool,
}

/// A puller whose thread is in the driver.
struct Parked {
    since: Instant,
    puller: Box<Puller>,
    pinned: Arc<Pinned>,
    window: usize,
    /// The file system of the file that is being registered.
    mount: u64,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Shared {
    fn take(&self) -> Option<PullJob> {
        lock(&self.queue).pop_front()
    }

    fn push(&self, job: PullJob) {
        let mut queue = lock(&self.queue);
        if self.is_closed.load(Ordering::SeqCst) {
            drop(queue);
            return job.refuse(&closed());
        }
        queue.push_back(job);
        drop(queue);
        self.shelf.bell.ring();
    }

    /// From now on nothing is taken; what waits fails.
    fn close(&self, error: &Error) {
        let mut queue = lock(&self.queue);
        self.is_closed.store(true, Ordering::SeqCst);
        let jobs = std::mem::take(&mut *queue);
        drop(queue);
        for job in &jobs {
            job.refuse(error);
        }
        for request in lock(&self.requests).drain(..) {
            request.pinned.put_off(request.window, Reason::new("nobody registers pages any more"));
        }
    }

    /// Queues a window to be registered.
    fn register(&self, request: Request) {
        if self.is_closed.load(Ordering::SeqCst) {
            // A map that outlives its session finds nobody to register for it.
            return request.pinned.set_failed(request.window, Some(Reason::new("the session was closed")));
        }
        lock(&self.requests).push_back(request);
        self.shelf.bell.ring();
    }

    fn next_request(&self) -> Option<Request> {
        lock(&self.requests).pop_front()
    }

    /// Nobody waits for this file's windows any more: those that are not registered yet will not be, and the others are
    /// let go.
    fn give_up(&self, pinned: &Arc<Pinned>) {
        let mut requests = lock(&self.requests);
        let (theirs, others): (VecDeque<_>, VecDeque<_>) =
            requests.drain(..).partition(|request| Arc::ptr_eq(&request.pinned, pinned));
        *requests = others;
        drop(requests);
        for request in theirs {
            request.pinned.set_failed(request.window, None);
        }
        let deadline = Instant::now() + PATIENCE;
        while pinned.is_pending() && Instant::now() < deadline {
            self.shelf.bell.wait(self.shelf.bell.count(), Duration::from_millis(5));
        }
        pinned.release();
        self.shelf.reaper.settle(PATIENCE);
    }

    /// Something is in the way: what the lanes can do is left to them. Whoever needs registered pages waits a while.
    fn put_off(&self, request: Request, reason: &Reason) {
        let mut requests = lock(&self.requests);
        requests.push_front(request);
        let waits = |request: &Request| {
            let answer = request.pinned.answer(request.window);
            request.want == Want::Surely
                && matches!(answer, Answer::Pending(since) if since.elapsed() < ENOUGH)
        };
        let (needed, spare): (VecDeque<_>, VecDeque<_>) = requests.drain(..).partition(waits);
        *requests = needed;
        drop(requests);
        for request in spare {
            request.pinned.put_off(request.window, reason.clone());
        }
    }

    fn park(&self, puller: Box<Puller>, request: &Request) {
        let (pinned, window, since) = (request.pinned.clone(), request.window, Instant::now());
        let mount = pinned.version().device;
        *lock(&self.parked) = Some(Parked { since, puller, pinned, window, mount });
    }

    fn unpark(&self) -> Option<Box<Puller>> {
        lock(&self.parked).take().map(|parked| parked.puller)
    }

    /// Takes the puller away from a thread that has been in the driver for too long, and lets another one go on.
    fn rescue(self: &Arc<Self>) {
        let mut parked = lock(&self.parked);
        if parked.as_ref().is_none_or(|parked| parked.since.elapsed() < PATIENCE) {
            return;
        }
        let Some(Parked { puller, pinned, window, mount, .. }) = parked.take() else { return };
        drop(parked);
        let text = format!("registering its pages did not end within {} s", PATIENCE.as_secs());
        let reason = Reason::new(text);
        grounds::refuse(self.shelf.device.as_ref(), mount, pinned.access, reason.clone());
        pinned.set_failed(window, Some(reason.clone()));
        for request in lock(&self.requests).drain(..) {
            if request.pinned.version().device == mount {
                request.pinned.set_failed(request.window, Some(reason.clone()));
            } else {
                request.pinned.put_off(request.window, reason.clone());
            }
        }
        let device = self.shelf.device.clone();
        let name = format!("forebay-{}-pull", device.info().index);
        let started = std::thread::Builder::new().name(name).spawn(move || {
            Puller::settle_in(device.as_ref());
            puller.run();
        });
        // Without a thread the puller is dropped, which fails its transfers. The thread that hangs is left alone.
        *lock(&self.puller) = started.ok();
    }
}

/// Whether what was moved is the file's: it is still in the state that it was in before.
fn still_is(batch: &Batch, pinned: &Arc<Pinned>, version: &FileVersion) -> bool {
    let Fill::Descriptor(file) = batch.file.source().fill() else { return false };
    let fd = file.buffered.as_raw_fd();
    match batch.direction {
        Direction::Read => FileVersion::of(fd).is_ok_and(|now| now == *version),
        Direction::Write => pinned.touch(fd).is_some(),
    }
}

/// The file has changed. If it was not this process that wrote it in place, its pages are forgotten.
fn note_change(shelf: &Shelf, file: &Descriptors, pinned: &Arc<Pinned>) {
    if !pinned.compare(file.buffered.as_raw_fd()).is_ok_and(|(_, same)| same) {
        shelf.discard(pinned);
    }
}

fn closed() -> Error {
    Error::new(ErrorKind::Cancelled, "the session was closed before the stream got here")
}

/// The engine for one device.
pub(crate) struct Mapped {
    shared: Arc<Shared>,
    threads: OnceLock<Result<Threads>>,
}

struct Threads {
    keeper: Mutex<Option<JoinHandle<()>>>,
}

/// What is pinned, and how much may be.
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
}

impl Mapped {
    pub(crate) fn new(device: Arc<dyn Device>, config: &Config, mode: Mode, stage: Stage) -> Self {
        let shared = Shared {
            shelf: Arc::new(Shelf::new(device, config.pin_budget, config.pin_settle)),
            mode,
            objective: config.objective,
            stage,
            queue: Mutex::default(),
            stop: AtomicBool::new(false),
            keeper_stops: Arc::default(),
            requests: Mutex::default(),
            parked: Mutex::default(),
            puller: Mutex::default(),
            is_closed: AtomicBool::new(false),
        };
        Self { shared: Arc::new(shared), threads: OnceLock::new() }
    }

    pub(crate) fn mode(&self) -> &Mode {
        &self.shared.mode
    }

    /// Whether a batch is a matter for this engine; why not.
    pub(crate) fn takes(&self, batch: &Batch, warmth: Warmth) -> std::result::Result<(), Reason> {
        if let Mode::Never(refusal) = &self.shared.mode {
            return Err(Reason { text: refusal.reason.clone(), hint: refusal.hint.clone() });
        }
        let Fill::Descriptor(file) = batch.file.source().fill() else {
            return Err(Reason::new("the source is not a file"));
        };
        if batch.memory.context != Context::PRIMARY {
            return Err(Reason::new("the memory belongs to a context other than the device's primary one"));
        }
        if batch.direction == Direction::Write && !(file.is_memory && file.nature.is_writable) {
            return Err(Reason::new(
                "only tmpfs files that are open for reading and writing are written in place",
            ));
        }
        let access = match batch.direction {
            Direction::Read => Access::ReadOnly,
            Direction::Write => Access::ReadWrite,
        };
        grounds::kind(file, access)?;
        if self.shared.mode == Mode::Only {
            return Ok(());
        }
        let bytes = batch.pieces.iter().map(|piece| piece.len as u64).sum();
        let end = batch.pieces.iter().map(|piece| piece.offset + piece.len as u64).max().unwrap_or(0);
        self.is_worth_a_look(file, batch.direction, bytes, end)?;
        match warmth {
            Warmth::Cold if self.shared.stage.policy(batch) == CachePolicy::Bypass => {
                Err(Reason::new("the page cache is to be bypassed (FOREBAY_CACHE)"))
            }
            Warmth::Cold => Err(Reason::new("its pages are not in the page cache")
                .hint("read it once through the page cache: cat FILE > /dev/null, or FOREBAY_CACHE=keep")),
            _ => self.may_be_pinned(file, batch.direction, end),
        }
    }

    /// Saves the way to the puller's thread where the answer is sure to be no.
    fn may_be_pinned(
        &self,
        file: &Descriptors,
        direction: Direction,
        end: u64,
    ) -> std::result::Result<(), Reason> {
        let fd = file.buffered.as_raw_fd();
        let (version, known) = self.shared.shelf.look_up(fd).map_err(|error| Reason::from(&error))?;
        if direction == Direction::Write && end > version.len {
            return Err(Reason::new("the write makes the file longer")
                .hint("give the file its length first (truncate -s)"));
        }
        let settle = self.shared.shelf.settle_of(file);
        if version.is_young(settle) && known.is_none() {
            return Err(shelf::young(settle));
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
        if !file.nature.is_regular || file.nature.opened_len.max(end) < SMALLEST_FILE {
            return Err(Reason::new("the file is too small for pinning its pages to be worth the while"));
        }
        if direction == Direction::Write && bytes < SMALLEST_WRITE {
            return Err(Reason::new("the write is too small to be done in place"));
        }
        let demand = file.demand.fetch_add(bytes, Ordering::Relaxed) + bytes;
        if demand < WORTH_LEAST && self.shared.shelf.is_empty() {
            return Err(Reason::new(TOO_LITTLE));
        }
        Ok(())
    }

    /// Queues a batch.
    pub(crate) fn submit(&self, job: PullJob) -> Result<()> {
        self.start()?;
        self.shared.push(job);
        Ok(())
    }

    /// A hand that queues batches later, from any thread.
    pub(crate) fn submitter(&self) -> Result<impl Fn(PullJob) + Send + 'static> {
        self.start()?;
        // A stream that gets here after the session is gone must not keep its threads alive.
        let shared = Arc::downgrade(&self.shared);
        Ok(move |job: PullJob| match shared.upgrade() {
            Some(shared) => shared.push(job),
            None => job.refuse(&closed()),
        })
    }

    fn start(&self) -> Result<&Threads> {
        self.threads.get_or_init(|| start(&self.shared)).as_ref().map_err(Error::clone)
    }

    /// Moves a transfer on this thread if all pages that it needs are pinned. `None` if that cannot be; then the pages
    /// may be on their way for the next one.
    ///
    /// # Safety
    /// The transfer's memory is valid.
    pub(crate) unsafe fn run(
        &self,
        transfer: &Transfer,
        callers: &Callers,
    ) -> Option<Result<(Moved, Reason)>> {
        if transfer.direction == Direction::Write
            || transfer.len == 0
            || matches!(self.shared.mode, Mode::Never(_))
        {
            return None;
        }
        let Fill::Descriptor(file) = transfer.file.source().fill() else { return None };
        let policy = file.cache.unwrap_or(self.shared.stage.cache());
        if transfer.memory.context != Context::PRIMARY
            || policy == CachePolicy::Bypass
            || file.nature.opened_len.max(transfer.offset + transfer.len as u64) < SMALLEST_FILE
        {
            return None;
        }
        let (version, pinned) = self.look_up(transfer, file)?;
        let pins = self.pins_of(&pinned, transfer)?;
        let page = pinned.address(transfer.offset)?;
        // SAFETY: the pins keep the pages registered and mapped until the copies are done; the caller vouches for the
        // memory.
        let pulled = unsafe { callers.pull(transfer, page, WINDOW) };
        drop(pins);
        match pulled {
            Ok(Pulled::Busy) => None,
            Ok(Pulled::Done) => {
                if FileVersion::of(file.buffered.as_raw_fd()).is_ok_and(|now| now == version) {
                    let moved = Moved { mapped: transfer.len as u64, ..Moved::default() };
                    return Some(Ok((moved, Reason::new(String::new()))));
                }
                note_change(&self.shared.shelf, file, &pinned);
                Some(self.run_again(transfer))
            }
            Err(error) => Some(Err(error.with("file", transfer.file.name()))),
        }
    }

    /// The pins of all windows that a transfer needs, if they are all there and the file reaches far enough.
    fn pins_of(&self, pinned: &Pinned, transfer: &Transfer) -> Option<Vec<Arc<pin::Pin>>> {
        let end = transfer.offset.checked_add(transfer.len as u64)?;
        if end > pinned.len() {
            return None;
        }
        (transfer.offset / WINDOW..=(end - 1) / WINDOW)
            .map(|window| self.shared.shelf.use_pin(pinned, window as usize))
            .collect()
    }

    /// The file's pages if any are pinned; from time to time asks for those that are not.
    fn look_up(&self, transfer: &Transfer, file: &Descriptors) -> Option<(FileVersion, Arc<Pinned>)> {
        const STEP: u32 = 20;
        let len = transfer.len as u64;
        let before = file.demand.fetch_add(len, Ordering::Relaxed);
        if before + len < WORTH_LEAST && self.shared.mode != Mode::Only {
            return None;
        }
        let steps = ((before + len) >> STEP) != (before >> STEP);
        let shelf = &self.shared.shelf;
        if shelf.is_empty() && !steps {
            return None;
        }
        let (version, found) = shelf.look_up(file.buffered.as_raw_fd()).ok()?;
        let window = (transfer.offset / WINDOW) as usize;
        let small = len <= crate::caller::SMALL as u64;
        if small && steps && found.as_ref().is_none_or(|pinned| pinned.pin(window).is_none()) {
            self.ask_for_later(transfer, file, window);
        }
        found.map(|pinned| (version, pinned))
    }

    /// Small reads add up: has a window registered meanwhile, if that is worth it by now.
    fn ask_for_later(&self, transfer: &Transfer, file: &Descriptors, window: usize) {
        if self.start().is_err() || grounds_refuse(&self.shared.shelf, file) {
            return;
        }
        let source = transfer.file.source();
        let fd = file.buffered.as_raw_fd();
        let Ok((_, pinned)) = self.shared.shelf.enter(source, fd, Access::ReadOnly) else { return };
        let want = Want::Bytes(1 << 20);
        // Whatever comes of it: the transfer at hand goes another way.
        let _ = self
            .shared
            .shelf
            .ask(source, file, &pinned, window, want, &|request| self.shared.register(request));
    }

    fn run_again(&self, transfer: &Transfer) -> Result<(Moved, Reason)> {
        let batch = Arc::new(Batch::of(transfer));
        let parts = [Part::Entries { first: 0, last: 1 }];
        let election =
            Arc::new(Election { engine: EngineKind::Staged, refused: Vec::new(), notes: Vec::new() });
        let outcome = again::again(&self.shared.stage, &batch, &parts, &election);
        let good = outcome.entries.into_iter().next().unwrap_or(Ok(0))?;
        if good < transfer.len as u64 && !transfer.allow_short {
            return Err(
                crate::ticket::short_read(good, transfer.len as u64).with("file", transfer.file.name())
            );
        }
        Ok((outcome.moved, Reason::new("the file changed while it was read in place: it was read again")))
    }

    /// This session is about to write to the file: its pins go first.
    pub(crate) fn forget(&self, file: &Descriptors) {
        if !self.shared.shelf.is_empty()
            && let Ok(version) = FileVersion::of(file.buffered.as_raw_fd())
        {
            self.shared.shelf.before_write(version.id());
        }
    }

    /// Pins a whole file.
    pub(crate) fn map(&self, file: &File) -> Result<Map> {
        if let Mode::Never(refusal) = &self.shared.mode {
            let reason = Reason { text: refusal.reason.clone(), hint: refusal.hint.clone() };
            return Err(reason.error().with("file", file.name()));
        }
        self.start()?;
        Map::new(self.shared.clone(), file)
    }

    /// Lets go of pins that nothing uses: of one file or of all. Bytes.
    pub(crate) fn trim(&self, file: Option<&Descriptors>) -> u64 {
        let id = match file.map(|file| FileVersion::of(file.buffered.as_raw_fd())) {
            Some(Ok(version)) => Some(version.id()),
            Some(Err(_)) => return 0,
            None => None,
        };
        self.shared.shelf.trim(id)
    }

    pub(crate) fn report(&self) -> PinReport {
        let (bytes, files) = self.shared.shelf.holdings();
        PinReport { bytes, files, process_bytes: budget::pinned(), budget: self.shared.shelf.budget() }
    }

    /// Makes sure that the trial page of the file's file system is behind us.
    pub(crate) fn try_out(&self, file: &Descriptors, direction: Direction) {
        let access = match direction {
            Direction::Read => Access::ReadOnly,
            Direction::Write => Access::ReadWrite,
        };
        // What it says is asked again when the pages are registered.
        let _ = self.shared.shelf.verdict(file, access);
    }

    /// Whether the device can read this file's pages in place: by the rules, and by one page that is registered and
    /// read.
    pub(crate) fn probe(&self, file: &Descriptors) -> std::result::Result<(), Reason> {
        if let Mode::Never(refusal) = &self.shared.mode {
            return Err(Reason { text: refusal.reason.clone(), hint: refusal.hint.clone() });
        }
        self.shared.shelf.verdict(file, Access::ReadOnly)
    }
}

fn grounds_refuse(shelf: &Shelf, file: &Descriptors) -> bool {
    matches!(grounds::known(shelf.device.as_ref(), file.nature.mount, Access::ReadOnly), Some(Err(_)))
}

/// The election of a transfer that was divided between this engine and the lanes.
pub(crate) fn in_place(
    election: &Arc<Election>,
    pulled: u64,
    rest: u64,
    reason: Option<Reason>,
    notes: Vec<Note>,
) -> Arc<Election> {
    let mut made = Election::clone(election);
    made.notes.extend(notes.into_iter().filter(|note| !election.notes.contains(note)));
    made.refused.retain(|refusal| refusal.engine != EngineKind::Mapped);
    if pulled >= rest && pulled > 0 {
        made.engine = EngineKind::Mapped;
    }
    if let Some(Reason { text, hint }) = reason.filter(|reason| !reason.text.is_empty() && rest > 0) {
        let reason = if pulled > 0 { format!("{text} ({rest} of {} bytes)", pulled + rest) } else { text };
        made.refused.push(Refusal { engine: EngineKind::Mapped, reason, hint });
    }
    Arc::new(made)
}

fn start(shared: &Arc<Shared>) -> Result<Threads> {
    let device = shared.shelf.device.clone();
    let index = device.info().index;
    let spawn = |name: &str, body: Box<dyn FnOnce() + Send>| {
        std::thread::Builder::new()
            .name(format!("forebay-{index}-{name}"))
            .spawn(body)
            .map_err(|error| Error::from_io(&error, "cannot start a thread for the mapped engine"))
    };
    let (tell, told) = channel();
    let here = shared.clone();
    let puller = spawn(
        "pull",
        Box::new(move || {
            Puller::settle_in(device.as_ref());
            let made = Puller::new(here).map(Box::new);
            let _ = tell.send(made.as_ref().map(|_| ()).map_err(Error::clone));
            if let Ok(puller) = made {
                puller.run();
            }
        }),
    )?;
    told.recv()
        .unwrap_or_else(|_| Err(Error::new(ErrorKind::Internal, "the puller died while it started")))?;
    *lock(&shared.puller) = Some(puller);
    shared.shelf.reaper.open();
    let (shelf, stop, engine) = (shared.shelf.clone(), shared.keeper_stops.clone(), Arc::downgrade(shared));
    let rescue = move || {
        if let Some(shared) = engine.upgrade() {
            shared.rescue();
        }
    };
    let keeper = spawn("keep", Box::new(move || keeper::run(&shelf, &stop, &rescue)))?;
    Ok(Threads { keeper: Mutex::new(Some(keeper)) })
}

impl Drop for Mapped {
    fn drop(&mut self) {
        let Some(Ok(threads)) = self.threads.get() else { return };
        let join = |thread: &Mutex<Option<JoinHandle<()>>>| {
            let thread = lock(thread).take();
            if let Some(thread) = thread {
                // A thread that panicked has failed its transfers already.
                let _ = thread.join();
            }
        };
        {
            let _queue = lock(&self.shared.queue);
            self.shared.is_closed.store(true, Ordering::SeqCst);
        }
        self.shared.stop.store(true, Ordering::SeqCst);
        self.shared.shelf.bell.ring();
        // A puller that hangs in the driver is replaced by the keeper, which still runs.
        while lock(&self.shared.parked).is_some() {
            std::thread::sleep(Duration::from_millis(1));
        }
        join(&self.shared.puller);
        for request in lock(&self.shared.requests).drain(..) {
            request.pinned.put_off(request.window, Reason::new("the session was closed"));
        }
        self.shared.shelf.release(None);
        self.shared.keeper_stops.store(true, Ordering::SeqCst);
        self.shared.shelf.reaper.close();
        join(&threads.keeper);
    }
}
