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
        let is_index = |text: &str| text.parse::<usize>().is_ok();
        let hint = match (text.split_once(':'), text.split_once(',')) {
            (Some(("cuda" | "gpu", index)), _) if is_index(index) => {
                format!("use the index alone: -d {index}")
            }
            (None, Some(_)) if text.split(',').all(is_index) => {
                format!("name one device: -d {}", text.split(',').next().unwrap_or_default())
            }
            _ => "use the index of a GPU, or p2pmem:PCI-ADDRESS, for example p2pmem:0000:03:00.0".to_owned(),
        };
        Err(Error::new(ErrorKind::InvalidInput, format!("not the name of a device: {text:?}")).hint(hint))
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_others_call_a_device_has_a_hint() {
        let hint = |text: &str| text.parse::<DeviceName>().unwrap_err().hints().join("");
        assert_eq!(hint("cuda:1"), "use the index alone: -d 1");
        assert_eq!(hint("0,1,7"), "name one device: -d 0");
        assert!(hint("cuda:x").starts_with("use the index of a GPU, or") && hint("first").contains("p2pmem"));
        assert_eq!("12".parse::<DeviceName>().unwrap(), DeviceName::Index(12));
    }
}
