//! Handles that programs hold: checked at each use, so that one that was given back is told from garbage.

use std::ffi::c_void;
use std::sync::{Arc, Mutex, OnceLock, PoisonError, RwLock};

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
    /// Which use of the slot this is.
    generation: u64,
    value: Option<Arc<T>>,
}

/// Slots that were made together.
type SlotBlock<T> = Box<[RwLock<HandleSlot<T>>]>;

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
            let mut free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
            match free.given_back.pop() {
                Some(index) => index,
                None if free.used < BLOCKS * BLOCK => {
                    free.used += 1;
                    free.used - 1
                }
                None => return None,
            }
        };
        let block = self.blocks[index / BLOCK].get_or_init(|| {
            (0..BLOCK).map(|_| RwLock::new(HandleSlot { generation: 0, value: None })).collect()
        });
        let mut slot = block[index % BLOCK].write().unwrap_or_else(PoisonError::into_inner);
        slot.generation = (slot.generation + 1) & GENERATION_MASK;
        slot.value = Some(value);
        Some((self.mark | slot.generation << INDEX_BITS | index as u64) as *mut c_void)
    }

    /// The value of a handle.
    pub fn get(&self, handle: *mut c_void) -> Result<Arc<T>, UnknownHandle> {
        let (slot, generation) = self.slot(handle)?;
        let slot = slot.read().unwrap_or_else(PoisonError::into_inner);
        match &slot.value {
            Some(value) if slot.generation == generation => Ok(value.clone()),
            _ => Err(UnknownHandle::Gone),
        }
    }

    /// Takes a value out.
    pub fn remove(&self, handle: *mut c_void) -> Result<Arc<T>, UnknownHandle> {
        let (slot, generation) = self.slot(handle)?;
        let mut slot = slot.write().unwrap_or_else(PoisonError::into_inner);
        if slot.generation != generation {
            return Err(UnknownHandle::Gone);
        }
        let value = slot.value.take().ok_or(UnknownHandle::Gone)?;
        drop(slot);
        let index = (handle as u64 & ((1 << INDEX_BITS) - 1)) as usize;
        self.free.lock().unwrap_or_else(PoisonError::into_inner).given_back.push(index);
        Ok(value)
    }

    /// Whether this is so for any value.
    pub fn any(&self, is: impl Fn(&Arc<T>) -> bool) -> bool {
        let blocks = self.blocks.iter().filter_map(OnceLock::get);
        blocks
            .flat_map(|block| block.iter())
            .any(|slot| slot.read().unwrap_or_else(PoisonError::into_inner).value.as_ref().is_some_and(&is))
    }

    /// All values.
    pub fn all(&self) -> Vec<Arc<T>> {
        let blocks = self.blocks.iter().filter_map(OnceLock::get);
        let slots = blocks.flat_map(|block| block.iter());
        slots.filter_map(|slot| slot.read().unwrap_or_else(PoisonError::into_inner).value.clone()).collect()
    }

    /// Takes all values out.
    pub fn clear(&self) -> Vec<Arc<T>> {
        let mut values = Vec::new();
        for (at, block) in self.blocks.iter().enumerate() {
            let Some(block) = block.get() else { continue };
            for (offset, slot) in block.iter().enumerate() {
                let taken = slot.write().unwrap_or_else(PoisonError::into_inner).value.take();
                if let Some(value) = taken {
                    values.push(value);
                    let mut free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
                    free.given_back.push(at * BLOCK + offset);
                }
            }
        }
        values
    }

    fn slot(&self, handle: *mut c_void) -> Result<(&RwLock<HandleSlot<T>>, u64), UnknownHandle> {
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
    fn clearing_gives_everything_back() {
        let table = HandleTable::new(HandleKind::Files);
        let handles: Vec<_> = (0..3000).map(|value| table.insert(Arc::new(value)).unwrap()).collect();
        assert_eq!(table.clear().len(), 3000);
        assert!(handles.iter().all(|handle| table.get(*handle) == Err(UnknownHandle::Gone)));
        assert!(table.insert(Arc::new(0)).is_some());
    }
}
