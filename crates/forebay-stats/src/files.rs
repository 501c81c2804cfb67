//! The files that took the longest.

use std::sync::atomic::{AtomicU64, Ordering::Acquire, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, TryLockError};

use crate::layout::{CounterRegion, FILES, FileSums, cut};

/// An open file's own account; the owner of the file keeps it beside the descriptor.
#[derive(Debug)]
pub struct FileCounter {
    name: Box<str>,
    /// The place in the list (+ 1, upper 16 bits) and the number of its text then; 0 if it has none.
    place: AtomicU64,
    /// The counts while it had no place.
    apart: [AtomicU64; 4],
}

impl FileCounter {
    /// An account under this name, usually the path.
    pub fn new(name: &str) -> Self {
        Self {
            name: cut(name, 240).into(),
            place: AtomicU64::new(0),
            apart: [const { AtomicU64::new(0) }; 4],
        }
    }

    /// The name that it is listed under.
    pub fn name(&self) -> &str {
        &self.name
    }
}

/// The owners of the list's places.
pub(crate) struct Files(Mutex<[Option<Box<str>>; FILES]>);

type Live = CounterRegion<AtomicU64>;

impl Files {
    pub(crate) const fn new() -> Self {
        Self(Mutex::new([const { None }; FILES]))
    }

    pub(crate) fn count(&self, region: &Live, shard: usize, file: &FileCounter, bytes: u64, nanos: u64) {
        let place = file.place.load(Relaxed);
        if let Some(slot) = slot(place)
            && region.files[slot].done.load(Relaxed) == place & NUMBER_MASK
        {
            add(&region.file_sums[shard][slot], bytes, nanos);
            return;
        }
        let [ops, all_bytes, all_nanos, max] = &file.apart;
        let count = ops.fetch_add(1, Relaxed) + 1;
        all_bytes.fetch_add(bytes, Relaxed);
        all_nanos.fetch_add(nanos, Relaxed);
        max.fetch_max(nanos, Relaxed);
        // Asking for a place costs; a file that was refused one asks more and more rarely.
        if count.is_power_of_two() {
            self.ask(region, file);
        }
    }

    /// Gives the file a place if one is free, or if it took longer than another.
    fn ask(&self, region: &Live, file: &FileCounter) {
        let Some(mut names) = self.lock() else { return };
        let known = names.iter().position(|name| name.as_deref() == Some(&*file.name));
        let slot = match known.or_else(|| names.iter().position(Option::is_none)) {
            Some(slot) => slot,
            None => match least(region) {
                (slot, nanos) if nanos < file.apart[2].load(Relaxed) => slot,
                _ => {
                    region.rare.files_left_out.store(1, Relaxed);
                    return;
                }
            },
        };
        if known.is_none() {
            if names[slot].is_some() {
                region.rare.files_left_out.store(1, Relaxed);
            }
            for sums in &region.file_sums {
                let FileSums { ops, bytes, nanos, max_nanos } = &sums[slot];
                for word in [ops, bytes, nanos, max_nanos] {
                    word.store(0, Relaxed);
                }
            }
            region.files[slot].write(&file.name);
            names[slot] = Some(file.name.clone());
        }
        let [ops, bytes, nanos, max] = file.apart.each_ref().map(|word| word.swap(0, Relaxed));
        let sums = &region.file_sums[0][slot];
        sums.ops.fetch_add(ops, Relaxed);
        sums.bytes.fetch_add(bytes, Relaxed);
        sums.nanos.fetch_add(nanos, Relaxed);
        sums.max_nanos.fetch_max(max, Relaxed);
        let number = region.files[slot].done.load(Acquire) & NUMBER_MASK;
        file.place.store((slot as u64 + 1) << 48 | number, Relaxed);
    }

    /// None if another thread is at it: the next request asks again.
    fn lock(&self) -> Option<MutexGuard<'_, [Option<Box<str>>; FILES]>> {
        match self.0.try_lock() {
            Ok(names) => Some(names),
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }
}

const NUMBER_MASK: u64 = (1 << 48) - 1;

fn slot(place: u64) -> Option<usize> {
    ((place >> 48) as usize).checked_sub(1)
}

fn add(sums: &FileSums<AtomicU64>, bytes: u64, nanos: u64) {
    sums.ops.fetch_add(1, Relaxed);
    sums.bytes.fetch_add(bytes, Relaxed);
    sums.nanos.fetch_add(nanos, Relaxed);
    if sums.max_nanos.load(Relaxed) < nanos {
        sums.max_nanos.fetch_max(nanos, Relaxed);
    }
}

/// The listed file that took the least time so far.
fn least(region: &Live) -> (usize, u64) {
    let nanos = |slot: usize| region.file_sums.iter().map(|sums| sums[slot].nanos.load(Relaxed)).sum::<u64>();
    (0..FILES).map(|slot| (slot, nanos(slot))).min_by_key(|(_, nanos)| *nanos).unwrap_or((0, u64::MAX))
}
