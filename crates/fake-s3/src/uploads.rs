//! Multipart uploads.

use std::collections::BTreeMap;

use crate::call::Call;
use crate::content::Content;
use crate::objects::{conditions, copy_conditions, metadata};
use crate::reply::{Reply, errors};
use crate::store::{Object, Part, Upload};
use crate::sums::{Algorithm, wrong};
use crate::text::{base64, elements, escaped, hex, unescaped, xml_date};
use crate::{Fault, lock, md5::Md5, now};

type Answer = Result<Reply, Reply>;

/// The highest number of a part.
const PARTS_MOST: u32 = 10_000;

pub(crate) fn create(call: &Call<'_>) -> Answer {
    let request = call.request;
    let mut store = lock(&call.shared.store);
    if !store.buckets.contains_key(&request.bucket) {
        return Err(errors::no_such_bucket(&request.bucket));
    }
    let named = request.header("x-amz-checksum-algorithm");
    let algorithm = named.and_then(Algorithm::of).unwrap_or(Algorithm::Crc64);
    let kind = request.header("x-amz-checksum-type");
    let is_composite =
        kind.map_or(named.is_some() && algorithm != Algorithm::Crc64, |kind| kind == "COMPOSITE");
    if (is_composite && algorithm == Algorithm::Crc64) || (!is_composite && algorithm == Algorithm::Sha256) {
        let message = "The checksum type cannot be used with this algorithm.";
        return Err(Reply::error(400, "InvalidRequest", message));
    }
    let id = format!("upload-{:04}", store.number());
    let upload = Upload {
        bucket: request.bucket.clone(),
        key: request.key.clone(),
        parts: BTreeMap::new(),
        algorithm,
        is_composite,
        metadata: metadata(call),
        begun: now(),
    };
    let inner = format!("{}<UploadId>{id}</UploadId>", named_object(&upload));
    store.uploads.insert(id, upload);
    Ok(Reply::xml("InitiateMultipartUploadResult", &inner))
}

fn named_object(upload: &Upload) -> String {
    format!("<Bucket>{}</Bucket><Key>{}</Key>", upload.bucket, escaped(&upload.key))
}

impl Call<'_> {
    fn upload_id(&self) -> &str {
        self.request.parameter("uploadId").unwrap_or("")
    }

    fn is_of(&self, upload: &Upload) -> bool {
        (&upload.bucket, &upload.key) == (&self.request.bucket, &self.request.key)
    }
}

pub(crate) fn part(call: &Call<'_>) -> Answer {
    let request = call.request;
    let number: u32 = request.parameter("partNumber").and_then(|number| number.parse().ok()).unwrap_or(0);
    if number == 0 || number > PARTS_MOST {
        let message = "Part number must be an integer between 1 and 10000, inclusive";
        return Err(Reply::error(400, "InvalidArgument", message));
    }
    if request.header("x-amz-copy-source").is_some() {
        return part_copy(call, number);
    }
    let knows_checksums = lock(&call.shared.settings).knows_checksums;
    call.summed.check(request, knows_checksums)?;
    let mut store = lock(&call.shared.store);
    let found = store.uploads.get_mut(call.upload_id()).filter(|upload| call.is_of(upload));
    let upload = found.ok_or_else(errors::no_such_upload)?;
    let is_forgotten = matches!(call.fault, Some(Fault::Forget));
    let content = if is_forgotten { Content::of("") } else { call.content() };
    let sum = match call.summed.of(upload.algorithm) {
        Some(sum) => sum.to_vec(),
        None => upload.algorithm.sum(call.body),
    };
    let etag = call.etag();
    let mut reply = Reply::new(200).with("ETag", format!("\"{etag}\""));
    if knows_checksums {
        reply = reply.with(&upload.algorithm.header(), base64(&sum));
    }
    upload.parts.insert(number, Part { content, etag, sum: Some(sum) });
    Ok(reply)
}

/// UploadPartCopy: the range must be within the object.
fn part_copy(call: &Call<'_>, number: u32) -> Answer {
    let (source, version) = call.copy_source();
    let (bucket, key) = source.split_once('/').ok_or_else(errors::malformed)?;
    let mut store = lock(&call.shared.store);
    let object =
        store.find(bucket, key, version.as_deref()).cloned().ok_or_else(|| errors::no_such_key(key))?;
    copy_conditions(call, &object)?;
    let len = object.content.len();
    let (first, last) = match call.request.header("x-amz-copy-source-range") {
        None => (0, len.saturating_sub(1)),
        Some(range) => range
            .strip_prefix("bytes=")
            .and_then(|range| range.split_once('-'))
            .and_then(|(first, last)| Some((first.parse::<u64>().ok()?, last.parse::<u64>().ok()?)))
            .filter(|(first, last)| first <= last && *last < len)
            .ok_or_else(|| {
                Reply::error(400, "InvalidArgument", "The x-amz-copy-source-range value is not valid")
            })?,
    };
    let found = store.uploads.get_mut(call.upload_id()).filter(|upload| call.is_of(upload));
    let upload = found.ok_or_else(errors::no_such_upload)?;
    let len = last + 1 - first;
    let content = match &object.content {
        Content::Bytes(_) => {
            let mut bytes = vec![0; len as usize];
            object.content.copy(first, &mut bytes);
            Content::of(bytes)
        }
        Content::Pattern { seed, .. } => Content::Pattern { seed: *seed, len },
    };
    let etag = format!("{first:016x}{last:016x}");
    let inner = format!("<ETag>&quot;{etag}&quot;</ETag><LastModified>{}</LastModified>", xml_date(now()));
    upload.parts.insert(number, Part { content, etag, sum: None });
    Ok(Reply::xml("CopyPartResult", &inner))
}

pub(crate) fn parts(call: &Call<'_>) -> Answer {
    let store = lock(&call.shared.store);
    let found = store.uploads.get(call.upload_id()).filter(|upload| call.is_of(upload));
    let upload = found.ok_or_else(errors::no_such_upload)?;
    let list = upload.parts.iter().fold(String::new(), |list, (number, part)| {
        list + &format!(
            "<Part><PartNumber>{number}</PartNumber><ETag>&quot;{}&quot;</ETag><Size>{}</Size></Part>",
            part.etag,
            part.content.len()
        )
    });
    Ok(Reply::xml(
        "ListPartsResult",
        &format!("{}<IsTruncated>false</IsTruncated>{list}", named_object(upload)),
    ))
}

pub(crate) fn list(call: &Call<'_>) -> Reply {
    let store = lock(&call.shared.store);
    let prefix = call.request.parameter("prefix").unwrap_or("");
    let is_wanted = |upload: &Upload| upload.bucket == call.request.bucket && upload.key.starts_with(prefix);
    let of_bucket = store.uploads.iter().filter(|(_, upload)| is_wanted(upload));
    let list = of_bucket.fold(String::new(), |list, (id, upload)| {
        let (key, begun) = (escaped(&upload.key), xml_date(upload.begun));
        list + &format!(
            "<Upload><Key>{key}</Key><UploadId>{id}</UploadId><Initiated>{begun}</Initiated></Upload>"
        )
    });
    Reply::xml("ListMultipartUploadsResult", &format!("<IsTruncated>false</IsTruncated>{list}"))
}

pub(crate) fn abort(call: &Call<'_>) -> Answer {
    let mut store = lock(&call.shared.store);
    match store.uploads.remove(call.upload_id()) {
        Some(_) => Ok(Reply::new(204)),
        None => Err(errors::no_such_upload()),
    }
}

pub(crate) fn complete(call: &Call<'_>) -> Answer {
    let request = call.request;
    let (least, knows_checksums) = {
        let settings = lock(&call.shared.settings);
        (settings.part_least, settings.knows_checksums)
    };
    let mut store = lock(&call.shared.store);
    let found = store.uploads.get(call.upload_id()).filter(|upload| call.is_of(upload));
    let upload = found.ok_or_else(errors::no_such_upload)?;
    let chosen = chosen(upload, &String::from_utf8_lossy(call.body), least)?;
    conditions(call, store.find(&request.bucket, &request.key, None))?;
    let object = joined(upload, &chosen);
    if knows_checksums {
        check(call, upload, &object)?;
    }
    let etag = object.etag.clone();
    let sum =
        object.checksum.as_ref().filter(|_| knows_checksums).map_or(String::new(), |(algorithm, sum)| {
            let (name, kind) =
                (algorithm.name(), if object.is_composite { "COMPOSITE" } else { "FULL_OBJECT" });
            format!("<Checksum{name}>{sum}</Checksum{name}><ChecksumType>{kind}</ChecksumType>")
        });
    let inner = format!("{}<ETag>&quot;{etag}&quot;</ETag>{sum}", named_object(upload));
    store.uploads.remove(call.upload_id());
    let object = Object { checksum: object.checksum.filter(|_| knows_checksums), ..object };
    let version = store.put(&request.bucket, &request.key, object);
    let reply = Reply::xml("CompleteMultipartUploadResult", &inner);
    Ok(version.iter().fold(reply, |reply, version| reply.with("x-amz-version-id", version)))
}

/// The parts that a request to complete names.
fn chosen<'a>(upload: &'a Upload, xml: &str, least: u64) -> Result<Vec<&'a Part>, Reply> {
    let named = elements(xml, "Part");
    if named.is_empty() {
        return Err(errors::malformed());
    }
    let mut chosen = Vec::new();
    let mut before = 0;
    for (at, part) in named.iter().enumerate() {
        let text = |name: &str| elements(part, name).first().map(|text| unescaped(text));
        let number: u32 =
            text("PartNumber").and_then(|number| number.parse().ok()).ok_or_else(errors::malformed)?;
        if number <= before {
            let message = "The list of parts was not in ascending order. The parts list must be specified in order by part \
                           number.";
            return Err(Reply::error(400, "InvalidPartOrder", message));
        }
        before = number;
        let etag = text("ETag").ok_or_else(errors::malformed)?;
        let found = upload.parts.get(&number).filter(|part| part.etag == etag.trim_matches('"'));
        let sent = text(&format!("Checksum{}", upload.algorithm.name()));
        let found = found.filter(|part| {
            sent.is_none_or(|sent| part.sum.as_deref().is_some_and(|sum| sent == base64(sum)))
        });
        let found = found.ok_or_else(|| {
            let message = "One or more of the specified parts could not be found.  The part may not have been uploaded, or \
                           the specified entity tag may not match the part's entity tag.";
            Reply::error(400, "InvalidPart", message)
        })?;
        if at + 1 < named.len() && found.content.len() < least {
            let message = "Your proposed upload is smaller than the minimum allowed size";
            return Err(Reply::error(400, "EntityTooSmall", message));
        }
        chosen.push(found);
    }
    Ok(chosen)
}

fn joined(upload: &Upload, chosen: &[&Part]) -> Object {
    let mut md5 = Md5::default();
    for part in chosen {
        md5.add(part.etag.as_bytes());
    }
    let etag = format!("{}-{}", hex(&md5.end()), chosen.len());
    let is_kept = chosen.iter().all(|part| matches!(part.content, Content::Bytes(_)));
    let content = if is_kept {
        Content::of(chosen.iter().flat_map(|part| part.content.to_vec()).collect::<Vec<_>>())
    } else {
        Content::Pattern { seed: 0, len: chosen.iter().map(|part| part.content.len()).sum() }
    };
    let sum = if chosen.iter().any(|part| part.sum.is_none()) {
        None
    } else if upload.is_composite {
        let sums: Vec<_> = chosen.iter().filter_map(|part| part.sum.clone()).flatten().collect();
        Some(format!("{}-{}", base64(&upload.algorithm.sum(&sums)), chosen.len()))
    } else {
        let mut sum = upload.algorithm.sum(b"");
        for part in chosen {
            sum = upload
                .algorithm
                .joined(&sum, part.sum.as_deref().unwrap_or(&[]), part.content.len())
                .unwrap_or_default();
        }
        Some(base64(&sum))
    };
    Object {
        checksum: sum.map(|sum| (upload.algorithm, sum)),
        is_composite: upload.is_composite,
        metadata: upload.metadata.clone(),
        ..Object::new(content, etag, now())
    }
}

/// Compares with the checksum and the size of all that a request to complete sends.
fn check(call: &Call<'_>, upload: &Upload, object: &Object) -> Result<(), Reply> {
    let sent = call.request.header(&upload.algorithm.header());
    let whole = object.checksum.as_ref().map(|(_, sum)| sum.as_str());
    if sent.is_some() && sent.map(|sent| sent.split('-').next()) != whole.map(|sum| sum.split('-').next()) {
        return Err(wrong(upload.algorithm));
    }
    let size = call.request.header("x-amz-mp-object-size");
    if size.is_some_and(|size| size != object.content.len().to_string()) {
        let message = "The provided 'x-amz-mp-object-size' header value does not match the computed one.";
        return Err(Reply::error(400, "InvalidRequest", message));
    }
    Ok(())
}
