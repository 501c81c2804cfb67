//! The engine's threads: how they start, how a copy thread that hangs in the driver is replaced, and how they end.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::thread::{JoinHandle, sleep};
use std::time::{Duration, Instant};

use forebay_error::{Error, ErrorKind, Result};

use super::copy_thread::CopyThread;
use super::eligibility::{self, Reason};
use super::reclaimer::MemoryPressure;
use super::registrar::PinRequest;
use super::state::{MappedState, REGISTER_LIMIT};
use super::window::PinnedFile;
use crate::runtime::lock;
use forebay_sys::threads;

/// The engine's threads.
pub(super) struct EngineThreads {
    state: Arc<MappedState>,
    /// The copy thread's work, while that thread registers a window.
    parked: Mutex<Option<ParkedWork>>,
    copier: Mutex<Option<JoinHandle<()>>>,
    reclaimer: Mutex<Option<JoinHandle<()>>>,
    reclaimer_stops: AtomicBool,
}

/// The work of a copy thread that is in the driver.
struct ParkedWork {
    /// Also distinguishes it from threads parked later.
    since: Instant,
    copier: Box<CopyThread>,
    pinned: Arc<PinnedFile>,
    window: usize,
    /// The file system of the file that is being registered.
    mount: u64,
}

impl EngineThreads {
    pub(super) fn new(state: Arc<MappedState>) -> Self {
        Self {
            state,
            parked: Mutex::default(),
            copier: Mutex::default(),
            reclaimer: Mutex::default(),
            reclaimer_stops: AtomicBool::new(false),
        }
    }

    /// Starts the copy thread and the reclaimer.
    pub(super) fn start(state: &Arc<MappedState>) -> Result<Arc<Self>> {
        let made = Arc::new(Self::new(state.clone()));
        let (tell, told) = channel();
        let here = made.clone();
        let copier = made.spawn("copy", move || {
            CopyThread::prepare_thread(&here.state.cache);
            let copier = CopyThread::new(here.state.clone()).map(Box::new);
            let _ = tell.send(copier.as_ref().map(|_| ()).map_err(Error::clone));
            if let Ok(copier) = copier {
                here.run(copier);
            }
        })?;
        told.recv().unwrap_or_else(|_| {
            Err(Error::new(ErrorKind::Internal, "the copy thread died while it started"))
        })?;
        *lock(&made.copier) = Some(copier);
        state.cache.reclaimer.open();
        let here = made.clone();
        let reclaimer = made.spawn("unpin", move || here.reclaim())?;
        *lock(&made.reclaimer) = Some(reclaimer);
        Ok(made)
    }

    fn spawn(&self, name: &str, body: impl FnOnce() + Send + 'static) -> Result<JoinHandle<()>> {
        let index = self.state.cache.device.info().index;
        threads::spawn(format!("forebay-{index}-{name}"), body)
            .map_err(|error| Error::from_io(&error, "cannot start a thread for the mapped engine"))
    }

    /// The copy thread: works until a request to stop, and all work is done, or another thread has gone on with its
    /// work. Windows are registered while copies are in flight. Meanwhile the work is parked where the reclaimer finds
    /// it.
    fn run(&self, mut copier: Box<CopyThread>) {
        while let Some(request) = copier.work() {
            let since = self.park(copier, &request);
            let rest = self.state.cache.register(request);
            self.state.cache.wake_queue.wake();
            copier = match self.unpark(since) {
                Some(copier) => copier,
                None => return,
            };
            copier.registered(rest);
        }
    }

    /// Leaves the work here while its thread registers a window. The answer takes it back.
    pub(super) fn park(&self, copier: Box<CopyThread>, request: &PinRequest) -> Instant {
        let (pinned, window, since) = (request.pinned.clone(), request.window, Instant::now());
        let mount = pinned.version().device;
        *lock(&self.parked) = Some(ParkedWork { since, copier, pinned, window, mount });
        since
    }

    /// The work that was parked then. `None` if another thread has gone on with it, even if it is parked again.
    pub(super) fn unpark(&self, since: Instant) -> Option<Box<CopyThread>> {
        lock(&self.parked).take_if(|parked| parked.since == since).map(|parked| parked.copier)
    }

    /// Takes the work from a thread that has been in the driver for too long. Another thread goes on with it.
    fn rescue(self: &Arc<Self>) {
        // Held until the new thread is in it: the end of the engine must not wait for the old one.
        let mut thread = lock(&self.copier);
        let mut parked = lock(&self.parked);
        if parked.as_ref().is_none_or(|parked| parked.since.elapsed() < REGISTER_LIMIT) {
            return;
        }
        let Some(ParkedWork { copier, pinned, window, mount, .. }) = parked.take() else { return };
        drop(parked);
        let text = format!("registering its pages did not end within {} s", REGISTER_LIMIT.as_secs());
        let reason = Reason::new(text);
        eligibility::refuse(self.state.cache.device.as_ref(), mount, pinned.access, reason.clone());
        pinned.set_failed(window, Some(reason.clone()));
        self.state.fail_requests(mount, &reason);
        let here = self.clone();
        let started = self.spawn("copy", move || {
            CopyThread::prepare_thread(&here.state.cache);
            here.run(copier);
        });
        // Without a thread the work is dropped, which fails its transfers. The thread that hangs is left alone.
        *thread = started.ok();
    }

    /// The reclaimer's thread: unregisters unused windows, gives memory back when it runs short, and rescues
    /// the work of a copy thread that hangs.
    fn reclaim(self: &Arc<Self>) {
        let cache = &self.state.cache;
        cache.device.adopt_thread();
        let mut pressure = MemoryPressure::of_process();
        cache.reclaimer.run(&self.reclaimer_stops, || {
            self.rescue();
            cache.maintain(|| pressure.is_high());
        });
    }

    /// Ends the threads when the queued work is done.
    pub(super) fn shut_down(&self) {
        self.state.stop();
        // A copy thread that hangs in the driver is replaced by the reclaimer, which still runs.
        while lock(&self.parked).is_some() {
            sleep(Duration::from_millis(1));
        }
        join(&self.copier);
        self.state.drop_requests("the session was closed");
        self.state.cache.release(None);
        self.reclaimer_stops.store(true, Ordering::SeqCst);
        self.state.cache.reclaimer.close();
        join(&self.reclaimer);
    }
}

fn join(thread: &Mutex<Option<JoinHandle<()>>>) {
    let thread = lock(thread).take();
    if let Some(thread) = thread {
        // A thread that panicked has failed its transfers already.
        let _ = thread.join();
    }
}
