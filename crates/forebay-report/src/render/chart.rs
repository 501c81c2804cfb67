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
    /// Its y axis is logarithmic.
    pub(super) log: bool,
    /// A value along x that the source names, and what for.
    pub(super) mark: Option<(usize, &'a str)>,
    /// Values that its y axis reaches, too: those of the table's other charts of this quantity.
    pub(super) beside: Vec<f64>,
}

impl Plot<'_> {
    /// All values, ends of ranges included.
    pub(super) fn values(&self) -> Vec<f64> {
        let points = self.series.iter().flat_map(|one| &one.points);
        points.flat_map(|point| [point.y, point.low, point.high]).collect()
    }
}

/// The charts of a table. Those of one quantity have one scale: pairs, machines and directions can be compared by eye.
pub(super) fn plots(table: &Table) -> Vec<Option<Plot<'_>>> {
    let mut all: Vec<Option<Plot<'_>>> = table.charts.iter().map(|chart| plot(table, chart)).collect();
    let key = |plot: &Plot<'_>| (plot.y_title.clone(), plot.log);
    let values: Vec<_> = all.iter().flatten().map(|plot| (key(plot), plot.values())).collect();
    for plot in all.iter_mut().flatten() {
        let own = key(plot);
        plot.beside =
            values.iter().filter(|(key, _)| *key == own).flat_map(|(_, values)| values.clone()).collect();
    }
    all
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
    /// Index of its colour.
    pub(super) colour: usize,
    /// The source says that it is not more.
    pub(super) at_most: bool,
    /// It, or what it is divided by, ran once.
    pub(super) once: bool,
}

/// The figures of a chart; `None` if no row has measured one.
fn plot<'a>(table: &'a Table, chart: &'a Chart) -> Option<Plot<'a>> {
    let rows: Vec<&Row> = table
        .rows
        .iter()
        .filter(|row| chart.only.iter().all(|(axis, value)| row.labels.get(*axis) == Some(value)))
        .collect();
    let xs = distinct(&rows, chart.x);
    let names = distinct(&rows, chart.series);
    let (mut series, mut missing) = (Vec::new(), 0);
    let colours = colours(&rows, chart.series, &names);
    for (index, name) in names.iter().enumerate().filter(|(_, name)| chart.over.as_deref() != Some(**name)) {
        let colour = colours[index];
        let own: Vec<&Row> = rows
            .iter()
            .filter(|row| row.labels.get(chart.series).is_some_and(|one| one == name))
            .copied()
            .collect();
        let alone = names.len() == 1;
        let title = if alone { "this machine".to_owned() } else { (*name).to_owned() };
        // Of one series the bars differ by what they show.
        let paint = |row: &Row| if alone { side(row).unwrap_or(colour) } else { colour };
        let with = |row: &Row, point: Point| Point { colour: paint(row), ..point };
        let points: Vec<_> =
            own.iter().filter_map(|row| Some(with(row, measured(table, chart, row, &xs)?))).collect();
        missing += own.len() - points.len();
        series.push(Series { name: title, colour, published: false, points });
        if chart.over.is_none() {
            let points: Vec<Point> =
                own.iter().filter_map(|row| Some(with(row, published(chart, row, &xs)?))).collect();
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
    let mark = chart.mark.as_ref();
    let mark = mark.and_then(|(at, what)| Some((xs.iter().position(|x| x == at)?, what.as_str())));
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
        log: chart.log,
        mark,
        beside: Vec::new(),
    })
}

/// Libraries of Python beside ours.
const PEERS: [&str; 7] = [
    "safetensors",
    "fastsafetensors",
    "instanttensor",
    "instanttensor-mmap",
    "runai",
    "kvikio",
    "GDSDataset of MONAI",
];
/// The colour of each transfer type: ours has the first in every table, the traditional path the second.
const OF_TYPE: [usize; 8] = [0, 4, 1, 5, 6, 3, 2, 7];

/// The colour of a side, which is the same in all tables.
fn side(row: &Row) -> Option<usize> {
    if let Some(xfer) = row.xfer() {
        return OF_TYPE.get(usize::from(xfer)).copied();
    }
    let named = |name: &str| row.labels.iter().any(|label| label == name);
    if named("forebay") || named("GDSDataset of forebay") {
        return Some(0);
    }
    if named("PersistentDataset") {
        return Some(1);
    }
    PEERS.iter().position(|name| named(name)).map(|at| at % 6 + 2)
}

/// The colours of series: those of their sides, or one after the other where series are of other things.
fn colours(rows: &[&Row], axis: usize, names: &[&str]) -> Vec<usize> {
    let of = |name: &&str| {
        let mut sides: Vec<_> = rows
            .iter()
            // An absent row has no command, and no side.
            .filter(|row| !row.command.is_empty() && row.labels.get(axis).is_some_and(|label| label == name))
            .map(|row| side(row))
            .collect();
        sides.dedup();
        if let [one] = sides.as_slice() { *one } else { None }
    };
    let found: Vec<Option<usize>> = names.iter().map(of).collect();
    let is_clear = found.iter().enumerate().all(|(at, one)| one.is_some() && !found[..at].contains(one));
    if is_clear { found.into_iter().flatten().collect() } else { (0..names.len()).collect() }
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
        return Some(Point {
            x,
            y: own.median,
            low: own.min,
            high: own.max,
            colour: 0,
            at_most: false,
            once: own.runs == 1,
        });
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
    let once = own.runs.min(base.runs) == 1;
    Some(Point { x, y: own.median / base.median, low, high, colour: 0, at_most: false, once })
}

fn published(chart: &Chart, row: &Row, xs: &[&str]) -> Option<Point> {
    let y = *row.published.get(&chart.y)?;
    let at_most = row.at_most.contains(&chart.y);
    Some(Point { x: place(chart, row, xs)?, y, low: y, high: y, colour: 0, at_most, once: false })
}
