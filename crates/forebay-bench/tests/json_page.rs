//! The tables of `docs/reference/bench-json.md` are what the types of the report say. To write them again:
//!
//! `UPDATE_DOCS=1 cargo test -p forebay-bench --test json_page`

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use std::path::PathBuf;

use forebay_bench::report::{DescribedField, fields};

const HEAD: &str = "| field | type | meaning |\n|---|---|---|\n";

/// The section of a field: each has a table.
fn section(path: &str) -> usize {
    let begins = ["passes[]", "open_cost", "summary[]"];
    begins.iter().position(|begin| path.starts_with(begin)).map_or(0, |index| index + 1)
}

/// Within a table a sentence begins small, unless it begins with a name such as GB.
fn small(text: &str) -> String {
    let word = text.split(' ').next().unwrap();
    let is_name = word.chars().skip(1).any(char::is_uppercase);
    let (first, rest) = text.split_at(usize::from(!is_name));
    first.to_lowercase() + rest
}

fn table(number: usize) -> String {
    let row = |field: DescribedField| {
        format!("| `{}` | {} | {} |\n", field.path, field.kind, small(&field.about).replace('|', "\\|"))
    };
    fields().into_iter().filter(|field| section(&field.path) == number).map(row).collect()
}

#[test]
fn the_page_is_what_the_types_say() {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../docs/reference/bench-json.md");
    let found = std::fs::read_to_string(&path).unwrap();
    let mut parts = found.split(HEAD);
    let mut wanted = parts.next().unwrap().to_owned();
    for (number, part) in parts.enumerate() {
        let rest = part.find("\n\n").map_or("", |end| &part[end + 1..]);
        wanted.extend([HEAD, &table(number), rest]);
    }
    if std::env::var_os("UPDATE_DOCS").is_some() {
        return std::fs::write(&path, &wanted).unwrap();
    }
    assert!(found == wanted, "the page is old: UPDATE_DOCS=1 cargo test -p forebay-bench --test json_page");
}
