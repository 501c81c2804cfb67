//! The session: devices, lanes and options of a process; where every transfer starts.

use std::ops::Range;
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use forebay_config::{CachePolicy, Config};
use forebay_error::{Error, ErrorKind, Result};
use forebay_gpu::{Device, Devices, MemoryKind};

use crate::buffer::Buffer;
use crate::caller::{Attempt, Callers, SMALL};
use crate::election;
use crate::file::File;
use crate::gate::Gates;
use crate::lane::{Job, JobParts, LaneReport, Lanes};
use crate::plan::{Limits, Plan};
use crate::receipt::{Election, EngineKind, Moved, Note, Receipt, Refusal};
use crate::segment::{Warmth, granularity};
use crate::source::Fill;
use crate::ticket::{Completion, Ticket, Totals, load_moved, short_read};
use crate::transfer::{Batch, Direction, Memory, Piece, Transfer};

/// Lanes that cold bulk reads use: a few keep a disk busy, more would only cost CPU.
const COLD_LANES: usize = 2;
/// Cold small pieces for which another lane is worth waking: one lane's ring keeps a disk busy.
const COLD_PIECES_PER_LANE: usize = 512;

/// Devices, lanes and options. Cheap to clone; opening one needs no GPU and creates no context.
#[derive(Clone, Debug)]
pub struct Session(Arc<Inner>);

struct Inner {
    config: Config,
    devices: Devices,
    /// One for each GPU, then the host's.
    hubs: Vec<Hub>,
}

impl std::fmt::Debug for Inner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Session")
            .field("config", &self.config)
            .field("devices", &self.devices)
            .finish_non_exhaustive()
    }
}

/// Everything that belongs to one device.
struct Hub {
    device: Arc<dyn Device>,
    lanes: Lanes,
    callers: Callers,
    gates: Gates,
    choice: Result<(EngineKind, Vec<Refusal>)>,
    /// With what the lanes noted when they started.
    election: OnceLock<Arc<Election>>,
    /// Before they started.
    quick: OnceLock<Result<Arc<Election>>>,
    totals: Arc<Totals>,
}

/// Totals of a session for one engine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EngineStats {
    /// The engine.
    pub engine: EngineKind,
    /// The device's name.
    pub device: String,
    /// Transfers and batches that were resolved.
    pub requests: u64,
    /// Those with an error.
    pub errors: u64,
    /// Bytes by the way they took.
    pub moved: Moved,
}

/// A piece of [`Session::read_batch`]: `range` of the buffer from `offset` of the file.
#[derive(Clone, Debug)]
pub struct ReadPiece {
    /// Offset in the file.
    pub offset: u64,
    /// Where in the buffer.
    pub range: Range<usize>,
}

impl Session {
    /// The process's session, with the options of the environment. The first call opens it.
    pub fn open() -> Result<Self> {
        static SESSION: OnceLock<Result<Session>> = OnceLock::new();
        SESSION.get_or_init(|| Self::with_config(Config::from_env()?)).clone()
    }

    /// A session of its own, with lanes of its own: for benchmarks and tests.
    pub fn with_config(config: Config) -> Result<Self> {
        Self::on_devices(config, Devices::discover())
    }

    /// As [`Session::with_config`], on these devices.
    pub fn on_devices(config: Config, devices: Devices) -> Result<Self> {
        let config = config.checked()?;
        let hubs =
            devices.gpus.iter().chain([&devices.host]).map(|device| Hub::new(device, &config)).collect();
        Ok(Self(Arc::new(Inner { config, devices, hubs })))
    }

    /// The devices of this machine.
    pub fn devices(&self) -> &Devices {
        &self.0.devices
    }

    /// The device with this index; 0 is host memory where there is no GPU.
    pub fn device(&self, index: usize) -> Result<Arc<dyn Device>> {
        self.0.devices.get(index)
    }

    /// The options.
    pub fn config(&self) -> &Config {
        &self.0.config
    }

    /// How the lanes of a device work. Starts them if need be.
    pub fn report(&self, device: &Arc<dyn Device>) -> Result<LaneReport> {
        Ok(self.hub(device)?.lanes.report()?.clone())
    }

    /// The engine that memory of `device` would use, and why no better one.
    pub fn elect(&self, device: &Arc<dyn Device>) -> Result<Arc<Election>> {
        self.hub(device)?.election(None)
    }

    /// Totals since the session was opened, for each device that was used.
    pub fn stats(&self) -> Vec<EngineStats> {
        let used = |hub: &&Hub| hub.totals.requests.load(std::sync::atomic::Ordering::Relaxed) > 0;
        self.0.hubs.iter().filter(used).map(Hub::stats).collect()
    }

    /// Finds out what a raw address points to.
    pub fn locate(&self, address: u64) -> Result<Memory> {
        // Any GPU of the driver knows the pointers of all.
        if let Some(device) = self.0.devices.gpus.first() {
            let info = device.classify(address)?;
            if let (MemoryKind::Device | MemoryKind::Managed, Some(owner)) = (info.kind, info.device) {
                let device = self.device(owner)?;
                return Ok(Memory { device, context: info.context, address });
            }
        }
        Ok(Memory::new(self.0.devices.host.clone(), address))
    }

    /// Memory on device `index` (host memory where there is no GPU and `index` is 0).
    pub fn buffer(&self, index: usize, len: usize) -> Result<Buffer> {
        Buffer::new(self.device(index)?, len)
    }

    /// Page-aligned host memory.
    pub fn host_buffer(&self, len: usize) -> Result<Buffer> {
        Buffer::new(self.0.devices.host.clone(), len)
    }

    // ---- safe transfers -----------------------------------------------------------------------------------------

    /// Fills the whole buffer from `offset` of the file. A file that ends before is an error
    /// ([`ErrorKind::ShortRead`]).
    pub fn read(&self, file: &File, offset: u64, buffer: &mut Buffer) -> Result<Receipt> {
        let all = 0..buffer.len();
        self.read_into(file, offset, buffer, all)
    }

    /// Fills `range` of the buffer from `offset` of the file.
    pub fn read_into(
        &self,
        file: &File,
        offset: u64,
        buffer: &mut Buffer,
        range: Range<usize>,
    ) -> Result<Receipt> {
        let transfer = owned_transfer(file, offset, buffer, range, Direction::Read)?;
        // SAFETY: the buffer is borrowed mutably until the transfer is done.
        unsafe { self.run(&transfer) }
    }

    /// Writes the whole buffer to `offset` of the file.
    pub fn write(&self, file: &File, offset: u64, buffer: &Buffer) -> Result<Receipt> {
        self.write_from(file, offset, buffer, 0..buffer.len())
    }

    /// Writes `range` of the buffer to `offset` of the file.
    pub fn write_from(
        &self,
        file: &File,
        offset: u64,
        buffer: &Buffer,
        range: Range<usize>,
    ) -> Result<Receipt> {
        let transfer = owned_transfer(file, offset, buffer, range, Direction::Write)?;
        // SAFETY: the buffer is borrowed, so nobody changes it, until the transfer is done.
        unsafe { self.run(&transfer) }
    }

    /// Starts filling a buffer; the ticket owns it until then.
    pub fn submit_read(&self, file: &File, offset: u64, buffer: Buffer) -> Result<Ticket<Buffer>> {
        let all = 0..buffer.len();
        let transfer = owned_transfer(file, offset, &buffer, all, Direction::Read)?;
        // SAFETY: the ticket owns the buffer until the transfer is done.
        let ticket = unsafe { self.submit(vec![transfer]) }?;
        Ok(ticket.with_buffer(buffer))
    }

    /// Starts writing a buffer; the ticket owns it until then.
    pub fn submit_write(&self, file: &File, offset: u64, buffer: Buffer) -> Result<Ticket<Buffer>> {
        let transfer = owned_transfer(file, offset, &buffer, 0..buffer.len(), Direction::Write)?;
        // SAFETY: as in `submit_read`.
        let ticket = unsafe { self.submit(vec![transfer]) }?;
        Ok(ticket.with_buffer(buffer))
    }

    /// Starts reading many pieces of a file into one buffer; each piece has its own result.
    pub fn read_batch(&self, file: &File, pieces: &[ReadPiece], buffer: Buffer) -> Result<Ticket<Buffer>> {
        check_disjoint(pieces)?;
        let mut raw = Vec::with_capacity(pieces.len());
        for piece in pieces {
            check_range(&buffer, &piece.range)?;
            let address = buffer.address() + piece.range.start as u64;
            raw.push(Piece { offset: piece.offset, address, len: piece.range.len() });
        }
        let batch = Batch {
            file: file.clone(),
            memory: buffer.memory(),
            direction: Direction::Read,
            pieces: raw,
            allow_short: false,
        };
        // SAFETY: the ticket owns the buffer until the transfer is done; ranges were checked to be disjoint.
        let ticket = unsafe { self.submit_batch(batch) }?;
        Ok(ticket.with_buffer(buffer))
    }

    // ---- raw transfers ------------------------------------------------------------------------------------------

    /// Runs one transfer and waits for it. Small ones run on this thread.
    ///
    /// # Safety
    /// The transfer's memory is valid, and nobody else uses it, until this returns.
    pub unsafe fn run(&self, transfer: &Transfer) -> Result<Receipt> {
        let started = Instant::now();
        check_offset(transfer.offset, transfer.len)?;
        let hub = self.hub(&transfer.memory.device)?;
        let engine = hub.engine()?;
        if engine == EngineKind::Noop {
            return Ok(hub.noop_receipt(transfer.len as u64, started));
        }
        if transfer.len <= SMALL || hub.gains_nothing_by_lanes(transfer) {
            let policy = self.policy(&transfer.file);
            let align = granularity(transfer.file.source().as_ref());
            // SAFETY: passed on.
            let attempt = unsafe { hub.callers.run(transfer, policy, align) };
            match attempt.map_err(|error| Attempt::explain(error, transfer)) {
                Ok(Attempt::Done(good, moved)) => return hub.small_receipt(transfer, good, moved, started),
                Ok(Attempt::Busy) => {}
                Err(error) => {
                    hub.totals.add(Moved::default(), true);
                    return Err(error);
                }
            }
        }
        // SAFETY: passed on; the wait keeps it true.
        let ticket = unsafe { self.launch(vec![batch_of(transfer)], None) }?;
        ticket.wait().into_result().map(|(receipt, ())| receipt)
    }

    /// Starts many transfers; the ticket has a result for each. They may run in any order.
    ///
    /// # Safety
    /// All memory is valid, and nobody else uses it, until the ticket is resolved, whether or not it is waited for.
    pub unsafe fn submit(&self, transfers: Vec<Transfer>) -> Result<Ticket> {
        // SAFETY: passed on.
        unsafe { self.launch(batches(transfers), None) }
    }

    /// Starts the pieces of one batch: the cheap form of [`Session::submit`].
    ///
    /// # Safety
    /// As [`Session::submit`].
    pub unsafe fn submit_batch(&self, batch: Batch) -> Result<Ticket> {
        // SAFETY: passed on.
        unsafe { self.launch(vec![batch], None) }
    }

    /// Starts transfers in the order of a device stream (a `CUstream` as an integer; 0 is the default stream): they
    /// begin when the stream gets there, and what is queued on the stream later waits for them.
    ///
    /// # Safety
    /// As [`Session::submit`]; and `stream` is a live stream of the memory's device.
    pub unsafe fn submit_on(&self, stream: u64, transfers: Vec<Transfer>) -> Result<Ticket> {
        // SAFETY: passed on.
        unsafe { self.launch(batches(transfers), Some(stream)) }
    }

    /// # Safety
    /// As [`Session::submit_on`].
    unsafe fn launch(&self, batches: Vec<Batch>, stream: Option<u64>) -> Result<Ticket> {
        let Some(first) = batches.first() else {
            return Err(
                Error::new(ErrorKind::InvalidInput, "nothing to transfer").hint("give at least one piece")
            );
        };
        let hub = self.hub(&first.memory.device)?;
        let engine = hub.engine()?;
        let election = hub.election(Some(&first.file))?;
        let mut wanted = Vec::new();
        let mut allow_short = Vec::new();
        for batch in &batches {
            let other = self.hub(&batch.memory.device)?;
            if !std::ptr::eq(other, hub) {
                return Err(Error::new(
                    ErrorKind::InvalidInput,
                    "the transfers of one submission are on several devices",
                )
                .hint("submit once for each device"));
            }
            for piece in &batch.pieces {
                check_offset(piece.offset, piece.len)?;
                wanted.push(piece.len as u64);
                allow_short.push(batch.allow_short);
            }
        }
        if engine == EngineKind::Noop {
            let total = wanted.iter().sum();
            let completion =
                Completion::new(wanted.into(), 1, allow_short, election, hub.totals.clone(), None);
            completion.work_done(Moved { cached: total, ..Moved::default() });
            return Ok(Ticket::new(completion, (), false));
        }
        let mut planned = Vec::with_capacity(batches.len());
        let mut works = 0;
        for batch in batches {
            let part = self.prepare(hub, batch);
            works += part.plan.len();
            planned.push(part);
        }
        let gate = match stream {
            // SAFETY: the caller vouches for the stream.
            Some(stream) => Some(unsafe { hub.gates.open(&hub.device, stream) }?),
            None => None,
        };
        let after = gate.as_ref().map(crate::gate::Gate::opener);
        let completion =
            Completion::new(wanted.into(), works, allow_short, election, hub.totals.clone(), after);
        let mut base = 0;
        let mut jobs = Vec::with_capacity(planned.len());
        for Prepared { batch, plan, align, width, warmth, cache } in planned {
            let pieces = batch.pieces.len() as u32;
            let completion = completion.clone();
            jobs.push(Job::new(JobParts { batch, plan, base, cache, align, width, warmth, completion }));
            base += pieces;
        }
        let ticket = Ticket::new(completion, (), false);
        match gate {
            None => {
                for job in jobs {
                    hub.lanes.submit(job)?;
                }
                Ok(ticket)
            }
            Some(gate) => {
                let (submitter, queued) = (hub.lanes.submitter()?, jobs.clone());
                let start = move || queued.into_iter().for_each(|job| submitter.submit(job));
                let watch = gate.pass(Box::new(start))?;
                Ok(ticket.watched(Box::new(move || {
                    if let Some(error) = watch.failure() {
                        for job in &jobs {
                            job.refuse(&error);
                        }
                    }
                })))
            }
        }
    }

    fn prepare(&self, hub: &Hub, batch: Batch) -> Prepared {
        let lanes = hub.lanes.count();
        let cache = self.policy(&batch.file);
        let align = granularity(batch.file.source().as_ref());
        let warmth = residency_of(&batch, cache);
        let is_cold = warmth == Warmth::Cold && batch.direction == Direction::Read;
        let small = batch.pieces.iter().all(|piece| piece.len <= crate::plan::CELL);
        let width = match (is_cold && hub.lanes.has_ring().unwrap_or(false), small) {
            (true, true) => (batch.pieces.len() / COLD_PIECES_PER_LANE).clamp(1, lanes),
            (true, false) => COLD_LANES.min(lanes),
            (false, _) => lanes,
        };
        let limits = Limits { slot: self.0.config.slot_size, lanes: width.min(hub.lanes.spare()), align };
        let plan = Plan::new(&batch.pieces, batch.direction, limits);
        Prepared { batch, plan, align, width, warmth, cache }
    }

    fn policy(&self, file: &File) -> CachePolicy {
        match file.source().fill() {
            Fill::Descriptor(file) => file.cache.unwrap_or(self.0.config.cache),
            Fill::Requests(_) => self.0.config.cache,
        }
    }

    fn hub(&self, device: &Arc<dyn Device>) -> Result<&Hub> {
        let info = device.info();
        let hubs = &self.0.hubs;
        let index = if info.is_host { hubs.len() - 1 } else { info.index };
        hubs.get(index).filter(|hub| hub.device.info().is_host == info.is_host).ok_or_else(|| {
            Error::new(ErrorKind::InvalidInput, "the memory is on a device that this session does not know")
                .with("device", info.index)
        })
    }
}

/// A batch with all that its job needs.
struct Prepared {
    batch: Batch,
    plan: Plan,
    align: u64,
    width: usize,
    warmth: Warmth,
    cache: CachePolicy,
}

impl Hub {
    fn new(device: &Arc<dyn Device>, config: &Config) -> Self {
        Self {
            device: device.clone(),
            lanes: Lanes::new(device.clone(), config.clone()),
            callers: Callers::new(device.clone(), config.objective),
            gates: Gates::of(device),
            choice: election::elect(device.as_ref(), config),
            election: OnceLock::new(),
            quick: OnceLock::new(),
            totals: Arc::default(),
        }
    }

    fn engine(&self) -> Result<EngineKind> {
        self.choice.as_ref().map(|(engine, _)| *engine).map_err(Error::clone)
    }

    /// The election with what held the lanes back. Lanes that do not run yet are not started for it, unless a file
    /// is given that they are about to move.
    fn election(&self, file: Option<&File>) -> Result<Arc<Election>> {
        if let Some(election) = self.election.get() {
            return Ok(with_file(election, file));
        }
        if file.is_none() {
            // Not kept in `election`: the lanes, once they run, may have something to note.
            return self.quick.get_or_init(|| self.make_election(Vec::new())).clone();
        }
        let notes = match self.engine()? {
            EngineKind::Noop => Vec::new(),
            _ => self.lanes.report()?.notes.clone(),
        };
        let made = self.make_election(notes)?;
        Ok(with_file(self.election.get_or_init(|| made), file))
    }

    /// A large warm read into host memory where there is one lane: the caller's own thread is as fast.
    fn gains_nothing_by_lanes(&self, transfer: &Transfer) -> bool {
        self.device.info().is_host
            && self.lanes.count() == 1
            && transfer.direction == Direction::Read
            && residency_of(&batch_of(transfer), CachePolicy::Auto) == Warmth::Warm
    }

    fn make_election(&self, notes: Vec<Note>) -> Result<Arc<Election>> {
        let (engine, refused) = self.choice.as_ref().map_err(Error::clone)?;
        Ok(Arc::new(Election { engine: *engine, refused: refused.clone(), notes }))
    }

    /// The election for a transfer on the caller's thread: no lanes were needed, so none are started for it.
    fn small_election(&self, file: &File, moved: Moved) -> Result<Arc<Election>> {
        if moved.buffered > 0 {
            return Ok(with_file(&self.election(None)?, Some(file)));
        }
        match self.election.get() {
            Some(election) => Ok(election.clone()),
            None => self.election(None),
        }
    }

    fn small_receipt(
        &self,
        transfer: &Transfer,
        good: usize,
        moved: Moved,
        started: Instant,
    ) -> Result<Receipt> {
        let is_short = good < transfer.len && !transfer.allow_short;
        self.totals.add(moved, is_short);
        if is_short {
            return Err(short_read(good as u64, transfer.len as u64).with("file", transfer.file.name()));
        }
        Ok(Receipt {
            election: self.small_election(&transfer.file, moved)?,
            moved,
            elapsed: started.elapsed(),
        })
    }

    fn noop_receipt(&self, bytes: u64, started: Instant) -> Receipt {
        let moved = Moved { cached: bytes, ..Moved::default() };
        self.totals.add(moved, false);
        let election = self.election.get_or_init(|| {
            Arc::new(Election { engine: EngineKind::Noop, refused: Vec::new(), notes: Vec::new() })
        });
        Receipt { election: election.clone(), moved, elapsed: started.elapsed() }
    }

    fn stats(&self) -> EngineStats {
        use std::sync::atomic::Ordering::Relaxed;
        EngineStats {
            engine: self.engine().unwrap_or(EngineKind::Staged),
            device: self.device.info().name.clone(),
            requests: self.totals.requests.load(Relaxed),
            errors: self.totals.errors.load(Relaxed),
            moved: load_moved(&self.totals.moved),
        }
    }
}

/// The election with what is particular to a file: why it has no O_DIRECT.
fn with_file(election: &Arc<Election>, file: Option<&File>) -> Arc<Election> {
    let Some(reason) = file.and_then(|file| {
        let is_memory = matches!(file.source().fill(), Fill::Descriptor(file) if file.is_memory);
        file.direct_refused().filter(|_| !is_memory)
    }) else {
        return election.clone();
    };
    let mut with = Election::clone(election);
    with.notes.push(Note {
        text: format!("cold bytes go through the page cache: {reason}"),
        hint: Some("keep the file on a local ext4 or xfs file system".to_owned()),
    });
    Arc::new(with)
}

fn residency_of(batch: &Batch, cache: CachePolicy) -> Warmth {
    match (batch.direction, cache, batch.file.source().fill()) {
        (Direction::Read, CachePolicy::Bypass, _) => Warmth::Cold,
        (Direction::Read, _, Fill::Descriptor(file)) => {
            file.warmth(batch.pieces.iter().map(|piece| (piece.offset, piece.len as u64)))
        }
        _ => Warmth::Mixed,
    }
}

fn batch_of(transfer: &Transfer) -> Batch {
    Batch {
        file: transfer.file.clone(),
        memory: transfer.memory.clone(),
        direction: transfer.direction,
        pieces: vec![Piece { offset: transfer.offset, address: transfer.memory.address, len: transfer.len }],
        allow_short: transfer.allow_short,
    }
}

/// Puts neighbours that share file, memory and direction into one batch.
fn batches(transfers: Vec<Transfer>) -> Vec<Batch> {
    let mut batches: Vec<Batch> = Vec::new();
    for transfer in transfers {
        let piece = Piece { offset: transfer.offset, address: transfer.memory.address, len: transfer.len };
        match batches.last_mut() {
            Some(batch)
                if batch.file.same_source(&transfer.file)
                    && Arc::ptr_eq(&batch.memory.device, &transfer.memory.device)
                    && batch.memory.context == transfer.memory.context
                    && batch.direction == transfer.direction
                    && batch.allow_short == transfer.allow_short =>
            {
                batch.pieces.push(piece);
            }
            _ => batches.push(batch_of(&transfer)),
        }
    }
    batches
}

fn owned_transfer(
    file: &File,
    offset: u64,
    buffer: &Buffer,
    range: Range<usize>,
    direction: Direction,
) -> Result<Transfer> {
    check_range(buffer, &range)?;
    let mut memory = buffer.memory();
    memory.address += range.start as u64;
    Ok(Transfer { file: file.clone(), offset, memory, len: range.len(), direction, allow_short: false })
}

fn check_range(buffer: &Buffer, range: &Range<usize>) -> Result<()> {
    if range.start > range.end || range.end > buffer.len() {
        return Err(Error::new(ErrorKind::InvalidInput, "the range lies outside of the buffer")
            .with("range", format!("{}..{}", range.start, range.end))
            .with("buffer", buffer.len()));
    }
    Ok(())
}

fn check_offset(offset: u64, len: usize) -> Result<()> {
    if offset.checked_add(len as u64).is_none_or(|end| end > i64::MAX as u64) {
        return Err(Error::new(ErrorKind::InvalidInput, "the offset is beyond what a file can have")
            .with("offset", offset)
            .with("bytes", len));
    }
    Ok(())
}

fn check_disjoint(pieces: &[ReadPiece]) -> Result<()> {
    let mut ranges: Vec<_> = pieces
        .iter()
        .map(|piece| (piece.range.start, piece.range.end))
        .filter(|(start, end)| start < end)
        .collect();
    ranges.sort_unstable();
    if ranges.windows(2).any(|pair| pair[0].1 > pair[1].0) {
        return Err(Error::new(ErrorKind::InvalidInput, "two pieces of a batch read into the same bytes")
            .hint("give each piece its own range of the buffer"));
    }
    Ok(())
}
