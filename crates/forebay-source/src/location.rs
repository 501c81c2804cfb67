//! Locations: what a program names a file by.

use std::path::Path;
use std::sync::Arc;

use forebay_config::elsewhere;
use forebay_error::Result;

use crate::opener::{Opener, has_one_slash, opener_of};

/// Where a file lies. A name is taken apart once, where the program gives it.
pub enum Location {
    /// On this machine, at the path that the name is.
    Path,
    /// At the URL that the name is, which this opens.
    Url(Arc<dyn Opener>),
}

impl Location {
    /// Of a file that is there. An error if it is a URL that cannot be opened: of no scheme that is registered, or not of its
    /// scheme's form.
    pub fn of(name: impl AsRef<Path>) -> Result<Self> {
        Self::parse(name.as_ref(), elsewhere::check_read)
    }

    /// Of a file that is made. Errors as of [`Location::of`].
    pub fn of_new(name: impl AsRef<Path>) -> Result<Self> {
        Self::parse(name.as_ref(), elsewhere::check_write)
    }

    fn parse(name: &Path, unknown: fn(&Path) -> Result<()>) -> Result<Self> {
        if let Some(opener) = opener_of(name) {
            opener.check(name)?;
            return Ok(Self::Url(opener));
        }
        // With one slash it may be a path; if it is not there, its scheme has a hint.
        if !has_one_slash(name) {
            unknown(name)?;
        }
        Ok(Self::Path)
    }
}
