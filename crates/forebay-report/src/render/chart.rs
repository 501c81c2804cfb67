//! The figures of a chart.

use crate::model::{Chart, ChartKind, Row, State, Table};

/// A chart's figures.
pub(super) struct Plot<'a> {
    pub(super) title: &'a str,
    pub(super) kind: ChartKind,
    pub(super) x_title: &'a str,
    pub(super) y_title: String,
    pub(super) xs: Vec<&'a str>,
    pub(super) series: Vec<Series>,
    /// Whether a line at 1 is drawn.
    pub(super) at_one: bool,
    /// How many of its rows ran once.
    pub(super) once: Once,
    /// Its rows without a figure.
    pub(super) missing: usize,
}

/// Rows that ran once: their figures have no range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Once {
    None,
    Some,
    All,
}

/// A line, or the bars of one colour.
pub(super) struct Series {
    pub(super) name: String,
    /// Index of its colour.
    pub(super) colour: usize,
    pub(super) published: bool,
    pub(super) points: Vec<Point>,
}

/// A figure with its range.
#[derive(Clone, Copy, Debug)]
pub(super) struct Point {
    /// Index of the value along x.
    pub(super) x: usize,
    pub(super) y: f64,
    pub(super) low: f64,
    pub(super) high: f64,
    /// It, or what it is divided by, ran once.
    pub(super) once: bool,
}

/// The figures of a chart; `None` if no row has measured one.
pub(super) fn plot<'a>(table: &'a Table, chart: &'a Chart) -> Option<Plot<'a>> {
    let rows: Vec<&Row> = table
        .rows
        .iter()
        .filter(|row| chart.only.iter().all(|(axis, value)| row.labels.get(*axis) == Some(value)))
        .collect();
    let xs = distinct(&rows, chart.x);
    let names = distinct(&rows, chart.series);
    let (mut series, mut missing) = (Vec::new(), 0);
    for (colour, name) in names.iter().enumerate().filter(|(_, name)| chart.over.as_deref() != Some(**name)) {
        let own: Vec<&Row> = rows
            .iter()
            .filter(|row| row.labels.get(chart.series).is_some_and(|one| one == name))
            .copied()
            .collect();
        let alone = names.len() == 1;
        let title = if alone { "this machine".to_owned() } else { (*name).to_owned() };
        let points: Vec<_> = own.iter().filter_map(|row| measured(table, chart, row, &xs)).collect();
        missing += own.len() - points.len();
        series.push(Series { name: title, colour, published: false, points });
        if chart.over.is_none() {
            let points: Vec<Point> = own.iter().filter_map(|row| published(chart, row, &xs)).collect();
            let title = theirs(table, name, alone);
            if !points.is_empty() {
                series.push(Series { name: title, colour, published: true, points });
            }
        }
    }
    if series.iter().all(|one| one.published || one.points.is_empty()) {
        return None;
    }
    series.retain(|one| !one.points.is_empty());
    let points = || series.iter().filter(|one| !one.published).flat_map(|one| &one.points);
    let once = match points().filter(|point| point.once).count() {
        0 => Once::None,
        count if count == points().count() => Once::All,
        _ => Once::Some,
    };
    let y_title = match &chart.over {
        Some(base) => format!("{}, times that of {base}", chart.y.word()),
        None => chart.y.title().to_owned(),
    };
    let x_title = table.axes.get(chart.x).map_or("", String::as_str);
    Some(Plot {
        title: &chart.title,
        kind: chart.kind,
        x_title,
        y_title,
        xs,
        series,
        at_one: chart.over.is_some(),
        once,
        missing,
    })
}

/// The source and the series of these figures.
fn theirs(table: &Table, name: &str, alone: bool) -> String {
    let source = table.source.as_ref().filter(|source| !source.short.is_empty());
    let own = source.and_then(|source| source.names.get(name)).map_or(name, String::as_str);
    match (source, alone) {
        (Some(source), true) => source.short.clone(),
        (Some(source), false) => format!("{}: {own}", source.short),
        (None, true) => "published".to_owned(),
        (None, false) => format!("{name}, published"),
    }
}

/// The values of an axis, in their order.
fn distinct<'a>(rows: &[&'a Row], axis: usize) -> Vec<&'a str> {
    let mut all: Vec<&str> = Vec::new();
    for label in rows.iter().filter_map(|row| row.labels.get(axis)) {
        if !all.contains(&label.as_str()) {
            all.push(label);
        }
    }
    all
}

fn place(chart: &Chart, row: &Row, xs: &[&str]) -> Option<usize> {
    let label = row.labels.get(chart.x)?;
    xs.iter().position(|x| x == label)
}

fn measured(table: &Table, chart: &Chart, row: &Row, xs: &[&str]) -> Option<Point> {
    let x = place(chart, row, xs)?;
    // Rows with missing runs have no figure in the table either.
    let own = row.summary(chart.y).filter(|_| matches!(row.state, State::Done))?;
    let Some(base) = &chart.over else {
        return Some(Point { x, y: own.median, low: own.min, high: own.max, once: own.runs == 1 });
    };
    let partner = table.rows.iter().find(|other| {
        other
            .labels
            .iter()
            .zip(&row.labels)
            .enumerate()
            .all(|(axis, (other, own))| if axis == chart.series { other == base } else { other == own })
    })?;
    let is_done = matches!(partner.state, State::Done);
    let base = partner.summary(chart.y).filter(|base| is_done && base.min > 0.0)?;
    let (low, high) = (own.min / base.max, own.max / base.min);
    Some(Point { x, y: own.median / base.median, low, high, once: own.runs.min(base.runs) == 1 })
}

fn published(chart: &Chart, row: &Row, xs: &[&str]) -> Option<Point> {
    let y = *row.published.get(&chart.y)?;
    Some(Point { x: place(chart, row, xs)?, y, low: y, high: y, once: false })
}
