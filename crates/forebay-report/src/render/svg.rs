//! Charts as inline SVG. Colours come from the page's style sheet: they follow light, dark and paper.

use std::fmt::Write;

use super::chart::{Once, Plot, Point, Series};
use super::html::escape;
use super::scale::{Axis, places};
use crate::model::ChartKind;
use crate::quantity::figure;

const WIDTH: f64 = 760.0;
/// About how wide a small letter of 12 px is.
const CHARACTER_WIDTH: f64 = 6.6;
/// Room for the names of bars.
const NAME_WIDTH: f64 = 240.0;
/// Characters of a name that fit into [`NAME_WIDTH`].
const MAX_NAME: usize = 36;
const BAR_HEIGHT: f64 = 15.0;
/// Height of a line of the legend.
const LINE_HEIGHT: f64 = 20.0;

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
    let (mut x, mut y) = (8.0, 16.0);
    for one in &plot.series {
        let room = 30.0 + width(&one.name);
        if x > 8.0 && x + room > WIDTH - 8.0 {
            (x, y) = (8.0, y + LINE_HEIGHT);
        }
        let class = class(one);
        let mark = match plot.kind {
            ChartKind::Bars => {
                format!("<rect class=\"{class}\" x=\"{x}\" y=\"{}\" width=\"14\" height=\"10\"/>", y - 9.0)
            }
            ChartKind::Lines if one.published => diamond(x + 7.0, y - 4.0, &class),
            ChartKind::Lines => format!(
                "<path class=\"{class} line\" d=\"M{x} {0}h14\"/><circle class=\"{class}\" cx=\"{1}\" cy=\"{0}\" r=\"3.5\"/>",
                y - 4.0,
                x + 7.0
            ),
        };
        let _ = write!(text, "{mark}<text x=\"{}\" y=\"{y}\">{}</text>", x + 20.0, escape(&one.name));
        x += room;
    }
    (text, y + 14.0)
}

/// About how wide a text of 12 px is.
fn width(text: &str) -> f64 {
    text.chars().map(|c| if c.is_uppercase() || "→–_".contains(c) { 9.0 } else { CHARACTER_WIDTH }).sum()
}

fn class(series: &Series) -> String {
    format!("s{}{}", series.colour % 6, if series.published { " published" } else { "" })
}

fn diamond(x: f64, y: f64, class: &str) -> String {
    format!("<path class=\"{class}\" d=\"M{x:.1} {:.1}l5 5l-5 5l-5 -5z\"/>", y - 5.0)
}

/// All values, ends of ranges included.
fn values(plot: &Plot<'_>) -> Vec<f64> {
    plot.series
        .iter()
        .flat_map(|one| &one.points)
        .flat_map(|point| [point.y, point.low, point.high])
        .collect()
}

/// Horizontal bars: their names need room.
fn bars(plot: &Plot<'_>, top: f64) -> (String, f64) {
    let axis = Axis::of(&values(plot), true);
    let (left, right) = (NAME_WIDTH + 10.0, WIDTH - 70.0);
    let group = plot.series.len() as f64 * BAR_HEIGHT + 12.0;
    let bottom = top + plot.xs.len() as f64 * group;
    let mut text = String::new();
    for (value, label) in &axis.ticks {
        let x = left + axis.at(*value) * (right - left);
        let _ = write!(
            text,
            "<path class=\"grid\" d=\"M{x:.1} {top:.1}V{bottom:.1}\"/><text class=\"tick\" text-anchor=\"middle\" x=\"{x:.1}\" y=\"{:.1}\">{label}</text>",
            bottom + 16.0
        );
    }
    for (index, name) in plot.xs.iter().enumerate() {
        let y = top + index as f64 * group;
        let middle = y + group / 2.0 + 4.0;
        let _ = write!(
            text,
            "<text text-anchor=\"end\" x=\"{NAME_WIDTH}\" y=\"{middle:.1}\">{}</text>",
            escape(&short(name))
        );
        for (place, one) in plot.series.iter().enumerate() {
            let Some(point) = one.points.iter().find(|point| point.x == index) else { continue };
            let y = y + 6.0 + place as f64 * BAR_HEIGHT;
            let end = left + axis.at(point.y) * (right - left);
            let _ = write!(
                text,
                "<rect class=\"{}\" x=\"{left}\" y=\"{:.1}\" width=\"{:.1}\" height=\"{}\"/>",
                class(one),
                y + 1.0,
                (end - left).max(1.0),
                BAR_HEIGHT - 3.0
            );
            let reach =
                whisker(&mut text, &axis, point, (left, right), y + (BAR_HEIGHT - 1.0) / 2.0).max(end);
            let _ = write!(
                text,
                "<text class=\"value\" x=\"{:.1}\" y=\"{:.1}\">{}</text>",
                reach + 5.0,
                y + 11.0,
                labelled(point, plot.once)
            );
        }
    }
    let _ = write!(
        text,
        "<path class=\"axis\" d=\"M{left} {top:.1}V{bottom:.1}\"/><text class=\"title\" text-anchor=\"middle\" x=\"{:.1}\" y=\"{:.1}\">{}</text>",
        f64::midpoint(left, right),
        bottom + 34.0,
        escape(&plot.y_title)
    );
    (text, bottom + 42.0)
}

/// A bar's figure, marked if it is of one run and others are not.
fn labelled(point: &Point, once: Once) -> String {
    let mark = if point.once && once == Once::Some { " (one run)" } else { "" };
    format!("{}{mark}", figure(point.y))
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

/// Lines over a logarithmic x axis.
fn lines(plot: &Plot<'_>, top: f64) -> (String, f64) {
    let axis = Axis::of(&values(plot), plot.at_one);
    let (left, right, bottom) = (78.0, WIDTH - 16.0, top + 260.0);
    let along: Vec<f64> =
        places(&plot.xs).iter().map(|place| left + 14.0 + place * (right - left - 28.0)).collect();
    let up = |value: f64| bottom - axis.at(value) * (bottom - top);
    let mut text = String::new();
    for (value, label) in &axis.ticks {
        let y = up(*value);
        let _ = write!(
            text,
            "<path class=\"grid\" d=\"M{left} {y:.1}H{right}\"/><text class=\"tick\" text-anchor=\"end\" x=\"{:.1}\" y=\"{:.1}\">{label}</text>",
            left - 6.0,
            y + 4.0
        );
    }
    ticks_below(&mut text, plot, &along, bottom);
    if plot.at_one {
        let _ = write!(text, "<path class=\"one\" d=\"M{left} {0:.1}H{right}\"/>", up(1.0));
    }
    for one in &plot.series {
        line(&mut text, one, plot.once, &along, &up);
    }
    let _ = write!(
        text,
        "<path class=\"axis\" d=\"M{left} {top:.1}V{bottom:.1}H{right}\"/>\
         <text class=\"title\" text-anchor=\"middle\" x=\"{:.1}\" y=\"{:.1}\">{}</text>\
         <text class=\"title\" text-anchor=\"middle\" transform=\"translate(14 {:.1}) rotate(-90)\">{}</text>",
        f64::midpoint(left, right),
        bottom + 38.0,
        escape(plot.x_title),
        f64::midpoint(top, bottom),
        escape(&plot.y_title)
    );
    (text, bottom + 46.0)
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
                bottom + 19.0,
                escape(label)
            );
            free = x + half + 4.0;
        }
    }
}

fn line(text: &mut String, series: &Series, once: Once, along: &[f64], up: &dyn Fn(f64) -> f64) {
    let class = class(series);
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
