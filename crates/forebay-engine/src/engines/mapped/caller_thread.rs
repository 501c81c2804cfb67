//! Small batches whose pages are all pinned: the caller's own thread starts the one kernel, and whoever looks at the
//! ticket sees it land. No other thread has to wake up.

use std::collections::VecDeque;
use std::hint::spin_loop;
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, TryLockError};
use std::thread::sleep;
use std::time::{Duration, Instant};

use forebay_config::{CachePolicy, Objective, allowed_cpus};
use forebay_error::Result;
use forebay_gpu::{Context, Device, Event, Stream, Wait};

use super::list::{List, Written};
use super::pin::Pin;
use super::route::{inside, windows_of};
use super::shared::{Shared, Work};
use super::transfer::{Pull, PullJob};
use super::window::Pinned;
use super::{Mapped, SMALLEST_FILE, grounds_refuse};
use crate::engines::permission::Permission;
use crate::io::plan::{CELL, Part};
use crate::request::ticket::CallerPolled;
use crate::request::transfer::Batch;
use crate::runtime::fork::Birth;
use crate::runtime::lock::lock;
use crate::source::piece::Direction;
use crate::source::version::FileVersion;
use crate::source::{Descriptors, Fill};

/// Batches in flight at once on one device: more go through the puller.
const DESKS: usize = 64;
/// Pieces of one batch at most.
const PIECES: usize = 1024;
/// Bytes of one batch at most.
const BYTES: usize = 4 << 20;
/// How long a waiter polls before it sleeps: such a batch takes less.
const POLL: Duration = Duration::from_micros(50);
/// Waiters at once that may poll: more would fight over the driver's lock with those that start batches.
const FEW: usize = 2;
/// The shortest and the longest sleep between looks.
const NAPS: (Duration, Duration) = (Duration::from_micros(20), Duration::from_millis(1));

/// What a thread needs to start a batch by itself.
struct Desk {
    list: List,
    stream: Box<dyn Stream>,
    event: Box<dyn Event>,
    /// For each window the last visit that asked for it.
    seen: Vec<u32>,
    visit: u32,
}

impl Desk {
    fn new(device: &Arc<dyn Device>) -> Result<Self> {
        let stream = device.stream(Context::PRIMARY)?;
        let event = stream.event()?;
        Ok(Self { list: List::new(device, PIECES)?, stream, event, seen: Vec::new(), visit: 0 })
    }

    /// A new visit: no window of so many has been asked for.
    fn begin(&mut self, windows: usize) {
        self.visit = self.visit.wrapping_add(1);
        if self.visit == 0 {
            self.seen.clear();
            self.visit = 1;
        }
        if self.seen.len() < windows {
            self.seen.resize(windows, 0);
        }
    }

    /// Whether this visit asks for the window for the first time.
    fn is_new(&mut self, window: usize) -> bool {
        std::mem::replace(&mut self.seen[window], self.visit) != self.visit
    }
}

/// The desks of one device.
pub(super) struct Desks {
    free: Mutex<Vec<Desk>>,
    made: AtomicUsize,
    /// Threads that wait for a flight right now.
    waiting: AtomicUsize,
    /// Kernels have been loaded. (That waits for all streams: nothing for a caller's thread.)
    may_gather: AtomicBool,
    /// CPUs that this process may run on.
    cpus: usize,
}

impl Desks {
    pub(super) fn new() -> Self {
        Self {
            free: Mutex::default(),
            made: AtomicUsize::new(0),
            waiting: AtomicUsize::new(0),
            may_gather: AtomicBool::new(false),
            cpus: allowed_cpus(),
        }
    }

    /// Whether kernels run here.
    pub(super) fn allow(&self, can_gather: bool) {
        self.may_gather.store(can_gather, Ordering::Release);
    }

    fn borrow(&self, device: &Arc<dyn Device>) -> Option<Desk> {
        if let Some(desk) = lock(&self.free).pop() {
            return Some(desk);
        }
        if self.made.fetch_add(1, Ordering::Relaxed) < DESKS
            && let Ok(desk) = Desk::new(device)
        {
            return Some(desk);
        }
        self.made.fetch_sub(1, Ordering::Relaxed);
        None
    }

    fn give_back(&self, desk: Desk) {
        lock(&self.free).push(desk);
    }

    /// Something failed on it: what it still has to do is waited for, and it is not used again.
    fn discard(&self, desk: Desk) {
        // Where the device is broken this fails at once, and nothing is under way.
        let _ = desk.stream.synchronize(Wait::Block);
        drop(desk);
        self.made.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A batch with all that it needs to be started here.
pub(crate) struct Boarding {
    desk: Desk,
    pinned: Arc<Pinned>,
    version: FileVersion,
    pins: Vec<Arc<Pin>>,
    cuts: Vec<(u32, u64)>,
    written: Written,
}

impl Mapped {
    /// Whether the caller's thread can start this batch: all of its pages are pinned, and a desk is free.
    pub(crate) fn board(&self, batch: &Batch) -> Option<Boarding> {
        let shared = &self.shared;
        if batch.direction == Direction::Write
            || batch.memory.context != Context::PRIMARY
            || shared.shelf.is_empty()
            || matches!(shared.mode, Permission::Never(_))
            || !shared.desks.may_gather.load(Ordering::Acquire)
        {
            return None;
        }
        let Fill::Descriptor(file) = batch.file.source().fill() else { return None };
        let bytes = small_bytes(batch)?;
        if shared.stage.policy(&batch.file) == CachePolicy::Bypass || grounds_refuse(&shared.shelf, file) {
            return None;
        }
        let (version, pinned) = shared.shelf.look_up(file.buffered.as_raw_fd()).ok()?;
        let pinned = pinned.filter(|_| !file.is_strange(&version))?;
        if version.len < SMALLEST_FILE && shared.mode == Permission::Auto {
            return None;
        }
        let mut desk = shared.desks.borrow(&shared.shelf.device)?;
        let Some((pins, cuts)) = self.pins_of_all(batch, &pinned, version.len, &mut desk) else {
            shared.desks.give_back(desk);
            return None;
        };
        if !shared.shelf.has_kept(&pinned, batch, version.len) {
            shared.desks.give_back(desk);
            return None;
        }
        note_use(batch, file, &pinned, bytes);
        let written = desk.list.write(batch, 0..batch.pieces.len() as u32, &pinned, version.len);
        Some(Boarding { desk, pinned, version, pins, cuts, written })
    }

    /// The pins of all windows that a batch touches, if they are all there; and the entries that the end of the file
    /// cuts.
    #[allow(clippy::type_complexity, reason = "two plain lists")]
    fn pins_of_all(
        &self,
        batch: &Batch,
        pinned: &Pinned,
        len: u64,
        desk: &mut Desk,
    ) -> Option<(Vec<Arc<Pin>>, Vec<(u32, u64)>)> {
        let use_pin = self.shared.shelf.user(pinned);
        let windows = pinned.windows();
        let (mut pins, mut cuts) = (Vec::with_capacity(windows.min(batch.pieces.len() + 1)), Vec::new());
        desk.begin(windows);
        for (entry, piece) in batch.pieces.iter().enumerate() {
            let (start, end) = inside(piece, len);
            if end - start < piece.len as u64 {
                cuts.push((entry as u32, end - start));
            }
            for window in windows_of(start, end) {
                if desk.is_new(window) {
                    pins.push(use_pin(window)?);
                }
            }
        }
        Some((pins, cuts))
    }

    /// Starts it. What cannot start has failed in its completion by then.
    pub(crate) fn depart(&self, boarding: Boarding, job: PullJob) -> Option<Arc<Driven>> {
        let Boarding { desk, pinned, version, pins, cuts, written } = boarding;
        let all = Part::Entries { first: 0, last: job.batch.pieces.len() as u32 };
        let mut pull = Pull {
            job,
            pinned,
            version,
            todo: VecDeque::new(),
            pulled: vec![all],
            pins,
            in_flight: 0,
            bytes: written.bytes,
            error: None,
            rest: Vec::new(),
            rest_bytes: 0,
            reason: None,
            cuts,
            left_out: Vec::new(),
        };
        let queued = match written.longest {
            0 => Ok(()),
            // SAFETY: the flight holds the pins of all windows, and the list, until it has landed; the submitter
            // vouched for its memory.
            longest => unsafe { desk.stream.scatter(desk.list.reach(), written.count, longest) },
        };
        match queued.and_then(|()| desk.stream.record(desk.event.as_ref())) {
            Ok(()) => Some(Arc::new(Driven::new(&self.shared, Cargo { desk, pull }))),
            Err(error) => {
                pull.fail(error);
                // It may have been queued all the same.
                self.shared.desks.discard(desk);
                let redo = pull.conclude(&self.shared, true);
                debug_assert!(redo.is_none(), "it has failed");
                None
            }
        }
    }
}

/// The bytes of a batch of small pieces, if it is small itself.
fn small_bytes(batch: &Batch) -> Option<usize> {
    if batch.pieces.len() > PIECES {
        return None;
    }
    let mut bytes = 0;
    for piece in &batch.pieces {
        if piece.len > CELL {
            return None;
        }
        bytes += piece.len;
    }
    (bytes <= BYTES).then_some(bytes)
}

/// The file is in use, by this source.
fn note_use(batch: &Batch, file: &Descriptors, pinned: &Pinned, bytes: usize) {
    pinned.set_owner(batch.file.source());
    file.demand.fetch_add(bytes as u64, Ordering::Relaxed);
}

/// A batch in the air that lands when somebody looks: its ticket, or the puller for who has turned away.
pub(crate) struct Driven {
    shared: Arc<Shared>,
    started: Instant,
    birth: Birth,
    /// Whoever sees it land takes the cargo.
    cargo: Mutex<Option<Cargo>>,
    has_landed: AtomicBool,
    /// The puller looks at it too.
    is_watched: AtomicBool,
}

/// What a flight holds until it has landed.
struct Cargo {
    desk: Desk,
    pull: Pull,
}

impl Driven {
    fn new(shared: &Arc<Shared>, cargo: Cargo) -> Self {
        Self {
            shared: shared.clone(),
            started: Instant::now(),
            birth: Birth::here(),
            cargo: Mutex::new(Some(cargo)),
            has_landed: AtomicBool::new(false),
            is_watched: AtomicBool::new(false),
        }
    }

    fn wait_by(&self, poll: Duration, deadline: Option<Instant>) -> bool {
        const SPINS: usize = 8;
        let begun = Instant::now();
        let mut slack = None;
        while !self.look() {
            let now = Instant::now();
            if deadline.is_some_and(|deadline| now >= deadline) {
                return false;
            }
            if now - begun < poll {
                (0..SPINS).for_each(|_| spin_loop());
                continue;
            }
            slack.get_or_insert_with(Precise::new);
            let left = deadline.map_or(NAPS.1, |deadline| deadline - now);
            sleep(self.nap().min(left));
        }
        true
    }

    /// How long one of so many waiters polls.
    fn poll_time(&self, waiters: usize) -> Duration {
        match self.shared.objective {
            Objective::Latency => Duration::MAX,
            Objective::Throughput if waiters <= FEW && self.shared.desks.cpus > 1 => POLL,
            Objective::Throughput | Objective::Cpu => Duration::ZERO,
        }
    }

    /// How long to sleep before the next look: an eighth of the time that it has been in the air.
    pub(super) fn nap(&self) -> Duration {
        (self.started.elapsed() / 8).clamp(NAPS.0, NAPS.1)
    }

    /// Waits until it has landed, or somebody else has seen it land.
    pub(super) fn finish(&self) {
        let Some(cargo) = lock(&self.cargo).take() else { return };
        self.has_landed.store(true, Ordering::Release);
        let done = if self.birth.is_elsewhere() { Ok(()) } else { cargo.desk.event.wait(Wait::Block) };
        self.land(cargo, done);
    }

    /// What the puller does where one of its own has landed.
    fn land(&self, Cargo { desk, mut pull }: Cargo, done: Result<()>) {
        if self.birth.is_elsewhere() {
            return abandon(desk, pull);
        }
        let desks = &self.shared.desks;
        match done {
            Ok(()) => desks.give_back(desk),
            Err(error) => {
                pull.fail(error);
                desks.discard(desk);
            }
        }
        if pull.error.is_some() || pull.is_good() {
            let redo = pull.conclude(&self.shared, true);
            debug_assert!(redo.is_none(), "it is good, or has failed");
            return;
        }
        // To read it again takes its time, which who only looks does not have.
        if let Err(Work::Changed(pull)) = self.shared.hand_over(Work::Changed(Box::new(pull)))
            && let Some(redo) = pull.conclude(&self.shared, false)
        {
            redo.finish(&self.shared);
        }
    }
}

impl CallerPolled for Driven {
    fn has_landed(&self) -> bool {
        self.has_landed.load(Ordering::Acquire)
    }

    fn look(&self) -> bool {
        if self.has_landed() {
            return true;
        }
        let mut held = match self.cargo.try_lock() {
            Ok(held) => held,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return false,
        };
        let Some(cargo) = &*held else { return true };
        let done = if self.birth.is_elsewhere() { Ok(true) } else { cargo.desk.event.is_done() };
        if matches!(done, Ok(false)) {
            return false;
        }
        let cargo = held.take();
        self.has_landed.store(true, Ordering::Release);
        drop(held);
        if let Some(cargo) = cargo {
            self.land(cargo, done.map(drop));
        }
        true
    }

    fn wait(&self, deadline: Option<Instant>) -> bool {
        if self.look() {
            return true;
        }
        if deadline.is_none() && self.shared.objective == Objective::Cpu {
            self.finish();
            return true;
        }
        let waiting = &self.shared.desks.waiting;
        let poll = self.poll_time(waiting.fetch_add(1, Ordering::Relaxed) + 1);
        let landed = self.wait_by(poll, deadline);
        waiting.fetch_sub(1, Ordering::Relaxed);
        landed
    }

    fn watch(self: Arc<Self>) {
        if self.look() || self.is_watched.swap(true, Ordering::AcqRel) {
            return;
        }
        if self.shared.hand_over(Work::Watch(self.clone())).is_err() {
            self.finish();
        }
    }
}

/// In a forked child: the parent's GPU is not here, and its pages are not ours to let go of.
fn abandon(desk: Desk, pull: Pull) {
    // Its ticket sees by itself where it is.
    std::mem::forget((desk, pull));
}

/// The thread's sleeps are exact while this lives: its timer slack (50 µs, as a rule) is put aside.
struct Precise(i32);

impl Precise {
    fn new() -> Self {
        // SAFETY: no pointers are passed; the slack is the thread's own.
        unsafe {
            let slack = libc::prctl(libc::PR_GET_TIMERSLACK, 0, 0, 0, 0);
            libc::prctl(libc::PR_SET_TIMERSLACK, 1, 0, 0, 0);
            Self(slack)
        }
    }
}

impl Drop for Precise {
    fn drop(&mut self) {
        // SAFETY: as above.
        unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, self.0.max(1), 0, 0, 0) };
    }
}
