//! Many pieces of a map by one kernel, or by a few where the offsets come from host memory.

use std::collections::VecDeque;
use std::fmt;
use std::sync::{Arc, MutexGuard};
use std::time::Instant;

use forebay_config::Objective;
use forebay_error::{Error, ErrorKind, Result};
use forebay_gpu::{Context, Device, Event, Gather, GatherReport, Stream, Wait};

use super::in_place;
use super::map::{Inner, Map};
use crate::request::buffer::Buffer;
use crate::request::receipt::{Election, EngineKind, Moved, Receipt};
use crate::runtime::fork::{Native, from_before};
use crate::runtime::lock::lock;
use crate::runtime::pinned::PinnedPages;
use crate::runtime::{traffic, wait};

/// Gathers of one map in flight at once.
const REPORTS: usize = 256;
/// Offsets that the first kernel of a long list takes: copied in a few microseconds, while they keep the device busy until
/// the next are there.
const FIRST: usize = 8 << 10;
/// Each kernel takes so many times what the one before took,
const GROWTH: usize = 8;
/// but no more than this.
const MOST: usize = 512 << 10;
/// Kernels of one list that are in the air while the next offsets are copied.
const AHEAD: usize = 2;
/// Rooms for offsets that a map keeps.
const ROOMS: usize = 6;

/// What gathers of a map need beside its pages.
pub(super) struct Desk {
    device: Arc<dyn Device>,
    stream: Box<dyn Stream>,
    /// Device memory of [`REPORTS`] reports.
    reports: u64,
    /// Pinned: the reports as they came back, then one that is blank.
    mirror: PinnedPages,
    free: Vec<usize>,
}

/// Where the offsets of a gather are.
#[derive(Clone, Copy, Debug)]
pub enum Offsets<'a> {
    /// In host memory.
    Host(&'a [u64]),
    /// The first so many 64-bit words of a buffer that the device reaches: its own memory, as a rule.
    Device(&'a Buffer, usize),
}

impl Offsets<'_> {
    fn count(&self) -> usize {
        match self {
            Self::Host(offsets) => offsets.len(),
            Self::Device(_, count) => *count,
        }
    }
}

/// A gather by addresses.
#[derive(Clone, Copy, Debug)]
pub struct RawGather {
    /// Address of `count` 64-bit offsets into the file, in memory that the device reaches.
    pub offsets: u64,
    /// How many pieces.
    pub count: usize,
    /// Bytes of each piece.
    pub length: usize,
    /// Device memory: piece `i` goes to `out + i * length`.
    pub out: u64,
}

/// A gather in flight. Dropping it waits.
#[must_use = "dropping a gather waits for it and hides what it refused"]
pub struct Gathering {
    inner: Native<Arc<Inner>>,
    event: Native<Box<dyn Event>>,
    report: usize,
    request: RawGather,
    started: Instant,
    is_over: bool,
}

impl fmt::Debug for Gathering {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Gathering").field("request", &self.request).finish_non_exhaustive()
    }
}

/// A part of a list in the air, with the room that its kernel reads the offsets from.
struct Part {
    /// Index of its first piece.
    first: usize,
    /// Before the room, which must outlive it: fields are dropped in this order.
    gathering: Gathering,
    room: PinnedPages,
}

impl Map {
    /// Gathers pieces of `length` bytes from the given offsets into `out`, one after the other, and waits.
    ///
    /// The device checks each offset: if some pieces do not lie within the file, their places are filled with zeros, the
    /// others are gathered all the same, and the call ends with [`ErrorKind::InvalidInput`]. [`ErrorKind::Busy`] if the
    /// file was changed: what is in `out` may then be old, new or mixed.
    pub fn gather(&self, offsets: Offsets<'_>, length: usize, out: &mut Buffer) -> Result<Receipt> {
        check_room(offsets.count(), length, out.len())?;
        self.check_device(out)?;
        // SAFETY: the buffer is borrowed until all is done.
        unsafe { self.gather_at(offsets, length, out.address(), None) }
    }

    /// As [`Map::gather`], into device memory by its address: piece `i` goes to `out + i * length`. With `after` (a
    /// `CUstream` as an integer; 0 is the default stream) it begins when that stream has done what is queued on it now,
    /// and later work of the stream comes after it.
    ///
    /// Offsets in host memory are copied into pinned memory part by part while the device gathers those before. Many
    /// threads may gather from one map at once.
    ///
    /// # Safety
    /// `out` is `offsets × length` bytes of memory of the map's device, which nobody else uses until the call returns
    /// but the work queued on `after`; and `after` is a live stream of the device's primary context.
    pub unsafe fn gather_at(
        &self,
        offsets: Offsets<'_>,
        length: usize,
        out: u64,
        after: Option<u64>,
    ) -> Result<Receipt> {
        let count = offsets.count();
        check_room(count, length, usize::MAX)?;
        match offsets {
            // SAFETY: passed on.
            Offsets::Host(list) => unsafe { self.gather_list(list, length, out, after) },
            Offsets::Device(buffer, _) => {
                check_room(count, 8, buffer.len())?;
                self.check_device(buffer)?;
                let request = RawGather { offsets: buffer.address(), count, length, out };
                // SAFETY: passed on; the buffer is borrowed until the wait is over.
                unsafe { self.gather_raw(after, request) }?.wait()
            }
        }
    }

    /// Starts a gather: on `stream` (a `CUstream` as an integer; 0 is the default stream) in its order, or on a stream
    /// of the map's own. Returns as soon as it is queued. [`ErrorKind::Unsupported`] if the stream is being captured.
    ///
    /// # Safety
    /// The offsets and `count * length` bytes at `out` are valid device-reachable memory, which nobody else uses, until
    /// the gather is done; and `stream` is a live stream of this device's primary context.
    pub unsafe fn gather_raw(&self, stream: Option<u64>, request: RawGather) -> Result<Gathering> {
        // SAFETY: passed on.
        unsafe { self.inner.launch(stream, request) }
    }

    /// # Safety
    /// As [`Map::gather_at`].
    unsafe fn gather_list(
        &self,
        list: &[u64],
        length: usize,
        out: u64,
        after: Option<u64>,
    ) -> Result<Receipt> {
        let inner = &self.inner;
        inner.check_version()?;
        let started = Instant::now();
        let mut sum = GatherReport::START;
        let mut in_air = VecDeque::new();
        let mut first = 0;
        for part in parts(list) {
            let room = inner.room(size_of_val(part))?;
            // SAFETY: the room has place for the part, and no kernel reads it.
            unsafe { std::ptr::copy_nonoverlapping(part.as_ptr(), room.as_ptr().cast(), part.len()) };
            let place = out + (first * length) as u64;
            let request = RawGather { offsets: room.reach(), count: part.len(), length, out: place };
            // SAFETY: the caller vouches for the memory, and waits here; the room is kept until its part has landed.
            let gathering = unsafe { inner.launch(after, request) }?;
            in_air.push_back(Part { first, gathering, room });
            first += part.len();
            if in_air.len() > AHEAD {
                in_air.pop_front().map_or(Ok(()), |part| part.land(inner, &mut sum))?;
            }
        }
        in_air.into_iter().try_for_each(|part| part.land(inner, &mut sum))?;
        inner.conclude(sum, list.len(), length, started)
    }

    fn check_device(&self, buffer: &Buffer) -> Result<()> {
        let (mine, other) = (self.inner.shared.shelf.device.info(), buffer.device().info());
        if (mine.is_host, mine.uuid) == (other.is_host, other.uuid) {
            return Ok(());
        }
        Err(Error::new(
            ErrorKind::InvalidInput,
            "the buffer is not on the device that the file is mapped for",
        )
        .with("buffer", &other.name)
        .with("map", &mine.name))
    }
}

/// Cuts a list into parts that grow: the first is soon there, the later ones cost few launches.
fn parts(list: &[u64]) -> impl Iterator<Item = &[u64]> {
    let (mut rest, mut size) = (list, FIRST);
    std::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        let (part, others) = rest.split_at(size.min(rest.len()));
        rest = others;
        size = (size * GROWTH).min(MOST);
        Some(part)
    })
}

fn no_desk() -> Error {
    Error::new(ErrorKind::Internal, "the map's desk is missing")
}

fn check_room(count: usize, length: usize, room: usize) -> Result<()> {
    if count.checked_mul(length).is_none_or(|bytes| bytes > room) {
        return Err(Error::new(ErrorKind::InvalidInput, "the buffer is too small for so many pieces")
            .with("pieces", count)
            .with("bytes of each", length)
            .with("buffer", room));
    }
    Ok(())
}

impl Part {
    /// Waits for it, adds what it refused, and gives its room back.
    fn land(self, inner: &Inner, sum: &mut GatherReport) -> Result<()> {
        let report = self.gathering.land()?;
        inner.give_back(self.room);
        if report.refused > 0 {
            sum.first = sum.first.min(self.first as u64 + report.first);
            sum.refused += report.refused;
        }
        Ok(())
    }
}

impl Inner {
    fn desk(&self) -> Result<MutexGuard<'_, Option<Desk>>> {
        let mut desk = lock(&self.desk);
        if desk.is_none() {
            *desk = Some(Desk::new(&self.shared.shelf.device)?);
        }
        Ok(desk)
    }

    /// Pinned memory for so many bytes of offsets: a free room, or a new one of a usual size.
    fn room(&self, bytes: usize) -> Result<PinnedPages> {
        let mut rooms = lock(&self.rooms);
        let fitting = (0..rooms.len()).filter(|at| rooms[*at].len() >= bytes);
        if let Some(at) = fitting.min_by_key(|at| rooms[*at].len()) {
            return Ok(rooms.swap_remove(at));
        }
        drop(rooms);
        let mut size = FIRST;
        while size * 8 < bytes {
            size *= GROWTH;
        }
        PinnedPages::new(&self.shared.shelf.device, size * 8)
    }

    fn give_back(&self, room: PinnedPages) {
        let mut rooms = lock(&self.rooms);
        if rooms.len() < ROOMS {
            return rooms.push(room);
        }
        drop(rooms);
        drop(room);
    }

    /// # Safety
    /// As [`Map::gather_raw`].
    unsafe fn launch(self: &Arc<Self>, stream: Option<u64>, request: RawGather) -> Result<Gathering> {
        self.check_version()?;
        let started = Instant::now();
        let device = &self.shared.shelf.device;
        // SAFETY: the caller vouches for the stream.
        let foreign = stream.map(|handle| unsafe {
            device.identify(handle)?;
            device.foreign_stream(handle)
        });
        let foreign = foreign.transpose()?;
        let mut desk = self.desk()?;
        let Some(desk) = desk.as_mut() else { return Err(no_desk()) };
        let Some(report) = desk.free.pop() else {
            return Err(Error::new(ErrorKind::Busy, "too many gathers of one map are in flight")
                .with("most", REPORTS)
                .hint("wait for some of them"));
        };
        let stream = foreign.as_deref().unwrap_or(desk.stream.as_ref());
        let gather = Gather {
            base: self.address,
            len: self.version.len,
            offsets: request.offsets,
            count: request.count as u64,
            piece: request.length as u64,
            out: request.out,
            report: desk.report_on_device(report),
        };
        // SAFETY: the report is this gather's alone; pages and desk live as long as the gathering; the caller vouches
        // for the rest.
        let queued = unsafe { desk.queue(stream, report, &gather) };
        match queued {
            Ok(event) => {
                let (inner, event) = (Native::new(self.clone()), Native::new(event));
                Ok(Gathering { inner, event, report, request, started, is_over: false })
            }
            Err(error) => {
                // Parts of it may have been queued.
                let _ = stream.synchronize(Wait::Block);
                desk.free.push(report);
                Err(error)
            }
        }
    }

    /// How to wait for so many bytes.
    fn manner(&self, bytes: usize) -> Wait {
        match self.shared.objective {
            Objective::Latency => Wait::Spin,
            Objective::Throughput => wait::nap(bytes),
            Objective::Cpu => Wait::Block,
        }
    }

    /// What a gather that has landed came to.
    fn conclude(
        &self,
        report: GatherReport,
        count: usize,
        length: usize,
        started: Instant,
    ) -> Result<Receipt> {
        let elapsed = started.elapsed();
        if report.refused > 0 && count > 0 && length > 0 {
            return Err(Error::new(ErrorKind::InvalidInput, "some offsets do not lie within the file")
                .with("refused", report.refused)
                .with("of", count)
                .with("first", report.first)
                .with("file bytes", self.version.len));
        }
        self.check()?;
        let base =
            Election { engine: EngineKind::Mapped, refused: Vec::new(), notes: Vec::new(), mode: None };
        let bytes = (count * length) as u64;
        let moved = Moved { mapped: bytes, ..Moved::default() };
        Ok(Receipt { election: in_place(&Arc::new(base), bytes, 0, None, self.notes()), moved, elapsed })
    }
}

impl Desk {
    fn new(device: &Arc<dyn Device>) -> Result<Self> {
        let size = size_of::<GatherReport>();
        device.kernels(Context::PRIMARY)?;
        let stream = device.stream(Context::PRIMARY)?;
        let mirror = PinnedPages::new(device, (REPORTS + 1) * size)?;
        let reports = device.allocate(REPORTS * size)?;
        let desk = Self { device: device.clone(), stream, reports, mirror, free: (0..REPORTS).collect() };
        // SAFETY: the mirror has a place behind the last report.
        unsafe { desk.mirrored(REPORTS).write(GatherReport::START) };
        Ok(desk)
    }

    fn report_on_device(&self, index: usize) -> u64 {
        self.reports + (index * size_of::<GatherReport>()) as u64
    }

    #[allow(clippy::cast_ptr_alignment, reason = "the pages are aligned to far more than a report")]
    fn mirrored(&self, index: usize) -> *mut GatherReport {
        self.mirror.as_ptr().cast::<GatherReport>().wrapping_add(index)
    }

    /// # Safety
    /// As [`Stream::gather`]; the report is nobody else's.
    unsafe fn queue(&self, stream: &dyn Stream, report: usize, gather: &Gather) -> Result<Box<dyn Event>> {
        let size = size_of::<GatherReport>();
        // SAFETY: the mirror and the reports live as long as the desk, which outlives the gathering.
        unsafe {
            stream.copy_in(gather.report, self.mirrored(REPORTS).cast(), size)?;
            if gather.count > 0 && gather.piece > 0 {
                stream.gather(gather)?;
            }
            stream.copy_out(self.mirrored(report).cast(), gather.report, size)?;
        }
        let event = stream.event()?;
        stream.record(event.as_ref())?;
        Ok(event)
    }
}

impl Drop for Desk {
    fn drop(&mut self) {
        let _ = self.stream.synchronize(Wait::Block);
        let (device, reports) = (self.device.clone(), self.reports);
        // SAFETY: allocated in `new`; gatherings, which hold the desk's owner, are over.
        traffic::when_clear(move || unsafe { device.free(reports) });
    }
}

impl Gathering {
    /// Whether the device is done with it.
    pub fn is_done(&self) -> Result<bool> {
        self.check_here()?;
        self.event.is_done()
    }

    /// Waits for it. Errors as [`Map::gather`].
    pub fn wait(self) -> Result<Receipt> {
        self.check_here()?;
        let (inner, RawGather { count, length, .. }, started) =
            (Arc::clone(&self.inner), self.request, self.started);
        let report = self.land()?;
        inner.conclude(report, count, length, started)
    }

    fn check_here(&self) -> Result<()> {
        if self.inner.is_elsewhere() { Err(from_before("this gather was started")) } else { Ok(()) }
    }

    /// Waits for it; what it refused.
    fn land(mut self) -> Result<GatherReport> {
        self.is_over = true;
        let bytes = self.request.count.saturating_mul(self.request.length);
        let waited = self.event.wait(self.inner.manner(bytes));
        let mut desk = lock(&self.inner.desk);
        let Some(desk) = desk.as_mut() else { return Err(no_desk()) };
        // SAFETY: the copy of the report into its place is done, or failed and left what was there.
        let report = unsafe { desk.mirrored(self.report).read() };
        desk.free.push(self.report);
        waited.map(|()| report)
    }
}

impl Drop for Gathering {
    fn drop(&mut self) {
        if !self.is_over && !self.inner.is_elsewhere() {
            let _ = self.event.wait(Wait::Block);
            if let Some(desk) = lock(&self.inner.desk).as_mut() {
                desk.free.push(self.report);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_cover_a_list_in_order_and_begin_small() {
        for count in [0, 1, FIRST - 1, FIRST, FIRST + 1, FIRST * (1 + GROWTH), 1 << 20, 5_000_000] {
            let list: Vec<u64> = (0..count as u64).collect();
            assert!(parts(&list).flatten().eq(&list));
            assert!(parts(&list).all(|part| (1..=MOST).contains(&part.len())));
            assert!(parts(&list).next().is_none_or(|part| part.len() <= FIRST));
        }
        assert_eq!(parts(&vec![0; 1 << 20]).count(), 4, "few launches");
    }
}
