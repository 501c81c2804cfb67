//! The time that readers of a file may lose to registrations of its pages: a small part of their reading time, saved
//! from read to read. All amounts are bytes that lanes would have brought in that time.

use std::time::Duration;

use super::pace::RegisterPace;
use crate::tuning::mapped::{LOSS, UNKNOWN_PACE};

/// The savings of the readers of one file.
#[derive(Debug, Default)]
pub(super) struct Credit {
    saved: f64,
    /// For windows that are about to be registered.
    promised: f64,
    /// Pinned bytes that are asked for and not copied yet: while the device copies them a registration costs nobody anything.
    cover: f64,
}

impl Credit {
    /// Bytes were asked for of a file of `len` bytes. What all of it earns in one pass is the most that is saved: no
    /// pass loses the savings of many.
    pub(super) fn earn(&mut self, bytes: u64, len: u64) {
        let most = most(len);
        if self.saved < most {
            self.saved = (self.saved + bytes as f64 * LOSS).min(most);
        }
    }

    /// The device is to copy pinned bytes.
    pub(super) fn cover(&mut self, bytes: u64) {
        self.cover += bytes as f64;
    }

    /// It has copied them.
    pub(super) fn uncover(&mut self, bytes: u64) {
        self.cover = (self.cover - bytes as f64).max(0.0);
    }

    /// Reserves the cost of a window, if the savings suffice.
    pub(super) fn promise(&mut self, cost: f64) -> bool {
        if cost > self.saved - self.promised + self.cover {
            return false;
        }
        let covered = cost.min(self.cover);
        self.cover -= covered;
        self.saved += covered;
        self.promised += cost;
        true
    }

    /// A window with a reserved cost is registered, or will not be.
    pub(super) fn release(&mut self, promised: f64) {
        self.promised -= promised;
    }

    /// Its real cost.
    pub(super) fn charge(&mut self, cost: f64) {
        self.saved -= cost;
    }
}

/// The most that readers of a file of `len` bytes save.
pub(super) fn most(len: u64) -> f64 {
    len as f64 * LOSS
}

/// The time in which bytes are registered at this pace.
pub(super) fn expected(bytes: u64, pace: RegisterPace) -> Duration {
    let nanos = bytes as f64 / pace.gb_per_second().unwrap_or(UNKNOWN_PACE);
    Duration::from_nanos(nanos as u64)
}

/// The cost of a registration of that time for readers who get `lanes` GB/s without it, and `spared` bytes of theirs in
/// place for it.
pub(super) fn cost(took: Duration, lanes: f64, spared: u64) -> f64 {
    (took.as_nanos() as f64 * lanes - spared as f64).max(0.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engines::mapped::region::WINDOW;
    use crate::tuning::mapped::{AHEAD, PULLED_EARNS};

    const LEN: u64 = 11_300_000_000;
    /// Windows that one request of a load asks for.
    const GROUP: usize = 8;

    fn pace_of(gb_per_second: f64) -> RegisterPace {
        let mut pace = RegisterPace::default();
        for _ in 0..2 {
            pace.learn(WINDOW, Duration::from_nanos((WINDOW as f64 / gb_per_second) as u64));
        }
        pace
    }

    /// A loop over a file on a machine: GB/s of lanes, of the link, of registering. Windows register one after the other while the
    /// device copies the pinned part; no lane copies meanwhile.
    struct Loop {
        lanes: f64,
        link: f64,
        pages: f64,
        /// By how much registering is slower than at the first measurement.
        drag: f64,
        credit: Credit,
        pinned: Vec<bool>,
    }

    impl Loop {
        fn new(lanes: f64, link: f64, pages: f64) -> Self {
            let pinned = vec![false; LEN.div_ceil(WINDOW) as usize];
            Self { lanes, link, pages, drag: 1.0, credit: Credit::default(), pinned }
        }

        /// The time of a pass, as a part of one by lanes alone.
        fn pass(&mut self, is_first: bool) -> f64 {
            let (least, pace) = (self.lanes * AHEAD, pace_of(self.pages));
            let (mut in_place, mut staged, mut registering) = (0.0, 0.0, 0.0);
            for group in self.pinned.chunks_mut(GROUP) {
                self.credit.earn(group.len() as u64 * WINDOW, LEN);
                self.credit.cover(group.iter().filter(|pinned| **pinned).count() as u64 * WINDOW);
                for pinned in group {
                    let price = cost(expected(WINDOW, pace), least, WINDOW);
                    if !*pinned && !is_first && self.credit.promise(price) {
                        let took = WINDOW as f64 / self.pages * self.drag;
                        self.credit.release(price);
                        self.credit.charge(cost(Duration::from_nanos(took as u64), least, WINDOW));
                        (*pinned, registering) = (true, registering + took);
                    }
                    *(if *pinned { &mut in_place } else { &mut staged }) += WINDOW as f64;
                }
            }
            self.credit.uncover(LEN);
            let time = registering.max(in_place / self.link) + staged / self.lanes;
            time * self.lanes / (in_place + staged)
        }

        /// The same of callers who read piece by piece. While a window is registered they get only what they read in place.
        fn pass_of_callers(&mut self, is_first: bool) -> f64 {
            let (least, bytes) = (self.lanes * AHEAD, WINDOW as f64);
            let (count, mut time) = (self.pinned.len(), 0.0);
            for at in 0..count {
                self.credit.earn(if self.pinned[at] { PULLED_EARNS * WINDOW } else { WINDOW }, LEN);
                time += bytes / if self.pinned[at] { self.link } else { self.lanes };
                let (next, took) = ((at + 1) % count, expected(WINDOW, pace_of(self.pages)));
                let price = cost(took, least, 0);
                if !is_first && !self.pinned[next] && self.credit.promise(price) {
                    let nanos = took.as_nanos() as f64;
                    let pulled = if self.pinned[at] { (nanos * self.link).min(bytes) } else { 0.0 };
                    self.credit.release(price);
                    self.credit.charge(cost(took, least, pulled as u64));
                    self.pinned[next] = true;
                    time += nanos - pulled / self.link;
                }
            }
            time * self.lanes / (bytes * count as f64)
        }

        /// Passes until all is in place. No one of them is much slower than by lanes, nor are all together.
        #[track_caller]
        fn run(self) -> usize {
            self.run_by(Self::pass)
        }

        #[track_caller]
        fn run_by(mut self, pass_of: impl Fn(&mut Self, bool) -> f64) -> usize {
            let mut sum = 0.0;
            for pass in 1..200 {
                if self.pinned.iter().all(|pinned| *pinned) {
                    return pass;
                }
                let took = pass_of(&mut self, pass == 1);
                sum += took;
                assert!(took <= 1.0 / 0.9, "pass {pass}: {took}");
                assert!(pass < 4 || sum <= 1.05 * pass as f64, "{pass} passes: {sum}");
            }
            panic!("never in place");
        }
    }

    #[test]
    fn a_loop_is_in_place_by_its_sixth_pass_where_pages_register_at_30_gb_a_second() {
        for lanes in [30.0, 43.0, 50.0] {
            for pages in [30.0, 36.0, 45.0, 60.0] {
                let passes = Loop::new(lanes, 52.0, pages).run();
                assert!(passes <= 6, "{lanes} {pages}: {passes}");
            }
        }
    }

    #[test]
    fn slow_pages_come_into_place_when_that_was_saved() {
        let passes = [20.0, 14.0, 10.0].map(|pages| Loop::new(43.0, 52.0, pages).run());
        assert!(passes.is_sorted() && passes[2] <= 20, "{passes:?}");
    }

    #[test]
    fn callers_come_into_place_without_a_slow_pass() {
        let passes =
            [54.0, 45.0, 30.0].map(|pages| Loop::new(45.0, 52.0, pages).run_by(Loop::pass_of_callers));
        assert!(passes.is_sorted() && passes[2] <= 20, "{passes:?}");
    }

    #[test]
    fn what_registering_costs_indeed_is_charged() {
        let slower = Loop { drag: 1.5, ..Loop::new(43.0, 52.0, 36.0) }.run();
        assert!((5..=16).contains(&slower), "{slower}");
    }

    #[test]
    fn many_passes_in_lanes_do_not_pay_for_a_slow_one() {
        let mut saved = Loop::new(43.0, 52.0, 30.0);
        for _ in 0..50 {
            saved.credit.earn(LEN, LEN);
        }
        assert!(saved.pass(false) <= 1.0 / 0.9);
    }

    #[test]
    fn nothing_is_promised_twice() {
        let mut credit = Credit::default();
        credit.earn(LEN, LEN);
        let cost = LEN as f64 * LOSS * 0.6;
        assert!(credit.promise(cost) && !credit.promise(cost));
        credit.release(cost);
        assert!(credit.promise(cost), "it was given up, and cost nothing");
        credit.charge(cost);
        credit.release(cost);
        assert!(!credit.promise(cost), "it was paid");
        credit.cover(cost as u64);
        assert!(credit.promise(cost) && !credit.promise(cost), "the device copies meanwhile");
        credit.uncover(LEN);
    }
}
