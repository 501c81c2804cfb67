//! Shared between the engine's threads and its callers: the pin cache, work for the copy thread, windows to register.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, LazyLock, Mutex};
use std::time::{Duration, Instant};

use forebay_config::{Config, Objective};
use forebay_error::{Error, ErrorKind};
use forebay_gpu::{Device, Wait};

use super::caller_thread::{BatchSlots, CallerPolledBatch};
use super::eligibility::Reason;
use super::pin_cache::PinCache;
use super::readers::Readers;
use super::registrar::{PinPolicy, PinRequest};
use super::transfer::{InPlaceTransfer, MappedJob};
use super::window::{PinnedFile, WindowAnswer};
use crate::engines::explain::{ElectionCache, Walk};
use crate::engines::permission::Permission;
use crate::engines::staged::Stage;
use crate::engines::staged::sync::Callers;
use crate::request::cancel::Cancel;
use crate::request::receipt::{Election, EngineKind, Note, ReceiptPart};
use crate::request::transfer::Batch;
use crate::runtime::lock;
use crate::runtime::wait;
use crate::source::writers::Writers;

/// Longest registration: one that takes longer is taken for hung.
pub(super) const REGISTER_LIMIT: Duration = Duration::from_secs(10);
/// Longest wait of a caller that needs registered pages, while another registration or unregistration is in the way.
const OBSTACLE_LIMIT: Duration = Duration::from_secs(3);

/// Shared between the engine's threads and its callers.
pub(crate) struct MappedState {
    pub(super) cache: Arc<PinCache>,
    pub(super) permission: Permission,
    pub(super) objective: Objective,
    pub(super) stage: Stage,
    /// Pinned lists, streams and events that callers borrow to start small batches themselves.
    pub(super) slots: BatchSlots,
    /// Elections of batches copied wholly in place.
    elections: ElectionCache,
    queue: Mutex<VecDeque<CopyWork>>,
    /// No more work is queued. The copy thread ends when the queue is empty.
    is_closed: AtomicBool,
    /// Windows to register at once: callers wait for them.
    requests: Mutex<VecDeque<PinRequest>>,
    /// Windows to register beside copies: nobody waits for them.
    background: Mutex<VecDeque<PinRequest>>,
    pub(super) callers: Arc<Callers>,
    pub(super) readers: Readers,
}

/// Work for the copy thread.
pub(super) enum CopyWork {
    /// A batch to copy.
    Job(MappedJob),
    /// A batch to poll: its caller turned away from it.
    Watch(Arc<CallerPolledBatch>),
    /// A transfer to repeat: the file changed meanwhile.
    Changed(Box<InPlaceTransfer>),
}

impl Cancel for MappedState {
    /// The copy thread finds out which batches were cancelled.
    fn cancel(&self) {
        self.cache.wake_queue.wake();
    }
}

impl MappedState {
    pub(super) fn new(
        device: Arc<dyn Device>,
        config: &Config,
        permission: Permission,
        stage: Stage,
        callers: Arc<Callers>,
    ) -> Self {
        Self {
            cache: Arc::new(PinCache::new(device, config)),
            permission,
            objective: config.objective,
            stage,
            slots: BatchSlots::new(),
            elections: ElectionCache::default(),
            queue: Mutex::default(),
            is_closed: AtomicBool::new(false),
            requests: Mutex::default(),
            background: Mutex::default(),
            callers,
            readers: Readers::default(),
        }
    }

    // ---- work for the copy thread -------------------------------------------------------------------------------

    /// The next work.
    pub(super) fn take(&self) -> Option<CopyWork> {
        lock(&self.queue).pop_front()
    }

    /// Queues a batch.
    pub(super) fn push(self: &Arc<Self>, job: MappedJob) {
        let this: Arc<dyn Cancel> = self.clone();
        job.completion.on_cancel(Arc::downgrade(&this));
        if let Err(CopyWork::Job(job)) = self.hand_over(CopyWork::Job(job)) {
            job.refuse(&closed());
        }
    }

    /// Queues work for the copy thread. Gives it back if that thread has ended.
    pub(super) fn hand_over(&self, work: CopyWork) -> std::result::Result<(), CopyWork> {
        let mut queue = lock(&self.queue);
        if self.is_closed.load(Ordering::SeqCst) {
            return Err(work);
        }
        queue.push_back(work);
        drop(queue);
        self.cache.wake_queue.wake();
        Ok(())
    }

    /// Whether no work is left and none will come.
    pub(super) fn is_done(&self) -> bool {
        let queue = lock(&self.queue);
        queue.is_empty() && self.is_closed.load(Ordering::SeqCst)
    }

    /// Takes no more work. Queued work is still done.
    pub(super) fn stop(&self) {
        {
            let _queue = lock(&self.queue);
            self.is_closed.store(true, Ordering::SeqCst);
        }
        self.cache.wake_queue.wake();
    }

    /// Takes no more work. Queued work fails.
    pub(super) fn close(&self, error: &Error) {
        let mut queue = lock(&self.queue);
        self.is_closed.store(true, Ordering::SeqCst);
        let works = std::mem::take(&mut *queue);
        drop(queue);
        for work in works {
            match work {
                CopyWork::Job(job) => job.refuse(error),
                CopyWork::Watch(batch) => batch.finish(),
                CopyWork::Changed(transfer) => transfer.job.refuse(error),
            }
        }
        self.drop_requests("nobody registers pages any more");
    }

    // ---- windows to register ------------------------------------------------------------------------------------

    /// Queues a window to be registered.
    pub(super) fn register(&self, request: PinRequest) {
        if self.is_closed.load(Ordering::SeqCst) {
            // A map that outlives its session finds nobody to register for it.
            return request.fail(Some(Reason::new("the session was closed")));
        }
        lock(if request.is_background() { &self.background } else { &self.requests }).push_back(request);
        self.cache.wake_queue.wake();
    }

    pub(super) fn next_request(&self) -> Option<PinRequest> {
        lock(&self.requests).pop_front()
    }

    /// Whether windows are to be registered that readers pay for.
    pub(super) fn has_paid(&self) -> bool {
        lock(&self.requests).iter().any(|request| request.terms.policy == PinPolicy::Paid)
    }

    /// The next window to register in the background.
    pub(super) fn next_background(&self) -> Option<PinRequest> {
        lock(&self.background).pop_front()
    }

    /// Whether any window is to be registered in the background.
    pub(super) fn has_background(&self) -> bool {
        !lock(&self.background).is_empty()
    }

    /// Drops the background request for a window that a caller waits for by now. Returns whether there was one.
    pub(super) fn take_over(&self, request: &PinRequest) -> bool {
        let mut background = lock(&self.background);
        let before = background.len();
        background
            .retain(|other| !Arc::ptr_eq(&other.pinned, &request.pinned) || other.window != request.window);
        background.len() < before
    }

    /// Puts a window that was registered in part back to the front.
    pub(super) fn put_back(&self, request: PinRequest) {
        lock(if request.is_background() { &self.background } else { &self.requests }).push_front(request);
    }

    /// Whether lanes or callers copy. A registration would keep their copies from starting.
    pub(super) fn others_copy(&self) -> bool {
        self.stage.is_busy() || self.callers.are_busy()
    }

    /// Whether other readers copy than one that asks for one large range after the other.
    pub(super) fn has_other_readers(&self) -> bool {
        self.callers.are_busy() || self.readers.are_several()
    }

    /// Remembers the rate at which lanes bring a batch's bytes.
    pub(super) fn note_lanes_pace(&self, batch: &Batch) {
        self.cache.lanes_pace.take(self.stage.rate(batch));
    }

    /// Whether a reader that waits for a registration would keep other readers or copies waiting.
    pub(super) fn has_others(&self) -> bool {
        self.others_copy() || self.readers.are_several()
    }

    /// Takes out the windows to register that `is_chosen` picks.
    fn take_requests(&self, is_chosen: impl FnMut(&PinRequest) -> bool) -> VecDeque<PinRequest> {
        let mut requests = lock(&self.requests);
        let (chosen, others) = requests.drain(..).partition(is_chosen);
        *requests = others;
        chosen
    }

    /// Puts off all windows to register.
    pub(super) fn drop_requests(&self, why: &str) {
        for request in self.all_requests() {
            request.put_off(Reason::new(why));
        }
    }

    fn all_requests(&self) -> impl Iterator<Item = PinRequest> {
        std::mem::take(&mut *lock(&self.requests))
            .into_iter()
            .chain(std::mem::take(&mut *lock(&self.background)))
    }

    /// Fails all windows of a file system on which registering hangs, and puts off those of others.
    pub(super) fn fail_requests(&self, mount: u64, reason: &Reason) {
        for request in self.all_requests() {
            if request.pinned.version().device == mount {
                request.fail(Some(reason.clone()));
            } else {
                request.put_off(reason.clone());
            }
        }
    }

    /// Puts off windows that were asked for before registering turned out to be slow there. Whether there were any.
    pub(super) fn reconsider(&self) -> bool {
        if lock(&self.requests).front().is_none_or(|first| self.cache.reconsider(first).is_none()) {
            return false;
        }
        for request in self.take_requests(|request| self.cache.reconsider(request).is_some()) {
            if let Some(reason) = self.cache.reconsider(&request) {
                request.pinned.put_off(request.window, reason);
            } else {
                // A window was registered faster since.
                self.register(request);
            }
        }
        true
    }

    /// Gives up a file's windows, which nobody waits for any more: takes back those to register, and releases the others.
    pub(super) fn give_up(&self, pinned: &Arc<PinnedFile>) {
        for request in self.take_requests(|request| Arc::ptr_eq(&request.pinned, pinned)) {
            request.pinned.set_failed(request.window, None);
        }
        let deadline = Instant::now() + REGISTER_LIMIT;
        while pinned.is_pending() && Instant::now() < deadline {
            self.cache.wake_queue.wait(self.cache.wake_queue.count(), Duration::from_millis(5));
        }
        pinned.release();
        self.cache.reclaimer.wait_for_all(REGISTER_LIMIT);
    }

    /// Puts off windows that cannot be registered now, so that lanes move their bytes. A caller that needs registered pages waits up
    /// to [`OBSTACLE_LIMIT`].
    pub(super) fn put_off(&self, request: PinRequest, reason: &Reason) {
        lock(&self.requests).push_front(request);
        let is_spare = |request: &PinRequest| {
            let answer = request.pinned.answer(request.window);
            request.terms.policy != PinPolicy::Always
                || !matches!(answer, WindowAnswer::Pending(since) if since.elapsed() < OBSTACLE_LIMIT)
        };
        for request in self.take_requests(is_spare) {
            request.pinned.put_off(request.window, reason.clone());
        }
    }

    /// How a thread waits for a copy of `len` bytes, by the objective.
    pub(super) fn copy_wait(&self, len: usize) -> Wait {
        match self.objective {
            Objective::Latency => Wait::Spin,
            Objective::Throughput => wait::nap(len),
            Objective::Cpu => Wait::Block,
        }
    }

    // ---- elections ----------------------------------------------------------------------------------------------

    /// The election of a batch that was copied wholly in place. All batches alike share it.
    pub(super) fn whole_election(&self, base: &Arc<Election>, writers: Writers) -> Arc<Election> {
        let mut walk = Walk::default();
        walk.record(EngineKind::Mapped, 1, None);
        walk.note(writers_note(writers).map(ReceiptPart::Always));
        self.elections.elect(base, &walk)
    }
}

/// The note of reads in place, by possible writers.
pub(super) fn writers_note(writers: Writers) -> Option<&'static Note> {
    static NOTES: LazyLock<[Option<Note>; Writers::ALL.len()]> =
        LazyLock::new(|| Writers::ALL.map(make_writers_note));
    NOTES[writers as usize].as_ref()
}

fn make_writers_note(writers: Writers) -> Option<Note> {
    let (why, hint) = match writers {
        Writers::Nobody => return None,
        Writers::Somebody => ("somebody has the file open for writing", None),
        Writers::Here => (
            "cannot tell whether a write to the file is in progress: it is open for writing here",
            Some("open it for reading only"),
        ),
        Writers::NotOwner => (
            "cannot tell whether a write to the file is in progress: the kernel tells only the file's owner",
            Some("run as the file's owner, or with CAP_LEASE"),
        ),
        Writers::Untold => {
            ("cannot tell whether a write to the file is in progress: the kernel does not say", None)
        }
    };
    let text = format!("{why}; its pages are checked before each read in place");
    Some(Note { text, hint: hint.map(str::to_owned) })
}

/// The election of a transfer that was divided between this engine and the lanes.
pub(crate) fn in_place(
    election: &Arc<Election>,
    copied: u64,
    rest: u64,
    reason: Option<Reason>,
    notes: Vec<Note>,
) -> Arc<Election> {
    let mut walk = Walk::default();
    walk.record(
        EngineKind::Mapped,
        copied,
        reason.map(|reason| ReceiptPart::Now(Arc::new(reason.refusal()))),
    );
    walk.record(election.engine.for_the_rest(), rest, None);
    let mut made = walk.elect(election);
    made.notes.extend(notes.into_iter().filter(|note| !election.notes.contains(note)));
    Arc::new(made)
}

/// The error of a batch that comes after the session was closed.
pub(super) fn closed() -> Error {
    Error::new(ErrorKind::Cancelled, "the session was closed before the stream got here")
}
