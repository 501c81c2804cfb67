//! A value that many threads write at once: each has its own part, so that they do not share cache lines.

use std::cell::Cell;
use std::ops::Deref;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Parts of a [`Striped`] value. More threads than this share some.
pub const STRIPES: usize = 16;

/// A value with cache lines of its own (two: lines are fetched in pairs).
#[derive(Debug, Default)]
#[repr(align(128))]
pub struct OwnLine<T>(pub T);

impl<T> Deref for OwnLine<T> {
    type Target = T;
    fn deref(&self) -> &T {
        &self.0
    }
}

/// A value in parts, of which a thread uses one.
#[derive(Debug, Default)]
pub struct Striped<T>([OwnLine<T>; STRIPES]);

impl<T> Striped<T> {
    /// The calling thread's part.
    #[inline]
    pub fn own(&self) -> &T {
        &self.0[stripe()]
    }

    /// All parts.
    pub fn all(&self) -> impl Iterator<Item = &T> {
        self.0.iter().map(Deref::deref)
    }
}

/// The calling thread's number among the stripes.
#[inline]
fn stripe() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    thread_local!(static OWN: Cell<usize> = const { Cell::new(usize::MAX) });
    OWN.with(|own| {
        if own.get() == usize::MAX {
            own.set(NEXT.fetch_add(1, Ordering::Relaxed) % STRIPES);
        }
        own.get()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_count_in_lines_of_their_own() {
        let counts = Striped::<AtomicUsize>::default();
        let place = |counts: &Striped<AtomicUsize>| {
            counts.own().fetch_add(1, Ordering::Relaxed);
            std::ptr::from_ref(counts.own()) as usize
        };
        let count = || {
            let first = place(&counts);
            assert_eq!(place(&counts), first, "a thread keeps its part");
            first
        };
        let threads: Vec<usize> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..4).map(|_| scope.spawn(count)).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        assert_eq!(counts.all().map(|part| part.load(Ordering::Relaxed)).sum::<usize>(), 8);
        let near = |a: &usize, b: &usize| a != b && a.abs_diff(*b) < 128;
        assert!(!threads.iter().any(|a| threads.iter().any(|b| near(a, b))), "{threads:?}");
    }
}
