//! The first page: the findings, and on which machine.

use std::fmt::Write;

use super::html::{escape, list};
use super::{findings, words};
use crate::model::Report;

/// The heading, which is also the page's title.
pub(super) fn title(report: &Report) -> String {
    if report.title.is_empty() { "forebay report".to_owned() } else { report.title.clone() }
}

/// The whole first page.
pub(super) fn write(text: &mut String, report: &Report) {
    let _ = writeln!(text, "<header>\n<h1>{}</h1>", escape(&title(report)));
    if !report.note.is_empty() {
        let _ = writeln!(text, "<p class=\"lead\">{}</p>", escape(&report.note));
    }
    let _ = writeln!(
        text,
        "<p class=\"notes\">{} to {} UTC, forebay {}. {}.</p>\n</header>\n<div class=\"front\">\n<div>\n<h2>Findings</h2>",
        escape(&report.begun),
        escape(&report.updated),
        escape(&report.release),
        escape(&words::counts(report))
    );
    text.push_str("<ul class=\"findings\">");
    for (head, sentence) in findings::findings(report) {
        let _ = write!(text, "<li><b>{head}</b> {}</li>", escape(&sentence));
    }
    text.push_str("</ul>\n");
    list(text, &words::top(report));
    text.push_str("</div>\n<div>\n<h2>The machine</h2>\n<dl>");
    for (name, value) in words::machine(&report.machine) {
        let _ = write!(text, "<div><dt>{name}</dt><dd>{}</dd></div>", escape(&value));
    }
    text.push_str("</dl>\n");
    if report.machine.topology.parts().next().is_some() {
        let (heads, rows) = words::parts_of_machine(&report.machine);
        table(text, &heads, &rows);
        text.push_str("<h3>The way between them</h3>\n");
        let (heads, rows) = words::matrix(&report.machine);
        table(text, &heads, &rows);
        let words = words::distances(&report.machine);
        if !words.is_empty() {
            let _ = writeln!(text, "<p class=\"notes\">{}.</p>", escape(&words));
        }
    }
    let _ = writeln!(
        text,
        "<h3>The command</h3>\n<pre>{}</pre>\n</div>\n</div>",
        escape(&words::command(report))
    );
}

/// A table whose first cells are names.
fn table(text: &mut String, heads: &[String], rows: &[Vec<String>]) {
    text.push_str("<div class=\"wide\"><table><thead><tr>");
    for head in heads {
        let _ = write!(text, "<th scope=\"col\" class=\"label\">{}</th>", escape(head));
    }
    text.push_str("</tr></thead><tbody>");
    for row in rows {
        text.push_str("<tr>");
        for (index, cell) in row.iter().enumerate() {
            let _ = if index == 0 {
                write!(text, "<th scope=\"row\" class=\"label\">{}</th>", escape(cell))
            } else {
                write!(text, "<td class=\"label\">{}</td>", escape(cell))
            };
        }
        text.push_str("</tr>");
    }
    text.push_str("</tbody></table></div>\n");
}
