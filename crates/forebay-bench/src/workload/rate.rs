//! `--rate`, as it is typed.

use std::str::FromStr;

use forebay_config::parse_size;
use forebay_error::{Error, ErrorKind, Result};

/// How fast I/Os may begin, all threads together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RateLimit {
    /// Bytes a second.
    Bytes(u64),
    /// I/Os a second.
    Ios(u64),
}

impl FromStr for RateLimit {
    type Err = Error;
    fn from_str(text: &str) -> Result<Self> {
        let refused = || {
            Error::new(ErrorKind::InvalidInput, format!("not a rate: {text:?}"))
                .hint("bytes a second: --rate 500M; I/Os a second: --rate 20000iops")
        };
        let ios = text.to_ascii_lowercase();
        let limit = match ios.strip_suffix("iops") {
            Some(count) => Self::Ios(count.parse().map_err(|_| refused())?),
            None => Self::Bytes(parse_size(text).map_err(|_| refused())?),
        };
        if matches!(limit, Self::Ios(0) | Self::Bytes(0)) { Err(refused()) } else { Ok(limit) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_read() {
        for (text, limit) in [
            ("500M", RateLimit::Bytes(500 << 20)),
            ("4096", RateLimit::Bytes(4096)),
            ("20000iops", RateLimit::Ios(20_000)),
            ("1IOPS", RateLimit::Ios(1)),
        ] {
            assert_eq!(text.parse::<RateLimit>().unwrap(), limit, "{text}");
        }
        for text in ["", "iops", "0", "0iops", "2Kiops", "fast"] {
            assert!(!text.parse::<RateLimit>().unwrap_err().hints().is_empty(), "{text}");
        }
    }
}
