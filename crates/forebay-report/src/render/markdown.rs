//! The report as Markdown.

use std::fmt::Write;

use super::{counted, findings, front, words};
use crate::model::{Report, Table};

/// The whole report.
pub(crate) fn markdown(report: &Report) -> String {
    let mut text = format!("# {}\n\n", plain(&front::title(report)));
    if !report.note.is_empty() {
        let _ = writeln!(text, "{}\n", plain(&report.note));
    }
    let _ = writeln!(
        text,
        "{}; begun {} UTC, last run {} UTC, forebay {}.\n",
        words::counts(report),
        report.begun,
        report.updated,
        report.release
    );
    for (head, sentence) in findings::findings(report) {
        let _ = writeln!(text, "- **{head}**: {}", plain(&sentence));
    }
    let _ = writeln!(text, "\n    {}\n", words::command(report));
    machine(&mut text, report);
    for note in words::top(report) {
        let _ = writeln!(text, "- {}", plain(&note));
    }
    for table in &report.tables {
        text.push_str(&one(report, table));
    }
    text
}

fn machine(text: &mut String, report: &Report) {
    for (name, value) in words::machine(&report.machine) {
        let _ = writeln!(text, "- {name}: {}", plain(&value));
    }
    if report.machine.topology.parts().next().is_none() {
        return;
    }
    for (heads, rows) in [words::parts_of_machine(&report.machine), words::matrix(&report.machine)] {
        text.push('\n');
        head(text, &heads.iter().map(|one| plain(one)).collect::<Vec<_>>(), heads.len());
        for row in rows {
            line(text, &row.iter().map(|one| plain(one)).collect::<Vec<_>>());
        }
    }
    match words::distances(&report.machine) {
        none if none.is_empty() => text.push('\n'),
        words => drop(writeln!(text, "\n{}.\n", plain(&words))),
    }
}

fn one(report: &Report, table: &Table) -> String {
    let mut text = format!("\n## {}\n\n", plain(&table.title));
    if let Some(source) = &table.source {
        let _ = writeln!(text, "Published: {}\n", plain(&words::source(source)));
    }
    let _ = writeln!(text, "{} {}\n", plain(&table.meaning), plain(&words::ours(report, table)));
    for note in &table.notes {
        let _ = writeln!(text, "- {}", plain(note));
    }
    if !table.notes.is_empty() {
        text.push('\n');
    }
    figures(&mut text, table);
    let _ =
        write!(text, "\nHow the bytes went ({}):\n\n", words::engines_explained(table).trim_end_matches('.'));
    details(&mut text, table);
    counters(&mut text, table);
    text
}

fn figures(text: &mut String, table: &Table) {
    let mut heads: Vec<String> = table.axes.iter().map(|axis| plain(axis)).collect();
    for quantity in &table.columns {
        heads.push(quantity.title().to_owned());
        if words::has_published(table, *quantity) {
            heads.push(plain(table.whose()));
        }
    }
    heads.extend(words::ratio_title(table).map(|title| plain(&title)));
    head(text, &heads, table.axes.len());
    for row in &table.rows {
        let mut cells: Vec<String> = row.labels.iter().map(|label| plain(label)).collect();
        for (index, quantity) in table.columns.iter().enumerate() {
            let outcome = words::outcome(row).filter(|_| index == 0);
            cells.push(outcome.map_or_else(|| words::median(row, *quantity), |outcome| plain(&outcome)));
            if words::has_published(table, *quantity) {
                cells.push(words::published(row, *quantity));
            }
        }
        if table.ratio.is_some() {
            let ratios: Vec<_> = words::ratios(table, row).into_iter().map(|(text, _)| text).collect();
            cells.push(plain(&ratios.join("; ")));
        }
        line(text, &cells);
    }
}

fn details(text: &mut String, table: &Table) {
    let notes = words::footnotes(table);
    head(
        text,
        &["row", "moved by", "page cache", "ceiling reached", "CPU, user + system", "runs: range", "notes"]
            .map(str::to_owned),
        2,
    );
    for (row, own) in table.rows.iter().zip(&notes.of).filter(|(row, _)| !row.runs.is_empty()) {
        let marks: Vec<String> = own.iter().map(|at| format!("[{}]", at + 1)).collect();
        let beside = words::beside(table, row).join(" ");
        let cells = [
            row.id.clone(),
            words::engines(&row.runs),
            words::cache(row),
            words::ceiling(table, row),
            words::cpu(row),
            words::repetitions(table, row),
            format!("{} {beside}", marks.join(" ")).trim().to_owned(),
        ];
        line(text, &cells.map(|cell| plain(&cell)));
    }
    if !notes.all.is_empty() {
        text.push('\n');
    }
    for (index, note) in notes.all.iter().enumerate() {
        let _ = writeln!(text, "{}. {}", index + 1, plain(note));
    }
}

pub(super) fn head(text: &mut String, heads: &[String], left: usize) {
    line(text, heads);
    let rule: Vec<&str> = (0..heads.len()).map(|index| if index < left { "---" } else { "---:" }).collect();
    let _ = writeln!(text, "|{}|", rule.join("|"));
}

pub(super) fn line(text: &mut String, cells: &[String]) {
    let _ = writeln!(text, "| {} |", cells.join(" | "));
}

/// What the kernel counted beside rows.
fn counters(text: &mut String, table: &Table) {
    for (title, heads, rows) in counted::tables(table) {
        let _ = writeln!(text, "\n{}:\n", plain(title));
        head(text, &heads.iter().map(|one| plain(one)).collect::<Vec<_>>(), 2);
        for row in rows {
            line(text, &row.iter().map(|one| plain(one)).collect::<Vec<_>>());
        }
    }
}

/// Text escaped for Markdown.
pub(super) fn plain(text: &str) -> String {
    text.replace('|', "\\|").replace('\n', " ").replace('<', "&lt;").replace('*', "\\*").replace('_', "\\_")
}
