//! Device memory that is registered with a NIC. Registering takes far longer than a call, so registrations are kept while they are
//! used. The driver is asked for the allocation's number before each use: memory that was freed and allocated again at the same
//! address has another one, and the old registration, which still leads to the old memory, is never used for it. Unused
//! registrations are given back soon, because a dma-buf keeps memory that the program has freed.

use std::os::fd::AsFd;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use forebay_gpu::{Allocation, Device};
use forebay_verbs::{DeviceRange, Domain, Memory, RegisteredMemory};

use super::refusals::{error_refusal, refusal};
use crate::request::receipt::Refusal;
use crate::runtime::lock;

/// How long a registration stays that nobody uses.
const IDLE: Duration = Duration::from_secs(1);

/// The registrations of a device's memory.
pub(super) struct Registrations {
    device: Arc<dyn Device>,
    kept: Mutex<Vec<CachedRegistration>>,
}

/// The registration of an allocation in one domain.
struct CachedRegistration {
    domain: Arc<dyn Domain>,
    allocation: Allocation,
    /// The registration, or why there can be none.
    made: Result<Arc<RegisteredMemory>, Arc<Refusal>>,
    used: Instant,
}

impl Registrations {
    pub(super) fn new(device: Arc<dyn Device>) -> Self {
        Self { device, kept: Mutex::default() }
    }

    /// The allocation that a range lies in, and its registration in a domain.
    pub(super) fn get(
        &self,
        domain: &Arc<dyn Domain>,
        range: DeviceRange,
    ) -> Result<(Allocation, Arc<RegisteredMemory>), Arc<Refusal>> {
        let allocation = self.device.allocation(range.start).map_err(|error| error_refusal(&error))?;
        if !allocation.range.holds(range) {
            let why = "the memory goes beyond one allocation of the driver's";
            return Err(refusal(why, Some("PyTorch: expandable_segments:False in PYTORCH_CUDA_ALLOC_CONF")));
        }
        let mut kept = lock(&self.kept);
        let is_it = |kept: &&mut CachedRegistration| {
            kept.allocation == allocation && std::ptr::addr_eq(Arc::as_ptr(&kept.domain), Arc::as_ptr(domain))
        };
        if let Some(found) = kept.iter_mut().find(is_it) {
            if found.made.is_ok() {
                found.used = Instant::now();
            }
            return found.made.clone().map(|registered| (allocation, registered));
        }
        // Any other allocation there is freed.
        kept.retain(|kept| {
            kept.allocation == allocation || !kept.allocation.range.overlaps(allocation.range)
        });
        let made = self.register(domain, &allocation);
        let used = Instant::now();
        kept.push(CachedRegistration { domain: domain.clone(), allocation, made: made.clone(), used });
        made.map(|registered| (allocation, registered))
    }

    /// Registers an allocation, without keeping it.
    pub(super) fn register(
        &self,
        domain: &Arc<dyn Domain>,
        allocation: &Allocation,
    ) -> Result<Arc<RegisteredMemory>, Arc<Refusal>> {
        register(self.device.as_ref(), domain, allocation)
    }

    /// Whether none is kept.
    pub(super) fn is_empty(&self) -> bool {
        lock(&self.kept).is_empty()
    }

    /// Gives back unused and freed registrations. True if any is left.
    pub(super) fn sweep(&self) -> bool {
        let mut kept = lock(&self.kept);
        let is_there = |allocation: &Allocation| {
            self.device.allocation(allocation.range.start).is_ok_and(|now| now == *allocation)
        };
        kept.retain(|kept| kept.used.elapsed() < IDLE && is_there(&kept.allocation));
        !kept.is_empty()
    }
}

/// Registers an allocation as a dma-buf, for a server's writes.
pub(super) fn register(
    device: &dyn Device,
    domain: &Arc<dyn Domain>,
    allocation: &Allocation,
) -> Result<Arc<RegisteredMemory>, Arc<Refusal>> {
    let buffer = device.export(allocation).map_err(|error| error_refusal(&error))?;
    let memory = Memory::DmaBuf { fd: buffer.fd.as_fd(), offset: buffer.offset, range: allocation.range };
    // SAFETY: device memory, which no code of this process takes for its own: only ranges that a caller lends are named to the server.
    unsafe { RegisteredMemory::new(domain, memory) }.map_err(|error| error_refusal(&error))
}
