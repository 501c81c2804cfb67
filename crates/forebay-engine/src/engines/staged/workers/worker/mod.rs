//! One lane's loop: taking work, and the kernel's side of it. The device's side is in [`copies`], sleep in [`waiting`],
//! how works end in [`ends`].

mod copies;
mod ends;
mod waiting;

use std::collections::VecDeque;
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use forebay_error::{Error, Result};
use forebay_gpu::Wait;

use self::copies::{Flight, LaneStream};
use super::slots::{Arena, Room};
use super::{Herald, Shared, Started, make_ring};
use crate::engines::staged::job::Job;
use crate::io::plan::{CELL, Work, aligned_out};
use crate::io::ring::{Completed, Operation, Registrable, Ring};
use crate::io::segment::{Next, Segment, Way};
use crate::io::wake::Door;
use crate::request::receipt::{Moved, Refusal};
use crate::request::ticket::Completion;
use crate::runtime::sys;
use crate::source::piece::Direction;
use crate::source::residency::Warmth;
use crate::source::{Fd, Fill, Request};

/// Operations in the ring at once: more only makes the kernel punt them to helper threads.
const DEPTH: usize = 128;
/// Pieces from which on a warm pack goes by the ring.
const RING_PACK_LEAST: usize = 16;
/// Ready cells that are delivered together while more could be started.
const TOGETHER: usize = 32;

/// What a unit offers to its work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Slot,
    Cell,
    /// Nothing: the drive uses the caller's memory.
    Bare,
}

/// A slot or cell, or neither, with the work that uses it.
struct Unit {
    room: Room,
    kind: Kind,
    active: Option<Active>,
    segments: Vec<Segment>,
}

/// A work in flight.
struct Active {
    job: Arc<Job>,
    /// Segments that the kernel or the source has not answered yet.
    pending: usize,
    finished: bool,
    entries: (u32, u32),
    /// Bytes of segments that count as moved, and were not.
    lost: u64,
    work: Work,
    /// Why the drive did not move it: it is to be staged.
    detour: Option<Arc<Refusal>>,
}

impl Drop for Active {
    /// A lane that panics fails its works, so that nobody waits for them forever.
    fn drop(&mut self) {
        if !self.finished {
            for entry in self.entries.0..self.entries.1 {
                let error = Error::new(forebay_error::ErrorKind::Internal, "the lane that moved this died");
                self.job.completion.fail(self.job.base + entry, 0, error);
            }
            self.job.completion.work_done(Moved::default());
        }
    }
}

pub(super) struct Lane {
    index: usize,
    shared: Arc<Shared>,
    door: Arc<Door>,
    is_host: bool,
    ring: Option<Ring>,
    units: Vec<Unit>,
    free_slots: Vec<usize>,
    free_cells: Vec<usize>,
    free_bare: Vec<usize>,
    /// Taken from the queue, but the unit that it needs is not free.
    stash: Option<(Arc<Job>, Work)>,
    /// Units whose bytes wait for the device copy.
    ready: Vec<usize>,
    flights: VecDeque<Flight>,
    streams: Vec<LaneStream>,
    /// Segments that wait for room in the ring.
    backlog: VecDeque<(usize, usize)>,
    completed: Vec<Completed>,
    /// Requests at sources without a descriptor.
    asked: usize,
    /// What works that are done came to, until this thread has let go of their jobs: whoever finds a transfer resolved finds
    /// its file let go.
    done: Vec<(Arc<Completion>, Moved)>,
    /// Last: units point into it, and the ring has it registered.
    _arena: Arena,
}

impl Lane {
    /// The thread's body.
    pub(super) fn main(index: usize, shared: Arc<Shared>, door: &Arc<Door>, mut herald: Herald) {
        let mut notes = Vec::new();
        door.move_in();
        match Self::new(index, shared, door, &mut notes) {
            Ok(mut lane) => {
                herald.tell(Ok(Started { ring: lane.ring.is_some(), notes }));
                lane.run();
            }
            Err(error) => herald.tell(Err(error)),
        }
    }

    fn new(
        index: usize,
        shared: Arc<Shared>,
        door: &Arc<Door>,
        notes: &mut Vec<crate::request::receipt::Note>,
    ) -> Result<Self> {
        let device = shared.device.clone();
        device.adopt_thread();
        if let Some(node) = device.info().numa_node {
            sys::bind_to_node(node);
        }
        // SAFETY: no pointers; it only makes this thread's short waits short.
        unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, 1, 0, 0, 0) };
        let is_host = device.info().is_host;
        let arena = Arena::new(&device, shared.config.slots, shared.config.slot_size)?;
        // Where the drive uses the caller's memory, none of ours need be there: registering would pin it.
        let memory = (!device.info().is_bar).then(|| arena.data());
        let ring = make_ring(shared.config.io, memory, door, notes)?;
        let slots = arena.slots.iter().map(|room| (*room, Kind::Slot));
        let cells = arena.cells.iter().map(|room| (*room, Kind::Cell));
        let bare = if device.info().is_bar { DEPTH } else { 0 };
        let rooms = slots.chain(cells).chain(std::iter::repeat_n((Room::NONE, Kind::Bare), bare));
        let units: Vec<_> =
            rooms.map(|(room, kind)| Unit { room, kind, active: None, segments: Vec::new() }).collect();
        let (slots, rooms) = (arena.slots.len(), arena.slots.len() + arena.cells.len());
        Ok(Self {
            index,
            shared,
            door: door.clone(),
            is_host,
            ring,
            free_slots: (0..slots).rev().collect(),
            free_cells: (slots..rooms).rev().collect(),
            free_bare: (rooms..units.len()).rev().collect(),
            units,
            stash: None,
            ready: Vec::new(),
            flights: VecDeque::new(),
            streams: Vec::new(),
            backlog: VecDeque::new(),
            completed: Vec::new(),
            asked: 0,
            done: Vec::new(),
            _arena: arena,
        })
    }

    fn run(&mut self) {
        loop {
            let mut moved = self.take_answers();
            moved |= self.harvest();
            moved |= self.land();
            self.tell_done();
            moved |= self.start();
            self.deliver();
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

    /// Starts works until one did its reading on this thread (its copy should begin) or nothing can be started.
    fn start(&mut self) -> bool {
        let mut any = false;
        while let Some((job, work)) = self.stash.take().or_else(|| self.take_work()) {
            if job.completion.is_cancelled() {
                any = true;
                job.leave_out(work);
                continue;
            }
            let Some(unit) = self.claim(&job, work) else {
                self.stash = Some((job, work));
                break;
            };
            any = true;
            drop(job);
            self.begin(unit);
            self.tell_done();
            if self.ready.len() >= TOGETHER
                || self.ready.iter().any(|unit| self.units[*unit].kind == Kind::Slot)
            {
                break;
            }
        }
        any
    }

    fn take_work(&self) -> Option<(Arc<Job>, Work)> {
        self.shared.queue.take(self.index, self.may_hold())
    }

    /// Whether there are rooms to spare for works whose copies have to wait: the last ones are for others.
    fn may_hold(&self) -> bool {
        self.free_slots.len() > 1 && self.free_cells.len() > 1
    }

    /// A free unit with the work's segments laid out in it.
    fn claim(&mut self, job: &Arc<Job>, work: Work) -> Option<usize> {
        let (entries, is_small) = match work {
            Work::Chunk { entry, start, end } => {
                let (low, high) = aligned_out(start, end, job.align);
                ((entry, entry + 1), (high - low) as usize <= CELL)
            }
            Work::Pack { first, last } | Work::Run { first, last, .. } => ((first, last), false),
        };
        let unit = match (&job.placing, is_small) {
            (Some(_), _) => self.free_bare.pop(),
            (None, true) => self.free_cells.pop(),
            (None, false) => self.free_slots.pop(),
        }?;
        let mut segments = std::mem::take(&mut self.units[unit].segments);
        segments.clear();
        let room = self.units[unit].room;
        let mut at = 0;
        // Neighbours are one segment.
        let count = if matches!(work, Work::Run { .. }) { entries.1 - entries.0 } else { 1 };
        for entry in (entries.0..entries.1).step_by(count as usize) {
            let piece = job.batch.pieces[entry as usize];
            let (start, end) = match work {
                Work::Chunk { start, end, .. } | Work::Run { start, end, .. } => (start, end),
                Work::Pack { .. } => (piece.offset, piece.offset + piece.len as u64),
            };
            let address = piece.address.wrapping_add(start.wrapping_sub(piece.offset));
            let segment =
                self.lay_out(job, (entry, count), (start, end), address, room.host.wrapping_add(at));
            let (low, high) = aligned_out(start, end, job.align);
            at += (high - low) as usize;
            segments.push(segment);
        }
        debug_assert!(job.placing.is_some() || at <= room.len, "works fit into their rooms: see plan.rs");
        self.units[unit].segments = segments;
        self.shared.works.fetch_add(1, Ordering::Relaxed);
        self.units[unit].active = Some(Active {
            job: job.clone(),
            pending: 0,
            finished: false,
            entries,
            lost: 0,
            work,
            detour: None,
        });
        Some(unit)
    }

    /// A segment in its room, or straight in the caller's memory where host memory is aligned well enough.
    fn lay_out(
        &self,
        job: &Job,
        (entry, entries): (u32, u32),
        (start, end): (u64, u64),
        address: u64,
        room: *mut u8,
    ) -> Segment {
        let len = (end - start) as usize;
        let (low, high) = aligned_out(start, end, job.align);
        let exact = low == start && high == end;
        let in_place = entries == 1
            && self.is_host
            && (!job.wants_direct() || (exact && address.is_multiple_of(job.memory_align())));
        let in_place = in_place || job.placing.is_some();
        let (base, host, window) = if in_place {
            (start, address as *mut u8, len)
        } else if job.batch.direction == Direction::Read {
            (low, room, (high - low) as usize)
        } else {
            (start, room, len)
        };
        Segment {
            entry,
            entries,
            start,
            len,
            address,
            base,
            host,
            window,
            done: 0,
            cached: 0,
            placed: 0,
            way: if job.placing.is_some() { Way::Placed } else { Way::Cached },
            registered: !in_place,
            failed: false,
            asks_cache: false,
            refused: None,
        }
    }

    fn begin(&mut self, unit: usize) {
        let job = self.job(unit);
        match job.batch.direction {
            _ if job.placing.is_some() => self.begin_placed(unit, &job),
            Direction::Read => self.begin_read(unit),
            Direction::Write if self.is_host => {
                for segment in self.units[unit].segments.iter().filter(|segment| segment.registered) {
                    for share in segment.shares(&job.batch.pieces, segment.len) {
                        let (from, to) = (share.address as *const u8, segment.host.wrapping_add(share.at));
                        // SAFETY: the caller vouched for its memory, the room is this unit's; they cannot overlap.
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

    // ---- the kernel's side --------------------------------------------------------------------------------------

    fn begin_read(&mut self, unit: usize) {
        let job = self.job(unit);
        if self.is_lost(unit, &job) {
            return;
        }
        let is_host = self.is_host;
        let by_ring = self.asks_by_ring(unit, &job);
        for index in 0..self.units[unit].segments.len() {
            let segment = &mut self.units[unit].segments[index];
            match job.batch.file.source().fill() {
                Fill::Requests(_) => self.ask(unit, index, &job),
                Fill::Descriptor(file) if by_ring => {
                    segment.ask_cache();
                    if let Some(ring) = &mut self.ring
                        && let Err(error) = engage(ring, &file.buffered, file.id, true)
                    {
                        self.fail(unit, index, error);
                        continue;
                    }
                    self.backlog.push_back((unit, index));
                    self.add_pending(unit, 1);
                }
                Fill::Descriptor(file) => {
                    if is_host && job.warmth != Warmth::Cold && segment.read_in_place(file, job.cache) {
                        continue;
                    }
                    if segment.read_cached(file, job.align, job.cache, job.warmth) {
                        continue;
                    }
                    self.go_on(unit, index, &job, file);
                }
            }
        }
        if self.pending(unit) == 0 {
            self.loaded(unit);
        }
    }

    /// The drive has all that it needs.
    fn begin_placed(&mut self, unit: usize, job: &Job) {
        let Fill::Descriptor(file) = job.batch.file.source().fill() else { return };
        if self.is_lost(unit, job) {
            return;
        }
        for index in 0..self.units[unit].segments.len() {
            if self.units[unit].segments[index].len > 0 {
                self.go_on(unit, index, job, file);
            }
        }
        if self.pending(unit) == 0 {
            self.finish(unit);
        }
    }

    /// Ends a work whose file's descriptor the program has closed, before any of its bytes goes by that number.
    fn is_lost(&mut self, unit: usize, job: &Job) -> bool {
        let Fill::Descriptor(file) = job.batch.file.source().fill() else { return false };
        let checked = file.check();
        checked.inspect_err(|error| self.fail_units(&[unit], error)).is_err()
    }

    /// Whether a pack asks the page cache by the ring: one system call for all its pieces, and a registered descriptor
    /// that lanes do not fight over.
    fn asks_by_ring(&self, unit: usize, job: &Job) -> bool {
        self.ring.is_some()
            && job.warmth == Warmth::Warm
            && self.units[unit].segments.len() >= RING_PACK_LEAST
            && matches!(job.batch.file.source().fill(), Fill::Descriptor(file) if !file.is_memory)
    }

    fn begin_write(&mut self, unit: usize) {
        let job = self.job(unit);
        if self.is_lost(unit, &job) {
            return;
        }
        for index in 0..self.units[unit].segments.len() {
            let segment = &mut self.units[unit].segments[index];
            if segment.failed || segment.len == 0 {
                continue;
            }
            match job.batch.file.source().fill() {
                Fill::Requests(_) => self.ask(unit, index, &job),
                Fill::Descriptor(file) => {
                    segment.choose_write(file, job.align, job.cache);
                    self.go_on(unit, index, &job, file);
                }
            }
        }
        if self.pending(unit) == 0 {
            self.finish(unit);
        }
    }

    /// The segment's next kernel call: in the ring if it may wait long, at once otherwise.
    fn go_on(&mut self, unit: usize, index: usize, job: &Job, file: &crate::source::Descriptors) {
        let segment = &mut self.units[unit].segments[index];
        let may_wait = !matches!(segment.way, Way::Cached | Way::Requested) && segment.done < segment.window;
        if may_wait && let Some(ring) = &mut self.ring {
            let is_lasting = job.plan.len() > 1 || job.batch.pieces.len() > 1;
            if let Err(error) = engage(ring, segment.descriptor(file), file.id, is_lasting) {
                return self.fail(unit, index, error);
            }
            self.backlog.push_back((unit, index));
            self.add_pending(unit, 1);
            return;
        }
        if let Err(error) = segment.run_blocking(job.batch.direction, file, job.align) {
            self.call_failed(unit, index, error);
        }
    }

    /// Hands a segment to a source without a descriptor.
    fn ask(&mut self, unit: usize, index: usize, job: &Job) {
        let Fill::Requests(source) = job.batch.file.source().fill() else { return };
        self.add_pending(unit, 1);
        self.asked += 1;
        let segment = &mut self.units[unit].segments[index];
        segment.way = Way::Requested;
        segment.done = (segment.start - segment.base) as usize;
        let request = Request {
            direction: job.batch.direction,
            offset: segment.start,
            buffer: segment.wanted(),
            len: segment.len,
        };
        let (door, user) = (self.door.clone(), user_data(unit, index));
        source.start(request, Box::new(move |result| door.answer(user, result)));
    }

    fn take_answers(&mut self) -> bool {
        if self.asked == 0 {
            return false;
        }
        let answers = self.door.answers();
        let any = !answers.is_empty();
        for (user, result) in answers {
            self.asked -= 1;
            let (unit, index) = from_user_data(user);
            match result {
                Ok(bytes) => self.units[unit].segments[index].done += bytes,
                Err(error) => self.fail(unit, index, error),
            }
            self.answered(unit);
        }
        any
    }

    /// Queues waiting segments as far as the ring has room, and starts them.
    fn feed_ring(&mut self) {
        let Some(ring) = &mut self.ring else { return };
        let mut failed = Vec::new();
        let mut any = false;
        while ring.outstanding() < DEPTH
            && let Some((unit, index)) = self.backlog.pop_front()
        {
            let Unit { segments, active, .. } = &self.units[unit];
            let (Some(active), segment) = (active, &segments[index]) else { continue };
            let Fill::Descriptor(file) = active.job.batch.file.source().fill() else { continue };
            let (buffer, len, offset) = segment.next_call();
            let operation = Operation {
                direction: active.job.batch.direction,
                on: Registrable { fd: segment.fd(file), file: file.id },
                buffer,
                len,
                offset,
                user: user_data(unit, index),
                registered: segment.registered,
                nowait: segment.asks_cache,
            };
            any = true;
            // SAFETY: the unit's memory and the job's file stay until the operation is harvested.
            if let Err(error) = unsafe { ring.queue(&operation) } {
                failed.push((unit, index, error));
            }
        }
        if any {
            ring.submit();
        }
        for (unit, index, error) in failed {
            self.call_failed(unit, index, error);
            self.answered(unit);
        }
    }

    fn harvest(&mut self) -> bool {
        let Some(ring) = &mut self.ring else { return false };
        ring.poll();
        let mut completed = std::mem::take(&mut self.completed);
        ring.harvest(&mut completed);
        let any = !completed.is_empty();
        for Completed { user, result } in completed.drain(..) {
            let (unit, index) = from_user_data(user);
            self.operation_done(unit, index, result);
        }
        self.completed = completed;
        any
    }

    fn operation_done(&mut self, unit: usize, index: usize, result: i32) {
        let job = self.job(unit);
        let Fill::Descriptor(file) = job.batch.file.source().fill() else { return };
        let segment = &mut self.units[unit].segments[index];
        let (buffer, len, offset) = segment.next_call();
        let result = file.calls.completed(job.batch.direction, buffer as u64, offset, len, result);
        if segment.asks_cache {
            if segment.take_cached(result as isize, file, job.align, job.cache) {
                self.answered(unit);
            } else {
                self.backlog.push_back((unit, index));
            }
            return;
        }
        match segment.advance(job.batch.direction, result as isize, job.align) {
            Next::Again if segment.done < segment.window => {
                self.backlog.push_back((unit, index));
                return;
            }
            Next::Failed(error) => self.call_failed(unit, index, error),
            Next::Done | Next::Again => {}
        }
        self.answered(unit);
    }

    fn pending(&self, unit: usize) -> usize {
        self.units[unit].active.as_ref().map_or(0, |active| active.pending)
    }

    fn add_pending(&mut self, unit: usize, more: usize) {
        if let Some(active) = &mut self.units[unit].active {
            active.pending += more;
        }
    }

    /// One segment of the unit is answered.
    fn answered(&mut self, unit: usize) {
        let Some(active) = &mut self.units[unit].active else { return };
        active.pending -= 1;
        if active.pending > 0 {
            return;
        }
        match active.job.batch.direction {
            Direction::Read if active.job.placing.is_none() => self.loaded(unit),
            Direction::Read | Direction::Write => self.finish(unit),
        }
    }
}

impl Drop for Lane {
    /// Nothing may use the arena any more when it goes: a lane that panicked may have left copies and reads behind.
    fn drop(&mut self) {
        self.tell_done();
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
    }
}

/// Makes a descriptor ready for the ring, and sure that it is its file's: the ring keeps the file of one that is to last.
fn engage(ring: &mut Ring, fd: &Fd, file: u64, is_lasting: bool) -> Result<()> {
    let on = Registrable { fd: fd.as_raw_fd(), file };
    if ring.has_file(on) {
        return Ok(());
    }
    if is_lasting {
        ring.register_file(on);
    }
    fd.check().inspect_err(|_| ring.forget_file(on))
}

fn user_data(unit: usize, index: usize) -> u64 {
    (unit as u64) << 32 | index as u64
}

fn from_user_data(user: u64) -> (usize, usize) {
    ((user >> 32) as usize, (user & 0xFFFF_FFFF) as usize)
}
