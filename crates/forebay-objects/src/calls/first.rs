//! An object's head and its first bytes, by one call: a small object is opened and read by it.

use forebay_error::Result;
use forebay_source::HostRange;

use super::bucket::{Bucket, ObjectHead};
use super::content_range::content_range;
use super::exchange::{Reply, first_of};
use super::refusal::Refusal;
use crate::calls::checked::CheckedBody;
use crate::wire::call::{Method, ReplyHead};

impl Bucket {
    /// The head of an object, or of one version of it, and its first bytes: this number of them, or all. There are none where a reply
    /// does not say which bytes it has: then the head is asked for alone.
    pub(crate) fn first(
        &self,
        key: &str,
        version: Option<&str>,
        bytes: u64,
    ) -> Result<(ObjectHead, Vec<u8>), Refusal> {
        let mut ask = self.ask(Method::Get, key);
        ask.query.extend(version.map(|version| ("versionId".to_owned(), version.to_owned())));
        ask.headers.push(("range".to_owned(), format!("bytes=0-{}", bytes - 1)));
        ask.headers.push(("x-amz-checksum-mode".to_owned(), "ENABLED".to_owned()));
        let most = usize::try_from(bytes).unwrap_or(usize::MAX);
        match self.call_by(|endpoint| first_of(self.patience, endpoint, &ask, most)) {
            Ok(Reply { head, body, .. }) => match object_len(&head, bytes, body.len() as u64) {
                Some(len) => {
                    compare(&head, &body, len).map_err(|error| error.with("url", self.url(key)))?;
                    Ok((ObjectHead::of_len(&head, len), body))
                }
                None => Ok((self.head_here(key, version)?, Vec::new())),
            },
            // An empty object has no first byte.
            Err(refusal) if refusal.status == 416 => Ok((self.head_here(key, version)?, Vec::new())),
            Err(refusal) => Err(refusal),
        }
    }
}

/// Compares a whole object with its checksum. Some servers send the checksum of all bytes with a part of them.
fn compare(head: &ReplyHead, body: &[u8], len: u64) -> Result<()> {
    let is_whole = !body.is_empty() && body.len() as u64 == len;
    let Some(mut check) = CheckedBody::of(head).filter(|_| is_whole) else { return Ok(()) };
    // SAFETY: the bytes are there, and nobody writes them, until the check has ended.
    unsafe { check.add(HostRange::of(body)) };
    check.end()
}

/// The length of the object of which these bytes came; `None`: they are not those that were asked for.
fn object_len(head: &ReplyHead, asked: u64, came: u64) -> Option<u64> {
    match head.header("content-range") {
        Some(range) => {
            let (start, end, len) = content_range(range)?;
            let is_asked = start == 0 && end == came && Some(end) == len.map(|len| len.min(asked));
            len.filter(|_| is_asked)
        }
        // The server takes no ranges: all bytes were on their way.
        None if head.status == 200 => head.length.filter(|len| came == (*len).min(asked)),
        None => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replies_without_the_bytes_asked_for_have_no_length() {
        let len = |status, range: Option<&str>, length, came| {
            let range = range.map(|range| ("content-range".to_owned(), range.to_owned()));
            object_len(&ReplyHead { status, headers: range.into_iter().collect(), length }, 100, came)
        };
        for (status, range, length, came, expected) in [
            (206, Some("bytes 0-9/10"), Some(10), 10, Some(10)),
            (206, Some("bytes 0-99/1000"), Some(100), 100, Some(1000)),
            (206, Some("bytes 0-9/10"), None, 10, Some(10)),
            // rclone's server.
            (200, Some("bytes 0-9/10"), Some(10), 10, Some(10)),
            (200, None, Some(10), 10, Some(10)),
            (200, None, Some(1000), 100, Some(1000)),
            (200, None, Some(0), 0, Some(0)),
            (200, None, None, 10, None),
            (206, None, Some(10), 10, None),
            (206, Some("bytes 1-9/10"), Some(9), 9, None),
            (206, Some("bytes 0-8/10"), Some(9), 9, None),
            (206, Some("bytes 0-9/10"), Some(9), 9, None),
            (206, Some("bytes 0-9/*"), Some(10), 10, None),
            (206, Some("bytes 0-199/1000"), Some(200), 100, None),
            (206, Some("x"), Some(10), 10, None),
            (204, None, None, 0, None),
        ] {
            assert_eq!(len(status, range, length, came), expected, "{status} {range:?} {length:?} {came}");
        }
    }
}
