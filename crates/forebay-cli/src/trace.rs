//! `forebay trace`: what a program did, from the trace that `forebay run --trace` wrote.

use std::path::PathBuf;

use clap::Args;
use forebay_error::plain_json;
use forebay_trace::{CSV_HEADER, TraceReader, TraceSummary, csv_line, json_line, text};
use serde_json::json;

use crate::console::{Console, Failure};

/// Sum up a trace of cuFile calls, or print its records.
///
/// The format is documented in docs/reference/trace.md.
#[derive(Args, Clone, Debug)]
pub(crate) struct Trace {
    /// A trace that `forebay run --trace FILE` wrote
    #[arg(value_name = "FILE", value_parser = crate::names::source())]
    file: PathBuf,
    /// Print JSON lines: the header, every call, the summary
    #[arg(long, conflicts_with = "csv")]
    json: bool,
    /// Print every call as a line of CSV
    #[arg(long)]
    csv: bool,
}

/// Runs the command.
pub(crate) fn run(args: &Trace, console: &Console<'_>) -> Result<i32, Failure> {
    let mut reader = TraceReader::open(&args.file)?;
    if !args.json && !args.csv {
        let summary = text(&TraceSummary::of(reader)?);
        console.line(summary.trim_end());
        return Ok(0);
    }
    if args.csv {
        console.line(CSV_HEADER);
    } else {
        console.line(plain_json(&header(&reader).to_string()));
    }
    let mut lines = String::new();
    while let Some(record) = reader.next() {
        let record = record?;
        let path = reader.name(record.file);
        if args.csv {
            lines.push_str(&csv_line(&record, path));
        } else {
            lines.push_str(&plain_json(&json_line(&record, path).to_string()));
        }
        lines.push('\n');
        if lines.len() > 64 << 10 {
            console.line(lines.trim_end());
            lines.clear();
            if console.is_lost() {
                return Ok(0);
            }
        }
    }
    if args.json {
        let summary = TraceSummary::of(TraceReader::open(&args.file)?)?;
        lines.push_str(&plain_json(&json!({ "type": "summary", "summary": summary }).to_string()));
    }
    if !lines.is_empty() {
        console.line(lines.trim_end());
    }
    Ok(0)
}

fn header(reader: &TraceReader) -> serde_json::Value {
    let header = reader.header();
    json!({
        "type": "header",
        "version": header.version,
        "pid": header.pid,
        "parent": header.parent,
        "host": header.host,
        "release": header.release,
        "executable": header.executable.to_string_lossy(),
        "directory": header.directory.to_string_lossy(),
        "command": header.command.iter().map(|arg| arg.to_string_lossy()).collect::<Vec<_>>(),
        "wall_start_ns": header.wall_start,
        "clock_start_ns": header.clock_start,
        "end_ns": header.end,
        "lost": header.lost,
    })
}
