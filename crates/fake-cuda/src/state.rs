//! Everything that the fake driver knows, behind one lock.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::ffi::c_int;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError, Weak};
use std::thread::ThreadId;
use std::time::Duration;

use crate::fault::Fault;
use crate::memory::{Pages, Region};
use crate::stream::{Event, Stream};

/// The answer of a driver function; the error is the driver's result code.
pub(crate) type Answer<T = ()> = Result<T, c_int>;

pub(crate) const INVALID_VALUE: c_int = 1;
pub(crate) const OUT_OF_MEMORY: c_int = 2;
pub(crate) const NOT_INITIALIZED: c_int = 3;
pub(crate) const NO_DEVICE: c_int = 100;
pub(crate) const INVALID_DEVICE: c_int = 101;
pub(crate) const INVALID_IMAGE: c_int = 200;
pub(crate) const INVALID_CONTEXT: c_int = 201;
pub(crate) const INVALID_HANDLE: c_int = 400;
pub(crate) const NOT_FOUND: c_int = 500;
pub(crate) const NOT_READY: c_int = 600;
pub(crate) const ILLEGAL_ADDRESS: c_int = 700;
pub(crate) const PEER_ACCESS_ALREADY_ENABLED: c_int = 704;
pub(crate) const ALREADY_REGISTERED: c_int = 712;
pub(crate) const NOT_REGISTERED: c_int = 713;
pub(crate) const NOT_SUPPORTED: c_int = 801;
pub(crate) const CAPTURE_UNSUPPORTED: c_int = 900;
pub(crate) const CAPTURE_INVALIDATED: c_int = 901;
pub(crate) const CAPTURE_IMPLICIT: c_int = 906;
pub(crate) const CAPTURED_EVENT: c_int = 907;
pub(crate) const UNKNOWN: c_int = 999;

/// One pretended GPU.
#[derive(Debug, Default)]
pub(crate) struct Gpu {
    pub(crate) total: usize,
    pub(crate) used: usize,
    pub(crate) primary: u64,
    pub(crate) primary_references: usize,
    /// A fault of queued work: every later call in a context of this GPU answers it, as the real driver does.
    pub(crate) error: Option<c_int>,
    /// How often it was mended: what was queued before it broke never runs.
    pub(crate) life: u64,
    /// Copies and kernels that are running.
    pub(crate) moving: usize,
}

/// A context: a name for "work of this GPU".
#[derive(Clone, Copy, Debug)]
pub(crate) struct Context {
    pub(crate) gpu: usize,
    pub(crate) id: u64,
    pub(crate) legacy: u64,
}

/// A stream capture under way.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Capture {
    pub(crate) mode: c_int,
    pub(crate) thread: ThreadId,
    pub(crate) valid: bool,
    pub(crate) operations: u64,
}

/// Physical memory of the virtual-memory functions.
#[derive(Debug)]
pub(crate) struct Physical {
    pub(crate) gpu: usize,
    pub(crate) pages: Arc<Pages>,
}

#[derive(Debug, Default)]
pub(crate) struct State {
    pub(crate) initialised: bool,
    pub(crate) gpus: Vec<Gpu>,
    pub(crate) contexts: HashMap<u64, Context>,
    pub(crate) regions: BTreeMap<u64, Region>,
    pub(crate) reservations: BTreeMap<u64, Pages>,
    pub(crate) physical: HashMap<u64, Physical>,
    pub(crate) streams: HashMap<u64, Arc<Stream>>,
    /// Destroyed streams; each works on until its queue is empty.
    pub(crate) closing: Vec<Weak<Stream>>,
    pub(crate) events: HashMap<u64, Arc<Event>>,
    pub(crate) modules: HashMap<u64, u64>,
    pub(crate) functions: HashMap<u64, (u64, String)>,
    pub(crate) captures: HashMap<u64, Capture>,
    pub(crate) faults: Vec<Fault>,
    pub(crate) calls: HashMap<String, u64>,
    pub(crate) unpinned_copies: u64,
    /// GPUs that may use the memory of another: (who, whose).
    pub(crate) peers: HashSet<(usize, usize)>,
    /// Device attributes that differ from the usual.
    pub(crate) attributes: HashMap<c_int, c_int>,
    /// How long the next call of a function sleeps before it goes on.
    pub(crate) hangs: HashMap<String, Duration>,
    /// Calls that the real driver would never have come back from.
    pub(crate) hazards: u64,
}

static STATE: LazyLock<Mutex<State>> = LazyLock::new(|| Mutex::new(State::from_environment()));
static NEXT: AtomicU64 = AtomicU64::new(1);

/// The state, locked. Never held while memory is copied or a stream is waited for.
pub(crate) fn state() -> MutexGuard<'static, State> {
    STATE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A handle that no other object has. Looks like a pointer and points nowhere.
pub(crate) fn new_handle() -> u64 {
    0xFA4E_0000_0000 + 0x10 * NEXT.fetch_add(1, Ordering::Relaxed)
}

/// A number from the environment.
pub(crate) fn number(name: &str, otherwise: u64) -> u64 {
    std::env::var(name).ok().and_then(|text| text.trim().parse().ok()).unwrap_or(otherwise)
}

/// The attributes that `FAKE_CUDA_ATTRIBUTES` overrides: `name=value,…`. What cannot be read is told and left out.
pub(crate) fn attributes_from_environment() -> HashMap<c_int, c_int> {
    let text = std::env::var("FAKE_CUDA_ATTRIBUTES").unwrap_or_default();
    let parts = text.split(',').map(str::trim).filter(|part| !part.is_empty());
    let parse = |part: &str| {
        let (name, value) = part.split_once('=')?;
        Some((name.trim().parse().ok()?, value.trim().parse().ok()?))
    };
    let told = |part: &str| {
        let read = parse(part);
        if read.is_none() {
            eprintln!("fake-cuda: cannot read the attribute `{part}` (name=value)");
        }
        read
    };
    parts.filter_map(told).collect()
}

impl State {
    fn from_environment() -> Self {
        let total = number("FAKE_CUDA_MEMORY", 8 << 30) as usize;
        let gpus = (0..number("FAKE_CUDA_DEVICES", 1)).map(|_| Gpu { total, ..Gpu::default() }).collect();
        let faults = std::env::var("FAKE_CUDA_FAULTS").unwrap_or_default();
        let attributes = attributes_from_environment();
        Self { gpus, faults: Fault::parse_list(&faults), attributes, ..Self::default() }
    }

    pub(crate) fn gpu(&mut self, ordinal: c_int) -> Answer<&mut Gpu> {
        if !self.initialised {
            return Err(NOT_INITIALIZED);
        }
        usize::try_from(ordinal).ok().and_then(|index| self.gpus.get_mut(index)).ok_or(INVALID_DEVICE)
    }

    /// Takes device memory; the caller gives it back with [`State::give`].
    pub(crate) fn take(&mut self, gpu: usize, len: usize) -> Answer {
        let gpu = &mut self.gpus[gpu];
        let used = gpu.used.checked_add(len).filter(|used| *used <= gpu.total).ok_or(OUT_OF_MEMORY)?;
        gpu.used = used;
        Ok(())
    }

    pub(crate) fn give(&mut self, gpu: usize, len: usize) {
        self.gpus[gpu].used -= len;
    }
}
