//! A report for people.

use std::fmt::Write;

use forebay_error::plain;
use forebay_trace::bytes;

use crate::report::{EngineComparison, ReplayReport, SpeedVerdict, TurnReport};
use crate::verdict::seconds;

/// Files that are listed by name.
const MAX_LISTED: usize = 8;

/// The report as text.
pub fn text(report: &ReplayReport) -> String {
    let mut text = String::new();
    head(&mut text, report);
    files(&mut text, report);
    left_out(&mut text, report);
    table(&mut text, report);
    compared(&mut text, report);
    reasons(&mut text, report);
    if report.is_cut {
        text.push_str("note: stopped before all turns were done: the figures are of the finished ones\n");
    }
    let _ = writeln!(text, "\n{}", plain(&report.verdict));
    text
}

fn head(text: &mut String, report: &ReplayReport) {
    let recorded = &report.recorded;
    let command = plain(&recorded.command);
    let _ = writeln!(text, "{}", if command.is_empty() { "(unknown command)" } else { &command });
    let _ = writeln!(
        text,
        "pid {} on {}: {} of {}, {} read, {} written",
        recorded.pid,
        plain(&recorded.host),
        count(recorded.turn.calls, "transfer"),
        count(recorded.callers as u64, "thread or stream"),
        bytes(recorded.turn.read),
        bytes(recorded.turn.written)
    );
    let gaps = if report.is_fast { "as fast as it goes" } else { "as recorded" };
    let memory = match (&report.gpu, report.has_gpu_calls) {
        (_, false) => "host memory".to_owned(),
        (Some(gpu), _) => plain(gpu).into_owned(),
        (None, _) => "host memory, since no GPU is here".to_owned(),
    };
    let _ = writeln!(text, "gaps: {gaps}; memory: {memory}");
    if !recorded.is_closed {
        text.push_str("note: the trace was not closed: the process was killed or still runs\n");
    }
}

fn files(text: &mut String, report: &ReplayReport) {
    let made = report.files.iter().filter(|file| file.made.is_some());
    let _ = write!(text, "files: {}", report.files.len());
    if let Some((folder, system)) = &report.made_in {
        let _ = write!(text, ", of which {} made in {} ({system})", made.clone().count(), plain(folder));
    }
    text.push('\n');
    for file in made.clone().take(MAX_LISTED) {
        let why = file.made.as_deref().unwrap_or_default();
        let _ = writeln!(text, "  made for {}: {}", plain(&file.path), plain(why));
    }
    let more = made.count().saturating_sub(MAX_LISTED);
    if more > 0 {
        let _ = writeln!(text, "  and {more} more");
    }
}

fn left_out(text: &mut String, report: &ReplayReport) {
    let (left_out, changed) = (report.left_out, report.changed);
    let rows = [
        (left_out.without_bytes, "not repeated, since they move no bytes"),
        (left_out.failed, "not repeated, since they failed or were cancelled when recorded"),
        (left_out.damaged, "not repeated, since their records are damaged"),
        (left_out.lost, "not repeated, since they could not be recorded"),
        (left_out.unknown, "not repeated, since this release does not know them"),
        (changed.vectored, "of several pieces, repeated as one each"),
        (changed.managed, "of managed memory, repeated with the GPU's own"),
        (changed.late, "whose range was known late, repeated with it known"),
    ];
    for (number, what) in rows.into_iter().filter(|(number, _)| *number > 0) {
        let _ = writeln!(text, "{}: {what}", count(number, "call"));
    }
}

fn table(text: &mut String, report: &ReplayReport) {
    let rows: Vec<_> = std::iter::once(&report.recorded.turn).chain(&report.turns).collect();
    let widest = rows.iter().map(|turn| engines(turn).len()).max().unwrap_or(0).max(7);
    let _ = writeln!(
        text,
        "\n{:<10} {:<widest$} {:<6} {:>9} {:>7} {:>10} {:>8} {:>8} {:>8} {:>9} {:>9} {:>8}",
        "turn",
        "engines",
        "state",
        "calls",
        "failed",
        "bytes",
        "time s",
        "busy s",
        "GB/s",
        "p50 us",
        "p99 us",
        "CPU s"
    );
    for turn in rows {
        let cpu = turn.cpu().map_or_else(|| "–".to_owned(), |cpu| format!("{cpu:.3}"));
        let _ = writeln!(
            text,
            "{:<10} {:<widest$} {:<6} {:>9} {:>7} {:>10} {:>8.3} {:>8.3} {:>8.3} {:>9.1} {:>9.1} {cpu:>8}",
            turn.way,
            engines(turn),
            turn.state,
            turn.calls,
            turn.errors,
            bytes(turn.bytes),
            turn.seconds,
            turn.busy_seconds,
            turn.gb_per_s,
            turn.p50_us,
            turn.p99_us,
        );
    }
}

/// Each way beside the best of another engine.
fn compared(text: &mut String, report: &ReplayReport) {
    let rows = || report.turns.iter().filter_map(|turn| Some((turn, turn.busy_range?)));
    let Some(most) = rows().map(|(_, range)| range.turns).max() else { return };
    let least = rows().map(|(_, range)| range.turns).min().unwrap_or(most);
    let turns = if least == most { most.to_string() } else { format!("{least} to {most}") };
    let head = (format!("turns: {turns}"), "busy", "least to greatest");
    let _ = writeln!(text, "\n{:<10} {:>9} {:>22}  against the best of the others", head.0, head.1, head.2);
    for (turn, range) in rows() {
        let against = turn.against.as_ref().map_or_else(|| "–".to_owned(), against);
        let busy = seconds(turn.busy_seconds);
        let range = format!("{} to {}", seconds(range.least), seconds(range.greatest));
        let _ = writeln!(text, "{:<10} {busy:>9} {range:>22}  {against}", turn.way);
    }
}

fn against(against: &EngineComparison) -> String {
    let word = match against.judged {
        SpeedVerdict::Faster => "faster than",
        SpeedVerdict::Slower => "slower than",
        SpeedVerdict::Noise => "within the noise of",
    };
    format!("{word} {}: {:.2}x as fast", against.way, against.ratio)
}

fn engines(turn: &TurnReport) -> String {
    let names: Vec<_> = turn.engines.iter().map(|one| one.engine.as_str()).collect();
    if names.is_empty() { "–".to_owned() } else { names.join("+") }
}

fn reasons(text: &mut String, report: &ReplayReport) {
    let mut line = |what: &str, reason: &str, hint: Option<&str>| {
        let _ = writeln!(text, "{what}: {}", plain(reason));
        if let Some(hint) = hint {
            let _ = writeln!(text, "  hint: {}", plain(hint));
        }
    };
    for turn in &report.turns {
        if let Some(error) = &turn.first_error {
            line(&format!("{} failed {}", turn.way, count(turn.errors, "time")), error, None);
        }
        for one in turn.not_used.iter().filter(|_| turn.way == crate::ELECTED) {
            line(&format!("{} did not use {}", turn.way, one.engine), &one.reason, one.hint.as_deref());
        }
    }
    for one in &report.not_here {
        let what = if report.turn(&one.way).is_some() { "no further turn of" } else { "no turn of" };
        line(&format!("{what} {}", one.way), &one.reason, one.hint.as_deref());
    }
}

fn count(number: u64, what: &str) -> String {
    match (number, what) {
        (1, what) => format!("1 {what}"),
        (_, "thread or stream") => format!("{number} threads or streams"),
        _ => format!("{number} {what}s"),
    }
}
