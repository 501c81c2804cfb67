//! Charts as inline SVG. Colours come from the page's style sheet: they follow light, dark and paper. A chart is as wide as a
//! phone's screen, so that its type is readable there; wide screens show several side by side.

use std::fmt::Write;

use super::chart::{Once, Plot, Point, Series};
use super::html::escape;
use super::scale::{Axis, places};
use crate::model::ChartKind;
use crate::quantity::figure;

const WIDTH: f64 = 460.0;
/// About how wide a small letter is, of the style sheet's 14 px.
const CHARACTER_WIDTH: f64 = 7.4;
/// Characters of a name that fit into a line.
const MAX_NAME: usize = 56;
const BAR_HEIGHT: f64 = 17.0;
/// Height of a line of text.
const LINE_HEIGHT: f64 = 20.0;
/// Height of the plot of lines.
const PLOT_HEIGHT: f64 = 250.0;

/// Draws a chart; `id` is unique in the page.
pub(super) fn draw(plot: &Plot<'_>, id: &str) -> String {
    let (legend, top) = legend(plot);
    let (body, height) = match plot.kind {
        ChartKind::Bars => bars(plot, top),
        ChartKind::Lines => lines(plot, top),
    };
    format!(
        "<svg viewBox=\"0 0 {WIDTH} {height:.0}\" role=\"img\" aria-labelledby=\"{id}-t {id}-d\">\
         <title id=\"{id}-t\">{}</title><desc id=\"{id}-d\">{}</desc>{legend}{body}</svg>",
        escape(plot.title),
        escape(&describe(plot))
    )
}

/// The chart in a sentence.
fn describe(plot: &Plot<'_>) -> String {
    let series: Vec<String> = plot
        .series
        .iter()
        .map(|one| {
            let figures: Vec<String> = one
                .points
                .iter()
                .map(|point| format!("{} {}", plot.xs[point.x], labelled(point, plot.once)))
                .collect();
            format!("{}: {}", one.name, figures.join(", "))
        })
        .collect();
    format!("{} by {}. {}.", plot.y_title, plot.x_title, series.join("; "))
}

/// The legend, and where the chart begins below it.
fn legend(plot: &Plot<'_>) -> (String, f64) {
    let mut text = String::new();
    let (mut x, mut y) = (4.0, 16.0);
    for one in &plot.series {
        let room = 34.0 + width(&one.name);
        if x > 4.0 && x + room > WIDTH {
            (x, y) = (4.0, y + LINE_HEIGHT);
        }
        let class = class(one.colour, one.published);
        let mark = match plot.kind {
            ChartKind::Bars => {
                format!("<rect class=\"{class}\" x=\"{x}\" y=\"{}\" width=\"14\" height=\"10\"/>", y - 10.0)
            }
            ChartKind::Lines if one.published => diamond(x + 7.0, y - 5.0, &class),
            ChartKind::Lines => format!(
                "<path class=\"{class} line\" d=\"M{x} {0}h14\"/><circle class=\"{class}\" cx=\"{1}\" cy=\"{0}\" r=\"3.5\"/>",
                y - 5.0,
                x + 7.0
            ),
        };
        let _ = write!(text, "{mark}<text x=\"{}\" y=\"{y}\">{}</text>", x + 20.0, escape(&one.name));
        x += room;
    }
    (text, y + 14.0)
}

/// About how wide a text is.
fn width(text: &str) -> f64 {
    text.chars().map(|c| if c.is_uppercase() || "→–_".contains(c) { 10.0 } else { CHARACTER_WIDTH }).sum()
}

fn class(colour: usize, published: bool) -> String {
    format!("s{}{}", colour % 8, if published { " published" } else { "" })
}

fn diamond(x: f64, y: f64, class: &str) -> String {
    format!("<path class=\"{class}\" d=\"M{x:.1} {:.1}l5 5l-5 5l-5 -5z\"/>", y - 5.0)
}

/// The y axis, or that along bars: of all charts that have its scale.
fn axis(plot: &Plot<'_>) -> Axis {
    let mut values = plot.values();
    values.extend(&plot.beside);
    if plot.at_one {
        values.push(1.0);
    }
    Axis::of(&values, plot.log)
}

/// The title of that axis.
fn axis_title(plot: &Plot<'_>) -> String {
    if plot.log { format!("{} (logarithmic)", plot.y_title) } else { plot.y_title.clone() }
}

/// Horizontal bars, the name of each group above it.
fn bars(plot: &Plot<'_>, top: f64) -> (String, f64) {
    let axis = axis(plot);
    let (left, right) = (4.0, WIDTH - 84.0);
    let group = plot.series.len() as f64 * BAR_HEIGHT + LINE_HEIGHT + 8.0;
    let bottom = top + plot.xs.len() as f64 * group;
    let mut text = String::new();
    for (value, label) in &axis.ticks {
        let x = left + axis.at(*value) * (right - left);
        let anchor = if *value > 0.0 { "middle" } else { "start" };
        let _ = write!(
            text,
            "<path class=\"grid\" d=\"M{x:.1} {top:.1}V{bottom:.1}\"/><text class=\"tick\" text-anchor=\"{anchor}\" x=\"{x:.1}\" y=\"{:.1}\">{label}</text>",
            bottom + 17.0
        );
    }
    for (index, name) in plot.xs.iter().enumerate() {
        let y = top + index as f64 * group;
        let name = escape(&short(name));
        let _ = write!(text, "<text class=\"name\" x=\"{left}\" y=\"{:.1}\">{name}</text>", y + 16.0);
        for (place, one) in plot.series.iter().enumerate() {
            if let Some(point) = one.points.iter().find(|point| point.x == index) {
                let y = y + LINE_HEIGHT + place as f64 * BAR_HEIGHT;
                bar(&mut text, plot, one, point, &axis, (left, right, y));
            }
        }
    }
    let _ = write!(
        text,
        "<path class=\"axis\" d=\"M{left} {top:.1}V{bottom:.1}\"/><text class=\"title\" text-anchor=\"middle\" x=\"{:.1}\" y=\"{:.1}\">{}</text>",
        f64::midpoint(left, right),
        bottom + 36.0,
        escape(&axis_title(plot))
    );
    (text, bottom + 44.0)
}

fn bar(
    text: &mut String,
    plot: &Plot<'_>,
    series: &Series,
    point: &Point,
    axis: &Axis,
    (left, right, y): (f64, f64, f64),
) {
    let end = left + axis.at(point.y) * (right - left);
    let _ = write!(
        text,
        "<rect class=\"{}\" x=\"{left}\" y=\"{:.1}\" width=\"{:.1}\" height=\"{}\"/>",
        class(point.colour, series.published),
        y + 1.0,
        (end - left).max(1.0),
        BAR_HEIGHT - 3.0
    );
    let reach = whisker(text, axis, point, (left, right), y + (BAR_HEIGHT - 1.0) / 2.0).max(end);
    let _ = write!(
        text,
        "<text class=\"value\" x=\"{:.1}\" y=\"{:.1}\">{}</text>",
        reach + 5.0,
        y + 13.0,
        escape(&labelled(point, plot.once))
    );
}

/// A bar's figure, marked if it is of one run and others are not.
fn labelled(point: &Point, once: Once) -> String {
    let bound = if point.at_most { "< " } else { "" };
    let mark = if point.once && once == Once::Some { " *" } else { "" };
    format!("{bound}{}{mark}", figure(point.y))
}

/// The range of a bar; gives where it ends.
fn whisker(text: &mut String, axis: &Axis, point: &Point, (left, right): (f64, f64), y: f64) -> f64 {
    let (low, high) =
        (left + axis.at(point.low) * (right - left), left + axis.at(point.high) * (right - left));
    if high - low >= 2.0 {
        let _ = write!(
            text,
            "<path class=\"range\" d=\"M{low:.1} {0:.1}v6M{low:.1} {y:.1}H{high:.1}M{high:.1} {0:.1}v6\"/>",
            y - 3.0
        );
    }
    high
}

fn short(name: &str) -> String {
    if name.chars().count() <= MAX_NAME {
        return name.to_owned();
    }
    name.chars().take(MAX_NAME - 1).chain(['…']).collect()
}

/// Lines; sizes and counts along x are placed by their logarithm.
fn lines(plot: &Plot<'_>, top: f64) -> (String, f64) {
    let axis = axis(plot);
    let widest = axis.ticks.iter().map(|(_, label)| width(label)).fold(0.0, f64::max);
    let top = top + LINE_HEIGHT + 4.0;
    let (left, right, bottom) = (widest + 12.0, WIDTH - 8.0, top + PLOT_HEIGHT);
    let along: Vec<f64> =
        places(&plot.xs).iter().map(|place| left + 14.0 + place * (right - left - 28.0)).collect();
    let up = |value: f64| bottom - axis.at(value) * (bottom - top);
    let mut text = String::new();
    for (value, label) in &axis.ticks {
        let y = up(*value);
        let _ = write!(
            text,
            "<path class=\"grid\" d=\"M{left:.1} {y:.1}H{right}\"/><text class=\"tick\" text-anchor=\"end\" x=\"{:.1}\" y=\"{:.1}\">{label}</text>",
            left - 6.0,
            y + 5.0
        );
    }
    ticks_below(&mut text, plot, &along, bottom);
    for one in &plot.series {
        line(&mut text, one, plot.once, &along, &up);
    }
    // Above the lines: their words have to be read.
    marks(&mut text, plot, &along, (left, right), (top, bottom), up(1.0));
    let _ = write!(
        text,
        "<path class=\"axis\" d=\"M{left:.1} {top:.1}V{bottom:.1}H{right}\"/>\
         <text class=\"title\" text-anchor=\"middle\" x=\"{:.1}\" y=\"{:.1}\">{}</text>\
         <text class=\"title\" x=\"4\" y=\"{:.1}\">{}</text>",
        f64::midpoint(left, right),
        bottom + 39.0,
        escape(plot.x_title),
        top - 12.0,
        escape(&axis_title(plot))
    );
    (text, bottom + 47.0)
}

/// The line at 1, and the value along x that the source names.
fn marks(
    text: &mut String,
    plot: &Plot<'_>,
    along: &[f64],
    (left, right): (f64, f64),
    (top, bottom): (f64, f64),
    one: f64,
) {
    if plot.at_one {
        let _ = write!(
            text,
            "<path class=\"one\" d=\"M{left:.1} {one:.1}H{right}\"/><text class=\"value\" text-anchor=\"end\" x=\"{right}\" y=\"{:.1}\">break-even</text>",
            one - 5.0
        );
    }
    let Some((at, what)) = plot.mark else { return };
    let x = along[at];
    let (anchor, from) = if x > f64::midpoint(left, right) { ("end", x - 5.0) } else { ("start", x + 5.0) };
    let _ = write!(
        text,
        "<path class=\"one\" d=\"M{x:.1} {top:.1}V{bottom:.1}\"/><text class=\"value\" text-anchor=\"{anchor}\" x=\"{from:.1}\" y=\"{:.1}\">{}</text>",
        top + 13.0,
        escape(what)
    );
}

/// Labels along x, as many as have room.
fn ticks_below(text: &mut String, plot: &Plot<'_>, along: &[f64], bottom: f64) {
    let mut free = f64::NEG_INFINITY;
    for (label, x) in plot.xs.iter().zip(along) {
        let half = width(label) / 2.0;
        let _ = write!(text, "<path class=\"axis\" d=\"M{x:.1} {bottom:.1}v5\"/>");
        if x - half >= free {
            let _ = write!(
                text,
                "<text class=\"tick\" text-anchor=\"middle\" x=\"{x:.1}\" y=\"{:.1}\">{}</text>",
                bottom + 20.0,
                escape(label)
            );
            free = x + half + 4.0;
        }
    }
}

fn line(text: &mut String, series: &Series, once: Once, along: &[f64], up: &dyn Fn(f64) -> f64) {
    let class = class(series.colour, series.published);
    let at = |point: &Point| (along[point.x], up(point.y));
    if series.published {
        for point in &series.points {
            let (x, y) = at(point);
            text.push_str(&diamond(x, y, &class));
        }
        return;
    }
    let path: Vec<String> =
        series.points.iter().map(|point| format!("{:.1} {:.1}", at(point).0, at(point).1)).collect();
    let _ = write!(text, "<path class=\"{class} line\" d=\"M{}\"/>", path.join("L"));
    for point in &series.points {
        let (x, y) = at(point);
        let (low, high) = (up(point.low), up(point.high));
        if low - high >= 3.0 {
            let _ = write!(text, "<path class=\"{class} line thin\" d=\"M{x:.1} {low:.1}V{high:.1}\"/>");
        }
        let hollow = if point.once && once == Once::Some { " once" } else { "" };
        let _ = write!(text, "<circle class=\"{class}{hollow}\" cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"3.5\"/>");
    }
}
