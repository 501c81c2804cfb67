//! Small synchronous transfers on the caller's thread: a borrowed desk (pinned memory, a stream, an event) instead of
//! a lane, so that no other thread has to wake up.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use forebay_config::{CachePolicy, Objective};
use forebay_error::{Error, Result};
use forebay_gpu::{Context, Device, Event, Stream, Wait};

use crate::plan::aligned_out;
use crate::receipt::Moved;
use crate::segment::{Segment, Warmth, Way};
use crate::source::{Descriptors, Fill};
use crate::sys::Pages;
use crate::transfer::{Direction, Transfer};

/// The most bytes that a caller's thread moves by itself.
pub(crate) const SMALL: usize = 1 << 20;
/// Bytes whose device copy starts while the next are read.
const PART: u64 = 256 << 10;
/// Room for [`SMALL`] bytes aligned out to the coarsest granularity.
const ROOM: usize = SMALL + (128 << 10);
/// Desks per device: more callers at once go through the lanes.
const DESKS: usize = 32;
/// How long a caller polls for its copy before it sleeps: a small copy takes less.
const POLL: Duration = Duration::from_micros(20);

/// What a thread needs to move bytes by itself.
struct Desk {
    context: Context,
    pages: Pages,
    device: Arc<dyn Device>,
    stream: Box<dyn Stream>,
    event: Box<dyn Event>,
}

impl Desk {
    fn new(device: &Arc<dyn Device>, context: Context) -> Result<Self> {
        let pages = Pages::new(ROOM)?;
        let stream = device.stream(context)?;
        let event = stream.event()?;
        // SAFETY: the pages live until `drop`, which unpins first.
        unsafe { device.pin(pages.as_ptr(), pages.len()) }?;
        Ok(Self { context, pages, device: device.clone(), stream, event })
    }

    fn wait(&self, wait: Wait) -> Result<()> {
        self.stream.record(self.event.as_ref())?;
        self.event.wait(wait)
    }
}

impl Drop for Desk {
    fn drop(&mut self) {
        // SAFETY: pinned in `new`; every use of a desk waits for its copies.
        unsafe { self.device.unpin(self.pages.as_ptr()) };
    }
}

/// The desks of a device.
pub(crate) struct Callers {
    device: Arc<dyn Device>,
    free: Mutex<Vec<Desk>>,
    made: AtomicUsize,
    wait: Wait,
}

/// What came of an attempt.
pub(crate) enum Attempt {
    /// Done: bytes that are good and the way they took.
    Done(usize, Moved),
    /// The bytes are cold: the lanes read them with many others at once.
    Cold,
    /// No desk is free.
    Busy,
}

impl Callers {
    pub(crate) fn new(device: Arc<dyn Device>, objective: Objective) -> Self {
        let wait = match objective {
            Objective::Latency => Wait::Spin,
            Objective::Throughput => Wait::SpinThenBlock(POLL),
            Objective::Cpu => Wait::Block,
        };
        Self { device, free: Mutex::default(), made: AtomicUsize::new(0), wait }
    }

    /// Moves a small transfer of a file. With `lanes_read_cold`, cold reads to a device are left to the lanes.
    ///
    /// # Safety
    /// The transfer's memory is valid.
    pub(crate) unsafe fn run(
        &self,
        transfer: &Transfer,
        policy: CachePolicy,
        align: u64,
        lanes_read_cold: &dyn Fn() -> Result<bool>,
    ) -> Result<Attempt> {
        let Fill::Descriptor(file) = transfer.file.source().fill() else { return Ok(Attempt::Busy) };
        if self.device.info().is_host {
            return on_host(transfer, file, policy, align);
        }
        let is_read = transfer.direction == Direction::Read;
        let mut warmth = Warmth::Warm;
        if is_read && !file.is_memory {
            if policy == CachePolicy::Bypass || !file.is_resident(transfer.offset) {
                warmth = Warmth::Cold;
                if lanes_read_cold()? {
                    return Ok(Attempt::Cold);
                }
            } else if transfer.len as u64 > PART {
                warmth = Warmth::Mixed;
            }
        }
        let Some(desk) = self.borrow(transfer.memory.context)? else { return Ok(Attempt::Busy) };
        let result = if is_read {
            self.read(&desk, transfer, (file, policy, align, warmth))
        } else {
            self.write(&desk, transfer, file, policy, align)
        };
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

    /// Reads part after part; each part's copy runs while the next part is read.
    fn read(
        &self,
        desk: &Desk,
        transfer: &Transfer,
        (file, policy, align, warmth): (&Descriptors, CachePolicy, u64, Warmth),
    ) -> Result<Attempt> {
        let end = transfer.offset + transfer.len as u64;
        let (first, _) = aligned_out(transfer.offset, end, align);
        let (mut start, mut good, mut moved) = (transfer.offset, 0, Moved::default());
        while start < end {
            let stop = ((start / PART + 1) * PART).min(end);
            let (low, high) = aligned_out(start, stop, align);
            let mut segment = Segment {
                entry: 0,
                start,
                len: (stop - start) as usize,
                address: transfer.memory.address + (start - transfer.offset),
                base: low,
                host: desk.pages.as_ptr().wrapping_add((low - first) as usize),
                window: (high - low) as usize,
                done: 0,
                cached: 0,
                way: Way::Cached,
                registered: true,
                failed: false,
                asks_cache: false,
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
            desk.wait(self.wait)?;
        }
        Ok(Attempt::Done(good, moved))
    }

    fn write(
        &self,
        desk: &Desk,
        transfer: &Transfer,
        file: &Descriptors,
        policy: CachePolicy,
        align: u64,
    ) -> Result<Attempt> {
        let mut segment = in_place(transfer);
        segment.host = desk.pages.as_ptr();
        if transfer.len > 0 {
            // SAFETY: as in `read`.
            unsafe { desk.stream.copy_out(segment.host, transfer.memory.address, transfer.len) }?;
            desk.wait(self.wait)?;
        }
        write_segment(segment, file, policy, align)
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

fn write_segment(mut segment: Segment, file: &Descriptors, policy: CachePolicy, align: u64) -> Result<Attempt> {
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
