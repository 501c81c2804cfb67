//! A caller's requests in flight.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

/// Transfers in flight: the oldest lands first, and each is found once by the end that it had in the recording.
pub(crate) struct Flights<T> {
    flying: VecDeque<T>,
    /// How many have landed: the number of the oldest in flight.
    landed: u64,
    /// Recorded ends with the numbers of their flights, the earliest first.
    ends: BinaryHeap<Reverse<(u64, u64)>>,
}

impl<T> Flights<T> {
    pub(crate) const fn new() -> Self {
        Self { flying: VecDeque::new(), landed: 0, ends: BinaryHeap::new() }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.flying.is_empty()
    }

    pub(crate) fn push(&mut self, flight: T, recorded_end: u64) {
        self.ends.push(Reverse((recorded_end, self.landed + self.flying.len() as u64)));
        self.flying.push_back(flight);
    }

    pub(crate) fn front(&self) -> Option<&T> {
        self.flying.front()
    }

    pub(crate) fn pop(&mut self) -> Option<T> {
        let oldest = self.flying.pop_front()?;
        self.landed += 1;
        if self.flying.is_empty() {
            self.ends.clear();
        }
        Some(oldest)
    }

    /// The next of those in flight whose recorded end is not after `time`. It stays in flight, and is not given again.
    pub(crate) fn next_ended(&mut self, time: u64) -> Option<&T> {
        loop {
            let Reverse((end, number)) = *self.ends.peek()?;
            if end > time {
                return None;
            }
            self.ends.pop();
            // Others have landed.
            if let Some(place) = number.checked_sub(self.landed) {
                return self.flying.get(place as usize);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;

    #[test]
    fn each_is_given_once_by_its_recorded_end() {
        let mut flights = Flights::new();
        for (name, end) in [("a", 30), ("b", 10), ("c", 20), ("d", 40)] {
            flights.push(name, end);
        }
        assert_eq!(flights.next_ended(9), None);
        assert_eq!(flights.next_ended(20), Some(&"b"));
        assert_eq!(flights.next_ended(20), Some(&"c"));
        assert_eq!(flights.next_ended(20), None);
        assert_eq!((flights.pop(), flights.pop()), (Some("a"), Some("b")));
        flights.push("e", 35);
        // Finished requests are left out.
        assert_eq!(flights.next_ended(50), Some(&"e"));
        assert_eq!(flights.next_ended(50), Some(&"d"));
        assert_eq!(flights.next_ended(50), None);
        assert_eq!((flights.front(), flights.is_empty()), (Some(&"c"), false));
    }

    /// One that lasts holds all others in flight: looking at each of them at each step would take hours.
    #[test]
    fn time_grows_with_the_number_in_flight() {
        let began = Instant::now();
        let mut flights = Flights::new();
        flights.push(0, u64::MAX);
        for step in 0..500_000 {
            flights.push(step, step);
            assert_eq!(flights.next_ended(step), Some(&step));
        }
        assert!(began.elapsed() < Duration::from_secs(10), "{:?}", began.elapsed());
    }
}
