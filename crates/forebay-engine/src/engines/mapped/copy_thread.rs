//! The thread that carries out transfers of files whose pages may be pinned: it lets the device pull what is
//! registered, hands the rest to the lanes, and makes sure that what was pulled is one state of the file.
#[cfg(test)]
mod tests;

use std::cell::OnceCell;
use std::collections::VecDeque;
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use forebay_config::Objective;
use forebay_error::{Error, Result};
use forebay_gpu::{Context, Event, Stream, Wait};

use super::again::{PAUSE, Redo};
use super::caller_thread::Driven;
use super::eligibility::Reason;
use super::list::List;
use super::pin::{Pin, Turn};
use super::pin_cache::{Answer, Request, Shelf};
use super::registrar::serve;
use super::route::{Route, Span, bytes_of, route};
use super::shared::{Shared, Work};
use super::transfer::{Pull, PullJob, elect};
use super::window::{Pinned, WINDOW};
use super::writers::Writers;
use crate::engines::permission::Permission;
use crate::io::plan::Part;
use crate::request::cancel::cancelled;
use crate::request::copy_order;
use crate::request::receipt::Moved;
use crate::request::ticket::CallerPolled as _;
use crate::request::ticket::Completion;
use crate::runtime::wait;
use crate::source::Fill;
use crate::source::piece::Direction;
use crate::source::version::FileVersion;

/// Bytes of one copy. Several are in flight: others' work comes in between.
const COPY: u64 = 64 << 20;
/// Copies and gathers in flight at once, and their bytes. Small ones need to be more for the bus to stay busy while a
/// window is registered.
const FLIGHTS: usize = 16;
const IN_FLIGHT: u64 = 4 * COPY;
/// Streams that copies take in turns: one begins while another ends.
const BULK: usize = 2;
/// The stream of the gathers, behind those.
const GATHER: usize = BULK;
/// Pieces of one gather.
const LIST: usize = 16 << 10;
/// Bytes of one gather: the next list is written meanwhile.
const GATHER_BYTES: u64 = 64 << 20;
/// How long to wait for pages that are being unregistered.
const CLEARED: Duration = Duration::from_millis(100);
/// While another device registers its windows for longer, the lanes take this one's: four devices that registered theirs
/// in turns read 18 GB/s together, where one registers and three are staged they read several times that.
const CONTENDED: Duration = Duration::from_millis(2);
/// How long an idle puller sleeps at most.
const IDLE: Duration = Duration::from_hours(1);

/// Copies or a gather in the air.
struct Flight {
    event: Box<dyn Event>,
    pull: usize,
    bytes: u64,
    list: Option<List>,
}

pub(super) struct Puller {
    shared: Arc<Shared>,
    streams: [Box<dyn Stream>; BULK + 1],
    /// Copies that were started.
    copies: usize,
    /// Whether kernels run here: compiled when the first small pieces come.
    can_gather: OnceCell<bool>,
    events: Vec<Box<dyn Event>>,
    lists: Vec<List>,
    pulls: Vec<Option<Pull>>,
    flights: VecDeque<Flight>,
    /// Flights of callers that wait by a waker, or not at all.
    watched: Vec<Arc<Driven>>,
    /// Batches whose copies come after work of the user's that is not done.
    held: Vec<PullJob>,
    /// What is read again.
    redos: Vec<Redo>,
    /// Held as long as there are windows to register.
    turn: Option<Turn>,
    next: usize,
}

impl Puller {
    pub(super) fn new(shared: Arc<Shared>) -> Result<Self> {
        let device = shared.shelf.device.clone();
        let stream = || device.stream(Context::PRIMARY);
        let streams = [stream()?, stream()?, stream()?];
        let can_gather = OnceCell::new();
        let (events, lists, pulls, flights) = (Vec::new(), Vec::new(), Vec::new(), VecDeque::new());
        let (watched, held, redos) = (Vec::new(), Vec::new(), Vec::new());
        Ok(Self {
            shared,
            streams,
            copies: 0,
            can_gather,
            events,
            lists,
            pulls,
            flights,
            watched,
            held,
            redos,
            turn: None,
            next: 0,
        })
    }

    /// Makes the calling thread fit for the work.
    pub(super) fn settle_in(shelf: &Shelf) {
        let device = &shelf.device;
        device.adopt_thread();
        shelf.listener.store(crate::runtime::sys::take_no_sigio(), Ordering::Relaxed);
        if let Some(node) = device.info().numa_node {
            crate::runtime::sys::bind_to_node(node);
        }
        // SAFETY: no pointers; it only makes this thread's short waits short.
        unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, 1, 0, 0, 0) };
    }

    /// Works until it is told to stop and everything is done, or another thread has gone on with its work.
    pub(super) fn run(mut self: Box<Self>) {
        loop {
            let seen = self.shared.shelf.bell.count();
            let mut moved = false;
            while let Some(work) = self.shared.take() {
                self.accept(work);
                moved = true;
            }
            moved |= self.begin_held();
            moved |= self.look_after_others();
            moved |= self.land();
            moved |= self.launch();
            moved |= self.finish();
            moved |= self.read_again();
            moved |= self.shared.reconsider();
            if let Some(request) = self.shared.next_request() {
                // The same pages may wait for being unregistered: they cannot be registered twice.
                let old = request.pinned.mapping();
                if !self.shared.shelf.reaper.settle_region(CLEARED, &old) {
                    let reason =
                        "its pages were let go of, and wait to be unregistered until streams are done";
                    self.shared.put_off(request, &Reason::new(reason));
                    continue;
                }
                self.turn = self.turn.take().or_else(|| Turn::take(CONTENDED));
                if self.turn.is_none() {
                    let reason = "other pages were being registered or unregistered, which takes its time";
                    self.shared.put_off(request, &Reason::new(reason));
                    continue;
                }
                self = match self.register(request) {
                    Some(puller) => puller,
                    None => return,
                };
                continue;
            }
            self.turn = None;
            if moved {
                continue;
            }
            if let Some(flight) = self.flights.front() {
                // An error shows again when the flight lands.
                let _ = flight.event.wait(self.manner(flight.bytes));
            } else if !self.held.is_empty() {
                self.shared.shelf.bell.wait(seen, copy_order::nap(self.shared.objective));
            } else if let Some(first) = self.watched.first() {
                self.shared.shelf.bell.wait(seen, first.nap());
            } else if !self.redos.is_empty() {
                self.shared.shelf.bell.wait(seen, PAUSE);
            } else if self.pulls.iter().all(Option::is_none) && self.shared.is_done() {
                return;
            } else {
                self.shared.shelf.bell.wait(seen, IDLE);
            }
        }
    }

    /// Registers a window while copies are in flight. Meanwhile the puller is parked where the keeper finds it: if the
    /// driver does not come back, another thread goes on. `None` if that happened.
    fn register(self: Box<Self>, request: Request) -> Option<Box<Self>> {
        let shared = self.shared.clone();
        let since = shared.park(self, &request);
        serve(&shared.shelf, request);
        shared.shelf.bell.ring();
        shared.unpark(since)
    }

    fn manner(&self, bytes: u64) -> Wait {
        match self.shared.objective {
            Objective::Latency => Wait::Spin,
            Objective::Throughput => wait::nap(bytes as usize),
            Objective::Cpu => Wait::Block,
        }
    }

    // ---- taking work --------------------------------------------------------------------------------------------

    fn accept(&mut self, work: Work) {
        match work {
            Work::Job(job) if !job.completion.may_copy() => self.held.push(job),
            Work::Job(job) => self.begin(job),
            Work::Watch(flight) => self.watched.push(flight),
            Work::Changed(pull) => self.redos.extend(pull.conclude(&self.shared, false)),
        }
    }

    /// Begins batches that were held back. Whether there were any that are due.
    fn begin_held(&mut self) -> bool {
        let is_due = |job: &mut PullJob| job.completion.may_copy() || job.completion.is_cancelled();
        let due: Vec<_> = self.held.extract_if(.., is_due).collect();
        let any = !due.is_empty();
        for job in due {
            self.begin(job);
        }
        any
    }

    /// Looks at flights that callers started and turned away from. Whether any has landed.
    fn look_after_others(&mut self) -> bool {
        let count = self.watched.len();
        self.watched.retain(|flight| !flight.look());
        self.watched.len() < count
    }

    fn begin(&mut self, job: PullJob) {
        if job.completion.is_cancelled() {
            return job.refuse(&cancelled());
        }
        let surely = self.shared.mode == Permission::Only;
        let registrar = |request| self.shared.register(request);
        let device = &self.shared.shelf.device;
        let can_gather = || {
            *self.can_gather.get_or_init(|| {
                let can = device.kernels(Context::PRIMARY).is_ok();
                self.shared.desks.allow(can);
                can
            })
        };
        let routed = route(&self.shared.shelf, &job.batch, surely, &can_gather, &registrar);
        let Route { pinned, version, spans, pins, rest, reason, cuts } = match routed {
            Ok(route) => route,
            Err(reason) => return self.leave_all(&job, reason),
        };
        if surely && let (false, Some(reason)) = (rest.is_empty(), &reason) {
            return job.refuse(&reason.error().with("file", job.batch.file.name()));
        }
        if job.batch.direction == Direction::Write
            && let (false, Some(reason)) = (rest.is_empty(), reason.clone())
        {
            // Done in part by the lanes it would look to us as if somebody else had changed the file.
            return self.leave_all(&job, reason);
        }
        let version = match job.batch.direction {
            Direction::Write if !spans.is_empty() => announce(&job, &pinned).unwrap_or(version),
            _ => version,
        };
        let pull = Pull {
            rest_bytes: bytes_of(&job.batch, &rest),
            rest: self.hand_over(&job, &rest).into_iter().collect(),
            cuts,
            job,
            pinned,
            version,
            todo: spans,
            pulled: Vec::new(),
            pins,
            in_flight: 0,
            bytes: 0,
            error: None,
            reason,
            left_out: Vec::new(),
        };
        match self.pulls.iter().position(Option::is_none) {
            Some(at) => self.pulls[at] = Some(pull),
            None => self.pulls.push(Some(pull)),
        }
    }

    /// Nothing of the batch can be pulled.
    fn leave_all(&self, job: &PullJob, reason: Reason) {
        if self.shared.mode == Permission::Only {
            return job.refuse(&reason.error().with("file", job.batch.file.name()));
        }
        let stage = &self.shared.stage;
        let staged = stage.plan(&job.batch, stage.warmth(&job.batch), None);
        let bytes = job.batch.pieces.iter().map(|piece| piece.len as u64).sum();
        elect(&self.shared, job, (0, Writers::Nobody), bytes, Some(reason));
        job.completion.expect(staged.works());
        stage.submit(&staged.job(job.base, job.completion.clone()));
        job.completion.work_done(Moved::default());
    }

    /// Gives parts of a read to the lanes. They report apart: what they read counts only if the file was the same
    /// before and after all of it.
    fn hand_over(&self, job: &PullJob, parts: &[Part]) -> Option<Arc<Completion>> {
        if parts.is_empty() {
            return None;
        }
        let shared = Arc::downgrade(&self.shared);
        let tell = Box::new(move || {
            if let Some(shared) = shared.upgrade() {
                shared.shelf.bell.ring();
            }
        });
        let stage = &self.shared.stage;
        let (warmth, election) = (stage.warmth(&job.batch), job.completion.election());
        Some(stage.submit_parts(&job.batch, warmth, parts, election, Some(tell), Some(&job.completion)))
    }

    // ---- copies -------------------------------------------------------------------------------------------------

    /// Starts copies, a batch at a time in turn, as many as may be in flight: registering the next window comes after,
    /// and takes about as long as copying one does. Whether any was started.
    fn launch(&mut self) -> bool {
        let mut any = false;
        while self.has_room() && self.launch_one() {
            any = true;
        }
        any
    }

    fn has_room(&self) -> bool {
        let bytes: u64 = self.flights.iter().map(|flight| flight.bytes).sum();
        self.flights.len() < FLIGHTS && bytes < IN_FLIGHT
    }

    fn launch_one(&mut self) -> bool {
        let count = self.pulls.len();
        let turn = (self.next..self.next + count).find(|turn| self.advance(turn % count));
        if let Some(turn) = turn {
            self.next = (turn + 1) % count;
        }
        turn.is_some()
    }

    /// Starts the batch's next copy or gather, if its pages are ready.
    fn advance(&mut self, at: usize) -> bool {
        let Some(Some(pull)) = self.pulls.get_mut(at) else { return false };
        let Some(span) = pull.todo.front().copied() else { return false };
        if pull.job.completion.is_cancelled() {
            pull.leave_out();
            return true;
        }
        if is_sealed(&pull.job) {
            return self.give_up(at, Reason::new("the file is sealed against writing"));
        }
        let window = match span {
            Span::Range { start, .. } => (start / WINDOW) as usize,
            Span::Entries { waits, .. } => {
                return match pull.admit(waits) {
                    Ok(true) => self.gather_entries(at),
                    Ok(false) => false,
                    Err(reason) => self.give_up(at, reason),
                };
            }
        };
        match pull.pinned.answer(window) {
            Answer::Ready(pin) => self.copy_range(at, pin),
            Answer::Pending(_) => false,
            Answer::No(reason) => self.give_up(at, reason),
        }
    }

    /// What comes next cannot be pulled after all.
    fn give_up(&mut self, at: usize, reason: Reason) -> bool {
        let Some(Some(pull)) = self.pulls.get_mut(at) else { return false };
        let parts = pull.take_alike();
        if self.shared.mode == Permission::Only {
            pull.error.get_or_insert(reason.error().with("file", pull.job.batch.file.name()));
            pull.pulled.extend(parts);
            return true;
        }
        pull.rest_bytes += bytes_of(&pull.job.batch, &parts);
        pull.reason.get_or_insert(reason);
        let job = pull.job.clone();
        let apart = self.hand_over(&job, &parts);
        if let Some(Some(pull)) = self.pulls.get_mut(at) {
            pull.rest.extend(apart);
        }
        true
    }

    fn copy_range(&mut self, at: usize, pin: Arc<Pin>) -> bool {
        let Some(Some(pull)) = self.pulls.get_mut(at) else { return false };
        let Some(Span::Range { entry, start, end }) = pull.todo.front().copied() else { return false };
        let Some(page) = pull.pinned.address(start) else { return false };
        if let Err(reason) = pull.hold(pin) {
            return self.give_up(at, reason);
        }
        pull.todo.pop_front();
        let stop = (start + COPY).min(end);
        if stop < end {
            pull.todo.push_front(Span::Range { entry, start: stop, end });
        }
        let piece = pull.job.batch.pieces[entry as usize];
        let memory = piece.address + (start - piece.offset);
        let len = (stop - start) as usize;
        pull.pulled.push(Part::Range { entry, start, end: stop });
        let by = self.copies % BULK;
        self.copies = self.copies.wrapping_add(1);
        // SAFETY: the pin keeps the pages registered and mapped until the flight has landed; the submitter vouched for
        // the memory.
        let queued = unsafe {
            match pull.job.batch.direction {
                Direction::Read => self.streams[by].copy_in(memory, page as *const u8, len),
                Direction::Write => self.streams[by].copy_out(page as *mut u8, memory, len),
            }
        };
        self.take_off(at, by, queued, stop - start, None)
    }

    /// Starts one kernel for entries that come next. The first of them is ready.
    fn gather_entries(&mut self, at: usize) -> bool {
        let list = match self.lists.pop().map_or_else(|| List::new(&self.shared.shelf.device, LIST), Ok) {
            Ok(list) => list,
            Err(error) => return self.give_up(at, Reason::from(&error)),
        };
        let Some(Some(pull)) = self.pulls.get_mut(at) else { return false };
        let written = pull.fill(&list, GATHER_BYTES);
        // SAFETY: the pull holds the pins of all windows until its last flight has landed; the list is this flight's
        // alone; the submitter vouched for its memory.
        let queued = unsafe { self.streams[GATHER].scatter(list.reach(), written.count, written.longest) };
        self.take_off(at, GATHER, queued, written.bytes, Some(list))
    }

    /// Notes what was queued on a stream as a flight, or what kept it from being queued. Gathers have a list.
    fn take_off(&mut self, at: usize, by: usize, queued: Result<()>, bytes: u64, list: Option<List>) -> bool {
        let stream = &self.streams[by];
        let event = queued.and_then(|()| {
            let event = self.events.pop().map_or_else(|| stream.event(), Ok)?;
            stream.record(event.as_ref())?;
            Ok(event)
        });
        let Some(Some(pull)) = self.pulls.get_mut(at) else { return false };
        match event {
            Ok(event) => {
                pull.bytes += bytes;
                pull.in_flight += 1;
                self.flights.push_back(Flight { event, pull: at, bytes, list });
            }
            Err(error) => {
                // It may have been queued all the same.
                let _ = stream.synchronize(Wait::Block);
                pull.fail(error);
                self.lists.extend(list);
            }
        }
        true
    }

    fn land(&mut self) -> bool {
        let mut any = false;
        let mut at = 0;
        while at < self.flights.len() {
            let done = match self.flights[at].event.is_done() {
                Ok(false) => {
                    at += 1;
                    continue;
                }
                Ok(true) => Ok(()),
                Err(error) => Err(error),
            };
            any = true;
            let Some(flight) = self.flights.remove(at) else { break };
            self.lists.extend(flight.list);
            if done.is_ok() {
                self.events.push(flight.event);
            }
            if let Some(Some(pull)) = self.pulls.get_mut(flight.pull) {
                pull.in_flight -= 1;
                if let Err(error) = done {
                    pull.fail(error);
                }
            }
        }
        any
    }

    // ---- the end ------------------------------------------------------------------------------------------------

    fn finish(&mut self) -> bool {
        let mut any = false;
        for at in 0..self.pulls.len() {
            if self.pulls[at].as_ref().is_some_and(Pull::is_over)
                && let Some(pull) = self.pulls[at].take()
            {
                let is_good = pull.is_good();
                self.redos.extend(pull.conclude(&self.shared, is_good));
                any = true;
            }
        }
        any
    }

    /// Goes on with what is read again. Whether any has ended.
    fn read_again(&mut self) -> bool {
        let count = self.redos.len();
        self.redos.retain_mut(|redo| !redo.step(&self.shared));
        self.redos.len() < count
    }
}

/// Whether it is a write that the file's seals forbid.
fn is_sealed(job: &PullJob) -> bool {
    job.batch.direction == Direction::Write
        && matches!(job.batch.file.source().fill(), Fill::Descriptor(file) if file.is_sealed())
}

/// Before the first byte of a write in place. Where somebody else has changed the file meanwhile, the end finds out.
fn announce(job: &PullJob, pinned: &Pinned) -> Option<FileVersion> {
    let Fill::Descriptor(file) = job.batch.file.source().fill() else { return None };
    pinned.touch(file.buffered.as_raw_fd())
}

impl Drop for Puller {
    fn drop(&mut self) {
        // A puller that panicked may leave copies behind, and jobs that somebody waits for.
        for stream in &self.streams {
            let _ = stream.synchronize(Wait::Block);
        }
        let died = || Error::new(forebay_error::ErrorKind::Internal, "the thread that moved this died");
        for pull in self.pulls.drain(..).flatten() {
            // Lanes that have a part of it still write to the caller's memory.
            pull.rest.iter().for_each(|rest| {
                rest.wait(None);
            });
            pull.job.refuse(&died());
        }
        self.held.drain(..).for_each(|job| job.refuse(&died()));
        self.redos.drain(..).for_each(|redo| redo.refuse(&died()));
        self.shared.close(&died());
        self.watched.drain(..).for_each(|flight| flight.finish());
    }
}
