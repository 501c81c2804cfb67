//! One sentence: would the direct path help this program?

use std::fmt::Write;

use forebay_engine::EngineKind;

use crate::report::{Answer, EngineComparison, ReplayReport, SpeedVerdict, TurnReport};
use crate::rounds::VARIED;
use crate::{ELECTED, PLAIN};

/// A difference of less than this part of the time counts as noise.
const NOISE_FRACTION: f64 = 0.1;
/// Fewer turns than this do not show how much chance varies them.
const MIN_TURNS: usize = 3;
/// With fewer than [`MIN_TURNS`] turns a way counts as faster only from this factor on.
const CLEAR_FACTOR: f64 = 2.5;
/// A gain of less than this part of the program's time counts as little.
const SMALL_GAIN: f64 = 0.02;
/// Compares each way with the best one of another engine.
pub(crate) fn compare(turns: &mut [TurnReport]) {
    let against: Vec<_> = turns
        .iter()
        .map(|turn| {
            let others = turns.iter().filter(|other| engine(other) != engine(turn) && is_alike(turn, other));
            let best = fastest(others).filter(|_| turn.errors == 0)?;
            let ratio = best.busy_seconds / turn.busy_seconds.max(1e-9);
            Some(EngineComparison { way: best.way.clone(), ratio, judged: judge(turn, best) })
        })
        .collect();
    for (turn, against) in turns.iter_mut().zip(against) {
        turn.against = against;
    }
}

/// What the difference of two ways is: nothing while the ranges of their turns overlap.
fn judge(one: &TurnReport, other: &TurnReport) -> SpeedVerdict {
    let (Some(own), Some(range)) = (one.busy_range, other.busy_range) else { return SpeedVerdict::Noise };
    let (quick, slow) = (one.busy_seconds.min(other.busy_seconds), one.busy_seconds.max(other.busy_seconds));
    let is_few = own.turns.min(range.turns) < MIN_TURNS;
    let overlap = own.least <= range.greatest && range.least <= own.greatest;
    match slow {
        _ if overlap || slow - quick <= slow * NOISE_FRACTION || is_few && slow < quick * CLEAR_FACTOR => {
            SpeedVerdict::Noise
        }
        _ if one.busy_seconds < other.busy_seconds => SpeedVerdict::Faster,
        _ => SpeedVerdict::Slower,
    }
}

/// The engine that moved most bytes; plain calls are one, too.
fn engine(turn: &TurnReport) -> &str {
    turn.engines.first().map_or(PLAIN, |one| one.engine.as_str())
}

/// Whether two turns did the same, without failures, from the same state of the page cache.
fn is_alike(one: &TurnReport, other: &TurnReport) -> bool {
    other.errors == 0 && one.state != VARIED && (one.bytes, &one.state) == (other.bytes, &other.state)
}

fn fastest<'a>(turns: impl Iterator<Item = &'a TurnReport>) -> Option<&'a TurnReport> {
    turns.min_by(|one, other| one.busy_seconds.total_cmp(&other.busy_seconds))
}

pub(crate) fn of(report: &ReplayReport) -> (Answer, String) {
    if !report.has_gpu_calls {
        let text =
            "The direct path would not help: it ends in GPU memory, and this program moves host memory.";
        return (Answer::NoGpuMemory, text.to_owned());
    }
    if report.gpu.is_none() {
        let whole = &report.recorded.turn;
        let text = format!(
            "Whether the direct path would help is unknown without a GPU; it would save at most the {} in which the \
             recorded program had calls under way, {:.0} % of its time.",
            seconds(whole.busy_seconds),
            100.0 * whole.busy_seconds / whole.seconds.max(1e-9)
        );
        return (Answer::Unknown, text);
    }
    if let Some(direct) = direct(&report.turns) {
        return compared(direct, &report.turns);
    }
    let best = best_here(&report.turns).map_or_else(String::new, |text| format!(" {text}"));
    (Answer::NotTaken, format!("The direct path would not be taken here: {}.{best}", why_not(report)))
}

/// The turn that stands for the direct path: forebay's own, which is what the program would get, otherwise the fastest.
fn direct(turns: &[TurnReport]) -> Option<&TurnReport> {
    let own = turns.iter().find(|turn| turn.way == ELECTED && is_direct(turn));
    own.or_else(|| fastest(turns.iter().filter(|turn| is_direct(turn))))
}

/// Whether the direct engines moved most bytes, and nothing failed.
fn is_direct(turn: &TurnReport) -> bool {
    let is_direct = |name: &str| name.parse::<EngineKind>().is_ok_and(EngineKind::is_direct);
    let direct = turn.engines.iter().filter(|one| is_direct(&one.engine));
    turn.errors == 0 && direct.map(|one| one.bytes).sum::<u64>() * 2 > turn.bytes
}

fn why_not(report: &ReplayReport) -> String {
    let absent = report.not_here.iter().map(|one| (&one.way, &one.reason));
    let unused = report.turn(ELECTED).into_iter().flat_map(|turn| &turn.not_used);
    let failed = report.turns.iter().filter_map(|turn| Some((&turn.way, turn.first_error.as_ref()?)));
    let all = absent.chain(unused.map(|one| (&one.engine, &one.reason))).chain(failed);
    let mut told = Vec::new();
    for engine in EngineKind::ALL.into_iter().filter(|engine| engine.is_direct()) {
        if let Some((_, reason)) = all.clone().find(|(way, _)| *way == engine.name()) {
            told.push(format!("{engine}: {reason}"));
        }
    }
    if told.is_empty() { "the engines that would take it had no turn".to_owned() } else { told.join("; ") }
}

/// Where no engine is direct: which one is fastest all the same.
fn best_here(turns: &[TurnReport]) -> Option<String> {
    let best = fastest(turns.iter().filter(|turn| turn.errors == 0))?;
    let against = best.against.as_ref()?;
    let other = turns.iter().find(|turn| turn.way == against.way)?;
    Some(match against.judged {
        SpeedVerdict::Noise => format!("{} and {} differ within the noise.", best.way, other.way),
        _ => format!("The fastest here is {}, {} ({}).", best.way, times(best, other), turns_of(best, other)),
    })
}

fn compared(direct: &TurnReport, turns: &[TurnReport]) -> (Answer, String) {
    let others = || turns.iter().filter(|turn| !is_direct(turn));
    let Some(best) = fastest(others().filter(|turn| is_alike(direct, turn))) else {
        return (
            Answer::Unknown,
            format!("Whether the direct path would help is unknown: {}.", unlike(direct, others())),
        );
    };
    let judged = judge(direct, best);
    let won = best.busy_seconds - direct.busy_seconds;
    let (answer, word) = match judged {
        SpeedVerdict::Faster if won < best.seconds * SMALL_GAIN => (Answer::HelpsLittle, "would help little"),
        SpeedVerdict::Faster => (Answer::Helps, "would help"),
        SpeedVerdict::Slower => (Answer::Slower, "would not help"),
        SpeedVerdict::Noise => (Answer::Noise, "would make no difference that shows"),
    };
    let mut text = format!(
        "The direct path {word}: calls are under way for {}, the best of the others, whose turn takes {}",
        times(direct, best),
        seconds(best.seconds)
    );
    if let (Some(new), Some(old)) = (direct.cpu(), best.cpu()) {
        let _ = write!(text, "; CPU {} against {}", seconds(new), seconds(old));
    }
    (answer, format!("{text} ({}).", turns_of(direct, best)))
}

/// Why there is nothing to compare the direct path with.
fn unlike<'a>(direct: &TurnReport, mut others: impl Iterator<Item = &'a TurnReport>) -> String {
    let told = |turn: &TurnReport| {
        format!("{} has {} bytes, {} failed, state {}", turn.way, turn.bytes, turn.errors, turn.state)
    };
    match others.next() {
        Some(other) => format!("the turns are not alike: {}; {}", told(direct), told(other)),
        None => format!("no other engine had a turn (--engine {PLAIN},staged,…)"),
    }
}

/// `58.0 ms (55.0 to 61.0) with mapped, 80.0 ms (78.0 to 90.0) with staged`.
fn times(one: &TurnReport, other: &TurnReport) -> String {
    format!("{} with {}, {} with {}", spread(one), name(one), spread(other), name(other))
}

fn spread(turn: &TurnReport) -> String {
    match turn.busy_range {
        Some(range) if range.turns > 1 => {
            format!(
                "{} ({} to {})",
                seconds(turn.busy_seconds),
                seconds(range.least),
                seconds(range.greatest)
            )
        }
        _ => seconds(turn.busy_seconds),
    }
}

/// `5 turns each`; where they are few, what that means.
fn turns_of(one: &TurnReport, other: &TurnReport) -> String {
    let turns = [one, other].iter().filter_map(|turn| Some(turn.busy_range?.turns)).min().unwrap_or(1);
    match turns {
        turns if turns >= MIN_TURNS => format!("{turns} turns each"),
        turns => format!(
            "{turns} turn{} each, where only {CLEAR_FACTOR} times as fast is more than noise: --rounds {MIN_TURNS}, or more",
            if turns == 1 { "" } else { "s" }
        ),
    }
}

fn name(turn: &TurnReport) -> String {
    let engines: Vec<_> = turn.engines.iter().map(|one| one.engine.as_str()).collect();
    if engines.is_empty() { "plain calls".to_owned() } else { engines.join("+") }
}

/// A time with its unit.
pub(crate) fn seconds(value: f64) -> String {
    match value {
        value if value < 1e-3 => format!("{:.1} µs", value * 1e6),
        value if value < 1.0 => format!("{:.1} ms", value * 1e3),
        value => format!("{value:.2} s"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::{BusyRange, EngineBytes};

    /// A way whose turns had this busy time, a twentieth more or less.
    fn turn(way: &str, engine: &str, busy: f64) -> TurnReport {
        let engines = vec![EngineBytes { engine: engine.to_owned(), bytes: 100 }];
        TurnReport {
            way: way.to_owned(),
            engines: if way == PLAIN { Vec::new() } else { engines },
            bytes: 100,
            busy_seconds: busy,
            busy_range: Some(BusyRange { turns: 5, least: busy * 0.95, greatest: busy * 1.05 }),
            seconds: 10.0,
            user_cpu: Some(busy),
            system_cpu: Some(0.0),
            ..TurnReport::default()
        }
    }

    fn of_turns(turn: TurnReport, turns: usize) -> TurnReport {
        let busy_range = turn.busy_range.map(|range| BusyRange { turns, ..range });
        TurnReport { busy_range, ..turn }
    }

    #[test]
    fn the_sentence_follows_the_figures() {
        let of = |new, plain, staged| {
            let turns =
                [turn("mapped", "mapped", new), turn(PLAIN, "", plain), turn("staged", "staged", staged)];
            compared(&turns[0], &turns)
        };
        assert_eq!(
            of(1.0, 4.0, 5.0),
            (
                Answer::Helps,
                "The direct path would help: calls are under way for 1.00 s (950.0 ms to 1.05 s) with mapped, 4.00 s (3.80 s \
                 to 4.20 s) with plain calls, the best of the others, whose turn takes 10.00 s; CPU 1.00 s against 4.00 s \
                 (5 turns each)."
                    .to_owned()
            )
        );
        let (answer, text) = of(2.0, 4.0, 1.0);
        assert!(answer == Answer::Slower && text.contains("with staged, the best of the others"), "{text}");
        assert!(of(3.8, 4.0, 5.0).1.starts_with("The direct path would make no difference that shows"));
        assert_eq!((of(3.8, 4.0, 5.0).0, of(6.0, 4.0, 5.0).0), (Answer::Noise, Answer::Slower));
        let (answer, text) = of(0.05, 0.1, 0.2);
        assert!(
            answer == Answer::HelpsLittle && text.starts_with("The direct path would help little"),
            "{text}"
        );
        assert!(is_direct(&turn("forebay", "mapped", 1.0)) && !is_direct(&turn("forebay", "staged", 1.0)));
        assert!(!is_direct(&TurnReport { errors: 1, ..turn("mapped", "mapped", 1.0) }));
    }

    #[test]
    fn ranges_and_numbers_of_turns_decide() {
        let wide = |busy: f64, part: f64| {
            let range = BusyRange { turns: 5, least: busy * (1.0 - part), greatest: busy * (1.0 + part) };
            TurnReport { busy_range: Some(range), ..turn("mapped", "mapped", busy) }
        };
        let plain = turn(PLAIN, "", 4.0);
        assert_eq!(
            (judge(&wide(3.0, 0.2), &plain), judge(&wide(3.0, 0.3), &plain)),
            (SpeedVerdict::Faster, SpeedVerdict::Noise)
        );
        for (turns, busy, judged) in [
            (3, 3.0, SpeedVerdict::Faster),
            (2, 3.0, SpeedVerdict::Noise),
            (1, 1.7, SpeedVerdict::Noise),
            (1, 1.5, SpeedVerdict::Faster),
        ] {
            let few = |turn| of_turns(turn, turns);
            assert_eq!(
                judge(&few(turn("mapped", "mapped", busy)), &few(plain.clone())),
                judged,
                "{turns} {busy}"
            );
        }
        let turns = [turn("mapped", "mapped", 3.0), turn(PLAIN, "", 4.0)].map(|turn| of_turns(turn, 1));
        let (answer, text) = compared(&turns[0], &turns);
        assert!(
            answer == Answer::Noise && text.ends_with("is more than noise: --rounds 3, or more)."),
            "{text}"
        );
    }

    /// Ways of one engine are not compared with each other.
    #[test]
    fn each_engine_is_compared_with_the_best_of_the_others() {
        let mut turns = vec![
            turn(PLAIN, "", 4.0),
            turn(ELECTED, "staged", 2.0),
            turn("staged", "staged", 1.95),
            turn("mapped", "mapped", 3.0),
            TurnReport { errors: 1, ..turn("p2p", "p2p", 0.5) },
        ];
        compare(&mut turns);
        let told = |at: usize| turns[at].against.as_ref().map(|one| (one.way.as_str(), one.judged));
        assert_eq!(told(0), Some(("staged", SpeedVerdict::Slower)));
        assert_eq!(told(1), Some(("mapped", SpeedVerdict::Faster)));
        assert_eq!(told(3), Some(("staged", SpeedVerdict::Slower)));
        assert_eq!(told(4), None);
        let best = best_here(&turns).unwrap();
        assert!(
            best.starts_with("The fastest here is staged, 1.95 s") && best.contains("with mapped"),
            "{best}"
        );
        turns.truncate(2);
        turns[1].busy_seconds = 3.95;
        compare(&mut turns);
        assert_eq!(best_here(&turns).unwrap(), "forebay and plain differ within the noise.");
    }

    #[test]
    fn forebays_own_turn_stands_for_the_direct_path_and_only_like_is_compared() {
        let turns = [("p2p", "p2p", 1.0), ("mapped", "mapped", 0.5), (ELECTED, "mapped", 2.0)]
            .map(|(way, engine, busy)| turn(way, engine, busy));
        assert_eq!(direct(&turns).unwrap().way, ELECTED);
        assert_eq!(direct(&turns[..2]).unwrap().way, "mapped");
        assert!(direct(&[turn(ELECTED, "staged", 1.0)]).is_none());
        let plain = turn(PLAIN, "", 4.0);
        let warm = TurnReport { state: "warm".to_owned(), ..plain.clone() };
        let cold = TurnReport { state: "cold".to_owned(), ..turn("mapped", "mapped", 1.0) };
        assert_eq!(
            compared(&cold, &[warm]),
            (
                Answer::Unknown,
                "Whether the direct path would help is unknown: the turns are not alike: mapped has 100 bytes, 0 \
                 failed, state cold; plain has 100 bytes, 0 failed, state warm."
                    .to_owned()
            )
        );
        for other in [TurnReport { errors: 1, ..plain.clone() }, TurnReport { bytes: 90, ..plain }] {
            assert!(compared(&turn("mapped", "mapped", 1.0), &[other]).1.contains("not alike"));
        }
        assert!(compared(&turn("mapped", "mapped", 1.0), &[]).1.contains("--engine plain,staged"));
    }
}
