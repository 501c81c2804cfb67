//! `docs/reference/environment.md` is generated from the table of variables. To write it again:
//!
//! `UPDATE_DOCS=1 cargo test -p forebay-config`

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use forebay_config::VARIABLES;

const UPDATE: &str = "UPDATE_DOCS=1 cargo test -p forebay-config";

const HEAD: &str = "\
# Environment variables

Precedence, highest first: what a program sets in its `Config` (or a flag of the command), the variable, the default. An
empty variable counts as unset; a value that cannot be read is an error with a hint. Sizes are written as `4096`,
`64K`, `4M` or `1.5G` (powers of 1024). A variable that begins with `FOREBAY_` and is none of these is named once, with the
nearest one: by the command, by Python as a warning, by the drop-in in its log and receipt.

A program with rights that its caller lacks (setuid, setgid, file capabilities) believes no variable, neither these nor
`CUFILE_*`, and writes no log that `cufile.json` asks for.

| variable | values | default | what it does |
|---|---|---|---|
";

fn page() -> String {
    let mut page = HEAD.to_owned();
    for variable in VARIABLES {
        let cell = |text: &str| text.replace('|', "\\|");
        writeln!(
            page,
            "| `{}` | {} | {} | {} |",
            variable.name,
            cell(variable.values),
            cell(variable.default),
            cell(variable.about)
        )
        .expect("a string takes all");
    }
    write!(
        page,
        "\nThis page is generated from `VARIABLES` in `crates/forebay-config`; a test compares them. To write it again:\n\
         `{UPDATE}`.\n"
    )
    .expect("a string takes all");
    page
}

#[test]
fn the_page_is_what_the_table_says() {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../docs/reference/environment.md");
    let wanted = page();
    if std::env::var_os("UPDATE_DOCS").is_some() {
        std::fs::write(&path, &wanted).unwrap();
        return;
    }
    let found = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(
        found == wanted,
        "docs/reference/environment.md is not what VARIABLES says. Write it again:\n  {UPDATE}"
    );
}

#[test]
fn every_variable_is_documented_once() {
    for (index, variable) in VARIABLES.iter().enumerate() {
        assert!(variable.name.starts_with("FOREBAY_"), "{}", variable.name);
        assert!(variable.about.ends_with('.'), "{}", variable.name);
        assert!(VARIABLES[..index].iter().all(|other| other.name != variable.name), "{}", variable.name);
    }
}

/// Sources of crates that are shipped, with their text.
fn sources(folder: &Path, found: &mut Vec<(PathBuf, String)>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            sources(&path, found);
        } else if path.extension().is_some_and(|end| end == "rs") {
            let text = std::fs::read_to_string(&path).unwrap();
            found.push((path, text));
        }
    }
}

/// What a program with other rights than its caller's must not believe is read in one place.
#[test]
fn nothing_else_reads_the_environment() {
    let crates = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("..");
    let mut found = Vec::new();
    for entry in std::fs::read_dir(&crates).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        // Test doubles and attacks are not shipped.
        if name.starts_with("forebay") && name != "forebay-torture" {
            sources(&path.join("src"), &mut found);
        }
    }
    assert!(found.len() > 100, "the sources are somewhere else");
    for (path, text) in found.iter().filter(|(path, _)| !path.ends_with("forebay-config/src/env.rs")) {
        for reading in ["env::var", "env::vars", "getenv", "environ("] {
            let line = text.lines().find(|line| line.contains(reading) && !line.contains("//"));
            assert!(line.is_none(), "{}: use forebay_config::env: {line:?}", path.display());
        }
    }
}
