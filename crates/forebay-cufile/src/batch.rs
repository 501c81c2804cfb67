//! Batches: many reads and writes at once, each with a result of its own.

use std::collections::VecDeque;
use std::ffi::{c_int, c_uint, c_void};
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant};

use forebay_config::cufile::SizeParameter;
use forebay_engine::{Direction, Outcome, Piece, Ticket};
use forebay_error::ErrorKind;
use forebay_gpu::MemoryKind;
use forebay_stats::Op;
use forebay_trace::{Api, Flags};

use crate::abi::{
    BATCH_MODE, CUfileBatchHandle, CUfileError, CUfileHandle, CUfileIOEvents, CUfileIOParams, OPCODE_READ,
    OPCODE_WRITE, STATUS_COMPLETE, STATUS_FAILED, code,
};
use crate::file::Registered;
use crate::io::{Asked, allows, errno_of, target};
use crate::library::{guarded, guarded_plain, library};
use crate::meter::{BatchDone, Begun, Transferred, engine_of};
use crate::status::Refused;
use crate::target::Target;

/// Entries up to this size share a submission, which resolves as a whole; larger ones have one each.
const SHARED: usize = 64 << 10;

/// How long to look again and again for what nobody wakes us for, and how long to sleep between looks after that.
const SPIN: Duration = Duration::from_micros(200);
const NAP: Duration = Duration::from_micros(50);

/// A batch of the program.
pub(crate) struct Batch {
    /// Most entries at a time.
    room: usize,
    state: Arc<State>,
    /// Its number in the trace.
    number: u32,
}

#[derive(Default)]
struct State {
    inner: Mutex<Inner>,
    changed: Condvar,
}

#[derive(Default)]
struct Inner {
    /// Submissions in flight; `None` where one is resolved.
    flying: Vec<Option<Flying>>,
    /// Places of submissions that say they are resolved.
    woken: Vec<usize>,
    /// Entries in flight.
    left: usize,
    /// What the program has not asked for yet.
    events: VecDeque<Event>,
}

/// An event for the program; moved between threads, since the cookie is only a number to us.
#[derive(Clone, Copy)]
struct Event {
    cookie: usize,
    status: c_int,
    ret: usize,
}

/// A submission of some entries.
struct Flying {
    ticket: Ticket,
    /// Nobody wakes us: it is to be looked at.
    is_driven: bool,
    entries: Vec<Entry>,
    file: Arc<Registered>,
    direction: Direction,
    kind: MemoryKind,
    gpu: Option<usize>,
    begun: Begun,
    group: u32,
}

struct Entry {
    cookie: usize,
    piece: Piece,
}

/// Tells a batch that one of its submissions is resolved.
struct Notice {
    state: Arc<State>,
    place: usize,
}

impl Wake for Notice {
    fn wake(self: Arc<Self>) {
        self.state.lock().woken.push(self.place);
        self.state.changed.notify_all();
    }
}

impl State {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes in what is resolved.
    fn collect(self: &Arc<Self>, inner: &mut Inner) {
        while let Some(place) = inner.woken.pop() {
            self.look(inner, place);
        }
    }

    /// Looks at submissions that go on only while somebody looks at them; whether there are any left.
    fn drive(self: &Arc<Self>, inner: &mut Inner) -> bool {
        let mut any = false;
        for place in 0..inner.flying.len() {
            let Some(flying) = &inner.flying[place] else { continue };
            if !flying.is_driven {
                continue;
            }
            if flying.ticket.is_done() || !flying.ticket.is_driven() {
                self.look(inner, place);
            } else {
                any = true;
            }
        }
        any
    }

    /// Takes in the submission at this place if it is resolved; otherwise sees to it that we hear of it.
    fn look(self: &Arc<Self>, inner: &mut Inner, place: usize) {
        let Some(mut flying) = inner.flying.get_mut(place).and_then(Option::take) else { return };
        let waker = Waker::from(Arc::new(Notice { state: self.clone(), place }));
        match Pin::new(&mut flying.ticket).poll(&mut Context::from_waker(&waker)) {
            Poll::Pending => {
                flying.is_driven = false;
                inner.flying[place] = Some(flying);
            }
            Poll::Ready(outcome) => {
                inner.left -= flying.entries.len();
                flying.tell(&outcome, &mut inner.events);
            }
        }
    }
}

impl Flying {
    /// Waits for the submission, of which nobody wants the events; how many entries it had.
    fn land(mut self) -> usize {
        self.ticket.wait_timeout(Duration::MAX);
        if let Poll::Ready(outcome) = Pin::new(&mut self.ticket).poll(&mut Context::from_waker(Waker::noop()))
        {
            self.tell(&outcome, &mut VecDeque::new());
        }
        self.entries.len()
    }

    /// Makes events, counts and traces of an outcome.
    fn tell(&self, outcome: &Outcome, events: &mut VecDeque<Event>) {
        let meter = library().meter();
        meter.receipt(&outcome.receipt);
        let (mut bytes, mut failed) = (0, 0);
        for (entry, result) in self.entries.iter().zip(&outcome.entries) {
            let result = result.as_ref().map(|bytes| *bytes).map_err(|error| match error.kind() {
                // As the program wished.
                ErrorKind::Cancelled => error.errno(),
                _ => errno_of(error),
            });
            events.push_back(Event::of(entry.cookie, result));
            bytes += result.unwrap_or(0);
            failed += u64::from(result.is_err());
        }
        let ok = self.entries.len() as u64 - failed;
        let reads = self.direction == Direction::Read;
        let latency = outcome.receipt.elapsed;
        meter.batch_done(&BatchDone { latency, file: &self.file, reads, bytes, ok, failed });
        if meter.is_tracing() {
            self.trace(outcome);
        }
    }

    fn trace(&self, outcome: &Outcome) {
        let engine = engine_of(&outcome.receipt);
        let api = if self.direction == Direction::Read { Api::BatchRead } else { Api::BatchWrite };
        for (entry, result) in self.entries.iter().zip(&outcome.entries) {
            let latency = outcome.receipt.elapsed;
            let done = Transferred {
                api,
                begun: self.begun,
                file: &self.file,
                kind: self.kind,
                gpu: self.gpu,
                offset: entry.piece.offset as i64,
                size: entry.piece.len,
                address: entry.piece.address,
                group: self.group,
                flags: Flags::default(),
                result: result.as_ref().map(|bytes| *bytes).map_err(forebay_error::Error::errno),
                engine,
            };
            library().meter().traced(&done, latency);
        }
    }
}

impl Event {
    fn of(cookie: usize, result: Result<u64, c_int>) -> Self {
        match result {
            Ok(bytes) => Self { cookie, status: STATUS_COMPLETE, ret: bytes as usize },
            Err(errno) => Self { cookie, status: STATUS_FAILED, ret: (-(errno as isize)) as usize },
        }
    }
}

impl Batch {
    /// Takes in what is over, without waiting.
    pub(crate) fn look(&self) {
        let mut inner = self.state.lock();
        self.state.collect(&mut inner);
        self.state.drive(&mut inner);
    }

    /// Waits for all that is in flight: the program may free its memory.
    pub(crate) fn drain(&self) {
        drop(self.wait_until(None, |inner| inner.left == 0));
    }

    /// Gives up what has not begun, waits for what has, and forgets all events: those that nobody fetched too.
    fn cancel(&self) {
        // Out of the lock: whoever resolves a submission takes it.
        let flying = std::mem::take(&mut self.state.lock().flying);
        flying.iter().flatten().for_each(|flying| flying.ticket.cancel());
        for flying in flying.into_iter().flatten() {
            let entries = flying.land();
            self.state.lock().left -= entries;
        }
        // What another thread is submitting meanwhile.
        let mut inner = self.wait_until(None, |inner| inner.left == 0);
        inner.events.clear();
        drop(inner);
        self.state.changed.notify_all();
    }

    /// Waits until `least` events are there or the time is up; without a limit only as long as some are in flight. Takes
    /// at most `most`.
    fn events(&self, least: usize, most: usize, limit: Option<Duration>) -> Vec<Event> {
        let deadline = limit.and_then(|limit| Instant::now().checked_add(limit));
        let mut inner = self.wait_until(deadline, |inner| {
            inner.events.len() >= least || (inner.left == 0 && limit.is_none())
        });
        let count = inner.events.len().min(most);
        inner.events.drain(..count).collect()
    }

    /// Takes in what is resolved until this is so, or the time is up.
    fn wait_until(&self, deadline: Option<Instant>, is_so: impl Fn(&Inner) -> bool) -> MutexGuard<'_, Inner> {
        let begun = Instant::now();
        let mut inner = self.state.lock();
        loop {
            self.state.collect(&mut inner);
            let driven = self.state.drive(&mut inner);
            let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
            if is_so(&inner) || left.is_some_and(|left| left.is_zero()) {
                return inner;
            }
            let pause = if driven { Some(NAP) } else { None };
            inner = match (left, pause) {
                (_, Some(_)) if begun.elapsed() < SPIN => {
                    drop(inner);
                    std::hint::spin_loop();
                    self.state.lock()
                }
                (None, None) => self.state.changed.wait(inner).unwrap_or_else(PoisonError::into_inner),
                (left, pause) => {
                    let pause = pause.into_iter().chain(left).min().unwrap_or(NAP);
                    self.state.changed.wait_timeout(inner, pause).unwrap_or_else(PoisonError::into_inner).0
                }
            };
        }
    }
}

// ---- submission -----------------------------------------------------------------------------------------------------

/// Entries of one file, direction and device, on their way into a submission.
struct Group {
    file: Arc<Registered>,
    direction: Direction,
    memory: forebay_engine::Memory,
    kind: MemoryKind,
    gpu: Option<usize>,
    entries: Vec<Entry>,
    is_shared: bool,
}

impl Group {
    fn fly(self, begun: Begun, group: u32) -> Result<Flying, (Vec<Entry>, c_int)> {
        let Some(file) = &self.file.file else { return Err((self.entries, code::DRIVER_CLOSING)) };
        let batch = forebay_engine::Batch {
            file: file.clone(),
            memory: self.memory,
            direction: self.direction,
            pieces: self.entries.iter().map(|entry| entry.piece).collect(),
            allow_short: true,
        };
        let Ok(session) = library().session() else { return Err((self.entries, code::DRIVER_CLOSING)) };
        // SAFETY: the interface demands that the memory is valid and unused until the entry's event was seen, or the
        // batch was destroyed, which waits.
        match unsafe { session.submit_batch(batch) } {
            Ok(ticket) => Ok(Flying {
                is_driven: ticket.is_driven(),
                ticket,
                entries: self.entries,
                file: self.file,
                direction: self.direction,
                kind: self.kind,
                gpu: self.gpu,
                begun,
                group,
            }),
            Err(error) => Err((self.entries, errno_of(&error))),
        }
    }
}

const BAD: Refused = Refused(code::INTERNAL_BATCH_SUBMIT_ERROR);

/// What was found out about an entry: the next one is most likely of the same file and memory.
struct Seen {
    handle: CUfileHandle,
    base: *mut c_void,
    file: Arc<Registered>,
    /// Whether the program still has open what it registered.
    is_itself: bool,
    /// Bytes from the base on, if it was registered.
    limit: Option<usize>,
    target: Target,
}

impl Seen {
    /// The memory of another entry, if what is known tells it.
    fn memory_of(&self, entry: &CUfileIOParams) -> Option<forebay_engine::Memory> {
        let part = &entry.batch;
        let reach = part.buffer_offset.checked_add_unsigned(part.size as u64)?;
        let sane = part.file_offset >= 0 && part.buffer_offset >= 0;
        let inside = self.limit.is_none_or(|limit| reach as u64 <= limit as u64);
        if !(sane && inside && self.base == part.base && self.handle == entry.fh) {
            return None;
        }
        self.target.moved_to(part.base as u64 + part.buffer_offset as u64, part.size)
    }
}

/// Sorts entries into submissions.
#[derive(Default)]
struct Sorter {
    groups: Vec<Group>,
    failed: Vec<Event>,
    seen: Option<Seen>,
}

impl Sorter {
    fn add(&mut self, entry: &CUfileIOParams) -> Result<(), Refused> {
        let direction = match entry.opcode {
            OPCODE_READ => Direction::Read,
            OPCODE_WRITE => Direction::Write,
            _ => {
                self.failed.push(Event::of(entry.cookie as usize, Err(libc::EINVAL)));
                return Ok(());
            }
        };
        if entry.mode != BATCH_MODE {
            return Err(BAD);
        }
        let memory = match self.seen.as_ref().and_then(|seen| seen.memory_of(entry)) {
            Some(memory) => memory,
            None => match self.look_at(entry, direction) {
                Ok(memory) => memory,
                Err(_) if library().files.is_given_up(entry.fh) => {
                    self.refuse(entry);
                    return Ok(());
                }
                Err(refused) => return Err(refused),
            },
        };
        let Some(Seen { file, target, is_itself, .. }) = &self.seen else { return Err(BAD) };
        if file.file.is_none() || allows(file, direction).is_err() {
            return Err(BAD);
        }
        if !is_itself {
            self.refuse(entry);
            return Ok(());
        }
        let piece =
            Piece { offset: entry.batch.file_offset as u64, address: memory.address, len: entry.batch.size };
        let entry = Entry { cookie: entry.cookie as usize, piece };
        let is_shared = piece.len <= SHARED;
        let takes = |group: &&mut Group| {
            is_shared
                && group.is_shared
                && group.direction == direction
                && Arc::ptr_eq(&group.file, file)
                && Arc::ptr_eq(&group.memory.device, &memory.device)
                && group.memory.context == memory.context
                && group.kind == target.kind
        };
        match self.groups.iter_mut().rev().find(takes) {
            Some(group) => group.entries.push(entry),
            None => self.groups.push(Group {
                file: file.clone(),
                direction,
                memory,
                kind: target.kind,
                gpu: target.gpu,
                entries: vec![entry],
                is_shared,
            }),
        }
        Ok(())
    }

    /// The entry's file is not the one that was registered.
    fn refuse(&mut self, entry: &CUfileIOParams) {
        self.failed.push(Event::of(entry.cookie as usize, Err(code::HANDLE_NOT_REGISTERED)));
    }

    fn look_at(
        &mut self,
        entry: &CUfileIOParams,
        direction: Direction,
    ) -> Result<forebay_engine::Memory, Refused> {
        let library = library();
        let file = library.files.get(entry.fh).map_err(|_| BAD)?;
        let (base, size) = (entry.batch.base, entry.batch.size);
        let (file_offset, buffer_offset) = (entry.batch.file_offset, entry.batch.buffer_offset);
        let asked = Asked { direction, base, size, file_offset, buffer_offset };
        let session = library.session().map_err(|_| BAD)?;
        let target = target(session, &asked).map_err(|_| BAD)?;
        let memory = target.memory.clone();
        let limit = library.buffers.len_at(base as u64);
        let is_itself = file.is_itself();
        self.seen = Some(Seen { handle: entry.fh, base, file, is_itself, limit, target });
        Ok(memory)
    }
}

fn submit(batch: &Batch, entries: &[CUfileIOParams], begun: Begun) -> Result<(), Refused> {
    let mut sorter = Sorter::default();
    entries.iter().try_for_each(|entry| sorter.add(entry))?;
    let Sorter { groups, failed, .. } = sorter;
    let mut inner = batch.state.lock();
    if inner.left + inner.events.len() + entries.len() > batch.room {
        return Err(BAD);
    }
    inner.events.extend(failed);
    inner.left += groups.iter().map(|group| group.entries.len()).sum::<usize>();
    drop(inner);
    // Somebody may be waiting for events already.
    batch.state.changed.notify_all();
    // Outside of the lock: what is resolved at once says so from here.
    for group in groups {
        let flown = group.fly(begun, batch.number);
        let mut inner = batch.state.lock();
        match flown {
            Ok(flying) => {
                let free = inner.flying.iter().position(Option::is_none);
                let place = free.unwrap_or_else(|| {
                    inner.flying.push(None);
                    inner.flying.len() - 1
                });
                let is_driven = flying.is_driven;
                inner.flying[place] = Some(flying);
                if !is_driven {
                    batch.state.look(&mut inner, place);
                }
            }
            Err((entries, errno)) => {
                inner.left -= entries.len();
                inner.events.extend(entries.iter().map(|entry| Event::of(entry.cookie, Err(errno))));
            }
        }
        drop(inner);
        // There may be events now, or something to look at.
        batch.state.changed.notify_all();
    }
    Ok(())
}

// ---- the interface --------------------------------------------------------------------------------------------------

fn set_up(place: *mut CUfileBatchHandle, room: c_uint) -> Result<(), Refused> {
    let library = library();
    library.ensure_open()?;
    let most = library.with_settings(|settings| settings.size(SizeParameter::IoBatchsize));
    if place.is_null() || room == 0 || u64::from(room) > most {
        return Err(Refused(code::INVALID_VALUE));
    }
    let number = library.meter().next_group();
    let batch = Batch { room: room as usize, state: Arc::default(), number };
    let handle = library.batches.insert(Arc::new(batch)).ok_or(Refused(code::NOMEM_ERROR))?;
    // SAFETY: not null, and valid as the caller promises.
    unsafe { place.write(handle) };
    Ok(())
}

/// Makes a batch for up to `room` entries at a time.
///
/// # Safety
/// `place` is null, which is an error, or a valid place.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn cuFileBatchIOSetUp(
    place: *mut CUfileBatchHandle,
    room: c_uint,
) -> CUfileError {
    guarded(|| {
        let begun = library().meter().begin_call();
        let result = set_up(place, room);
        library().meter().count(Op::BatchSetup, result.is_ok());
        library().meter().plain(Api::BatchSetUp, begun, 0, u64::from(room), result);
        result
    })
}

/// Starts entries. All of them, or none: every refused submission is 5040.
///
/// # Safety
/// `entries` has `count` entries, whose memory is valid and unused until their events were seen.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn cuFileBatchIOSubmit(
    batch: CUfileBatchHandle,
    count: c_uint,
    entries: *mut CUfileIOParams,
    _flags: c_uint,
) -> CUfileError {
    guarded(|| {
        let library = library();
        let begun = library.meter().begin_call();
        let known = library.batches.get(batch).map_err(|_| BAD);
        let result = known.as_ref().map_err(|bad| *bad).and_then(|batch| {
            if entries.is_null() || count == 0 || count as usize > batch.room {
                return Err(BAD);
            }
            // SAFETY: as the caller promises.
            submit(batch, unsafe { std::slice::from_raw_parts(entries, count as usize) }, begun)
        });
        let number = known.map_or(0, |batch| batch.number);
        library.meter().batch_submitted(begun, number, u64::from(count), result);
        result
    })
}

/// The time that a program is ready to wait; `None` for ever. Odd values are taken as the nearest sensible ones: some
/// programs pass a pointer to something smaller.
fn limit(timeout: *const libc::timespec) -> Option<Duration> {
    if timeout.is_null() {
        return None;
    }
    // SAFETY: not null; the caller's timespec.
    let time = unsafe { timeout.read_unaligned() };
    let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
    let nanos = time.tv_nsec.clamp(0, 999_999_999) as u32;
    Some(Duration::new(seconds, nanos))
}

/// Waits for at least `least` events (or the time) and takes them; `count` is the room for events and then their number.
///
/// # Safety
/// `events` has room for `*count` events; `timeout` is null or a timespec.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn cuFileBatchIOGetStatus(
    batch: CUfileBatchHandle,
    least: c_uint,
    count: *mut c_uint,
    events: *mut CUfileIOEvents,
    timeout: *mut libc::timespec,
) -> CUfileError {
    guarded(|| {
        let library = library();
        let known = library.batches.get(batch).map_err(|_| Refused(code::INTERNAL_BATCH_GETSTATUS_ERROR))?;
        // SAFETY: checked not to be null.
        if count.is_null() || events.is_null() || least > unsafe { *count } {
            return Err(Refused(code::INVALID_VALUE));
        }
        let begun = library.meter().begin_call();
        // SAFETY: as above.
        let room = unsafe { *count } as usize;
        let taken = known.events(least as usize, room, limit(timeout));
        for (index, event) in taken.iter().enumerate() {
            let told =
                CUfileIOEvents { cookie: event.cookie as *mut c_void, status: event.status, ret: event.ret };
            // SAFETY: there is room for as many, as the caller promises.
            unsafe { events.add(index).write(told) };
        }
        // SAFETY: as above.
        unsafe { count.write(taken.len() as c_uint) };
        library.meter().plain(Api::BatchGetStatus, begun, known.number, u64::from(least), Ok(()));
        Ok(())
    })
}

/// Gives entries up, as far as that is possible: what has started is waited for. None of them has an event afterwards.
///
/// # Safety
/// None: handles are checked.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn cuFileBatchIOCancel(batch: CUfileBatchHandle) -> CUfileError {
    guarded(|| {
        if batch.is_null() {
            return Ok(());
        }
        let meter = library().meter();
        let begun = meter.begin_call();
        let known = library().batches.get(batch).map_err(|_| Refused(code::INTERNAL_BATCH_CANCEL_ERROR));
        if let Ok(batch) = &known {
            batch.cancel();
        }
        meter.count(Op::BatchCancel, known.is_ok());
        let number = known.as_ref().map_or(0, |batch| batch.number);
        meter.plain(Api::BatchCancel, begun, number, 0, known.as_ref().map(drop).map_err(|bad| *bad));
        known.map(drop)
    })
}

/// Ends a batch, after all that is in flight.
///
/// # Safety
/// None: handles are checked, also one that was destroyed before.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn cuFileBatchIODestroy(batch: CUfileBatchHandle) {
    guarded_plain(|| {
        let meter = library().meter();
        let begun = meter.begin_call();
        let known = library().batches.remove(batch);
        meter.count(Op::BatchDestroy, known.is_ok());
        if let Ok(batch) = known {
            batch.drain();
            meter.plain(Api::BatchDestroy, begun, batch.number, 0, Ok(()));
        }
    });
}
