//! One sentence: would the direct path help this program?

use crate::report::{ReplayReport, TurnReport};
use crate::{ELECTED, PLAIN};

/// Less than this part is noise.
const NOISE: f64 = 0.1;
/// A gain of less than this part of the whole time is little.
const LITTLE: f64 = 0.02;
/// The engines that spare the copy through host memory.
const DIRECT: [&str; 3] = ["mapped", "p2p", "rdma"];

pub(crate) fn of(report: &ReplayReport) -> String {
    if !report.has_gpu_calls {
        return "The direct path would not help: it ends in GPU memory, and this program moves host memory."
            .to_owned();
    }
    if report.gpu.is_none() {
        let whole = &report.recorded.turn;
        return format!(
            "Whether the direct path would help cannot be told without a GPU; it would save at most the {} in which the \
             recorded program had calls under way, {:.0} % of its time.",
            seconds(whole.busy_seconds),
            100.0 * whole.busy_seconds / whole.seconds.max(1e-9)
        );
    }
    match (direct(&report.turns), report.turn(PLAIN)) {
        (None, _) => format!("The direct path would not be taken here: {}.", why_not(report)),
        (Some(_), None) => unknown(&format!("plain calls had no turn (--engine {PLAIN},…)")),
        (Some(direct), Some(plain)) => compared(direct, plain),
    }
}

fn unknown(why: &str) -> String {
    format!("Whether the direct path would help cannot be told: {why}.")
}

/// The turn that is compared: forebay's own, otherwise the first one. The best of several would win by luck.
fn direct(turns: &[TurnReport]) -> Option<&TurnReport> {
    let own = turns.iter().filter(|turn| turn.way == ELECTED);
    own.chain(turns).find(|turn| is_direct(turn))
}

/// Whether the direct engines moved most bytes, and nothing failed.
fn is_direct(turn: &TurnReport) -> bool {
    let direct = turn.engines.iter().filter(|one| DIRECT.contains(&one.engine.as_str()));
    turn.errors == 0 && direct.map(|one| one.bytes).sum::<u64>() * 2 > turn.bytes
}

fn why_not(report: &ReplayReport) -> String {
    let absent = report.not_here.iter().map(|one| (&one.way, &one.reason));
    let unused = report.turn(ELECTED).into_iter().flat_map(|turn| &turn.not_used);
    let failed = report.turns.iter().filter_map(|turn| Some((&turn.way, turn.first_error.as_ref()?)));
    let all = absent.chain(unused.map(|one| (&one.engine, &one.reason))).chain(failed);
    let mut told = Vec::new();
    for name in DIRECT {
        if let Some((_, reason)) = all.clone().find(|(way, _)| *way == name) {
            told.push(format!("{name}: {reason}"));
        }
    }
    if told.is_empty() { "the engines that would take it had no turn".to_owned() } else { told.join("; ") }
}

fn compared(direct: &TurnReport, plain: &TurnReport) -> String {
    if plain.errors > 0 || (plain.bytes, &plain.state) != (direct.bytes, &direct.state) {
        let told = |turn: &TurnReport| {
            format!("{} has {} bytes, {} failed, state {}", turn.way, turn.bytes, turn.errors, turn.state)
        };
        return unknown(&format!("the turns are not alike: {}; {}", told(direct), told(plain)));
    }
    let (new, old) = (direct.busy_seconds, plain.busy_seconds);
    let both = format!(
        "calls are under way for {} with {}, for {} with plain calls, whose turn takes {}",
        seconds(new),
        name(direct),
        seconds(old),
        seconds(plain.seconds)
    );
    let cpu = match (direct.cpu(), plain.cpu()) {
        (Some(new), Some(old)) => format!("; CPU {} against {}", seconds(new), seconds(old)),
        _ => String::new(),
    };
    let word = if new > old * (1.0 - NOISE) {
        "would not help"
    } else if (old - new) < plain.seconds * LITTLE {
        "would help little"
    } else {
        "would help"
    };
    let noise = if (new - old).abs() <= old * NOISE { " (the difference is within the noise)" } else { "" };
    format!("The direct path {word}: {both}{noise}{cpu}.")
}

fn name(turn: &TurnReport) -> String {
    turn.engines.iter().map(|one| one.engine.as_str()).collect::<Vec<_>>().join("+")
}

fn seconds(value: f64) -> String {
    if value < 1.0 { format!("{:.1} ms", value * 1e3) } else { format!("{value:.2} s") }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::EngineBytes;

    fn turn(way: &str, engine: &str, busy: f64) -> TurnReport {
        let engines = vec![EngineBytes { engine: engine.to_owned(), bytes: 100 }];
        TurnReport {
            way: way.to_owned(),
            engines,
            bytes: 100,
            busy_seconds: busy,
            seconds: 10.0,
            user_cpu: Some(busy),
            system_cpu: Some(0.0),
            ..TurnReport::default()
        }
    }

    #[test]
    fn the_sentence_follows_the_figures() {
        let of = |new| compared(&turn("mapped", "mapped", new), &turn(PLAIN, PLAIN, 4.0));
        assert_eq!(
            of(1.0),
            "The direct path would help: calls are under way for 1.00 s with mapped, for 4.00 s with plain calls, whose \
             turn takes 10.00 s; CPU 1.00 s against 4.00 s."
        );
        assert!(
            of(3.8).starts_with("The direct path would not help") && of(3.8).contains("within the noise")
        );
        assert!(of(6.0).starts_with("The direct path would not help") && !of(6.0).contains("noise"));
        let little = compared(&turn("mapped", "mapped", 0.05), &turn(PLAIN, PLAIN, 0.1));
        assert!(
            little.starts_with(
                "The direct path would help little: calls are under way for 50.0 ms with mapped"
            )
        );
        assert!(is_direct(&turn("forebay", "mapped", 1.0)) && !is_direct(&turn("forebay", "staged", 1.0)));
        assert!(!is_direct(&TurnReport { errors: 1, ..turn("mapped", "mapped", 1.0) }));
    }

    #[test]
    fn one_turn_is_compared_and_only_with_one_like_it() {
        let turns = [("p2p", "p2p", 1.0), ("mapped", "mapped", 0.5), (ELECTED, "mapped", 2.0)]
            .map(|(way, engine, busy)| turn(way, engine, busy));
        assert_eq!(direct(&turns).unwrap().way, ELECTED);
        assert_eq!(direct(&turns[..2]).unwrap().way, "p2p");
        assert!(direct(&[turn(ELECTED, "staged", 1.0)]).is_none());
        let plain = turn(PLAIN, PLAIN, 4.0);
        let warm = TurnReport { state: "warm".to_owned(), ..plain.clone() };
        let cold = TurnReport { state: "cold".to_owned(), ..turn("mapped", "mapped", 1.0) };
        assert_eq!(
            compared(&cold, &warm),
            "Whether the direct path would help cannot be told: the turns are not alike: mapped has 100 bytes, 0 failed, \
             state cold; plain has 100 bytes, 0 failed, state warm."
        );
        for other in [TurnReport { errors: 1, ..plain.clone() }, TurnReport { bytes: 90, ..plain }] {
            assert!(compared(&turn("mapped", "mapped", 1.0), &other).contains("not alike"));
        }
    }
}
