//! The calls of multipart uploads, and copies within servers.

use std::fmt::Write;
use std::ops::Range;
use std::time::Duration;

use forebay_error::{Error, ErrorKind, Result};
use forebay_remote::stop;

use super::bucket::{Bucket, ObjectHead};
use super::etag::strong;
use super::exchange::{Reply, Verdict, judge, once};
use super::refusal::Refusal;
use super::{checksum, time};
use crate::account::encoded;
use crate::wire::call::{Ask, Body, Method, ReplyHead};
use crate::xml::{self, Node, malformed};

/// Longer objects are copied in parts.
const MAX_COPY: u64 = 5 << 30;
/// Bytes that one call of such a copy copies.
const COPY_PART: u64 = 1 << 30;
/// Headers of an object beside `x-amz-meta-*`.
const KEPT: [&str; 6] = [
    "content-type",
    "content-encoding",
    "content-disposition",
    "content-language",
    "cache-control",
    "expires",
];
/// A part that the server has.
#[derive(Clone, Debug)]
pub(super) struct SentPart {
    pub(super) number: u32,
    pub(super) len: u64,
    pub(super) etag: String,
    /// Where it was sent with one.
    pub(super) crc64: Option<u64>,
}

/// How long the end of calls is waited for when an upload is given up.
pub(super) const PATIENCE: Duration = Duration::from_secs(2);

/// An upload that the server has begun.
#[derive(Debug)]
pub(super) struct Begun {
    /// The server's name of it.
    pub(super) id: String,
    /// As that of [`Reply`]: there may be another one.
    pub(super) is_second: bool,
}

/// An upload that was neither finished nor aborted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct UnfinishedUpload {
    /// The key that the object is to have.
    pub(super) key: String,
    /// The server's name of the upload.
    pub(super) id: String,
    /// When it was begun, in seconds since 1970.
    pub(super) begun: Option<i64>,
}

fn pair(name: &str, value: impl Into<String>) -> (String, String) {
    (name.to_owned(), value.into())
}

impl Bucket {
    /// Begins an upload. Its parts, and the whole object, have checksums, or none. `kept`: headers that the object is to have.
    pub(super) fn create(
        &self,
        key: &str,
        has_checksums: bool,
        kept: &[(String, String)],
    ) -> Result<Begun, Refusal> {
        let mut ask = self.ask(Method::Post, key);
        ask.headers.extend_from_slice(kept);
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
        let id = id.filter(|id| !id.is_empty()).ok_or_else(|| malformed("a new upload has no name"))?;
        Ok(Begun { id, is_second: reply.is_second })
    }

    /// Uploads of this key that were begun at most so long before this one, by the server's clock: replies to earlier attempts may
    /// have been lost, or another program writes the key.
    pub(super) fn begun_before(&self, key: &str, id: &str, time: Duration) -> Result<Vec<UnfinishedUpload>> {
        let mut found = self.unfinished(key)?;
        found.retain(|upload| upload.key == key);
        let Some(own) = found.iter().find(|upload| upload.id == id).and_then(|own| own.begun) else {
            return Ok(Vec::new());
        };
        // The server tells whole seconds.
        let first = own - time.as_secs() as i64 - 1;
        found.retain(|upload| {
            upload.id != id && upload.begun.is_some_and(|begun| (first..=own).contains(&begun))
        });
        Ok(found)
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
        let whole = checksum_of(parts).map(checksum::text);
        if let Some(whole) = &whole {
            ask.headers.push(pair("x-amz-checksum-crc64nvme", whole));
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
        Ok(told.is_some() && told == whole)
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
    fn unfinished(&self, prefix: &str) -> Result<Vec<UnfinishedUpload>> {
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

    /// Copies an object within the server to `key` of this bucket, with its metadata.
    pub fn copy_from(&self, source: &Bucket, source_key: &str, key: &str) -> Result<()> {
        self.copy_by(source, source_key, key, MAX_COPY)
    }

    /// The same, in parts if the object has more bytes than `most`.
    pub(super) fn copy_by(&self, source: &Bucket, source_key: &str, key: &str, most: u64) -> Result<()> {
        let head = source.head_reply(source_key, None)?;
        let len = ObjectHead::of(&head)?.len;
        let mut headers = vec![pair("x-amz-copy-source", copy_source(&source.name, source_key))];
        headers.extend(strong(head.header("etag")).map(|etag| pair("x-amz-copy-source-if-match", etag)));
        if len > most {
            let tags = source.tags(source_key)?.map(|tags| pair("x-amz-tagging", tags));
            let kept = kept_headers(&head).chain(tags).collect::<Vec<_>>();
            return self.copy_parts(&headers, &kept, len, key);
        }
        let mut ask = self.ask(Method::Put, key);
        ask.headers = headers;
        let reply = self.call(&ask, &Body::None)?;
        etag_of_copy(&reply, "CopyObjectResult").map(drop)
    }

    /// The tags of an object as a header has them; `None`: it has none, the server has no tags, or they may not be read.
    pub(crate) fn tags(&self, key: &str) -> Result<Option<String>> {
        let mut ask = self.ask(Method::Get, key);
        ask.query.push(pair("tagging", ""));
        let reply = match self.call(&ask, &Body::None) {
            Ok(reply) => reply,
            Err(refusal) if matches!(refusal.status, 400..=499 | 501) => return Ok(None),
            Err(refusal) => return Err(refusal.into()),
        };
        let (mut tags, mut name) = (String::new(), String::new());
        xml::read(&reply.body, |path, node| {
            match (path, node) {
                ([root, .., tag, field], Node::End(text)) if root == "Tagging" && tag == "Tag" => {
                    match field.as_str() {
                        "Key" => name = encoded(text, false),
                        "Value" => {
                            let and = if tags.is_empty() { "" } else { "&" };
                            let _ = write!(tags, "{and}{name}={}", encoded(text, false));
                        }
                        _ => {}
                    }
                }
                _ => {}
            }
            Ok(())
        })?;
        Ok((!tags.is_empty()).then_some(tags))
    }

    fn copy_parts(
        &self,
        headers: &[(String, String)],
        kept: &[(String, String)],
        len: u64,
        key: &str,
    ) -> Result<()> {
        let Begun { id, .. } = self.create(key, false, kept)?;
        let copied = self.copy_each(headers, len, key, &id);
        let done = copied.and_then(|parts| self.complete(key, &id, &parts).map_err(Error::from));
        done.inspect_err(|_| {
            // The first error says why.
            let _ = stop::patiently(PATIENCE, || self.abort(key, &id));
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

/// What CopyObject copies with an object, and CreateMultipartUpload takes from its request.
pub(crate) fn kept_headers(head: &ReplyHead) -> impl Iterator<Item = (String, String)> + '_ {
    let is_kept = |name: &str| KEPT.contains(&name) || name.starts_with("x-amz-meta-");
    head.headers.iter().filter(move |(name, _)| is_kept(name)).cloned()
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
