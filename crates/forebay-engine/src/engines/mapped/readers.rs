//! Readers of windows: requests, and whether one thread makes them or several.

use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::time::Instant;

use super::region::WINDOW;
use crate::source::piece::Direction;
use crate::tuning::machine::BRIEF_WAIT;
use crate::tuning::mapped::ALONE_ASKS;

/// A request for windows: the properties that decide how they are registered.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reader {
    pub(super) direction: Direction,
    /// Of the whole request.
    pub(super) bytes: u64,
    /// Lanes or other callers copy, or did so a moment ago, whom a thread that registers keeps waiting.
    pub(super) others_copy: bool,
}

impl Reader {
    /// Whether the request keeps few lanes busy, as does nothing else.
    pub(super) fn keeps_lanes_idle(self) -> bool {
        !self.others_copy && self.bytes <= WINDOW
    }

    /// Bytes that count as asked for at once, where `all` were asked for of a window: a reader that is alone asks for it in pieces.
    pub(super) fn at_once(self, bytes: u64, all: u64) -> u64 {
        if self.keeps_lanes_idle() { all } else { bytes }
    }
}

/// The threads that ask for windows.
#[derive(Debug)]
pub(super) struct Readers {
    clock: Instant,
    /// Tells threads apart; 0: there was none.
    last: AtomicUsize,
    /// When the last one was another than before, in microseconds of the clock; 0: never.
    switched: AtomicU64,
    /// How often it has asked since.
    asks: AtomicU32,
}

impl Default for Readers {
    fn default() -> Self {
        Self {
            clock: Instant::now(),
            last: AtomicUsize::new(0),
            switched: AtomicU64::new(0),
            asks: AtomicU32::new(0),
        }
    }
}

impl Readers {
    /// The calling thread asks.
    pub(super) fn note_reader(&self) {
        thread_local! {
            static PLACE: u8 = const { 0 };
        }
        let this = PLACE.with(|place| std::ptr::from_ref(place).addr());
        let last = self.last.load(Ordering::Relaxed);
        if last == this {
            self.asks.fetch_add(1, Ordering::Relaxed);
            return;
        }
        self.last.store(this, Ordering::Relaxed);
        if last != 0 {
            self.switched.store(self.now(), Ordering::Relaxed);
            self.asks.store(0, Ordering::Relaxed);
        }
    }

    /// Whether several threads asked recently: by the clock or, where each read takes long, by the number of questions.
    pub(super) fn are_several(&self) -> bool {
        let switched = self.switched.load(Ordering::Relaxed);
        let is_long_ago = || self.now() >= switched + BRIEF_WAIT.as_micros() as u64;
        switched > 0 && (self.asks.load(Ordering::Relaxed) < ALONE_ASKS || !is_long_ago())
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
            readers.note_reader();
            assert!(!readers.are_several());
        }
        std::thread::scope(|scope| {
            scope.spawn(|| readers.note_reader());
        });
        assert!(readers.are_several());
        readers.note_reader();
        std::thread::sleep(BRIEF_WAIT / 4);
        assert!(readers.are_several());
        std::thread::sleep(BRIEF_WAIT);
        assert!(readers.are_several(), "it has asked once since");
        (0..ALONE_ASKS).for_each(|_| readers.note_reader());
        assert!(!readers.are_several());
    }
}
