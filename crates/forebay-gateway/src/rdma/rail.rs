//! A NIC: its protection domain, and the registered memory that bytes go through.

use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use forebay_error::Result;
use forebay_s3_rdma::Refusal;
use forebay_verbs::{Access, Domain, Fabric, Local, Memory, Pages, Region, Route};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;

use crate::warn::warn;

/// Bytes of a slot.
pub(super) const SLOT: usize = 1 << 20;
/// Slots of a transfer: the file system fills, or empties, one while the NIC has the other.
pub(super) const SLOTS: usize = 2;
/// Transfers at a time by a NIC: 64 MiB of slots.
const TRANSFERS: usize = 32;
/// A transfer waits this long for slots.
const PATIENCE: Duration = Duration::from_secs(10);

/// A NIC.
pub(crate) struct Rail {
    /// Slots that no transfer has now. They go before the domain does.
    free: Mutex<Vec<Pair>>,
    permits: Arc<Semaphore>,
    pub(super) domain: Arc<dyn Domain>,
}

/// The slots of a transfer: registered memory that no peer has a key of.
struct Pair {
    // Deregistered before the memory goes.
    region: Region,
    pages: Pages,
}

/// Slots, until they are dropped.
pub(crate) struct Slots {
    pair: Option<Pair>,
    rail: Arc<Rail>,
    _permit: OwnedSemaphorePermit,
}

/// The device of an address, with a domain of its own.
pub(super) fn open(fabric: &dyn Fabric, address: IpAddr) -> Result<Arc<dyn Domain>> {
    // A route to the address itself leads to its device.
    let route = Route::to(SocketAddr::new(address, 0)).from(address);
    let hint = "forebay serve s3 DIR --rdma ADDRESS-OF-THE-NIC";
    fabric.open(&route).map_err(|error| error.with("address", address).hint(hint))
}

impl Rail {
    pub(super) fn open(fabric: &dyn Fabric, address: IpAddr) -> Result<Arc<Self>> {
        let domain = open(fabric, address)?;
        // Memory that cannot be registered is noticed before a transfer needs it.
        let free = Mutex::new(vec![Pair::new(&domain)?]);
        let permits = Arc::new(Semaphore::new(TRANSFERS));
        Ok(Arc::new(Self { free, permits, domain }))
    }

    /// Slots for a transfer. [`Refusal::Limits`]: all were taken for too long.
    pub(crate) async fn slots(self: &Arc<Self>) -> std::result::Result<Slots, Refusal> {
        let permit = timeout(PATIENCE, Arc::clone(&self.permits).acquire_owned()).await;
        let permit = permit.ok().and_then(std::result::Result::ok).ok_or(Refusal::Limits)?;
        let free = self.free.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let pair = match free {
            Some(pair) => pair,
            None => Pair::new(&self.domain).map_err(|error| {
                warn(&format!("no memory for RDMA: {error}"));
                Refusal::Limits
            })?,
        };
        Ok(Slots { pair: Some(pair), rail: Arc::clone(self), _permit: permit })
    }
}

impl Pair {
    fn new(domain: &Arc<dyn Domain>) -> Result<Self> {
        let pages = Pages::new(SLOT * SLOTS)?;
        // SAFETY: the pages live behind the region, are of `Pages`, and are looked at only while the NIC has no operation on them.
        let region = unsafe { domain.register(Memory::Host(pages.range()), Access::WRITE) }?;
        Ok(Self { region, pages })
    }
}

impl Slots {
    fn pair(&mut self) -> &mut Pair {
        // Taken by the drop alone.
        self.pair.get_or_insert_with(|| unreachable!("the slots are there until they are dropped"))
    }

    /// The bytes of a slot that the NIC has no operation on.
    ///
    /// # Safety
    /// No operation on this slot is posted and not complete.
    pub(super) unsafe fn bytes(&mut self, slot: usize, len: usize) -> &mut [u8] {
        debug_assert!(slot < SLOTS && len <= SLOT);
        let start = self.pair().pages.range().start;
        // SAFETY: within the pages; the device leaves it alone, as the caller promises, and no peer has a key of it.
        unsafe { std::slice::from_raw_parts_mut(start.add(slot * SLOT), len) }
    }

    /// A slot for an operation.
    pub(super) fn range(&mut self, slot: usize, len: usize) -> Result<Local<'_>> {
        self.pair().region.range(slot * SLOT, len)
    }
}

impl Drop for Slots {
    fn drop(&mut self) {
        if let Some(pair) = self.pair.take() {
            self.rail.free.lock().unwrap_or_else(PoisonError::into_inner).push(pair);
        }
    }
}
