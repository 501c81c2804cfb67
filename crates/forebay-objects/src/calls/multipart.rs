//! The calls of multipart uploads, and copies within servers.

use std::fmt::Write;
use std::ops::Range;
use std::time::Duration;

use forebay_error::{Error, ErrorKind, Result};
use forebay_remote::stop;

use super::bucket::Bucket;
use super::exchange::{Reply, Verdict, judge, once};
use super::refusal::Refusal;
use super::xml::{self, Node, malformed};
use super::{checksum, time};
use crate::account::encoded;
use crate::wire::call::{Ask, Body, Method};

/// Longer objects are copied in parts.
const MAX_COPY: u64 = 5 << 30;
/// Bytes that one call of such a copy copies.
const COPY_PART: u64 = 1 << 30;
/// How long the abortion of an upload is waited for where waiting is to stop.
pub(super) const ABORT_PATIENCE: Duration = Duration::from_secs(2);

/// A part that the server has.
#[derive(Clone, Debug)]
pub(super) struct SentPart {
    pub(super) number: u32,
    pub(super) len: u64,
    pub(super) etag: String,
    /// Where it was sent with one.
    pub(super) crc64: Option<u64>,
}

/// An upload that was neither finished nor aborted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnfinishedUpload {
    /// The key that the object is to have.
    pub key: String,
    /// The server's name of the upload.
    pub id: String,
    /// When it was begun, in seconds since 1970.
    pub begun: Option<i64>,
}

fn pair(name: &str, value: impl Into<String>) -> (String, String) {
    (name.to_owned(), value.into())
}

impl Bucket {
    /// Begins an upload. Its parts, and the whole object, have checksums, or none.
    pub(super) fn create(&self, key: &str, has_checksums: bool) -> Result<String, Refusal> {
        let mut ask = self.ask(Method::Post, key);
        ask.query.push(pair("uploads", ""));
        if has_checksums {
            ask.headers.push(pair("x-amz-checksum-algorithm", "CRC64NVME"));
            ask.headers.push(pair("x-amz-checksum-type", "FULL_OBJECT"));
        }
        let reply = self.call(&ask, &Body::None)?;
        // rclone's server names the document as the request.
        let roots = ["InitiateMultipartUploadResult", "InitiateMultipartUpload"];
        let found: Result<Vec<_>, _> =
            roots.iter().map(|root| xml::text_at(&reply.body, &[root, "UploadId"])).collect();
        let id = found?.into_iter().flatten().next();
        Ok(id.filter(|id| !id.is_empty()).ok_or_else(|| malformed("a new upload has no name"))?)
    }

    /// Asks for a part to be taken.
    pub(super) fn part_ask(&self, key: &str, id: &str, number: u32, crc64: Option<u64>) -> Ask {
        let mut ask = self.ask(Method::Put, key);
        ask.query.push(pair("partNumber", number.to_string()));
        ask.query.push(pair("uploadId", id));
        ask.headers.extend(crc64.map(|crc64| pair("x-amz-checksum-crc64nvme", checksum::text(crc64))));
        ask
    }

    /// Makes the object of its parts, in one step. The reply to a second attempt may say that there is no such upload. Whether the
    /// server said the checksum of the whole object.
    pub(super) fn complete(&self, key: &str, id: &str, parts: &[SentPart]) -> Result<bool, Refusal> {
        let mut ask = self.ask(Method::Post, key);
        ask.query.push(pair("uploadId", id));
        if let Some(whole) = checksum_of(parts) {
            ask.headers.push(pair("x-amz-checksum-crc64nvme", checksum::text(whole)));
            ask.headers.push(pair("x-amz-checksum-type", "FULL_OBJECT"));
        }
        let reply = self.call(&ask, &Body::Bytes(part_list(parts).into_bytes().into()))?;
        // A reply without its end is no success: an error may be on its way.
        let mut is_complete = false;
        xml::read(&reply.body, |path, node| {
            is_complete |=
                matches!((path, node), ([root], Node::End(_)) if root == "CompleteMultipartUploadResult");
            Ok(())
        })?;
        if !is_complete {
            return Err(malformed("an upload's end has another reply").into());
        }
        let told = xml::text_at(&reply.body, &["CompleteMultipartUploadResult", "ChecksumCRC64NVME"])?;
        Ok(told.is_some() && told == checksum_of(parts).map(checksum::text))
    }

    /// Gives an upload up: its parts are removed.
    pub fn abort(&self, key: &str, id: &str) -> Result<()> {
        let mut ask = self.ask(Method::Delete, key);
        ask.query.push(pair("uploadId", id));
        // It is not held up by the pauses of other calls at first: it takes load away.
        let endpoint = self.endpoint_here()?;
        let at_once = judge(&endpoint, &ask, once(&endpoint, ask.clone(), Body::None));
        let done = match at_once {
            Verdict::Good(_) => return Ok(()),
            Verdict::Refused(refusal) if refusal.code == "NoSuchUpload" => return Ok(()),
            _ => self.call(&ask, &Body::None),
        };
        match done {
            Err(refusal) if refusal.code == "NoSuchUpload" => Ok(()),
            other => other.map(drop).map_err(Error::from),
        }
    }

    /// Uploads that were begun for keys with a prefix, and neither finished nor aborted; the first 1 000.
    pub fn unfinished(&self, prefix: &str) -> Result<Vec<UnfinishedUpload>> {
        let mut ask = self.ask(Method::Get, "");
        ask.query.push(pair("uploads", ""));
        ask.query.push(pair("prefix", prefix));
        let reply = self.call(&ask, &Body::None)?;
        let new = || UnfinishedUpload { key: String::new(), id: String::new(), begun: None };
        let (mut all, mut one) = (Vec::new(), new());
        xml::read(&reply.body, |path, node| {
            match (path, node) {
                ([_, upload], Node::End(_)) if upload == "Upload" => {
                    all.push(std::mem::replace(&mut one, new()));
                }
                ([_, upload, field], Node::End(text)) if upload == "Upload" => match field.as_str() {
                    "Key" => text.clone_into(&mut one.key),
                    "UploadId" => text.clone_into(&mut one.id),
                    "Initiated" => one.begun = time::seconds(text),
                    _ => {}
                },
                _ => {}
            }
            Ok(())
        })?;
        Ok(all)
    }

    /// Copies an object within the server to `key` of this bucket.
    pub fn copy_from(&self, source: &Bucket, source_key: &str, key: &str) -> Result<()> {
        let head = source.head(source_key, None)?;
        let mut headers = vec![pair("x-amz-copy-source", copy_source(&source.name, source_key))];
        headers.extend(head.etag.map(|etag| pair("x-amz-copy-source-if-match", etag)));
        if head.len > MAX_COPY {
            return self.copy_parts(&headers, head.len, key);
        }
        let mut ask = self.ask(Method::Put, key);
        ask.headers = headers;
        let reply = self.call(&ask, &Body::None)?;
        etag_of_copy(&reply, "CopyObjectResult").map(drop)
    }

    fn copy_parts(&self, headers: &[(String, String)], len: u64, key: &str) -> Result<()> {
        let id = self.create(key, false)?;
        let copied = self.copy_each(headers, len, key, &id);
        let done = copied.and_then(|parts| self.complete(key, &id, &parts).map_err(Error::from));
        done.inspect_err(|_| {
            // The first error says why.
            let _ = stop::patiently(ABORT_PATIENCE, || self.abort(key, &id));
        })
        .map(drop)
    }

    fn copy_each(
        &self,
        headers: &[(String, String)],
        len: u64,
        key: &str,
        id: &str,
    ) -> Result<Vec<SentPart>> {
        let size = COPY_PART.max(len.div_ceil(10_000));
        let ranges = (0..len).step_by(size as usize).map(|start| start..(start + size).min(len));
        ranges.zip(1..).map(|(range, number)| self.copy_part(headers, range, number, key, id)).collect()
    }

    fn copy_part(
        &self,
        headers: &[(String, String)],
        range: Range<u64>,
        number: u32,
        key: &str,
        id: &str,
    ) -> Result<SentPart> {
        let mut ask = self.part_ask(key, id, number, None);
        ask.headers.extend_from_slice(headers);
        ask.headers.push(pair("x-amz-copy-source-range", format!("bytes={}-{}", range.start, range.end - 1)));
        let reply = self.call(&ask, &Body::None)?;
        let etag = etag_of_copy(&reply, "CopyPartResult")?;
        Ok(SentPart { number, len: range.end - range.start, etag, crc64: None })
    }
}

/// The checksum of all parts, where each has one.
pub(super) fn checksum_of(parts: &[SentPart]) -> Option<u64> {
    let (first, rest) = parts.split_first()?;
    rest.iter().try_fold(first.crc64?, |whole, part| Some(checksum::joined(whole, part.crc64?, part.len)))
}

fn part_list(parts: &[SentPart]) -> String {
    let mut document = "<CompleteMultipartUpload>".to_owned();
    for part in parts {
        let checksum = part.crc64.map(checksum::text);
        let checksum = checksum.map(|text| format!("<ChecksumCRC64NVME>{text}</ChecksumCRC64NVME>"));
        let _ = write!(
            document,
            "<Part><PartNumber>{}</PartNumber><ETag>{}</ETag>{}</Part>",
            part.number,
            xml::escaped(&part.etag),
            checksum.unwrap_or_default()
        );
    }
    document.push_str("</CompleteMultipartUpload>");
    document
}

fn etag_of_copy(reply: &Reply, root: &str) -> Result<String> {
    xml::text_at(&reply.body, &[root, "ETag"])?
        .ok_or_else(|| Error::new(ErrorKind::Io, "the server does not say that it has copied the object"))
}

/// A bucket and a key as a header has them.
fn copy_source(bucket: &str, key: &str) -> String {
    format!("{bucket}/{}", encoded(key, true))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_listed_with_their_checksums() {
        let part = |number, etag: &str, crc64| SentPart { number, len: 5, etag: etag.to_owned(), crc64 };
        let parts = [
            part(1, "\"a&\"", Some(checksum::crc64(b"12345"))),
            part(2, "b", Some(checksum::crc64(b"67890"))),
        ];
        assert_eq!(checksum_of(&parts), Some(checksum::crc64(b"1234567890")));
        assert_eq!(checksum_of(&[part(1, "a", None)]), None);
        assert_eq!(
            part_list(&[part(7, "\"a&\"", None)]),
            "<CompleteMultipartUpload><Part><PartNumber>7</PartNumber><ETag>\"a&amp;\"</ETag></Part>\
             </CompleteMultipartUpload>"
        );
        assert!(part_list(&parts).contains("<ChecksumCRC64NVME>"));
    }

    #[test]
    fn names_in_headers_are_encoded() {
        assert_eq!(copy_source("b", "a b/ü+%"), "b/a%20b/%C3%BC%2B%25");
    }
}
