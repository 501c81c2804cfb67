//! The answer to READY: what went.

use super::{NAME, decimal, digits, header};
use crate::headers::BYTES;
use crate::{sum_of_text, text_of_sum};

/// A transfer that the server has done.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Finished {
    /// Bytes.
    pub bytes: u64,
    /// The number behind the last one.
    pub cookie: u32,
    /// The object's ETag.
    pub etag: Option<String>,
    /// Its version.
    pub version: Option<String>,
    /// CRC-64/NVME of the bytes.
    pub sum: Option<u64>,
}

impl Finished {
    /// The headers of the answer.
    pub fn headers(&self) -> Vec<(&'static str, String)> {
        let mut all = vec![
            (header::PROTOCOL, NAME.to_owned()),
            (BYTES, self.bytes.to_string()),
            (header::COOKIE, format!("{:08x}", self.cookie)),
        ];
        all.extend(self.etag.clone().map(|etag| (header::ETAG, etag)));
        all.extend(self.version.clone().map(|version| (header::VERSION, version)));
        all.extend(self.sum.map(|sum| (header::SUM, text_of_sum(sum))));
        all
    }

    /// Of an answer to a transfer of this many bytes with this cookie. Anything else is an error: the memory's content counts as
    /// unknown.
    pub fn parse<'a>(
        (bytes, cookie): (u64, u32),
        status: u16,
        get: impl Fn(&str) -> Option<&'a str>,
    ) -> Result<Self, &'static str> {
        if status != 200 {
            return Err("the server did not answer 200");
        }
        if get(header::PROTOCOL).map(str::trim) != Some(NAME) {
            return Err("the answer is of another protocol");
        }
        if get(BYTES).and_then(decimal) != Some(bytes) {
            return Err("another number of bytes went");
        }
        if get(header::COOKIE).and_then(|text| digits(text, 8)) != Some(cookie.into()) {
            return Err("the answer is of another transfer");
        }
        let sum = match get(header::SUM) {
            None => None,
            Some(text) => Some(sum_of_text(text.trim()).ok_or("the checksum cannot be read")?),
        };
        let text = |name| get(name).map(|text: &str| text.trim().to_owned());
        Ok(Self { bytes, cookie, etag: text(header::ETAG), version: text(header::VERSION), sum })
    }
}
