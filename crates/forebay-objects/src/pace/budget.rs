//! Pauses of an endpoint: a refusal slows all of its requests down.

use std::sync::Mutex;
use std::time::{Duration, Instant};

use forebay_remote::retry::RetryPauses;

use crate::lock;

/// The longest pause that a server may ask for.
const LONGEST: Duration = Duration::from_secs(20);
/// The first pause behind a broken connection, which is the connection's trouble in most cases.
const FIRST: Duration = Duration::from_millis(20);

#[derive(Debug)]
struct State {
    pauses: RetryPauses,
    until: Option<Instant>,
    /// Pauses so far, and how long they were.
    paused: (u64, Duration),
}

/// The pauses of an endpoint.
#[derive(Debug)]
pub(crate) struct Budget(Mutex<State>);

impl Budget {
    /// None yet.
    pub(crate) fn new() -> Self {
        Self(Mutex::new(State { pauses: RetryPauses::from(FIRST), until: None, paused: (0, Duration::ZERO) }))
    }

    /// A request was refused for the time being, or its connection broke: none is sent for a while, for which the server may have
    /// asked. Those that were under way meanwhile are one refusal.
    /// Whether it is the first of these.
    pub(crate) fn refused(&self, asked: Option<Duration>, now: Instant) -> bool {
        let mut state = lock(&self.0);
        let is_new = state.until.is_none_or(|until| until <= now);
        let own = if is_new { state.pauses.next_pause() } else { Duration::ZERO };
        let pause = own.max(asked.unwrap_or_default()).min(LONGEST);
        let before = state.until.map_or(Duration::ZERO, |until| until.saturating_duration_since(now));
        if pause > before {
            state.until = Some(now + pause);
            state.paused.0 += u64::from(is_new);
            state.paused.1 += pause.saturating_sub(before);
        }
        is_new
    }

    /// A request that was sent behind the last pause did well.
    pub(crate) fn good(&self, began: Instant) {
        let mut state = lock(&self.0);
        if state.until.is_some_and(|until| began >= until) {
            (state.until, state.pauses) = (None, RetryPauses::from(FIRST));
        }
    }

    /// Until when nothing is sent.
    pub(crate) fn until(&self, now: Instant) -> Option<Instant> {
        lock(&self.0).until.filter(|until| *until > now)
    }

    /// How many pauses there were, and how long in all.
    pub(crate) fn paused(&self) -> (u64, Duration) {
        lock(&self.0).paused
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusals_of_a_time_are_one_pause_and_a_good_answer_ends_them() {
        let (budget, now) = (Budget::new(), Instant::now());
        let at = |milliseconds| now + Duration::from_millis(milliseconds);
        for _ in 0..64 {
            budget.refused(None, now);
        }
        assert_eq!(budget.until(now), Some(at(20)));
        budget.good(now);
        assert_eq!(budget.until(at(19)), Some(at(20)), "it was sent before");
        budget.refused(None, at(20));
        assert_eq!(budget.until(at(20)), Some(at(60)));
        budget.refused(Some(Duration::from_secs(2)), at(30));
        assert_eq!(budget.until(at(60)), Some(at(2030)));
        assert_eq!(budget.paused(), (2, Duration::from_millis(2030)));
        budget.good(at(2030));
        budget.refused(None, at(3000));
        assert_eq!(budget.until(at(3000)), Some(at(3020)));
    }
}
