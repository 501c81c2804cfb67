//! Objects and parts that are copied from objects, inside the file system where it can.

use std::ops::Range;

use hyper::HeaderMap;
use s3s::dto::*;
use s3s::{S3Error, S3ErrorCode, S3Request, S3Result};

use super::codes::{answer, answer_read};
use super::conditions::{ReadTerms, source_terms, write_condition};
use super::said::{meta_of, tag_of, time_of};
use super::sums::{self, Algorithm, kind, tell_checksum};
use super::{Front, blocking, no_version};
use crate::store::{Condition, Facts, Meta, Opened, Store, StoreError};

/// An object that is copied from.
struct Source {
    bucket: String,
    key: String,
    terms: ReadTerms,
}

impl Source {
    fn of(source: CopySource, headers: &HeaderMap, terms: ReadTerms) -> S3Result<Self> {
        // A plus sign is a space, as on Amazon S3; s5cmd sends it so. One in a key comes as %2B.
        let said = headers.get("x-amz-copy-source").and_then(|value| value.to_str().ok());
        let spaced = said.filter(|said| said.contains('+')).map(|said| said.replace('+', "%20"));
        match spaced.and_then(|said| CopySource::parse(&said).ok()).unwrap_or(source) {
            CopySource::Bucket { bucket, key, version_id } => {
                no_version(version_id.as_deref())?;
                Ok(Self { bucket: bucket.into(), key: key.into(), terms })
            }
            _ => Err(S3Error::with_message(S3ErrorCode::NotImplemented, "there are no access points here")),
        }
    }

    fn open(&self, store: &dyn Store) -> S3Result<Opened> {
        let opened = store.open(&self.bucket, &self.key).map_err(answer_read)?;
        self.terms.check_source(&opened.facts)?;
        Ok(opened)
    }
}

fn is_replace(directive: Option<&str>) -> S3Result<bool> {
    match directive {
        None | Some("COPY") => Ok(false),
        Some("REPLACE") => Ok(true),
        Some(_) => Err(S3Error::with_message(S3ErrorCode::InvalidArgument, "a directive is COPY or REPLACE")),
    }
}

/// How the copy differs from the source.
struct Changes {
    /// Headers and metadata instead of the source's.
    said: Option<Meta>,
    /// Tags instead of the source's.
    tags: Option<Meta>,
    algorithm: Option<Algorithm>,
}

impl Changes {
    fn apply(&self, meta: &mut Meta) {
        if let Some(said) = &self.said {
            meta.headers.clone_from(&said.headers);
            meta.user.clone_from(&said.user);
        }
        if let Some(said) = &self.tags {
            meta.tags.clone_from(&said.tags);
        }
    }

    /// What the copy of an object has: its bytes are the same, its parts are gone.
    fn meta_of_copy(&self, source: &Opened) -> S3Result<Meta> {
        let mut meta = source.facts.meta.clone();
        self.apply(&mut meta);
        (meta.parts, meta.part_sums) = (Vec::new(), Vec::new());
        let known = meta.checksum.take().filter(|known| !known.is_composite);
        let wanted = self.algorithm.map(Algorithm::name);
        meta.checksum = match known {
            Some(known) if wanted.is_none_or(|name| name == known.algorithm) => Some(known),
            _ if wanted.is_none() => None,
            _ => {
                let algorithm = self.algorithm.unwrap_or(Algorithm::Crc64Nvme);
                let len = source.facts.len;
                Some(sums::of_file(&source.file, 0, len, algorithm).map_err(S3Error::internal_error)?)
            }
        };
        Ok(meta)
    }
}

impl Front {
    pub(super) async fn copy(&self, request: S3Request<CopyObjectInput>) -> S3Result<CopyObjectOutput> {
        let input = request.input;
        let store = self.store(request.credentials.as_ref())?;
        let condition = write_condition(input.if_match, input.if_none_match)?;
        let terms = source_terms!(input);
        let source = Source::of(input.copy_source, &request.headers, terms)?;
        let replaces = is_replace(input.metadata_directive.as_ref().map(MetadataDirective::as_str))?;
        let replaces_tags = is_replace(input.tagging_directive.as_ref().map(TaggingDirective::as_str))?;
        let said = meta_of(&request.headers, input.metadata, input.tagging.as_deref())?;
        let algorithm = input.checksum_algorithm.map(|name| Algorithm::of(name.as_str())).transpose()?;
        let is_self = source.bucket == input.bucket && source.key == input.key;
        if is_self && !replaces && !replaces_tags && algorithm.is_none() {
            let why = "This copy request is illegal because it is trying to copy an object to itself without \
                       changing the object's metadata.";
            return Err(S3Error::with_message(S3ErrorCode::InvalidRequest, why));
        }
        let changes =
            Changes { said: replaces.then(|| said.clone()), tags: replaces_tags.then_some(said), algorithm };
        let facts = blocking(move || {
            let opened = source.open(store.as_ref())?;
            if is_self && changes.algorithm.is_none() && condition == Condition::None {
                let change = |meta: &mut Meta| changes.apply(meta);
                let etag = Some(opened.facts.etag.as_str());
                return store.describe(&input.bucket, &input.key, etag, &change).map_err(answer);
            }
            let meta = changes.meta_of_copy(&opened)?;
            let len = opened.facts.len;
            let draft = store.begin(&input.bucket, &input.key, Some(len)).map_err(answer)?;
            draft.copy_from(&opened.file, 0, len, 0).map_err(answer)?;
            is_unchanged(&opened)?;
            draft.publish(len, meta, &condition).map_err(answer)
        })
        .await?;
        Ok(CopyObjectOutput { copy_object_result: Some(copied(&facts)), ..CopyObjectOutput::default() })
    }

    pub(super) async fn copy_part(
        &self,
        request: S3Request<UploadPartCopyInput>,
    ) -> S3Result<UploadPartCopyOutput> {
        let input = request.input;
        let store = self.store(request.credentials.as_ref())?;
        let number = super::uploads::part_number(input.part_number)?;
        let terms = source_terms!(input);
        let source = Source::of(input.copy_source, &request.headers, terms)?;
        let facts = blocking(move || {
            let upload = store.upload(&input.bucket, &input.key, &input.upload_id).map_err(answer)?;
            let opened = source.open(store.as_ref())?;
            let range = part_of(input.copy_source_range.as_deref(), opened.facts.len)?;
            let len = range.end - range.start;
            let algorithm = super::uploads::algorithm_of(&upload)?;
            let checksum =
                sums::of_file(&opened.file, range.start, len, algorithm).map_err(S3Error::internal_error)?;
            let draft = store
                .begin_part(&input.bucket, &input.key, &input.upload_id, number, Some(len))
                .map_err(answer)?;
            draft.copy_from(&opened.file, range.start, len, 0).map_err(answer)?;
            is_unchanged(&opened)?;
            let meta = Meta { checksum: Some(checksum), ..Meta::default() };
            draft.publish(len, meta, &Condition::None).map_err(answer)
        })
        .await?;
        let mut part = CopyPartResult {
            e_tag: tag_of(&facts.etag),
            last_modified: time_of(facts.modified),
            ..CopyPartResult::default()
        };
        tell_checksum!(part, &facts.meta.checksum);
        Ok(UploadPartCopyOutput { copy_part_result: Some(part), ..UploadPartCopyOutput::default() })
    }
}

/// Fails where another program wrote into the source's file while it was read: its checksum is not that of the copy.
fn is_unchanged(source: &Opened) -> S3Result<()> {
    let now = source.file.metadata().map_err(S3Error::internal_error)?;
    let is_same = now.is_dir()
        || (now.len() == source.facts.len && now.modified().is_ok_and(|time| time == source.facts.modified));
    if is_same { Ok(()) } else { Err(answer(StoreError::Conflict)) }
}

fn copied(facts: &Facts) -> CopyObjectResult {
    let mut result = CopyObjectResult {
        e_tag: tag_of(&facts.etag),
        last_modified: time_of(facts.modified),
        checksum_type: facts.meta.checksum.as_ref().map(kind),
        ..CopyObjectResult::default()
    };
    tell_checksum!(result, &facts.meta.checksum);
    result
}

/// `x-amz-copy-source-range`: `bytes=first-last`, both said, both inside the source.
fn part_of(asked: Option<&str>, len: u64) -> S3Result<Range<u64>> {
    let Some(asked) = asked else { return Ok(0..len) };
    let numbers = asked.strip_prefix("bytes=").and_then(|text| text.split_once('-'));
    let parsed = numbers.and_then(|(first, last)| Some((first.parse().ok()?, last.parse().ok()?)));
    match parsed {
        Some((first, last)) if first <= last && last < len => Ok(first..last + 1),
        Some((first, last)) if first <= last => Err(S3Error::new(S3ErrorCode::InvalidRange)),
        _ => Err(super::buckets::wrong("x-amz-copy-source-range")),
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;

    #[test]
    fn a_source_that_was_written_into_is_refused() {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(b"bytes").unwrap();
        let known = file.as_file().metadata().unwrap();
        let facts = Facts {
            len: known.len(),
            modified: known.modified().unwrap(),
            etag: String::new(),
            meta: Meta::default(),
        };
        let source = Opened { file: file.reopen().unwrap(), facts };
        is_unchanged(&source).unwrap();
        file.as_file().set_modified(known.modified().unwrap() + std::time::Duration::from_nanos(1)).unwrap();
        assert_eq!(is_unchanged(&source).unwrap_err().code(), &S3ErrorCode::ConditionalRequestConflict);
    }

    #[test]
    fn ranges_of_sources() {
        assert_eq!(part_of(None, 9).unwrap(), 0..9);
        assert_eq!(part_of(Some("bytes=2-8"), 9).unwrap(), 2..9);
        let code = |text| part_of(Some(text), 9).unwrap_err().code().clone();
        assert_eq!(code("bytes=2-9"), S3ErrorCode::InvalidRange);
        for text in ["2-8", "bytes=2-", "bytes=-2", "bytes=3-2", "bytes=a-b", "bytes=0-18446744073709551616"]
        {
            assert_eq!(code(text), S3ErrorCode::InvalidArgument, "{text}");
        }
    }
}
