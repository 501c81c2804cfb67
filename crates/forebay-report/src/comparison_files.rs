//! A comparison of two reports as files.

use std::path::Path;

use forebay_error::{Error, ErrorKind, Result};
use serde::Serialize;

use crate::compare::{Comparison, Outcome};
use crate::folder::{COMPARE_FILES, Folder};
use crate::model::VERSION;
use crate::render;

/// compare.json.
#[derive(Serialize)]
struct Whole<'a> {
    version: u32,
    outcome: Outcome,
    #[serde(flatten)]
    comparison: &'a Comparison,
}

/// Writes compare.html, compare.md and compare.json to a folder.
pub fn write_comparison(found: &Comparison, folder: &Path) -> Result<()> {
    let folder = Folder::open(folder)?;
    folder.check_comparison()?;
    let whole = Whole { version: VERSION, outcome: found.outcome(), comparison: found };
    let json = serde_json::to_string_pretty(&whole)
        .map_err(|error| Error::new(ErrorKind::Internal, format!("cannot write the comparison: {error}")))?;
    let [state, markdown, html] = COMPARE_FILES;
    folder.write(state, &format!("{json}\n"))?;
    folder.write(markdown, &render::compared_markdown(found))?;
    folder.write(html, &render::compared_html(found))
}
