//! Small synchronous transfers on the caller's thread: a borrowed desk (pinned memory, a stream, an event) instead of
//! a lane, so that no other thread has to wake up.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use forebay_config::{CachePolicy, Objective, allowed_cpus};
use forebay_error::{Error, Result};
use forebay_gpu::{Context, Device, Event, Stream, Wait};

use crate::pinned::PinnedPages;
use crate::plan::aligned_out;
use crate::receipt::Moved;
use crate::segment::{Segment, Warmth, Way};
use crate::source::{Descriptors, Fill};
use crate::transfer::{Direction, Transfer};
use crate::wait;

/// The most bytes that a caller's thread moves by itself.
pub(crate) const SMALL: usize = 1 << 20;
/// Bytes whose device copy starts while the next are read.
const PART: u64 = 256 << 10;
/// Room for [`SMALL`] bytes aligned out to the coarsest granularity: a whole huge page, since the device copies from
/// many small pages far more slowly.
const ROOM: usize = 2 << 20;
/// Desks per device: more callers at once go through the lanes.
const DESKS: usize = 64;
/// How long a caller polls for its copy before it sleeps: a small copy takes less.
const POLL: Duration = Duration::from_micros(20);

/// How long one of many callers sleeps between looks at its copy.
const NAP: Duration = Duration::from_micros(20);
/// Copies of no more are over within a poll.
const SHORT: usize = 2 << 20;
/// Callers at once that may poll, and that overlap parts of their own transfer.
const FEW: usize = 2;

/// How a transfer is carried out among others.
#[derive(Clone, Copy)]
struct Manner {
    wait: Wait,
    overlap: bool,
}

/// What a thread needs to move bytes by itself. Every use waits for its copies.
struct Desk {
    context: Context,
    pages: PinnedPages,
    stream: Box<dyn Stream>,
    event: Box<dyn Event>,
}

impl Desk {
    fn new(device: &Arc<dyn Device>, context: Context) -> Result<Self> {
        let stream = device.stream(context)?;
        let event = stream.event()?;
        Ok(Self { context, pages: PinnedPages::new(device, ROOM)?, stream, event })
    }

    fn wait(&self, wait: Wait) -> Result<()> {
        self.stream.record(self.event.as_ref())?;
        self.event.wait(wait)
    }
}

/// The desks of a device.
pub(crate) struct Callers {
    device: Arc<dyn Device>,
    free: Mutex<Vec<Desk>>,
    made: AtomicUsize,
    /// Threads that use a desk right now.
    active: AtomicUsize,
    objective: Objective,
    /// CPUs that this process may run on.
    cpus: usize,
}

/// What came of an attempt.
pub(crate) enum Attempt {
    /// Done: bytes that are good and the way they took.
    Done(usize, Moved),
    /// No desk is free, or the source has no descriptor: a matter for the lanes.
    Busy,
}

/// What came of pulling from registered pages.
pub(crate) enum Pulled {
    Done,
    /// No desk is free.
    Busy,
}

impl Callers {
    /// Lets the device copy the transfer's bytes from registered pages, the first of which is at `page`, and waits. No
    /// copy crosses a multiple of `window` in the file.
    ///
    /// # Safety
    /// The pages stay registered until this returns; the transfer's memory is valid.
    pub(crate) unsafe fn pull(&self, transfer: &Transfer, page: u64, window: u64) -> Result<Pulled> {
        let Some(desk) = self.borrow(transfer.memory.context)? else { return Ok(Pulled::Busy) };
        let callers = self.active.fetch_add(1, Ordering::Relaxed) + 1;
        let end = transfer.offset + transfer.len as u64;
        let mut start = transfer.offset;
        let mut result = Ok(());
        while start < end && result.is_ok() {
            let stop = ((start / window + 1) * window).min(end);
            let done = start - transfer.offset;
            // SAFETY: as promised by the caller; the wait below is for all of it.
            result = unsafe {
                desk.stream.copy_in(
                    transfer.memory.address + done,
                    (page + done) as *const u8,
                    (stop - start) as usize,
                )
            };
            start = stop;
        }
        let wait = self.wait_for_bytes(callers, transfer.len);
        let waited = match &result {
            Ok(()) => desk.wait(wait).inspect_err(|_| drop(desk.stream.synchronize(Wait::Block))),
            Err(_) => desk.stream.synchronize(Wait::Block),
        };
        self.active.fetch_sub(1, Ordering::Relaxed);
        self.free.lock().unwrap_or_else(PoisonError::into_inner).push(desk);
        result.and(waited).map(|()| Pulled::Done)
    }

    pub(crate) fn new(device: Arc<dyn Device>, objective: Objective) -> Self {
        Self {
            device,
            free: Mutex::default(),
            made: AtomicUsize::new(0),
            active: AtomicUsize::new(0),
            objective,
            cpus: allowed_cpus(),
        }
    }

    /// Moves a small transfer of a file.
    ///
    /// # Safety
    /// The transfer's memory is valid.
    pub(crate) unsafe fn run(&self, transfer: &Transfer, policy: CachePolicy, align: u64) -> Result<Attempt> {
        let Fill::Descriptor(file) = transfer.file.source().fill() else { return Ok(Attempt::Busy) };
        if self.device.info().is_host {
            return on_host(transfer, file, policy, align);
        }
        let Some(desk) = self.borrow(transfer.memory.context)? else { return Ok(Attempt::Busy) };
        let callers = self.active.fetch_add(1, Ordering::Relaxed) + 1;
        let manner = Manner { wait: self.wait(callers), overlap: callers <= FEW };
        let result = if transfer.direction == Direction::Read {
            read(&desk, transfer, file, (policy, align), manner)
        } else {
            write(&desk, transfer, file, (policy, align), manner)
        };
        self.active.fetch_sub(1, Ordering::Relaxed);
        if result.is_err() {
            // A copy may be in flight although a later step failed.
            let _ = desk.wait(Wait::Block);
        }
        self.free.lock().unwrap_or_else(PoisonError::into_inner).push(desk);
        result
    }

    fn borrow(&self, context: Context) -> Result<Option<Desk>> {
        let mut free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(at) = free.iter().rposition(|desk| desk.context == context) {
            return Ok(Some(free.swap_remove(at)));
        }
        drop(free);
        if self.made.fetch_add(1, Ordering::Relaxed) >= DESKS {
            self.made.fetch_sub(1, Ordering::Relaxed);
            return Ok(None);
        }
        Desk::new(&self.device, context).map(Some).inspect_err(|_| {
            self.made.fetch_sub(1, Ordering::Relaxed);
        })
    }

    /// How to wait for a copy of so many bytes, whose time can be told.
    fn wait_for_bytes(&self, callers: usize, len: usize) -> Wait {
        match self.wait(callers) {
            Wait::SpinThenBlock(_) if len <= SHORT => Wait::SpinThenBlock(wait::expected(len) + POLL),
            Wait::SpinThenBlock(_) | Wait::Nap(_) => wait::nap(len),
            other => other,
        }
    }

    /// How to wait for a copy when so many callers are at it. Polling threads fight over the driver's lock with those
    /// that start copies, so only a few may poll; and on a single CPU a poll keeps everybody else from working.
    fn wait(&self, callers: usize) -> Wait {
        match self.objective {
            Objective::Latency => Wait::Spin,
            Objective::Throughput if self.cpus == 1 => Wait::Block,
            Objective::Throughput if callers <= FEW => Wait::SpinThenBlock(POLL),
            Objective::Throughput => Wait::Nap(NAP),
            Objective::Cpu => Wait::Block,
        }
    }
}

/// Reads part after part; each part's copy runs while the next part is read.
fn read(
    desk: &Desk,
    transfer: &Transfer,
    file: &Descriptors,
    (policy, align): (CachePolicy, u64),
    manner: Manner,
) -> Result<Attempt> {
    let warmth = warmth(transfer, file, policy);
    // Cold bytes come by one call: the disk works best on all of it. The copies of many callers overlap anyway.
    let part = (manner.overlap && warmth != Warmth::Cold).then_some(PART);
    let end = transfer.offset + transfer.len as u64;
    let (first, _) = aligned_out(transfer.offset, end, align);
    let (mut start, mut good, mut moved) = (transfer.offset, 0, Moved::default());
    while start < end {
        let stop = part.map_or(end, |part| ((start / part + 1) * part).min(end));
        let (low, high) = aligned_out(start, stop, align);
        let mut segment = Segment {
            start,
            len: (stop - start) as usize,
            address: transfer.memory.address + (start - transfer.offset),
            base: low,
            host: desk.pages.as_ptr().wrapping_add((low - first) as usize),
            window: (high - low) as usize,
            registered: true,
            ..in_place(transfer)
        };
        if !segment.read_cached(file, align, policy, warmth) {
            segment.run_blocking(Direction::Read, file, align)?;
        }
        let got = segment.good();
        if got > 0 {
            // SAFETY: the desk is ours until the wait below; the caller vouched for the memory.
            unsafe { desk.stream.copy_in(segment.address, segment.wanted(), got) }?;
        }
        good += got;
        moved = moved.plus(segment.moved());
        if got < segment.len {
            break;
        }
        start = stop;
    }
    if good > 0 {
        desk.wait(manner.wait)?;
    }
    Ok(Attempt::Done(good, moved))
}

fn write(
    desk: &Desk,
    transfer: &Transfer,
    file: &Descriptors,
    (policy, align): (CachePolicy, u64),
    manner: Manner,
) -> Result<Attempt> {
    let segment = Segment { host: desk.pages.as_ptr(), ..in_place(transfer) };
    if transfer.len > 0 {
        // SAFETY: as in `read`.
        unsafe { desk.stream.copy_out(segment.host, transfer.memory.address, transfer.len) }?;
        desk.wait(manner.wait)?;
    }
    write_segment(segment, file, policy, align)
}

/// What is known of the page cache before a small read.
fn warmth(transfer: &Transfer, file: &Descriptors, policy: CachePolicy) -> Warmth {
    if file.is_memory {
        Warmth::Warm
    } else if policy == CachePolicy::Bypass || !file.is_resident(transfer.offset) {
        Warmth::Cold
    } else if transfer.len as u64 > PART {
        Warmth::Mixed
    } else {
        Warmth::Warm
    }
}

/// The whole transfer as one segment in the caller's own host memory.
fn in_place(transfer: &Transfer) -> Segment {
    Segment {
        entry: 0,
        start: transfer.offset,
        len: transfer.len,
        address: transfer.memory.address,
        base: transfer.offset,
        host: transfer.memory.address as *mut u8,
        window: transfer.len,
        done: 0,
        cached: 0,
        way: Way::Cached,
        registered: false,
        failed: false,
        asks_cache: false,
    }
}

fn on_host(transfer: &Transfer, file: &Descriptors, policy: CachePolicy, align: u64) -> Result<Attempt> {
    let mut segment = in_place(transfer);
    if transfer.direction == Direction::Write {
        return write_segment(segment, file, policy, align);
    }
    if !segment.read_cached(file, align, policy, Warmth::Mixed) {
        segment.run_blocking(Direction::Read, file, align)?;
    }
    Ok(Attempt::Done(segment.good(), segment.moved()))
}

fn write_segment(
    mut segment: Segment,
    file: &Descriptors,
    policy: CachePolicy,
    align: u64,
) -> Result<Attempt> {
    if segment.len > 0 {
        segment.choose_write(file, align, policy);
        segment.run_blocking(Direction::Write, file, align)?;
    }
    Ok(Attempt::Done(segment.good(), segment.moved()))
}

impl Attempt {
    /// The error of a transfer with the file's name.
    pub(crate) fn explain(error: Error, transfer: &Transfer) -> Error {
        error.with("file", transfer.file.name())
    }
}
