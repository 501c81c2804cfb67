//! Names of objects: `s3://bucket/key`.

use std::fmt;
use std::path::Path;

use forebay_error::{Error, ErrorKind, Result};

/// The name of an object, or of a prefix of names.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ObjectUrl {
    /// The bucket.
    pub bucket: String,
    /// The key as S3 has it; empty for the bucket itself.
    pub key: String,
    /// One version of the object: `?versionId=…`.
    pub version: Option<String>,
}

impl ObjectUrl {
    /// Takes a URL apart. In keys, `%` and two hexadecimal digits stand for a byte, and a `?` begins options: write `%25`, `%3F`.
    pub fn parse(url: &Path) -> Result<Self> {
        Err(Error::new(ErrorKind::Unsupported, "not written yet").with("url", url.display()))
    }
}

impl fmt::Display for ObjectUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "s3://{}/{}", self.bucket, self.key)
    }
}
