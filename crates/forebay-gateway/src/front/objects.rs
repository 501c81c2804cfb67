//! Objects: written, read, described, removed.

use std::sync::Arc;

use hyper::Method;
use s3s::dto::*;
use s3s::{S3Error, S3ErrorCode, S3Request, S3Result};

use super::access::refuse_unknown;
use super::body::{Span, body_of};
use super::buckets::{Names, only_private, private};
use super::codes::{answer, answer_read};
use super::conditions::{ReadTerms, Slice, read_terms, whole_second, write_condition};
use super::intake::{Incoming, len_said, take_in};
use super::lend::asking;
use super::said::{checked_tags, meta_of, tag_of, tell_facts, time_of};
use super::sums::{Algorithm, Sums, kind, tell_checksum};
use super::{Front, Visit, blocking, forms, no_version, owner, sending, turns};
use crate::store::{Condition, Facts, Meta, Store, StoreError, StoreResult, is_sayable};

/// S3's bound of keys in a DeleteObjects.
const REMOVALS: usize = 1000;

/// What the answers to GET and HEAD say of an object, and of the bytes that were asked for.
macro_rules! tell_slice {
    ($answer:ident, $facts:ident, $slice:ident, $mode:expr) => {
        if wants_checksum($mode) {
            tell_checksum!($answer, &$slice.checksum);
            $answer.checksum_type = $slice.checksum.as_ref().and($facts.meta.checksum.as_ref()).map(kind);
        }
        tell_facts!($answer, $facts);
        $answer.content_length = i64::try_from($slice.range.end - $slice.range.start).ok();
        $answer.content_range = $slice.content_range;
        $answer.parts_count = $slice.parts;
    };
}

impl Front {
    pub(super) async fn put(&self, mut request: S3Request<PutObjectInput>) -> S3Result<PutObjectOutput> {
        if request.method == Method::POST {
            // The answer to a form repeats it.
            Names::Plain.check_text(&request.input.key)?;
            request.headers = forms::headers_of(&request.input)?;
            refuse_unknown(&request.headers)?;
        }
        if let Some((peer, way)) = asking(&request, &["write", "publish"])? {
            return self.put_file(request, peer, way).await;
        }
        let transfer = self.transfer_in(&request).await?;
        let input = request.input;
        let store = self.store(request.credentials.as_ref())?;
        let condition = write_condition(input.if_match, input.if_none_match)?;
        let meta = meta_of(&request.headers, input.metadata, input.tagging.as_deref())?;
        let sums = Sums::of(&request.headers, Algorithm::Crc64Nvme)?;
        let facts = if let Some(transfer) = transfer {
            let (said, early) = (Some(transfer.bytes()), condition.clone());
            let begin = Box::new(move || {
                fails_early(store.as_ref(), &input.bucket, &input.key, &early)?;
                store.begin(&input.bucket, &input.key, said)
            });
            transfer.receive(begin, sums, meta, condition).await?
        } else {
            let said = len_said(input.content_length);
            let begin = Box::new(move || store.begin(&input.bucket, &input.key, said));
            let body = Incoming { body: input.body, said, trailers: request.trailing_headers, sums };
            take_in(body, begin, meta, condition).await?
        };
        let mut answer = PutObjectOutput { e_tag: tag_of(&facts.etag), ..PutObjectOutput::default() };
        tell_checksum!(answer, &facts.meta.checksum);
        answer.checksum_type = facts.meta.checksum.as_ref().map(kind);
        Ok(answer)
    }

    pub(super) async fn get(&self, request: S3Request<GetObjectInput>) -> S3Result<GetObjectOutput> {
        no_version(request.input.version_id.as_deref())?;
        if let Some((peer, _)) = asking(&request, &["read"])? {
            return self.lend(request, peer).await;
        }
        let transfer = self.transfer_out(&request).await?;
        let input = request.input;
        let store = self.store(request.credentials.as_ref())?;
        let pieces = Arc::clone(&self.pieces);
        let (lane, turns) = (Visit::current().and_then(|visit| visit.lane.clone()), turns());
        let terms = read_terms!(input);
        let is_by_rdma = transfer.is_some();
        // One job for all that a small object needs.
        let job = move || {
            let opened = store.open(&input.bucket, &input.key).map_err(answer_read)?;
            terms.check(&opened.facts)?;
            let slice = Slice::of(&opened.facts, input.range, input.part_number)?;
            if let Some(transfer) = transfer
                && transfer.send(&opened.file, &slice.range)?
            {
                return Ok((opened.facts, slice, None));
            }
            let span = Span::new(opened.file, slice.range.clone(), pieces, turns);
            let body = body_of(span, lane).map_err(S3Error::internal_error)?;
            Ok((opened.facts, slice, Some(body)))
        };
        let (facts, slice, body) = if is_by_rdma { sending(job).await? } else { blocking(job).await? };
        let mut answer = GetObjectOutput::default();
        tell_slice!(answer, facts, slice, input.checksum_mode.as_ref());
        match body {
            Some(body) => answer.body = Some(StreamingBlob::from(body)),
            None => answer.content_length = Some(0),
        }
        Ok(answer)
    }

    pub(super) async fn head(&self, request: S3Request<HeadObjectInput>) -> S3Result<HeadObjectOutput> {
        let input = request.input;
        no_version(input.version_id.as_deref())?;
        let facts = self.facts(request.credentials.as_ref(), input.bucket, input.key).await?;
        let terms = read_terms!(input);
        terms.check(&facts)?;
        let slice = Slice::of(&facts, input.range, input.part_number)?;
        let mut answer = HeadObjectOutput::default();
        tell_slice!(answer, facts, slice, input.checksum_mode.as_ref());
        Ok(answer)
    }

    /// An object without its bytes, for a reader.
    async fn facts(
        &self,
        signed: Option<&s3s::auth::Credentials>,
        bucket: String,
        key: String,
    ) -> S3Result<Facts> {
        let store = self.store(signed)?;
        blocking(move || store.facts(&bucket, &key).map_err(answer_read)).await
    }

    pub(super) async fn attributes(
        &self,
        request: S3Request<GetObjectAttributesInput>,
    ) -> S3Result<GetObjectAttributesOutput> {
        let input = request.input;
        no_version(input.version_id.as_deref())?;
        let facts = self.facts(request.credentials.as_ref(), input.bucket, input.key).await?;
        // Some clients send one header with commas, others a header each.
        let asked = || input.object_attributes.iter().flat_map(|asked| asked.as_str().split(','));
        let wants = |name: &str| asked().any(|one| one.trim() == name);
        let mut answer =
            GetObjectAttributesOutput { last_modified: time_of(facts.modified), ..Default::default() };
        if wants(ObjectAttributes::ETAG) {
            answer.e_tag = tag_of(&facts.etag);
        }
        if wants(ObjectAttributes::OBJECT_SIZE) {
            answer.object_size = i64::try_from(facts.len).ok();
        }
        if wants(ObjectAttributes::STORAGE_CLASS) {
            answer.storage_class = Some(StorageClass::from_static(StorageClass::STANDARD));
        }
        if wants(ObjectAttributes::CHECKSUM)
            && let Some(known) = &facts.meta.checksum
        {
            let mut checksum = Checksum { checksum_type: Some(kind(known)), ..Checksum::default() };
            tell_checksum!(checksum, Some(known));
            answer.checksum = Some(checksum);
        }
        if wants(ObjectAttributes::OBJECT_PARTS) && !facts.meta.parts.is_empty() {
            let behind = input.part_number_marker.unwrap_or_default();
            answer.object_parts = Some(object_parts(&facts.meta, behind, input.max_parts.unwrap_or(1000)));
        }
        Ok(answer)
    }

    pub(super) async fn object_acl(
        &self,
        request: S3Request<GetObjectAclInput>,
    ) -> S3Result<GetObjectAclOutput> {
        let signed = request.credentials.as_ref();
        no_version(request.input.version_id.as_deref())?;
        self.facts(signed, request.input.bucket, request.input.key).await?;
        let owner = owner(signed);
        Ok(GetObjectAclOutput { grants: Some(private(owner.clone())), owner, request_charged: None })
    }

    /// All is private: to ask for that changes nothing.
    pub(super) async fn set_object_acl(
        &self,
        request: S3Request<PutObjectAclInput>,
    ) -> S3Result<PutObjectAclOutput> {
        let signed = request.credentials.as_ref();
        no_version(request.input.version_id.as_deref())?;
        only_private(request.input.access_control_policy.as_ref(), signed)?;
        self.facts(signed, request.input.bucket, request.input.key).await?;
        Ok(PutObjectAclOutput::default())
    }

    pub(super) async fn remove(&self, request: S3Request<DeleteObjectInput>) -> S3Result<DeleteObjectOutput> {
        let input = request.input;
        no_version(input.version_id.as_deref())?;
        let terms = RemovalTerms {
            etag: input.if_match,
            size: input.if_match_size,
            modified: input.if_match_last_modified_time,
        };
        let (bucket, key) = (input.bucket, input.key);
        self.ask(request.credentials.as_ref(), move |store| remove_one(store, &bucket, &key, terms)).await?;
        Ok(DeleteObjectOutput::default())
    }

    pub(super) async fn remove_many(
        &self,
        request: S3Request<DeleteObjectsInput>,
    ) -> S3Result<DeleteObjectsOutput> {
        let DeleteObjectsInput { bucket, delete, .. } = request.input;
        if delete.objects.is_empty() || delete.objects.len() > REMOVALS {
            return Err(S3Error::new(S3ErrorCode::MalformedXML));
        }
        // No document has such a key, not even encoded.
        if !delete.objects.iter().all(|object| is_sayable(&object.key)) {
            return Err(S3Error::new(S3ErrorCode::MalformedXML));
        }
        let is_quiet = delete.quiet.unwrap_or_default();
        let removed = self
            .ask(request.credentials.as_ref(), move |store| {
                store.bucket(&bucket)?;
                Ok(delete
                    .objects
                    .into_iter()
                    .map(|object| remove_named(store, &bucket, object))
                    .collect::<Vec<_>>())
            })
            .await?;
        let (mut deleted, mut errors) = (Vec::new(), Vec::new());
        for one in removed {
            match one {
                Ok(key) => deleted.push(DeletedObject { key: Some(key), ..DeletedObject::default() }),
                Err(error) => errors.push(error),
            }
        }
        let deleted = (!is_quiet).then_some(deleted);
        Ok(DeleteObjectsOutput { deleted, errors: Some(errors), ..DeleteObjectsOutput::default() })
    }

    pub(super) async fn tags(
        &self,
        request: S3Request<GetObjectTaggingInput>,
    ) -> S3Result<GetObjectTaggingOutput> {
        let input = request.input;
        no_version(input.version_id.as_deref())?;
        let facts = self.facts(request.credentials.as_ref(), input.bucket, input.key).await?;
        let tags = facts.meta.tags.into_iter().map(|(key, value)| Tag { key: Some(key), value: Some(value) });
        Ok(GetObjectTaggingOutput { tag_set: tags.collect(), version_id: None })
    }

    pub(super) async fn set_tags(
        &self,
        request: S3Request<PutObjectTaggingInput>,
    ) -> S3Result<PutObjectTaggingOutput> {
        let input = request.input;
        no_version(input.version_id.as_deref())?;
        let pair = |tag: Tag| (tag.key.unwrap_or_default(), tag.value.unwrap_or_default());
        let tags = checked_tags(input.tagging.tag_set.into_iter().map(pair).collect())?;
        self.ask(request.credentials.as_ref(), move |store| {
            store.describe(&input.bucket, &input.key, None, &|meta| meta.tags.clone_from(&tags))
        })
        .await?;
        Ok(PutObjectTaggingOutput::default())
    }

    pub(super) async fn clear_tags(
        &self,
        request: S3Request<DeleteObjectTaggingInput>,
    ) -> S3Result<DeleteObjectTaggingOutput> {
        let input = request.input;
        no_version(input.version_id.as_deref())?;
        self.ask(request.credentials.as_ref(), move |store| {
            store.describe(&input.bucket, &input.key, None, &|meta| meta.tags.clear())
        })
        .await?;
        Ok(DeleteObjectTaggingOutput::default())
    }
}

/// What an answer says of an object whose bytes go another way.
pub(super) fn described(facts: &Facts, checksums: Option<&ChecksumMode>) -> GetObjectOutput {
    let mut answer = GetObjectOutput::default();
    tell_facts!(answer, facts);
    if wants_checksum(checksums) {
        tell_checksum!(answer, &facts.meta.checksum);
        answer.checksum_type = facts.meta.checksum.as_ref().map(kind);
    }
    answer
}

fn wants_checksum(mode: Option<&ChecksumMode>) -> bool {
    mode.is_some_and(|mode| mode.as_str() == ChecksumMode::ENABLED)
}

/// The parts behind a number, at most `max`.
fn object_parts(meta: &Meta, behind: i32, max: i32) -> GetObjectAttributesParts {
    let lens = &meta.parts;
    let numbered = (1..).zip(lens).filter(|(number, _)| *number > behind);
    let parts: Vec<_> = numbered
        .take(usize::try_from(max).unwrap_or_default())
        .map(|(number, len)| {
            let mut part = ObjectPart {
                part_number: Some(number),
                size: i64::try_from(*len).ok(),
                ..ObjectPart::default()
            };
            tell_checksum!(part, &meta.checksum_of_part(number as usize));
            part
        })
        .collect();
    let last = parts.last().and_then(|part| part.part_number).unwrap_or(behind);
    GetObjectAttributesParts {
        is_truncated: Some((last.max(0) as usize) < lens.len()),
        max_parts: Some(max),
        next_part_number_marker: Some(last),
        part_number_marker: Some(behind),
        parts: Some(parts),
        total_parts_count: i32::try_from(lens.len()).ok(),
    }
}

/// A condition of a write that fails now fails before bytes are moved. What holds now is asked again when the object gets its name.
fn fails_early(store: &dyn Store, bucket: &str, key: &str, condition: &Condition) -> StoreResult<()> {
    let is_met = match (condition, store.facts(bucket, key)) {
        (Condition::None, _) | (_, Err(_)) => true,
        (Condition::Absent, Ok(_)) => false,
        (Condition::Matches(etags), Ok(facts)) => etags.iter().any(|etag| etag == "*" || *etag == facts.etag),
        (Condition::Differs(etag), Ok(facts)) => *etag != facts.etag,
    };
    if is_met { Ok(()) } else { Err(StoreError::Precondition) }
}

/// What must be so of an object that is removed.
struct RemovalTerms {
    etag: Option<ETagCondition>,
    size: Option<i64>,
    modified: Option<Timestamp>,
}

fn remove_one(store: &dyn Store, bucket: &str, key: &str, terms: RemovalTerms) -> StoreResult<()> {
    let condition = removal_condition(store, bucket, key, terms)?;
    match store.remove(bucket, key, &condition) {
        // No such object can be there.
        Err(StoreError::Key(_)) if condition == Condition::None => Ok(()),
        other => other,
    }
}

/// Size and time are compared now; the ETag holds them until the object is gone.
fn removal_condition(
    store: &dyn Store,
    bucket: &str,
    key: &str,
    terms: RemovalTerms,
) -> StoreResult<Condition> {
    if terms.size.is_none() && terms.modified.is_none() {
        return Ok(match terms.etag {
            None => Condition::None,
            Some(ETagCondition::Any) => Condition::Matches(vec!["*".into()]),
            Some(ETagCondition::ETag(etag)) => Condition::Matches(vec![etag.into_value()]),
        });
    }
    let facts = store.facts(bucket, key)?;
    let is_size = terms.size.is_none_or(|size| u64::try_from(size) == Ok(facts.len));
    let same = ReadTerms { matches: terms.etag, ..ReadTerms::default() };
    let is_time = terms.modified.is_none_or(|time| same_second(&time, &facts));
    if is_size && is_time && same.check(&facts).is_ok() {
        Ok(Condition::Matches(vec![facts.etag]))
    } else {
        Err(StoreError::Precondition)
    }
}

/// Clients know the second only.
fn same_second(time: &Timestamp, facts: &Facts) -> bool {
    whole_second(facts.modified) == *time
}

fn remove_named(store: &dyn Store, bucket: &str, object: ObjectIdentifier) -> Result<String, Error> {
    let key = object.key;
    let terms = RemovalTerms {
        etag: object.e_tag.map(ETagCondition::ETag),
        size: object.size,
        modified: object.last_modified_time,
    };
    let removed = no_version(object.version_id.as_deref())
        .and_then(|()| remove_one(store, bucket, &key, terms).map_err(answer));
    removed.map(|()| key.clone()).map_err(|error| Error {
        code: Some(error.code().as_str().to_owned()),
        key: Some(key),
        message: error.message().map(str::to_owned),
        version_id: None,
    })
}
