//! A summary for people.

use std::fmt::Write;

use forebay_error::plain;
use forebay_sys::UtcTime;

use crate::summary::{TimeBucket, TraceSummary};

/// The summary as text.
pub fn text(summary: &TraceSummary) -> String {
    let mut text = String::new();
    head(&mut text, summary);
    calls(&mut text, summary);
    engines(&mut text, summary);
    sizes(&mut text, summary);
    slowest(&mut text, summary);
    timeline(&mut text, summary);
    text
}

fn head(text: &mut String, summary: &TraceSummary) {
    let command = plain(&summary.command);
    let _ = writeln!(text, "{}", if command.is_empty() { "(unknown command)" } else { &command });
    let _ = writeln!(
        text,
        "pid {} on {}, {} UTC, forebay {}",
        summary.pid,
        plain(&summary.host),
        UtcTime::from_unix(summary.began as u64),
        plain(&summary.release)
    );
    let _ = writeln!(
        text,
        "{}, {} failed; {}, {}; {:.3} s",
        count(summary.calls, "call"),
        summary.failed,
        count(summary.threads as u64, "thread"),
        count(summary.files as u64, "file"),
        summary.seconds
    );
    if !summary.closed {
        text.push_str("note: the trace was not closed: the process was killed or still runs\n");
    }
    if summary.lost > 0 {
        let _ = writeln!(
            text,
            "note: {} could not be recorded: the file could not grow",
            count(summary.lost, "call")
        );
    }
    if summary.skipped > 0 {
        let _ =
            writeln!(text, "note: {} skipped: not known to this release", count(summary.skipped, "record"));
    }
}

fn calls(text: &mut String, summary: &TraceSummary) {
    if summary.apis.is_empty() {
        return;
    }
    let _ = writeln!(
        text,
        "\n{:<16} {:>10} {:>8} {:>11} {:>10} {:>10} {:>10} {:>11}",
        "call", "count", "failed", "bytes", "seconds", "p50 us", "p99 us", "max us"
    );
    for row in &summary.apis {
        let _ = writeln!(
            text,
            "{:<16} {:>10} {:>8} {:>11} {:>10.3} {:>10.1} {:>10.1} {:>11.1}",
            row.api,
            row.calls,
            row.failed,
            bytes(row.bytes),
            row.seconds,
            row.p50_us,
            row.p99_us,
            row.max_us
        );
    }
}

fn engines(text: &mut String, summary: &TraceSummary) {
    if summary.engines.is_empty() {
        return;
    }
    let _ =
        writeln!(text, "\n{:<8} {:<8} {:>10} {:>11} {:>11}", "engine", "memory", "calls", "read", "written");
    for row in &summary.engines {
        let (read, written) = (bytes(row.read), bytes(row.written));
        let _ =
            writeln!(text, "{:<8} {:<8} {:>10} {read:>11} {written:>11}", row.engine, row.memory, row.calls);
    }
}

fn sizes(text: &mut String, summary: &TraceSummary) {
    if summary.sizes.is_empty() {
        return;
    }
    let _ = writeln!(text, "\n{:<12} {:>10} {:>11}", "size from", "calls", "bytes");
    for row in &summary.sizes {
        let _ = writeln!(text, "{:<12} {:>10} {:>11}", bytes(row.from), row.calls, bytes(row.bytes));
    }
}

fn slowest(text: &mut String, summary: &TraceSummary) {
    if !summary.slowest_calls.is_empty() {
        let _ = writeln!(
            text,
            "\n{:>11} {:>9}  {:<16} {:<7} {:>14} {:>11} {:>11}  file",
            "slowest us", "at s", "call", "engine", "offset", "size", "result"
        );
    }
    for call in &summary.slowest_calls {
        let line = format!(
            "{:>11.1} {:>9.3}  {:<16} {:<7} {:>14} {:>11} {:>11}  {}",
            call.us,
            call.at,
            call.api,
            call.engine,
            call.offset,
            call.size,
            call.result,
            plain(&call.path)
        );
        let _ = writeln!(text, "{}", line.trim_end());
    }
    if !summary.slowest_files.is_empty() {
        let _ = writeln!(text, "\n{:>10} {:>10} {:>11}  slowest files", "seconds", "calls", "bytes");
    }
    for file in &summary.slowest_files {
        let (moved, path) = (bytes(file.bytes), plain(&file.path));
        let _ = writeln!(text, "{:>10.3} {:>10} {moved:>11}  {path}", file.seconds, file.calls);
    }
}

fn timeline(text: &mut String, summary: &TraceSummary) {
    let rate = |bucket: &TimeBucket, bytes: u64| bytes as f64 / bucket.seconds / 1e9;
    let both = |bucket: &TimeBucket| rate(bucket, bucket.read.saturating_add(bucket.written));
    let most = summary.timeline.iter().map(both).fold(0.0, f64::max);
    if most == 0.0 {
        return;
    }
    let _ = writeln!(text, "\n{:>10} {:>10} {:>11}", "from s", "read GB/s", "write GB/s");
    for bucket in &summary.timeline {
        let bar = "#".repeat((both(bucket) / most * 40.0).round() as usize);
        let (read, written) = (rate(bucket, bucket.read), rate(bucket, bucket.written));
        let line = format!("{:>10.4} {read:>10.3} {written:>11.3}  {bar}", bucket.from);
        let _ = writeln!(text, "{}", line.trim_end());
    }
}

fn count(number: u64, what: &str) -> String {
    format!("{number} {what}{}", if number == 1 { "" } else { "s" })
}

/// Bytes in words: `4.0 GiB`.
pub fn bytes(count: u64) -> String {
    let units = ["B", "KiB", "MiB", "GiB", "TiB"];
    let (mut value, mut unit) = (count as f64, 0);
    while value >= 1024.0 && unit + 1 < units.len() {
        value /= 1024.0;
        unit += 1;
    }
    if unit == 0 { format!("{count} B") } else { format!("{value:.1} {}", units[unit]) }
}
