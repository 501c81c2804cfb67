//! Receipts, for people.

use std::fmt::Write;

use forebay_error::plain;
use forebay_ways::Way;

use super::{bytes, time};
use crate::ops::Op;
use crate::snapshot::{EngineTotals, IoTotals, Snapshot};

/// Processes that are listed one by one.
const PROCESSES: usize = 16;
/// Files that are listed for each.
const FILES: usize = 5;

/// The receipt of a run: what each process moved, by which engine, and why not by a better one.
pub fn receipt(snapshots: &[Snapshot]) -> String {
    let busy: Vec<_> = snapshots.iter().filter(|snapshot| is_busy(snapshot)).collect();
    if busy.is_empty() {
        return "receipt: no process moved bytes on forebay\n".into();
    }
    let mut text = String::new();
    if busy.len() > 1 {
        let _ = writeln!(text, "receipt: {} processes", busy.len());
        for engine in all_engines(&busy) {
            engine_line(&mut text, &engine);
        }
    }
    for snapshot in busy.iter().take(PROCESSES) {
        let program = plain(&snapshot.program);
        let _ = writeln!(text, "receipt of process {}: {}", snapshot.pid, short(&program));
        text.push_str(&details(snapshot));
    }
    if busy.len() > PROCESSES {
        let _ = writeln!(text, "… and of {} more processes", busy.len() - PROCESSES);
    }
    text
}

/// What one process did, in indented lines: transfers, engines, refusals, notes, the slowest files.
pub fn details(snapshot: &Snapshot) -> String {
    let mut text = String::new();
    let transfers = [
        ("reads", &snapshot.read),
        ("writes", &snapshot.write),
        ("readv", &snapshot.readv),
        ("writev", &snapshot.writev),
    ];
    for (name, io) in transfers.into_iter().filter(|(_, io)| io.all() > 0) {
        io_line(&mut text, name, io);
    }
    calls(&mut text, snapshot);
    for engine in &snapshot.engines {
        engine_line(&mut text, engine);
    }
    refusals(&mut text, snapshot);
    for note in &snapshot.notes {
        let _ = writeln!(text, "  note: {}{}", plain(&note.text), times(note.times));
        hint(&mut text, note.hint.as_deref());
    }
    files(&mut text, snapshot);
    text
}

fn is_busy(snapshot: &Snapshot) -> bool {
    let io = [&snapshot.read, &snapshot.write, &snapshot.readv, &snapshot.writev];
    io.iter().any(|io| io.all() > 0)
        || snapshot.calls.batch_submit.all() > 0
        || snapshot.asyncs.started > 0
        || !snapshot.engines.is_empty()
        || [Op::HandleRegister, Op::BufRegister].iter().any(|op| snapshot.calls.get(*op).err > 0)
}

fn io_line(text: &mut String, name: &str, io: &IoTotals) {
    let all = io.all();
    let mean = time(io.latency_ns / all.max(1));
    let _ = write!(text, "  {name:<11} {all}: {}, mean {mean}", bytes(io.bytes));
    if io.unaligned > 0 {
        let _ = write!(text, ", {} unaligned", io.unaligned);
    }
    if io.err > 0 {
        let _ = write!(text, ", {} failed", io.err);
    }
    text.push('\n');
}

fn calls(text: &mut String, snapshot: &Snapshot) {
    let batch = &snapshot.batch;
    let submitted = snapshot.calls.get(Op::BatchSubmit);
    if submitted.all() > 0 {
        let all = bytes(batch.read_bytes.saturating_add(batch.write_bytes));
        let _ = writeln!(text, "  batches     {}: {all}, {} failed", submitted.all(), submitted.err);
    }
    if snapshot.asyncs.started > 0 {
        let _ = writeln!(
            text,
            "  async       {} started, {} in flight",
            snapshot.asyncs.started, snapshot.asyncs.in_flight
        );
    }
    let others = [Op::HandleRegister, Op::HandleDeregister, Op::BufRegister, Op::BufDeregister];
    let others = others.into_iter().map(|op| (op, snapshot.calls.get(op)));
    let others: Vec<String> = others
        .filter(|(_, count)| count.all() > 0)
        .map(|(op, count)| match count.err {
            0 => format!("{} {}", op.name(), count.ok),
            failed => format!("{} {} ({failed} failed)", op.name(), count.all()),
        })
        .collect();
    if !others.is_empty() {
        let _ = writeln!(text, "  calls       {}", others.join(", "));
    }
}

fn engine_line(text: &mut String, engine: &EngineTotals) {
    let ways = engine.ways(bytes);
    let ways = if ways.is_empty() { ways } else { format!(": {ways}") };
    let requests = engine.requests;
    let _ = writeln!(
        text,
        "  engine      {}: {} in {requests} request{}{ways}",
        plain(&engine.name),
        bytes(engine.bytes),
        if requests == 1 { "" } else { "s" }
    );
}

fn refusals(text: &mut String, snapshot: &Snapshot) {
    for refusal in &snapshot.refusals {
        let _ = writeln!(
            text,
            "  not {}: {} ({}{})",
            plain(&refusal.engine),
            plain(&refusal.reason),
            bytes(refusal.bytes),
            times(refusal.requests).trim_end_matches(')').replace(" (", ", ")
        );
        hint(text, refusal.hint.as_deref());
    }
    if snapshot.refusals_left_out > 0 {
        let _ = writeln!(text, "  … and {} requests refused for other reasons", snapshot.refusals_left_out);
    }
}

fn files(text: &mut String, snapshot: &Snapshot) {
    if snapshot.files.is_empty() {
        return;
    }
    text.push_str("  slowest files, by the sum of their latencies\n");
    for file in snapshot.files.iter().take(FILES) {
        let _ = writeln!(
            text,
            "    {:>10}  longest {:>10}  {:>8} transfers  {:>10}  {}",
            time(file.latency_ns),
            time(file.max_latency_ns),
            file.ops,
            bytes(file.bytes),
            plain(&file.name)
        );
    }
}

fn hint(text: &mut String, hint: Option<&str>) {
    if let Some(hint) = hint {
        let _ = writeln!(text, "    hint: {}", plain(hint));
    }
}

/// ` (3 times)`, or nothing for once.
fn times(count: u64) -> String {
    if count > 1 { format!(" ({count} times)") } else { String::new() }
}

/// The engines of all processes, those that moved most first.
fn all_engines(snapshots: &[&Snapshot]) -> Vec<EngineTotals> {
    let mut all: Vec<EngineTotals> = Vec::new();
    for engine in snapshots.iter().flat_map(|snapshot| &snapshot.engines) {
        let Some(sum) = all.iter_mut().find(|sum| sum.name == engine.name) else {
            all.push(engine.clone());
            continue;
        };
        for (sum, more) in [(&mut sum.requests, engine.requests), (&mut sum.bytes, engine.bytes)] {
            *sum = sum.saturating_add(more);
        }
        for way in Way::ALL {
            sum.moved[way] = sum.moved[way].saturating_add(engine.moved[way]);
        }
    }
    all.sort_by_key(|engine| std::cmp::Reverse(engine.bytes));
    all
}

fn short(program: &str) -> String {
    const LENGTH: usize = 100;
    if program.chars().count() <= LENGTH {
        return program.to_owned();
    }
    program.chars().take(LENGTH - 1).chain(['…']).collect()
}
