//! A user's own table, as TOML (`--spec`): docs/reference/report-spec.md.

use std::collections::{BTreeMap, HashSet};
use std::ops::RangeInclusive;
use std::path::Path;

use forebay_config::files::read_named;
use forebay_config::parse_size;
use forebay_error::{Error, ErrorKind, Result};
use serde::Deserialize;

use crate::model::{Chart, ChartKind, Compared};
use crate::plan::{Planned, Setup};
use crate::quantity::Quantity;
use crate::work::{Cache, Io, Work};

/// Most rows of a table: more are a mistake in the axes.
const MAX_ROWS: usize = 1000;
/// How long a run may be, as on the command line.
const RUN_SECONDS: RangeInclusive<f64> = 0.05..=3600.0;
/// Most threads that a row may ask for.
const MAX_THREADS: usize = 1 << 16;
const AXES: [&str; 8] = ["type", "io", "size", "threads", "cache", "engine", "pair", "flags"];

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Spec {
    title: String,
    #[serde(default)]
    meaning: String,
    source: Option<String>,
    #[serde(default)]
    notes: Vec<String>,
    repeat: Option<usize>,
    seconds: Option<f64>,
    columns: Option<Vec<Quantity>>,
    axes: toml::Table,
    compare: Option<CompareSpec>,
    #[serde(default)]
    chart: Vec<ChartSpec>,
    #[serde(default)]
    published: Vec<PublishedSpec>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct CompareSpec {
    axis: String,
    base: toml::Value,
    quantities: Option<Vec<Quantity>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ChartSpec {
    title: Option<String>,
    kind: Option<ChartKind>,
    x: String,
    series: String,
    y: Quantity,
    over: Option<toml::Value>,
    #[serde(default)]
    log: bool,
    #[serde(default)]
    only: BTreeMap<String, toml::Value>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct PublishedSpec {
    row: BTreeMap<String, toml::Value>,
    figures: BTreeMap<Quantity, f64>,
}

/// Reads the text of a spec.
pub(crate) fn read(path: &Path) -> Result<String> {
    let hint = "docs/reference/report-spec.md has an example";
    let bytes = read_named(path, "cannot read spec")
        .map_err(|error| if error.hints().is_empty() { error.hint(hint) } else { error })?;
    String::from_utf8(bytes)
        .map_err(|_| bad("the spec is not text".to_owned(), hint).with("path", path.display()))
}

/// The table of a spec.
pub(crate) fn plan(path: &Path, text: &str, setup: &Setup) -> Result<Planned> {
    build(text, setup, &name(path)).map_err(|error| error.with("path", path.display()))
}

/// The table's name: the file's.
fn name(path: &Path) -> String {
    let stem = path.file_stem().map_or_else(String::new, |stem| stem.to_string_lossy().into_owned());
    let plain = |c: char| if c.is_ascii_alphanumeric() { c } else { '-' };
    format!("spec-{}", stem.chars().map(plain).collect::<String>())
}

fn build(text: &str, setup: &Setup, id: &str) -> Result<Planned> {
    let spec: Spec = toml::from_str(text).map_err(|error| wrong(&error, text))?;
    let axes = axes(&spec.axes)?;
    let names: Vec<&str> = axes.iter().map(|(name, _)| name.as_str()).collect();
    let columns =
        spec.columns.clone().unwrap_or(vec![Quantity::GbPerS, Quantity::MeanUs, Quantity::CpuPerGb]);
    let mut plan = Planned::new(id, &spec.title, &names, &columns).meaning(&spec.meaning);
    if let Some(source) = &spec.source {
        plan = plan.source(source, source, "", &[]);
    }
    spec.notes.iter().for_each(|note| plan.note(note.clone()));
    plan.table.notes.extend(setup.note_of_host());
    let rows = axes.iter().fold(1_usize, |rows, (_, values)| rows.saturating_mul(values.len()));
    if rows > MAX_ROWS {
        return Err(bad(
            format!("the axes make {rows} rows"),
            &format!("give them fewer values: at most {MAX_ROWS} rows"),
        ));
    }
    let repeat = spec.repeat.unwrap_or(setup.scale.repeat);
    if !(1..1000).contains(&repeat) || spec.seconds.is_some_and(|time| !RUN_SECONDS.contains(&time)) {
        return Err(bad(
            "repeat is 1 to 999, seconds are 0.05 to 3600".to_owned(),
            "for example: repeat = 3, seconds = 1",
        ));
    }
    for row in 0..rows {
        let labels = labels(&axes, row);
        let work = work(&names, &labels, &spec, setup)?;
        let labels: Vec<&str> = labels.iter().map(String::as_str).collect();
        plan.row(&labels, repeat, work);
    }
    compare(&mut plan, &spec)?;
    charts(&mut plan, &spec)?;
    publish(&mut plan, &spec)?;
    Ok(plan)
}

/// Where the mistake is, and what there could be instead.
fn wrong(error: &toml::de::Error, text: &str) -> Error {
    let line = error.span().map_or(0, |span| text[..span.start.min(text.len())].matches('\n').count() + 1);
    let message = format!("cannot read spec: {}", error.message().replace('\n', " "));
    let made = Error::new(ErrorKind::InvalidInput, message).with("line", line);
    made.hint("docs/reference/report-spec.md has every key with an example")
}

fn bad(message: String, hint: &str) -> Error {
    Error::new(ErrorKind::InvalidInput, message).hint(hint)
}

/// The axes in the order of the table: TOML's own is by name.
fn axes(table: &toml::Table) -> Result<Vec<(String, Vec<String>)>> {
    let unknown = table.keys().find(|name| !AXES.contains(&name.as_str()));
    if let Some(name) = unknown {
        return Err(bad(format!("no such axis: {name:?}"), &format!("use some of: {}", AXES.join(", "))));
    }
    let mut all = Vec::new();
    for name in AXES {
        let Some(value) = table.get(name) else { continue };
        let values: Vec<String> =
            value.as_array().map_or(vec![label(value)], |all| all.iter().map(label).collect());
        if values.is_empty() {
            return Err(bad(
                format!("the axis {name:?} has no value"),
                &format!("for example: {name} = [{}]", example(name)),
            ));
        }
        let mut seen = HashSet::new();
        if let Some(value) = values.iter().find(|value| !seen.insert(*value)) {
            return Err(bad(format!("the axis {name:?} has {value:?} twice"), "name each value once"));
        }
        all.push((name.to_owned(), values));
    }
    if all.is_empty() {
        return Err(bad("the table has no axis".to_owned(), &format!("give some of: {}", AXES.join(", "))));
    }
    Ok(all)
}

fn example(axis: &str) -> &'static str {
    match axis {
        "type" => "0, 2",
        "io" => "\"read\", \"random read\"",
        "size" => "\"4K\", \"1M\"",
        "threads" => "1, 16",
        "cache" => "\"cold\", \"warm\"",
        "engine" => "\"staged\"",
        "pair" => "0, 1",
        _ => "\"--cache bypass\"",
    }
}

fn label(value: &toml::Value) -> String {
    match value {
        toml::Value::String(text) => text.clone(),
        toml::Value::Integer(number) => number.to_string(),
        toml::Value::Float(number) => number.to_string(),
        other => other.type_str().to_owned(),
    }
}

/// The labels of a row; the last axis changes fastest.
fn labels(axes: &[(String, Vec<String>)], mut row: usize) -> Vec<String> {
    let mut labels = Vec::new();
    for (_, values) in axes.iter().rev() {
        labels.push(values[row % values.len()].clone());
        row /= values.len();
    }
    labels.reverse();
    labels
}

fn work(names: &[&str], labels: &[String], spec: &Spec, setup: &Setup) -> Result<Work> {
    let mut bench = setup.bench(0, Io::Read, 1 << 20, 4);
    bench.seconds = spec.seconds.or(bench.seconds);
    for (name, label) in names.iter().zip(labels) {
        let wrong = || {
            bad(
                format!("{label:?} is no value of the axis {name:?}"),
                &format!("for example: {name} = [{}]", example(name)),
            )
        };
        match *name {
            "type" => bench.xfer = label.parse().ok().filter(|xfer| *xfer <= 7).ok_or_else(wrong)?,
            "io" => bench.io = io(label).ok_or_else(wrong)?,
            "size" => bench.size = parse_size(label).map_err(|_| wrong())?,
            "threads" => {
                let count = label.parse().ok().filter(|count| (1..=MAX_THREADS).contains(count));
                bench.threads = count.ok_or_else(wrong)?;
            }
            "cache" => {
                bench.cache = match label.as_str() {
                    "cold" => Cache::Cold,
                    "warm" => Cache::Warm,
                    _ => return Err(wrong()),
                }
            }
            "engine" => bench.more.extend(["--engine".to_owned(), label.clone()]),
            "pair" => {
                let pair = label.parse().ok().and_then(|at: usize| setup.pairs.get(at));
                bench.jobs = vec![
                    pair.ok_or_else(|| bad(format!("no pair {label}"), "pairs of -d and PATH count from 0"))?
                        .clone(),
                ];
            }
            _ => bench.more.extend(label.split_whitespace().map(str::to_owned)),
        }
    }
    Ok(Work::bench(bench))
}

fn io(label: &str) -> Option<Io> {
    [Io::Read, Io::Write, Io::RandRead, Io::RandWrite].into_iter().find(|io| io.name() == label)
}

fn axis(plan: &Planned, name: &str) -> Result<usize> {
    plan.table.axes.iter().position(|own| own == name).ok_or_else(|| {
        bad(format!("the table has no axis {name:?}"), &format!("use one of: {}", plan.table.axes.join(", ")))
    })
}

/// A value of an axis.
fn value(plan: &Planned, axis: usize, value: &toml::Value) -> Result<String> {
    let wanted = label(value);
    let found = plan.table.rows.iter().any(|row| row.labels[axis] == wanted);
    let name = &plan.table.axes[axis];
    found.then_some(wanted.clone()).ok_or_else(|| {
        bad(format!("the axis {name:?} has no value {wanted:?}"), &format!("write it as in [axes]: {name}"))
    })
}

fn compare(plan: &mut Planned, spec: &Spec) -> Result<()> {
    let Some(one) = &spec.compare else { return Ok(()) };
    let axis = axis(plan, &one.axis)?;
    let base = value(plan, axis, &one.base)?;
    let quantities = one.quantities.clone().unwrap_or(vec![Quantity::GbPerS, Quantity::CpuPerGb]);
    plan.table.ratio = Some(Compared { axis, base, quantities });
    Ok(())
}

fn charts(plan: &mut Planned, spec: &Spec) -> Result<()> {
    for one in &spec.chart {
        let (x, series) = (axis(plan, &one.x)?, axis(plan, &one.series)?);
        let mut only = Vec::new();
        for (name, wanted) in &one.only {
            let at = axis(plan, name)?;
            only.push((at, value(plan, at, wanted)?));
        }
        let over = one.over.as_ref().map(|base| value(plan, series, base)).transpose()?;
        let numbers = plan.table.rows.iter().all(|row| parse_size(&row.labels[x]).is_ok_and(|size| size > 0));
        let kind = one.kind.unwrap_or(if numbers { ChartKind::Lines } else { ChartKind::Bars });
        let title = one.title.clone().unwrap_or_else(|| format!("{} by {}", one.y.title(), one.x));
        plan.table.charts.push(Chart {
            title,
            kind,
            x,
            series,
            only,
            y: one.y,
            over,
            log: one.log,
            mark: None,
        });
    }
    Ok(())
}

fn publish(plan: &mut Planned, spec: &Spec) -> Result<()> {
    for one in &spec.published {
        let mut wanted = Vec::new();
        for (name, given) in &one.row {
            let at = axis(plan, name)?;
            wanted.push((at, value(plan, at, given)?));
        }
        for row in &mut plan.table.rows {
            if wanted.iter().all(|(axis, label)| row.labels[*axis] == *label) {
                row.published.extend(one.figures.iter().map(|(quantity, value)| (*quantity, *value)));
            }
        }
    }
    Ok(())
}
