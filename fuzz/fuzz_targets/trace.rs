//! Whatever a trace holds, it is read to its end: every call is counted once, and each line that is written of it can be read again.
#![no_main]

use forebay_replay::ReplayPlan;
use forebay_trace::{CSV_HEADER, TraceReader, TraceSummary, csv_line, is_trace, json_line, text};
use libfuzzer_sys::fuzz_target;

/// Columns of a line of CSV.
fn columns(line: &str) -> usize {
    let mut quoted = false;
    let commas = line.chars().filter(|c| {
        quoted ^= *c == '"';
        *c == ',' && !quoted
    });
    1 + commas.count()
}

/// A good header: few inputs get past it by themselves.
const HEADER: &[u8] = include_bytes!("../seeds/trace/calls").split_at(4096).0;

fuzz_target!(|data: &[u8]| {
    if is_trace(data) {
        read(data);
    } else {
        read(&[HEADER, data].concat());
    }
});

fn read(data: &[u8]) {
    let Ok(mut reader) = TraceReader::new(data) else { return };
    let mut calls = 0;
    while let Some(record) = reader.next() {
        let Ok(record) = record else { break };
        calls += 1;
        let path = reader.name(record.file).map(std::path::Path::to_owned);
        assert!(path.as_ref().is_none_or(|path| path.as_os_str().len() <= 4096));
        assert_eq!(columns(&csv_line(&record, path.as_deref())), columns(CSV_HEADER));
        let line = json_line(&record, path.as_deref()).to_string();
        assert!(serde_json::from_str::<serde_json::Value>(&line).is_ok(), "{line}");
    }
    let again = || TraceReader::new(data);
    let Ok(summary) = again().and_then(TraceSummary::of) else { return };
    let of_calls: u64 = summary.apis.iter().map(|row| row.calls).sum();
    assert_eq!(of_calls, calls);
    text(&summary);
    let _ = again().and_then(ReplayPlan::of);
}
