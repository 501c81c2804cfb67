//! Paths on the command line. Every command refuses URLs that forebay cannot open (`s3://…`), and new files on a
//! server, while it parses.

use std::path::{Path, PathBuf};

use clap::builder::{PathBufValueParser, StringValueParser, TypedValueParser};
use forebay_error::{Error, ErrorKind, Result};
use forebay_source::{Location, near_miss, opener_of};

/// A path, or a file of a server, that is read.
pub(crate) fn source() -> impl TypedValueParser<Value = PathBuf> {
    PathBufValueParser::new().try_map(|path| checked(path, check_scheme))
}

/// The same where the rest of the command wants text.
pub(crate) fn source_text() -> impl TypedValueParser<Value = String> {
    StringValueParser::new().try_map(|path| checked(path, check_scheme))
}

/// A file that is made: a path, or a URL of a server's.
pub(crate) fn new_file() -> impl TypedValueParser<Value = PathBuf> {
    PathBufValueParser::new().try_map(|path| checked(path, check_made))
}

/// A path of this machine that is made.
pub(crate) fn target() -> impl TypedValueParser<Value = PathBuf> {
    PathBufValueParser::new().try_map(|path| checked(path, check_target))
}

/// The command checks a URL's form: its error has more detail.
fn check_scheme(path: &Path) -> Result<()> {
    if opener_of(path).is_some() { Ok(()) } else { Location::of(path).map(drop) }
}

fn check_made(path: &Path) -> Result<()> {
    match near_miss(path).filter(|_| opener_of(path).is_none() && names_a_server(path)) {
        Some(url) => Err(Error::new(ErrorKind::InvalidInput, "a file of a server is named by a URL")
            .with("path", path.display())
            .hint(url)),
        None => Location::of_new(path).map(drop),
    }
}

fn check_target(path: &Path) -> Result<()> {
    if names_a_server(path) {
        return Err(Error::new(ErrorKind::Unsupported, "a path of this machine is needed")
            .with("url", path.display())
            .hint("name a path on a mount"));
    }
    Location::of_new(path).map(drop)
}

/// Whether a path is meant to be on a server: a URL, or `SERVER:/PATH` where there is no such folder.
fn names_a_server(path: &Path) -> bool {
    let is_there = || path.parent().is_some_and(Path::is_dir);
    opener_of(path).is_some() || near_miss(path).is_some() && !is_there()
}

fn checked<T: AsRef<Path>>(path: T, check: fn(&Path) -> Result<()>) -> std::result::Result<T, String> {
    check(path.as_ref()).map_err(|error| in_words(&error))?;
    Ok(path)
}

/// An error with its hint, for the command line.
pub(crate) fn in_words(error: &Error) -> String {
    match error.hints().first() {
        Some(hint) => format!("{error}\nhint: {hint}"),
        None => error.to_string(),
    }
}
