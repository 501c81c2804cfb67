//! The thread that carries out transfers of files whose pages may be pinned: the device copies registered pages in
//! place, lanes take the rest, and the thread makes sure that the copied bytes are of one state of the file.

mod copies;
#[cfg(test)]
mod tests;

use std::cell::OnceCell;
use std::collections::VecDeque;
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use forebay_error::{Error, Result};
use forebay_gpu::{Context, Event, Naps, Stream, Wait};

use super::caller_thread::CallerPolledBatch;
use super::eligibility::Reason;
use super::gather::CopyList;
use super::pace::{self, PieceClock};
use super::pin_cache::PinCache;
use super::reclaimer::DriverTurn;
use super::registrar::PinRequest;
use super::route::{BatchRoute, bytes_of, route};
use super::state::{CopyWork, MappedState};
use super::transfer::{InPlaceTransfer, MappedJob, PAUSE, RepeatedJob, elect};
use super::window::PinnedFile;
use crate::engines::permission::Permission;
use crate::io::plan::Part;
use crate::request::cancel::cancelled;
use crate::request::completion::Completion;
use crate::request::copy_order;
use crate::request::receipt::Moved;
use crate::request::ticket::CallerPolled as _;
use crate::runtime::lock;
use crate::source::piece::Direction;
use crate::source::version::FileVersion;
use crate::source::writers::Writers;
use crate::tuning::machine::{BRIEF_WAIT, LONG_NAP};
use crate::tuning::mapped::{COPY_BYTES, COPY_STREAMS, QUIET};

const IN_FLIGHT: u64 = 4 * COPY_BYTES;
/// The stream of the gathers, behind those.
const GATHER: usize = COPY_STREAMS;
/// How long an idle copy thread sleeps at most.
const IDLE: Duration = Duration::from_hours(1);

/// Copies or a gather in flight.
struct QueuedCopy {
    event: Box<dyn Event>,
    transfer: usize,
    bytes: u64,
    list: Option<CopyList>,
}

pub(super) struct CopyThread {
    state: Arc<MappedState>,
    streams: [Box<dyn Stream>; COPY_STREAMS + 1],
    /// Copies that were started.
    copies: usize,
    /// Whether kernels run here: compiled when the first small pieces come.
    can_gather: OnceCell<bool>,
    events: Vec<Box<dyn Event>>,
    lists: Vec<CopyList>,
    transfers: Vec<Option<InPlaceTransfer>>,
    queued_copies: VecDeque<QueuedCopy>,
    /// Batches of callers that wait by a waker, or not at all.
    watched: Vec<Arc<CallerPolledBatch>>,
    /// Batches whose copies come after work of the user's that is not done.
    held: Vec<MappedJob>,
    /// Ranges to read again.
    repeated: Vec<RepeatedJob>,
    /// Held as long as there are windows to register.
    turn: Option<DriverTurn>,
    /// A piece that is registered beside copies, and how many visits its window had.
    piece_begun: Option<(PieceClock, u64)>,
    /// When copies were under way last, other threads' or this one's.
    copied: Option<Instant>,
    next: usize,
}

impl CopyThread {
    pub(super) fn new(state: Arc<MappedState>) -> Result<Self> {
        let device = state.cache.device.clone();
        let stream = || device.stream(Context::PRIMARY);
        let streams = [stream()?, stream()?, stream()?];
        let can_gather = OnceCell::new();
        let (events, lists, transfers, queued_copies) = (Vec::new(), Vec::new(), Vec::new(), VecDeque::new());
        let (watched, held, repeated) = (Vec::new(), Vec::new(), Vec::new());
        Ok(Self {
            state,
            streams,
            copies: 0,
            can_gather,
            events,
            lists,
            transfers,
            queued_copies,
            watched,
            held,
            repeated,
            turn: None,
            piece_begun: None,
            copied: None,
            next: 0,
        })
    }

    /// Makes the calling thread fit for the work.
    pub(super) fn prepare_thread(cache: &PinCache) {
        let device = &cache.device;
        device.adopt_thread();
        cache.listener.store(crate::runtime::sys::take_no_sigio(), Ordering::Relaxed);
        if let Some(node) = device.info().numa_node {
            crate::runtime::sys::bind_to_node(node);
        }
        // The thread's short sleeps end on time from now on.
        std::mem::forget(Naps::start());
    }

    /// Works until a window or a piece of one is to be registered. `None` after a request to stop, when all work is
    /// done.
    pub(super) fn work(&mut self) -> Option<PinRequest> {
        loop {
            let seen = self.state.cache.wake_queue.count();
            let any = self.go_on();
            if let Some(request) = self.state.next_request() {
                if self.state.take_over(&request) {
                    // Another thread unregisters the window that was begun.
                    self.turn = None;
                }
                if let Err(reason) = self.may_register(&request) {
                    self.state.put_off(request, &Reason::new(reason));
                    continue;
                }
                return Some(request);
            }
            (self.turn, self.piece_begun) = (None, None);
            let pause = match self.next_piece() {
                Ok(request) => return Some(request),
                Err(pause) => pause,
            };
            if any {
                continue;
            }
            if let Some(copy) = self.queued_copies.front() {
                // An error shows again when the copy ends.
                let _ = copy.event.wait(self.state.copy_wait(copy.bytes as usize));
                continue;
            }
            self.state.cache.wake_queue.wait(seen, self.idle_time()?.min(pause));
        }
    }

    /// The window to register beside copies now, or the longest time to wait.
    fn next_piece(&mut self) -> std::result::Result<PinRequest, Duration> {
        if !self.state.has_background() || self.state.is_done() {
            return Err(IDLE);
        }
        if self.state.others_copy() || self.transfers.iter().any(Option::is_some) {
            self.copied = Some(Instant::now());
        }
        let turn = DriverTurn::take_unless_paused()?;
        let request = self.state.next_background().ok_or(Duration::ZERO)?;
        // Released windows may wait to be unregistered.
        if !self.state.cache.reclaimer.wait_for_region(Duration::ZERO, &request.pinned.mapping()) {
            self.state.put_back(request);
            return Err(PAUSE);
        }
        let (clock, visits) =
            (PieceClock::start(*lock(&request.pinned.pace)), request.pinned.visits(request.window));
        (self.turn, self.piece_begun) = (Some(turn), Some((clock, visits)));
        Ok(request)
    }

    /// A registration has ended. The request, if there is more to do.
    pub(super) fn registered(&mut self, rest: Option<PinRequest>) {
        if self.piece_begun.is_none() {
            // Lanes could start no copies meanwhile.
            self.state.stage.discard_rates();
        }
        if let Some(request) = rest {
            self.state.put_back(request);
        }
        if let Some((piece, visits)) = self.piece_begun.take()
            && let Some(turn) = self.turn.take()
        {
            let is_beside_copies = self.copied.is_some_and(|copied| piece.begun < copied + QUIET);
            turn.pause(pace::pause_after(piece.took(), visits, is_beside_copies));
        }
    }

    /// Does all work that needs no wait. Returns whether there was any.
    fn go_on(&mut self) -> bool {
        let mut any = false;
        while let Some(work) = self.state.take() {
            self.accept(work);
            any = true;
        }
        any |= self.begin_held();
        self.hand_over_rests();
        any |= self.poll_watched();
        any |= self.end_copies();
        any |= self.launch();
        any |= self.finish();
        any |= self.read_again();
        any | self.state.reconsider()
    }

    /// Takes the turn to register, or returns why that is impossible now.
    fn may_register(&mut self, request: &PinRequest) -> std::result::Result<(), &'static str> {
        // The same pages may wait for being unregistered: they cannot be registered twice.
        let old = request.pinned.mapping();
        if !self.state.cache.reclaimer.wait_for_region(BRIEF_WAIT, &old) {
            return Err("its pages were released, and wait to be unregistered until streams are done");
        }
        self.turn = self.turn.take().or_else(|| DriverTurn::take(LONG_NAP));
        if self.turn.is_none() {
            return Err("other pages were being registered or unregistered, which takes its time");
        }
        Ok(())
    }

    /// How long to sleep at most. `None` if nothing is left to do.
    fn idle_time(&self) -> Option<Duration> {
        if !self.held.is_empty() {
            Some(copy_order::nap(self.state.objective))
        } else if let Some(first) = self.watched.first() {
            Some(first.nap())
        } else if !self.repeated.is_empty() {
            Some(PAUSE)
        } else if self.transfers.iter().all(Option::is_none) && self.state.is_done() {
            None
        } else {
            Some(IDLE)
        }
    }

    // ---- taking work --------------------------------------------------------------------------------------------

    fn accept(&mut self, work: CopyWork) {
        match work {
            CopyWork::Job(job) if !job.completion.may_copy() => self.held.push(job),
            CopyWork::Job(job) => self.begin(job),
            CopyWork::Watch(batch) => self.watched.push(batch),
            CopyWork::Changed(transfer) => self.repeated.extend(transfer.conclude(&self.state, false)),
        }
    }

    /// Begins batches that were held back. Whether there were any that are due.
    fn begin_held(&mut self) -> bool {
        let is_due = |job: &mut MappedJob| job.completion.may_copy() || job.completion.is_cancelled();
        let due: Vec<_> = self.held.extract_if(.., is_due).collect();
        let any = !due.is_empty();
        for job in due {
            self.begin(job);
        }
        any
    }

    /// Polls batches that callers started and stopped polling. Returns whether any has ended.
    fn poll_watched(&mut self) -> bool {
        let count = self.watched.len();
        self.watched.retain(|batch| !batch.look());
        self.watched.len() < count
    }

    fn begin(&mut self, job: MappedJob) {
        if job.completion.is_cancelled() {
            return job.refuse(&cancelled());
        }
        let must_pin = self.state.permission == Permission::Only;
        let registrar = |request| self.state.register(request);
        let device = &self.state.cache.device;
        let can_gather = || {
            *self.can_gather.get_or_init(|| {
                let can = device.kernels(Context::PRIMARY).is_ok();
                self.state.slots.allow(can);
                can
            })
        };
        self.state.note_lanes_pace(&job.batch);
        let others = (self.state.has_others(), self.state.has_other_readers());
        let routed = route(&self.state.cache, &job.batch, must_pin, others, &can_gather, &registrar);
        let BatchRoute { pinned, version, spans, pins, cover, rest, reason, cuts } = match routed {
            Ok(route) => route,
            Err(reason) => return self.leave_all(&job, reason),
        };
        if must_pin && let (false, Some(reason)) = (rest.is_empty(), &reason) {
            return job.refuse(&reason.error().with("file", job.batch.file.name()));
        }
        if job.batch.direction == Direction::Write
            && let (false, Some(reason)) = (rest.is_empty(), reason.clone())
        {
            // Done in part by the lanes it would look as if another process had changed the file.
            return self.leave_all(&job, reason);
        }
        let version = match job.batch.direction {
            Direction::Write if !spans.is_empty() => announce(&job, &pinned).unwrap_or(version),
            _ => version,
        };
        let transfer = InPlaceTransfer {
            rest_bytes: bytes_of(&job.batch, &rest),
            by_resident: false,
            held: rest,
            rest: Vec::new(),
            cuts,
            job,
            pinned,
            version,
            todo: spans,
            copied: Vec::new(),
            pins,
            in_flight: 0,
            cover,
            bytes: 0,
            error: None,
            reason,
            left_out: Vec::new(),
        };
        match self.transfers.iter().position(Option::is_none) {
            Some(at) => self.transfers[at] = Some(transfer),
            None => self.transfers.push(Some(transfer)),
        }
    }

    /// Nothing of the batch can be copied in place.
    fn leave_all(&self, job: &MappedJob, reason: Reason) {
        if self.state.permission == Permission::Only {
            return job.refuse(&reason.error().with("file", job.batch.file.name()));
        }
        let stage = &self.state.stage;
        let staged = stage.plan(&job.batch, stage.warmth(&job.batch), None);
        let bytes = job.batch.pieces.iter().map(|piece| piece.len as u64).sum();
        elect(&self.state, job, (0, Writers::Nobody), bytes, Some(reason));
        job.completion.expect(staged.works());
        stage.submit(&staged.job(job.base, job.completion.clone()));
        job.completion.work_done(Moved::default());
    }

    /// Gives lanes their part, unless windows that readers pay for are registered first.
    fn hand_over_rests(&mut self) {
        if self.transfers.iter().flatten().all(|transfer| transfer.held.is_empty()) || self.state.has_paid() {
            return;
        }
        for at in 0..self.transfers.len() {
            let Some(Some(transfer)) = self.transfers.get_mut(at) else { continue };
            let (job, held) = (transfer.job.clone(), std::mem::take(&mut transfer.held));
            let apart = self.hand_over(&job, &held);
            if let Some(Some(transfer)) = self.transfers.get_mut(at) {
                transfer.rest.extend(apart);
            }
        }
    }

    /// Gives parts of a read to the lanes. They report apart: what they read counts only if the file was the same
    /// before and after all of it.
    fn hand_over(&self, job: &MappedJob, parts: &[Part]) -> Option<Arc<Completion>> {
        if parts.is_empty() {
            return None;
        }
        let state = Arc::downgrade(&self.state);
        let tell = Box::new(move || {
            if let Some(state) = state.upgrade() {
                state.cache.wake_queue.wake();
            }
        });
        let stage = &self.state.stage;
        let (warmth, election) = (stage.warmth(&job.batch), job.completion.election());
        Some(stage.submit_parts(&job.batch, warmth, parts, election, Some(tell), Some(&job.completion)))
    }

    // ---- the end ------------------------------------------------------------------------------------------------

    fn finish(&mut self) -> bool {
        let mut any = false;
        for at in 0..self.transfers.len() {
            if self.transfers[at].as_ref().is_some_and(InPlaceTransfer::is_over)
                && let Some(transfer) = self.transfers[at].take()
            {
                let is_good = transfer.is_good();
                self.repeated.extend(transfer.conclude(&self.state, is_good));
                any = true;
            }
        }
        any
    }

    /// Continues the ranges that are read again. Returns whether any has ended.
    fn read_again(&mut self) -> bool {
        let count = self.repeated.len();
        self.repeated.retain_mut(|repeated| !repeated.step(&self.state));
        self.repeated.len() < count
    }
}

/// Before the first byte of a write in place. Where another process has changed the file meanwhile, the end finds out.
fn announce(job: &MappedJob, pinned: &PinnedFile) -> Option<FileVersion> {
    let file = job.batch.file.descriptors()?;
    pinned.touch(file.buffered.as_raw_fd())
}

impl Drop for CopyThread {
    fn drop(&mut self) {
        // A copy thread that panicked may leave copies behind, and jobs that callers wait for.
        for stream in &self.streams {
            let _ = stream.synchronize(Wait::Block);
        }
        let died = || Error::new(forebay_error::ErrorKind::Internal, "the thread that moved this died");
        for transfer in self.transfers.drain(..).flatten() {
            // Lanes that have a part of it still write to the caller's memory.
            transfer.rest.iter().for_each(|rest| {
                rest.wait(None);
            });
            transfer.job.refuse(&died());
        }
        self.held.drain(..).for_each(|job| job.refuse(&died()));
        self.repeated.drain(..).for_each(|repeated| repeated.refuse(&died()));
        self.state.close(&died());
        self.watched.drain(..).for_each(|batch| batch.finish());
    }
}
