//! Small synchronous transfers on the caller's thread. It borrows a slot (pinned memory, a stream, an event), so that no
//! lane has to wake up.

mod pack;
mod signal;
mod slot;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use forebay_config::{CachePolicy, Objective, allowed_cpus};
use forebay_error::Result;
use forebay_gpu::{CopyPiece, Device, Wait};

use self::pack::PackWait;
use self::signal::CopyWait;
use self::slot::{StreamSlot, StreamSlots};
use crate::io::plan::aligned_out;
use crate::io::segment::Segment;
use crate::request::copy_order::{self, CopyOrder};
use crate::request::receipt::Moved;
use crate::request::transfer::Transfer;
use crate::runtime::wait::{self, CopyPace, WaitPolicy};
use crate::source::piece::Direction;
use crate::source::residency::Warmth;
use crate::source::{Descriptors, Fill};
use crate::tuning::callers::PART;
pub(crate) use crate::tuning::callers::SMALL;
use crate::tuning::callers::{FEW, MANY, POLL, POLL_LONG, SHORT, TINY};

/// How a transfer is carried out among others.
#[derive(Clone, Copy)]
enum CopyMethod<'a> {
    /// By copies on the slot's stream, or the thread's default one.
    Copies { wait: CopyWait<'a>, overlap: bool },
    /// By one kernel for several callers.
    CopyPack(PackWait, CopyOrder),
}

/// Threads that use the stream slots of a device.
pub(crate) struct Callers {
    device: Arc<dyn Device>,
    slots: StreamSlots,
    /// Threads that use a slot now.
    active: AtomicUsize,
    /// Whether there are many of them, or were until recently.
    are_many: AtomicBool,
    objective: Objective,
    /// CPUs that this process may run on.
    cpus: usize,
    /// The link's pace towards the device and back.
    inward: CopyPace,
    outward: CopyPace,
}

/// The result of an attempt.
pub(crate) enum Attempt {
    /// Done: the good bytes, and the way that they took.
    Done(usize, Moved),
    /// No slot is free, or the source has no descriptor: use the lanes.
    Busy,
}

/// The result of a copy from registered pages.
pub(crate) enum Pulled {
    Done,
    /// No slot is free.
    Busy,
}

/// Counts a thread as a user of a slot.
struct ActiveCaller<'a>(&'a AtomicUsize);

impl Drop for ActiveCaller<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Callers {
    pub(crate) fn new(device: Arc<dyn Device>, objective: Objective) -> Self {
        Self {
            slots: StreamSlots::new(device.clone()),
            device,
            active: AtomicUsize::new(0),
            are_many: AtomicBool::new(false),
            objective,
            cpus: allowed_cpus(),
            inward: CopyPace::default(),
            outward: CopyPace::default(),
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
        let work = |slot: &StreamSlot| {
            let (callers, _active) = self.enter();
            match self.method(slot, callers, transfer, Some(wait::expected(transfer.len)), order) {
                CopyMethod::CopyPack(pack_wait, order) => {
                    let piece =
                        CopyPiece { src: page, dst: transfer.memory.address, len: transfer.len as u64 };
                    // SAFETY: as promised by the caller; it waits.
                    unsafe { slot.copy_with_others(piece, pack_wait, order) }
                }
                CopyMethod::Copies { wait, .. } => {
                    self.come_after(transfer, order)?;
                    // SAFETY: as promised by the caller.
                    unsafe { copy_windows(slot, transfer, page, window) }
                        .and_then(|()| slot.wait(wait))
                        .inspect_err(|_| slot.clear())
                }
            }
        };
        let done = self.slots.with(transfer.memory.context, work)?;
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
        let work = |slot: &StreamSlot| {
            let (callers, _active) = self.enter();
            let method = self.method(slot, callers, transfer, None, order);
            let moved = if transfer.direction == Direction::Read {
                read(slot, transfer, file, (policy, align), method)
            } else {
                write(slot, transfer, file, (policy, align), method)
            };
            // A copy may be in flight although a later step failed.
            moved.inspect_err(|_| slot.clear())
        };
        let done = self.slots.with(transfer.memory.context, work)?;
        Ok(done.unwrap_or(Attempt::Busy))
    }

    /// Whether any thread uses a slot.
    pub(crate) fn are_busy(&self) -> bool {
        self.active.load(Ordering::Relaxed) > 0
    }

    fn enter(&self) -> (usize, ActiveCaller<'_>) {
        let callers = self.active.fetch_add(1, Ordering::Relaxed) + 1;
        (callers, ActiveCaller(&self.active))
    }

    /// Copies that are too large for a default stream wait here for the work that comes before them.
    fn come_after(&self, transfer: &Transfer, order: CopyOrder) -> Result<()> {
        if transfer.len <= SMALL {
            return Ok(());
        }
        let wait = wait::by_objective(self.objective, Wait::Nap(copy_order::LOOK));
        match order.prior_work(self.device.as_ref(), transfer.memory.context)? {
            Some(prior_work) => prior_work.wait(wait),
            None => Ok(()),
        }
    }

    /// How to move a transfer beside this number of callers. `whole` is its least time, if the device does all of it. Copies
    /// use the thread's default stream where that gives the right order.
    fn method(
        &self,
        slot: &StreamSlot,
        callers: usize,
        transfer: &Transfer,
        whole: Option<Duration>,
        order: CopyOrder,
    ) -> CopyMethod<'_> {
        let is_tiny = (1..=TINY).contains(&transfer.len);
        if is_tiny && self.are_many(callers) && slot.packs.are_ready() {
            return CopyMethod::CopyPack(self.pack_wait(callers), order);
        }
        slot.choose_stream(order == CopyOrder::Behind && transfer.len <= SMALL);
        let pace = if transfer.direction == Direction::Read { &self.inward } else { &self.outward };
        let has_cpu = callers <= FEW || (is_tiny && callers < self.cpus);
        let polls = has_cpu && (whole.is_none() || transfer.len <= SHORT);
        let wait = match self.objective {
            Objective::Latency => CopyWait::Poll(WaitPolicy { poll: POLL_LONG, last: Wait::Spin }),
            Objective::Cpu => CopyWait::Poll(WaitPolicy::BLOCK),
            Objective::Throughput if self.cpus == 1 => CopyWait::Poll(WaitPolicy::BLOCK),
            Objective::Throughput if polls => {
                CopyWait::Poll(WaitPolicy { poll: whole.unwrap_or_default() + POLL, last: Wait::Block })
            }
            Objective::Throughput => CopyWait::Nap { pace, len: transfer.len, by_word: whole.is_some() },
        };
        CopyMethod::Copies { wait, overlap: callers <= FEW }
    }

    /// Whether there are enough callers for tiny copies to share a kernel. It changes with a delay on purpose: copies on
    /// default streams look like work of the user's to packs.
    fn are_many(&self, callers: usize) -> bool {
        let were_many = self.are_many.load(Ordering::Relaxed);
        let least = if were_many || self.cpus <= MANY { FEW } else { MANY };
        let are_many = callers > least;
        if are_many != were_many {
            self.are_many.store(are_many, Ordering::Relaxed);
        }
        are_many
    }

    /// A poll for a pack makes no driver call: it costs others nothing as long as there are CPUs.
    fn pack_wait(&self, callers: usize) -> PackWait {
        let is_crowded = callers > self.cpus;
        match self.objective {
            Objective::Cpu => PackWait::ASLEEP,
            _ if self.cpus == 1 => PackWait::ASLEEP,
            Objective::Latency => PackWait::polling(is_crowded, Wait::Spin),
            Objective::Throughput => PackWait::polling(is_crowded, Wait::Block),
        }
    }
}

/// Starts copies from registered pages.
///
/// # Safety
/// As [`Callers::pull`]; the caller waits.
unsafe fn copy_windows(slot: &StreamSlot, transfer: &Transfer, page: u64, window: u64) -> Result<()> {
    let end = transfer.offset + transfer.len as u64;
    let mut start = transfer.offset;
    while start < end {
        let stop = ((start / window + 1) * window).min(end);
        let done = start - transfer.offset;
        let (to, from) = (transfer.memory.address + done, (page + done) as *const u8);
        // SAFETY: passed on.
        unsafe { slot.stream().copy_in(to, from, (stop - start) as usize) }?;
        start = stop;
    }
    Ok(())
}

/// Reads part after part; each part's copy runs while the next part is read.
fn read(
    slot: &StreamSlot,
    transfer: &Transfer,
    file: &Descriptors,
    (policy, align): (CachePolicy, u64),
    method: CopyMethod<'_>,
) -> Result<Attempt> {
    let warmth = file.warmth_of_small(transfer.offset, transfer.len as u64, policy);
    // Cold bytes come by one call: the disk works best on all of it. The copies of many callers overlap anyway.
    let overlap = matches!(method, CopyMethod::Copies { overlap: true, .. });
    let part = (overlap && warmth != Warmth::Cold).then_some(PART);
    let end = transfer.offset + transfer.len as u64;
    let (first, _) = aligned_out(transfer.offset, end, align);
    let (mut start, mut good, mut moved) = (transfer.offset, 0, Moved::default());
    while start < end {
        let stop = part.map_or(end, |part| ((start / part + 1) * part).min(end));
        let (low, high) = aligned_out(start, stop, align);
        let address = transfer.memory.address + (start - transfer.offset);
        let host = slot.pages.as_ptr().wrapping_add((low - first) as usize);
        let mut segment =
            Segment::whole(start, (stop - start) as usize, address).in_window((low, high), host);
        if !segment.read_cached(file, align, policy, warmth) {
            segment.run_blocking(Direction::Read, file, align)?;
        }
        let got = segment.good();
        match method {
            CopyMethod::Copies { .. } if got > 0 => {
                // SAFETY: the slot is ours until the wait below; the caller vouched for the memory.
                unsafe { slot.stream().copy_in(segment.address, segment.wanted(), got) }?;
            }
            CopyMethod::CopyPack(pack_wait, order) if got > 0 => {
                let src = slot.pages.reach() + (segment.wanted() as u64 - slot.pages.as_ptr() as u64);
                let piece = CopyPiece { src, dst: segment.address, len: got as u64 };
                // SAFETY: the slot is ours; the caller vouched for the memory; it waits.
                unsafe { slot.copy_with_others(piece, pack_wait, order) }?;
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
    if let (CopyMethod::Copies { wait, .. }, true) = (method, good > 0) {
        slot.wait(wait)?;
    }
    Ok(Attempt::Done(good, moved))
}

fn write(
    slot: &StreamSlot,
    transfer: &Transfer,
    file: &Descriptors,
    (policy, align): (CachePolicy, u64),
    method: CopyMethod<'_>,
) -> Result<Attempt> {
    let segment = Segment { host: slot.pages.as_ptr(), ..in_place(transfer) };
    match method {
        _ if transfer.len == 0 => {}
        CopyMethod::Copies { wait, .. } => {
            // SAFETY: as in `read`.
            unsafe { slot.stream().copy_out(segment.host, transfer.memory.address, transfer.len) }?;
            slot.wait(wait)?;
        }
        CopyMethod::CopyPack(pack_wait, order) => {
            let (src, dst) = (transfer.memory.address, slot.pages.reach());
            // SAFETY: as in `read`.
            unsafe {
                slot.copy_with_others(CopyPiece { src, dst, len: transfer.len as u64 }, pack_wait, order)
            }?;
        }
    }
    write_segment(segment, file, policy, align)
}

/// The whole transfer as one segment in the caller's own host memory.
fn in_place(transfer: &Transfer) -> Segment {
    Segment::whole(transfer.offset, transfer.len, transfer.memory.address)
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
