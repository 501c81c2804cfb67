//! Who reads pieces of a server's files: the kernel's mount, or connections of this process's own, and how many of these.
//!
//! Where one link is the limit, connections that are used beside the kernel's take its share, and look faster while all bytes take as long.
//! So all pieces of a server go one way for a while, a round, and what counts is bytes per second of the whole round. A trial has a round
//! of the kernel's, then rounds of 1, 2, 4, … connections for as long as each doubling brings clearly more, then both ways in turns. What
//! is clearly faster reads the next gigabytes.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crate::runtime::lock;
use crate::tuning::mounts::{CLEARLY, IN_FLIGHT, MAX_REST, REST_FIRST, ROUND, ROUND_TIME, TURNS};

/// Who reads a piece.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reader {
    Kernel,
    /// This number of connections.
    Own(usize),
}

/// The contest of one server.
#[derive(Debug)]
pub(crate) struct Contest(Mutex<State>);

#[derive(Debug)]
struct State {
    reader: Reader,
    /// The number of the round.
    round: u64,
    /// Pieces of this round under way, and of rounds before: while these are, time does not count.
    pieces: usize,
    before: usize,
    since: Option<Instant>,
    took: Duration,
    bytes: u64,
    /// Bytes under way, and the most of them in this round.
    under_way: (u64, u64),
    trial: Trial,
}

/// Rates of the rounds of a trial, in bytes per second.
#[derive(Debug, Default)]
struct Trial {
    kernel: Vec<f64>,
    own: Vec<f64>,
    /// The number of connections that is tried, and the most there may be.
    connections: (usize, usize),
    stage: Stage,
    /// Whether its own connections have won, and the rates that showed it.
    won: Option<(bool, [f64; 2])>,
    /// Bytes until the next trial, and of the next rest.
    rest: (u64, u64),
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Stage {
    /// More connections each time.
    #[default]
    Climb,
    /// Both ways in turns.
    Turns,
    /// The winner reads.
    Rest,
}

/// A piece under way.
#[derive(Debug)]
pub(crate) struct Piece {
    contest: Arc<Contest>,
    pub(crate) reader: Reader,
    round: u64,
    bytes: u64,
    is_done: bool,
}

impl Contest {
    /// Of at most this number of connections.
    pub(crate) fn new(most: usize) -> Arc<Self> {
        let trial = Trial { connections: (1, most), rest: (0, REST_FIRST), ..Trial::default() };
        Arc::new(Self(Mutex::new(State {
            reader: Reader::Kernel,
            round: 0,
            pieces: 0,
            before: 0,
            since: None,
            took: Duration::ZERO,
            bytes: 0,
            under_way: (0, 0),
            trial,
        })))
    }

    /// Begins a piece, by whom it says. `lead`: what its transfer had to wait for before, where it is not the kernel's.
    pub(crate) fn begin(self: &Arc<Self>, bytes: u64, lead: Duration, now: Instant) -> Piece {
        let mut state = lock(&self.0);
        state.pause(now);
        state.pieces += 1;
        let under_way = state.under_way.0 + bytes;
        state.under_way = (under_way, state.under_way.1.max(under_way));
        let is_first = state.pieces == 1 && state.reader != Reader::Kernel;
        state.go_on(if is_first { now.checked_sub(lead).unwrap_or(now) } else { now });
        Piece { contest: self.clone(), reader: state.reader, round: state.round, bytes, is_done: false }
    }

    /// Leaves a transfer of these bytes to the kernel where that has won and the next trial is not due yet; the rates that showed it.
    pub(crate) fn left_to_kernel(&self, bytes: u64) -> Option<[f64; 2]> {
        let mut state = lock(&self.0);
        let trial = &mut state.trial;
        let (is_own, rates) = trial.won.filter(|_| trial.stage == Stage::Rest)?;
        if is_own || trial.rest.0 == 0 {
            return None;
        }
        trial.rest.0 = trial.rest.0.saturating_sub(bytes);
        Some(rates)
    }

    /// The rates of the last trial: the kernel's, and its own connections'.
    pub(crate) fn rates(&self) -> Option<[f64; 2]> {
        lock(&self.0).trial.won.map(|(_, rates)| rates)
    }

    fn end(&self, piece: &Piece, moved: Option<u64>, now: Instant) {
        let mut state = lock(&self.0);
        state.pause(now);
        let is_timed = state.before == 0;
        if piece.round == state.round {
            state.pieces -= 1;
            state.under_way.0 -= piece.bytes;
            match moved {
                Some(moved) if is_timed => state.bytes += moved,
                Some(_) => {}
                // A piece that failed says nothing, and nor does the time it took.
                None => (state.bytes, state.took) = (0, Duration::ZERO),
            }
        } else {
            state.before -= 1;
        }
        if state.is_over() {
            state.next_round();
        }
        state.go_on(now);
    }
}

impl State {
    /// Adds the time since it was looked at last.
    fn pause(&mut self, now: Instant) {
        if let Some(since) = self.since.take() {
            self.took += now.saturating_duration_since(since);
        }
    }

    /// Time counts from now on, if pieces of this round alone are under way.
    fn go_on(&mut self, now: Instant) {
        self.since = (self.pieces > 0 && self.before == 0).then_some(now);
    }

    /// Whether the round tells enough: more than what is under way at its ends.
    fn is_over(&self) -> bool {
        self.took >= ROUND_TIME && self.bytes >= ROUND.max(IN_FLIGHT * self.under_way.1)
    }

    fn next_round(&mut self) {
        let rate = self.bytes as f64 / self.took.as_secs_f64();
        let next = self.trial.next(self.reader, rate, self.bytes);
        if next != self.reader {
            self.before += self.pieces;
            (self.pieces, self.under_way.0) = (0, 0);
            self.round += 1;
        }
        (self.reader, self.bytes, self.took) = (next, 0, Duration::ZERO);
        self.under_way.1 = self.under_way.0;
    }
}

impl Trial {
    /// Takes note of a round, and says who reads the next one.
    fn next(&mut self, reader: Reader, rate: f64, bytes: u64) -> Reader {
        let own = Reader::Own(self.connections.0);
        match (self.stage, reader) {
            (Stage::Climb, Reader::Kernel) => {
                self.kernel.push(rate);
                own
            }
            (Stage::Climb, Reader::Own(_)) => self.climb(rate),
            (Stage::Turns, _) => {
                if reader == Reader::Kernel { &mut self.kernel } else { &mut self.own }.push(rate);
                self.take_turns()
            }
            (Stage::Rest, _) if self.rest.0 > bytes => {
                self.rest.0 -= bytes;
                reader
            }
            (Stage::Rest, _) => self.begin_again(),
        }
    }

    /// More connections, if these brought clearly more than half as many.
    fn climb(&mut self, rate: f64) -> Reader {
        let (connections, most) = self.connections;
        let is_better = self.own.pop().is_none_or(|half| {
            let is_better = rate >= half * CLEARLY;
            if !is_better {
                self.own.push(half);
            }
            is_better
        });
        if is_better {
            self.own.push(rate);
        } else {
            self.connections.0 = connections / 2;
        }
        if is_better && connections * 2 <= most {
            self.connections.0 = connections * 2;
            return Reader::Own(connections * 2);
        }
        self.stage = Stage::Turns;
        self.take_turns()
    }

    fn take_turns(&mut self) -> Reader {
        let is_hopeless = matches!((&self.kernel[..], &self.own[..]), ([kernel], [own]) if own < kernel);
        if is_hopeless || self.kernel.len() >= TURNS && self.own.len() >= TURNS {
            return self.decide();
        }
        if self.kernel.len() <= self.own.len() { Reader::Kernel } else { Reader::Own(self.connections.0) }
    }

    fn decide(&mut self) -> Reader {
        let rates = [median(&mut self.kernel), median(&mut self.own)];
        let is_own = rates[1] >= rates[0] * CLEARLY;
        let is_news = self.won.is_some_and(|(before, _)| before != is_own);
        let rest = if is_news { REST_FIRST } else { self.rest.1 };
        self.rest = (rest, (rest * 2).min(MAX_REST));
        (self.won, self.stage) = (Some((is_own, rates)), Stage::Rest);
        if is_own { Reader::Own(self.connections.0) } else { Reader::Kernel }
    }

    /// The next trial: of its own connections, if they had won, no other number is tried.
    fn begin_again(&mut self) -> Reader {
        (self.kernel, self.own) = (Vec::new(), Vec::new());
        if self.won.is_some_and(|(is_own, _)| is_own) {
            self.stage = Stage::Turns;
        } else {
            (self.stage, self.connections.0) = (Stage::Climb, 1);
        }
        Reader::Kernel
    }
}

fn median(rates: &mut [f64]) -> f64 {
    rates.sort_by(f64::total_cmp);
    rates.get(rates.len() / 2).copied().unwrap_or_default()
}

impl Piece {
    /// It came.
    pub(crate) fn done(mut self, bytes: usize, now: Instant) {
        self.is_done = true;
        self.contest.end(&self, Some(bytes as u64), now);
    }
}

impl Drop for Piece {
    fn drop(&mut self) {
        if !self.is_done {
            self.contest.end(self, None, Instant::now());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    /// Reads pieces of 4 MiB, eight at a time, at rates in MB/s of the kernel and of each number of connections. Returns bytes by the
    /// kernel and by own connections, and the readers in turn.
    struct Run<'a> {
        contest: Arc<Contest>,
        now: Instant,
        rate: &'a dyn Fn(Reader) -> f64,
    }

    impl Run<'_> {
        fn read(&mut self, bytes: u64) -> ([u64; 2], Vec<Reader>) {
            let (mut by, mut readers) = ([0, 0], Vec::new());
            let mut flying = std::collections::VecDeque::new();
            for _ in 0..bytes / (4 * MIB) {
                let piece = self.contest.begin(4 * MIB, Duration::ZERO, self.now);
                if readers.last() != Some(&piece.reader) {
                    readers.push(piece.reader);
                }
                by[usize::from(piece.reader != Reader::Kernel)] += 4 * MIB;
                flying.push_back(piece);
                if flying.len() == 8 {
                    let piece = flying.pop_front().unwrap();
                    self.now += Duration::from_secs_f64(4.0 * MIB as f64 / 1e6 / (self.rate)(piece.reader));
                    piece.done(4 << 20, self.now);
                }
            }
            for piece in flying {
                piece.done(4 << 20, self.now);
            }
            (by, readers)
        }
    }

    fn run(rate: &dyn Fn(Reader) -> f64) -> Run<'_> {
        Run { contest: Contest::new(8), now: Instant::now(), rate }
    }

    #[test]
    fn one_connection_that_is_clearly_faster_wins_alone() {
        let rate = |reader| if reader == Reader::Kernel { 500.0 } else { 1000.0 };
        let mut run = run(&rate);
        let (_, readers) = run.read(4 << 30);
        assert!(!readers.contains(&Reader::Own(4)), "two brought no more: {readers:?}");
        assert_eq!(readers.last(), Some(&Reader::Own(1)));
        let ([kernel, own], _) = run.read(16 << 30);
        assert!(kernel < own / 8, "{kernel} {own}");
        let [kernel, own] = run.contest.rates().unwrap();
        assert!((0.9..1.1).contains(&(own / kernel / 2.0)), "{kernel} {own}");
    }

    #[test]
    fn more_connections_are_taken_while_they_bring_more() {
        let rate = |reader| match reader {
            Reader::Kernel => 450.0,
            Reader::Own(connections) => 400.0 * connections.min(4) as f64,
        };
        let mut run = run(&rate);
        let (_, readers) = run.read(8 << 30);
        assert_eq!(
            readers[..5],
            [Reader::Kernel, Reader::Own(1), Reader::Own(2), Reader::Own(4), Reader::Own(8)]
        );
        assert_eq!(readers.last(), Some(&Reader::Own(4)));
    }

    /// Each way alone gets all of the link: the share that connections take from each other does not count.
    #[test]
    fn what_is_not_clearly_faster_is_the_kernels() {
        for own in [100.0, 999.0, 1080.0] {
            let rate = move |reader| if reader == Reader::Kernel { 1000.0 } else { own };
            let mut run = run(&rate);
            run.read(4 << 30);
            let contest = run.contest.clone();
            let rates = contest.left_to_kernel(MIB).unwrap();
            assert!(rates[1] < rates[0] * CLEARLY, "{own}: {rates:?}");
            // The next trial comes when the rest is over, and the rest after that is longer.
            while contest.left_to_kernel(64 * MIB).is_some() {}
            let (_, readers) = run.read(2 << 30);
            assert!(readers.contains(&Reader::Own(1)), "{own}: {readers:?}");
            assert!(
                contest.left_to_kernel(REST_FIRST).is_some() && contest.left_to_kernel(MIB).is_some(),
                "{own}"
            );
        }
    }

    #[test]
    fn a_server_that_becomes_slower_is_the_kernels_again() {
        let is_slow = std::cell::Cell::new(false);
        let rate = |reader| match reader {
            Reader::Kernel => 500.0,
            Reader::Own(_) if is_slow.get() => 300.0,
            Reader::Own(_) => 1000.0,
        };
        let mut run = run(&rate);
        run.read(4 << 30);
        is_slow.set(true);
        run.read(12 << 30);
        assert!(run.contest.left_to_kernel(MIB).is_some());
    }

    /// A transfer waits before its first own piece: for small ones that is what decides.
    #[test]
    fn what_comes_before_a_transfer_counts() {
        let contest = Contest::new(1);
        let mut now = Instant::now();
        for _ in 0..2000 {
            let piece = contest.begin(2 * MIB, Duration::from_millis(2), now);
            now += Duration::from_millis(if piece.reader == Reader::Kernel { 2 } else { 1 });
            piece.done(2 << 20, now);
            if contest.left_to_kernel(0).is_some() {
                return;
            }
        }
        panic!("{contest:?}");
    }

    #[test]
    fn pieces_that_fail_say_nothing() {
        let contest = Contest::new(8);
        let now = Instant::now();
        for step in 0..100u32 {
            let piece = contest.begin(4 * MIB, Duration::ZERO, now + step * Duration::from_millis(10));
            assert_eq!(piece.reader, Reader::Kernel);
            drop(contest.begin(4 * MIB, Duration::ZERO, now));
            piece.done(4 << 20, now + step * Duration::from_millis(10));
        }
        assert!(contest.rates().is_none());
    }
}
