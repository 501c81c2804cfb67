//! What the threads of the engine share: work that waits, and the puller while its thread is in the driver.

use std::collections::VecDeque;
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use forebay_config::{Config, Objective};
use forebay_error::{Error, ErrorKind, Result};
use forebay_gpu::Device;

use super::caller_thread::{Desks, Driven};
use super::copy_thread::Puller;
use super::eligibility::{self, Reason};
use super::pin_cache::{Answer, Request, Shelf, Want};
use super::transfer::{Pull, PullJob};
use super::window::Pinned;
use super::writers::Writers;
use super::{in_place, reclaimer};
use crate::engines::permission::Permission;
use crate::engines::staged::Stage;
use crate::request::cancel::Cancel;
use crate::request::receipt::Election;
use crate::request::transfer::Batch;
use crate::runtime::lock::lock;
use crate::runtime::threads;
use crate::source::piece::Direction;
use crate::source::version::FileVersion;
use crate::source::{Descriptors, Fill};

/// A registration that takes longer will never end.
pub(super) const PATIENCE: Duration = Duration::from_secs(10);

/// How long somebody who needs registered pages waits for what is in the way.
const ENOUGH: Duration = Duration::from_secs(3);

/// What the engine's threads share.
pub(crate) struct Shared {
    pub(super) shelf: Arc<Shelf>,
    pub(super) mode: Permission,
    pub(super) objective: Objective,
    pub(super) stage: Stage,
    /// What callers need to start small batches themselves.
    pub(super) desks: Desks,
    pulled: Mutex<Option<WhollyPulled>>,
    queue: Mutex<VecDeque<Work>>,
    /// Nothing is queued any more. The puller ends when it has done what is.
    is_closed: AtomicBool,
    /// Windows to register.
    requests: Mutex<VecDeque<Request>>,
    /// The puller, while its thread registers a window.
    parked: Mutex<Option<Parked>>,
    puller: Mutex<Option<JoinHandle<()>>>,
    keeper: Mutex<Option<JoinHandle<()>>>,
    keeper_stops: Arc<AtomicBool>,
}

/// What the election of batches that were wholly pulled was made from, and that election.
type WhollyPulled = (Arc<Election>, Writers, Arc<Election>);

/// What the puller is asked to do.
pub(super) enum Work {
    /// A batch.
    Job(PullJob),
    /// To look at a flight that nobody looks at any more.
    Watch(Arc<Driven>),
    /// To move again what changed while it was pulled.
    Changed(Box<Pull>),
}

/// A puller whose thread is in the driver.
struct Parked {
    /// Also tells it from those that are parked later.
    since: Instant,
    puller: Box<Puller>,
    pinned: Arc<Pinned>,
    window: usize,
    /// The file system of the file that is being registered.
    mount: u64,
}

impl Cancel for Shared {
    /// The puller sees by itself which batches were cancelled.
    fn cancel(&self) {
        self.shelf.bell.ring();
    }
}

impl Shared {
    pub(super) fn new(device: Arc<dyn Device>, config: &Config, mode: Permission, stage: Stage) -> Self {
        Self {
            shelf: Arc::new(Shelf::new(device, config)),
            mode,
            objective: config.objective,
            stage,
            desks: Desks::new(),
            pulled: Mutex::default(),
            queue: Mutex::default(),
            is_closed: AtomicBool::new(false),
            requests: Mutex::default(),
            parked: Mutex::default(),
            puller: Mutex::default(),
            keeper: Mutex::default(),
            keeper_stops: Arc::default(),
        }
    }

    /// The next work.
    pub(super) fn take(&self) -> Option<Work> {
        lock(&self.queue).pop_front()
    }

    /// Queues a batch.
    pub(super) fn push(self: &Arc<Self>, job: PullJob) {
        let this: Arc<dyn Cancel> = self.clone();
        job.completion.tell(Arc::downgrade(&this));
        if let Err(Work::Job(job)) = self.hand_over(Work::Job(job)) {
            job.refuse(&closed());
        }
    }

    /// Queues work for the puller. Gives it back if that has ended.
    pub(super) fn hand_over(&self, work: Work) -> std::result::Result<(), Work> {
        let mut queue = lock(&self.queue);
        if self.is_closed.load(Ordering::SeqCst) {
            return Err(work);
        }
        queue.push_back(work);
        drop(queue);
        self.shelf.bell.ring();
        Ok(())
    }

    /// The election of a batch that was wholly pulled.
    pub(super) fn wholly_pulled(&self, base: &Arc<Election>, writers: Writers) -> Arc<Election> {
        let mut kept = lock(&self.pulled);
        match &*kept {
            Some((from, of, made)) if Arc::ptr_eq(from, base) && *of == writers => made.clone(),
            _ => {
                let made = in_place(base, 1, 0, None, writers.note().into_iter().collect());
                *kept = Some((base.clone(), writers, made.clone()));
                made
            }
        }
    }

    /// Whether there is no work left and none will come.
    pub(super) fn is_done(&self) -> bool {
        let queue = lock(&self.queue);
        queue.is_empty() && self.is_closed.load(Ordering::SeqCst)
    }

    /// From now on nothing is taken; what waits fails.
    pub(super) fn close(&self, error: &Error) {
        let mut queue = lock(&self.queue);
        self.is_closed.store(true, Ordering::SeqCst);
        let works = std::mem::take(&mut *queue);
        drop(queue);
        for work in works {
            match work {
                Work::Job(job) => job.refuse(error),
                Work::Watch(flight) => flight.finish(),
                Work::Changed(pull) => pull.job.refuse(error),
            }
        }
        for request in lock(&self.requests).drain(..) {
            request.pinned.put_off(request.window, Reason::new("nobody registers pages any more"));
        }
    }

    /// Queues a window to be registered.
    pub(super) fn register(&self, request: Request) {
        if self.is_closed.load(Ordering::SeqCst) {
            // A map that outlives its session finds nobody to register for it.
            return request.pinned.set_failed(request.window, Some(Reason::new("the session was closed")));
        }
        lock(&self.requests).push_back(request);
        self.shelf.bell.ring();
    }

    pub(super) fn next_request(&self) -> Option<Request> {
        lock(&self.requests).pop_front()
    }

    /// Puts off windows that were asked for before it showed that registering is slow there. Whether there were any.
    pub(super) fn reconsider(&self) -> bool {
        let mut requests = lock(&self.requests);
        if requests.front().is_none_or(|first| self.shelf.reconsider(first).is_none()) {
            return false;
        }
        let (spare, others): (VecDeque<_>, VecDeque<_>) =
            requests.drain(..).partition(|request| self.shelf.reconsider(request).is_some());
        *requests = others;
        drop(requests);
        for request in spare {
            if let Some(reason) = self.shelf.reconsider(&request) {
                request.pinned.put_off(request.window, reason);
            } else {
                // Somebody registered a window faster since.
                self.register(request);
            }
        }
        true
    }

    /// Nobody waits for this file's windows any more: those that are not registered yet will not be, and the others are
    /// let go.
    pub(super) fn give_up(&self, pinned: &Arc<Pinned>) {
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
    pub(super) fn put_off(&self, request: Request, reason: &Reason) {
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

    /// Leaves the puller here while its thread registers a window. Gives what [`Shared::unpark`] takes it back by.
    pub(super) fn park(&self, puller: Box<Puller>, request: &Request) -> Instant {
        let (pinned, window, since) = (request.pinned.clone(), request.window, Instant::now());
        let mount = pinned.version().device;
        *lock(&self.parked) = Some(Parked { since, puller, pinned, window, mount });
        since
    }

    /// The puller that was parked then. `None` if another thread has gone on with it, even if that has parked it again.
    pub(super) fn unpark(&self, since: Instant) -> Option<Box<Puller>> {
        lock(&self.parked).take_if(|parked| parked.since == since).map(|parked| parked.puller)
    }

    /// Takes the puller away from a thread that has been in the driver for too long, and lets another one go on.
    fn rescue(self: &Arc<Self>) {
        // Held until the new thread is in it: whoever ends the engine must not wait for the old one.
        let mut thread = lock(&self.puller);
        let mut parked = lock(&self.parked);
        if parked.as_ref().is_none_or(|parked| parked.since.elapsed() < PATIENCE) {
            return;
        }
        let Some(Parked { puller, pinned, window, mount, .. }) = parked.take() else { return };
        drop(parked);
        let text = format!("registering its pages did not end within {} s", PATIENCE.as_secs());
        let reason = Reason::new(text);
        eligibility::refuse(self.shelf.device.as_ref(), mount, pinned.access, reason.clone());
        pinned.set_failed(window, Some(reason.clone()));
        for request in lock(&self.requests).drain(..) {
            if request.pinned.version().device == mount {
                request.pinned.set_failed(request.window, Some(reason.clone()));
            } else {
                request.pinned.put_off(request.window, reason.clone());
            }
        }
        let shelf = self.shelf.clone();
        let name = format!("forebay-{}-pull", shelf.device.info().index);
        let started = threads::spawn(name, move || {
            Puller::settle_in(&shelf);
            puller.run();
        });
        // Without a thread the puller is dropped, which fails its transfers. The thread that hangs is left alone.
        *thread = started.ok();
    }

    /// Ends the threads when what is queued is done.
    pub(super) fn shut_down(&self) {
        {
            let _queue = lock(&self.queue);
            self.is_closed.store(true, Ordering::SeqCst);
        }
        self.shelf.bell.ring();
        // A puller that hangs in the driver is replaced by the keeper, which still runs.
        while lock(&self.parked).is_some() {
            std::thread::sleep(Duration::from_millis(1));
        }
        join(&self.puller);
        for request in lock(&self.requests).drain(..) {
            request.pinned.put_off(request.window, Reason::new("the session was closed"));
        }
        self.shelf.release(None);
        self.keeper_stops.store(true, Ordering::SeqCst);
        self.shelf.reaper.close();
        join(&self.keeper);
    }
}

fn join(thread: &Mutex<Option<JoinHandle<()>>>) {
    let thread = lock(thread).take();
    if let Some(thread) = thread {
        // A thread that panicked has failed its transfers already.
        let _ = thread.join();
    }
}

/// Starts the puller and the keeper.
pub(super) fn start(shared: &Arc<Shared>) -> Result<()> {
    let index = shared.shelf.device.info().index;
    let spawn = |name: &str, body: Box<dyn FnOnce() + Send>| {
        threads::spawn(format!("forebay-{index}-{name}"), body)
            .map_err(|error| Error::from_io(&error, "cannot start a thread for the mapped engine"))
    };
    let (tell, told) = channel();
    let here = shared.clone();
    let puller = spawn(
        "pull",
        Box::new(move || {
            Puller::settle_in(&here.shelf);
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
    let keeper = spawn("keep", Box::new(move || reclaimer::run(&shelf, &stop, &rescue)))?;
    *lock(&shared.keeper) = Some(keeper);
    Ok(())
}

/// Whether what was moved is the file's: it is still in the state that it was in before.
pub(super) fn still_is(batch: &Batch, pinned: &Arc<Pinned>, version: &FileVersion) -> bool {
    let Fill::Descriptor(file) = batch.file.source().fill() else { return false };
    let fd = file.buffered.as_raw_fd();
    match batch.direction {
        Direction::Read => FileVersion::of(fd).is_ok_and(|now| now == *version),
        Direction::Write => pinned.touch(fd).is_some(),
    }
}

/// The file has changed. If it was not this process that wrote it in place, its pages are forgotten.
pub(super) fn note_change(shelf: &Shelf, file: &Descriptors, pinned: &Arc<Pinned>) {
    if !pinned.compare(file.buffered.as_raw_fd()).is_ok_and(|(_, same)| same) {
        shelf.discard(pinned);
    }
}

/// Why a batch is refused that comes after the end.
pub(super) fn closed() -> Error {
    Error::new(ErrorKind::Cancelled, "the session was closed before the stream got here")
}
