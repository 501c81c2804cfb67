//! How many lanes work at once: learnt from how fast bytes come, by kind of source.
//!
//! [`WidthSearch`] is arithmetic: it takes rates and names widths. [`Meter`] feeds it from the lanes' own counts while they
//! work.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use crate::runtime::lock;
use crate::tuning::width::{GAIN, MIN_WORKS, PERIODS, SEARCH_INTERVAL};

/// What a width is learnt for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SourceKind {
    /// Pages of the page cache.
    Cache,
    /// Pages of memory files.
    Memory,
    /// A drive, by O_DIRECT.
    Drive,
    /// Requests to a server.
    Server,
    /// Writes, wherever to.
    Write,
}

impl SourceKind {
    pub(crate) const ALL: [Self; 5] = [Self::Cache, Self::Memory, Self::Drive, Self::Server, Self::Write];

    /// Its name in reports.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Cache => "page cache",
            Self::Memory => "tmpfs",
            Self::Drive => "drive",
            Self::Server => "server",
            Self::Write => "writes",
        }
    }
}

/// The experiment under way.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Trial {
    /// The rate at this width is to be known first.
    Base,
    /// More lanes than `from`, where the rate was `rate`.
    More { from: usize, rate: f64 },
    /// Fewer than `from`; `rate` is the best rate.
    Fewer { from: usize, rate: f64 },
    /// None: `rate` is usual, for `since`. The last periods, `other` of them, told something else.
    None { rate: f64, since: Duration, other: u32 },
}

/// Searches for the fewest lanes that reach the best rate.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WidthSearch {
    width: usize,
    most: usize,
    trial: Trial,
}

impl WidthSearch {
    pub(crate) const fn new(start: usize, most: usize) -> Self {
        Self { width: if start < most { start } else { most }, most, trial: Trial::Base }
    }

    pub(crate) const fn width(&self) -> usize {
        self.width
    }

    /// The rate that is usual, once the width is found.
    pub(crate) const fn found(&self) -> Option<f64> {
        if let Trial::None { rate, .. } = self.trial { Some(rate) } else { None }
    }

    /// Another number of lanes may work from now on: the search begins again.
    fn allow(&mut self, most: usize) {
        *self = Self::new(self.width, most);
    }

    /// Takes the rate of a period at the present width; returns the width of the next.
    pub(crate) fn observe(&mut self, observed: f64, took: Duration) -> usize {
        match self.trial {
            Trial::Base => self.more(observed),
            Trial::More { from, rate } if observed >= rate * (1.0 + GAIN) => {
                debug_assert!(self.width > from);
                self.more(observed);
            }
            // Too many: half as many more.
            Trial::More { from, .. } if self.width > from + 1 => self.width = from + (self.width - from) / 2,
            Trial::More { from, rate } => {
                self.width = from;
                self.fewer(rate);
            }
            // Fewer lanes are not faster: the machine has changed.
            Trial::Fewer { rate, .. } if observed > rate * (1.0 + GAIN) => self.more(observed),
            Trial::Fewer { rate, .. } if observed >= rate * (1.0 - GAIN / 2.0) => {
                self.fewer(rate.max(observed));
            }
            Trial::Fewer { from, rate } => {
                self.width = from;
                self.stay(rate);
            }
            Trial::None { rate, since, other } => self.watch(observed, (rate, since + took, other)),
        }
        self.width
    }

    /// Tries more lanes: a quarter more.
    fn more(&mut self, rate: f64) {
        let from = self.width;
        self.width = (from + (from / 4).max(1)).min(self.most);
        if self.width > from {
            self.trial = Trial::More { from, rate };
        } else {
            self.fewer(rate);
        }
    }

    /// Tries one lane less.
    fn fewer(&mut self, rate: f64) {
        let from = self.width;
        if from > 1 {
            self.width = from - 1;
            self.trial = Trial::Fewer { from, rate };
        } else {
            self.stay(rate);
        }
    }

    fn stay(&mut self, rate: f64) {
        self.trial = Trial::None { rate, since: Duration::ZERO, other: 0 };
    }

    /// Searches again where the rate has changed, and once in a while.
    fn watch(&mut self, observed: f64, (rate, since, other): (f64, Duration, u32)) {
        let has_changed = (observed / rate - 1.0).abs() > 4.0 * GAIN;
        if since >= SEARCH_INTERVAL || (has_changed && other > 0) {
            return self.more(observed);
        }
        self.trial = if has_changed {
            Trial::None { rate, since, other: other + 1 }
        } else {
            Trial::None { rate: rate + (observed - rate) / 8.0, since, other: 0 }
        };
    }
}

/// A period that is measured.
#[derive(Clone, Copy, Debug)]
struct Period {
    since: Instant,
    bytes: u64,
    works: u64,
    /// Lanes that had told of their start, also of one that failed: where others start meanwhile, they hold up the rest.
    told: usize,
}

#[derive(Debug)]
struct State {
    search: WidthSearch,
    period: Option<Period>,
    /// When the CPUs were counted last.
    counted: Option<Instant>,
}

/// Measures one kind of source on one device.
#[derive(Debug)]
pub(crate) struct Meter {
    /// The present width. Lanes of higher numbers leave the work to others.
    width: AtomicUsize,
    is_fixed: bool,
    /// The most lanes that may ever work.
    limit: usize,
    bytes: AtomicU64,
    works: AtomicU64,
    /// When to look next: after this many works.
    next: AtomicU64,
    /// There was too little work for the lanes meanwhile.
    is_starved: AtomicBool,
    state: Mutex<State>,
}

impl Meter {
    /// Begins with `start` lanes, and may go to `most`; to `limit` where there are more CPUs later on.
    pub(crate) fn new(start: usize, (most, limit): (usize, usize), is_fixed: bool) -> Self {
        let search = WidthSearch::new(start, most);
        Self {
            width: AtomicUsize::new(search.width()),
            is_fixed,
            limit,
            bytes: AtomicU64::new(0),
            works: AtomicU64::new(0),
            next: AtomicU64::new(0),
            is_starved: AtomicBool::new(false),
            state: Mutex::new(State { search, period: None, counted: None }),
        }
    }

    #[inline]
    pub(crate) fn width(&self) -> usize {
        self.width.load(Ordering::Relaxed)
    }

    /// Whether it measures nothing.
    pub(crate) const fn is_fixed(&self) -> bool {
        self.is_fixed
    }

    /// The width that was found, and bytes per second.
    pub(crate) fn found(&self) -> Option<(usize, f64)> {
        let search = lock(&self.state).search;
        search.found().map(|rate| (search.width(), rate))
    }

    /// How many lanes may work now.
    pub(crate) fn most(&self) -> usize {
        lock(&self.state).search.most
    }

    /// Lanes found no work: the present rate is not their capacity.
    pub(crate) fn starve(&self) {
        if !self.is_fixed && !self.is_starved.load(Ordering::Relaxed) {
            self.is_starved.store(true, Ordering::Relaxed);
        }
    }

    /// A work is done. `told` lanes have told of their start so far. `cpus` counts the CPUs; one lane of all passes it, since
    /// threads may have different ones. Tells of a change.
    #[inline]
    pub(crate) fn moved(
        &self,
        bytes: u64,
        told: impl FnOnce() -> usize,
        cpus: Option<impl FnOnce() -> usize>,
    ) -> Option<usize> {
        if self.is_fixed {
            return None;
        }
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
        let works = self.works.fetch_add(1, Ordering::Relaxed) + 1;
        (works >= self.next.load(Ordering::Relaxed)).then(|| self.look(works, told(), cpus))?
    }

    #[cold]
    fn look(&self, works: u64, told: usize, cpus: Option<impl FnOnce() -> usize>) -> Option<usize> {
        // Another lane looks.
        let mut state = self.state.try_lock().ok()?;
        let (now, bytes) = (Instant::now(), self.bytes.load(Ordering::Relaxed));
        if let Some(cpus) = cpus
            && self.has_other_cpus(&mut state, now, cpus)
        {
            return Some(self.width());
        }
        let is_starved = self.is_starved.swap(false, Ordering::Relaxed);
        let fresh = Period { since: now, bytes, works, told };
        let Some(period) = state.period.filter(|period| !is_starved && period.told == told) else {
            state.period = Some(fresh);
            self.next.store(works + MIN_WORKS / 2, Ordering::Relaxed);
            return None;
        };
        let took = now.saturating_duration_since(period.since);
        if took < PERIODS.0 || (works < period.works + MIN_WORKS && took < PERIODS.1) {
            self.next.store(works + MIN_WORKS / 8, Ordering::Relaxed);
            return None;
        }
        let before = self.width();
        let width =
            state.search.observe(bytes.saturating_sub(period.bytes) as f64 / took.as_secs_f64(), took);
        self.width.store(width, Ordering::Relaxed);
        // What is under way at the old width does not count.
        state.period = (width == before).then_some(fresh);
        self.next
            .store(works + if width == before { MIN_WORKS / 8 } else { MIN_WORKS / 2 }, Ordering::Relaxed);
        (width != before).then_some(width)
    }
}

impl Meter {
    /// Counts the CPUs once in a while. Whether others are there than lanes may use: the width follows them.
    fn has_other_cpus(&self, state: &mut State, now: Instant, cpus: impl FnOnce() -> usize) -> bool {
        if state.counted.is_some_and(|at| now.saturating_duration_since(at) < SEARCH_INTERVAL) {
            return false;
        }
        state.counted = Some(now);
        let most = cpus().clamp(1, self.limit);
        let has_others = most != state.search.most;
        if has_others {
            state.search.allow(most);
            state.period = None;
            self.width.store(state.search.width(), Ordering::Relaxed);
        }
        has_others
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Lanes that copy `each`, over a link of `link`; each lane beyond what fills it costs a part `crowd` of the rate.
    #[derive(Clone, Copy, Debug)]
    struct Machine {
        each: f64,
        link: f64,
        crowd: f64,
    }

    impl Machine {
        fn rate(&self, width: usize) -> f64 {
            let full = (self.link / self.each).ceil().max(1.0);
            let over = (width as f64 - full).max(0.0);
            (self.each * width as f64).min(self.link) * (1.0 - self.crowd * over)
        }

        fn best(&self, most: usize) -> f64 {
            (1..=most).map(|width| self.rate(width)).fold(0.0, f64::max)
        }

        fn fewest(&self, most: usize) -> usize {
            let best = self.best(most);
            (1..=most).find(|width| self.rate(*width) >= best * (1.0 - 1e-9)).unwrap()
        }
    }

    /// Hears one period, which it takes.
    fn period(search: &mut WidthSearch, machine: Machine, noise: f64) -> f64 {
        let observed = machine.rate(search.width()) * (1.0 + noise);
        let took = (MIN_WORKS as f64 * (2 << 20) as f64 / observed)
            .clamp(PERIODS.0.as_secs_f64(), PERIODS.1.as_secs_f64());
        search.observe(observed, Duration::from_secs_f64(took));
        took
    }

    /// Goes on for a second.
    fn run(search: &mut WidthSearch, machine: Machine) {
        let mut now = 0.0;
        while now < 1.0 {
            now += period(search, machine, 0.0);
        }
    }

    /// Goes on until no width is tried. Returns how long that was.
    fn until_settled(search: &mut WidthSearch, machine: Machine, mut noise: impl FnMut() -> f64) -> f64 {
        let mut now = 0.0;
        loop {
            now += period(search, machine, noise());
            if search.found().is_some() || now > 10.0 {
                return now;
            }
        }
    }

    fn machine() -> impl Strategy<Value = Machine> {
        (2e9..8e9, 3e9..60e9, 0.0..0.02).prop_map(|(each, link, crowd)| Machine { each, link, crowd })
    }

    #[track_caller]
    fn check(search: WidthSearch, machine: Machine, most: usize) {
        let (width, rate) = (search.width(), machine.rate(search.width()));
        let (best, fewest) = (machine.best(most), machine.fewest(most));
        assert!(rate >= best * 0.95, "{width} lanes reach {rate:e} of {best:e}: {machine:?}");
        assert!(width <= fewest + 1, "{width} lanes where {fewest} are enough: {machine:?}");
    }

    proptest! {
        #[test]
        fn the_fewest_lanes_of_the_best_rate_are_found(machine in machine(), start in 1usize..20, most in 1usize..33) {
            let mut search = WidthSearch::new(start, most);
            let took = until_settled(&mut search, machine, || 0.0);
            check(search, machine, most);
            prop_assert!(took < 1.0, "{took} s");
        }

        #[test]
        fn a_change_of_the_machine_is_followed(
            before in machine(), part in prop_oneof![0.4f64..0.8, 1.3f64..2.2], of_link in any::<bool>(), most in 1usize..33
        ) {
            let mut search = WidthSearch::new(8, most);
            run(&mut search, before);
            let mut after = before;
            if of_link { after.link *= part } else { after.each *= part }
            run(&mut search, after);
            until_settled(&mut search, after, || 0.0);
            check(search, after, most);
        }

        #[test]
        fn noise_costs_little(machine in machine(), seed in any::<u64>()) {
            let mut state = seed | 1;
            let mut noise = || {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                ((state >> 40) as f64 / (1u64 << 24) as f64 - 0.5) * 0.02
            };
            let mut search = WidthSearch::new(8, 16);
            until_settled(&mut search, machine, &mut noise);
            let (rate, best) = (machine.rate(search.width()), machine.best(16));
            prop_assert!(rate >= best * 0.93, "{} lanes: {rate:e} of {best:e}", search.width());
        }
    }

    #[test]
    fn one_cpu_has_one_lane() {
        let mut search = WidthSearch::new(8, 1);
        assert_eq!((0..100).map(|at| search.observe(f64::from(at), PERIODS.0)).max(), Some(1));
    }

    #[test]
    fn a_disk_that_slows_down_and_copies_at_half_the_speed_are_followed_within_a_second() {
        let copies = Machine { each: 5e9, link: 52e9, crowd: 0.0 };
        let disk = Machine { each: 1.5e9, link: 7e9, crowd: 0.01 };
        let changes = [(copies, Machine { each: 2.5e9, ..copies }), (disk, Machine { link: 2e9, ..disk })];
        for (usual, slow) in changes {
            let mut search = WidthSearch::new(8, 16);
            for machine in [usual, slow, usual] {
                run(&mut search, machine);
                let (rate, best) = (machine.rate(search.width()), machine.best(16));
                assert!(
                    rate >= best * 0.95,
                    "{} lanes reach {rate:e} of {best:e}: {machine:?}",
                    search.width()
                );
                until_settled(&mut search, machine, || 0.0);
                check(search, machine, 16);
            }
        }
    }

    /// They are not counted.
    const NO_CPUS: Option<fn() -> usize> = None;

    #[test]
    fn a_meter_counts_only_time_with_enough_work() {
        let meter = Meter::new(4, (16, 16), false);
        let all = |count: u64| (0..count).find_map(|_| meter.moved(1 << 20, || 4, NO_CPUS));
        for _ in 0..20 {
            all(MIN_WORKS * 2);
            meter.starve();
            std::thread::sleep(PERIODS.0);
        }
        assert_eq!(meter.width(), 4, "a pause between jobs is no slow copy");
        all(MIN_WORKS);
        std::thread::sleep(PERIODS.0);
        assert_eq!(all(MIN_WORKS), Some(5));
        let fixed = Meter::new(4, (16, 16), true);
        assert!((0..MIN_WORKS * 4).all(|_| fixed.moved(1 << 20, || 4, NO_CPUS).is_none()));
    }

    #[test]
    fn cpus_that_come_and_go_are_followed() {
        static CPUS: AtomicUsize = AtomicUsize::new(8);
        let meter = Meter::new(6, (8, 32), false);
        // The first count finds fewer than the process had at its beginning.
        for (cpus, most) in [(3, 3), (8, 8), (1, 1), (16, 16), (100, 32), (2, 2)] {
            CPUS.store(cpus, Ordering::Relaxed);
            let since = Instant::now();
            while since.elapsed() < SEARCH_INTERVAL * 2 {
                meter.moved(1 << 20, || 4, Some(|| CPUS.load(Ordering::Relaxed)));
                std::thread::sleep(Duration::from_micros(50));
            }
            assert_eq!(meter.most(), most, "{cpus} CPUs");
            assert!((1..=most).contains(&meter.width()));
        }
    }
}
