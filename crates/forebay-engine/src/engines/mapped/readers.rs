//! Whether one thread asks, or several do.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Instant;

use crate::tuning::mapped::ALONE;

/// The threads that ask for windows.
#[derive(Debug)]
pub(super) struct Readers {
    clock: Instant,
    /// Tells threads apart; 0: there was none.
    last: AtomicUsize,
    /// When the last one was another than before, in microseconds of the clock; 0: never.
    switched: AtomicU64,
}

impl Default for Readers {
    fn default() -> Self {
        Self { clock: Instant::now(), last: AtomicUsize::new(0), switched: AtomicU64::new(0) }
    }
}

impl Readers {
    /// The calling thread asks.
    pub(super) fn hear(&self) {
        thread_local! {
            static PLACE: u8 = const { 0 };
        }
        let this = PLACE.with(|place| std::ptr::from_ref(place).addr());
        let last = self.last.load(Ordering::Relaxed);
        if last != this {
            self.last.store(this, Ordering::Relaxed);
            if last != 0 {
                self.switched.store(self.now(), Ordering::Relaxed);
            }
        }
    }

    /// Whether several threads asked of late.
    pub(super) fn are_several(&self) -> bool {
        let switched = self.switched.load(Ordering::Relaxed);
        switched > 0 && self.now() < switched + ALONE.as_micros() as u64
    }

    fn now(&self) -> u64 {
        self.clock.elapsed().as_micros() as u64 + 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_thread_is_alone_until_another_asks_and_again_after_a_while() {
        let readers = Readers::default();
        for _ in 0..3 {
            readers.hear();
            assert!(!readers.are_several());
        }
        std::thread::scope(|scope| {
            scope.spawn(|| readers.hear());
        });
        assert!(readers.are_several());
        readers.hear();
        std::thread::sleep(ALONE / 4);
        assert!(readers.are_several());
        std::thread::sleep(ALONE);
        assert!(!readers.are_several());
    }
}
