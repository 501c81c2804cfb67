//! Batches: many reads and writes at once, each with a result of its own.

use std::ffi::{c_int, c_uint, c_void};
use std::sync::Arc;
use std::time::Duration;

use forebay_config::cufile::SizeParameter;
use forebay_engine::{Direction, Piece};
use forebay_gpu::{DeviceRange, MemoryKind};
use forebay_stats::Op;
use forebay_trace::Api;

use super::transfer::{AskedTransfer, allows, target};
use super::{guarded, guarded_plain};
use crate::abi::{
    BATCH_MODE, CUfileBatchHandle, CUfileError, CUfileHandle, CUfileIOEvents, CUfileIOParams, OPCODE_READ,
    OPCODE_WRITE, code,
};
use crate::batch::{BatchEntry, BatchEvent, CufileBatch, Submission};
use crate::handles::RegisteredFile;
use crate::library::library;
use crate::log::logged_errno;
use crate::meter::{CallStart, meter};
use crate::status::RefusedCall;
use crate::target::PointerTarget;

/// Entries up to this size share a submission, which resolves as a whole; larger ones have one each.
const MAX_SHARED_ENTRY: usize = 64 << 10;

/// Entries of one file, direction and device, on their way into a submission.
struct EntryGroup {
    file: Arc<RegisteredFile>,
    direction: Direction,
    memory: forebay_engine::Memory,
    kind: MemoryKind,
    gpu: Option<usize>,
    entries: Vec<BatchEntry>,
    is_shared: bool,
}

impl EntryGroup {
    fn submit(self, begun: CallStart, group: u32) -> Result<Submission, (Vec<BatchEntry>, c_int)> {
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
            Ok(ticket) => Ok(Submission {
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
            Err(error) => Err((self.entries, logged_errno(&error))),
        }
    }
}

/// The answer to a submission that is refused as a whole.
const REFUSED_SUBMIT: RefusedCall = RefusedCall(code::INTERNAL_BATCH_SUBMIT_ERROR);

/// The file and memory of an entry: the next one most likely has the same.
struct SeenEntry {
    handle: CUfileHandle,
    base: *mut c_void,
    file: Arc<RegisteredFile>,
    /// Whether the program still has open what it registered.
    is_itself: bool,
    /// Bytes from the base on, if it was registered.
    limit: Option<usize>,
    target: PointerTarget,
}

impl SeenEntry {
    /// The memory of another entry, if it is the same.
    fn memory_of(&self, entry: &CUfileIOParams) -> Option<forebay_engine::Memory> {
        let part = &entry.batch;
        let reach = part.buffer_offset.checked_add_unsigned(part.size as u64)?;
        let sane = part.file_offset >= 0 && part.buffer_offset >= 0;
        let inside = self.limit.is_none_or(|limit| reach as u64 <= limit as u64);
        if !(sane && inside && self.base == part.base && self.handle == entry.fh) {
            return None;
        }
        self.target.moved_to(DeviceRange::new(part.base as u64 + part.buffer_offset as u64, part.size))
    }
}

/// Sorts entries into submissions.
#[derive(Default)]
struct EntrySorter {
    groups: Vec<EntryGroup>,
    failed: Vec<BatchEvent>,
    seen: Option<SeenEntry>,
}

impl EntrySorter {
    fn add(&mut self, entry: &CUfileIOParams) -> Result<(), RefusedCall> {
        let direction = match entry.opcode {
            OPCODE_READ => Direction::Read,
            OPCODE_WRITE => Direction::Write,
            _ => {
                self.failed.push(BatchEvent::of(entry.cookie as usize, Err(libc::EINVAL)));
                return Ok(());
            }
        };
        if entry.mode != BATCH_MODE {
            return Err(REFUSED_SUBMIT);
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
        let Some(SeenEntry { file, target, is_itself, .. }) = &self.seen else { return Err(REFUSED_SUBMIT) };
        if file.file.is_none() || allows(file, direction).is_err() {
            return Err(REFUSED_SUBMIT);
        }
        if !is_itself {
            self.refuse(entry);
            return Ok(());
        }
        let piece =
            Piece { offset: entry.batch.file_offset as u64, address: memory.address, len: entry.batch.size };
        let entry = BatchEntry { cookie: entry.cookie as usize, piece };
        let is_shared = piece.len <= MAX_SHARED_ENTRY;
        let takes = |group: &&mut EntryGroup| {
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
            None => self.groups.push(EntryGroup {
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
        self.failed.push(BatchEvent::of(entry.cookie as usize, Err(code::HANDLE_NOT_REGISTERED)));
    }

    fn look_at(
        &mut self,
        entry: &CUfileIOParams,
        direction: Direction,
    ) -> Result<forebay_engine::Memory, RefusedCall> {
        let library = library();
        let file = library.files.get(entry.fh).map_err(|_| REFUSED_SUBMIT)?;
        let (base, size) = (entry.batch.base, entry.batch.size);
        let (file_offset, buffer_offset) = (entry.batch.file_offset, entry.batch.buffer_offset);
        let asked = AskedTransfer { direction, base, size, file_offset, buffer_offset };
        let session = library.session().map_err(|_| REFUSED_SUBMIT)?;
        let target = target(session, &asked).map_err(|_| REFUSED_SUBMIT)?;
        let memory = target.memory();
        let limit = library.buffers.get(base as u64).map(|range| range.len);
        let is_itself = file.is_itself();
        self.seen = Some(SeenEntry { handle: entry.fh, base, file, is_itself, limit, target });
        Ok(memory)
    }
}

fn submit(batch: &CufileBatch, entries: &[CUfileIOParams], begun: CallStart) -> Result<(), RefusedCall> {
    let mut sorter = EntrySorter::default();
    entries.iter().try_for_each(|entry| sorter.add(entry))?;
    let EntrySorter { groups, failed, .. } = sorter;
    if !batch.admit(failed, groups.iter().map(|group| group.entries.len()).sum()) {
        return Err(REFUSED_SUBMIT);
    }
    for group in groups {
        batch.submitted(group.submit(begun, batch.number));
    }
    Ok(())
}

fn set_up(place: *mut CUfileBatchHandle, room: c_uint) -> Result<(), RefusedCall> {
    let library = library();
    library.ensure_open()?;
    let most = library.with_settings(|settings| settings.size(SizeParameter::IoBatchsize));
    if place.is_null() || room == 0 || u64::from(room) > most {
        return Err(RefusedCall(code::INVALID_VALUE));
    }
    let number = meter().next_group();
    let batch = Arc::new(CufileBatch::new(room as usize, number));
    let handle = library.batches.insert(batch).ok_or(RefusedCall(code::NOMEM_ERROR))?;
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
        let begun = meter().begin_call();
        let result = set_up(place, room);
        meter().count(Op::BatchSetup, result.is_ok());
        meter().plain(Api::BatchSetUp, begun, 0, u64::from(room), result);
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
        let begun = meter().begin_call();
        let known = library.batches.get(batch).map_err(|_| REFUSED_SUBMIT);
        let result = known.as_ref().map_err(|bad| *bad).and_then(|batch| {
            if entries.is_null() || count == 0 || count as usize > batch.room {
                return Err(REFUSED_SUBMIT);
            }
            // SAFETY: as the caller promises.
            submit(batch, unsafe { std::slice::from_raw_parts(entries, count as usize) }, begun)
        });
        let number = known.map_or(0, |batch| batch.number);
        meter().batch_submitted(begun, number, u64::from(count), result);
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
        let known =
            library.batches.get(batch).map_err(|_| RefusedCall(code::INTERNAL_BATCH_GETSTATUS_ERROR))?;
        // SAFETY: checked not to be null.
        if count.is_null() || events.is_null() || least > unsafe { *count } {
            return Err(RefusedCall(code::INVALID_VALUE));
        }
        let begun = meter().begin_call();
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
        meter().plain(Api::BatchGetStatus, begun, known.number, u64::from(least), Ok(()));
        Ok(())
    })
}

/// Cancels entries, as far as possible: started ones are waited for. None of them has an event afterwards.
///
/// # Safety
/// None: handles are checked.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn cuFileBatchIOCancel(batch: CUfileBatchHandle) -> CUfileError {
    guarded(|| {
        if batch.is_null() {
            return Ok(());
        }
        let meter = meter();
        let begun = meter.begin_call();
        let known = library().batches.get(batch).map_err(|_| RefusedCall(code::INTERNAL_BATCH_CANCEL_ERROR));
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
        let meter = meter();
        let begun = meter.begin_call();
        let known = library().batches.remove(batch);
        meter.count(Op::BatchDestroy, known.is_ok());
        if let Ok(batch) = known {
            batch.drain();
            meter.plain(Api::BatchDestroy, begun, batch.number, 0, Ok(()));
        }
    });
}
