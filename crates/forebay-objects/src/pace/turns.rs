//! How many ranges are under way at an endpoint: as many as measuring in this process says.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, Weak};
use std::time::{Duration, Instant};

use super::Paced;
use crate::lock;

/// Ranges at first: a store gives 40 to 95 MB/s by a connection, and a server on this machine needs no more.
const FIRST: usize = 8;
/// The most: 100 Gbit/s by connections of 0.4.
pub(crate) const MOST_RANGES: usize = 256;
/// More ranges stay where the rate grows by this part; otherwise they only cost CPU.
const GAIN: f64 = 1.08;
/// How long the number stays behind a search.
const REST: Duration = Duration::from_secs(3);
/// Shortest time that a number is measured for. As many ranges as twice its own end in it, too.
const PERIOD: Duration = Duration::from_millis(40);

/// Ranges of an object: those under way, and those of them that do not wait for requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct UnderWay {
    pub(crate) open: usize,
    pub(crate) active: usize,
}

struct State {
    all: UnderWay,
    waiting: VecDeque<Weak<dyn Paced>>,
    rounds: Rounds,
}

/// The search for the best number.
#[derive(Debug)]
struct Rounds {
    limit: usize,
    /// Rates by the number before.
    before: Option<(usize, f64)>,
    rests_until: Option<Instant>,
    began: Option<Instant>,
    bytes: u64,
    ended: usize,
}

/// The turns of an endpoint.
pub(crate) struct Turns(Mutex<State>);

impl std::fmt::Debug for Turns {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Turns").field("limit", &self.limit()).finish_non_exhaustive()
    }
}

impl Turns {
    pub(crate) fn new() -> Self {
        let rounds =
            Rounds { limit: FIRST, before: None, rests_until: None, began: None, bytes: 0, ended: 0 };
        Self(Mutex::new(State { all: UnderWay::default(), waiting: VecDeque::new(), rounds }))
    }

    /// How many ranges may be under way.
    pub(crate) fn limit(&self) -> usize {
        lock(&self.0).rounds.limit
    }

    /// An object has other ranges under way than before.
    pub(crate) fn changed(&self, before: UnderWay, now: UnderWay) {
        let mut state = lock(&self.0);
        state.all.open = state.all.open + now.open - before.open;
        state.all.active = state.all.active + now.active - before.active;
    }

    /// Whether one more range may begin for requests; otherwise `waiting` goes on when one may.
    pub(crate) fn has_turn(&self, waiting: impl FnOnce() -> Weak<dyn Paced>) -> bool {
        let mut state = lock(&self.0);
        let has_one = state.all.active < state.rounds.limit;
        if !has_one {
            state.waiting.push_back(waiting());
        }
        has_one
    }

    /// Whether one more range may begin for promised bytes.
    pub(crate) fn may_begin_ahead(&self) -> bool {
        let state = lock(&self.0);
        state.waiting.is_empty() && state.all.open < state.rounds.limit
    }

    /// What waits longest, where it may go on.
    pub(crate) fn next(&self) -> Option<Arc<dyn Paced>> {
        let mut state = lock(&self.0);
        if state.all.active >= state.rounds.limit {
            return None;
        }
        while let Some(waiting) = state.waiting.pop_front() {
            if let Some(waiting) = waiting.upgrade() {
                return Some(waiting);
            }
        }
        None
    }

    /// A range has ended, for which these bytes came. Returns another number of ranges, if there is one.
    pub(crate) fn ended(&self, bytes: u64, now: Instant) -> Option<usize> {
        let mut state = lock(&self.0);
        let is_full = state.all.active + 1 >= state.rounds.limit;
        let before = state.rounds.limit;
        state.rounds.ended(bytes, is_full, now);
        (state.rounds.limit != before).then_some(state.rounds.limit)
    }

    /// The server has too much to do. Returns the number of ranges from now on.
    pub(crate) fn too_many(&self, now: Instant) -> usize {
        let mut state = lock(&self.0);
        let limit = (state.rounds.limit / 2).max(1);
        state.rounds.rest(limit, now);
        limit
    }
}

impl Rounds {
    fn rest(&mut self, limit: usize, now: Instant) {
        (self.limit, self.before, self.began) = (limit, None, None);
        self.rests_until = Some(now + REST);
    }

    fn begin(&mut self, now: Instant) {
        (self.began, self.bytes, self.ended) = (Some(now), 0, 0);
    }

    fn ended(&mut self, bytes: u64, is_full: bool, now: Instant) {
        if self.rests_until.is_some_and(|until| now < until) {
            return;
        }
        // Fewer ranges than there may be tell nothing.
        let Some(began) = self.began.filter(|_| is_full) else { return self.begin(now) };
        self.bytes += bytes;
        self.ended += 1;
        let took = now.saturating_duration_since(began);
        if took < PERIOD || self.ended < 2 * self.limit {
            return;
        }
        let rate = self.bytes as f64 / took.as_secs_f64();
        match self.before {
            Some((fewer, by_fewer)) if rate < by_fewer * GAIN => return self.rest(fewer, now),
            _ if self.limit >= MOST_RANGES => return self.rest(self.limit, now),
            _ => {}
        }
        // A second look begins below: what more connections gave may be gone.
        let from_rest = self.rests_until.take().is_some() && self.limit > 1;
        self.before = (!from_rest).then_some((self.limit, rate));
        self.limit = if from_rest { self.limit / 2 } else { self.limit * 2 };
        self.begin(now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The number that a server leads to whose rate grows up to `best` connections.
    fn found(best: usize) -> usize {
        let (turns, mut now) = (Turns::new(), Instant::now());
        for _ in 0..10_000 {
            let limit = turns.limit();
            turns.changed(UnderWay::default(), UnderWay { open: limit, active: limit });
            now += Duration::from_millis(40) / limit.min(best) as u32;
            turns.ended(8 << 20, now);
            turns.changed(UnderWay { open: limit, active: limit }, UnderWay::default());
        }
        turns.limit()
    }

    #[test]
    fn as_many_ranges_are_under_way_as_help() {
        for best in [1, 2, 16, 64, 500] {
            let limit = found(best);
            assert!((best / 2..=best * 2).contains(&limit) || limit == MOST_RANGES, "{limit} for {best}");
        }
    }

    #[test]
    fn refusals_halve_the_number_and_few_ranges_tell_nothing() {
        let (turns, now) = (Turns::new(), Instant::now());
        for second in 0..100 {
            assert_eq!(turns.ended(8 << 20, now + Duration::from_secs(second)), None);
        }
        assert_eq!([turns.too_many(now), turns.too_many(now), turns.too_many(now)], [4, 2, 1]);
        assert_eq!(turns.too_many(now), 1);
    }

    struct Waiter(Mutex<Vec<&'static str>>, &'static str);

    impl Paced for Waiter {
        fn go_on(self: Arc<Self>, _: Option<Instant>) {
            lock(&self.0).push(self.1);
        }
    }

    #[test]
    fn turns_have_bounds_and_go_to_those_that_wait_longest() {
        let turns = Turns::new();
        let none = UnderWay::default();
        let full = UnderWay { open: FIRST, active: FIRST };
        assert!(turns.has_turn(|| panic!("it need not wait")) && turns.may_begin_ahead());
        turns.changed(none, full);
        let waiters = ["first", "gone", "last"].map(|name| Arc::new(Waiter(Mutex::default(), name)));
        for waiter in &waiters {
            let weak: Weak<dyn Paced> = Arc::downgrade(&(waiter.clone() as Arc<dyn Paced>));
            assert!(!turns.has_turn(move || weak));
        }
        let [first, gone, last] = waiters;
        drop(gone);
        assert!(turns.next().is_none(), "as many as may are under way");
        let one_less = UnderWay { open: FIRST, active: FIRST - 1 };
        turns.changed(full, one_less);
        // Ranges that wait for requests have no turn, and nothing begins before those that wait for one.
        assert!(!turns.may_begin_ahead());
        for waiter in [first, last] {
            turns.next().unwrap().go_on(None);
            assert_eq!(*lock(&waiter.0), [waiter.1]);
        }
        assert!(turns.next().is_none() && !turns.may_begin_ahead(), "as many as may are open");
        turns.changed(one_less, none);
        assert!(turns.may_begin_ahead());
    }

    #[test]
    fn the_number_stays_within_its_bounds() {
        let (turns, mut now) = (Turns::new(), Instant::now());
        (0..100).for_each(|_| assert!(turns.too_many(now) >= 1));
        let mut most = 0;
        for _ in 0..10_000 {
            let limit = turns.limit();
            assert!((1..=MOST_RANGES).contains(&limit), "{limit}");
            most = most.max(limit);
            let all = UnderWay { open: limit, active: limit };
            turns.changed(UnderWay::default(), all);
            // Each of them has the same rate, however many there are.
            now += Duration::from_millis(400) / limit as u32;
            turns.ended(8 << 20, now);
            turns.changed(all, UnderWay::default());
        }
        assert_eq!(most, MOST_RANGES);
    }
}
