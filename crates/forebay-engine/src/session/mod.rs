//! The session: devices, engines and options. Every transfer starts here.

pub(crate) mod checksum;
mod device_table;
pub(crate) mod multi_device;
mod pins;
mod request;
mod safe;
pub(crate) mod small_files;
mod stream;

use std::ops::Range;
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use forebay_config::{Config, Order};
use forebay_error::{Error, ErrorKind, Result};
use forebay_gpu::{Checksum, Device, DeviceName, Devices, MemoryKind};
use forebay_stats::Counters;

use self::device_table::DeviceTable;
use self::request::{batches, check_offset, nothing, prior_work, unknown_device, with_first_entries};
use crate::device::DeviceEngines;
use crate::engines::Claimed;
use crate::engines::explain::Walk;
use crate::engines::staged::past_end::PastEnd;
use crate::engines::staged::workers::LaneReport;
use crate::request::buffer::Buffer;
use crate::request::completion::Completion;
use crate::request::copy_order::{CallOrder, CopyOrder};
use crate::request::file::File;
use crate::request::metrics::{self, EngineStats, RequestCounter};
use crate::request::receipt::{Election, EngineKind, Moved, Note, Receipt};
use crate::request::ticket::{CallerPolled, Ticket};
use crate::request::transfer::{Batch, Memory, Transfer};
use crate::runtime::fork::{Native, from_before};
use crate::runtime::process::{self, PerProcess};
use crate::session::checksum::Checks;
use crate::source::piece::{Direction, Piece};
use crate::stream_order::Late;

/// Devices, engines and options. Cheap to clone. Opening one needs no GPU and creates no CUDA context.
#[derive(Clone, Debug)]
pub struct Session(Arc<Inner>, FrontOptions);

/// Options of a front for the session that it uses. A front is what programs call forebay through: libcufile, Python, the command.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct FrontOptions {
    /// The front counts transfers itself: the session does not.
    counts_itself: bool,
    /// Device copies come after work that is queued on the default streams.
    is_behind_default_streams: bool,
}

struct Inner {
    config: Config,
    devices: Devices,
    checks: Native<Checks>,
    per_device: Native<DeviceTable>,
    /// It is the session of [`Session::open`].
    is_the_process: bool,
    /// Live counters of its transfers; `None` if it counts none.
    counters: Option<&'static Counters>,
}

impl std::fmt::Debug for Inner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Session")
            .field("config", &self.config)
            .field("devices", &self.devices)
            .finish_non_exhaustive()
    }
}

/// A piece of [`Session::read_batch`] and [`Session::write_batch`]: `range` of the buffer at `offset` of the file.
#[derive(Clone, Debug)]
pub struct ReadPiece {
    /// Offset in the file.
    pub offset: u64,
    /// Where in the buffer.
    pub range: Range<usize>,
}

/// The session of [`Session::open`].
#[derive(Default)]
struct ProcessSession(OnceLock<Result<Session>>);

// SAFETY: no other kind has the name.
unsafe impl PerProcess for ProcessSession {
    const NAME: &'static str = "session";
}

impl Session {
    /// The process's session, with the options of the environment. The first call opens it; shared objects of one build
    /// share it (see [`publish_session!`](crate::publish_session)).
    ///
    /// A forked child has a session of its own; a value inherited from the parent refers to the child's. If the parent
    /// has used a GPU the child's session has no GPU: [`Devices::missing`] says so.
    pub fn open() -> Result<Self> {
        ProcessSession::of_process()
            .0
            .get_or_init(|| Self::make(Config::from_env()?, Devices::discover(), true, metrics::counters()))
            .clone()
    }

    /// A separate session with its own lanes: for benchmarks and tests.
    pub fn with_config(config: Config) -> Result<Self> {
        Self::on_devices(config, Devices::discover())
    }

    /// As [`Session::with_config`], counted in the process's live [`counters`](crate::counters): for programs whose
    /// work others watch.
    pub fn with_counters(config: Config) -> Result<Self> {
        Self::make(config, Devices::discover(), false, metrics::counters())
    }

    /// As [`Session::with_counters`], with the options of the environment, for programs that stay in host memory: a GPU's
    /// driver takes half a second of CPU to start.
    pub fn of_host() -> Result<Self> {
        Self::make(Config::from_env()?, Devices::host_only(), false, metrics::counters())
    }

    /// As [`Session::with_config`], on these devices.
    pub fn on_devices(config: Config, devices: Devices) -> Result<Self> {
        Self::make(config, devices, false, None)
    }

    fn make(
        config: Config,
        devices: Devices,
        is_the_process: bool,
        counters: Option<&'static Counters>,
    ) -> Result<Self> {
        let config = config.checked()?;
        let per_device = Native::new(DeviceTable::new(&devices, &config));
        let checks = Native::new(Checks::default());
        for info in devices.gpus.iter().map(|gpu| gpu.info()) {
            counters.inspect(|counters| counters.gpu(info.index, info.uuid));
        }
        Ok(Self(
            Arc::new(Inner { config, devices, checks, per_device, is_the_process, counters }),
            FrontOptions::default(),
        ))
    }

    /// The same session for a front (a caller library, such as libcufile) that counts its own calls in
    /// [`counters`](crate::counters). Transfers through this value are not counted a second time.
    #[must_use]
    pub fn uncounted(&self) -> Self {
        Self(self.0.clone(), FrontOptions { counts_itself: true, ..self.1 })
    }

    /// The same session for a front whose callers queue work on a default stream and then call at once, as cuFile
    /// programs do. Device copies of a transfer come after the work that was queued on the default streams of the
    /// memory's context (the legacy one and the calling thread's own) when the call began. The file is read meanwhile.
    /// Transfers in the order of a stream, maps and host memory are not affected. While a stream that the legacy one
    /// would have to wait for is captured, nothing is ordered, and the receipt says so. `FOREBAY_ORDER=none` switches
    /// it off.
    #[must_use]
    pub fn behind_default_streams(&self) -> Self {
        Self(self.0.clone(), FrontOptions { is_behind_default_streams: true, ..self.1 })
    }

    /// Notes about this process: other builds of the engine are loaded, each with a session of its own; the CPU makes
    /// the checksums of GPU memory.
    pub fn notes(&self) -> Vec<Note> {
        let mut notes: Vec<_> = process::other_builds().iter().map(|name| of_other_build(name)).collect();
        if !self.0.checks.is_elsewhere() {
            notes.extend(self.0.checks.notes());
        }
        notes
    }

    /// The devices of this machine.
    pub fn devices(&self) -> &Devices {
        &self.here().devices
    }

    /// The device with this index; 0 is host memory where there is no GPU.
    pub fn device(&self, index: usize) -> Result<Arc<dyn Device>> {
        self.here().devices.get(index)
    }

    /// The device with this name: an index, or memory in a PCI BAR by its PCI address.
    pub fn device_named(&self, name: &DeviceName) -> Result<Arc<dyn Device>> {
        self.here().devices.named(name)
    }

    /// The options.
    pub fn config(&self) -> &Config {
        &self.here().config
    }

    /// How the lanes of a device work. Starts them if they do not run yet.
    pub fn report(&self, device: &Arc<dyn Device>) -> Result<LaneReport> {
        self.engines_of(device)?.lanes.report()
    }

    /// Tells that `len` bytes of a file from `offset` on will be read to `device` soon. If that is much, and in the page cache,
    /// the lanes start and pin their memory meanwhile. Waits for nothing.
    pub fn expect_read(
        &self,
        file: &File,
        device: &Arc<dyn Device>,
        (offset, len): (u64, u64),
    ) -> Result<()> {
        self.engines_of(device)?.expect_read(file, (offset, len));
        Ok(())
    }

    /// The engine that transfers of `device`'s memory use, and why no better one.
    pub fn elect(&self, device: &Arc<dyn Device>) -> Result<Arc<Election>> {
        self.engines_of(device)?.election(None)
    }

    /// Totals since the session was opened, for each device that was used.
    pub fn stats(&self) -> Vec<EngineStats> {
        let used = |engines: &&DeviceEngines| engines.totals.requests() > 0;
        self.here().per_device.used().filter(used).map(DeviceEngines::stats).collect()
    }

    /// Finds the device and context of a raw address. Fails for GPU memory of the parent process: a fork does not
    /// inherit it.
    pub fn locate(&self, address: u64) -> Result<Memory> {
        for bar in &self.here().devices.bars {
            if bar.classify(address)?.kind == MemoryKind::Bar {
                return Ok(Memory::new(bar.clone(), address));
            }
        }
        // Unified addressing: any GPU can classify the pointers of all.
        if let Some(device) = self.here().devices.gpus.first() {
            let info = device.classify(address)?;
            if let (MemoryKind::Device | MemoryKind::Managed, Some(owner)) = (info.kind, info.device) {
                let device = self.device(owner)?;
                return Ok(Memory { device, context: info.context, address });
            }
        } else {
            forebay_gpu::cuda::check_inherited(address)?;
        }
        Ok(Memory::new(self.here().devices.host.clone(), address))
    }

    /// Memory on device `index` (host memory where there is no GPU and `index` is 0).
    pub fn buffer(&self, index: usize, len: usize) -> Result<Buffer> {
        Buffer::new(self.device(index)?, len)
    }

    /// Page-aligned host memory.
    pub fn host_buffer(&self, len: usize) -> Result<Buffer> {
        Buffer::new(self.here().devices.host.clone(), len)
    }

    // ---- raw transfers; safe ones: `safe.rs` ---------------------------------------------------------------------

    /// Runs one transfer and waits for it. Small ones run on this thread.
    ///
    /// # Safety
    /// The transfer's memory is valid, and nobody else uses it, until this returns.
    pub unsafe fn run(&self, transfer: &Transfer) -> Result<Receipt> {
        // SAFETY: passed on.
        unsafe { self.run_since(transfer, Instant::now()) }
    }

    /// As [`Session::run`], for a front whose call began earlier: the receipt has the time since then, and device
    /// copies that follow the default streams come after the work queued by then.
    ///
    /// # Safety
    /// As [`Session::run`].
    pub unsafe fn run_since(&self, transfer: &Transfer, began: Instant) -> Result<Receipt> {
        let order = self.order_of(&transfer.memory, began);
        // SAFETY: passed on.
        let done = unsafe { self.run_here(transfer, (began, order.as_ref())) };
        let elapsed = began.elapsed();
        let result = done.map(|(moved, mut election)| {
            if let Some(order) = &order {
                order.add_note(&mut election);
            }
            Receipt { election, moved, elapsed }
        });
        let device = transfer.memory.device.as_ref();
        if let Some(counter) = self.counter_of(transfer.direction, device, [transfer.piece()]) {
            let (moved, election) = match &result {
                Ok(receipt) => (receipt.moved, Some(receipt.election.as_ref())),
                Err(_) => (Moved::default(), None),
            };
            counter.count(moved, elapsed, result.is_ok(), election);
            result.as_ref().err().inspect(|error| counter.failed(error));
        }
        result
    }

    /// # Safety
    /// As [`Session::run`].
    unsafe fn run_here(
        &self,
        transfer: &Transfer,
        (began, order): (Instant, Option<&CallOrder<'_>>),
    ) -> Result<(Moved, Arc<Election>)> {
        check_offset(transfer.offset, transfer.len)?;
        let engines = self.engines_of(&transfer.memory.device)?;
        self.before_write(transfer.direction, &transfer.file);
        // SAFETY: passed on.
        if let Some(done) = unsafe { engines.run(transfer, (began, order)) }? {
            return Ok(done);
        }
        let order = order.map_or(CopyOrder::Free, CallOrder::get);
        // SAFETY: passed on; the wait keeps it true.
        let ticket = unsafe { self.launch(vec![Batch::of(transfer)], None, order) }?;
        engines
            .wait(ticket, transfer.len)
            .into_result()
            .map(|(receipt, ())| (receipt.moved, receipt.election))
    }

    /// Starts many transfers; the ticket has a result for each. They may run in any order.
    ///
    /// # Safety
    /// All memory is valid, and nobody else uses it, until the ticket is resolved, whether or not it is waited for.
    pub unsafe fn submit(&self, transfers: Vec<Transfer>) -> Result<Ticket> {
        let counter = self.counter(&transfers);
        // SAFETY: passed on.
        unsafe { self.launch_in_order(batches(transfers), counter) }
    }

    /// Starts the pieces of one batch: the cheap form of [`Session::submit`].
    ///
    /// # Safety
    /// As [`Session::submit`].
    pub unsafe fn submit_batch(&self, batch: Batch) -> Result<Ticket> {
        let pieces = batch.pieces.iter().copied();
        let counter = self.counter_of(batch.direction, batch.memory.device.as_ref(), pieces);
        // SAFETY: passed on.
        unsafe { self.launch_in_order(vec![batch], counter) }
    }

    /// Starts the pieces of batches of several files, all on one device, with one ticket: the cheap form of [`Session::submit`]
    /// where the files differ.
    ///
    /// # Safety
    /// As [`Session::submit`].
    pub unsafe fn submit_batches(&self, batches: Vec<Batch>) -> Result<Ticket> {
        let counter = batches.first().and_then(|first| {
            let pieces = batches.iter().flat_map(|batch| batch.pieces.iter().copied());
            self.counter_of(first.direction, first.memory.device.as_ref(), pieces)
        });
        // SAFETY: passed on.
        unsafe { self.launch_in_order(batches, counter) }
    }

    /// Starts transfers in the order of a device stream (a `CUstream` as an integer; 0 is the default stream): they
    /// begin one after the other when the stream gets there, and work queued on the stream later waits for them.
    ///
    /// # Safety
    /// As [`Session::submit`]; and `stream` is a live stream of the memory's device (for host memory: of any device).
    pub unsafe fn submit_on(&self, stream: u64, transfers: Vec<Transfer>) -> Result<Ticket> {
        // SAFETY: passed on.
        unsafe { self.submit_in_order(stream, transfers) }
    }

    /// Puts a transfer in the order of a device stream. Its range is asked only when the stream gets there: see
    /// [`Late`]. Cheaper than [`Session::submit_on`]; thousands may be queued.
    ///
    /// [`ErrorKind::Unsupported`] if the stream is being captured; the capture goes on. Neither function of the
    /// transfer is called if this fails, or if earlier work of the stream fails.
    ///
    /// # Safety
    /// `stream` is a live stream of the memory's device (for host memory: of any device). The memory that `bind` names
    /// is valid, and nobody but the stream uses it, until the stream is through.
    pub unsafe fn enqueue(&self, stream: u64, late: Late) -> Result<()> {
        // SAFETY: passed on.
        unsafe { self.enqueue_late(stream, late) }
    }

    /// The CRC-32C of each range. A kernel sums GPU memory, at the memory's speed; the CPU sums host memory.
    /// [`Checksum`](crate::Checksum) joins the checksums of parts. Does not wait for work that the caller has queued on
    /// streams. Pins 640 KiB of host memory for each GPU.
    ///
    /// # Safety
    /// The ranges are valid, and nobody writes them, until this returns.
    pub unsafe fn checksums(&self, ranges: &[(Memory, usize)]) -> Result<Vec<u32>> {
        for (memory, _) in ranges {
            self.engines_of(&memory.device)?;
        }
        // SAFETY: passed on.
        let sums = unsafe { self.0.checks.of(ranges) }?;
        Ok(sums.into_iter().map(Checksum::crc).collect())
    }

    /// # Safety
    /// As [`Session::submit`].
    unsafe fn launch_in_order(&self, batches: Vec<Batch>, counter: Option<RequestCounter>) -> Result<Ticket> {
        let order = match batches.first() {
            Some(first) => self.order_of_batches(first, batches.len() == 1)?,
            None => CopyOrder::Free,
        };
        // SAFETY: passed on.
        unsafe { self.launch(batches, counter, order) }
    }

    /// # Safety
    /// As [`Session::submit`].
    unsafe fn launch(
        &self,
        batches: Vec<Batch>,
        counter: Option<RequestCounter>,
        order: CopyOrder,
    ) -> Result<Ticket> {
        let Some(first) = batches.first() else { return Err(nothing()) };
        let engines = self.engines_of(&first.memory.device)?;
        let engine = engines.engine()?;
        let is_ours = engine.is_forebays();
        // NVIDIA's library has an order of its own.
        let is_ordered = is_ours || matches!(engine, EngineKind::Registered(_));
        let (wanted, allow_short) = self.entries(engines, &batches)?;
        let file = first.file.clone();
        let prior_work = if is_ordered { prior_work(&engines.device, &batches, order)? } else { None };
        let is_alone = batches.len() == 1 && prior_work.is_none();
        let (mut claimed, mut past_ends, mut walk) = (Vec::new(), Vec::new(), Walk::default());
        for (base, mut batch) in with_first_entries(batches) {
            self.before_write(batch.direction, &batch.file);
            if is_ours && let Some(past_end) = PastEnd::cut(&mut batch)? {
                past_ends.push((base, past_end));
            }
            let works = engines.claim(&Arc::new(batch), is_alone, &mut walk)?;
            claimed.push((base, works));
        }
        let mut election =
            engines.launch_election(claimed.iter().flat_map(|(_, claimed)| claimed), &file, &walk)?;
        if is_ordered {
            order.add_note(&mut election);
        }
        let works = claimed.iter().flat_map(|(_, claimed)| claimed).map(Claimed::works).sum();
        let completion =
            Completion::new(wanted.into(), works, allow_short, election, engines.totals.clone(), None);
        completion.count_with(counter);
        completion.order_after(prior_work);
        completion.keep_late_note(&file);
        for (base, past_end) in past_ends {
            past_end.continue_later(&completion, base, engines.stage.clone());
        }
        let mut polled: Option<Arc<dyn CallerPolled>> = None;
        for (base, claimed) in claimed {
            for claimed in claimed {
                let started = claimed.start(engines.onward(completion.clone(), base)?);
                if let Some(earlier) = started.and_then(|started| polled.replace(started)) {
                    // A ticket looks at one of them.
                    earlier.watch();
                }
            }
        }
        Ok(Ticket::new(completion, (), false).driving(polled))
    }

    /// Whether a transfer's device copies wait for the default streams of its memory's context.
    fn order_of<'a>(&self, memory: &'a Memory, began: Instant) -> Option<CallOrder<'a>> {
        if !self.1.is_behind_default_streams || self.config().order != Order::Default {
            return None;
        }
        let info = memory.device.info();
        if info.is_host || info.is_bar {
            return None;
        }
        Some(CallOrder::behind(memory.device.as_ref(), memory.context, began))
    }

    /// The order of a submission that begins with this batch. Of one batch it is free where nothing stands there that it comes after.
    fn order_of_batches(&self, first: &Batch, is_alone: bool) -> Result<CopyOrder> {
        let memory = &first.memory;
        let Some(order) = self.order_of(memory, Instant::now()) else { return Ok(CopyOrder::Free) };
        let shared =
            if is_alone { self.engines_of(&memory.device)?.shared_order(memory.context)? } else { None };
        Ok(shared.unwrap_or_else(|| order.get()))
    }

    /// The counter of a submission, which counts as one request of the first transfer's direction. `None`: not counted.
    fn counter(&self, transfers: &[Transfer]) -> Option<RequestCounter> {
        let first = transfers.first()?;
        let pieces = transfers.iter().map(Transfer::piece);
        self.counter_of(first.direction, first.memory.device.as_ref(), pieces)
    }

    fn counter_of(
        &self,
        direction: Direction,
        device: &dyn Device,
        pieces: impl IntoIterator<Item = Piece>,
    ) -> Option<RequestCounter> {
        if self.1.counts_itself {
            return None;
        }
        Some(RequestCounter::new(self.here().counters?, direction, device, pieces))
    }

    /// The length of each entry, and whether it may be short. Fails unless all are on one device.
    fn entries(&self, engines: &DeviceEngines, batches: &[Batch]) -> Result<(Vec<u64>, Vec<bool>)> {
        let count = batches.iter().map(|batch| batch.pieces.len()).sum();
        let mut wanted = Vec::with_capacity(count);
        let mut allow_short = Vec::with_capacity(count);
        for batch in batches {
            let other = self.engines_of(&batch.memory.device)?;
            if !std::ptr::eq(other, engines) {
                return Err(Error::new(
                    ErrorKind::InvalidInput,
                    "the transfers of one submission are on several devices",
                )
                .hint("submit once for each device"));
            }
            for piece in &batch.pieces {
                check_offset(piece.offset, piece.len)?;
            }
            wanted.extend(batch.pieces.iter().map(|piece| piece.len as u64));
            allow_short.resize(wanted.len(), batch.allow_short);
        }
        Ok((wanted, allow_short))
    }

    /// The session's data. In a forked child, the process's session refers to the child's own.
    fn here(&self) -> &Inner {
        self.native().unwrap_or(&self.0)
    }

    /// The same; an error if it is of the process before a fork.
    #[inline]
    fn native(&self) -> Result<&Inner> {
        if self.0.per_device.is_elsewhere() { self.of_child() } else { Ok(&self.0) }
    }

    #[cold]
    fn of_child(&self) -> Result<&Inner> {
        if self.0.is_the_process
            && Self::open().is_ok()
            && let Some(Ok(own)) = ProcessSession::of_process().0.get()
        {
            return Ok(&own.0);
        }
        Err(from_before("this session was opened"))
    }

    /// Tells the engines of all devices that were used before a write, so that they drop their pins of the file: the write changes
    /// pinned pages, or replaces them in the page cache.
    #[inline]
    fn before_write(&self, direction: Direction, file: &File) {
        if direction == Direction::Write {
            self.here().per_device.used().for_each(|engines| engines.before_write(file));
        }
    }

    fn engines_of(&self, device: &Arc<dyn Device>) -> Result<&DeviceEngines> {
        let (inner, info) = (self.native()?, device.info());
        let all = &inner.per_device;
        let found = if info.is_host { Some(all.of_host()) } else { all.of(info.index) };
        found.ok_or_else(|| unknown_device(info.index, &inner.devices))
    }
}

/// A note on a loaded object of another build.
fn of_other_build(name: &str) -> Note {
    Note {
        text: format!(
            "another build of forebay is loaded ({name}): it has lanes, pinned memory and counters of its own"
        ),
        hint: Some("install libcufile and the Python package from one build of forebay".to_owned()),
    }
}
