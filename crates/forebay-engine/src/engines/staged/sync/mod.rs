//! Small synchronous transfers on the caller's thread: a borrowed desk (pinned memory, a stream, an event) instead of
//! a lane, so that no other thread has to wake up.

mod pack;
mod signal;
mod slot;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use forebay_config::{CachePolicy, Objective, allowed_cpus};
use forebay_error::Result;
use forebay_gpu::{CopyPiece, Device, Wait};

use self::pack::Patience;
use self::signal::Manner;
use self::slot::{Desk, Desks};
use crate::io::plan::aligned_out;
use crate::io::segment::{Segment, Way};
use crate::request::copy_order::{self, CopyOrder};
use crate::request::receipt::Moved;
use crate::request::transfer::Transfer;
use crate::runtime::wait::{self, Pace};
use crate::source::piece::Direction;
use crate::source::residency::Warmth;
use crate::source::{Descriptors, Fill};

/// The most bytes that a caller's thread moves by itself.
pub(crate) const SMALL: usize = 1 << 20;
/// Bytes whose device copy starts while the next are read.
const PART: u64 = 256 << 10;
/// How long a caller polls for its copy before it sleeps: a small copy takes less.
const POLL: Duration = Duration::from_micros(20);
/// How long one polls that wants the lowest latency; then the driver does.
const POLL_LONG: Duration = Duration::from_millis(10);
/// Copies of no more are over within a poll.
const SHORT: usize = 2 << 20;
/// Callers at once that may poll, and that overlap parts of their own transfer.
const FEW: usize = 2;
/// Copies of no more travel together with those of other callers, where there are many.
const TINY: usize = 16 << 10;
/// More callers at once let tiny copies travel together, until there are but a few. Below that a copy each, which its caller
/// polls for, is faster as long as there are CPUs (measured on an H200 with 16 of them).
const MANY: usize = 8;

/// How a transfer is carried out among others.
#[derive(Clone, Copy)]
enum Means<'a> {
    /// By copies on the desk's stream, or the thread's default one.
    Copies { manner: Manner<'a>, overlap: bool },
    /// By one kernel for several callers.
    Pack(Patience, CopyOrder),
}

/// Those who use desks of a device.
pub(crate) struct Callers {
    device: Arc<dyn Device>,
    desks: Desks,
    /// Threads that use a desk right now.
    active: AtomicUsize,
    /// There are many of them, or were a moment ago.
    are_many: AtomicBool,
    objective: Objective,
    /// CPUs that this process may run on.
    cpus: usize,
    /// The link's pace towards the device and back.
    inward: Pace,
    outward: Pace,
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

/// Counts a thread among those who use desks.
struct Present<'a>(&'a AtomicUsize);

impl Drop for Present<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Callers {
    pub(crate) fn new(device: Arc<dyn Device>, objective: Objective) -> Self {
        Self {
            desks: Desks::new(device.clone()),
            device,
            active: AtomicUsize::new(0),
            are_many: AtomicBool::new(false),
            objective,
            cpus: allowed_cpus(),
            inward: Pace::default(),
            outward: Pace::default(),
        }
    }

    /// Lets the device copy the transfer's bytes from registered pages, the first of which is at `page`, and waits. No
    /// copy crosses a multiple of `window` in the file.
    ///
    /// # Safety
    /// The pages stay registered until this returns; the transfer's memory is valid.
    pub(crate) unsafe fn pull(
        &self,
        transfer: &Transfer,
        page: u64,
        window: u64,
        order: CopyOrder,
    ) -> Result<Pulled> {
        let work = |desk: &Desk| {
            let (callers, _present) = self.enter();
            match self.means(desk, callers, transfer, Some(wait::expected(transfer.len)), order) {
                Means::Pack(patience, order) => {
                    let piece =
                        CopyPiece { src: page, dst: transfer.memory.address, len: transfer.len as u64 };
                    // SAFETY: as promised by the caller; it waits.
                    unsafe { desk.carry(piece, patience, order) }
                }
                Means::Copies { manner, .. } => {
                    self.come_after(transfer, order)?;
                    // SAFETY: as promised by the caller.
                    unsafe { copy_windows(desk, transfer, page, window) }
                        .and_then(|()| desk.wait(manner))
                        .inspect_err(|_| desk.clear())
                }
            }
        };
        let done = self.desks.with(transfer.memory.context, work)?;
        Ok(done.map_or(Pulled::Busy, |()| Pulled::Done))
    }

    /// Moves a small transfer of a file.
    ///
    /// # Safety
    /// The transfer's memory is valid.
    pub(crate) unsafe fn run(
        &self,
        transfer: &Transfer,
        policy: CachePolicy,
        align: u64,
        order: CopyOrder,
    ) -> Result<Attempt> {
        let Fill::Descriptor(file) = transfer.file.source().fill() else { return Ok(Attempt::Busy) };
        file.check()?;
        if self.device.info().is_host {
            return on_host(transfer, file, policy, align);
        }
        let work = |desk: &Desk| {
            let (callers, _present) = self.enter();
            let means = self.means(desk, callers, transfer, None, order);
            let moved = if transfer.direction == Direction::Read {
                read(desk, transfer, file, (policy, align), means)
            } else {
                write(desk, transfer, file, (policy, align), means)
            };
            // A copy may be in flight although a later step failed.
            moved.inspect_err(|_| desk.clear())
        };
        let done = self.desks.with(transfer.memory.context, work)?;
        Ok(done.unwrap_or(Attempt::Busy))
    }

    fn enter(&self) -> (usize, Present<'_>) {
        let callers = self.active.fetch_add(1, Ordering::Relaxed) + 1;
        (callers, Present(&self.active))
    }

    /// Copies that are too large for a default stream wait here for what they come after.
    fn come_after(&self, transfer: &Transfer, order: CopyOrder) -> Result<()> {
        if transfer.len <= SMALL {
            return Ok(());
        }
        let wait = match self.objective {
            Objective::Latency => Wait::Spin,
            Objective::Throughput => Wait::Nap(copy_order::LOOK),
            Objective::Cpu => Wait::Block,
        };
        match order.prior_work(self.device.as_ref(), transfer.memory.context)? {
            Some(prior_work) => prior_work.wait(wait),
            None => Ok(()),
        }
    }

    /// How to move a transfer when so many callers are at it. `whole` is how long all of it takes at least, where the
    /// device has all of it to do. Copies go on the thread's default stream where that orders them as they should be.
    fn means(
        &self,
        desk: &Desk,
        callers: usize,
        transfer: &Transfer,
        whole: Option<Duration>,
        order: CopyOrder,
    ) -> Means<'_> {
        let is_tiny = (1..=TINY).contains(&transfer.len);
        if is_tiny && self.are_many(callers) && desk.packs.are_ready() {
            return Means::Pack(self.patience(callers), order);
        }
        desk.choose_stream(order == CopyOrder::Behind && transfer.len <= SMALL);
        let pace = if transfer.direction == Direction::Read { &self.inward } else { &self.outward };
        let has_cpu = callers <= FEW || (is_tiny && callers < self.cpus);
        let polls = has_cpu && (whole.is_none() || transfer.len <= SHORT);
        let manner = match self.objective {
            Objective::Latency => Manner::Poll(POLL_LONG, Wait::Spin),
            Objective::Cpu => Manner::Block,
            Objective::Throughput if self.cpus == 1 => Manner::Block,
            Objective::Throughput if polls => Manner::Poll(whole.unwrap_or_default() + POLL, Wait::Block),
            Objective::Throughput => Manner::Nap { pace, len: transfer.len, by_word: whole.is_some() },
        };
        Means::Copies { manner, overlap: callers <= FEW }
    }

    /// Whether there are so many callers that tiny copies travel together. It does not follow each of them coming and going:
    /// copies on default streams beside packs let these believe that the user has work there.
    fn are_many(&self, callers: usize) -> bool {
        let were_many = self.are_many.load(Ordering::Relaxed);
        let least = if were_many || self.cpus <= MANY { FEW } else { MANY };
        let are_many = callers > least;
        if are_many != were_many {
            self.are_many.store(are_many, Ordering::Relaxed);
        }
        are_many
    }

    /// Polling for a pack takes no driver call and so hinders nobody, as long as there are CPUs.
    fn patience(&self, callers: usize) -> Patience {
        let is_crowded = callers > self.cpus;
        match self.objective {
            Objective::Cpu => Patience::ASLEEP,
            _ if self.cpus == 1 => Patience::ASLEEP,
            Objective::Latency => Patience::polling(is_crowded, Wait::Spin),
            Objective::Throughput => Patience::polling(is_crowded, Wait::Block),
        }
    }
}

/// Starts copies from registered pages.
///
/// # Safety
/// As [`Callers::pull`]; the caller waits.
unsafe fn copy_windows(desk: &Desk, transfer: &Transfer, page: u64, window: u64) -> Result<()> {
    let end = transfer.offset + transfer.len as u64;
    let mut start = transfer.offset;
    while start < end {
        let stop = ((start / window + 1) * window).min(end);
        let done = start - transfer.offset;
        let (to, from) = (transfer.memory.address + done, (page + done) as *const u8);
        // SAFETY: passed on.
        unsafe { desk.stream().copy_in(to, from, (stop - start) as usize) }?;
        start = stop;
    }
    Ok(())
}

/// Reads part after part; each part's copy runs while the next part is read.
fn read(
    desk: &Desk,
    transfer: &Transfer,
    file: &Descriptors,
    (policy, align): (CachePolicy, u64),
    means: Means<'_>,
) -> Result<Attempt> {
    let warmth = warmth(transfer, file, policy);
    // Cold bytes come by one call: the disk works best on all of it. The copies of many callers overlap anyway.
    let overlap = matches!(means, Means::Copies { overlap: true, .. });
    let part = (overlap && warmth != Warmth::Cold).then_some(PART);
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
        match means {
            Means::Copies { .. } if got > 0 => {
                // SAFETY: the desk is ours until the wait below; the caller vouched for the memory.
                unsafe { desk.stream().copy_in(segment.address, segment.wanted(), got) }?;
            }
            Means::Pack(patience, order) if got > 0 => {
                let src = desk.pages.reach() + (segment.wanted() as u64 - desk.pages.as_ptr() as u64);
                let piece = CopyPiece { src, dst: segment.address, len: got as u64 };
                // SAFETY: the desk is ours; the caller vouched for the memory; it waits.
                unsafe { desk.carry(piece, patience, order) }?;
            }
            _ => {}
        }
        good += got;
        moved = moved.plus(segment.moved());
        if got < segment.len {
            break;
        }
        start = stop;
    }
    if let (Means::Copies { manner, .. }, true) = (means, good > 0) {
        desk.wait(manner)?;
    }
    Ok(Attempt::Done(good, moved))
}

fn write(
    desk: &Desk,
    transfer: &Transfer,
    file: &Descriptors,
    (policy, align): (CachePolicy, u64),
    means: Means<'_>,
) -> Result<Attempt> {
    let segment = Segment { host: desk.pages.as_ptr(), ..in_place(transfer) };
    match means {
        _ if transfer.len == 0 => {}
        Means::Copies { manner, .. } => {
            // SAFETY: as in `read`.
            unsafe { desk.stream().copy_out(segment.host, transfer.memory.address, transfer.len) }?;
            desk.wait(manner)?;
        }
        Means::Pack(patience, order) => {
            let (src, dst) = (transfer.memory.address, desk.pages.reach());
            // SAFETY: as in `read`.
            unsafe { desk.carry(CopyPiece { src, dst, len: transfer.len as u64 }, patience, order) }?;
        }
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
        entries: 1,
        start: transfer.offset,
        len: transfer.len,
        address: transfer.memory.address,
        base: transfer.offset,
        host: transfer.memory.address as *mut u8,
        window: transfer.len,
        done: 0,
        cached: 0,
        placed: 0,
        way: Way::Cached,
        registered: false,
        failed: false,
        asks_cache: false,
        refused: None,
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
