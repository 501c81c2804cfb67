//! Transfers in the order of a user's stream.
//!
//! All that the device has to do is queued on the user's stream itself: for a read it writes a number into a word
//! (*here I am*), waits for a number in another word (*go on*), runs a kernel that copies from pinned memory by a list,
//! and writes the next number. A thread, the *courier*, watches the words. It learns the range of the transfer when the
//! stream gets there, has the bytes brought into pinned memory, fills the list and lets the stream go on. It never calls
//! the driver, and neither do those that bring the bytes: however many streams wait, and however few hardware
//! connections they share, what they wait for depends on the CPU alone.

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
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{JoinHandle, ThreadId};

use forebay_error::{Error, ErrorKind, Result};
use forebay_gpu::{Context, Device, Event, StreamIdentity};

pub(crate) use self::completion::Landing;
use self::completion::Place;
use self::file_work::Letterbox;
pub(crate) use self::file_work::Office;
pub(crate) use self::operation::{Asked, Route, Told, bind};
pub use self::operation::{Bound, Late};
use self::operation::{Numbers, Operation, posts};
use self::staging_pool::{Pool, Ring, sizes_for};
use self::stream_state::{Tail, Track};
use crate::runtime::threads;
use crate::runtime::traffic;

/// The handle that means another stream on each thread.
const PER_THREAD: u64 = 2;
/// From so many streams on, those without operations are forgotten.
const TRACKS: usize = 512;

/// What names a stream for good.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct Key {
    identity: StreamIdentity,
    thread: Option<ThreadId>,
}

/// What the courier's thread shares with those that queue.
struct Shared {
    device: Arc<dyn Device>,
    letterbox: Arc<Letterbox>,
    /// Operations that the thread has not seen.
    inbox: Mutex<Vec<(Arc<Track>, Operation)>>,
    tracks: Mutex<HashMap<Key, Arc<Track>>>,
    /// Held while a track is made.
    making: Mutex<()>,
    pool: Mutex<Pool>,
    /// Events that were never recorded: asking one tells whether its context is broken.
    health: Mutex<Vec<(Context, Arc<dyn Event>)>>,
    next: AtomicU64,
    closed: AtomicBool,
    /// Some stream may look at our memory at any time to come.
    tainted: AtomicBool,
}

/// Serves the streams of one device, for one session.
pub(crate) struct Courier {
    shared: ManuallyDrop<Arc<Shared>>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Shared {
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

    /// Takes from a stream without operations what it has, at the end of its time or because another needs it.
    fn idle_tail(track: &Track) -> Option<MutexGuard<'_, Tail>> {
        let tail = track.tail.try_lock().ok()?;
        (track.queued.load(Ordering::Acquire) == 0 && !tail.closed).then_some(tail)
    }

    /// A ring that takes so many bytes in few steps, or else the stream's own small room.
    fn ring(&self, track: &Track, tail: &mut Tail, bytes: usize) -> Arc<Ring> {
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
        track.berth.cell.clone()
    }

    /// The ring of a stream that does not use it at the moment.
    fn idle_ring(&self, size: usize) -> Option<Arc<Ring>> {
        lock(&self.tracks).values().find_map(|track| {
            let mut tail = Self::idle_tail(track)?;
            let at = tail.rings.iter().position(|ring| ring.is_of(size))?;
            Some(tail.rings.swap_remove(at))
        })
    }

    /// Forgets streams that have nothing to do: nobody tells us when one is destroyed.
    fn retire_idle(&self) {
        let mut tracks = lock(&self.tracks);
        if tracks.len() < TRACKS {
            return;
        }
        let mut pool = lock(&self.pool);
        tracks.retain(|_, track| {
            let Some(mut tail) = Self::idle_tail(track) else { return true };
            tail.closed = true;
            tail.rings.drain(..).for_each(|ring| pool.give_ring(ring));
            pool.give_berth(track.berth.again(tail.next));
            false
        });
    }

    /// The track of a stream.
    ///
    /// # Safety
    /// `handle` is a live stream of the device.
    unsafe fn track(&self, key: &Key, handle: u64) -> Result<Arc<Track>> {
        let known = || lock(&self.tracks).get(key).cloned();
        if let Some(track) = known() {
            return Ok(track);
        }
        let _one_at_a_time = lock(&self.making);
        if let Some(track) = known() {
            return Ok(track);
        }
        self.retire_idle();
        let context = key.identity.context;
        // SAFETY: the caller vouches for the stream.
        let stream = unsafe { self.device.foreign_stream(handle) }?;
        let health = self.health(context, || stream.event())?;
        // Compiled and pinned before anything of ours waits.
        let has_kernels = self.device.kernels(context).is_ok();
        let berth = lock(&self.pool).berth(&self.device)?;
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        let track = Arc::new(Track::new(id, berth, stream, health, has_kernels));
        lock(&self.tracks).insert(*key, track.clone());
        Ok(track)
    }

    fn forget(&self, key: &Key, track: &Arc<Track>) {
        let mut tracks = lock(&self.tracks);
        if tracks.get(key).is_some_and(|known| Arc::ptr_eq(known, track)) {
            tracks.remove(key);
        }
    }

    /// Puts an operation on a stream.
    ///
    /// # Safety
    /// `handle` is a live stream of the device, and what the operation names is valid until the stream is through.
    unsafe fn enqueue(&self, handle: u64, asked: Asked, route: Option<Route>) -> Result<()> {
        // SAFETY: the caller vouches for the stream.
        let identity = unsafe { self.device.identify(handle) }?;
        let thread = (handle == PER_THREAD).then(|| std::thread::current().id());
        let key = Key { identity, thread };
        loop {
            // SAFETY: as above.
            let track = unsafe { self.track(&key, handle) }?;
            let tail = track.tail();
            if !tail.closed && !track.is_dead() {
                // SAFETY: passed on.
                return unsafe { self.put(&key, &track, tail, asked, route) };
            }
            drop(tail);
            self.forget(&key, &track);
        }
    }

    /// # Safety
    /// As [`Shared::enqueue`].
    unsafe fn put(
        &self,
        key: &Key,
        track: &Arc<Track>,
        mut tail: MutexGuard<'_, Tail>,
        asked: Asked,
        route: Option<Route>,
    ) -> Result<()> {
        let route = match route {
            Some(route) => route,
            // A kernel of one context does not reach the memory of another.
            None if tail.has_kernels && key.identity.context == asked.memory.context => {
                Route::Ring(self.ring(track, &mut tail, asked.most))
            }
            None => Route::Straight,
        };
        if matches!(route, Route::Straight) && !asked.memory.device.info().is_host {
            // Its lanes are started before a stream waits for them.
            asked.office.straight.notes()?;
        }
        let numbers = Numbers::new(tail.next, asked.direction, asked.most, &route);
        let mut list = std::mem::take(&mut tail.posts);
        posts(track, numbers, asked.most, &route, &mut list);
        tail.next = numbers.last().wrapping_add(1);
        let has_ticket = matches!(asked.told, Told::Ticket(_));
        if let Told::Ticket(landing) = &asked.told {
            landing.put(Place { track: track.clone(), last: numbers.last(), health: tail.health.clone() });
        }
        track.queued.fetch_add(1, Ordering::Relaxed);
        self.letterbox.open.fetch_add(1, Ordering::Relaxed);
        // Before the stream has it: where its queue is full the call below waits for what is answered meanwhile.
        let operation = Operation { asked, route, first: numbers.first, queued: traffic::queue() };
        lock(&self.inbox).push((track.clone(), operation));
        self.letterbox.ring();
        // SAFETY: words and list live as long as the courier's memory; the rest is the caller's promise.
        let posted = unsafe { tail.stream.post(&list) };
        tail.posts = list;
        let Err(refused) = posted else { return Ok(()) };
        // What the stream has taken of it holds it until the courier lets it go: nothing more may come behind that.
        tail.closed = true;
        drop(tail);
        if refused.posted > 0 {
            self.taint();
        }
        self.forget(key, track);
        if refused.error.kind() == ErrorKind::DeviceLost {
            // Nothing that is queued in its context will ever run.
            track.kill();
        }
        let how = track.refuse(numbers.first);
        self.letterbox.ring();
        match how {
            stream_state::Refused::InTime => Err(refused.error),
            // Nothing more is told: the caller learns here that it failed.
            stream_state::Refused::Told if !has_ticket => Err(refused.error),
            // It tells its error when it ends.
            stream_state::Refused::Begun | stream_state::Refused::Told => Ok(()),
        }
    }
}

impl Courier {
    pub(crate) fn new(device: Arc<dyn Device>) -> Result<Self> {
        let shared = Arc::new(Shared {
            device,
            letterbox: Arc::default(),
            inbox: Mutex::default(),
            tracks: Mutex::default(),
            making: Mutex::default(),
            pool: Mutex::default(),
            health: Mutex::default(),
            next: AtomicU64::new(0),
            closed: AtomicBool::new(false),
            tainted: AtomicBool::new(false),
        });
        let (mine, name) = (shared.clone(), format!("forebay-{}-courier", shared.device.info().index));
        let thread = threads::spawn(name, move || {
            thread::main(&mine);
            if mine.tainted.load(Ordering::SeqCst) {
                std::mem::forget(mine);
            }
        });
        let thread = thread.map_err(|error| Error::from_io(&error, "cannot start a courier"))?;
        let _ = shared.letterbox.thread.set(thread.thread().clone());
        Ok(Self { shared: ManuallyDrop::new(shared), thread: Mutex::new(Some(thread)) })
    }

    /// Puts an operation on a stream: as `route` says, or staged where that can be.
    ///
    /// # Safety
    /// `handle` is a live stream of the device, and what the operation names is valid until the stream is through.
    pub(crate) unsafe fn enqueue(&self, handle: u64, asked: Asked, route: Option<Route>) -> Result<()> {
        // SAFETY: passed on.
        unsafe { self.shared.enqueue(handle, asked, route) }
    }
}

impl Drop for Courier {
    /// What is queued is still done: the thread goes on until then, and has all that it needs.
    fn drop(&mut self) {
        self.shared.closed.store(true, Ordering::SeqCst);
        self.shared.letterbox.ring();
        let is_idle =
            lock(&self.shared.tracks).values().all(|track| track.queued.load(Ordering::Acquire) == 0);
        let thread = lock(&self.thread).take();
        let is_clean = !self.shared.tainted.load(Ordering::SeqCst);
        if let Some(thread) = thread
            && is_idle
            && thread.thread().id() != std::thread::current().id()
        {
            let _ = thread.join();
        }
        if is_clean {
            // SAFETY: dropped once, here.
            unsafe { ManuallyDrop::drop(&mut self.shared) };
        }
    }
}
