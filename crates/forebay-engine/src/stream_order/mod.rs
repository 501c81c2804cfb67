//! Transfers in the order of a user's stream.
//!
//! All that the device has to do is queued on the user's stream itself: for a read it writes a number into a word
//! (*here I am*), waits for a number in another word (*go on*), runs a kernel that copies from pinned memory by a list,
//! and writes the next number. A thread, the *stream server*, watches the words. It learns the range of the transfer when
//! the stream gets there, has the bytes brought into pinned memory, fills the list and lets the stream go on. Neither it
//! nor the threads that bring the bytes call the driver: whatever the number of waiting streams and of the hardware
//! connections that they share, a stream waits for the CPU alone.

mod completion;
mod file_work;
mod operation;
mod running;
mod staging_pool;
mod stream_state;
mod thread;

use std::collections::HashMap;
use std::mem::ManuallyDrop;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread::{JoinHandle, ThreadId};

use forebay_error::{Error, ErrorKind, Result};
use forebay_gpu::{Context, Device, Event, StreamIdentity};

pub(crate) use self::completion::OperationEnd;
use self::completion::StreamPlace;
use self::file_work::ServerInbox;
pub(crate) use self::file_work::{PullStart, StreamEngines};
pub use self::operation::{Bound, Late};
use self::operation::{Operation, OperationNumbers, posts};
pub(crate) use self::operation::{OperationRoute, ResultTarget, StreamRequest, bind};
use self::staging_pool::{StagingPool, StagingRing, sizes_for};
use self::stream_state::{StreamState, StreamTail};
use crate::runtime::lock;
use crate::runtime::traffic;
use crate::tuning::machine::MANY;
use forebay_sys::threads;

/// The handle that means another stream on each thread.
const PER_THREAD: u64 = 2;

/// Identifies a stream. Handles may come back; this does not.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct StreamKey {
    identity: StreamIdentity,
    thread: Option<ThreadId>,
}

/// What the server's thread shares with threads that queue operations.
struct ServerState {
    device: Arc<dyn Device>,
    inbox: Arc<ServerInbox>,
    /// Operations that the thread has not seen.
    submitted: Mutex<Vec<(Arc<StreamState>, Operation)>>,
    streams: Mutex<HashMap<StreamKey, Arc<StreamState>>>,
    /// Held while a stream's state is created.
    creating: Mutex<()>,
    pool: Mutex<StagingPool>,
    /// Events that were never recorded: a query of one tells whether its context is broken.
    health: Mutex<Vec<(Context, Arc<dyn Event>)>>,
    next: AtomicU64,
    closed: AtomicBool,
    /// Some stream may access our memory at any later time.
    tainted: AtomicBool,
}

/// Serves the streams of one device, for one session.
pub(crate) struct StreamServer {
    state: ManuallyDrop<Arc<ServerState>>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl ServerState {
    fn taint(&self) {
        self.tainted.store(true, Ordering::SeqCst);
    }

    /// An event of the context that is never recorded.
    fn health(
        &self,
        context: Context,
        make: impl FnOnce() -> Result<Box<dyn Event>>,
    ) -> Result<Arc<dyn Event>> {
        let mut all = lock(&self.health);
        if let Some((_, event)) = all.iter().find(|(known, _)| *known == context) {
            return Ok(event.clone());
        }
        let event: Arc<dyn Event> = Arc::from(make()?);
        all.push((context, event.clone()));
        Ok(event)
    }

    /// Locks the tail of a stream that has no operations, so that its memory can be taken.
    fn idle_tail(stream: &StreamState) -> Option<MutexGuard<'_, StreamTail>> {
        let tail = stream.tail.try_lock().ok()?;
        (stream.queued.load(Ordering::Acquire) == 0 && !tail.closed).then_some(tail)
    }

    /// A ring that takes this many bytes in few steps, or else the stream's own small buffer.
    fn ring(&self, stream: &StreamState, tail: &mut StreamTail, bytes: usize) -> Arc<StagingRing> {
        for size in sizes_for(bytes) {
            if let Some(ring) = tail.rings.iter().find(|ring| ring.is_of(size)) {
                return ring.clone();
            }
            let made = lock(&self.pool).ring(&self.device, size);
            if let Some(ring) = made.or_else(|| self.idle_ring(size)) {
                tail.rings.push(ring.clone());
                return ring;
            }
        }
        stream.memory.small.clone()
    }

    /// A ring of this size that an idle stream holds.
    fn idle_ring(&self, size: usize) -> Option<Arc<StagingRing>> {
        lock(&self.streams).values().find_map(|stream| {
            let mut tail = Self::idle_tail(stream)?;
            let at = tail.rings.iter().position(|ring| ring.is_of(size))?;
            Some(tail.rings.swap_remove(at))
        })
    }

    /// Forgets idle streams: the driver does not tell when one is destroyed.
    fn retire_idle(&self) {
        let mut streams = lock(&self.streams);
        if streams.len() < 2 * MANY {
            return;
        }
        let mut pool = lock(&self.pool);
        streams.retain(|_, stream| {
            let Some(mut tail) = Self::idle_tail(stream) else { return true };
            tail.closed = true;
            tail.rings.drain(..).for_each(|ring| pool.give_ring(ring));
            pool.give_memory(stream.memory.again(tail.next));
            false
        });
    }

    /// The state of a stream.
    ///
    /// # Safety
    /// `handle` is a live stream of the device.
    unsafe fn stream(&self, key: &StreamKey, handle: u64) -> Result<Arc<StreamState>> {
        let known = || lock(&self.streams).get(key).cloned();
        if let Some(stream) = known() {
            return Ok(stream);
        }
        let _one_at_a_time = lock(&self.creating);
        if let Some(stream) = known() {
            return Ok(stream);
        }
        self.retire_idle();
        let context = key.identity.context;
        // SAFETY: the caller vouches for the stream.
        let driver_stream = unsafe { self.device.foreign_stream(handle) }?;
        let health = self.health(context, || driver_stream.event())?;
        // Kernels are compiled and memory is pinned before any operation of ours waits.
        let has_kernels = self.device.kernels(context).is_ok();
        let memory = lock(&self.pool).stream_memory(&self.device)?;
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        let stream = Arc::new(StreamState::new(id, memory, driver_stream, health, has_kernels));
        lock(&self.streams).insert(*key, stream.clone());
        Ok(stream)
    }

    fn forget(&self, key: &StreamKey, stream: &Arc<StreamState>) {
        let mut streams = lock(&self.streams);
        if streams.get(key).is_some_and(|known| Arc::ptr_eq(known, stream)) {
            streams.remove(key);
        }
    }

    /// Puts an operation on a stream.
    ///
    /// # Safety
    /// `handle` is a live stream of the device, and what the operation names is valid until the stream is through.
    unsafe fn enqueue(
        &self,
        handle: u64,
        request: StreamRequest,
        route: Option<OperationRoute>,
    ) -> Result<()> {
        // SAFETY: the caller vouches for the stream.
        let identity = unsafe { self.device.identify(handle) }?;
        let thread = (handle == PER_THREAD).then(|| std::thread::current().id());
        let key = StreamKey { identity, thread };
        loop {
            // SAFETY: as above.
            let stream = unsafe { self.stream(&key, handle) }?;
            let tail = stream.tail();
            if !tail.closed && !stream.is_dead() {
                // SAFETY: passed on.
                return unsafe { self.put(&key, &stream, tail, request, route) };
            }
            drop(tail);
            self.forget(&key, &stream);
        }
    }

    /// # Safety
    /// As [`ServerState::enqueue`].
    unsafe fn put(
        &self,
        key: &StreamKey,
        stream: &Arc<StreamState>,
        mut tail: MutexGuard<'_, StreamTail>,
        request: StreamRequest,
        route: Option<OperationRoute>,
    ) -> Result<()> {
        let route = match route {
            Some(route) => route,
            // A kernel of one context does not reach the memory of another.
            None if tail.has_kernels && key.identity.context == request.memory.context => {
                OperationRoute::StagingRing(self.ring(stream, &mut tail, request.most))
            }
            None => OperationRoute::Straight,
        };
        if matches!(route, OperationRoute::Straight) && !request.memory.device.info().is_host {
            // Its lanes are started before a stream waits for them.
            request.engines.straight.notes()?;
        }
        let numbers = OperationNumbers::new(tail.next, request.direction, request.most, &route);
        let mut list = std::mem::take(&mut tail.posts);
        posts(stream, numbers, request.most, &route, &mut list);
        tail.next = numbers.last().wrapping_add(1);
        let has_ticket = matches!(request.target, ResultTarget::Ticket(_));
        if let ResultTarget::Ticket(end) = &request.target {
            end.set_place(StreamPlace {
                stream: stream.clone(),
                last: numbers.last(),
                health: tail.health.clone(),
            });
        }
        stream.queued.fetch_add(1, Ordering::Relaxed);
        self.inbox.open.fetch_add(1, Ordering::Relaxed);
        // The server learns of it before the stream does: where the stream's queue is full, the call below waits for answers.
        let operation = Operation { request, route, first: numbers.first, queued: traffic::queue() };
        lock(&self.submitted).push((stream.clone(), operation));
        self.inbox.wake();
        // SAFETY: words and list live as long as the server's memory; the rest is the caller's promise.
        let posted = unsafe { tail.driver_stream.post(&list) };
        tail.posts = list;
        let Err(refused) = posted else { return Ok(()) };
        // The part that the stream took blocks it until the server releases it: nothing more may be queued behind that part.
        tail.closed = true;
        drop(tail);
        if refused.posted > 0 {
            self.taint();
        }
        self.forget(key, stream);
        if refused.error.kind() == ErrorKind::DeviceLost {
            // Operations queued in its context never run.
            stream.kill();
        }
        let how = stream.refuse(numbers.first);
        self.inbox.wake();
        match how {
            stream_state::RefusalTime::NotStarted => Err(refused.error),
            // No more reports follow: the caller learns here that it failed.
            stream_state::RefusalTime::Reported if !has_ticket => Err(refused.error),
            // The operation reports its error when it ends.
            stream_state::RefusalTime::Started | stream_state::RefusalTime::Reported => Ok(()),
        }
    }
}

impl StreamServer {
    pub(crate) fn new(device: Arc<dyn Device>) -> Result<Self> {
        let state = Arc::new(ServerState {
            device,
            inbox: Arc::default(),
            submitted: Mutex::default(),
            streams: Mutex::default(),
            creating: Mutex::default(),
            pool: Mutex::default(),
            health: Mutex::default(),
            next: AtomicU64::new(0),
            closed: AtomicBool::new(false),
            tainted: AtomicBool::new(false),
        });
        let (mine, name) = (state.clone(), format!("forebay-{}-streams", state.device.info().index));
        let thread = threads::spawn(name, move || {
            thread::main(&mine);
            if mine.tainted.load(Ordering::SeqCst) {
                std::mem::forget(mine);
            }
        });
        let thread =
            thread.map_err(|error| Error::from_io(&error, "cannot start the thread that serves streams"))?;
        let _ = state.inbox.thread.set(thread.thread().clone());
        Ok(Self { state: ManuallyDrop::new(state), thread: Mutex::new(Some(thread)) })
    }

    /// Puts an operation on a stream: as `route` says, or staged where that can be.
    ///
    /// # Safety
    /// `handle` is a live stream of the device, and what the operation names is valid until the stream is through.
    pub(crate) unsafe fn enqueue(
        &self,
        handle: u64,
        request: StreamRequest,
        route: Option<OperationRoute>,
    ) -> Result<()> {
        // SAFETY: passed on.
        unsafe { self.state.enqueue(handle, request, route) }
    }
}

impl Drop for StreamServer {
    /// Queued operations are still done: the thread holds all that it needs, and ends after the last one.
    fn drop(&mut self) {
        self.state.closed.store(true, Ordering::SeqCst);
        self.state.inbox.wake();
        let is_idle =
            lock(&self.state.streams).values().all(|stream| stream.queued.load(Ordering::Acquire) == 0);
        let thread = lock(&self.thread).take();
        let is_clean = !self.state.tainted.load(Ordering::SeqCst);
        if let Some(thread) = thread
            && is_idle
            && thread.thread().id() != std::thread::current().id()
        {
            let _ = thread.join();
        }
        if is_clean {
            // SAFETY: dropped once, here.
            unsafe { ManuallyDrop::drop(&mut self.state) };
        }
    }
}
