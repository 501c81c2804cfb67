//! `If-…` and `Range` of a request.

use std::ops::Range;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use hyper::header::{CONTENT_RANGE, ETAG, HeaderMap, LAST_MODIFIED};
use s3s::dto::{ETagCondition, Range as AskedRange, Timestamp, TimestampFormat};
use s3s::{S3Error, S3ErrorCode, S3Result};

use crate::store::{Checksum, Condition, Facts};

/// What a reader asks of an object before it wants its bytes.
#[derive(Default)]
pub(crate) struct ReadTerms {
    pub(crate) matches: Option<ETagCondition>,
    pub(crate) differs: Option<ETagCondition>,
    pub(crate) changed_since: Option<Timestamp>,
    pub(crate) same_since: Option<Timestamp>,
}

/// Those of an input of S3's, which are moved out of it.
macro_rules! read_terms {
    ($input:ident) => {
        $crate::front::conditions::ReadTerms {
            matches: $input.if_match,
            differs: $input.if_none_match,
            changed_since: $input.if_modified_since,
            same_since: $input.if_unmodified_since,
        }
    };
}
pub(super) use read_terms;

/// The same of the source of a copy.
macro_rules! source_terms {
    ($input:ident) => {
        $crate::front::conditions::ReadTerms {
            matches: $input.copy_source_if_match,
            differs: $input.copy_source_if_none_match,
            changed_since: $input.copy_source_if_modified_since,
            same_since: $input.copy_source_if_unmodified_since,
        }
    };
}
pub(super) use source_terms;

impl ReadTerms {
    /// In the order of RFC 9110 13.2.2: an ETag is asked before a time.
    pub(crate) fn check(&self, facts: &Facts) -> S3Result<()> {
        let modified = whole_second(facts.modified);
        let fails = match (&self.matches, &self.same_since) {
            (Some(wanted), _) => !is_it(wanted, facts),
            (None, Some(since)) => modified > *since,
            (None, None) => false,
        };
        if fails {
            return Err(S3Error::new(S3ErrorCode::PreconditionFailed));
        }
        let is_known = match (&self.differs, &self.changed_since) {
            (Some(known), _) => is_it(known, facts),
            (None, Some(since)) => modified <= *since,
            (None, None) => false,
        };
        if is_known { Err(not_modified(facts)) } else { Ok(()) }
    }

    /// Of the source of a copy: what is not so is a condition that failed, never 304.
    pub(crate) fn check_source(&self, facts: &Facts) -> S3Result<()> {
        self.check(facts).map_err(|_| S3Error::new(S3ErrorCode::PreconditionFailed))
    }
}

fn is_it(condition: &ETagCondition, facts: &Facts) -> bool {
    condition.is_any() || condition.as_etag().is_some_and(|etag| etag.value() == facts.etag)
}

/// HTTP's times have no parts of seconds.
pub(crate) fn whole_second(time: SystemTime) -> Timestamp {
    let seconds = time.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    Timestamp::from(UNIX_EPOCH + Duration::from_secs(seconds))
}

fn not_modified(facts: &Facts) -> S3Error {
    let mut headers = HeaderMap::new();
    if let Ok(etag) = format!("\"{}\"", facts.etag).parse() {
        headers.insert(ETAG, etag);
    }
    let mut time = Vec::new();
    if whole_second(facts.modified).format(TimestampFormat::HttpDate, &mut time).is_ok()
        && let Ok(time) = time.as_slice().try_into()
    {
        headers.insert(LAST_MODIFIED, time);
    }
    let mut error = S3Error::new(S3ErrorCode::NotModified);
    error.set_headers(headers);
    error
}

/// What a writer asks of the name at the moment when it is given away.
pub(crate) fn write_condition(
    matches: Option<ETagCondition>,
    none: Option<ETagCondition>,
) -> S3Result<Condition> {
    match (matches, none) {
        (None, None) => Ok(Condition::None),
        (None, Some(ETagCondition::Any)) => Ok(Condition::Absent),
        (None, Some(ETagCondition::ETag(etag))) => Ok(Condition::Differs(etag.into_value())),
        (Some(ETagCondition::Any), None) => Ok(Condition::Matches(vec!["*".into()])),
        (Some(ETagCondition::ETag(etag)), None) => Ok(Condition::Matches(vec![etag.into_value()])),
        _ => {
            let why = "of a write, If-None-Match or If-Match can be asked for, not both";
            Err(S3Error::with_message(S3ErrorCode::NotImplemented, why))
        }
    }
}

/// The bytes that a reader gets.
pub(crate) struct Slice {
    pub(crate) range: Range<u64>,
    /// `Content-Range`, where it is not the object as it is.
    pub(crate) content_range: Option<String>,
    /// How many parts the object has, where a part was asked for.
    pub(crate) parts: Option<i32>,
    /// Of these bytes: of a range there is none.
    pub(crate) checksum: Option<Checksum>,
}

impl Slice {
    pub(crate) fn of(facts: &Facts, range: Option<AskedRange>, part: Option<i32>) -> S3Result<Self> {
        let (range, parts) = match (range, part) {
            (Some(_), Some(_)) => {
                let why = "Cannot specify both Range header and partNumber query parameter";
                return Err(S3Error::with_message(S3ErrorCode::InvalidRequest, why));
            }
            (None, None) => {
                let checksum = facts.meta.checksum.clone();
                return Ok(Self { range: 0..facts.len, content_range: None, parts: None, checksum });
            }
            (Some(asked), None) => (asked.check(facts.len).map_err(|_| out_of_range(facts.len))?, None),
            (None, Some(part)) => part_range(facts, part)?,
        };
        let content_range = (range.start < range.end)
            .then(|| format!("bytes {}-{}/{}", range.start, range.end - 1, facts.len));
        let checksum = match part {
            Some(part) if !facts.meta.parts.is_empty() => facts.meta.checksum_of_part(part as usize),
            Some(_) => facts.meta.checksum.clone(),
            None => None,
        };
        Ok(Self { range, content_range, parts, checksum })
    }
}

fn out_of_range(len: u64) -> S3Error {
    let mut error = S3Error::new(S3ErrorCode::InvalidRange);
    if let Ok(value) = format!("bytes */{len}").parse() {
        error.set_headers(std::iter::once((CONTENT_RANGE, value)).collect());
    }
    error
}

/// Where a part lies. An object that was written at once is its only part.
fn part_range(facts: &Facts, part: i32) -> S3Result<(Range<u64>, Option<i32>)> {
    let parts = &facts.meta.parts;
    let before =
        usize::try_from(part.saturating_sub(1)).map_err(|_| S3Error::new(S3ErrorCode::InvalidArgument))?;
    if parts.is_empty() && before == 0 {
        return Ok((0..facts.len, None));
    }
    let len = parts.get(before).ok_or_else(|| S3Error::new(S3ErrorCode::InvalidPart))?;
    // Lengths of a record that another program wrote may be any.
    let start = parts[..before].iter().fold(0u64, |sum, len| sum.saturating_add(*len)).min(facts.len);
    Ok((start..start.saturating_add(*len).min(facts.len), i32::try_from(parts.len()).ok()))
}

#[cfg(test)]
#[allow(clippy::unnecessary_wraps, reason = "fields are options")]
mod tests {
    use super::*;
    use crate::store::Meta;

    fn facts(len: u64, parts: &[u64]) -> Facts {
        let meta = Meta { parts: parts.to_vec(), ..Meta::default() };
        Facts { len, modified: UNIX_EPOCH + Duration::from_millis(10_500), etag: "a-b".into(), meta }
    }

    fn etag(text: &str) -> Option<ETagCondition> {
        Some(ETagCondition::parse_http_header(text.as_bytes()).unwrap())
    }

    fn at(seconds: u64) -> Option<Timestamp> {
        Some(Timestamp::from(UNIX_EPOCH + Duration::from_secs(seconds)))
    }

    fn code(terms: &ReadTerms) -> Option<S3ErrorCode> {
        terms.check(&facts(1, &[])).err().map(|error| error.code().clone())
    }

    #[test]
    fn terms_of_readers() {
        use S3ErrorCode::{NotModified, PreconditionFailed};
        let none = ReadTerms::default;
        assert_eq!(code(&ReadTerms { matches: etag("\"a-b\""), ..none() }), None);
        assert_eq!(code(&ReadTerms { matches: etag("\"x\""), ..none() }), Some(PreconditionFailed));
        assert_eq!(code(&ReadTerms { differs: etag("\"a-b\""), ..none() }), Some(NotModified));
        assert_eq!(code(&ReadTerms { differs: etag("*"), ..none() }), Some(NotModified));
        // The object is of 10.5 s: a client that was given 10 s knows it.
        assert_eq!(code(&ReadTerms { changed_since: at(10), ..none() }), Some(NotModified));
        assert_eq!(code(&ReadTerms { changed_since: at(9), ..none() }), None);
        assert_eq!(code(&ReadTerms { same_since: at(10), ..none() }), None);
        assert_eq!(code(&ReadTerms { same_since: at(9), ..none() }), Some(PreconditionFailed));
        // ETags go before times.
        assert_eq!(code(&ReadTerms { matches: etag("\"a-b\""), same_since: at(9), ..none() }), None);
        assert_eq!(code(&ReadTerms { differs: etag("\"x\""), changed_since: at(10), ..none() }), None);
    }

    #[test]
    fn conditions_of_writers() {
        assert_eq!(write_condition(None, etag("*")).unwrap(), Condition::Absent);
        assert_eq!(write_condition(etag("\"x\""), None).unwrap(), Condition::Matches(vec!["x".into()]));
        assert_eq!(write_condition(None, etag("\"x\"")).unwrap(), Condition::Differs("x".into()));
        assert!(write_condition(etag("\"x\""), etag("*")).is_err());
    }

    #[test]
    fn ranges_and_parts() {
        let slice = |range: Option<&str>, part| {
            let range = range.map(|text| AskedRange::parse(text).unwrap());
            Slice::of(&facts(10, &[6, 4]), range, part)
        };
        assert_eq!(slice(None, None).unwrap().content_range, None);
        assert_eq!(slice(Some("bytes=2-3"), None).unwrap().range, 2..4);
        assert_eq!(slice(Some("bytes=-4"), None).unwrap().content_range.unwrap(), "bytes 6-9/10");
        assert_eq!(slice(Some("bytes=-40"), None).unwrap().range, 0..10);
        let error = slice(Some("bytes=10-"), None).err().unwrap();
        assert_eq!(error.code(), &S3ErrorCode::InvalidRange);
        assert_eq!(error.headers().unwrap()[CONTENT_RANGE], "bytes */10");
        let second = slice(None, Some(2)).unwrap();
        assert_eq!((second.range, second.parts), (6..10, Some(2)));
        assert!(slice(None, Some(3)).is_err());
        assert!(slice(None, Some(0)).is_err());
        assert!(slice(Some("bytes=0-1"), Some(1)).is_err());
    }

    #[test]
    fn an_empty_object_has_no_range() {
        let empty = facts(0, &[]);
        assert!(Slice::of(&empty, Some(AskedRange::parse("bytes=0-").unwrap()), None).is_err());
        assert_eq!(Slice::of(&empty, None, Some(1)).unwrap().content_range, None);
    }
}
