//! The kernel's counters of drives and NFS mounts beside rows, under the names of iostat and nfsiostat.

use crate::model::{Row, StorageFlow, StorageReport, Table};
use crate::quantity::figure;

/// A title, heads and rows; the first two cells of a row are names.
pub(super) type Counted = (&'static str, Vec<String>, Vec<Vec<String>>);

/// The tables of drives and of mounts, as far as rows have any.
pub(super) fn tables(table: &Table) -> Vec<Counted> {
    let drives = Some(rows(table, true, drive)).filter(|rows| !rows.is_empty());
    let mounts = Some(rows(table, false, mount)).filter(|rows| !rows.is_empty());
    let heads = |names: &[&str]| {
        let all = ["row", "device", table.unit().title()].into_iter().chain(names.iter().copied());
        all.map(str::to_owned).collect()
    };
    let drives = drives.map(|rows| {
        let names = [
            "r/s",
            "rMB/s",
            "rrqm/s",
            "r_await ms",
            "rareq-sz KiB",
            "w/s",
            "wMB/s",
            "wrqm/s",
            "w_await ms",
            "wareq-sz KiB",
            "aqu-sz",
            "%util",
        ];
        ("Drives in the timed part, all programs (iostat's columns)", heads(&names), rows)
    });
    let mounts = mounts.map(|rows| {
        let names = ["ops/s", "MB/s", "kB/op", "retrans", "avg RTT ms", "avg exe ms", "avg queue ms"];
        ("NFS mounts in the timed part, all programs (nfsiostat's columns)", heads(&names), rows)
    });
    drives.into_iter().chain(mounts).collect()
}

/// The cells behind the names of a row: of its last run.
fn rows(table: &Table, is_drive: bool, cells: fn(&StorageReport) -> Vec<Vec<String>>) -> Vec<Vec<String>> {
    let of = |row: &Row| -> Vec<Vec<String>> {
        let Some(run) = row.runs.last() else { return Vec::new() };
        let rate = table.unit().of(run).map_or_else(|| super::words::NONE.to_owned(), figure);
        let counted = run.storage.iter().filter(|one| one.busy_percent.is_some() == is_drive);
        let lines = counted.flat_map(|one| cells(one).into_iter().map(|line| (one.name.clone(), line)));
        let with_names = lines.map(|(name, line)| {
            let kind = line.first().cloned().unwrap_or_default();
            let name = format!("{name}{kind}");
            [row.id.clone(), name, rate.clone()].into_iter().chain(line.into_iter().skip(1)).collect()
        });
        with_names.collect()
    };
    table.rows.iter().flat_map(of).collect()
}

/// A line for a drive.
fn drive(one: &StorageReport) -> Vec<Vec<String>> {
    let flow = |flow: &StorageFlow| {
        [flow.ops_per_s, flow.mb_per_s, flow.merged_per_s.unwrap_or(0.0), flow.await_ms, flow.kib_per_op]
            .map(figure)
    };
    let last = [one.in_flight, one.busy_percent].map(|value| figure(value.unwrap_or(0.0)));
    let cells = std::iter::once(String::new()).chain(flow(&one.read)).chain(flow(&one.write)).chain(last);
    vec![cells.collect()]
}

/// A line for each direction in which a mount moved anything.
fn mount(one: &StorageReport) -> Vec<Vec<String>> {
    let line = |(kind, flow): (&str, &StorageFlow)| {
        let ms = [flow.rtt_ms.unwrap_or(0.0), flow.await_ms, flow.queue_ms.unwrap_or(0.0)].map(figure);
        let first = [kind.to_owned(), figure(flow.ops_per_s), figure(flow.mb_per_s), figure(flow.kib_per_op)];
        let again = flow.retransmitted.unwrap_or(0).to_string();
        first.into_iter().chain([again]).chain(ms).collect()
    };
    let flows = [(" read", &one.read), (" write", &one.write)];
    flows.into_iter().filter(|(_, flow)| flow.ops_per_s > 0.0).map(line).collect()
}
