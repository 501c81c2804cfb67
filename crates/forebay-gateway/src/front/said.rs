//! What requests say of an object, and answers of it: headers, metadata, tags.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use hyper::HeaderMap;
use s3s::dto::{ETag, Metadata, Timestamp};
use s3s::{S3Error, S3ErrorCode, S3Result};

use crate::store::{Meta, is_sayable};

/// Headers that are kept as they come, and come back with the object.
const KEPT: [&str; 7] = [
    "cache-control",
    "content-disposition",
    "content-encoding",
    "content-language",
    "content-type",
    "expires",
    "x-amz-website-redirect-location",
];
/// S3's bound of the names and values of `x-amz-meta-`.
const USER_BYTES: usize = 2 << 10;
/// S3's bounds of tags: how many, of a name, of a value.
const TAGS: (usize, usize, usize) = (10, 128, 256);

/// What a request says of the object that it writes.
pub(crate) fn meta_of(headers: &HeaderMap, user: Option<Metadata>, tags: Option<&str>) -> S3Result<Meta> {
    let user: BTreeMap<_, _> = user.unwrap_or_default().into_iter().collect();
    if user.iter().map(|(name, value)| name.len() + value.len()).sum::<usize>() > USER_BYTES {
        return Err(S3Error::new(S3ErrorCode::MetadataTooLarge));
    }
    let mut kept = BTreeMap::new();
    for name in KEPT {
        let Some(value) = headers.get(name) else { continue };
        let value = String::from_utf8_lossy(value.as_bytes()).into_owned();
        let value = if name == "content-encoding" { without_chunks(&value) } else { value };
        if !value.is_empty() {
            kept.insert(name.to_owned(), value);
        }
    }
    let tags = checked_tags(tags.map(parsed_tags).transpose()?.unwrap_or_default())?;
    Ok(Meta { headers: kept, user, tags, ..Meta::default() })
}

/// `aws-chunked` is how the bytes came, not what they are.
fn without_chunks(encoding: &str) -> String {
    let codings: Vec<_> =
        encoding.split(',').map(str::trim).filter(|coding| *coding != "aws-chunked").collect();
    codings.join(", ")
}

/// Tags of the header `x-amz-tagging`: `a=b&c=d`, each encoded.
fn parsed_tags(header: &str) -> S3Result<Vec<(String, String)>> {
    let pairs = header.split('&').filter(|pair| !pair.is_empty());
    let parsed = pairs.map(|pair| {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        Some((decoded(name)?, decoded(value)?))
    });
    parsed.collect::<Option<_>>().ok_or_else(|| S3Error::new(S3ErrorCode::InvalidTag))
}

/// Tags within S3's bounds, each name once.
pub(crate) fn checked_tags(tags: Vec<(String, String)>) -> S3Result<BTreeMap<String, String>> {
    let (count, name_chars, value_chars) = TAGS;
    let given = tags.len();
    let is_long = tags.iter().any(|(name, value)| {
        name.is_empty() || name.chars().count() > name_chars || value.chars().count() > value_chars
    });
    // Nobody could ask for them.
    let is_odd = tags.iter().any(|(name, value)| !is_sayable(name) || !is_sayable(value));
    let tags: BTreeMap<_, _> = tags.into_iter().collect();
    if given > count {
        return Err(S3Error::with_message(S3ErrorCode::InvalidTag, "an object has at most 10 tags"));
    }
    if is_long || is_odd || tags.len() != given {
        return Err(S3Error::new(S3ErrorCode::InvalidTag));
    }
    Ok(tags)
}

/// A part of a path: `+` is no space there.
pub(super) fn path_of(text: &str) -> Option<String> {
    decoded(&text.replace('+', "%2B"))
}

/// A value of a query string.
fn decoded(text: &str) -> Option<String> {
    let mut bytes = text.bytes();
    let mut out = Vec::with_capacity(text.len());
    while let Some(byte) = bytes.next() {
        match byte {
            b'+' => out.push(b' '),
            b'%' => {
                let digits = [bytes.next()?, bytes.next()?];
                out.push(u8::from_str_radix(std::str::from_utf8(&digits).ok()?, 16).ok()?);
            }
            _ => out.push(byte),
        }
    }
    String::from_utf8(out).ok()
}

/// As `encoding-type=url` asks for keys: all but letters, digits and `-_.~/*` by their bytes.
pub(crate) fn encoded(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-_.~/*".contains(&byte) {
            out.push(byte as char);
        } else {
            let _ = write!(out, "%{byte:02X}");
        }
    }
    out
}

/// The ETag of an answer.
#[allow(clippy::unnecessary_wraps, reason = "the fields of answers are options")]
pub(crate) fn tag_of(etag: &str) -> Option<ETag> {
    Some(ETag::Strong(etag.to_owned()))
}

/// `Last-Modified`, and its like in XML.
#[allow(clippy::unnecessary_wraps, reason = "the fields of answers are options")]
pub(crate) fn time_of(time: std::time::SystemTime) -> Option<Timestamp> {
    Some(Timestamp::from(time))
}

/// Headers of an object for an answer's fields of the same names.
macro_rules! tell_facts {
    ($answer:expr, $facts:expr) => {
        let kept = |name: &str| $facts.meta.headers.get(name).cloned();
        $answer.accept_ranges = Some("bytes".into());
        $answer.cache_control = kept("cache-control");
        $answer.content_disposition = kept("content-disposition");
        $answer.content_encoding = kept("content-encoding");
        $answer.content_language = kept("content-language");
        $answer.content_type = kept("content-type").or_else(|| Some("binary/octet-stream".into()));
        $answer.expires = kept("expires");
        $answer.website_redirect_location = kept("x-amz-website-redirect-location");
        $answer.e_tag = $crate::front::said::tag_of(&$facts.etag);
        $answer.last_modified = $crate::front::said::time_of($facts.modified);
        let user = &$facts.meta.user;
        if !user.is_empty() {
            $answer.metadata = Some(user.iter().map(|(name, value)| (name.clone(), value.clone())).collect());
        }
        if !$facts.meta.tags.is_empty() {
            $answer.tag_count = i32::try_from($facts.meta.tags.len()).ok();
        }
    };
}
pub(crate) use tell_facts;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tags_of_a_header_are_decoded_and_bounded() {
        let tags = |text: &str| meta_of(&HeaderMap::new(), None, Some(text)).map(|meta| meta.tags);
        let read = tags("a=1&b%20c=x%2By+z&empty=").unwrap();
        assert_eq!(read["a"], "1");
        assert_eq!(read["b c"], "x+y z");
        assert_eq!(read["empty"], "");
        for wrong in [
            "a=1&a=2",
            "=x",
            "a=%zz",
            "a=%01",
            "a%00=b",
            "a=%f",
            &format!("{}=1", "k".repeat(129)),
            &format!("k={}", "v".repeat(257)),
        ] {
            assert_eq!(tags(wrong).unwrap_err().code(), &S3ErrorCode::InvalidTag, "{wrong}");
        }
        let many = (0..11).map(|at| format!("t{at}=1")).collect::<Vec<_>>().join("&");
        assert!(tags(&many).is_err());
    }

    #[test]
    fn how_the_bytes_came_is_not_kept() {
        let kept = |value: &str| {
            let headers =
                [("content-encoding".parse().unwrap(), value.parse().unwrap())].into_iter().collect();
            meta_of(&headers, None, None).unwrap().headers.get("content-encoding").cloned()
        };
        assert_eq!(kept("aws-chunked"), None);
        assert_eq!(kept("gzip, aws-chunked"), Some("gzip".into()));
    }

    #[test]
    fn keys_are_encoded_as_aws_does() {
        assert_eq!(encoded("foo+1/bar baz"), "foo%2B1/bar%20baz");
        assert_eq!(encoded("ü"), "%C3%BC");
    }
}
