//! Small synchronous transfers on the caller's thread, and [`long`] warm reads where callers are many. The caller borrows a slot
//! (pinned memory, a stream, an event), so that no lane has to wake up.

mod long;
mod pieces;
mod short_batches;
mod signal;
mod slot;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use forebay_config::{CachePolicy, Config, Objective, Resident, allowed_cpus};
use forebay_error::Result;
use forebay_gpu::cuda::CallSeries;
use forebay_gpu::{CopyPiece, Device, HostRange, Wait};
use forebay_sys::OwnLine;

use self::pieces::Pieces;
pub(crate) use self::short_batches::ShortBatch;
use self::signal::CopyWait;
use self::slot::{StreamSlot, StreamSlots};
use crate::engines::resident::{CallerWait, ResidentWay};
use crate::engines::{Known, warmth_of};
use crate::io::plan::aligned_out;
use crate::io::segment::Segment;
use crate::request::completion::is_short_write;
use crate::request::copy_order::{self, CallOrder, CopyOrder};
use crate::request::receipt::Moved;
use crate::request::transfer::{Batch, Transfer};
use crate::runtime::wait::{self, CopyPace, WaitPolicy};
use crate::source::Descriptors;
use crate::source::piece::Direction;
use crate::source::residency::Warmth;
pub(crate) use crate::tuning::callers::MAX_CALLER_BYTES;
use crate::tuning::callers::{
    CROWD, FEW_CALLERS, LONG_POLL, MAX_CROWD_POLLED_BYTES, MAX_POLLING_CALLERS, PART, POLL_LONG,
    STREAM_SLOTS, WRITE_SLOTS,
};
use crate::tuning::machine::{HUGE_PAGE, LOOK};
use crate::tuning::plan::CELL;
use crate::tuning::resident::POSTED_PART;

/// How a transfer is carried out among others.
#[derive(Clone, Copy)]
struct CopyMethod<'a> {
    /// By the resident kernel, if it can.
    resident: Option<ResidentWay<'a>>,
    /// How to wait for copies on the slot's stream, or the thread's default one.
    wait: CopyWait<'a>,
    overlap: bool,
}

/// When a call began, if that is known, and what its copies come after.
type CallTime<'a> = (Option<Instant>, Option<&'a CallOrder<'a>>);

/// Threads that use the stream slots of a device.
pub(crate) struct Callers {
    device: Arc<dyn Device>,
    slots: StreamSlots,
    /// For small writes of further callers, by copies of their own.
    write_slots: StreamSlots,
    /// Threads that use a slot now. Each call writes it, and only looks at the rest.
    active: OwnLine<AtomicUsize>,
    /// Those of them that use one of `write_slots`.
    active_writers: AtomicUsize,
    /// Pieces of short batches that lanes have: see [`ShortBatch`].
    short_pieces: OwnLine<AtomicUsize>,
    /// Whether there are many of them, or were until recently.
    are_many: AtomicBool,
    /// The same of those with long reads.
    are_crowd: AtomicBool,
    /// Threads that wait for the copy of what they have read from a disk.
    cold_polls: AtomicUsize,
    /// Threads that wait for lanes.
    pub(crate) waiting: AtomicUsize,
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
    /// Done, by the resident kernel or not.
    Done { resident: bool },
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
    pub(crate) fn new(device: Arc<dyn Device>, config: &Config) -> Self {
        Self {
            slots: StreamSlots::new(device.clone(), config.resident, (STREAM_SLOTS, HUGE_PAGE)),
            write_slots: StreamSlots::new(device.clone(), Resident::Off, (WRITE_SLOTS, CELL)),
            device,
            active: OwnLine::default(),
            active_writers: AtomicUsize::new(0),
            short_pieces: OwnLine::default(),
            are_many: AtomicBool::new(false),
            are_crowd: AtomicBool::new(false),
            cold_polls: AtomicUsize::new(0),
            waiting: AtomicUsize::new(0),
            objective: config.objective,
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
        call: CallTime<'_>,
    ) -> Result<Pulled> {
        let work = |slot: &StreamSlot| {
            let (callers, _active) = self.enter();
            let whole = Some(wait::expected(transfer.len));
            let method = self.method(slot, callers, transfer, (whole, false), call);
            if let Some(way) = method.resident {
                let piece = CopyPiece { src: page, dst: transfer.memory.address, len: transfer.len as u64 };
                // SAFETY: as promised by the caller; it waits, and kernels reach the memory.
                if unsafe { slot.copy_resident(piece, way) }? {
                    return Ok(true);
                }
            } else {
                self.come_after(transfer, call.1)?;
            }
            let _calls = CallSeries::begin();
            // SAFETY: as promised by the caller.
            unsafe { copy_windows(slot, transfer, page, window) }
                .and_then(|()| slot.wait(method.wait))
                .inspect_err(|_| slot.clear())
                .map(|()| false)
        };
        let done = self.slots.with(transfer.memory.context, work)?;
        Ok(done.map_or(Pulled::Busy, |resident| Pulled::Done { resident }))
    }

    /// Moves a small transfer of a file.
    ///
    /// # Safety
    /// The transfer's memory is valid.
    pub(crate) unsafe fn run(&self, transfer: &Transfer, known: &Known<'_>, align: u64) -> Result<Attempt> {
        let Some(file) = known.descriptors else { return Ok(Attempt::Busy) };
        let (policy, call) = (known.policy, (known.began, known.order));
        let is_host = self.device.info().is_host;
        if is_host {
            return on_host(transfer, file, policy, align);
        }
        let work = |slot: &StreamSlot| {
            let (callers, _active) = self.enter();
            let moved = if transfer.direction == Direction::Read {
                let warmth = file.warmth_of_small(transfer.offset, transfer.len as u64, policy);
                // One CPU gains by pieces of several callers in one launch of the kernel, and waits for none.
                let is_cold = warmth == Warmth::Cold && self.cpus > 1;
                let method = self.method(slot, callers, transfer, (None, is_cold), call);
                read(slot, transfer, file, (policy, align, warmth), method)
            } else {
                let method = self.method(slot, callers, transfer, (None, false), call);
                write(slot, transfer, file, (policy, align), method)
            };
            // A copy may be in flight although a later step failed.
            moved.inspect_err(|_| slot.clear())
        };
        let context = transfer.memory.context;
        let is_small_write = transfer.direction == Direction::Write && transfer.len <= CELL;
        let known_taken = is_small_write && self.are_slots_taken();
        let mut done = if known_taken { None } else { self.slots.with(context, work)? };
        if done.is_none() && is_small_write {
            self.active_writers.fetch_add(1, Ordering::Relaxed);
            let _active = ActiveCaller(&self.active_writers);
            done = self.write_slots.with_any(context, work)?;
        }
        Ok(done.unwrap_or(Attempt::Busy))
    }

    /// Reads a long warm range on this thread, if callers are enough for lanes to gain nothing.
    ///
    /// # Safety
    /// The transfer's memory is valid.
    pub(crate) unsafe fn run_long(&self, transfer: &Transfer, known: &Known<'_>) -> Result<Attempt> {
        let Some(file) = known.descriptors.filter(|_| self.reads_long(known)) else {
            return Ok(Attempt::Busy);
        };
        if warmth_of(&Batch::of(transfer), known.policy) != Warmth::Warm {
            return Ok(Attempt::Busy);
        }
        file.check()?;
        let work = |slot: &StreamSlot| {
            let (callers, _active) = self.enter();
            slot.choose_stream(false);
            self.come_after(transfer, known.order)?;
            let has_cpus = callers * 2 <= self.cpus;
            let usual = if has_cpus { Wait::SpinThenBlock(LONG_POLL) } else { Wait::Nap(LOOK) };
            let wait = wait::by_objective(self.objective, usual);
            long::read(slot, transfer, file, (known.policy, known.align), wait).inspect_err(|_| slot.clear())
        };
        let done = self.slots.with(transfer.memory.context, work)?;
        Ok(done.unwrap_or(Attempt::Busy))
    }

    /// Whether callers read long warm ranges of such a file by themselves now.
    pub(crate) fn reads_long(&self, known: &Known<'_>) -> bool {
        !self.device.info().is_host && self.is_crowd() && known.align <= long::LONGEST_ALIGN
    }

    /// Whether synchronous callers are about as many as CPUs, this one included, or were until recently.
    fn is_crowd(&self) -> bool {
        let callers = self.active.load(Ordering::Relaxed) + self.waiting.load(Ordering::Relaxed) + 1;
        let were_crowd = self.are_crowd.load(Ordering::Relaxed);
        let are_crowd = are_crowd(callers, self.cpus, were_crowd);
        if are_crowd != were_crowd {
            self.are_crowd.store(are_crowd, Ordering::Relaxed);
        }
        are_crowd
    }

    /// Whether any thread uses a slot.
    pub(crate) fn are_busy(&self) -> bool {
        self.active.load(Ordering::Relaxed) > 0
    }

    fn are_slots_taken(&self) -> bool {
        let beside = self.active_writers.load(Ordering::Relaxed);
        self.active.load(Ordering::Relaxed).saturating_sub(beside) >= STREAM_SLOTS
    }

    fn enter(&self) -> (usize, ActiveCaller<'_>) {
        let callers = self.active.fetch_add(1, Ordering::Relaxed) + 1;
        (callers, ActiveCaller(&self.active))
    }

    /// Copies that are too large for a default stream wait here for the work that comes before them.
    fn come_after(&self, transfer: &Transfer, order: Option<&CallOrder<'_>>) -> Result<()> {
        let Some(order) = order.filter(|_| transfer.len > MAX_CALLER_BYTES) else { return Ok(()) };
        let wait = wait::by_objective(self.objective, Wait::Nap(copy_order::LOOK));
        match order.get().prior_work(self.device.as_ref(), transfer.memory.context)? {
            Some(prior_work) => prior_work.wait(wait),
            None => Ok(()),
        }
    }

    /// How to move a transfer beside this number of callers. `whole` is its least time, if the device does all of it; what is cold
    /// comes from a disk. Copies use the thread's default stream where that gives the right order.
    fn method<'a>(
        &'a self,
        slot: &StreamSlot,
        callers: usize,
        transfer: &Transfer,
        (whole, is_cold): (Option<Duration>, bool),
        (began, order): CallTime<'a>,
    ) -> CopyMethod<'a> {
        let is_tiny = (1..=MAX_CROWD_POLLED_BYTES).contains(&transfer.len);
        let is_in_parts = whole.is_none() && transfer.direction == Direction::Read;
        let longest = if is_in_parts { transfer.len.min(POSTED_PART as usize) } else { transfer.len };
        let resident = self.resident_way(slot, (callers, is_cold), (transfer, longest), (began, order));
        // What the resident kernel leaves comes after the default streams by then.
        let is_default = resident.is_none()
            && transfer.len <= MAX_CALLER_BYTES
            && order.is_some_and(|order| order.get() == CopyOrder::Behind);
        slot.choose_stream(is_default);
        let pace = if transfer.direction == Direction::Read { &self.inward } else { &self.outward };
        let has_cpu = callers <= MAX_POLLING_CALLERS || (is_tiny && callers < self.cpus);
        let polls = has_cpu && (whole.is_none() || transfer.len <= HUGE_PAGE);
        let wait = match self.objective {
            Objective::Latency => CopyWait::Poll(WaitPolicy { poll: POLL_LONG, last: Wait::Spin }),
            Objective::Cpu => CopyWait::Poll(WaitPolicy::BLOCK),
            Objective::Throughput if self.cpus == 1 => CopyWait::Poll(WaitPolicy::BLOCK),
            Objective::Throughput if polls => {
                CopyWait::Poll(WaitPolicy { poll: whole.unwrap_or_default() + LOOK, last: Wait::Block })
            }
            Objective::Throughput if is_cold => CopyWait::Cold { polling: &self.cold_polls, most: self.cpus },
            Objective::Throughput => CopyWait::Nap { pace, len: transfer.len, by_word: whole.is_some() },
        };
        CopyMethod { resident, wait, overlap: callers <= MAX_POLLING_CALLERS }
    }

    /// Whether there are enough callers for the resident kernel. It changes with a delay on purpose: copies on default
    /// streams look like the user's work to operations ordered behind them.
    fn are_many(&self, callers: usize) -> bool {
        let were_many = self.are_many.load(Ordering::Relaxed);
        let are_many = callers > if were_many { MAX_POLLING_CALLERS } else { FEW_CALLERS.min(self.cpus) };
        if are_many != were_many {
            self.are_many.store(are_many, Ordering::Relaxed);
        }
        are_many
    }

    /// The way of pieces of up to `longest` bytes by the resident kernel, if there are enough callers for it. With fewer a polled
    /// copy each is as fast, and needs no room on the GPU.
    fn resident_way<'a>(
        &self,
        slot: &StreamSlot,
        (callers, is_cold): (usize, bool),
        (transfer, longest): (&Transfer, usize),
        (began, order): CallTime<'a>,
    ) -> Option<ResidentWay<'a>> {
        if !self.are_many(callers) {
            return None;
        }
        let wait = CallerWait::new(self.objective, callers, self.cpus, is_cold);
        let way = slot.resident.way(longest, order, (wait, is_cold))?;
        if is_cold {
            // Most cold pieces find no launch: see `StreamSlot::takes_cold`.
            return Some(way);
        }
        let now = began.unwrap_or_else(Instant::now);
        slot.is_kernels_memory(transfer.piece().memory(), now).then_some(way)
    }
}

/// Whether this number of callers are a crowd, beside which lanes gain nothing.
fn are_crowd(callers: usize, cpus: usize, were_crowd: bool) -> bool {
    let part = if were_crowd { CROWD.1 } else { CROWD.0 };
    callers >= 2 && callers * part >= cpus
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
        unsafe { slot.stream().copy_in(to, HostRange::new(from, (stop - start) as usize)) }?;
        start = stop;
    }
    Ok(())
}

/// Where a part ends: at a multiple of `part` in the file, unless that would leave less than half of one on either side.
fn end_of_part(start: u64, end: u64, part: u64) -> u64 {
    let next = (start / part + 1) * part;
    let stop = if next - start < part / 2 { next + part } else { next };
    if stop + part / 2 > end { end } else { stop }
}

/// Reads part after part; each part's copy runs while the next part is read.
fn read(
    slot: &StreamSlot,
    transfer: &Transfer,
    file: &Descriptors,
    (policy, align, warmth): (CachePolicy, u64, Warmth),
    method: CopyMethod<'_>,
) -> Result<Attempt> {
    // Cold bytes come by one call: the disk works best on all of it.
    let part = match method.resident {
        _ if warmth == Warmth::Cold => None,
        Some(_) => Some(POSTED_PART),
        // The driver's copies of many callers overlap anyway.
        None => method.overlap.then_some(PART),
    };
    let end = transfer.offset + transfer.len as u64;
    let (first, last) = aligned_out(transfer.offset, end, align);
    let room = slot.room((last - first) as usize)?;
    let mut pieces = Pieces::new(slot, room, method.resident);
    let (mut start, mut good, mut moved) = (transfer.offset, 0, Moved::default());
    let mut is_checked = false;
    while start < end {
        let stop = part.map_or(end, |part| end_of_part(start, end, part));
        let (low, high) = aligned_out(start, stop, align);
        let address = transfer.memory.address + (start - transfer.offset);
        let host = room.host.wrapping_add((low - first) as usize);
        let mut segment =
            Segment::whole(start, (stop - start) as usize, address).in_window((low, high), host);
        let is_direct = warmth == Warmth::Cold && segment.is_direct_where_cold(file, align, policy);
        if !is_direct && !is_checked {
            file.check()?;
            is_checked = true;
        }
        if !segment.read_cached(file, align, policy, warmth) {
            segment.run_blocking(Direction::Read, file, align)?;
        }
        let got = segment.good();
        if got > 0 {
            let src = room.reach_of(segment.wanted().start);
            // SAFETY: the slot is ours until all is finished below; the caller vouched for the memory.
            unsafe { pieces.start(CopyPiece { src, dst: segment.address, len: got as u64 }) }?;
        }
        good += got;
        moved = moved.plus(segment.moved());
        if got < segment.len {
            break;
        }
        start = stop;
    }
    // SAFETY: as above.
    unsafe { pieces.finish_all() }?;
    if pieces.is_copying() {
        slot.wait(method.wait)?;
    }
    Ok(Attempt::Done(good, moved.by_resident(pieces.resident)))
}

fn write(
    slot: &StreamSlot,
    transfer: &Transfer,
    file: &Descriptors,
    (policy, align): (CachePolicy, u64),
    method: CopyMethod<'_>,
) -> Result<Attempt> {
    let room = slot.room(transfer.len)?;
    let segment = Segment { host: room.host, ..in_place(transfer) };
    let mut resident = 0;
    if transfer.len > 0 {
        let piece = CopyPiece { src: transfer.memory.address, dst: room.reach, len: transfer.len as u64 };
        // SAFETY: as in `read`.
        if unsafe { try_resident(slot, piece, method) }? {
            resident = piece.len;
        } else {
            let _calls = CallSeries::begin();
            // SAFETY: as in `read`.
            unsafe {
                slot.stream().copy_out(HostRange::new(segment.host, transfer.len), transfer.memory.address)
            }?;
            slot.wait(method.wait)?;
        }
    }
    match write_segment(segment, file, (policy, align), transfer.allow_short)? {
        Attempt::Done(good, moved) => Ok(Attempt::Done(good, moved.by_resident(resident))),
        Attempt::Busy => Ok(Attempt::Busy),
    }
}

/// Copies a piece by the resident kernel, if that is its way and can be gone now.
///
/// # Safety
/// Both ends are memory of the slot and of the transfer, which nobody else uses.
unsafe fn try_resident(slot: &StreamSlot, piece: CopyPiece, method: CopyMethod<'_>) -> Result<bool> {
    match method.resident {
        // SAFETY: passed on; that kernels reach the memory was found out with the way.
        Some(way) => unsafe { slot.copy_resident(piece, way) },
        None => Ok(false),
    }
}

/// The whole transfer as one segment in the caller's own host memory.
fn in_place(transfer: &Transfer) -> Segment {
    Segment::whole(transfer.offset, transfer.len, transfer.memory.address)
}

fn on_host(transfer: &Transfer, file: &Descriptors, policy: CachePolicy, align: u64) -> Result<Attempt> {
    let mut segment = in_place(transfer);
    if transfer.direction == Direction::Write {
        return write_segment(segment, file, (policy, align), transfer.allow_short);
    }
    file.check()?;
    if !segment.read_cached(file, align, policy, Warmth::Mixed) {
        segment.run_blocking(Direction::Read, file, align)?;
    }
    Ok(Attempt::Done(segment.good(), segment.moved()))
}

fn write_segment(
    mut segment: Segment,
    file: &Descriptors,
    (policy, align): (CachePolicy, u64),
    allow_short: bool,
) -> Result<Attempt> {
    if segment.len == 0 {
        file.check()?;
        return Ok(Attempt::Done(0, segment.moved()));
    }
    segment.choose_write(file, align, policy);
    // A direct write looks at its own descriptor.
    if !segment.is_direct() {
        file.check()?;
    }
    match segment.run_blocking(Direction::Write, file, align) {
        Err(error) if !(allow_short && is_short_write(segment.good() as u64, &error)) => Err(error),
        _ => Ok(Attempt::Done(segment.good(), segment.moved())),
    }
}

#[cfg(test)]
mod tests {
    use super::{are_crowd, end_of_part};

    #[test]
    fn a_crowd_does_not_end_while_some_are_between_two_calls() {
        assert!(!are_crowd(7, 16, false) && are_crowd(8, 16, false));
        assert!(are_crowd(4, 16, true) && !are_crowd(3, 16, true));
        assert!(!are_crowd(1, 2, true) && are_crowd(2, 2, false));
    }

    #[test]
    fn parts_are_not_too_small() {
        let cut = |start, end| {
            let mut at = start;
            let mut parts = Vec::new();
            while at < end {
                parts.push(end_of_part(at, end, 100) - at);
                at += parts[parts.len() - 1];
            }
            parts
        };
        assert_eq!(cut(0, 400), [100, 100, 100, 100]);
        assert_eq!(cut(99, 103), [4]);
        assert_eq!(cut(60, 360), [140, 100, 60]);
        assert_eq!(cut(50, 149), [99]);
        assert_eq!(cut(40, 240), [60, 140]);
    }
}
