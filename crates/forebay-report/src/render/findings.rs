//! What a report found, in five sentences for its first page.

use std::fmt::Write as _;

use std::collections::BTreeMap;

use forebay_ways::EngineKind;

use super::words;
use crate::model::{Report, Row, State, Table};
use crate::quantity::{Quantity, Summary, Verdict, figure, ratio};

/// From this part of what raw calls reach on, in percent, the storage is what limits.
const AT_CEILING: f64 = 90.0;

/// Headings and sentences.
pub(super) fn findings(report: &Report) -> Vec<(&'static str, String)> {
    let pairs = Comparisons::of(report);
    vec![
        ("Fastest", fastest(report)),
        ("CPU", pairs.cpu()),
        ("Where it loses", pairs.losses(report)),
        ("What limits", limits(report)),
        ("What to do", advice(report)),
    ]
}

/// Rows that forebay's engines have moved.
fn own_rows(report: &Report) -> impl Iterator<Item = (&Table, &Row)> {
    let rows = report.tables.iter().flat_map(|table| table.rows.iter().map(move |row| (table, row)));
    rows.filter(|(_, row)| {
        let mut shares = row.runs.iter().flat_map(|run| &run.engines);
        row.state == State::Done && shares.any(|share| share.engine.parse::<EngineKind>().is_ok())
    })
}

fn is_warm(row: &Row) -> bool {
    row.runs.iter().any(|run| run.cache == "warm" || run.cache == "mixed")
}

fn rate(row: &Row) -> f64 {
    row.summary(Quantity::GbPerS).map_or(0.0, |one| one.median)
}

/// The row of the greatest rate.
fn best<'a>(rows: impl Iterator<Item = (&'a Table, &'a Row)>) -> Option<(&'a Table, &'a Row)> {
    rows.max_by(|one, other| rate(one.1).total_cmp(&rate(other.1)))
}

fn fastest(report: &Report) -> String {
    let cold = best(own_rows(report).filter(|(_, row)| !is_warm(row)));
    let warm = best(own_rows(report).filter(|(_, row)| is_warm(row)));
    let Some((table, row)) = cold.or(warm) else {
        return "No row of forebay's engines is complete.".to_owned();
    };
    let unit = table.unit();
    let of = |table: &Table, row: &Row| format!("{} in {}: {}", words::engines(&row.runs), table.id, row.id);
    let share = match table.ceiling_of(row) {
        Some(ceiling) => format!(
            ", {:.0} % of the {} {} that raw calls reach",
            ceiling.percent,
            unit.rate(ceiling.greatest),
            unit.title()
        ),
        None => String::new(),
    };
    let mut text = format!("{} {} by {}{share}.", unit.rate(rate(row)), unit.title(), of(table, row));
    if let Some((table, row)) = warm.filter(|_| cold.is_some()) {
        let (figure, unit) = (table.unit().rate(rate(row)), table.unit().title());
        let _ = write!(text, " With the file in the page cache {figure} {unit} by {}.", of(table, row));
    }
    text
}

/// Type 0 beside type 2, row by row.
struct Comparisons {
    /// Of each quantity: the row's name, the ratio, the verdict.
    of: BTreeMap<Quantity, Vec<(String, f64, Verdict)>>,
    /// Why they are not judged.
    unjudged: Option<String>,
}

const TRADITIONAL: &str = "the traditional path (type 2: O_DIRECT into host memory, then a copy)";

impl Comparisons {
    fn of(report: &Report) -> Self {
        let mut all = Self { of: BTreeMap::new(), unjudged: None };
        for (table, row, base) in report.pairs() {
            let why = row.unjudged.as_ref().or(base.unjudged.as_ref());
            all.unjudged = all.unjudged.or_else(|| why.cloned());
            for quantity in [Quantity::GbPerS, Quantity::CpuPerGb] {
                let found = row.summary(quantity).zip(base.summary(quantity));
                let found = found.and_then(|(own, base)| ratio(quantity, &own, &base));
                let name = format!("{}: {}", table.id, row.id);
                all.of
                    .entry(quantity)
                    .or_default()
                    .extend(found.map(|(value, verdict)| (name, value, verdict)));
            }
        }
        all
    }

    fn ratios(&self, quantity: Quantity) -> Option<Summary> {
        Summary::of(self.of.get(&quantity)?.iter().map(|(_, value, _)| *value).collect())
    }

    fn cpu(&self) -> String {
        let Some(all) = self.ratios(Quantity::CpuPerGb) else {
            return format!("No row has {TRADITIONAL} beside it.");
        };
        let range = if all.runs > 1 {
            format!(
                ", the median of {} pairs of rows ({} to {} ×)",
                all.runs,
                figure(all.min),
                figure(all.max)
            )
        } else {
            String::new()
        };
        format!("{} × the CPU for each GB of {TRADITIONAL}{range}.", figure(all.median))
    }

    /// The worst of a quantity, and how many are worse.
    fn worst(&self, quantity: Quantity) -> Option<(usize, usize, &str, f64)> {
        let all = self.of.get(&quantity).filter(|all| !all.is_empty())?;
        let better = if quantity.more_is_better() { 1.0 } else { -1.0 };
        let (name, value, _) =
            all.iter().min_by(|one, other| (one.1 * better).total_cmp(&(other.1 * better)))?;
        let losing = all.iter().filter(|(.., verdict)| *verdict == Verdict::Worse).count();
        Some((losing, all.len(), name, *value))
    }

    fn losses(&self, report: &Report) -> String {
        let worst = [(Quantity::GbPerS, "throughput"), (Quantity::CpuPerGb, "CPU for each GB")]
            .map(|(quantity, word)| self.worst(quantity).map(|found| (word, found)));
        let found: Vec<_> = worst.into_iter().flatten().collect();
        if found.is_empty() {
            return format!("No row has {TRADITIONAL} beside it.");
        }
        let least =
            found.iter().map(|(word, (.., name, value))| format!("{word} {} × in {name}", figure(*value)));
        let least = least.collect::<Vec<_>>().join("; ");
        if let Some(why) = &self.unjudged {
            return format!("Not judged: {why}. The least: {least}.");
        }
        let few = self.of.values().flatten().all(|(.., verdict)| *verdict == Verdict::Few);
        if few {
            return format!("Too few runs to judge. The least: {least}.");
        }
        let losing = found.iter().filter(|(_, (count, ..))| *count > 0);
        let losing: Vec<String> = losing
            .map(|(word, (count, of, name, value))| {
                format!("{word} in {count} of {of} comparisons, most in {name}: {} ×", figure(*value))
            })
            .collect();
        let failed = report.failed();
        match losing.as_slice() {
            [] if failed > 0 => format!("Nowhere by more than the noise; {failed} rows failed."),
            [] => format!("Nowhere by more than the noise. The least: {least}."),
            losing => format!("{}.", losing.join("; ")),
        }
    }
}

fn limits(report: &Report) -> String {
    let shares = own_rows(report).filter_map(|(table, row)| Some(table.ceiling_of(row)?.percent));
    let drive = busiest_drive(report).unwrap_or_default();
    let Some(shares) = Summary::of(shares.collect()) else {
        return format!("Not known: no row has a ceiling.{drive}");
    };
    let near = own_rows(report).filter_map(|(table, row)| Some(table.ceiling_of(row)?.percent));
    let near = near.filter(|percent| *percent >= AT_CEILING).count();
    let all = shares.runs;
    let of = format!("{near} of {all} rows reach {AT_CEILING} % or more of what raw calls do");
    if shares.median >= AT_CEILING {
        return format!("The storage: {of}.{drive}");
    }
    let why = most_frequent(refusals(report).map(|why| why.text.as_str()));
    let why = why.map_or(String::new(), |why| format!(" Most often: {why}."));
    format!("Not the storage alone: {of}, the median is {:.0} %.{drive}{why}", shares.median)
}

/// What the kernel counted of the drive beside the fastest row.
fn busiest_drive(report: &Report) -> Option<String> {
    let (_, row) = best(own_rows(report).filter(|(_, row)| !is_warm(row)))?;
    let drives = row.runs.last()?.storage.iter();
    let drives = drives.filter_map(|one| Some((&one.name, one.busy_percent?, one.in_flight?)));
    let (name, busy, in_flight) = drives.max_by(|one, other| one.1.total_cmp(&other.1))?;
    Some(format!(
        " In the fastest row {name} was busy {busy:.0} % of the time, with {} I/Os in flight.",
        figure(in_flight)
    ))
}

/// Why no better engine moved bytes, run by run.
fn refusals(report: &Report) -> impl Iterator<Item = &crate::model::Why> {
    own_rows(report).flat_map(|(_, row)| &row.runs).flat_map(|run| run.refused.iter().chain(&run.notes))
}

fn most_frequent<'a>(texts: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    for text in texts {
        *counts.entry(text).or_default() += 1;
    }
    counts.into_iter().max_by_key(|(_, count)| *count).map(|(text, _)| text)
}

fn advice(report: &Report) -> String {
    let failed = report.rows().find_map(|row| match &row.state {
        State::Failed { hint: Some(hint), .. } => Some(format!("Rows failed: {hint}.")),
        _ => None,
    });
    let busy = report.busy().map(|_| "Measure again on an idle machine.".to_owned());
    let hint = most_frequent(refusals(report).filter_map(|why| why.hint.as_deref()));
    let hint = hint.map(|hint| format!("{}.", capitalised(hint.trim_end_matches('.'))));
    let is_quick = report.rows().any(|row| row.runs.len() == 1);
    let again =
        is_quick.then(|| "Measure rows three times (without --quick) before figures are quoted.".to_owned());
    let all: Vec<String> = failed.into_iter().chain(busy).chain(hint).chain(again).collect();
    if all.is_empty() { "Nothing: no row says what would make it faster.".to_owned() } else { all.join(" ") }
}

fn capitalised(text: &str) -> String {
    let mut letters = text.chars();
    letters.next().map_or_else(String::new, |first| first.to_uppercase().chain(letters).collect())
}
