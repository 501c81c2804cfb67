//! Movers: one worker's way to move bytes. One file per way.

mod classic;
mod engine;
pub(crate) mod gather;
pub(crate) mod mapped;
mod pack;
mod pipeline;
pub(crate) mod raw_map;

use std::sync::Arc;
use std::time::Duration;

use forebay_config::Objective;
use forebay_engine::{File, Session};
use forebay_error::Result;
use forebay_gpu::{Context, Device, Wait};

use crate::job::{Job, Xfer};
use crate::measure::Meter;
use crate::memory::DeviceMemory;
use crate::movers::raw_map::RawMap;
use crate::plan::{Op, Plan};
use crate::raw::RawFile;
use crate::verify::Verifier;
use crate::workload::{Fill, Workload};

/// I/Os up to this size are pieces: bare mode moves them one by one, or packs them.
const PIECE: u64 = 64 << 10;
/// Slots of bare mode's ring, and their size.
const RING: (usize, u64) = (4, 4 << 20);

/// How long a device may take to scrub freed memory, where there is enough of it to matter.
const SCRUB: Duration = Duration::from_millis(100);
const SCRUBBED_LEAST: usize = 256 << 20;

/// A file as workers use it.
#[derive(Debug)]
pub(crate) struct OpenFile {
    /// The engine's view; also for residency.
    pub(crate) file: File,
    /// For raw calls.
    pub(crate) raw: Option<RawFile>,
    /// Its pages, for raw calls that read them in place.
    pub(crate) map: Option<Arc<RawMap>>,
    /// The pattern's key.
    pub(crate) key: u64,
}

impl OpenFile {
    fn raw(&self) -> Result<&RawFile> {
        self.raw.as_ref().ok_or_else(|| {
            forebay_error::Error::new(forebay_error::ErrorKind::Internal, "a raw transfer without a raw file")
        })
    }
}

/// The I/Os of one worker; batches take them from several files in turn.
pub(crate) struct Feed {
    sources: Vec<(Arc<OpenFile>, Plan)>,
    turn: usize,
    taken: Vec<u64>,
}

impl Feed {
    pub(crate) fn new(sources: Vec<(Arc<OpenFile>, Plan)>) -> Self {
        let taken = vec![0; sources.len()];
        Self { sources, turn: 0, taken }
    }

    /// The next I/O and its file.
    fn next(&mut self) -> Option<(Arc<OpenFile>, Op)> {
        for _ in 0..self.sources.len() {
            let turn = self.turn;
            self.turn = (turn + 1) % self.sources.len();
            if let Some(op) = self.sources[turn].1.next() {
                self.taken[turn] += 1;
                return Some((self.sources[turn].0.clone(), op));
            }
        }
        None
    }

    /// How many I/Os were taken from each source.
    pub(crate) fn taken(self) -> Vec<u64> {
        self.taken
    }
}

/// A way to move bytes.
pub(crate) trait Mover {
    /// Moves until the feed ends.
    fn run(&mut self, feed: &mut Feed, meter: &mut Meter) -> Result<()>;
}

/// How the raw calls of a pass go.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Way {
    /// The transfer type.
    pub(crate) xfer: Xfer,
    /// Raw calls in place of the engine.
    pub(crate) bare: bool,
    /// Whether the pass writes.
    pub(crate) write: bool,
    /// Whether bytes are checked or carry the pattern.
    pub(crate) verify: bool,
}

impl Way {
    /// Whether raw files are needed.
    pub(crate) const fn raw(self) -> bool {
        self.bare || !self.xfer.uses_engine()
    }
}

/// The memory of a mover with what fills and checks it.
pub(crate) struct Target {
    device: Arc<dyn Device>,
    memory: DeviceMemory,
    verifier: Option<Verifier>,
    verify: bool,
    refill: Option<u64>,
}

impl Target {
    fn new(work: &Workload, job: &Job, device: &Arc<dyn Device>, way: Way, len: usize) -> Result<Self> {
        let host = forebay_gpu::host::device();
        // Type 1 ends in host memory whatever the device is.
        let device = if way.xfer == Xfer::CpuOnly { &host } else { device };
        let kind = if device.info().is_host && !job.memory.is_host() {
            forebay_gpu::AllocationKind::Device
        } else {
            job.memory.kind()
        };
        let memory = DeviceMemory::new(device, kind, len.next_multiple_of(4096))?;
        let verifier = if way.verify || work.fill != Fill::Zero {
            Some(Verifier::new(device, memory.on_host())?)
        } else {
            None
        };
        let refill = (work.fill == Fill::RandomEach && way.write && !way.verify).then_some(work.seed);
        let mut target = Self { device: device.clone(), memory, verifier, verify: way.verify, refill };
        if way.write && !way.verify {
            target.initialise(work)?;
        } else if !target.memory.on_host() {
            target.clear()?;
        }
        Ok(target)
    }

    fn initialise(&mut self, work: &Workload) -> Result<()> {
        let (address, len) = (self.memory.address(), self.memory.len());
        if let Some(verifier) = &mut self.verifier {
            // SAFETY: the memory is ours and nothing uses it yet.
            return unsafe { verifier.fill(work.seed ^ address, address, len, 0) };
        }
        self.clear()
    }

    /// Zeroes the memory, and waits.
    fn clear(&mut self) -> Result<()> {
        let (address, len) = (self.memory.address(), self.memory.len());
        if self.memory.on_host() {
            // SAFETY: host memory, ours, `len` long, and nothing uses it yet.
            unsafe { std::ptr::write_bytes(address as *mut u8, 0, len) };
            return Ok(());
        }
        let stream = self.device.stream(Context::PRIMARY)?;
        // SAFETY: device memory, ours, `len` long, and nothing uses it yet.
        unsafe { stream.zero(address, len) }?;
        stream.synchronize(Wait::Block)?;
        // What the pass before has freed is scrubbed by the device meanwhile, which slows copies down (by a tenth, for
        // 4 GiB on an H200): no part of what is measured.
        if len >= SCRUBBED_LEAST {
            std::thread::sleep(SCRUB);
        }
        Ok(())
    }

    /// Prepares `at..at+op.len` for being written to the file.
    fn before(&mut self, file: &OpenFile, at: usize, op: Op) -> Result<()> {
        if !op.write {
            return Ok(());
        }
        let address = self.memory.address() + at as u64;
        match (&mut self.verifier, &mut self.refill) {
            // SAFETY: within our memory; movers call this while no transfer uses that part.
            (Some(verifier), _) if self.verify => unsafe {
                verifier.fill(file.key, address, op.len, op.offset)
            },
            (Some(verifier), Some(refill)) => {
                *refill = refill.wrapping_add(0x9E37_79B9);
                // SAFETY: as above.
                unsafe { verifier.fill(*refill, address, op.len, 0) }
            }
            _ => Ok(()),
        }
    }

    /// Checks `at..at+op.len` after it was read from the file.
    fn after(&mut self, file: &OpenFile, at: usize, op: Op) -> Result<()> {
        match &mut self.verifier {
            Some(verifier) if self.verify && !op.write => {
                let address = self.memory.address() + at as u64;
                // SAFETY: within our memory; the transfer into that part is done.
                unsafe { verifier.check(file.key, address, op.len, op.offset) }.map_err(|error| {
                    match file.file.path() {
                        Some(path) => error.with("path", path.display()),
                        None => error,
                    }
                })
            }
            _ => Ok(()),
        }
    }
}

/// Builds a worker's mover; called on the worker's thread.
pub(crate) fn build(
    work: &Workload,
    job: &Job,
    session: &Session,
    device: &Arc<dyn Device>,
    way: Way,
) -> Result<Box<dyn Mover>> {
    let io = job.io.max.next_multiple_of(4096) as usize;
    let depth = work.depth(job);
    let target = |len: usize| Target::new(work, job, device, way, len);
    let wait = if way.bare && work.config.objective == Objective::Latency { Wait::Spin } else { Wait::Block };
    if !way.raw() {
        return Ok(match way.xfer {
            Xfer::Gpud => Box::new(engine::Blocking::new(session.clone(), target(io)?)),
            xfer => {
                let entries = if xfer.is_batch() { depth } else { 1 };
                let on_stream = matches!(xfer, Xfer::Async | Xfer::BatchStream);
                let target = target(io * entries * work.batches)?;
                Box::new(engine::Submitting::new(
                    session.clone(),
                    target,
                    io,
                    entries,
                    work.batches,
                    on_stream,
                ))
            }
        });
    }
    if work.reads_raw_maps(way.xfer) {
        // One region where an I/O is long: two of a whole file may not fit.
        let slots = if io > raw_map::WINDOW { 1 } else { work.batches.max(2) };
        return Ok(Box::new(mapped::Mapped::new(target(io * slots)?, slots, io)?));
    }
    if way.xfer == Xfer::CpuOnly
        || ((device.info().is_host || job.memory.is_host()) && way.xfer.uses_engine())
    {
        return Ok(Box::new(classic::Straight::new(target(io)?)));
    }
    Ok(match way.xfer {
        Xfer::CpuGpu | Xfer::CpuCachedGpu => Box::new(classic::Classic::new(target(io)?, io, wait)?),
        Xfer::CpuAsyncGpu => {
            let slots = work.batches.max(2);
            Box::new(pipeline::Pipeline::new(target(io * slots)?, slots, io, io, way.write)?)
        }
        xfer if xfer.is_batch() && job.io.max <= PIECE => {
            let target = target(io * depth * work.batches)?;
            Box::new(pack::Pack::new(target, io, depth, work.batches, way.write)?)
        }
        _ if job.io.max <= PIECE => Box::new(classic::Classic::new(target(io)?, io, wait)?),
        _ => {
            let (slots, size) = RING;
            let slot = io.min(size as usize);
            let len = if io > slot { io } else { slot * slots };
            Box::new(pipeline::Pipeline::new(target(len)?, slots, slot, io, way.write)?)
        }
    })
}
