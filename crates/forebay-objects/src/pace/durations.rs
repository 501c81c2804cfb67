//! How long ranges of an endpoint take: one that takes longer than nearly all others is asked for again.

use std::collections::VecDeque;
use std::sync::Mutex;
use std::time::Duration;

use crate::lock;

/// Ranges whose durations are kept.
const KEPT: usize = 256;
/// Fewest ranges that tell anything.
const LEAST: usize = 20;
/// Shorter ranges are never asked for again: another call costs as long.
const SHORTEST: Duration = Duration::from_millis(250);
/// One range of this number may be asked for again.
const SHARE: u64 = 20;

#[derive(Debug, Default)]
struct State {
    took: VecDeque<Duration>,
    ended: u64,
    again: u64,
}

/// Durations of the ranges that ended last.
#[derive(Debug, Default)]
pub(crate) struct Durations(Mutex<State>);

impl Durations {
    /// A range ended, whose bytes took that long without waits for memory.
    pub(crate) fn note(&self, took: Duration) {
        let mut state = lock(&self.0);
        if state.took.len() == KEPT {
            state.took.pop_front();
        }
        state.took.push_back(took);
        state.ended += 1;
    }

    /// Ranges that take longer are slow: the 99th percentile. `None`: too few have ended.
    pub(crate) fn slow(&self) -> Option<Duration> {
        let state = lock(&self.0);
        let mut all: Vec<_> = state.took.iter().copied().collect();
        drop(state);
        if all.len() < LEAST {
            return None;
        }
        all.sort_unstable();
        all.get(all.len() * 99 / 100).map(|slow| (*slow).max(SHORTEST))
    }

    /// Whether one more range may be asked for again. It counts as one.
    pub(crate) fn may_ask_again(&self) -> bool {
        let mut state = lock(&self.0);
        let may = (state.again + 1) * SHARE <= state.ended;
        state.again += u64::from(may);
        may
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_ranges_are_slow_and_fewer_are_asked_for_again() {
        let durations = Durations::default();
        assert_eq!((durations.slow(), durations.may_ask_again()), (None, false));
        for hundredth in 1..=100 {
            durations.note(Duration::from_millis(10 * hundredth));
        }
        assert_eq!(durations.slow(), Some(Duration::from_secs(1)));
        assert_eq!((0..100).filter(|_| durations.may_ask_again()).count(), 5);
        for _ in 0..KEPT {
            durations.note(Duration::from_millis(1));
        }
        assert_eq!(durations.slow(), Some(SHORTEST));
    }
}
