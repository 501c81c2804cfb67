//! A warm file as memory that a device's kernels read in place, and gathers of its pieces.

use std::collections::VecDeque;
use std::fmt;
use std::os::fd::AsRawFd;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use forebay_error::{Error, ErrorKind, Result};
use forebay_gpu::{Event, Gather, GatherReport, Wait};

use super::eligibility::Reason;
use super::gather::{GatherStream, buffer_size, parts};
use super::pin_cache::PinCache;
use super::reclaimer::Pin;
use super::registrar::{PinPolicy, PinTerms};
use super::state::{MappedState, REGISTER_LIMIT, in_place, writers_note};
use super::window::{PinnedFile, WindowAnswer};
use crate::request::buffer::Buffer;
use crate::request::file::File;
use crate::request::receipt::{CountedPlaces, Election, EngineKind, Moved, Note, Receipt, Way};
use crate::runtime::fork::{Native, from_before};
use crate::runtime::lock;
use crate::runtime::pinned::PinnedPages;
use crate::source::Descriptors;
use crate::source::version::FileVersion;
use crate::tuning::machine::MANY;
use crate::tuning::mapped::GATHERS_AHEAD;

/// A file whose pages one device reads in place.
///
/// What kernels see through [`Map::address`] is the page cache: bytes that others write to the file appear there, at
/// any time and in any order. A file that is cut short, punched or overwritten by O_DIRECT leaves its old pages to the
/// map, and no kernel faults. So the rule is: bytes that a kernel read are the file's if [`Map::check`] is fine
/// *afterwards*; [`Map::gather`] and [`Map::gather_at`] do that by themselves. `docs/concepts/warm-files.md` has all rules.
///
/// The pages stay pinned, and count against the budget, until the map and the gathers that it started are dropped. The
/// CPU never gets a slice: a file that is cut short would end the process.
#[derive(Debug)]
pub struct Map {
    inner: Native<Arc<MapState>>,
}

struct MapState {
    state: Arc<MappedState>,
    file: File,
    pinned: Arc<PinnedFile>,
    version: FileVersion,
    address: u64,
    pins: Vec<Arc<Pin>>,
    /// Resources of its gathers; made by the first one.
    gather_stream: Mutex<Option<GatherStream>>,
    /// Pinned memory for offsets, between gathers.
    offset_buffers: Mutex<Vec<PinnedPages>>,
}

impl fmt::Debug for MapState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Map")
            .field("file", &self.file)
            .field("version", &self.version)
            .finish_non_exhaustive()
    }
}

impl Map {
    pub(super) fn new(state: Arc<MappedState>, file: &File) -> Result<Self> {
        let Some(source) = file.opened() else {
            return Err(
                Error::new(ErrorKind::Unsupported, "only files can be mapped").with("source", file.name())
            );
        };
        let descriptors = &source.descriptors;
        let refuse = |reason: Reason| reason.error().with("file", file.name());
        descriptors.check()?;
        state.cache.verdict(descriptors, forebay_gpu::Access::ReadOnly).map_err(refuse)?;
        let named = |error: Error| error.with("file", file.name());
        let fd = descriptors.buffered.as_raw_fd();
        settled(&state.cache, descriptors).map_err(named)?;
        let access = forebay_gpu::Access::ReadOnly;
        let (version, pinned) = state.cache.enter(source, fd, access).map_err(named)?;
        if version.len == 0 {
            return Err(Error::new(ErrorKind::InvalidInput, "an empty file cannot be mapped")
                .with("file", file.name()));
        }
        let pins = pin_all(&state, file, &pinned).inspect_err(|_| state.give_up(&pinned))?;
        let Some(address) = pinned.address(0) else {
            return Err(Error::new(ErrorKind::Internal, "a file with pins has no addresses"));
        };
        let (file, gather_stream, offset_buffers) = (file.clone(), Mutex::default(), Mutex::default());
        let inner = MapState { state, file, pinned, version, address, pins, gather_stream, offset_buffers };
        Ok(Self { inner: Native::new(Arc::new(inner)) })
    }

    /// The device address of the file's first byte. Kernels of this device may read [`Map::len`] bytes from there as
    /// long as the map lives; none may write, and the CPU may do neither.
    pub fn address(&self) -> u64 {
        self.inner.address
    }

    /// Bytes of the file when it was mapped.
    pub fn len(&self) -> u64 {
        self.inner.version.len
    }

    /// Whether it maps no bytes: never, since empty files are not mapped.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The state of the file that is mapped.
    pub fn version(&self) -> FileVersion {
        self.inner.version
    }

    /// Bytes that it keeps in memory, as counted against the budget.
    pub fn pinned_bytes(&self) -> u64 {
        self.inner.pins.iter().map(|pin| pin.len()).sum()
    }

    /// Whether the file is still the one mapped: if it is, all that kernels have read so far were its bytes.
    /// [`ErrorKind::Busy`] if it was changed.
    pub fn check(&self) -> Result<()> {
        self.check_here()?;
        self.inner.check()
    }

    fn check_here(&self) -> Result<()> {
        if self.inner.is_elsewhere() { Err(from_before("this file was mapped")) } else { Ok(()) }
    }

    /// Maps the file as it is now, if it was changed. Addresses change with it. True if it was.
    pub fn refresh(&mut self) -> Result<bool> {
        self.check_here()?;
        if self.inner.check().is_ok() {
            return Ok(false);
        }
        self.inner.state.cache.discard(&self.inner.pinned);
        *self = Self::new(self.inner.state.clone(), &self.inner.file)?;
        Ok(true)
    }
}

/// Waits until the file has been left alone long enough for its pages to be pinned.
fn settled(cache: &PinCache, file: &Descriptors) -> Result<()> {
    let deadline = Instant::now() + cache.settle * 3;
    loop {
        let version = FileVersion::of(file.buffered.as_raw_fd())?;
        let settle = cache.settle_of(file, cache.writers(file, &version));
        if !version.is_young(settle) {
            return Ok(());
        }
        if Instant::now() > deadline {
            return Err(
                Error::new(ErrorKind::Busy, "the file keeps changing").hint("map it when its writer is done")
            );
        }
        std::thread::sleep(settle / 10);
    }
}

/// Has all windows registered, and waits for them.
fn pin_all(state: &Arc<MappedState>, file: &File, pinned: &Arc<PinnedFile>) -> Result<Vec<Arc<Pin>>> {
    let Some(source) = file.opened() else { return Ok(Vec::new()) };
    let registrar = |request| state.register(request);
    let ask = |window| {
        state.cache.ask(
            source,
            &source.descriptors,
            pinned,
            window,
            PinTerms::of(PinPolicy::Always, 0.0),
            &registrar,
        )
    };
    let refuse = |reason: Reason| Err(reason.error().with("file", file.name()));
    let mut pins = Vec::with_capacity(pinned.windows());
    // All are asked for at once, so that none waits until the answer is read. Those that are there are held, or
    // the later ones would take their place.
    let mut held = Vec::new();
    for window in 0..pinned.windows() {
        match ask(window) {
            WindowAnswer::No(reason) => return refuse(reason),
            WindowAnswer::Ready(pin) => held.push(pin),
            WindowAnswer::Pending(_) => {}
        }
    }
    for window in 0..pinned.windows() {
        loop {
            let seen = state.cache.wake_queue.count();
            match pinned.answer(window) {
                WindowAnswer::Ready(pin) => break pins.push(pin),
                WindowAnswer::Pending(since) if since.elapsed() < REGISTER_LIMIT * 6 => {
                    state.cache.wake_queue.wait(seen, Duration::from_millis(100));
                }
                WindowAnswer::Pending(_) => {
                    return refuse(Reason::new("a registration did not end"));
                }
                WindowAnswer::No(reason) => return refuse(reason),
            }
        }
    }
    drop(held);
    if pinned.is_stale() {
        return Err(Error::new(ErrorKind::Busy, "the file changed while it was mapped")
            .with("file", file.name())
            .hint("map it again"));
    }
    Ok(pins)
}

impl MapState {
    /// Whether all that kernels have read was the file's. Lost pages are searched for where that is in doubt.
    fn check(&self) -> Result<()> {
        self.check_version()?;
        if !self.pinned.is_watched() || self.pinned.has_kept(0, self.version.len) {
            return Ok(());
        }
        self.state.cache.discard(&self.pinned);
        Err(self.changed())
    }

    /// Whether its version is the same.
    fn check_version(&self) -> Result<()> {
        let Some(file) = self.file.descriptors() else { return Ok(()) };
        if FileVersion::of(file.buffered.as_raw_fd())? == self.version && !self.pinned.is_stale() {
            return Ok(());
        }
        Err(self.changed())
    }

    fn changed(&self) -> Error {
        Error::new(ErrorKind::Busy, "the file was changed since it was mapped")
            .with("file", self.file.name())
            .hint("call refresh() and start over")
    }

    /// Notes for receipts of gathers.
    fn notes(&self) -> Vec<Note> {
        writers_note(self.pinned.suspects()).cloned().into_iter().collect()
    }
}

// ---- gathers ----------------------------------------------------------------------------------------------------

/// Where the offsets of a gather are.
#[derive(Clone, Copy, Debug)]
pub enum Offsets<'a> {
    /// In host memory.
    Host(&'a [u64]),
    /// The first words, 64 bits each, of a buffer that the device reaches: its own memory, as a rule.
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
    inner: Native<Arc<MapState>>,
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

/// A part of a list in flight, with the buffer that its kernel reads the offsets from.
struct GatherPart {
    /// Index of its first piece.
    first: usize,
    /// Before the buffer, which must outlive it: fields are dropped in this order.
    gathering: Gathering,
    buffer: PinnedPages,
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
    /// `CUstream` as an integer; 0 is the default stream) it begins when that stream has done the work queued on it
    /// now, and later work of the stream comes after it.
    ///
    /// Offsets in host memory are copied into pinned memory part by part while the device gathers those before. Many
    /// threads may gather from one map at once.
    ///
    /// # Safety
    /// `out` is `offsets × length` bytes of memory of the map's device, which nothing else uses until the call returns
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
    /// The offsets and `count * length` bytes at `out` are valid device-reachable memory, which nothing else uses, until
    /// the gather is done; and `stream` is a live stream of this device's primary context.
    pub unsafe fn gather_raw(&self, stream: Option<u64>, request: RawGather) -> Result<Gathering> {
        self.check_here()?;
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
        self.check_here()?;
        let inner = &self.inner;
        inner.check_version()?;
        let started = Instant::now();
        let mut sum = GatherReport::START;
        let mut in_flight = VecDeque::new();
        let mut first = 0;
        for part in parts(list) {
            let buffer = inner.buffer(size_of_val(part))?;
            // SAFETY: the buffer has place for the part, and no kernel reads it.
            unsafe { std::ptr::copy_nonoverlapping(part.as_ptr(), buffer.as_ptr().cast(), part.len()) };
            let place = out + (first * length) as u64;
            let request = RawGather { offsets: buffer.reach(), count: part.len(), length, out: place };
            // SAFETY: the caller vouches for the memory, and waits here; the buffer is kept until its part is done.
            let gathering = unsafe { inner.launch(after, request) }?;
            in_flight.push_back(GatherPart { first, gathering, buffer });
            first += part.len();
            if in_flight.len() > GATHERS_AHEAD {
                in_flight.pop_front().map_or(Ok(()), |part| part.end(inner, &mut sum))?;
            }
        }
        in_flight.into_iter().try_for_each(|part| part.end(inner, &mut sum))?;
        inner.conclude(sum, list.len(), length, started)
    }

    fn check_device(&self, buffer: &Buffer) -> Result<()> {
        let (mine, other) = (self.inner.state.cache.device.info(), buffer.device().info());
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

fn no_stream() -> Error {
    Error::new(ErrorKind::Internal, "the map's gather_stream is missing")
}

fn check_room(count: usize, length: usize, buffer: usize) -> Result<()> {
    if count.checked_mul(length).is_none_or(|bytes| bytes > buffer) {
        return Err(Error::new(ErrorKind::InvalidInput, "the buffer is too small for the pieces")
            .with("pieces", count)
            .with("bytes of each", length)
            .with("buffer", buffer));
    }
    Ok(())
}

impl GatherPart {
    /// Waits for it, adds what it refused, and gives its buffer back.
    fn end(self, inner: &MapState, sum: &mut GatherReport) -> Result<()> {
        let report = self.gathering.end()?;
        inner.give_back(self.buffer);
        if report.refused > 0 {
            sum.first = sum.first.min(self.first as u64 + report.first);
            sum.refused += report.refused;
        }
        Ok(())
    }
}

impl MapState {
    fn gather_stream(&self) -> Result<MutexGuard<'_, Option<GatherStream>>> {
        let mut gather_stream = lock(&self.gather_stream);
        if gather_stream.is_none() {
            *gather_stream = Some(GatherStream::new(&self.state.cache.device)?);
        }
        Ok(gather_stream)
    }

    /// Pinned memory for `bytes` of offsets: a free buffer, or a new one of a usual size.
    fn buffer(&self, bytes: usize) -> Result<PinnedPages> {
        let mut offset_buffers = lock(&self.offset_buffers);
        let fitting = (0..offset_buffers.len()).filter(|at| offset_buffers[*at].len() >= bytes);
        if let Some(at) = fitting.min_by_key(|at| offset_buffers[*at].len()) {
            return Ok(offset_buffers.swap_remove(at));
        }
        drop(offset_buffers);
        PinnedPages::new(&self.state.cache.device, buffer_size(bytes))
    }

    fn give_back(&self, buffer: PinnedPages) {
        let mut offset_buffers = lock(&self.offset_buffers);
        // Those of two lists.
        if offset_buffers.len() < 2 * (GATHERS_AHEAD + 1) {
            return offset_buffers.push(buffer);
        }
        drop(offset_buffers);
        drop(buffer);
    }

    /// # Safety
    /// As [`Map::gather_raw`].
    unsafe fn launch(self: &Arc<Self>, stream: Option<u64>, request: RawGather) -> Result<Gathering> {
        self.check_version()?;
        let started = Instant::now();
        let device = &self.state.cache.device;
        // SAFETY: the caller vouches for the stream.
        let foreign = stream.map(|handle| unsafe {
            device.identify(handle)?;
            device.foreign_stream(handle)
        });
        let foreign = foreign.transpose()?;
        let mut gather_stream = self.gather_stream()?;
        let Some(gather_stream) = gather_stream.as_mut() else { return Err(no_stream()) };
        let Some(report) = gather_stream.free.pop() else {
            return Err(Error::new(ErrorKind::Busy, "too many gathers of one map are in flight")
                .with("most", MANY)
                .hint("wait for some of them"));
        };
        let stream = foreign.as_deref().unwrap_or(gather_stream.stream.as_ref());
        let gather = Gather {
            base: self.address,
            len: self.version.len,
            offsets: request.offsets,
            count: request.count as u64,
            piece: request.length as u64,
            out: request.out,
            report: gather_stream.report_on_device(report),
        };
        // SAFETY: the report is this gather's alone; pages and gather_stream live as long as the gathering; the caller vouches
        // for the rest.
        let queued = unsafe { gather_stream.queue(stream, report, &gather) };
        match queued {
            Ok(event) => {
                let (inner, event) = (Native::new(self.clone()), Native::new(event));
                Ok(Gathering { inner, event, report, request, started, is_over: false })
            }
            Err(error) => {
                // Parts of it may have been queued.
                let _ = stream.synchronize(Wait::Block);
                gather_stream.free.push(report);
                Err(error)
            }
        }
    }

    /// The result of a gather.
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
        let base = Election {
            engine: EngineKind::Mapped,
            refused: Vec::new(),
            notes: Vec::new(),
            mode: None,
            places: CountedPlaces::default(),
        };
        let bytes = (count * length) as u64;
        let moved = Moved::of(Way::Mapped, bytes);
        Ok(Receipt { election: in_place(&Arc::new(base), bytes, 0, None, self.notes()), moved, elapsed })
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
        let report = self.end()?;
        inner.conclude(report, count, length, started)
    }

    fn check_here(&self) -> Result<()> {
        if self.inner.is_elsewhere() { Err(from_before("this gather was started")) } else { Ok(()) }
    }

    /// Waits for it; returns its refused pieces.
    fn end(mut self) -> Result<GatherReport> {
        self.is_over = true;
        let bytes = self.request.count.saturating_mul(self.request.length);
        let waited = self.event.wait(self.inner.state.copy_wait(bytes));
        let mut gather_stream = lock(&self.inner.gather_stream);
        let Some(gather_stream) = gather_stream.as_mut() else { return Err(no_stream()) };
        // SAFETY: the copy of the report into its place is done, or failed and left what was there.
        let report = unsafe { gather_stream.mirrored(self.report).read() };
        gather_stream.free.push(self.report);
        waited.map(|()| report)
    }
}

impl Drop for Gathering {
    fn drop(&mut self) {
        if !self.is_over && !self.inner.is_elsewhere() {
            let _ = self.event.wait(Wait::Block);
            if let Some(gather_stream) = lock(&self.inner.gather_stream).as_mut() {
                gather_stream.free.push(self.report);
            }
        }
    }
}
