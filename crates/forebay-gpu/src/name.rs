//! How users name devices.

use std::fmt;
use std::str::FromStr;

use forebay_error::{Error, ErrorKind, Result};

use crate::bar;

/// A device as it is typed: the index of a GPU (0 is host memory where there is none), or the name of memory in a PCI
/// BAR, `p2pmem:0000:03:00.0`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum DeviceName {
    /// See [`Devices::get`](crate::Devices::get).
    Index(usize),
    /// The name of one of [`Devices::bars`](crate::Devices::bars).
    Bar(String),
}

impl Default for DeviceName {
    fn default() -> Self {
        Self::Index(0)
    }
}

impl From<usize> for DeviceName {
    fn from(index: usize) -> Self {
        Self::Index(index)
    }
}

impl FromStr for DeviceName {
    type Err = Error;
    fn from_str(text: &str) -> Result<Self> {
        if let Ok(index) = text.parse() {
            return Ok(Self::Index(index));
        }
        if bar::is_name(text) {
            return Ok(Self::Bar(text.to_owned()));
        }
        Err(Error::new(ErrorKind::InvalidInput, format!("not the name of a device: {text:?}"))
            .hint("use the index of a GPU, or p2pmem:PCI-ADDRESS, for example p2pmem:0000:03:00.0"))
    }
}

impl fmt::Display for DeviceName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Index(index) => index.fmt(f),
            Self::Bar(name) => f.write_str(name),
        }
    }
}
