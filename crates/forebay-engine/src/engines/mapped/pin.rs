//! One window of a file's pages, registered with one device; and who undoes that.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use forebay_error::Result;
use forebay_gpu::{Access, Device};

use super::budget::Reservation;
use super::region::Region;
use crate::runtime::lock::lock;
use crate::runtime::process::PerProcess;
use crate::runtime::traffic;

/// The right to register or unregister, one at a time for all devices of the process: the driver serves one caller
/// only, and several at once take five times as long as one after the other.
#[derive(Debug)]
pub(crate) struct DriverTurn(());

/// Whether somebody registers or unregisters.
#[derive(Default)]
struct DriverTurns {
    taken: Mutex<bool>,
    given_back: Condvar,
}

impl PerProcess for DriverTurns {
    const NAME: &'static str = "turns to register";
}

impl DriverTurn {
    /// Waits for it, at most `limit`.
    pub(crate) fn take(limit: Duration) -> Option<Self> {
        let DriverTurns { taken, given_back } = DriverTurns::of_process();
        let taken = lock(taken);
        let (mut taken, waited) = given_back
            .wait_timeout_while(taken, limit, |taken| *taken)
            .unwrap_or_else(PoisonError::into_inner);
        if waited.timed_out() && *taken {
            return None;
        }
        *taken = true;
        Some(Self(()))
    }
}

impl Drop for DriverTurn {
    fn drop(&mut self) {
        let DriverTurns { taken, given_back } = DriverTurns::of_process();
        *lock(taken) = false;
        given_back.notify_one();
    }
}

/// Registration pages. Unregistering costs milliseconds: the last owner leaves that to the [`Reclaimer`].
#[derive(Debug)]
pub(crate) struct Pin(Option<Registration>);

#[derive(Debug)]
struct Registration {
    address: u64,
    len: u64,
    region: Arc<Region>,
    reclaimer: Arc<Reclaimer>,
    reservation: Reservation,
}

impl Pin {
    /// Registers `len` bytes from `offset` of the region, whose pages are there.
    pub(crate) fn new(
        reclaimer: &Arc<Reclaimer>,
        region: &Arc<Region>,
        (offset, len): (u64, u64),
        access: Access,
        reservation: Reservation,
    ) -> Result<Self> {
        let address = region.address(offset);
        // SAFETY: the region is mapped as long as this value holds it; it is unregistered before.
        unsafe { reclaimer.device.register(address as *mut u8, len as usize, access) }?;
        let (region, reclaimer) = (region.clone(), reclaimer.clone());
        Ok(Self(Some(Registration { address, len, region, reclaimer, reservation })))
    }

    /// Whether its pages are still the file's.
    pub(crate) fn is_whole(&self) -> bool {
        self.0.as_ref().is_none_or(|registered| {
            let offset = registered.address - registered.region.address(0);
            registered.region.is_whole(offset, registered.len)
        })
    }

    /// Bytes that it keeps in memory.
    pub(crate) fn len(&self) -> u64 {
        self.0.as_ref().map_or(0, |registered| registered.len)
    }
}

impl Drop for Pin {
    fn drop(&mut self) {
        if let Some(registered) = self.0.take() {
            let reclaimer = registered.reclaimer.clone();
            reclaimer.take(registered);
        }
    }
}

/// Unregisters what nobody uses any more, on the keeper's thread as long as that runs.
#[derive(Debug)]
pub(crate) struct Reclaimer {
    device: Arc<dyn Device>,
    queue: Mutex<ReclaimQueue>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct ReclaimQueue {
    unused: Vec<Registration>,
    /// Regions (by address) of what is being unregistered at the moment.
    busy: Vec<usize>,
    is_open: bool,
}

impl Reclaimer {
    pub(crate) fn new(device: Arc<dyn Device>) -> Self {
        Self { device, queue: Mutex::default(), changed: Condvar::new() }
    }

    fn queue(&self) -> MutexGuard<'_, ReclaimQueue> {
        lock(&self.queue)
    }

    fn take(&self, registered: Registration) {
        let mut queue = self.queue();
        if queue.is_open {
            queue.unused.push(registered);
            drop(queue);
            self.changed.notify_all();
        } else {
            drop(queue);
            let reclaimer = registered.reclaimer.clone();
            traffic::when_clear(move || reclaimer.unregister(registered));
        }
    }

    fn unregister(&self, registered: Registration) {
        // Where somebody hangs in the driver this may hang too, or may not.
        let turn = DriverTurn::take(Duration::from_secs(1));
        // SAFETY: registered by `Pin::new`; its last owner is gone, so no work in flight uses it.
        let undone = unsafe { self.device.unregister(registered.address as *mut u8) };
        // A device that is lost has let go of the pages by itself, or keeps them as long as the process.
        drop((undone, turn));
        let Registration { region, reservation, .. } = registered;
        drop(region);
        drop(reservation);
    }

    /// From now on others only queue what is unused.
    pub(crate) fn open(&self) {
        self.queue().is_open = true;
    }

    /// Sleeps at most `limit` or until something is unused, and unregisters what is.
    pub(crate) fn work(&self, limit: Duration) {
        let mut queue = self.queue();
        if queue.unused.is_empty() && queue.is_open {
            queue = self.changed.wait_timeout(queue, limit).unwrap_or_else(PoisonError::into_inner).0;
        }
        if queue.unused.is_empty() {
            return;
        }
        drop(queue);
        // While a stream waits for a transfer this must wait too, and the unused keep their place in the budget.
        if !traffic::is_clear_within(limit) {
            return;
        }
        let unused = {
            let mut queue = self.queue();
            let unused = std::mem::take(&mut queue.unused);
            queue.busy = unused.iter().map(|registered| Arc::as_ptr(&registered.region) as usize).collect();
            unused
        };
        for registered in unused {
            self.unregister(registered);
        }
        self.queue().busy.clear();
        self.changed.notify_all();
    }

    /// Waits until all that is unused by now has been unregistered, at most `limit`; whether it has.
    pub(crate) fn settle(&self, limit: Duration) -> bool {
        self.settle_where(limit, |_| true)
    }

    /// As [`Reclaimer::settle`], for the pages of one region: while they are registered they cannot be registered again.
    pub(crate) fn settle_region(&self, limit: Duration, region: &Weak<Region>) -> bool {
        let region = region.as_ptr();
        self.settle_where(limit, |other| std::ptr::eq(other, region))
    }

    fn settle_where(&self, limit: Duration, counts: impl Fn(*const Region) -> bool) -> bool {
        let is_busy = |queue: &mut ReclaimQueue| {
            let unused = queue.unused.iter().map(|registered| Arc::as_ptr(&registered.region));
            queue.is_open
                && (unused.into_iter().any(&counts)
                    || queue.busy.iter().any(|busy| counts(*busy as *const Region)))
        };
        let waited = self.changed.wait_timeout_while(self.queue(), limit, is_busy);
        !waited.unwrap_or_else(PoisonError::into_inner).1.timed_out()
    }

    /// Unregisters the rest; later pins are unregistered by their last owner.
    pub(crate) fn close(&self) {
        self.queue().is_open = false;
        self.changed.notify_all();
        let rest = std::mem::take(&mut self.queue().unused);
        if let Some(first) = rest.first() {
            let reclaimer = first.reclaimer.clone();
            traffic::when_clear(move || {
                rest.into_iter().for_each(|registered| reclaimer.unregister(registered))
            });
        }
    }
}
