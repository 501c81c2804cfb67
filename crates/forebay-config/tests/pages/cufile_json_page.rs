//! `docs/reference/cufile-json.md` is generated from the table of keys. To write it again:
//!
//! `UPDATE_DOCS=1 cargo test -p forebay-config`

use std::fmt::Write as _;
use std::path::PathBuf;

use forebay_config::cufile::{BLOCK_DEVICES, Effect, FILE_SYSTEMS, KEYS, Key};

const UPDATE: &str = "UPDATE_DOCS=1 cargo test -p forebay-config";

const HEAD: &str = "\
# cufile.json and CUFILE_* variables

The drop-in libcufile reads NVIDIA's configuration. Precedence, highest first: what the program sets with
`cuFileSetParameter…`, the environment variable, the file, the default. The file is the one that `CUFILE_ENV_PATH_JSON`
names, else `/etc/cufile.json`; there need not be one. It is a plain file of at
most 1 MiB (no FIFO, no device), JSON with `//` and `/* */` comments. Flags are `true`, `false`, `1` or `0`. An empty
variable counts as unset.

Nothing is dropped silently: a key that is unknown or stands in the wrong place, a value of the wrong type or out of
range, and a file that cannot be read each give a warning with the value used instead. Warnings go where the log
goes, at its default level, once, and into the receipt; where no log was asked for, `forebay run` prints them. `forebay check` finds
misplaced keys too.

A log is a plain file or a character device (`/dev/stderr` is standard error, whatever that is); nothing else is opened. A
program with rights that its caller lacks (setuid, setgid, file capabilities) reads no variable, and `/etc/cufile.json`
without its logs.

Each key is **used**, **kept** (a program can set it and read it back, but it changes nothing) or **ignored**. Sizes
that end in `_kb` are in KiB. \"Parameter\" is the name in `cufile.h` without `CUFILE_PARAM_`.
";

fn cell(text: &str) -> String {
    if text.is_empty() { "–".to_owned() } else { text.replace('|', "\\|") }
}

fn code(text: &str) -> String {
    if text.is_empty() { "–".to_owned() } else { format!("`{text}`") }
}

fn row(page: &mut String, key: &Key) {
    let (word, text) = match key.effect {
        Effect::Used(text) => ("used", text),
        Effect::Kept(text) => ("kept", text),
        Effect::Ignored(text) => ("ignored", text),
    };
    let (_, name) = key.name.split_once('.').unwrap();
    let mut name = format!("`{name}`");
    for alias in key.aliases {
        write!(name, " (older: `{alias}`)").unwrap();
    }
    let mut default = code(key.default.trim_matches('"'));
    if let Some(shipped) = key.shipped {
        write!(default, " (NVIDIA's file: `{shipped}`)").unwrap();
    }
    let [variable, parameter] = [key.variable, key.parameter()].map(|text| code(text.unwrap_or_default()));
    let values = cell(&key.kind.values());
    writeln!(
        page,
        "| {name} | {values} | {default} | {variable} | {parameter} | **{word}**: {} |",
        cell(text)
    )
    .unwrap();
}

fn page() -> String {
    let mut page = HEAD.to_owned();
    let mut last = "";
    for key in KEYS {
        let (section, _) = key.name.split_once('.').unwrap();
        if section != last {
            write!(page, "\n## {section}\n").unwrap();
            let names = match section {
                "fs" => FILE_SYSTEMS,
                "block" => BLOCK_DEVICES,
                _ => &[],
            };
            if !names.is_empty() {
                write!(page, "`*` is one of: {}.\n\n", names.join(", ")).unwrap();
            }
            page.push_str(
                "| key | values | default | variable | parameter | forebay |\n|---|---|---|---|---|---|\n",
            );
            last = section;
        }
        row(&mut page, key);
    }
    write!(
        page,
        "\nThis page is generated from `KEYS` in `crates/forebay-config`; a test compares them. To write it again:\n\
         `{UPDATE}`.\n"
    )
    .unwrap();
    page
}

#[test]
fn the_page_is_what_the_table_says() {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../docs/reference/cufile-json.md");
    let wanted = page();
    if std::env::var_os("UPDATE_DOCS").is_some() {
        std::fs::write(&path, &wanted).unwrap();
        return;
    }
    let found = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(
        found == wanted,
        "docs/reference/cufile-json.md is not what KEYS says. Write it again:\n  {UPDATE}"
    );
}
