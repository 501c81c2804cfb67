//! Two reports side by side, as HTML and Markdown.

use std::fmt::Write;

use super::html::{END, begin, escape, list};
use super::markdown::{head, line, plain};
use crate::compare::{Change, Comparison};
use crate::quantity::{Verdict, figure};

const TITLE: &str = "Two reports compared";
const HEADS: [&str; 6] = ["row", "figure", "first", "second", "ratio", "verdict"];

/// What got worse first, then what got better, then the rest.
fn ordered(found: &Comparison) -> impl Iterator<Item = &Change> {
    let order = [Verdict::Worse, Verdict::Better, Verdict::Noise, Verdict::Few];
    order.into_iter().flat_map(|verdict| found.changes.iter().filter(move |change| change.verdict == verdict))
}

fn cells(change: &Change) -> [String; 6] {
    [
        change.row.clone(),
        change.quantity.title().to_owned(),
        figure(change.old),
        figure(change.new),
        format!("{}×", figure(change.ratio)),
        change.verdict.word().to_owned(),
    ]
}

/// As one HTML file.
pub(crate) fn html(found: &Comparison) -> String {
    let mut text = begin(TITLE);
    let _ = writeln!(text, "<h1>{TITLE}</h1>\n<p class=\"lead\">{}</p>", escape(&found.counts()));
    for (name, about) in ["First", "Second"].iter().zip(&found.reports) {
        let _ = writeln!(text, "<p><b>{name}:</b> {}</p>", escape(about));
    }
    list(&mut text, &found.notes);
    list(&mut text, &found.failed);
    text.push_str("<div class=\"wide\"><table><thead><tr>");
    for (index, head) in HEADS.iter().enumerate() {
        let class = if index < 2 { " class=\"label\"" } else { "" };
        let _ = write!(text, "<th scope=\"col\"{class}>{head}</th>");
    }
    text.push_str("</tr></thead>\n<tbody>\n");
    for change in ordered(found) {
        let class = match change.verdict {
            Verdict::Better => "better",
            Verdict::Worse => "worse",
            Verdict::Noise | Verdict::Few => "noise",
        };
        let [row, figure, old, new, ratio, verdict] = cells(change).map(|cell| escape(&cell));
        let _ = writeln!(
            text,
            "<tr><th scope=\"row\" class=\"label\">{row}</th><td class=\"label\">{figure}</td><td>{old}</td><td>{new}</td>\
             <td>{ratio}</td><td class=\"{class}\">{verdict}</td></tr>"
        );
    }
    text.push_str("</tbody></table></div>\n");
    text + END
}

/// As Markdown.
pub(crate) fn markdown(found: &Comparison) -> String {
    let mut text = format!("# {TITLE}\n\n{}\n\n", found.counts());
    for (name, about) in ["First", "Second"].iter().zip(&found.reports) {
        let _ = writeln!(text, "- {name}: {}", plain(about));
    }
    for note in found.failed.iter().chain(&found.notes) {
        let _ = writeln!(text, "- {}", plain(note));
    }
    text.push('\n');
    head(&mut text, &HEADS.map(str::to_owned), 2);
    for change in ordered(found) {
        line(&mut text, &cells(change).map(|cell| plain(&cell)));
    }
    text
}
