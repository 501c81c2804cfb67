//! Handles that programs hold: checked at each use, so that a released handle is distinguished from garbage.

use std::ffi::c_void;
use std::ops::Deref;
use std::sync::{Arc, Mutex, OnceLock, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use forebay_sys::Striped;

use crate::lock;

/// What a table is of: marks its handles, so that one of another table is not taken for one of this.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u64)]
pub enum HandleKind {
    /// Registered files.
    Files = 0x46,
    /// Batches.
    Batches = 0x47,
}

/// Where the mark stands in a handle.
const MARK_SHIFT: u32 = 40;
const MARK_MASK: u64 = 0xFFFF_FF00_0000_0000;
const INDEX_BITS: u32 = 20;
const GENERATION_MASK: u64 = 0xF_FFFF;

/// The slots come in blocks that stay where they are: looking one up takes no lock but its own.
const BLOCK: usize = 1024;
const BLOCKS: usize = (1 << INDEX_BITS) / BLOCK;

/// Why a handle is not known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UnknownHandle {
    /// It was given back.
    Gone,
    /// It was never given out.
    Garbage,
}

struct HandleSlot<T> {
    entry: RwLock<Entry<T>>,
    /// What threads found there; changed under the lock of the entry.
    found: OnceLock<Box<Striped<RwLock<Found<T>>>>>,
}

struct Entry<T> {
    /// Which use of the slot this is.
    generation: u64,
    value: Option<Arc<T>>,
}

/// The generation, and the value under an owner of its own: threads do not fight over one count of owners.
type Found<T> = Option<(u64, Arc<OwnedByFew<T>>)>;

/// A value as some threads have it, in cache lines of its own.
#[repr(align(128))]
pub struct OwnedByFew<T> {
    value: Arc<T>,
}

impl<T> Deref for OwnedByFew<T> {
    type Target = T;
    fn deref(&self) -> &T {
        &self.value
    }
}

impl<T> HandleSlot<T> {
    fn new() -> Self {
        Self { entry: RwLock::new(Entry { generation: 0, value: None }), found: OnceLock::new() }
    }

    fn reading(&self) -> RwLockReadGuard<'_, Entry<T>> {
        self.entry.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn writing(&self) -> RwLockWriteGuard<'_, Entry<T>> {
        self.entry.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// The calling thread's own way to the value.
    fn get_often(&self, generation: u64) -> Result<Arc<OwnedByFew<T>>, UnknownHandle> {
        let found = self.found.get_or_init(Box::default).own();
        match &*found.read().unwrap_or_else(PoisonError::into_inner) {
            Some((of, value)) if *of == generation => return Ok(value.clone()),
            _ => {}
        }
        let entry = self.reading();
        let value = entry.get(generation)?;
        let made = Arc::new(OwnedByFew { value });
        *found.write().unwrap_or_else(PoisonError::into_inner) = Some((generation, made.clone()));
        Ok(made)
    }

    /// Takes the value out.
    fn take(&self, entry: &mut Entry<T>) -> Option<Arc<T>> {
        for found in self.found.get().iter().flat_map(|found| found.all()) {
            *found.write().unwrap_or_else(PoisonError::into_inner) = None;
        }
        entry.value.take()
    }

    /// Whether anybody beside the table has the value.
    fn is_used(&self) -> bool {
        let entry = self.reading();
        let mut owners = 1;
        for found in self.found.get().iter().flat_map(|found| found.all()) {
            if let Some((_, value)) = &*found.read().unwrap_or_else(PoisonError::into_inner) {
                owners += 1;
                if Arc::strong_count(value) > 1 {
                    return true;
                }
            }
        }
        entry.value.as_ref().is_some_and(|value| Arc::strong_count(value) > owners)
    }
}

impl<T> Entry<T> {
    fn get(&self, generation: u64) -> Result<Arc<T>, UnknownHandle> {
        match &self.value {
            Some(value) if self.generation == generation => Ok(value.clone()),
            _ => Err(UnknownHandle::Gone),
        }
    }
}

/// Slots that were made together.
type SlotBlock<T> = Box<[HandleSlot<T>]>;

/// Values by handle.
pub struct HandleTable<T> {
    mark: u64,
    blocks: Box<[OnceLock<SlotBlock<T>>]>,
    free: Mutex<FreeSlots>,
}

#[derive(Default)]
struct FreeSlots {
    given_back: Vec<usize>,
    used: usize,
}

impl<T> HandleTable<T> {
    pub fn new(kind: HandleKind) -> Self {
        Self {
            mark: (kind as u64) << MARK_SHIFT,
            blocks: (0..BLOCKS).map(|_| OnceLock::new()).collect(),
            free: Mutex::default(),
        }
    }

    /// Takes a value in; `None` if a million are in already.
    pub fn insert(&self, value: Arc<T>) -> Option<*mut c_void> {
        let index = {
            let mut free = lock(&self.free);
            match free.given_back.pop() {
                Some(index) => index,
                None if free.used < BLOCKS * BLOCK => {
                    free.used += 1;
                    free.used - 1
                }
                None => return None,
            }
        };
        let make = || (0..BLOCK).map(|_| HandleSlot::new()).collect();
        let mut entry = self.blocks[index / BLOCK].get_or_init(make)[index % BLOCK].writing();
        entry.generation = (entry.generation + 1) & GENERATION_MASK;
        entry.value = Some(value);
        Some((self.mark | entry.generation << INDEX_BITS | index as u64) as *mut c_void)
    }

    /// The value of a handle.
    pub fn get(&self, handle: *mut c_void) -> Result<Arc<T>, UnknownHandle> {
        let (slot, generation) = self.slot(handle)?;
        slot.reading().get(generation)
    }

    /// The value of a handle, for threads that ask again and again: they write no cache line that others look at.
    pub fn get_often(&self, handle: *mut c_void) -> Result<Arc<OwnedByFew<T>>, UnknownHandle> {
        let (slot, generation) = self.slot(handle)?;
        slot.get_often(generation)
    }

    /// Takes a value out.
    pub fn remove(&self, handle: *mut c_void) -> Result<Arc<T>, UnknownHandle> {
        let (slot, generation) = self.slot(handle)?;
        let mut entry = slot.writing();
        if entry.generation != generation {
            return Err(UnknownHandle::Gone);
        }
        let value = slot.take(&mut entry).ok_or(UnknownHandle::Gone)?;
        drop(entry);
        let index = (handle as u64 & ((1 << INDEX_BITS) - 1)) as usize;
        lock(&self.free).given_back.push(index);
        Ok(value)
    }

    fn slots(&self) -> impl Iterator<Item = &HandleSlot<T>> {
        self.blocks.iter().filter_map(OnceLock::get).flat_map(|block| block.iter())
    }

    /// Whether anybody has a value that is in the table.
    pub fn is_used(&self) -> bool {
        self.slots().any(HandleSlot::is_used)
    }

    /// Whether this is so for any value.
    pub fn any(&self, is: impl Fn(&Arc<T>) -> bool) -> bool {
        self.slots().any(|slot| slot.reading().value.as_ref().is_some_and(&is))
    }

    /// All values.
    pub fn all(&self) -> Vec<Arc<T>> {
        self.slots().filter_map(|slot| slot.reading().value.clone()).collect()
    }

    /// Takes all values out.
    pub fn clear(&self) -> Vec<Arc<T>> {
        let mut values = Vec::new();
        for (at, block) in self.blocks.iter().enumerate() {
            let Some(block) = block.get() else { continue };
            for (offset, slot) in block.iter().enumerate() {
                let taken = slot.take(&mut slot.writing());
                if let Some(value) = taken {
                    values.push(value);
                    let mut free = lock(&self.free);
                    free.given_back.push(at * BLOCK + offset);
                }
            }
        }
        values
    }

    fn slot(&self, handle: *mut c_void) -> Result<(&HandleSlot<T>, u64), UnknownHandle> {
        let handle = handle as u64;
        if handle & MARK_MASK != self.mark {
            return Err(UnknownHandle::Garbage);
        }
        let index = (handle & ((1 << INDEX_BITS) - 1)) as usize;
        let generation = handle >> INDEX_BITS & GENERATION_MASK;
        let block = self.blocks[index / BLOCK].get().ok_or(UnknownHandle::Garbage)?;
        Ok((&block[index % BLOCK], generation))
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn a_handle_is_good_until_it_is_given_back() {
        let table = HandleTable::new(HandleKind::Files);
        let first = table.insert(Arc::new(1)).unwrap();
        let second = table.insert(Arc::new(2)).unwrap();
        assert_ne!(first, second);
        assert_eq!(*table.get(first).unwrap(), 1);
        assert_eq!(*table.remove(first).unwrap(), 1);
        assert_eq!(table.get(first), Err(UnknownHandle::Gone));
        assert_eq!(table.remove(first), Err(UnknownHandle::Gone));
        let third = table.insert(Arc::new(3)).unwrap();
        assert_eq!(table.get(first), Err(UnknownHandle::Gone), "the slot is used again, the handle is not");
        assert_eq!((*table.get(second).unwrap(), *table.get(third).unwrap()), (2, 3));
    }

    #[test]
    fn garbage_is_told_from_what_was_given_back() {
        let table = HandleTable::<u8>::new(HandleKind::Files);
        for garbage in [0usize, 1, 0x7FFF_1234_5678, usize::MAX] {
            assert_eq!(table.get(garbage as *mut c_void), Err(UnknownHandle::Garbage), "{garbage:#x}");
        }
    }

    #[test]
    fn a_handle_of_another_table_is_garbage() {
        let (files, batches) = (HandleTable::new(HandleKind::Files), HandleTable::new(HandleKind::Batches));
        let (file, batch) = (files.insert(Arc::new(1)).unwrap(), batches.insert(Arc::new(2)).unwrap());
        assert_eq!(
            (files.get(batch), batches.get(file)),
            (Err(UnknownHandle::Garbage), Err(UnknownHandle::Garbage))
        );
    }

    #[test]
    fn what_threads_ask_for_often_goes_with_the_handle() {
        let table = HandleTable::new(HandleKind::Files);
        let value = Arc::new(7);
        let handle = table.insert(value.clone()).unwrap() as usize;
        let ask = || table.get_often(handle as *mut c_void);
        std::thread::scope(|scope| {
            (0..4).for_each(|_| {
                assert!(scope.spawn(|| ask().is_ok_and(|found| *found.value == 7)).join().unwrap());
            });
        });
        assert!(table.is_used(), "the test has it");
        let weak = Arc::downgrade(&value);
        drop(value);
        assert!(!table.is_used());
        let held = ask().unwrap();
        assert!(table.is_used());
        assert_eq!(*table.remove(handle as *mut c_void).unwrap(), 7);
        assert!(matches!(ask(), Err(UnknownHandle::Gone)) && weak.strong_count() == 1 && *held.value == 7);
        drop(held);
        assert_eq!(weak.strong_count(), 0, "nothing keeps it");
        let again = table.insert(Arc::new(8)).unwrap();
        assert!(matches!(ask(), Err(UnknownHandle::Gone)), "the slot is used again, the handle is not");
        assert_eq!(*table.get_often(again).unwrap().value, 8);
    }

    #[test]
    fn clearing_gives_everything_back() {
        let table = HandleTable::new(HandleKind::Files);
        let handles: Vec<_> = (0..3000).map(|value| table.insert(Arc::new(value)).unwrap()).collect();
        assert_eq!(table.clear().len(), 3000);
        assert!(handles.iter().all(|handle| table.get(*handle) == Err(UnknownHandle::Gone)));
        assert!(table.insert(Arc::new(0)).is_some());
    }
}
