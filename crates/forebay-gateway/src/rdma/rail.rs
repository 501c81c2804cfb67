//! A NIC: its protection domain, and the registered memory that bytes go through.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use forebay_error::{Error, Result};
use forebay_verbs::{Access, Domain, Fabric, Local, Memory, Pages, Region, Route};

use crate::warn::warn;

/// Bytes of a slot.
pub(super) const SLOT: usize = 1 << 20;
/// Slots of a transfer: the file system fills, or empties, one while the NIC has the other.
pub(super) const SLOTS: usize = 2;
/// Transfers at a time by a NIC: 64 MiB of slots. An account has half of them at most.
const TRANSFERS: usize = 32;
/// A transfer waits this long for slots.
const PATIENCE: Duration = Duration::from_secs(10);
/// How long nobody tries to register more memory than there is, where it failed.
const REST: Duration = Duration::from_mins(1);

/// A NIC.
pub(crate) struct Rail {
    /// Slots go before the domain does.
    pool: Mutex<Pool>,
    /// Slots were given back.
    given: Condvar,
    pub(super) domain: Arc<dyn Domain>,
}

/// Slots of all transfers.
struct Pool {
    /// Those that no transfer has now.
    free: Vec<Pair>,
    /// How many there are.
    made: usize,
    /// How many there may be: fewer where no more memory can be registered.
    most: usize,
    /// When there may be as many again as at first. It was said why there are fewer.
    grows_at: Option<Instant>,
    /// Transfers that have slots, by their accounts.
    taken: HashMap<String, usize>,
}

/// What a transfer may have now.
enum Found {
    Free(Pair),
    /// It is to make some.
    Room,
}

impl Pool {
    /// An account leaves half of them to others.
    fn find(&mut self, account: &str) -> Option<Found> {
        if self.grows_at.is_some_and(|at| Instant::now() >= at) {
            self.most = TRANSFERS;
        }
        let own = self.taken.get(account).copied().unwrap_or_default();
        if own >= self.most.div_ceil(2) {
            return None;
        }
        let found = match self.free.pop() {
            Some(pair) => Found::Free(pair),
            None if self.made < self.most => {
                self.made += 1;
                Found::Room
            }
            None => return None,
        };
        *self.taken.entry(account.to_owned()).or_default() += 1;
        Some(found)
    }

    fn give(&mut self, account: &str) {
        if let Some(count) = self.taken.get_mut(account) {
            *count -= 1;
            if *count == 0 {
                self.taken.remove(account);
            }
        }
    }
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
    account: String,
}

/// The device of an address, with a domain of its own.
pub(super) fn open(fabric: &dyn Fabric, address: IpAddr) -> Result<Arc<dyn Domain>> {
    // A route to the address itself leads to its device.
    let route = Route::to(SocketAddr::new(address, 0)).from(address);
    let hint = "forebay serve s3 DIR --rdma DEVICE-OR-ADDRESS";
    fabric.open(&route).map_err(|error| error.with("address", address).hint(hint))
}

impl Rail {
    pub(super) fn open(fabric: &dyn Fabric, address: IpAddr) -> Result<Arc<Self>> {
        let domain = open(fabric, address)?;
        // Memory that cannot be registered is noticed before a transfer needs it.
        let free = vec![Pair::new(&domain)?];
        let pool = Mutex::new(Pool { free, made: 1, most: TRANSFERS, grows_at: None, taken: HashMap::new() });
        Ok(Arc::new(Self { pool, given: Condvar::new(), domain }))
    }

    fn pool(&self) -> MutexGuard<'_, Pool> {
        self.pool.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Slots for a transfer of the account. `None`: all were taken for too long. Blocks.
    pub(crate) fn slots(self: &Arc<Self>, account: &str) -> Option<Slots> {
        let until = Instant::now() + PATIENCE;
        let mut pool = self.pool();
        loop {
            match pool.find(account) {
                Some(Found::Free(pair)) => return Some(self.slots_of(pair, account)),
                Some(Found::Room) => {
                    drop(pool);
                    let made = Pair::new(&self.domain);
                    pool = self.pool();
                    match made {
                        Ok(pair) => return Some(self.slots_of(pair, account)),
                        Err(error) => self.make_do(&mut pool, account, &error),
                    }
                }
                None => {
                    let left = until.checked_duration_since(Instant::now())?;
                    let waited = self.given.wait_timeout(pool, left);
                    pool = waited.unwrap_or_else(PoisonError::into_inner).0;
                }
            }
        }
    }

    fn slots_of(self: &Arc<Self>, pair: Pair, account: &str) -> Slots {
        Slots { pair: Some(pair), rail: Arc::clone(self), account: account.to_owned() }
    }

    /// No more memory can be registered: transfers take turns with what there is.
    fn make_do(&self, pool: &mut Pool, account: &str, error: &Error) {
        pool.give(account);
        pool.made -= 1;
        pool.most = pool.made.max(1);
        if pool.grows_at.replace(Instant::now() + REST).is_none() {
            let most = pool.most;
            warn(&format!(
                "RDMA moves {most} objects at a time: no more memory can be locked (ulimit -l): {error}"
            ));
        }
        self.given.notify_all();
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
        let mut pool = self.rail.pool();
        pool.give(&self.account);
        pool.free.extend(self.pair.take());
        // One account may not take what another may.
        self.rail.given.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use fake_verbs::Fake;

    use super::*;

    fn rail(fake: &Fake) -> Arc<Rail> {
        Rail::open(fake, "10.0.0.1".parse().unwrap()).unwrap()
    }

    #[test]
    fn an_account_leaves_half_to_others() {
        let rail = rail(&Fake::new());
        let ana: Vec<_> = (0..TRANSFERS / 2).map_while(|_| rail.slots("ana")).collect();
        assert_eq!(ana.len(), TRANSFERS / 2);
        assert!(rail.pool().find("ana").is_none());
        let ben: Vec<_> = (0..TRANSFERS / 2).map_while(|_| rail.slots("ben")).collect();
        assert_eq!((ben.len(), rail.pool().made), (TRANSFERS / 2, TRANSFERS));
        assert!(rail.pool().find("eve").is_none());
        drop(ana);
        assert!(rail.slots("eve").is_some() && rail.pool().taken.len() == 1);
        drop(ben);
        assert!(rail.pool().taken.is_empty());
        assert_eq!(rail.pool().free.len(), TRANSFERS);
    }

    #[test]
    fn where_one_pair_is_all_transfers_take_turns() {
        let fake = Fake::new();
        let rail = rail(&fake);
        fake.limit_locked(0);
        let first = rail.slots("ana").unwrap();
        let (say, hear) = channel();
        std::thread::scope(|scope| {
            scope.spawn(|| say.send(rail.slots("ben").is_some()));
            assert!(hear.recv_timeout(Duration::from_millis(200)).is_err(), "there is no second pair");
            drop(first);
            assert_eq!(hear.recv_timeout(PATIENCE / 2), Ok(true));
        });
        let mut pool = rail.pool();
        assert_eq!((pool.made, pool.most), (1, 1));
        // There is more memory again.
        fake.limit_locked(u64::MAX);
        pool.grows_at = Some(Instant::now());
        drop(pool);
        let both = (rail.slots("ana"), rail.slots("ben"));
        assert!(both.0.is_some() && both.1.is_some());
        assert_eq!(rail.pool().made, 2);
    }
}
