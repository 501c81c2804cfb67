//! Streams: a queue and a thread each, which works late and in order.
//!
//! A real GPU has a few hardware connections, and streams share them: each connection does its work strictly in the
//! order of submission, whatever stream it is of. `FAKE_CUDA_CONNECTIONS` says how many there are; without it each
//! stream has one of its own.

use std::collections::VecDeque;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, LazyLock, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::environment::{self, number};
use crate::result::{Answer, UNKNOWN, new_handle};

/// The greatest delay before a piece of work, unless set otherwise.
const DELAY_US: u64 = 20;

/// The delay of work on default streams, beside that of any work.
static DEFAULT_STREAM_DELAY: LazyLock<AtomicU64> =
    LazyLock::new(|| AtomicU64::new(number("FAKE_CUDA_DEFAULT_STREAM_DELAY_US", 0)));

static DELAY: LazyLock<AtomicU64> = LazyLock::new(|| AtomicU64::new(number("FAKE_CUDA_DELAY_US", DELAY_US)));

/// Sets the greatest delay; `None` sets it back to what the environment says.
pub(crate) fn set_delay(micros: Option<u64>) {
    DELAY.store(micros.unwrap_or_else(|| number("FAKE_CUDA_DELAY_US", DELAY_US)), Ordering::Relaxed);
}

/// Sets the delay of work on default streams; `None` sets it back to what the environment says.
pub(crate) fn set_default_stream_delay(micros: Option<u64>) {
    let micros = micros.unwrap_or_else(|| number("FAKE_CUDA_DEFAULT_STREAM_DELAY_US", 0));
    DEFAULT_STREAM_DELAY.store(micros, Ordering::Relaxed);
}

/// A piece of work.
pub(crate) type Work = Box<dyn FnOnce() + Send>;

/// Work that waits in a stream.
struct QueuedWork {
    /// Its place in the stream's connection.
    place: u64,
    work: Work,
}

/// A hardware connection: who is next.
#[derive(Default)]
struct HardwareConnection {
    /// Places given out, and the first one that is not done.
    line: Mutex<(u64, u64)>,
    moved: Condvar,
}

impl HardwareConnection {
    /// The connection of a new stream, if their number is limited.
    fn next() -> Option<Arc<Self>> {
        static ALL: LazyLock<Vec<Arc<HardwareConnection>>> = LazyLock::new(|| {
            let count = ["FAKE_CUDA_CONNECTIONS", "CUDA_DEVICE_MAX_CONNECTIONS"]
                .into_iter()
                .map(|name| number(name, 0))
                .find(|count| *count > 0);
            (0..count.unwrap_or(0)).map(|_| Arc::default()).collect()
        });
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        if ALL.is_empty() {
            return None;
        }
        Some(ALL[NEXT.fetch_add(1, Ordering::Relaxed) % ALL.len()].clone())
    }

    fn line(&self) -> MutexGuard<'_, (u64, u64)> {
        self.line.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn queue_up(&self) -> u64 {
        let mut line = self.line();
        line.0 += 1;
        line.0 - 1
    }

    fn wait_for_turn(&self, place: u64) {
        drop(
            self.moved
                .wait_while(self.line(), |line| line.1 != place)
                .unwrap_or_else(PoisonError::into_inner),
        );
    }

    fn leave(&self) {
        self.line().1 += 1;
        self.moved.notify_all();
    }
}

#[derive(Default)]
struct WorkQueue {
    work: VecDeque<QueuedWork>,
    submitted: u64,
    completed: u64,
    closed: bool,
}

/// How a stream stands to its context's legacy default stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StreamOrder {
    /// It is that stream: waits for all blocking ones, and they for it.
    Legacy,
    Blocking,
    /// A thread's default stream: a blocking one.
    PerThread,
    NonBlocking,
}

impl StreamOrder {
    /// The legacy stream and it wait for each other.
    pub(crate) fn is_blocking(self) -> bool {
        matches!(self, Self::Blocking | Self::PerThread)
    }

    fn is_default(self) -> bool {
        matches!(self, Self::Legacy | Self::PerThread)
    }
}

pub(crate) struct FakeStream {
    pub(crate) handle: u64,
    pub(crate) context: u64,
    pub(crate) gpu: usize,
    pub(crate) order: StreamOrder,
    /// No other stream ever has the same; handles are used again (in the real driver).
    pub(crate) id: u64,
    connection: Option<Arc<HardwareConnection>>,
    queue: Mutex<WorkQueue>,
    /// Signalled when work arrives and when work is done.
    changed: Condvar,
}

impl fmt::Debug for FakeStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Stream({:#x})", self.handle)
    }
}

impl FakeStream {
    /// Starts a stream and its thread.
    pub(crate) fn start(context: u64, gpu: usize, order: StreamOrder) -> Answer<Arc<Self>> {
        let handle = new_handle();
        let (id, connection) = ((handle / 0x10) & 0xFFFF_FFFF, HardwareConnection::next());
        let (queue, changed) = (Mutex::default(), Condvar::new());
        let stream = Arc::new(Self { handle, context, gpu, order, id, connection, queue, changed });
        let worker = stream.clone();
        let name = format!("fake-stream-{:x}", handle & 0xFFFF);
        std::thread::Builder::new().name(name).spawn(move || worker.work()).map_err(|_| UNKNOWN)?;
        Ok(stream)
    }

    fn lock(&self) -> MutexGuard<'_, WorkQueue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait<'a>(&self, queue: MutexGuard<'a, WorkQueue>) -> MutexGuard<'a, WorkQueue> {
        self.changed.wait(queue).unwrap_or_else(PoisonError::into_inner)
    }

    /// Queues work.
    pub(crate) fn enqueue(&self, work: Work) {
        let mut queue = self.lock();
        queue.submitted += 1;
        // Taken under the stream's lock, so that places are in the stream's order.
        let place = self.connection.as_ref().map_or(0, |connection| connection.queue_up());
        queue.work.push_back(QueuedWork { place, work });
        self.changed.notify_all();
    }

    /// Names all that is queued so far.
    pub(crate) fn mark(&self) -> u64 {
        self.lock().submitted
    }

    pub(crate) fn is_done(&self, mark: u64) -> bool {
        self.lock().completed >= mark
    }

    pub(crate) fn wait_for(&self, mark: u64) {
        let mut queue = self.lock();
        while queue.completed < mark {
            queue = self.wait(queue);
        }
    }

    /// Waits for all that is queued so far.
    pub(crate) fn drain(&self) {
        self.wait_for(self.mark());
    }

    /// Lets the thread end after the queued work.
    pub(crate) fn close(&self) {
        self.lock().closed = true;
        self.changed.notify_all();
    }

    fn work(&self) {
        environment::take_cpu();
        let mut random = self.handle | 1;
        loop {
            let QueuedWork { place, work } = {
                let mut queue = self.lock();
                loop {
                    if let Some(work) = queue.work.pop_front() {
                        break work;
                    }
                    if queue.closed {
                        return;
                    }
                    queue = self.wait(queue);
                }
            };
            sleep_a_little(&mut random);
            if self.order.is_default() {
                std::thread::sleep(Duration::from_micros(DEFAULT_STREAM_DELAY.load(Ordering::Relaxed)));
            }
            if let Some(connection) = &self.connection {
                connection.wait_for_turn(place);
            }
            work();
            if let Some(connection) = &self.connection {
                connection.leave();
            }
            self.lock().completed += 1;
            self.changed.notify_all();
        }
    }
}

fn sleep_a_little(random: &mut u64) {
    let greatest = DELAY.load(Ordering::Relaxed);
    if greatest == 0 {
        return;
    }
    *random ^= *random << 13;
    *random ^= *random >> 7;
    *random ^= *random << 17;
    std::thread::sleep(Duration::from_micros(*random % (greatest + 1)));
}

#[derive(Debug)]
pub(crate) struct FakeEvent {
    pub(crate) context: u64,
    pub(crate) gpu: usize,
    /// Recorded in a stream under capture: cannot be waited for.
    pub(crate) captured: AtomicBool,
    mark: Mutex<Option<(Arc<FakeStream>, u64)>>,
}

impl FakeEvent {
    pub(crate) fn new(context: u64, gpu: usize) -> Self {
        Self { context, gpu, captured: AtomicBool::new(false), mark: Mutex::default() }
    }

    /// Marks the work of `stream` up to `mark`.
    pub(crate) fn set(&self, stream: &Arc<FakeStream>, mark: u64) {
        *self.mark.lock().unwrap_or_else(PoisonError::into_inner) = Some((stream.clone(), mark));
    }

    /// The stream and the work that it waits for; `None` if it was never recorded.
    pub(crate) fn mark(&self) -> Option<(Arc<FakeStream>, u64)> {
        self.mark.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}
