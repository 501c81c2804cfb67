//! A warm file as memory that a device's kernels read in place.

use std::fmt;
use std::os::fd::AsRawFd;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use forebay_error::{Error, ErrorKind, Result};
use forebay_gpu::{Context, Device, Event, Gather, GatherReport, Stream, Wait};

use super::in_place;
use super::pin::Pin;
use super::shared::{PATIENCE, Shared};
use super::shelf::{Answer, Want};
use super::version::FileVersion;
use super::window::Pinned;
use crate::buffer::Buffer;
use crate::file::File;
use crate::lock::lock;
use crate::pinned::PinnedPages;
use crate::receipt::{Election, EngineKind, Moved, Receipt};
use crate::source::Fill;
use crate::traffic;

/// Gathers of one map in flight at once.
const REPORTS: usize = 256;

/// A file whose pages one device reads in place.
///
/// What kernels see through [`Map::address`] is the page cache: bytes that others write to the file appear there, at
/// any time and in any order. A file that is cut short, punched or overwritten by O_DIRECT leaves its old pages to the
/// map, and no kernel faults. So the rule is: bytes that a kernel read are the file's if [`Map::check`] is fine
/// *afterwards*; [`Map::gather`] does that by itself. `docs/concepts/warm-files.md` has all rules.
///
/// The pages stay pinned, and count against the budget, until the map and the gathers that it started are dropped. The
/// CPU never gets a slice: a file that is cut short would end the process.
#[derive(Debug)]
pub struct Map {
    inner: Arc<Inner>,
}

struct Inner {
    shared: Arc<Shared>,
    file: File,
    pinned: Arc<Pinned>,
    version: FileVersion,
    address: u64,
    pins: Vec<Arc<Pin>>,
    desk: Mutex<Option<Desk>>,
}

impl fmt::Debug for Inner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Map")
            .field("file", &self.file)
            .field("version", &self.version)
            .finish_non_exhaustive()
    }
}

/// What gathers need beside the pages.
struct Desk {
    device: Arc<dyn Device>,
    stream: Box<dyn Stream>,
    /// Device memory of [`REPORTS`] reports.
    reports: u64,
    /// Pinned: the reports as they came back, then one that is blank.
    mirror: PinnedPages,
    free: Vec<usize>,
    /// Device memory for offsets that callers have in host memory, each with its bytes; those in use are not here.
    scratch: Vec<(u64, usize)>,
}

/// Where the offsets of a gather are.
#[derive(Clone, Copy, Debug)]
pub enum Offsets<'a> {
    /// In host memory: they are copied to the device first.
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
    inner: Arc<Inner>,
    event: Box<dyn Event>,
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

impl Map {
    pub(super) fn new(shared: Arc<Shared>, file: &File) -> Result<Self> {
        let Fill::Descriptor(descriptors) = file.source().fill() else {
            return Err(
                Error::new(ErrorKind::Unsupported, "only files can be mapped").with("source", file.name())
            );
        };
        let refuse = |reason: super::Reason| reason.error().with("file", file.name());
        shared.shelf.verdict(descriptors, forebay_gpu::Access::ReadOnly).map_err(refuse)?;
        let named = |error: Error| error.with("file", file.name());
        let fd = descriptors.buffered.as_raw_fd();
        settled(fd, shared.shelf.settle_of(descriptors)).map_err(named)?;
        let access = forebay_gpu::Access::ReadOnly;
        let (version, pinned) = shared.shelf.enter(file.source(), fd, access).map_err(named)?;
        if version.len == 0 {
            return Err(Error::new(ErrorKind::InvalidInput, "an empty file cannot be mapped")
                .with("file", file.name()));
        }
        let pins = pin_all(&shared, file, &pinned).inspect_err(|_| shared.give_up(&pinned))?;
        let Some(address) = pinned.address(0) else {
            return Err(Error::new(ErrorKind::Internal, "a file with pins has no addresses"));
        };
        let (file, desk) = (file.clone(), Mutex::default());
        let inner = Inner { shared, file, pinned, version, address, pins, desk };
        Ok(Self { inner: Arc::new(inner) })
    }

    /// The device address of the file's first byte. Kernels of this device may read [`Map::len`] bytes from there as
    /// long as the map lives; nobody may write, and the CPU may do neither.
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

    /// Whether the file is still what was mapped: if it is, all that kernels have read so far were its bytes.
    /// [`ErrorKind::Busy`] if it was changed.
    pub fn check(&self) -> Result<()> {
        self.inner.check()
    }

    /// Maps the file as it is now, if it was changed. Addresses change with it. True if it was.
    pub fn refresh(&mut self) -> Result<bool> {
        if self.inner.check().is_ok() {
            return Ok(false);
        }
        self.inner.shared.shelf.discard(&self.inner.pinned);
        *self = Self::new(self.inner.shared.clone(), &self.inner.file)?;
        Ok(true)
    }

    /// Gathers pieces of `length` bytes from the given offsets into `out`, one after the other, and waits.
    ///
    /// The device checks each offset: if some pieces do not lie within the file, their places are filled with zeros, the
    /// others are gathered all the same, and the call ends with [`ErrorKind::InvalidInput`]. [`ErrorKind::Busy`] if the
    /// file was changed: what is in `out` may then be old, new or mixed.
    pub fn gather(&self, offsets: Offsets<'_>, length: usize, out: &mut Buffer) -> Result<Receipt> {
        let count = offsets.count();
        check_room(count, length, out.len())?;
        self.check_device(out)?;
        let mut desk = self.inner.desk()?;
        let Some(place) = desk.as_mut() else { return Err(no_desk()) };
        let (address, scratch) = match offsets {
            Offsets::Host(list) => {
                let scratch = place.upload(list)?;
                (scratch.0, Some(scratch))
            }
            Offsets::Device(buffer, _) => {
                check_room(count, 8, buffer.len())?;
                self.check_device(buffer)?;
                (buffer.address(), None)
            }
        };
        let request = RawGather { offsets: address, count, length, out: out.address() };
        // SAFETY: both buffers are borrowed until the wait below, and the scratch is this call's until then.
        let gathering = unsafe { self.inner.launch(place, None, request) };
        if gathering.is_err() {
            // The offsets may still be on their way.
            let _ = place.stream.synchronize(Wait::Block);
        }
        drop(desk);
        let result = gathering.and_then(Gathering::wait);
        if let (Some(scratch), Some(desk)) = (scratch, self.inner.desk()?.as_mut()) {
            desk.scratch.push(scratch);
        }
        result
    }

    /// Starts a gather: on `stream` (a `CUstream` as an integer; 0 is the default stream) in its order, or on a stream
    /// of the map's own. Returns as soon as it is queued.
    ///
    /// # Safety
    /// The offsets and `count * length` bytes at `out` are valid device-reachable memory, which nobody else uses, until
    /// the gather is done; and `stream` is a live stream of this device's primary context.
    pub unsafe fn gather_raw(&self, stream: Option<u64>, request: RawGather) -> Result<Gathering> {
        let mut desk = self.inner.desk()?;
        let Some(place) = desk.as_mut() else { return Err(no_desk()) };
        // SAFETY: passed on.
        unsafe { self.inner.launch(place, stream, request) }
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

/// Waits until the file has been left alone long enough for its pages to be pinned.
fn settled(fd: std::os::fd::RawFd, settle: Duration) -> Result<()> {
    let deadline = Instant::now() + settle * 3;
    loop {
        let version = FileVersion::of(fd)?;
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
fn pin_all(shared: &Arc<Shared>, file: &File, pinned: &Arc<Pinned>) -> Result<Vec<Arc<Pin>>> {
    let Fill::Descriptor(descriptors) = file.source().fill() else { return Ok(Vec::new()) };
    let registrar = |request| shared.register(request);
    let ask = |window| shared.shelf.ask(file.source(), descriptors, pinned, window, Want::Surely, &registrar);
    let refuse = |reason: super::Reason| Err(reason.error().with("file", file.name()));
    let mut pins = Vec::with_capacity(pinned.windows());
    // All are asked for at once, so that none waits for our reading of the answer. Those that are there are held, or
    // the later ones would take their place.
    let mut held = Vec::new();
    for window in 0..pinned.windows() {
        match ask(window) {
            Answer::No(reason) => return refuse(reason),
            Answer::Ready(pin) => held.push(pin),
            Answer::Pending(_) => {}
        }
    }
    for window in 0..pinned.windows() {
        loop {
            let seen = shared.shelf.bell.count();
            match pinned.answer(window) {
                Answer::Ready(pin) => break pins.push(pin),
                Answer::Pending(since) if since.elapsed() < PATIENCE * 6 => {
                    shared.shelf.bell.wait(seen, Duration::from_millis(100));
                }
                Answer::Pending(_) => {
                    return refuse(super::Reason::new("a registration did not end"));
                }
                Answer::No(reason) => return refuse(reason),
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

impl Inner {
    fn check(&self) -> Result<()> {
        let Fill::Descriptor(file) = self.file.source().fill() else { return Ok(()) };
        if FileVersion::of(file.buffered.as_raw_fd())? == self.version && !self.pinned.is_stale() {
            return Ok(());
        }
        Err(Error::new(ErrorKind::Busy, "the file was changed since it was mapped")
            .with("file", self.file.name())
            .hint("call refresh() and start over"))
    }

    fn desk(&self) -> Result<MutexGuard<'_, Option<Desk>>> {
        let mut desk = lock(&self.desk);
        if desk.is_none() {
            *desk = Some(Desk::new(&self.shared.shelf.device)?);
        }
        Ok(desk)
    }

    /// # Safety
    /// As [`Map::gather_raw`].
    unsafe fn launch(
        self: &Arc<Self>,
        desk: &mut Desk,
        stream: Option<u64>,
        request: RawGather,
    ) -> Result<Gathering> {
        self.check()?;
        let started = Instant::now();
        let Some(report) = desk.free.pop() else {
            return Err(Error::new(ErrorKind::Busy, "too many gathers of one map are in flight")
                .with("most", REPORTS)
                .hint("wait for some of them"));
        };
        // SAFETY: the caller vouches for the stream.
        let foreign = match stream.map(|handle| unsafe { desk.device.foreign_stream(handle) }).transpose() {
            Ok(foreign) => foreign,
            Err(error) => {
                desk.free.push(report);
                return Err(error);
            }
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
                let inner = self.clone();
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
}

impl Desk {
    fn new(device: &Arc<dyn Device>) -> Result<Self> {
        let size = size_of::<GatherReport>();
        device.kernels(Context::PRIMARY)?;
        let stream = device.stream(Context::PRIMARY)?;
        let mirror = PinnedPages::new(device, (REPORTS + 1) * size)?;
        let reports = device.allocate(REPORTS * size)?;
        let desk = Self {
            device: device.clone(),
            stream,
            reports,
            mirror,
            free: (0..REPORTS).collect(),
            scratch: Vec::new(),
        };
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

    /// Copies offsets to device memory, in the stream's order; the memory, which the caller gives back.
    fn upload(&mut self, offsets: &[u64]) -> Result<(u64, usize)> {
        let bytes = size_of_val(offsets);
        let found = self.scratch.iter().position(|(_, room)| *room >= bytes);
        let scratch = if let Some(at) = found {
            self.scratch.swap_remove(at)
        } else {
            let room = bytes.next_power_of_two().max(4096);
            (self.device.allocate(room)?, room)
        };
        if bytes == 0 {
            return Ok(scratch);
        }
        // SAFETY: both ranges are valid; the driver has read pageable memory when the call returns, and the caller waits
        // for the gather before the slice goes.
        let copied = unsafe { self.stream.copy_in(scratch.0, offsets.as_ptr().cast(), bytes) };
        if let Err(error) = copied {
            self.scratch.push(scratch);
            return Err(error);
        }
        Ok(scratch)
    }
}

impl Drop for Desk {
    fn drop(&mut self) {
        let _ = self.stream.synchronize(Wait::Block);
        let device = self.device.clone();
        let mut addresses = vec![self.reports];
        addresses.extend(self.scratch.drain(..).map(|(address, _)| address));
        traffic::when_clear(move || {
            for address in addresses {
                // SAFETY: allocated in this file; gatherings, which hold the desk's owner, are over.
                unsafe { device.free(address) };
            }
        });
    }
}

impl Gathering {
    /// Whether the device is done with it.
    pub fn is_done(&self) -> Result<bool> {
        self.event.is_done()
    }

    /// Waits for it. Errors as [`Map::gather`].
    pub fn wait(mut self) -> Result<Receipt> {
        self.is_over = true;
        let waited = self.event.wait(Wait::Block);
        let elapsed = self.started.elapsed();
        let report = {
            let mut desk = lock(&self.inner.desk);
            let Some(desk) = desk.as_mut() else { return Err(no_desk()) };
            // SAFETY: the copy of the report into its place is done, or failed and left what was there.
            let report = unsafe { desk.mirrored(self.report).read() };
            desk.free.push(self.report);
            report
        };
        waited?;
        let RawGather { count, length, .. } = self.request;
        if report.refused > 0 && count > 0 && length > 0 {
            return Err(Error::new(ErrorKind::InvalidInput, "some offsets do not lie within the file")
                .with("refused", report.refused)
                .with("of", count)
                .with("first", report.first)
                .with("file bytes", self.inner.version.len));
        }
        self.inner.check()?;
        let base = Election { engine: EngineKind::Mapped, refused: Vec::new(), notes: Vec::new() };
        let bytes = (count * length) as u64;
        let moved = Moved { mapped: bytes, ..Moved::default() };
        Ok(Receipt { election: in_place(&Arc::new(base), bytes, 0, None, Vec::new()), moved, elapsed })
    }
}

impl Drop for Gathering {
    fn drop(&mut self) {
        if !self.is_over {
            let _ = self.event.wait(Wait::Block);
            if let Some(desk) = lock(&self.inner.desk).as_mut() {
                desk.free.push(self.report);
            }
        }
    }
}
