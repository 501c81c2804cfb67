//! Rendering: HTML and Markdown.

mod chart;
mod compared;
mod counted;
mod csv;
mod findings;
mod front;
mod html;
mod markdown;
mod scale;
mod svg;
mod words;

pub(crate) use compared::{html as compared_html, markdown as compared_markdown};
pub(crate) use csv::csv;
pub(crate) use html::html;
pub(crate) use markdown::markdown;

#[cfg(test)]
mod tests;
