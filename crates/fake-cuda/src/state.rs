//! Everything that the fake driver knows, behind one lock.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::ffi::c_int;
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError, Weak};
use std::thread::ThreadId;
use std::time::Duration;

use crate::environment::{self, number};
use crate::fault::DriverFault;
use crate::memory::{MappedPages, MemoryRegion, RegionKind};
use crate::result::{Answer, INVALID_DEVICE, NOT_INITIALIZED, OUT_OF_MEMORY, new_handle};
use crate::stream::{FakeEvent, FakeStream};

/// The attribute "memory can be exported as dma-bufs". While a test sets it, device memory is allocated so that it can be.
const DMA_BUF: c_int = 124;

/// One pretended GPU.
#[derive(Debug, Default)]
pub(crate) struct FakeGpu {
    pub(crate) total: usize,
    pub(crate) used: usize,
    pub(crate) primary: u64,
    pub(crate) primary_references: usize,
    /// A fault of queued work: every later call in a context of this GPU answers it, as the real driver does.
    pub(crate) error: Option<c_int>,
    /// How often it was repaired: work queued before it broke never runs.
    pub(crate) life: u64,
    /// Copies and kernels that are running.
    pub(crate) moving: usize,
}

/// A context: a name for "work of this GPU".
#[derive(Clone, Copy, Debug)]
pub(crate) struct FakeContext {
    pub(crate) gpu: usize,
    pub(crate) id: u64,
    pub(crate) legacy: u64,
}

/// A stream capture under way.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StreamCapture {
    pub(crate) mode: c_int,
    pub(crate) thread: ThreadId,
    pub(crate) valid: bool,
    pub(crate) operations: u64,
}

/// Physical memory of the virtual-memory functions.
#[derive(Debug)]
pub(crate) struct PhysicalMemory {
    pub(crate) gpu: usize,
    pub(crate) pages: Arc<MappedPages>,
}

#[derive(Debug, Default)]
pub(crate) struct DriverState {
    pub(crate) initialised: bool,
    pub(crate) gpus: Vec<FakeGpu>,
    pub(crate) contexts: HashMap<u64, FakeContext>,
    pub(crate) regions: BTreeMap<u64, MemoryRegion>,
    pub(crate) reservations: BTreeMap<u64, MappedPages>,
    pub(crate) physical: HashMap<u64, PhysicalMemory>,
    pub(crate) streams: HashMap<u64, Arc<FakeStream>>,
    /// Destroyed streams; each works on until its queue is empty.
    pub(crate) closing: Vec<Weak<FakeStream>>,
    pub(crate) events: HashMap<u64, Arc<FakeEvent>>,
    pub(crate) modules: HashMap<u64, u64>,
    pub(crate) functions: HashMap<u64, (u64, String)>,
    pub(crate) captures: HashMap<u64, StreamCapture>,
    pub(crate) faults: Vec<DriverFault>,
    pub(crate) calls: HashMap<String, u64>,
    pub(crate) unpinned_copies: u64,
    /// The most bytes that may be registered for every GPU.
    pub(crate) pin_limit: Option<usize>,
    /// GPUs that may use the memory of another: (who, whose).
    pub(crate) peers: HashSet<(usize, usize)>,
    /// Device attributes that differ from the usual.
    pub(crate) attributes: HashMap<c_int, c_int>,
    /// How long the next call of a function sleeps before it goes on.
    pub(crate) hangs: HashMap<String, Duration>,
    /// Resident kernels that run: their context and the number of what they share.
    pub(crate) lives: HashSet<(u64, u32)>,
    /// Streams and events that went with their contexts.
    pub(crate) gone: HashSet<u64>,
    /// Calls that the real driver would never have come back from.
    pub(crate) hazards: u64,
}

static STATE: LazyLock<Mutex<DriverState>> = LazyLock::new(|| Mutex::new(DriverState::from_environment()));

/// The state, locked. Never held while memory is copied or a stream is waited for.
pub(crate) fn state() -> MutexGuard<'static, DriverState> {
    STATE.lock().unwrap_or_else(PoisonError::into_inner)
}

impl DriverState {
    fn from_environment() -> Self {
        let total = number("FAKE_CUDA_MEMORY", 8 << 30) as usize;
        let gpus =
            (0..number("FAKE_CUDA_DEVICES", 1)).map(|_| FakeGpu { total, ..FakeGpu::default() }).collect();
        let faults = std::env::var("FAKE_CUDA_FAULTS").unwrap_or_default();
        let attributes = environment::attributes();
        Self { gpus, faults: DriverFault::parse_list(&faults), attributes, ..Self::default() }
    }

    pub(crate) fn gpu(&mut self, ordinal: c_int) -> Answer<&mut FakeGpu> {
        if !self.initialised {
            return Err(NOT_INITIALIZED);
        }
        usize::try_from(ordinal).ok().and_then(|index| self.gpus.get_mut(index)).ok_or(INVALID_DEVICE)
    }

    /// Takes device memory; the caller gives it back with [`DriverState::give`].
    pub(crate) fn take(&mut self, gpu: usize, len: usize) -> Answer {
        let gpu = &mut self.gpus[gpu];
        let used = gpu.used.checked_add(len).filter(|used| *used <= gpu.total).ok_or(OUT_OF_MEMORY)?;
        gpu.used = used;
        Ok(())
    }

    pub(crate) fn give(&mut self, gpu: usize, len: usize) {
        self.gpus[gpu].used -= len;
    }

    /// The region that holds `address`, with its first address.
    pub(crate) fn region(&self, address: u64) -> Option<(u64, &MemoryRegion)> {
        let (&start, region) = self.regions.range(..=address).next_back()?;
        (address - start < region.len as u64).then_some((start, region))
    }

    /// Whether `len` bytes at `address` are known from end to end, as memory of one region.
    pub(crate) fn known(&self, address: u64, len: usize) -> bool {
        self.region(address).is_some_and(|(start, region)| {
            let end = (address - start).checked_add(len as u64);
            region.accessible && end.is_some_and(|end| end <= region.len as u64)
        })
    }

    /// Whether this many bytes more may be registered for every GPU.
    pub(crate) fn may_pin(&self, len: usize) -> bool {
        self.pin_limit.is_none_or(|limit| self.pinned() + len <= limit)
    }

    /// Bytes that are registered for every GPU.
    pub(crate) fn pinned(&self) -> usize {
        let for_all =
            |region: &&MemoryRegion| region.registration.as_ref().is_some_and(|found| found.portable);
        self.regions.values().filter(for_all).map(|region| region.len).sum()
    }

    /// Whether any of `start..start + len` is known already.
    pub(crate) fn overlaps(&self, start: u64, len: usize) -> bool {
        let before = self.regions.range(..start + len as u64).next_back();
        before.is_some_and(|(&other, region)| other + region.len as u64 > start)
    }

    /// Adds memory of one's own making. `kind` decides whether the CPU may touch it.
    pub(crate) fn add(&mut self, kind: RegionKind, gpu: usize, context: u64, len: usize) -> Answer<u64> {
        let is_shared = kind == RegionKind::Device && self.attributes.get(&DMA_BUF) == Some(&1);
        let usable = Arc::new(if is_shared { MappedPages::shared(len)? } else { MappedPages::usable(len)? });
        let bytes = usable.address;
        let mut pages = vec![usable];
        let mut address = bytes;
        if kind.is_device() {
            // One page more, so that running off the end meets nothing.
            let public = Arc::new(MappedPages::forbidden(len + 4096)?);
            address = public.address;
            pages.push(public);
        }
        let region = MemoryRegion {
            kind,
            gpu,
            context,
            id: new_handle(),
            len,
            bytes,
            accessible: true,
            is_synchronous: false,
            registration: None,
            pages,
        };
        self.regions.insert(address, region);
        Ok(address)
    }
}
