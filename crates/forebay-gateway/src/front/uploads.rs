//! Uploads by parts.

use std::collections::HashMap;
use std::sync::Arc;

use s3s::dto::*;
use s3s::{S3Error, S3ErrorCode, S3Request, S3Result};

use super::buckets::{Names, page_len, wrong};
use super::codes::answer;
use super::conditions::write_condition;
use super::intake::{Incoming, len_said, take_in};
use super::said::{meta_of, tag_of, time_of};
use super::sums::{self, Algorithm, Sums, joined, kind, tell_checksum};
use super::{Front, blocking, owner};
use crate::store::{
    Checksum as Known, Condition, Facts, Meta, PartFacts, Store, StoreError, UploadFacts, UploadsAsk,
};

/// S3's bound of parts of an object.
const PARTS: i32 = 10_000;

/// A part's number.
pub(super) fn part_number(number: i32) -> S3Result<u32> {
    if !(1..=PARTS).contains(&number) {
        let why = "Part number must be an integer between 1 and 10000, inclusive";
        return Err(S3Error::with_message(S3ErrorCode::InvalidArgument, why));
    }
    Ok(number as u32)
}

/// The checksum of an upload's parts: as it was asked for, or the one that S3 takes.
pub(super) fn algorithm_of(upload: &UploadFacts) -> S3Result<Algorithm> {
    match &upload.meta.checksum {
        Some(asked) => Algorithm::of(&asked.algorithm),
        None => Ok(Algorithm::Crc64Nvme),
    }
}

/// What an upload was asked to check: an algorithm, without a value yet.
fn asked_checksum(algorithm: Option<&str>, kind: Option<&str>) -> S3Result<Option<Known>> {
    let Some(algorithm) = algorithm else {
        return match kind {
            None => Ok(None),
            Some(_) => {
                Err(S3Error::with_message(S3ErrorCode::InvalidRequest, "a checksum type needs an algorithm"))
            }
        };
    };
    let algorithm = Algorithm::of(algorithm)?;
    let is_hash = matches!(algorithm, Algorithm::Sha1 | Algorithm::Sha256);
    let is_composite = match kind {
        None => algorithm != Algorithm::Crc64Nvme,
        Some(ChecksumType::COMPOSITE) => true,
        Some(ChecksumType::FULL_OBJECT) => false,
        Some(_) => return Err(wrong("x-amz-checksum-type")),
    };
    if is_hash != is_composite && (is_hash || algorithm == Algorithm::Crc64Nvme) {
        let why = format!("{} has no such checksum type", algorithm.name());
        return Err(S3Error::with_message(S3ErrorCode::InvalidRequest, why));
    }
    Ok(Some(Known { algorithm: algorithm.name().to_owned(), value: String::new(), is_composite }))
}

impl Front {
    pub(super) async fn begin_upload(
        &self,
        request: S3Request<CreateMultipartUploadInput>,
    ) -> S3Result<CreateMultipartUploadOutput> {
        let input = request.input;
        // The answer that ends an upload repeats its key.
        Names::Plain.check_text(&input.key)?;
        let algorithm = input.checksum_algorithm.as_ref().map(ChecksumAlgorithm::as_str);
        let checksum = asked_checksum(algorithm, input.checksum_type.as_ref().map(ChecksumType::as_str))?;
        let mut answer = CreateMultipartUploadOutput {
            checksum_type: checksum.as_ref().map(kind),
            checksum_algorithm: input.checksum_algorithm,
            bucket: Some(input.bucket.clone()),
            key: Some(input.key.clone()),
            ..CreateMultipartUploadOutput::default()
        };
        let said = meta_of(&request.headers, input.metadata, input.tagging.as_deref())?;
        let meta = Meta { checksum, ..said };
        let begin = move |store: &dyn Store| store.begin_upload(&input.bucket, &input.key, meta);
        answer.upload_id = Some(self.ask(request.credentials.as_ref(), begin).await?);
        Ok(answer)
    }

    pub(super) async fn put_part(&self, request: S3Request<UploadPartInput>) -> S3Result<UploadPartOutput> {
        let transfer = self.transfer_in(&request).await?;
        let input = request.input;
        let store = self.store(request.credentials.as_ref())?;
        let number = part_number(input.part_number)?;
        let (bucket, key, id) = (input.bucket, input.key, input.upload_id);
        let upload = {
            let (store, bucket, key, id) = (Arc::clone(&store), bucket.clone(), key.clone(), id.clone());
            blocking(move || store.upload(&bucket, &key, &id).map_err(answer)).await?
        };
        let usual = algorithm_of(&upload)?;
        let sums = Sums::of(&request.headers, usual)?;
        if upload.meta.checksum.is_some() {
            sums.require(usual)?;
        }
        let said = transfer.as_ref().map_or_else(|| len_said(input.content_length), |one| Some(one.bytes()));
        let begin = Box::new(move || store.begin_part(&bucket, &key, &id, number, said));
        let (meta, condition) = (Meta::default(), Condition::None);
        let facts = if let Some(transfer) = transfer {
            transfer.receive(begin, sums, meta, condition).await?
        } else {
            let body = Incoming { body: input.body, said, trailers: request.trailing_headers, sums };
            take_in(body, begin, meta, condition).await?
        };
        let mut answer = UploadPartOutput { e_tag: tag_of(&facts.etag), ..UploadPartOutput::default() };
        tell_checksum!(answer, &facts.meta.checksum);
        Ok(answer)
    }

    pub(super) async fn parts(&self, request: S3Request<ListPartsInput>) -> S3Result<ListPartsOutput> {
        let input = request.input;
        let signed = request.credentials.as_ref();
        Names::Plain.check_text(&input.key)?;
        let (max, count) = page_len(input.max_parts, "max-parts")?;
        let marker = input.part_number_marker.unwrap_or_default();
        let behind = u32::try_from(marker).map_err(|_| wrong("part-number-marker"))?;
        let (bucket, key, id) = (input.bucket.clone(), input.key.clone(), input.upload_id.clone());
        let (upload, mut parts) = self
            .ask(signed, move |store| {
                // One more says that there is more.
                let parts = store.parts(&bucket, &key, &id, behind, count + 1)?;
                Ok((store.upload(&bucket, &key, &id)?, parts))
            })
            .await?;
        let is_truncated = parts.len() > count;
        parts.truncate(count);
        let last = parts.last().map_or(marker, |part| part.number as i32);
        let asked = upload.meta.checksum;
        Ok(ListPartsOutput {
            bucket: Some(input.bucket),
            key: Some(input.key),
            upload_id: Some(input.upload_id),
            checksum_type: asked.as_ref().map(kind),
            checksum_algorithm: asked.map(|asked| ChecksumAlgorithm::from(asked.algorithm)),
            owner: owner(signed),
            initiator: initiator(owner(signed)),
            is_truncated: Some(is_truncated),
            max_parts: Some(max),
            part_number_marker: Some(marker),
            next_part_number_marker: Some(last),
            parts: Some(parts.into_iter().map(listed_part).collect()),
            storage_class: Some(StorageClass::from_static(StorageClass::STANDARD)),
            ..ListPartsOutput::default()
        })
    }

    pub(super) async fn uploads(
        &self,
        request: S3Request<ListMultipartUploadsInput>,
    ) -> S3Result<ListMultipartUploadsOutput> {
        let input = request.input;
        let signed = request.credentials.as_ref();
        let names = Names::of(input.encoding_type.as_ref())?;
        names.check(&[&input.prefix, &input.delimiter, &input.key_marker])?;
        Names::Plain.check(&[&input.upload_id_marker])?;
        let (max, count) = page_len(input.max_uploads, "max-uploads")?;
        let bucket = input.bucket.clone();
        let marker = input.key_marker.clone().unwrap_or_default();
        let id_marker = input.upload_id_marker.clone().filter(|_| !marker.is_empty());
        let ask = UploadsAsk {
            prefix: input.prefix.clone().unwrap_or_default(),
            delimiter: input.delimiter.clone(),
            after: marker.clone(),
            after_id: id_marker.clone(),
            max: count,
        };
        let page = self.ask(signed, move |store| store.uploads(&bucket, &ask)).await?;
        page.uploads.iter().try_for_each(|upload| names.check_text(&upload.key))?;
        page.prefixes.iter().try_for_each(|prefix| names.check_text(prefix))?;
        let shown = |upload: UploadFacts| MultipartUpload {
            checksum_type: upload.meta.checksum.as_ref().map(kind),
            checksum_algorithm: upload.meta.checksum.map(|asked| ChecksumAlgorithm::from(asked.algorithm)),
            initiated: time_of(upload.begun),
            initiator: initiator(owner(signed)),
            key: Some(names.of_text(upload.key)),
            owner: owner(signed),
            storage_class: Some(StorageClass::from_static(StorageClass::STANDARD)),
            upload_id: Some(upload.id),
        };
        let (next_key, next_id) = page.next.unzip();
        Ok(ListMultipartUploadsOutput {
            bucket: Some(input.bucket),
            prefix: input.prefix.map(|text| names.of_text(text)),
            delimiter: input.delimiter.map(|text| names.of_text(text)),
            key_marker: Some(names.of_text(marker)),
            upload_id_marker: id_marker,
            max_uploads: Some(max),
            is_truncated: Some(next_key.is_some()),
            next_key_marker: next_key.map(|text| names.of_text(text)),
            next_upload_id_marker: next_id,
            common_prefixes: Some(
                page.prefixes
                    .into_iter()
                    .map(|text| CommonPrefix { prefix: Some(names.of_text(text)) })
                    .collect(),
            ),
            uploads: Some(page.uploads.into_iter().map(shown).collect()),
            encoding_type: input.encoding_type,
            request_charged: None,
        })
    }

    pub(super) async fn finish_upload(
        &self,
        request: S3Request<CompleteMultipartUploadInput>,
    ) -> S3Result<CompleteMultipartUploadOutput> {
        let input = request.input;
        Names::Plain.check_text(&input.key)?;
        let store = self.store(request.credentials.as_ref())?;
        let condition = write_condition(input.if_match, input.if_none_match)?;
        let asked = input.multipart_upload.and_then(|upload| upload.parts).unwrap_or_default();
        if asked.is_empty() {
            return Err(S3Error::new(S3ErrorCode::MalformedXML));
        }
        let said = sums::said(&request.headers)?;
        let size = input.mpu_object_size;
        let (bucket, key, id) = (input.bucket, input.key, input.upload_id);
        let mut result = CompleteMultipartUploadOutput {
            location: Some(format!("/{bucket}/{key}")),
            bucket: Some(bucket.clone()),
            key: Some(key.clone()),
            ..CompleteMultipartUploadOutput::default()
        };
        let facts = blocking(move || {
            let chosen = chosen(&asked)?;
            let checksum = match known_parts(store.as_ref(), &bucket, &key, &id)? {
                Some((upload, parts)) => checked(&upload, &parts, &asked, said, size)?,
                None => None,
            };
            store.finish_upload(&bucket, &key, &id, &chosen, checksum, &condition).map_err(answer)
        })
        .await?;
        result.e_tag = tag_of(&facts.etag);
        tell_checksum!(result, &facts.meta.checksum);
        result.checksum_type = facts.meta.checksum.as_ref().map(kind);
        Ok(result)
    }

    pub(super) async fn abort_upload(
        &self,
        request: S3Request<AbortMultipartUploadInput>,
    ) -> S3Result<AbortMultipartUploadOutput> {
        let AbortMultipartUploadInput { bucket, key, upload_id, .. } = request.input;
        self.ask(request.credentials.as_ref(), move |store| store.abort_upload(&bucket, &key, &upload_id))
            .await?;
        Ok(AbortMultipartUploadOutput::default())
    }
}

/// Numbers and ETags of the parts that were asked for.
fn chosen(asked: &[CompletedPart]) -> S3Result<Vec<(u32, String)>> {
    let one = |part: &CompletedPart| {
        let number = part.part_number.filter(|number| (1..=PARTS).contains(number));
        let etag = part.e_tag.as_ref().map(|etag| etag.value().to_owned());
        number.zip(etag).map(|(number, etag)| (number as u32, etag))
    };
    asked.iter().map(|part| one(part).ok_or_else(|| S3Error::new(S3ErrorCode::MalformedXML))).collect()
}

/// `None`: the upload is no more; it may be the object already, which the store knows.
fn known_parts(
    store: &dyn Store,
    bucket: &str,
    key: &str,
    id: &str,
) -> S3Result<Option<(UploadFacts, Vec<PartFacts>)>> {
    let known = store
        .upload(bucket, key, id)
        .and_then(|upload| Ok((upload, store.parts(bucket, key, id, 0, usize::MAX)?)));
    match known {
        Ok(known) => Ok(Some(known)),
        Err(StoreError::NoUpload) => Ok(None),
        Err(error) => Err(answer(error)),
    }
}

/// Compares what the client says of parts and object, and returns the object's checksum. Parts that are not there are
/// the store's to refuse.
fn checked(
    upload: &UploadFacts,
    parts: &[PartFacts],
    asked: &[CompletedPart],
    said: Option<(Algorithm, String)>,
    size: Option<i64>,
) -> S3Result<Option<Known>> {
    let by_number: HashMap<_, _> = parts.iter().map(|part| (part.number as i32, part)).collect();
    let find = |number: Option<i32>| by_number.get(&number?).copied();
    let found: Option<Vec<&PartFacts>> = asked.iter().map(|part| find(part.part_number)).collect();
    let Some(found) = found else { return Ok(None) };
    for (part, wanted) in found.iter().zip(asked) {
        if !is_as_said(part.facts.meta.checksum.as_ref(), wanted) {
            return Err(answer(StoreError::NoPart(part.number)));
        }
    }
    let len: u64 = found.iter().map(|part| part.facts.len).sum();
    if size.is_some_and(|size| u64::try_from(size) != Ok(len)) {
        let why = "the object's size is not that of its parts";
        return Err(S3Error::with_message(S3ErrorCode::InvalidRequest, why));
    }
    let (algorithm, is_composite) = checksum_of(upload, &found)?;
    let checksum = joined(&found, algorithm, is_composite);
    match (said, &checksum) {
        (Some((algorithm, value)), Some(known)) if algorithm.name() == known.algorithm => {
            if value == known.value { Ok(checksum) } else { Err(S3Error::new(S3ErrorCode::BadDigest)) }
        }
        (Some((algorithm, _)), _) => {
            let why =
                format!("the upload's parts have no {}, so that it cannot be compared", algorithm.name());
            Err(S3Error::with_message(S3ErrorCode::InvalidRequest, why))
        }
        (None, _) => Ok(checksum),
    }
}

/// The kind of checksum that an object of these parts has: as it was asked for, or that of the parts.
fn checksum_of(upload: &UploadFacts, parts: &[&PartFacts]) -> S3Result<(Algorithm, bool)> {
    if let Some(asked) = &upload.meta.checksum {
        return Ok((algorithm_of(upload)?, asked.is_composite));
    }
    let first = parts.first().and_then(|part| part.facts.meta.checksum.as_ref());
    let algorithm = first.map_or(Ok(Algorithm::Crc64Nvme), |first| Algorithm::of(&first.algorithm))?;
    Ok((algorithm, algorithm.crc().is_none()))
}

/// The checksum in the XML of a Complete, where there is one, is the part's.
fn is_as_said(known: Option<&Known>, wanted: &CompletedPart) -> bool {
    let Some(known) = known else { return true };
    let said = match known.algorithm.as_str() {
        "CRC64NVME" => &wanted.checksum_crc64nvme,
        "CRC32C" => &wanted.checksum_crc32c,
        "CRC32" => &wanted.checksum_crc32,
        "SHA1" => &wanted.checksum_sha1,
        _ => &wanted.checksum_sha256,
    };
    said.as_ref().is_none_or(|said| *said == known.value)
}

fn listed_part(part: PartFacts) -> Part {
    let Facts { len, modified, etag, meta } = part.facts;
    let mut listed = Part {
        part_number: i32::try_from(part.number).ok(),
        size: i64::try_from(len).ok(),
        last_modified: time_of(modified),
        e_tag: tag_of(&etag),
        ..Part::default()
    };
    tell_checksum!(listed, &meta.checksum);
    listed
}

fn initiator(owner: Option<Owner>) -> Option<Initiator> {
    owner.map(|owner| Initiator { display_name: owner.display_name, id: owner.id })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checksum_types_that_s3_has() {
        let composite =
            |algorithm, kind| asked_checksum(Some(algorithm), kind).map(|asked| asked.unwrap().is_composite);
        assert!(!composite("CRC64NVME", None).unwrap());
        assert!(composite("CRC32", None).unwrap());
        assert!(!composite("CRC32", Some("FULL_OBJECT")).unwrap());
        assert!(composite("SHA256", None).unwrap());
        assert!(composite("SHA256", Some("FULL_OBJECT")).is_err());
        assert!(composite("CRC64NVME", Some("COMPOSITE")).is_err());
        assert!(asked_checksum(None, Some("COMPOSITE")).is_err());
        assert!(asked_checksum(Some("XXHASH3"), None).is_err());
    }
}
