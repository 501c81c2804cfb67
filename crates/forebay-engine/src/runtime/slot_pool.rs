//! A bounded pool of what a thread needs for a transfer: a stream, an event, pinned memory.

use std::cell::Cell;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard};

/// A slot's place. Other threads use its neighbours: no two share a cache line.
#[repr(align(128))]
struct SlotPlace<S>(Mutex<Option<S>>);

/// Slots, made when they are first needed. A thread uses its last one again, so that threads do not meet.
pub(crate) struct SlotPool<S> {
    places: Box<[SlotPlace<S>]>,
    /// Places where the creation of a slot was tried.
    used: AtomicUsize,
    /// Which of [`LAST`] is the pool's.
    hint: usize,
}

/// Pools that a thread uses in turns, about: more share a hint.
const HINTS: usize = 8;
static POOLS: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    /// The place that this thread used last, by pool.
    static LAST: [Cell<usize>; HINTS] = const { [const { Cell::new(0) }; HINTS] };
}

impl<S> SlotPool<S> {
    /// Of at most `most` slots.
    pub(crate) fn new(most: usize) -> Self {
        let places = (0..most).map(|_| SlotPlace(Mutex::new(None))).collect();
        let hint = POOLS.fetch_add(1, Ordering::Relaxed) % HINTS;
        Self { places, used: AtomicUsize::new(0), hint }
    }

    fn remember(&self, at: usize) {
        LAST.with(|last| last[self.hint].set(at));
    }

    /// A place that no thread uses, and its number: of a slot that fits, or of none yet. `None` if there is neither.
    pub(crate) fn find(&self, fits: impl Fn(&S) -> bool) -> Option<(usize, MutexGuard<'_, Option<S>>)> {
        loop {
            let used = self.used.load(Ordering::Acquire);
            let last = LAST.with(|last| last[self.hint].get()).min(used);
            for at in (last..used).chain(0..last) {
                // A slot whose user panicked may have copies in flight: it is not used again.
                if let Ok(place) = self.places[at].0.try_lock()
                    && place.as_ref().is_none_or(&fits)
                {
                    self.remember(at);
                    return Some((at, place));
                }
            }
            // Another thread may take the new place first: then there is another, or none.
            let more = |used: usize| (used < self.places.len()).then_some(used + 1);
            let new = self.used.try_update(Ordering::AcqRel, Ordering::Acquire, more).ok()?;
            self.remember(new);
        }
    }

    /// Unused places, and their numbers: at most `most`, those without a slot first. The holder also uses whatever else is
    /// kept under that number. The thread's own place stays the one that it finds first.
    pub(crate) fn spare(&self, most: usize) -> Vec<(usize, MutexGuard<'_, Option<S>>)> {
        let used = self.used.load(Ordering::Acquire);
        let places = (used..self.places.len()).chain(0..used);
        places.filter_map(|at| Some((at, self.places[at].0.try_lock().ok()?))).take(most).collect()
    }

    /// The place with this number.
    pub(crate) fn place(&self, at: usize) -> &Mutex<Option<S>> {
        &self.places[at].0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_finds_its_last_slot_and_no_pool_grows_beyond_its_bound() {
        let (pool, beside) = (SlotPool::new(2), SlotPool::<u32>::new(2));
        let (first, mut held) = pool.find(|_: &u32| true).unwrap();
        *held = Some(1);
        let (second, mut other) = pool.find(|_| true).unwrap();
        *other = Some(2);
        assert!(first != second && pool.find(|_| true).is_none(), "both are in use");
        drop((held, other));
        assert_eq!(beside.find(|_| true).unwrap().0, 0, "the other pool's first");
        assert_eq!(pool.find(|_| true).unwrap().0, second, "used last");
        assert_eq!(pool.find(|slot| *slot == 1).unwrap().0, first);
        assert!(pool.find(|slot| *slot == 3).is_none(), "no room for another");
        let held = pool.find(|_| true).unwrap();
        assert_eq!(pool.spare(5).iter().map(|(at, _)| *at).collect::<Vec<_>>(), [1 - held.0]);
        drop(held);
        *pool.place(first).lock().unwrap() = None;
        assert_eq!(pool.find(|slot| *slot == 3).unwrap().0, first, "made anew");
    }
}
