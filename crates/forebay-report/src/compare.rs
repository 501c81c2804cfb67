//! Compares two reports: figures that got better, got worse, or are within the noise.

use std::collections::{HashMap, HashSet};
use std::fmt::Write;
use std::path::Path;

use forebay_error::Result;
use serde::Serialize;

use crate::folder;
use crate::model::{Report, Row, State, Table};
use crate::quantity::{CLEAR_FACTOR, MIN_RUNS, Quantity, Verdict, figure, ratio};

/// A figure of both reports.
#[derive(Clone, Debug, Serialize)]
pub struct Change {
    /// Table and row.
    pub row: String,
    /// The figure.
    pub quantity: Quantity,
    /// Median of the first report.
    pub old: f64,
    /// Median of the second.
    pub new: f64,
    /// The second divided by the first.
    pub ratio: f64,
    /// The verdict.
    pub verdict: Verdict,
}

/// What a comparison comes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// A figure is better, and none is worse.
    Better,
    /// A figure is worse, or a row fails that did not.
    Worse,
    /// All differences are within the noise, or too few runs show them.
    Noise,
    /// The two have no row that both measured.
    NothingInCommon,
}

/// The differences of two reports.
#[derive(Clone, Debug, Serialize)]
pub struct Comparison {
    /// When and by what each was measured.
    pub reports: [String; 2],
    /// Figures that both have.
    pub changes: Vec<Change>,
    /// Rows that the first report has measured and that fail in the second, with the reason: they count as worse.
    pub failed: Vec<String>,
    /// Notes for the reader.
    pub notes: Vec<String>,
}

/// Compares two reports by their `report.json`; a folder stands for the one in it.
pub fn compare(old: &Path, new: &Path) -> Result<Comparison> {
    let load = |path: &Path| {
        folder::load(&if path.is_dir() { path.join(folder::STATE_FILE) } else { path.to_owned() })
    };
    Ok(Comparison::of(&load(old)?, &load(new)?))
}

impl Comparison {
    pub(crate) fn of(old: &Report, new: &Report) -> Self {
        let reports = [old, new].map(|one| {
            let title = if one.title.is_empty() { String::new() } else { format!("{}, ", one.title) };
            format!("{title}{} UTC, forebay {}: {}", one.updated, one.release, one.command.paths.join(", "))
        });
        let mut all = Self { reports, changes: Vec::new(), failed: Vec::new(), notes: differences(old, new) };
        let mut missing = 0;
        let first_of: HashMap<_, _> = old.tables.iter().rev().map(|one| (one.id.as_str(), one)).collect();
        let second: HashSet<_> = new.tables.iter().map(|one| one.id.as_str()).collect();
        for table in &new.tables {
            let Some(before) = first_of.get(table.id.as_str()) else {
                all.notes.push(format!("Only the second report has the table {}.", table.id));
                continue;
            };
            let rows: HashMap<_, _> = before.rows.iter().rev().map(|one| (one.id.as_str(), one)).collect();
            // Rows that the second report does not have at all.
            let there: HashSet<_> = table.rows.iter().map(|row| row.id.as_str()).collect();
            missing += rows.keys().filter(|id| !there.contains(*id)).count();
            for row in &table.rows {
                let before = rows.get(row.id.as_str()).copied();
                if let (Some(State::Done), State::Failed { reason, .. }) =
                    (before.map(|before| &before.state), &row.state)
                {
                    all.failed.push(format!("{}: {}: failed: {reason}", table.id, row.id));
                    continue;
                }
                let changes = before.map_or(Vec::new(), |before| changes(table, before, row));
                missing += usize::from(changes.is_empty());
                all.changes.extend(changes);
            }
        }
        for table in old.tables.iter().filter(|table| !second.contains(table.id.as_str())) {
            all.notes.push(format!("Only the first report has the table {}.", table.id));
        }
        all.notes.extend(by_chance(old, new));
        if missing > 0 {
            all.notes.push(format!("{missing} rows are not measured in both."));
        }
        all
    }

    /// How many figures have this verdict; a row that fails now is one that is worse.
    pub fn count(&self, verdict: Verdict) -> usize {
        let failed = if verdict == Verdict::Worse { self.failed.len() } else { 0 };
        self.changes.iter().filter(|change| change.verdict == verdict).count() + failed
    }

    /// What it comes to.
    pub fn outcome(&self) -> Outcome {
        let has = |verdict| self.count(verdict) > 0;
        match (has(Verdict::Worse), has(Verdict::Better), self.changes.is_empty()) {
            (true, ..) => Outcome::Worse,
            (_, true, _) => Outcome::Better,
            (.., true) => Outcome::NothingInCommon,
            _ => Outcome::Noise,
        }
    }

    /// How many figures are what.
    pub fn counts(&self) -> String {
        let of = |verdict| self.count(verdict);
        let few = match of(Verdict::Few) {
            0 => String::new(),
            few => {
                format!(
                    ", {few} not judged (fewer than {MIN_RUNS} runs, and less than {CLEAR_FACTOR}× apart)"
                )
            }
        };
        let [better, worse, noise] = [Verdict::Better, Verdict::Worse, Verdict::Noise].map(of);
        format!("{better} better, {worse} worse, {noise} within the noise{few}")
    }

    /// As text: worse figures first, then better ones.
    pub fn text(&self) -> String {
        let mut text = String::new();
        for row in &self.failed {
            let _ = writeln!(text, "worse: {row}");
        }
        for verdict in [Verdict::Worse, Verdict::Better] {
            for change in self.changes.iter().filter(|change| change.verdict == verdict) {
                let _ = writeln!(
                    text,
                    "{}: {}: {} {} -> {}, {}×",
                    verdict.word(),
                    change.row,
                    change.quantity.title(),
                    figure(change.old),
                    figure(change.new),
                    figure(change.ratio)
                );
            }
        }
        let _ = writeln!(text, "{}", self.counts());
        for note in &self.notes {
            let _ = writeln!(text, "note: {note}");
        }
        text
    }
}

/// How many figures are called better or worse though nothing changed: of two times n runs, all of one side are above all of
/// the other in two of (2n over n) orders.
fn by_chance(old: &Report, new: &Report) -> Option<String> {
    let fewest =
        |report: &Report| report.rows().map(|row| row.runs.len()).filter(|runs| *runs >= MIN_RUNS).min();
    let runs = fewest(old)?.min(fewest(new)?);
    let orders: f64 = (1..=runs).map(|one| (runs + one) as f64 / one as f64).product();
    let one_in = (orders / 2.0).round();
    (one_in < 50.0).then(|| {
        format!(
            "With {runs} runs a row, about one figure in {one_in} is called better or worse by chance alone; with 5 (--repeat \
             5), one in 126. It is more where the machine's speed changed between the two reports."
        )
    })
}

/// Reasons other than forebay for which figures of two reports differ.
fn differences(old: &Report, new: &Report) -> Vec<String> {
    let mut notes = Vec::new();
    if old.release != new.release {
        notes.push(format!("The first report is by forebay {}, the second by {}.", old.release, new.release));
    }
    if old.release == new.release && old.build != new.build {
        notes.push("The reports are by two builds of this release.".to_owned());
    }
    if folder::alike(&old.machine) != folder::alike(&new.machine) {
        notes.push("The reports are of different machines, devices or paths.".to_owned());
    }
    let (old, new) = (&old.command, &new.command);
    let extent = old.extent != new.extent;
    // Without a flag the extent decides.
    for (differs, what) in [
        (extent || old.seconds != new.seconds, "length of a run"),
        (old.size != new.size || extent && old.size.is_none(), "size of the file"),
        (old.repeat != new.repeat || extent && old.repeat.is_none(), "number of runs of a row"),
    ] {
        if differs {
            notes.push(format!("The reports do not have the same {what}."));
        }
    }
    notes
}

/// The table's first column, latency where it has one, and CPU.
fn changes(table: &Table, old: &Row, new: &Row) -> Vec<Change> {
    let first = table.columns.first().copied();
    let latency = table.columns.contains(&Quantity::MeanUs).then_some(Quantity::MeanUs);
    let mut quantities: Vec<Quantity> = Vec::new();
    for one in first.into_iter().chain(latency).chain([Quantity::CpuPerGb]) {
        if !quantities.contains(&one) {
            quantities.push(one);
        }
    }
    let of = |quantity: Quantity| {
        let (old, new_figure) = (old.summary(quantity)?, new.summary(quantity)?);
        let (ratio, verdict) = ratio(quantity, &new_figure, &old)?;
        let row = format!("{}: {}", table.id, new.id);
        Some(Change { row, quantity, old: old.median, new: new_figure.median, ratio, verdict })
    };
    quantities.into_iter().filter_map(of).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Run;
    use crate::plan::Planned;

    #[test]
    fn each_figure_is_compared_once() {
        let mut plan = Planned::new("own", "Own", &["type"], &[Quantity::CpuPerGb, Quantity::MeanUs]);
        let row = plan.absent(&["0"], "");
        let run = Run { seconds: 1.0, bytes: 1 << 30, mean_us: 9.0, user_s: 0.5, ..Run::default() };
        row.runs.push(run);
        let row = row.clone();
        assert_eq!(changes(&plan.table, &row, &row).len(), 2);
    }
}
