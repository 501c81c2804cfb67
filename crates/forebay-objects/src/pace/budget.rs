//! Pauses of an endpoint: a refusal slows all of its requests down.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use forebay_remote::retry::RetryPauses;

use crate::lock;

/// The longest pause that a server may ask for.
const LONGEST: Duration = Duration::from_secs(20);
/// The first pause behind a broken connection, which is the connection's trouble in most cases.
const FIRST: Duration = Duration::from_millis(20);
/// A reply that has given bytes for this long is one of a server that is there.
const STEADY: Duration = Duration::from_millis(500);
/// How long a call may fail before it is an error: gateways and proxies restart within that.
pub(crate) const DEADLINE: Duration = Duration::from_mins(1);
/// The same where the server has never taken a connection: its name or port may be wrong.
pub(crate) const UNKNOWN_DEADLINE: Duration = Duration::from_secs(10);

/// The same of this process, in ms.
static OF_PROCESS: AtomicU64 = AtomicU64::new(DEADLINE.as_millis() as u64);

/// How long calls of this process may fail.
pub(crate) fn deadline() -> Duration {
    Duration::from_millis(OF_PROCESS.load(Relaxed))
}

/// Has calls fail earlier: for tests that wait for the error.
#[doc(hidden)]
pub fn give_up_after(deadline: Duration) {
    OF_PROCESS.store(deadline.as_millis() as u64, Relaxed);
}

#[derive(Debug)]
struct State {
    pauses: RetryPauses,
    until: Option<Instant>,
    /// Since when no request did well and no bytes came, and when the last one failed.
    failed: Option<(Instant, Instant)>,
    /// Pauses so far, and how long they were.
    paused: (u64, Duration),
}

/// The pauses of an endpoint.
#[derive(Debug)]
pub(crate) struct Budget {
    deadline: Duration,
    state: Mutex<State>,
    /// A request failed, and nothing has come since.
    is_failing: AtomicBool,
}

impl Budget {
    /// None yet. Calls may fail for so long.
    pub(crate) fn new(deadline: Duration) -> Self {
        let pauses = RetryPauses::from(FIRST);
        let state = State { pauses, until: None, failed: None, paused: (0, Duration::ZERO) };
        Self { deadline, state: Mutex::new(state), is_failing: AtomicBool::new(false) }
    }

    /// Whether a call that may fail for this long, and has failed since then, is sent again, to a server that has taken connections or
    /// not. Where nothing did well meanwhile, the endpoint's own failures count, so that the next calls to a server that is gone do not each wait as long as the first one.
    pub(crate) fn goes_on(&self, deadline: Duration, since: Instant, now: Instant, is_known: bool) -> bool {
        let of_endpoint = lock(&self.state).failed.map_or(now, |(first, _)| first);
        let deadline = if is_known { deadline } else { deadline.min(UNKNOWN_DEADLINE) };
        let deadline = deadline.min(self.deadline);
        now.saturating_duration_since(since.min(of_endpoint)) < deadline
    }

    /// A request was refused for the time being, or its connection broke: none is sent for a while, for which the server may have
    /// asked. Those that were under way meanwhile are one refusal.
    /// Whether it is the first of these.
    pub(crate) fn refused(&self, asked: Option<Duration>, now: Instant) -> bool {
        let mut state = lock(&self.state);
        // Failures of long ago are not those of this time.
        let recent = state.failed.filter(|(_, last)| now.saturating_duration_since(*last) < DEADLINE);
        state.failed = Some((recent.map_or(now, |(first, _)| first), now));
        self.is_failing.store(true, Relaxed);
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

    /// A request did well. One that was sent behind the last pause ends the pauses.
    pub(crate) fn good(&self, began: Instant) {
        self.is_there();
        let mut state = lock(&self.state);
        if state.until.is_some_and(|until| began >= until) {
            (state.until, state.pauses) = (None, RetryPauses::from(FIRST));
        }
    }

    /// Bytes came of a reply whose first came then: where it has given some for a while, the server is there, whichever connections
    /// broke before. Called with each piece.
    pub(crate) fn bytes_came(&self, first: Instant) {
        if self.is_failing.load(Relaxed) && first.elapsed() >= STEADY {
            self.is_there();
        }
    }

    fn is_there(&self) {
        self.is_failing.store(false, Relaxed);
        lock(&self.state).failed = None;
    }

    /// Until when nothing is sent.
    pub(crate) fn until(&self, now: Instant) -> Option<Instant> {
        lock(&self.state).until.filter(|until| *until > now)
    }

    /// How many pauses there were, and how long in all.
    pub(crate) fn paused(&self) -> (u64, Duration) {
        lock(&self.state).paused
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusals_of_a_time_are_one_pause_and_a_good_answer_ends_them() {
        let (budget, now) = (Budget::new(DEADLINE), Instant::now());
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

    #[test]
    fn bytes_that_come_between_two_failures_keep_the_server_there() {
        let (budget, now) = (Budget::new(DEADLINE), Instant::now());
        let (second, third) = (now + Duration::from_secs(1), now + Duration::from_millis(1020));
        budget.refused(None, now);
        // A server that breaks each connection behind some bytes is gone, too.
        budget.bytes_came(Instant::now());
        assert!(!budget.goes_on(Duration::from_secs(1), second, second, true));
        budget.bytes_came(now.checked_sub(STEADY).unwrap());
        budget.refused(None, second);
        assert!(budget.goes_on(Duration::from_secs(1), second, second, true));
        // Pauses grow all the same.
        assert_eq!(budget.until(second), Some(second + Duration::from_millis(40)));
        budget.refused(None, third);
        let (long, later) = (Duration::from_secs(1), second + Duration::from_secs(1));
        assert!(!budget.goes_on(long, later, later, true));
    }

    #[test]
    fn calls_go_on_until_they_or_all_calls_have_failed_for_the_deadline() {
        let (budget, now) = (Budget::new(DEADLINE), Instant::now());
        let at = |seconds| now + Duration::from_secs(seconds);
        for second in [0, 20, 40, 59] {
            budget.refused(None, at(second));
            assert!(budget.goes_on(DEADLINE, now, at(second), true), "{second}");
        }
        budget.refused(None, at(60));
        assert!(
            !budget.goes_on(DEADLINE, now, at(60), true) && !budget.goes_on(DEADLINE, now, at(10), false)
        );
        assert!(!budget.goes_on(DEADLINE, at(60), at(60), true), "the endpoint has failed for as long");
        // One that fails alone.
        budget.good(at(70));
        budget.refused(None, at(71));
        assert!(
            budget.goes_on(DEADLINE, at(71), at(71), true) && !budget.goes_on(DEADLINE, now, at(71), true)
        );
        // Nothing was sent for a while.
        budget.refused(None, at(200));
        assert!(budget.goes_on(DEADLINE, at(200), at(200), true));
    }
}
