//! Paths on the command line. What lies elsewhere (`s3://…`) is refused as it is read, by every command alike.

use std::path::{Path, PathBuf};

use clap::builder::{PathBufValueParser, StringValueParser, TypedValueParser};
use forebay_config::elsewhere;
use forebay_error::Result;

use crate::load::in_words;

/// A path, or a file of a server, that is read.
pub(crate) fn source() -> impl TypedValueParser<Value = PathBuf> {
    PathBufValueParser::new().try_map(|path| checked(path, elsewhere::check_read))
}

/// The same where the rest of the command wants text.
pub(crate) fn source_text() -> impl TypedValueParser<Value = String> {
    StringValueParser::new().try_map(|path| checked(path, elsewhere::check_read))
}

/// A path that is made.
pub(crate) fn target() -> impl TypedValueParser<Value = PathBuf> {
    PathBufValueParser::new().try_map(|path| checked(path, elsewhere::check_write))
}

fn checked<T: AsRef<Path>>(path: T, check: fn(&Path) -> Result<()>) -> std::result::Result<T, String> {
    check(path.as_ref()).map_err(|error| in_words(&error))?;
    Ok(path)
}
