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
pub(crate) struct Turn(());

/// Whether somebody registers or unregisters.
#[derive(Default)]
struct Turns {
    taken: Mutex<bool>,
    given_back: Condvar,
}

impl PerProcess for Turns {
    const NAME: &'static str = "turns to register";
}

impl Turn {
    /// Waits for it, at most `limit`.
    pub(crate) fn take(limit: Duration) -> Option<Self> {
        let Turns { taken, given_back } = Turns::of_process();
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

impl Drop for Turn {
    fn drop(&mut self) {
        let Turns { taken, given_back } = Turns::of_process();
        *lock(taken) = false;
        given_back.notify_one();
    }
}

/// Registered pages. Unregistering costs milliseconds: the last owner leaves that to the [`Reaper`].
#[derive(Debug)]
pub(crate) struct Pin(Option<Registered>);

#[derive(Debug)]
struct Registered {
    address: u64,
    len: u64,
    region: Arc<Region>,
    reaper: Arc<Reaper>,
    reservation: Reservation,
}

impl Pin {
    /// Registers `len` bytes from `offset` of the region, whose pages are there.
    pub(crate) fn new(
        reaper: &Arc<Reaper>,
        region: &Arc<Region>,
        (offset, len): (u64, u64),
        access: Access,
        reservation: Reservation,
    ) -> Result<Self> {
        let address = region.address(offset);
        // SAFETY: the region is mapped as long as this value holds it; it is unregistered before.
        unsafe { reaper.device.register(address as *mut u8, len as usize, access) }?;
        let (region, reaper) = (region.clone(), reaper.clone());
        Ok(Self(Some(Registered { address, len, region, reaper, reservation })))
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
            let reaper = registered.reaper.clone();
            reaper.take(registered);
        }
    }
}

/// Unregisters what nobody uses any more, on the keeper's thread as long as that runs.
#[derive(Debug)]
pub(crate) struct Reaper {
    device: Arc<dyn Device>,
    queue: Mutex<Queue>,
    bell: Condvar,
}

#[derive(Debug, Default)]
struct Queue {
    dead: Vec<Registered>,
    /// Regions (by address) of what is being unregistered at the moment.
    busy: Vec<usize>,
    is_open: bool,
}

impl Reaper {
    pub(crate) fn new(device: Arc<dyn Device>) -> Self {
        Self { device, queue: Mutex::default(), bell: Condvar::new() }
    }

    fn queue(&self) -> MutexGuard<'_, Queue> {
        lock(&self.queue)
    }

    fn take(&self, registered: Registered) {
        let mut queue = self.queue();
        if queue.is_open {
            queue.dead.push(registered);
            drop(queue);
            self.bell.notify_all();
        } else {
            drop(queue);
            let reaper = registered.reaper.clone();
            traffic::when_clear(move || reaper.bury(registered));
        }
    }

    fn bury(&self, registered: Registered) {
        // Where somebody hangs in the driver this may hang too, or may not.
        let turn = Turn::take(Duration::from_secs(1));
        // SAFETY: registered by `Pin::new`; its last owner is gone, so no work in flight uses it.
        let undone = unsafe { self.device.unregister(registered.address as *mut u8) };
        // A device that is lost has let go of the pages by itself, or keeps them as long as the process.
        drop((undone, turn));
        let Registered { region, reservation, .. } = registered;
        drop(region);
        drop(reservation);
    }

    /// From now on others only queue what is dead.
    pub(crate) fn open(&self) {
        self.queue().is_open = true;
    }

    /// Sleeps at most `limit` or until something is dead, and unregisters what is.
    pub(crate) fn work(&self, limit: Duration) {
        let mut queue = self.queue();
        if queue.dead.is_empty() && queue.is_open {
            queue = self.bell.wait_timeout(queue, limit).unwrap_or_else(PoisonError::into_inner).0;
        }
        if queue.dead.is_empty() {
            return;
        }
        drop(queue);
        // While a stream waits for a transfer this must wait too, and the dead keep their place in the budget.
        if !traffic::is_clear_within(limit) {
            return;
        }
        let dead = {
            let mut queue = self.queue();
            let dead = std::mem::take(&mut queue.dead);
            queue.busy = dead.iter().map(|registered| Arc::as_ptr(&registered.region) as usize).collect();
            dead
        };
        for registered in dead {
            self.bury(registered);
        }
        self.queue().busy.clear();
        self.bell.notify_all();
    }

    /// Waits until all that is dead by now has been unregistered, at most `limit`; whether it has.
    pub(crate) fn settle(&self, limit: Duration) -> bool {
        self.settle_where(limit, |_| true)
    }

    /// As [`Reaper::settle`], for the pages of one region: while they are registered they cannot be registered again.
    pub(crate) fn settle_region(&self, limit: Duration, region: &Weak<Region>) -> bool {
        let region = region.as_ptr();
        self.settle_where(limit, |other| std::ptr::eq(other, region))
    }

    fn settle_where(&self, limit: Duration, counts: impl Fn(*const Region) -> bool) -> bool {
        let is_busy = |queue: &mut Queue| {
            let dead = queue.dead.iter().map(|registered| Arc::as_ptr(&registered.region));
            queue.is_open
                && (dead.into_iter().any(&counts)
                    || queue.busy.iter().any(|busy| counts(*busy as *const Region)))
        };
        let waited = self.bell.wait_timeout_while(self.queue(), limit, is_busy);
        !waited.unwrap_or_else(PoisonError::into_inner).1.timed_out()
    }

    /// Unregisters the rest; later pins are unregistered by their last owner.
    pub(crate) fn close(&self) {
        self.queue().is_open = false;
        self.bell.notify_all();
        let rest = std::mem::take(&mut self.queue().dead);
        if let Some(first) = rest.first() {
            let reaper = first.reaper.clone();
            traffic::when_clear(move || rest.into_iter().for_each(|registered| reaper.bury(registered)));
        }
    }
}
