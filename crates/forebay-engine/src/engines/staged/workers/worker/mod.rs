//! One lane's loop: it takes works and lays them out in its memory. The kernel's side is in [`calls`], the device's in
//! [`copies`], sleep in [`waiting`], the ends of works in [`ends`].

mod calls;
mod copies;
mod ends;
mod waiting;

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use forebay_error::{Error, ErrorKind, Result};
use forebay_gpu::{Context, DeviceRange, Wait};

use self::copies::{CopyFlight, LaneStream};
use super::slots::{LanePart, SlotMemory};
use super::threads::LaneStarted;
use super::{LaneShared, StartReport, make_ring};
use crate::engines::staged::job::Job;
use crate::io::plan::{CELL, Work, aligned_out};
use crate::io::ring::{Ring, RingCompletion};
use crate::io::segment::Segment;
use crate::io::wake::WorkerWake;
use crate::request::completion::Completion;
use crate::request::receipt::{Moved, Note, Refusal, Way};
use crate::runtime::sys;
use crate::source::piece::Direction;
use crate::tuning::lanes::{CELLS, DEPTH, NEXT_LANE, PLAIN_SLOTS};

/// The memory of a unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum UnitKind {
    Slot,
    Cell,
    /// None: the drive uses the caller's memory.
    Bare,
}

/// A slot or cell, or neither, with the work that uses it.
struct LaneUnit {
    memory: SlotMemory,
    kind: UnitKind,
    active: Option<ActiveWork>,
    segments: Vec<Segment>,
}

/// A work that a lane has taken.
struct ActiveWork {
    job: Arc<Job>,
    /// Segments that the kernel or the source has not answered yet.
    pending: usize,
    finished: bool,
    /// Bytes of segments that count as moved and were not.
    lost: u64,
    work: Work,
    /// Why the drive did not move it: it will be staged.
    detour: Option<Arc<Refusal>>,
}

impl ActiveWork {
    fn new(job: Arc<Job>, work: Work) -> Self {
        Self { job, pending: 0, finished: false, lost: 0, work, detour: None }
    }

    /// Gives it up: it was cancelled.
    fn leave_out(mut self) {
        self.finished = true;
        self.job.leave_out(self.work);
    }
}

fn died() -> Error {
    Error::new(ErrorKind::Internal, "the lane that moved this died")
}

impl Drop for ActiveWork {
    /// A lane that panics fails its works, so that no ticket waits forever.
    fn drop(&mut self) {
        if !self.finished {
            for entry in self.work.entries() {
                self.job.completion.fail(self.job.base + entry, 0, died());
            }
            self.job.completion.work_done(Moved::default());
        }
    }
}

/// How much of its memory a lane has pinned.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd)]
enum LaneMemory {
    OneSlot,
    /// [`PLAIN_SLOTS`]: one is filled while others are copied.
    Plain,
    /// What the kernel or a source moves needs depth, and small cold pieces need cells.
    All,
    /// The lane works with what it has: more could not be pinned.
    Limited,
}

/// What a lane did to be ready for a large read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Readiness {
    /// It is ready, or no such read is expected.
    AsBefore,
    /// It has more memory now.
    Grown,
    /// It is woken when another lane has got its memory.
    WaitsForTurn,
}

pub(super) struct Lane {
    index: usize,
    shared: Arc<LaneShared>,
    wake: Arc<WorkerWake>,
    is_host: bool,
    ring: Option<Ring>,
    units: Vec<LaneUnit>,
    free_slots: Vec<usize>,
    free_cells: Vec<usize>,
    free_bare: Vec<usize>,
    /// A work from the queue whose unit is not free yet.
    stash: Option<ActiveWork>,
    /// Units whose bytes wait for the device copy.
    ready: Vec<usize>,
    flights: VecDeque<CopyFlight>,
    streams: Vec<LaneStream>,
    /// Segments that wait for room in the ring.
    backlog: VecDeque<(usize, usize)>,
    completed: Vec<RingCompletion>,
    /// Requests at sources without a descriptor.
    asked: usize,
    /// Room for their answers; empty.
    answers: Vec<(u64, Result<usize>)>,
    /// Results of works that are done, until this thread has released their jobs: a transfer's file is released before its
    /// ticket resolves.
    done: Vec<(Arc<Completion>, Moved)>,
    /// The device's addresses of its memory.
    reached: Vec<DeviceRange>,
    has: LaneMemory,
    /// Dropped last: units point into it, and the ring has it registered.
    memory: Vec<LanePart>,
}

impl Lane {
    /// The thread's body. Where a lane panics, another takes its place, as soon as it can begin.
    pub(super) fn main(
        index: usize,
        shared: &Arc<LaneShared>,
        memory: LanePart,
        wake: &Arc<WorkerWake>,
        mut report: StartReport,
    ) {
        wake.attach_thread();
        let (mut memory, mut has_lived, mut pause) = (Some(memory), false, NEXT_LANE.0);
        loop {
            let mut has_begun = false;
            let life = catch_unwind(AssertUnwindSafe(|| {
                let mut notes = Vec::new();
                let part = match memory.take() {
                    Some(part) => part,
                    None => LanePart::again(&shared.device, shared.config.slot_size)?,
                };
                let mut lane = Self::new(index, shared.clone(), part, wake, &mut notes)?;
                shared.threads.lives(index);
                report.send(Ok(LaneStarted { ring: lane.ring.is_some(), notes }));
                has_begun = true;
                lane.run();
                Ok(())
            }));
            let error = match life {
                Ok(Ok(())) => return,
                Ok(Err(error)) => error,
                Err(_) if has_begun => {
                    (has_lived, pause) = (true, NEXT_LANE.0);
                    let text = "a lane died, and another took its place".to_owned();
                    shared.threads.note(Note { text, hint: None });
                    continue;
                }
                Err(_) => super::died(),
            };
            shared.threads.is_gone(index);
            if has_lived && error.kind() != ErrorKind::DeviceLost && !shared.stop.load(Ordering::SeqCst) {
                // The obstacle may pass, as a lack of memory does. Until then works that no other lane takes fail with
                // it.
                shared.queue.refuse_if(&error, |width| !shared.threads.any_lives(width));
                shared.pause(pause);
                pause = (pause * 2).min(NEXT_LANE.1);
                continue;
            }
            report.send(Err(error.clone()));
            if index == 0 {
                shared.close(error);
            }
            return;
        }
    }

    fn new(
        index: usize,
        shared: Arc<LaneShared>,
        mut memory: LanePart,
        wake: &Arc<WorkerWake>,
        notes: &mut Vec<Note>,
    ) -> Result<Self> {
        let device = shared.device.clone();
        device.adopt_thread();
        sys::settle_thread(device.info().numa_node);
        let is_host = device.info().is_host;
        memory.group().touch();
        memory.group().arrive();
        // Where the drive uses the caller's memory, ours is not registered: that would pin it.
        let registered = (!device.info().is_bar).then(|| memory.data());
        let ring = make_ring(shared.config.io, registered, wake, notes)?;
        let reach = memory.group().wait()?;
        let unit = |(memory, kind)| LaneUnit { memory, kind, active: None, segments: Vec::new() };
        let mut units: Vec<_> = memory.memory(reach).map(|slot| unit((slot, UnitKind::Slot))).collect();
        let bare = if device.info().is_bar { DEPTH } else { 0 };
        let free_slots = (0..units.len()).collect();
        let free_bare = (units.len()..units.len() + bare).rev().collect();
        units.extend(std::iter::repeat_n((SlotMemory::NONE, UnitKind::Bare), bare).map(unit));
        Ok(Self {
            index,
            shared,
            wake: wake.clone(),
            is_host,
            ring,
            free_slots,
            free_cells: Vec::new(),
            free_bare,
            units,
            stash: None,
            ready: Vec::new(),
            flights: VecDeque::new(),
            streams: Vec::new(),
            backlog: VecDeque::new(),
            completed: Vec::new(),
            asked: 0,
            answers: Vec::new(),
            done: Vec::new(),
            reached: vec![memory.range(reach)],
            has: LaneMemory::OneSlot,
            memory: vec![memory],
        })
    }

    /// Pins more memory, up to the wanted number of slots.
    fn grow(&mut self, wanted: LaneMemory) {
        let (all, slot_size) = (self.shared.config.slots, self.shared.config.slot_size);
        let plain = PLAIN_SLOTS.min(all);
        let has = if self.has == LaneMemory::OneSlot { 1 } else { plain };
        let (slots, cells) = if wanted == LaneMemory::All { (all - has, CELLS) } else { (plain - has, 0) };
        let (more, reach) = match LanePart::more(&self.shared.device, slots, slot_size, cells) {
            Ok(made) => made,
            Err(error) => {
                let hint = error.hints().first().cloned();
                let text = format!("a lane works with {has} of {all} slots: {error}");
                self.shared.threads.note(Note { text, hint });
                self.has = LaneMemory::Limited;
                return;
            }
        };
        let unregistered = self.ring.as_mut().and_then(|ring| ring.register_more(more.data()));
        if let Some(note) = unregistered {
            self.shared.threads.note(note);
        }
        for (index, memory) in more.memory(reach).enumerate() {
            let kind = if index < more.slots() { UnitKind::Slot } else { UnitKind::Cell };
            self.free(self.units.len(), kind);
            self.units.push(LaneUnit { memory, kind, active: None, segments: Vec::new() });
        }
        self.reached.push(more.range(reach));
        self.memory.push(more);
        self.has = wanted;
    }

    /// No unit is free. Pins more memory if that helps; whether there is more by now.
    fn find_memory(&mut self) -> bool {
        let is_plain = self.outstanding() == 0 && self.asked == 0 && self.ready.is_empty();
        let wanted = if is_plain { LaneMemory::Plain } else { LaneMemory::All };
        if self.has >= wanted {
            return false;
        }
        if !is_plain {
            self.grow(wanted);
            return true;
        }
        self.grow_alone(wanted)
    }

    /// Pins more memory if no other lane does: the others go on with what they have. Whether it did.
    fn grow_alone(&mut self, wanted: LaneMemory) -> bool {
        let shared = Arc::clone(&self.shared);
        let Some(_turn) = shared.take_turn() else { return false };
        self.grow(wanted);
        true
    }

    /// Gets what a large read needs before there is one, if one is expected: a stream, and more slots as soon as no other lane
    /// gets some.
    fn get_ready(&mut self) -> Readiness {
        if self.has != LaneMemory::OneSlot || self.is_host || !self.shared.expects.load(Ordering::Relaxed) {
            return Readiness::AsBefore;
        }
        // An error shows again when a copy needs it.
        let _ = self.stream(Context::PRIMARY);
        let has_grown = self.grow_alone(LaneMemory::Plain) || {
            self.shared.wait_for_turn(self.index);
            // The turn may have become free before that: then nobody wakes this lane.
            self.grow_alone(LaneMemory::Plain)
        };
        if !has_grown {
            return Readiness::WaitsForTurn;
        }
        self.shared.wake_next(self.index);
        Readiness::Grown
    }

    fn run(&mut self) {
        loop {
            let mut moved = self.take_answers();
            moved |= self.harvest();
            moved |= self.land();
            self.tell_done();
            moved |= self.start();
            if !self.ready.is_empty() {
                self.deliver();
            }
            self.feed_ring();
            self.tell_done();
            if self.ring.as_ref().is_some_and(Ring::is_broken) {
                self.lose_ring();
                self.tell_done();
                continue;
            }
            if moved {
                continue;
            }
            if self.is_idle()
                && self.shared.stop.load(Ordering::SeqCst)
                && !self.shared.queue.has_work(self.index, true)
            {
                return;
            }
            self.wait();
        }
    }

    fn outstanding(&self) -> usize {
        self.ring.as_ref().map_or(0, Ring::outstanding)
    }

    fn is_idle(&self) -> bool {
        self.outstanding() == 0
            && self.asked == 0
            && self.flights.is_empty()
            && self.ready.is_empty()
            && self.stash.is_none()
    }

    // ---- taking work -------------------------------------------------------------------------------------------

    /// Starts works until none can be started, or one was read on this thread, so that its copy should begin.
    fn start(&mut self) -> bool {
        let mut any = false;
        while let Some(taken) = self.stash.take().or_else(|| self.take_work()) {
            if taken.job.completion.is_cancelled() {
                any = true;
                taken.leave_out();
                continue;
            }
            let Some(unit) = self.find_unit(&taken) else {
                self.stash = Some(taken);
                if self.find_memory() {
                    continue;
                }
                break;
            };
            any = true;
            self.claim(unit, taken);
            self.begin(unit);
            self.tell_done();
            if self.ready.len() >= CELLS / 2
                || self.ready.iter().any(|unit| self.units[*unit].kind == UnitKind::Slot)
            {
                break;
            }
        }
        any
    }

    fn take_work(&self) -> Option<ActiveWork> {
        let (job, work) = self.shared.queue.take(self.index, self.may_hold())?;
        Some(ActiveWork::new(job, work))
    }

    /// Whether works whose copies have to wait may be taken: the last slot and the last cell are for others.
    fn may_hold(&self) -> bool {
        self.has == LaneMemory::Limited || (self.free_slots.len() > 1 && self.free_cells.len() > 1)
    }

    /// A free unit for a work.
    fn find_unit(&mut self, taken: &ActiveWork) -> Option<usize> {
        let is_small = match taken.work {
            Work::Chunk { start, end, .. } => {
                let (low, high) = aligned_out(start, end, taken.job.align);
                (high - low) as usize <= CELL
            }
            Work::Pack { .. } | Work::Run { .. } => false,
        };
        match (&taken.job.mover, is_small) {
            (Some(_), _) => self.free_bare.pop(),
            (None, true) if self.has == LaneMemory::All => self.free_cells.pop(),
            (None, _) => self.free_slots.pop(),
        }
    }

    /// Gives a unit to a work, with its segments laid out in it.
    fn claim(&mut self, unit: usize, taken: ActiveWork) {
        let (job, work, entries) = (&taken.job, taken.work, taken.work.entries());
        let mut segments = std::mem::take(&mut self.units[unit].segments);
        segments.clear();
        let memory = self.units[unit].memory;
        let mut at = 0;
        // Neighbours are one segment.
        let count = if matches!(work, Work::Run { .. }) { entries.end - entries.start } else { 1 };
        for entry in entries.step_by(count as usize) {
            let piece = job.batch.pieces[entry as usize];
            let (start, end) = match work {
                Work::Chunk { start, end, .. } | Work::Run { start, end, .. } => (start, end),
                Work::Pack { .. } => (piece.offset, piece.offset + piece.len as u64),
            };
            let address = piece.address.wrapping_add(start.wrapping_sub(piece.offset));
            let range = (start, job.reach(start, end));
            let segment = self.lay_out(job, (entry, count), range, address, memory.host.wrapping_add(at));
            let (low, high) = aligned_out(start, end, job.align);
            at += (high - low) as usize;
            segments.push(segment);
        }
        let needs_no_slot = job.mover.is_some() || segments.iter().all(|segment| !segment.registered);
        debug_assert!(needs_no_slot || at <= memory.len, "works fit into their slots: see io/plan");
        self.units[unit].segments = segments;
        self.shared.works.fetch_add(1, Ordering::Relaxed);
        self.units[unit].active = Some(taken);
    }

    /// A segment in the unit's memory, or straight in the caller's where host memory is aligned well enough.
    fn lay_out(
        &self,
        job: &Job,
        (entry, entries): (u32, u32),
        (start, end): (u64, u64),
        address: u64,
        memory: *mut u8,
    ) -> Segment {
        let len = (end - start) as usize;
        let (low, high) = aligned_out(start, end, job.align);
        let exact = low == start && high == end;
        let in_place = entries == 1
            && self.is_host
            && (!job.wants_direct() || (exact && address.is_multiple_of(job.memory_align())));
        let piece = job.batch.pieces[entry as usize];
        let is_part = entries > 1 || len < piece.len;
        let whole = Segment { entry, entries, is_part, ..Segment::whole(start, len, address) };
        match (job.mover.is_some(), job.batch.direction) {
            (true, _) => Segment { way: Way::Drive, ..whole },
            _ if in_place => whole,
            (_, Direction::Read) => whole.in_window((low, high), memory),
            (_, Direction::Write) => whole.in_window((start, end), memory),
        }
    }

    fn begin(&mut self, unit: usize) {
        let job = self.job(unit);
        match job.batch.direction {
            _ if job.mover.is_some() => self.begin_placed(unit, &job),
            Direction::Read => self.begin_read(unit),
            Direction::Write if self.is_host => {
                for segment in self.units[unit].segments.iter().filter(|segment| segment.registered) {
                    for share in segment.shares(&job.batch.pieces, segment.len) {
                        let (from, to) = (share.address as *const u8, segment.host.wrapping_add(share.at));
                        // SAFETY: the caller vouched for its memory, the memory is this unit's; they cannot overlap.
                        unsafe { std::ptr::copy_nonoverlapping(from, to, share.len) };
                    }
                }
                self.begin_write(unit);
            }
            Direction::Write => self.ready.push(unit),
        }
    }

    fn job(&self, unit: usize) -> Arc<Job> {
        match &self.units[unit].active {
            Some(active) => active.job.clone(),
            None => unreachable!("only active units are worked on"),
        }
    }
}

/// How often a lane that ends looks for answers that are due.
const LATE_ANSWERS: Duration = Duration::from_millis(10);

impl Drop for Lane {
    /// Waits until nothing uses the memory: a lane that panicked may have left copies and reads behind.
    fn drop(&mut self) {
        self.tell_done();
        let begun = self.units.iter().filter(|unit| unit.active.is_some()).count();
        self.shared.works.fetch_sub(begun, Ordering::Relaxed);
        for flight in &self.flights {
            let _ = flight.event.wait(Wait::Block);
        }
        let mut late = Vec::new();
        while let Some(ring) = &mut self.ring
            && ring.outstanding() > 0
        {
            ring.wait(1, None);
            if ring.is_broken() {
                ring.settle();
                break;
            }
            ring.harvest(&mut late);
        }
        // A server's bytes come into the units' memory, or the caller's, until it has answered.
        while self.asked > 0 {
            self.answers.clear();
            self.wake.answers(&mut self.answers);
            self.asked -= self.answers.len();
            if self.asked > 0 {
                std::thread::park_timeout(LATE_ANSWERS);
            }
        }
    }
}
