//! Turns repeated: one way after the other, round by round, so that what the machine does meanwhile meets all.

use std::time::{Duration, Instant};

use forebay_error::{ErrorKind, Result};

use crate::report::{BusyRange, NotHere, TurnReport};
use crate::{BUDGET, ROUNDS};

/// What the rounds came to.
pub(crate) struct RoundsDone {
    pub(crate) turns: Vec<TurnReport>,
    pub(crate) not_here: Vec<NotHere>,
    /// Whether it was stopped before the last round had ended.
    pub(crate) is_cut: bool,
}

/// How many rounds there are.
pub(crate) struct Rounds {
    count: usize,
    /// No round is begun that would end later.
    budget: Option<Duration>,
}

impl Rounds {
    /// As many as were asked for, or as many as fit.
    pub(crate) fn of(asked: Option<usize>) -> Self {
        match asked {
            Some(count) => Self { count: count.max(1), budget: None },
            None => Self { count: ROUNDS, budget: Some(BUDGET) },
        }
    }

    /// Runs `turn` for each way; ways that fail have no turn. Stopped, it keeps the turns that were done; it fails if there are
    /// none.
    pub(crate) fn run(
        &self,
        ways: Vec<&'static str>,
        turn: &mut dyn FnMut(&'static str, &str) -> Result<TurnReport>,
    ) -> Result<RoundsDone> {
        let begun = Instant::now();
        let (mut left, mut not_here) =
            (ways.into_iter().map(|way| (way, Vec::new())).collect::<Vec<_>>(), Vec::new());
        let mut ended = Vec::new();
        let mut stop = None;
        for round in 0..self.count {
            let elapsed = begun.elapsed();
            if round > 0 && !self.has_time(elapsed, round) {
                break;
            }
            // To and fro: where the machine becomes slower or faster all the time, none has the better half.
            let order: Vec<_> =
                if round % 2 == 0 { (0..left.len()).collect() } else { (0..left.len()).rev().collect() };
            let mut failed = Vec::new();
            let of = self.expected(elapsed, round).map_or_else(String::new, |count| format!(" of {count}"));
            for at in order {
                let (way, turns) = &mut left[at];
                match turn(way, &format!("{way}, turn {}{of}", round + 1)) {
                    Ok(done) => turns.push(done),
                    Err(error) if error.kind() == ErrorKind::Cancelled => {
                        stop = Some(error);
                        break;
                    }
                    Err(error) => failed.push((*way, NotHere::of(way, &error))),
                }
            }
            for (way, why) in failed {
                // What it did before stays.
                if let Some(at) = left.iter().position(|(name, _)| *name == way) {
                    ended.extend(middle(left.remove(at).1));
                }
                not_here.push(why);
            }
            if left.is_empty() || stop.is_some() {
                break;
            }
        }
        for (way, turns) in left {
            match (middle(turns), &stop) {
                (Some(turn), _) => ended.push(turn),
                (None, Some(stop)) => not_here.push(NotHere::of(way, stop)),
                (None, None) => {}
            }
        }
        match stop {
            Some(stop) if ended.is_empty() => Err(stop),
            stop => Ok(RoundsDone { turns: ended, not_here, is_cut: stop.is_some() }),
        }
    }

    /// How many rounds there will be, as far as is known after `done` of them: the first one tells how many fit.
    fn expected(&self, elapsed: Duration, done: usize) -> Option<usize> {
        let Some(budget) = self.budget else { return Some(self.count) };
        let done = u32::try_from(done).ok().filter(|done| *done > 0)?;
        let fit = budget.as_nanos() / (elapsed / done).as_nanos().max(1);
        Some(usize::try_from(fit).unwrap_or(usize::MAX).clamp(done as usize + 1, self.count))
    }

    /// Whether one more round fits, after `done`.
    fn has_time(&self, elapsed: Duration, done: usize) -> bool {
        let done = u32::try_from(done).unwrap_or(u32::MAX);
        self.budget.is_none_or(|budget| elapsed + elapsed / done <= budget)
    }
}

/// The state of the page cache where it was not the same in all turns.
pub(crate) const VARIED: &str = "varied";

/// The turn of median busy time, with the range of all, and with the failures and the states of all.
fn middle(mut turns: Vec<TurnReport>) -> Option<TurnReport> {
    turns.sort_by(|one, other| one.busy_seconds.total_cmp(&other.busy_seconds));
    let range = BusyRange {
        turns: turns.len(),
        least: turns.first()?.busy_seconds,
        greatest: turns.last()?.busy_seconds,
    };
    // One that failed moved less, and tells nothing of the time.
    let worst = turns.iter().position(|turn| turn.errors > 0);
    let is_alike = turns.windows(2).all(|two| two[0].state == two[1].state);
    let mut turn = turns.swap_remove(worst.unwrap_or((range.turns - 1) / 2));
    turn.busy_range = Some(range);
    if !is_alike {
        VARIED.clone_into(&mut turn.state);
    }
    Some(turn)
}

#[cfg(test)]
mod tests {
    use forebay_error::Error;

    use super::*;

    fn turn(way: &str, busy: f64) -> TurnReport {
        TurnReport {
            way: way.to_owned(),
            busy_seconds: busy,
            state: "warm".to_owned(),
            ..TurnReport::default()
        }
    }

    #[test]
    fn ways_take_turns_to_and_fro() {
        let mut seen = Vec::new();
        let mut run = |way: &'static str, label: &str| {
            seen.push(label.to_owned());
            match (way, seen.len()) {
                ("p2p", _) => Err(Error::new(ErrorKind::Unsupported, "no drive")),
                (_, at) => Ok(turn(way, at as f64)),
            }
        };
        let ran = Rounds::of(Some(3)).run(vec!["plain", "p2p", "mapped"], &mut run).unwrap();
        let RoundsDone { turns, not_here, is_cut } = ran;
        assert!(!is_cut);
        let order: Vec<_> = seen.iter().map(|label| label.split(',').next().unwrap()).collect();
        assert_eq!(order, ["plain", "p2p", "mapped", "mapped", "plain", "plain", "mapped"]);
        assert_eq!(seen[3], "mapped, turn 2 of 3");
        assert_eq!(not_here.iter().map(|one| one.way.as_str()).collect::<Vec<_>>(), ["p2p"]);
        let range = |turns, least, greatest| Some(BusyRange { turns, least, greatest });
        assert_eq!((turns[0].busy_seconds, turns[0].busy_range), (5.0, range(3, 1.0, 6.0)));
        assert_eq!((turns[1].busy_seconds, turns[1].busy_range), (4.0, range(3, 3.0, 7.0)));
    }

    #[test]
    fn a_way_that_fails_later_keeps_its_turns() {
        let mut count = 0;
        let mut run = |way: &'static str, _: &str| {
            count += 1;
            match (way, count) {
                ("mapped", 3) => Err(Error::new(ErrorKind::NoSpace, "the disk is full")),
                (_, at) => Ok(turn(way, f64::from(at))),
            }
        };
        let RoundsDone { turns, not_here, .. } =
            Rounds::of(Some(2)).run(vec!["plain", "mapped"], &mut run).unwrap();
        let found = |turn: &TurnReport| (turn.way.clone(), turn.busy_range.unwrap().turns);
        let found: Vec<_> = turns.iter().map(found).collect();
        assert_eq!(found, [("mapped".to_owned(), 1), ("plain".to_owned(), 2)]);
        assert_eq!(not_here.len(), 1);
    }

    #[test]
    fn rounds_end_with_their_time() {
        let rounds = Rounds::of(None);
        assert!(rounds.has_time(BUDGET / 2, 1) && !rounds.has_time(BUDGET / 2 + Duration::from_secs(1), 1));
        assert!(rounds.has_time(BUDGET * 3 / 4, 3) && !rounds.has_time(BUDGET, 4));
        assert!(Rounds::of(Some(9)).has_time(BUDGET * 9, 3));
    }

    #[test]
    fn failures_and_states_of_all_turns_are_told() {
        let failed = TurnReport { errors: 2, ..turn("plain", 0.1) };
        let middle = |turns| middle(turns).unwrap();
        assert_eq!(middle(vec![turn("plain", 3.0), failed, turn("plain", 2.0)]).errors, 2);
        let cold = TurnReport { state: "cold".to_owned(), ..turn("plain", 2.0) };
        assert_eq!(middle(vec![turn("plain", 3.0), cold]).state, "varied");
    }

    #[test]
    fn a_stop_keeps_what_was_done() {
        let stop = || Err(Error::new(ErrorKind::Cancelled, "stopped"));
        assert!(Rounds::of(Some(2)).run(vec!["plain"], &mut |_, _| stop()).is_err(), "nothing was done");
        for (after, found, missing) in
            [(1, vec![("plain", 1)], vec!["mapped"]), (3, vec![("plain", 1), ("mapped", 2)], vec![])]
        {
            let mut count = 0;
            let mut run = |way: &'static str, _: &str| {
                count += 1;
                if count > after { stop() } else { Ok(turn(way, f64::from(count))) }
            };
            let ran = Rounds::of(Some(5)).run(vec!["plain", "mapped"], &mut run).unwrap();
            let turns = ran.turns.iter().map(|turn| (turn.way.as_str(), turn.busy_range.unwrap().turns));
            assert_eq!(turns.collect::<Vec<_>>(), found);
            assert_eq!(ran.not_here.iter().map(|one| one.way.as_str()).collect::<Vec<_>>(), missing);
            assert!(ran.is_cut && count == after + 1);
        }
    }

    #[test]
    fn a_turn_is_counted_among_those_that_fit() {
        let (asked, fitting) = (Rounds::of(Some(7)), Rounds::of(None));
        assert_eq!(asked.expected(BUDGET, 1), Some(7));
        assert_eq!(fitting.expected(Duration::ZERO, 0), None, "not known yet");
        assert_eq!(fitting.expected(BUDGET * 3 / 10, 1), Some(3));
        assert_eq!(fitting.expected(BUDGET / 100, 1), Some(ROUNDS));
    }
}
