//! Rendering: HTML and Markdown.

mod chart;
mod html;
mod markdown;
mod scale;
mod svg;
mod words;

pub(crate) use html::html;
pub(crate) use markdown::markdown;

#[cfg(test)]
mod tests;
