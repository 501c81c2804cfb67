//! Going on from what an earlier call measured.

use std::collections::HashMap;

use crate::model::{Report, Row, State};

/// Takes over the runs of an earlier call. Failed rows, and rows whose program was missing, are tried again after all
/// others.
pub(crate) fn adopt(report: &mut Report, old: Report) {
    let again = old.waiting() == 0;
    let before = old.place();
    report.earlier.clone_from(&old.earlier);
    let has_runs = old.rows().flat_map(|row| &row.runs).any(|run| run.place == old.earlier.len());
    if has_runs && !before.is_same(&report.place()) {
        report.earlier.push(before.clone());
    }
    if report.title.is_empty() {
        report.title = old.title;
    }
    if report.note.is_empty() {
        report.note = old.note;
    }
    report.begun = old.begun;
    report.updated = old.updated;
    let mut rows: HashMap<(String, String), Row> = old
        .tables
        .into_iter()
        .flat_map(|table| table.rows.into_iter().map(move |row| ((table.id.clone(), row.id.clone()), row)))
        .collect();
    for table in &mut report.tables {
        for row in &mut table.rows {
            let Some(old) = rows.remove(&(table.id.clone(), row.id.clone())) else { continue };
            // With other CPUs it has other threads.
            if old.command != row.command {
                continue;
            }
            row.runs = old.runs;
            // Rows that the plan leaves out stay out.
            if row.is_waiting() && !(again && old.state != State::Done) {
                row.state = old.state;
            }
        }
    }
    if report.waiting() == 0 {
        // Nothing is going to be measured here.
        report.earlier = old.earlier;
        (report.machine, report.release, report.build) = (before.machine, before.release, before.build);
    }
}
