//! The report as one HTML file: no script, nothing from the network. Every element is closed, so that it is XML, too.

use std::fmt::Write;

use super::chart::Once;
use super::{chart, counted, front, svg, words};
use crate::model::{ChartKind, Report, Row, State, Table};
use crate::quantity::{Verdict, figure};

const STYLE: &str = include_str!("style.css");

/// The whole report.
pub(crate) fn html(report: &Report) -> String {
    let mut text = begin(&format!("{}, {}", front::title(report), report.updated));
    front::write(&mut text, report);
    if report.tables.len() > 1 {
        text.push_str("<nav aria-label=\"Tables\"><h2>Tables</h2><ul>");
        for table in &report.tables {
            let _ =
                write!(text, "<li><a href=\"#{0}\">{1}</a></li>", escape(&table.id), escape(&table.title));
        }
        text.push_str("</ul></nav>\n");
    }
    for table in &report.tables {
        section(&mut text, report, table);
    }
    text.push_str(END);
    text
}

/// A page up to its heading.
pub(super) fn begin(title: &str) -> String {
    format!(
        "<!DOCTYPE html>\n<html lang=\"en\" xmlns=\"http://www.w3.org/1999/xhtml\">\n<head>\n<meta charset=\"utf-8\"/>\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"/>\n<title>{}</title>\n\
         <style>\n{STYLE}</style>\n</head>\n<body>\n<main>\n",
        escape(title)
    )
}

/// The end of a page.
pub(super) const END: &str = "</main>\n</body>\n</html>\n";

pub(super) fn list(text: &mut String, notes: &[String]) {
    if notes.is_empty() {
        return;
    }
    text.push_str("<ul class=\"notes\">");
    for note in notes {
        let _ = write!(text, "<li>{}</li>", escape(note));
    }
    text.push_str("</ul>\n");
}

fn section(text: &mut String, report: &Report, table: &Table) {
    let _ = writeln!(text, "<section id=\"{}\">\n<h2>{}</h2>", escape(&table.id), escape(&table.title));
    if let Some(source) = &table.source {
        let _ = writeln!(text, "<p><b>Published:</b> {}</p>", escape(&words::source(source)));
    }
    let _ = writeln!(
        text,
        "<p><b>What the comparison means:</b> {} {}</p>",
        escape(&table.meaning),
        escape(&words::ours(report, table))
    );
    list(text, &table.notes);
    charts(text, table);
    figures(text, table);
    details(text, report, table);
    text.push_str("</section>\n");
}

fn charts(text: &mut String, table: &Table) {
    let plots = chart::plots(table);
    if plots.iter().all(Option::is_none) {
        return;
    }
    text.push_str("<div class=\"charts\">\n");
    for (index, plot) in plots.iter().enumerate() {
        let Some(plot) = plot else { continue };
        let id = format!("{}-{index}", table.id);
        let _ = writeln!(
            text,
            "<figure>\n<figcaption>{}</figcaption>\n{}",
            escape(plot.title),
            svg::draw(plot, &escape(&id))
        );
        for note in ran_once(plot).map(str::to_owned).into_iter().chain(without_figure(plot.missing)) {
            let _ = writeln!(text, "<p class=\"notes\">{note}</p>");
        }
        beside(text, plot);
        text.push_str("</figure>\n");
    }
    text.push_str("</div>\n");
}

/// A note on rows that have no range.
fn ran_once(plot: &chart::Plot<'_>) -> Option<&'static str> {
    match (plot.once, plot.kind) {
        // Where each row ran once the top of the report says so.
        (Once::None | Once::All, _) => None,
        (Once::Some, ChartKind::Bars) => Some("* one run: no range."),
        (Once::Some, ChartKind::Lines) => Some("Hollow points are of one run: they have no range."),
    }
}

/// A note on rows that the chart cannot show.
fn without_figure(rows: usize) -> Option<String> {
    match rows {
        0 => None,
        1 => Some("One row has no figure: the table says why.".to_owned()),
        rows => Some(format!("{rows} rows have no figure: the table says why.")),
    }
}

/// The figures of a chart as a table.
fn beside(text: &mut String, plot: &chart::Plot<'_>) {
    let _ = write!(
        text,
        "<details><summary>Figures of this chart</summary><div class=\"wide\"><table><thead><tr><th scope=\"col\">{}</th>",
        escape(plot.x_title)
    );
    for series in &plot.series {
        let _ = write!(text, "<th scope=\"col\">{}</th>", escape(&series.name));
    }
    text.push_str("</tr></thead><tbody>");
    for (index, x) in plot.xs.iter().enumerate() {
        let _ = write!(text, "<tr><th scope=\"row\">{}</th>", escape(x));
        for series in &plot.series {
            let point = series.points.iter().find(|point| point.x == index);
            let _ =
                write!(text, "<td>{}</td>", point.map_or(words::NONE.to_owned(), |point| figure(point.y)));
        }
        text.push_str("</tr>");
    }
    text.push_str("</tbody></table></div></details>\n");
}

fn figures(text: &mut String, table: &Table) {
    text.push_str("<div class=\"wide\"><table><thead><tr>");
    for axis in &table.axes {
        let _ = write!(text, "<th scope=\"col\" class=\"label\">{}</th>", escape(axis));
    }
    let mut columns = 0;
    for quantity in &table.columns {
        let _ = write!(text, "<th scope=\"col\">{}</th>", escape(quantity.title()));
        columns += 1;
        if words::has_columns(table, *quantity) {
            let _ = write!(text, "<th scope=\"col\" class=\"theirs\">{}</th>", escape(table.whose()));
            columns += 1;
        }
    }
    if let Some(title) = words::ratio_title(table) {
        let _ = write!(text, "<th scope=\"col\" class=\"label ratio\">{}</th>", escape(&title));
        columns += 1;
    }
    text.push_str("</tr></thead>\n<tbody>\n");
    for row in &table.rows {
        text.push_str("<tr>");
        for label in &row.labels {
            let _ = write!(text, "<th scope=\"row\" class=\"label\">{}</th>", escape(label));
        }
        match (&row.state, words::outcome(row)) {
            (State::Done, _) | (_, None) => measured(text, table, row),
            (state, Some(outcome)) => {
                let class = if matches!(state, State::Failed { .. }) { "failed" } else { "absent" };
                let _ = write!(
                    text,
                    "<td class=\"{class}\" colspan=\"{columns}\">{}{}</td>",
                    escape(&outcome),
                    published(table, row)
                );
            }
        }
        text.push_str("</tr>\n");
    }
    text.push_str("</tbody></table></div>\n");
}

/// The source's figures of a row that was not measured here.
fn published(table: &Table, row: &Row) -> String {
    let all: Vec<String> = table
        .columns
        .iter()
        .filter_map(|quantity| {
            Some(format!("{} {}", figure(*row.published.get(quantity)?), quantity.title()))
        })
        .collect();
    if all.is_empty() {
        String::new()
    } else {
        format!(" <small>{}: {}</small>", escape(table.whose()), escape(&all.join("; ")))
    }
}

fn measured(text: &mut String, table: &Table, row: &Row) {
    for quantity in &table.columns {
        let lone = words::is_lone(table, row) && row.summary(*quantity).is_some();
        let range = words::range(row, *quantity).or_else(|| lone.then(|| "one run".to_owned()));
        let range = range.map_or(String::new(), |range| format!("<small>{range}</small>"));
        let below = match row.published.get(quantity) {
            Some(value) if words::is_stacked(table) => {
                let bound = if row.at_most.contains(quantity) { "&lt; " } else { "" };
                format!("<small>{} {bound}{}</small>", escape(table.whose()), figure(*value))
            }
            _ => String::new(),
        };
        let _ = write!(text, "<td>{}{range}{below}</td>", words::median(row, *quantity));
        if words::has_columns(table, *quantity) {
            let _ = write!(text, "<td class=\"theirs\">{}</td>", escape(&words::published(row, *quantity)));
        }
    }
    if table.ratio.is_none() {
        return;
    }
    text.push_str("<td class=\"label\">");
    for (ratio, verdict) in words::ratios(table, row) {
        let class = match verdict {
            Some(Verdict::Better) => "better",
            Some(Verdict::Worse) => "worse",
            Some(Verdict::Noise | Verdict::Few) | None => "noise",
        };
        let _ = write!(text, "<span class=\"{class}\">{}</span>", escape(&ratio));
    }
    text.push_str("</td>");
}

fn details(text: &mut String, report: &Report, table: &Table) {
    let notes = words::footnotes(table);
    let _ =
        write!(text, "<h3>How the bytes went</h3>\n<p>{}</p>\n", escape(&words::engines_explained(table)));
    text.push_str("<div class=\"wide\"><table><thead><tr>");
    for title in
        ["row", "moved by", "page cache", "ceiling reached", "CPU, user + system", "runs: range", "notes"]
    {
        let _ = write!(text, "<th scope=\"col\" class=\"label\">{title}</th>");
    }
    text.push_str("</tr></thead>\n<tbody>\n");
    for (row, own) in table.rows.iter().zip(&notes.of).filter(|(row, _)| !row.runs.is_empty()) {
        let _ = write!(text, "<tr><th scope=\"row\" class=\"label\">{}</th>", escape(&row.id));
        for cell in [
            words::engines(&row.runs),
            words::cache(row),
            words::ceiling(table, row),
            words::cpu(row),
            words::repetitions(table, row),
        ] {
            let _ = write!(text, "<td class=\"label\">{}</td>", escape(&cell));
        }
        text.push_str("<td class=\"label\">");
        for at in own {
            let _ = write!(text, "<a href=\"#{0}-n{1}\">[{1}]</a> ", escape(&table.id), at + 1);
        }
        let _ = writeln!(text, "{}</td></tr>", escape(&words::beside(table, row).join(" ")));
    }
    text.push_str("</tbody></table></div>\n");
    if !notes.all.is_empty() {
        text.push_str("<ol class=\"notes\">");
        for (index, note) in notes.all.iter().enumerate() {
            let _ = write!(text, "<li id=\"{}-n{}\">{}</li>", escape(&table.id), index + 1, escape(note));
        }
        text.push_str("</ol>\n");
    }
    counters(text, table);
    commands(text, report, table);
}

/// What the kernel counted beside rows: iostat's columns, and nfsiostat's.
fn counters(text: &mut String, table: &Table) {
    for (title, heads, rows) in counted::tables(table) {
        let _ = write!(
            text,
            "<details><summary>{}</summary><div class=\"wide\"><table><thead><tr>",
            escape(title)
        );
        for (index, head) in heads.iter().enumerate() {
            let class = if index < 2 { " class=\"label\"" } else { "" };
            let _ = write!(text, "<th scope=\"col\"{class}>{}</th>", escape(head));
        }
        text.push_str("</tr></thead><tbody>");
        for row in rows {
            text.push_str("<tr>");
            for (index, cell) in row.iter().enumerate() {
                let class = if index < 2 { " class=\"label\"" } else { "" };
                let _ = write!(text, "<td{class}>{}</td>", escape(cell));
            }
            text.push_str("</tr>");
        }
        text.push_str("</tbody></table></div></details>\n");
    }
}

/// The commands that repeat the rows.
fn commands(text: &mut String, report: &Report, table: &Table) {
    text.push_str("<details><summary>Commands that repeat the rows</summary><pre>");
    for line in words::before_commands(report, table) {
        let _ = writeln!(text, "{}", escape(&line));
    }
    for row in table.rows.iter().filter(|row| !row.command.is_empty()) {
        let _ = writeln!(text, "# {}\n{}", escape(&row.id), escape(&row.command));
    }
    text.push_str("</pre></details>\n");
}

/// Text escaped for HTML and XML; characters that XML forbids are left out.
pub(super) fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\n' | '\t' => out.push(' '),
            c if c.is_control() || matches!(c, '\u{fffe}' | '\u{ffff}') => out.push('\u{fffd}'),
            c => out.push(c),
        }
    }
    out
}
