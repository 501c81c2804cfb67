//! All runs as CSV: a line for each run, each published row, and each drive or mount below a run.

use std::fmt::Write;

use crate::model::{Report, Row, Run, StorageFlow, StorageReport, Table};
use crate::quantity::Quantity;

/// The columns before the figures.
const HEADS: [&str; 7] = ["table", "row", "kind", "run", "part", "cache", "moved_by"];
/// The columns of a drive's or mount's counters.
const COUNTERS: [&str; 9] = [
    "device",
    "in_flight",
    "busy_percent",
    "ops_per_s",
    "mb_per_s",
    "kib_per_op",
    "await_ms",
    "rtt_ms",
    "retransmitted",
];

/// The whole report.
pub(crate) fn csv(report: &Report) -> String {
    let mut text = String::new();
    let quantities = Quantity::ALL.map(Quantity::name);
    let heads = HEADS.iter().map(|head| (*head).to_owned()).chain(quantities);
    let counters = COUNTERS.iter().map(|head| (*head).to_owned());
    line(&mut text, heads.chain(["ceiling_gb_per_s".to_owned()]).chain(counters));
    for table in &report.tables {
        for row in &table.rows {
            if !row.published.is_empty() {
                let figures = Quantity::ALL.map(|quantity| number(row.published.get(&quantity).copied()));
                let begin = head(table, row, "published", "", None);
                line(&mut text, begin.into_iter().chain(figures));
            }
            for (index, run) in row.runs.iter().enumerate() {
                of_run(&mut text, table, row, index, run);
            }
        }
    }
    text
}

fn of_run(text: &mut String, table: &Table, row: &Row, index: usize, run: &Run) {
    let number_of = (index + 1).to_string();
    let figures = Quantity::ALL.map(|quantity| number(quantity.of(run)));
    let ceiling = number(run.ceiling.as_ref().map(|one| one.gb_per_s));
    let begin = head(table, row, "run", &number_of, Some(run));
    line(text, begin.into_iter().chain(figures).chain([ceiling]));
    for one in &run.storage {
        for (kind, flow) in [("reads", &one.read), ("writes", &one.write)] {
            let empty = vec![String::new(); Quantity::ALL.len() + 1];
            let begin = head(table, row, kind, &number_of, Some(run));
            line(text, begin.into_iter().chain(empty).chain(counters(one, flow)));
        }
    }
}

fn head(table: &Table, row: &Row, kind: &str, number: &str, run: Option<&Run>) -> [String; 7] {
    let part = run.map_or_else(String::new, |run| (run.place + 1).to_string());
    let engines = run.map(|run| super::words::engines(std::slice::from_ref(run)));
    let cache = run.map_or_else(String::new, |run| run.cache.clone());
    let words = [table.id.as_str(), &row.id, kind, number].map(str::to_owned);
    let [table, row, kind, number] = words;
    [table, row, kind, number, part, cache, engines.unwrap_or_default()]
}

fn counters(one: &StorageReport, flow: &StorageFlow) -> [String; 9] {
    [
        one.name.clone(),
        number(one.in_flight),
        number(one.busy_percent),
        number(Some(flow.ops_per_s)),
        number(Some(flow.mb_per_s)),
        number(Some(flow.kib_per_op)),
        number(Some(flow.await_ms)),
        number(flow.rtt_ms),
        flow.retransmitted.map_or_else(String::new, |count| count.to_string()),
    ]
}

/// A figure that scripts read.
fn number(value: Option<f64>) -> String {
    value.map_or_else(String::new, |value| format!("{value}"))
}

/// Cells with commas, quotes or line ends are quoted (RFC 4180).
fn line(text: &mut String, cells: impl Iterator<Item = String>) {
    let quoted = cells.map(|cell| {
        if cell.contains([',', '"', '\n', '\r']) {
            format!("\"{}\"", cell.replace('"', "\"\""))
        } else {
            cell
        }
    });
    let mut cells: Vec<String> = quoted.collect();
    cells.resize(HEADS.len() + Quantity::ALL.len() + 1 + COUNTERS.len(), String::new());
    let _ = writeln!(text, "{}", cells.join(","));
}
