//! Calls on one object: GET, HEAD, PUT, DELETE, copies.

use crate::call::Call;
use crate::content::Content;
use crate::reply::{Reply, errors};
use crate::store::Object;
use crate::sums::Algorithm;
use crate::text::{base64, decoded, elements, escaped, hex, http_date, unescaped, xml_date};
use crate::{Fault, lock, now};

type Answer = Result<Reply, Reply>;

/// Tags as requests have them.
const TAGS: &str = "x-amz-tagging";

/// Headers that are kept with an object, beside `x-amz-meta-*`.
const KEPT: [&str; 7] = [
    "content-type",
    "content-encoding",
    "content-disposition",
    "content-language",
    "cache-control",
    "expires",
    TAGS,
];

/// GET and HEAD.
pub(crate) fn get(call: &Call<'_>) -> Answer {
    let request = call.request;
    let object = {
        let store = lock(&call.shared.store);
        if !store.buckets.contains_key(&request.bucket) {
            return Err(errors::no_such_bucket(&request.bucket));
        }
        let found = store.find(&request.bucket, &request.key, request.parameter("versionId"));
        found.cloned().ok_or_else(|| errors::no_such_key(&request.key))?
    };
    conditions(call, Some(&object))?;
    let range = if matches!(call.fault, Some(Fault::Whole)) { None } else { request.header("range") };
    let len = object.content.len();
    let shift = if let Some(Fault::Shifted(bytes)) = call.fault { *bytes } else { 0 };
    let mut reply = match range.map_or(Span::Whole, |range| Span::parse(range, len)) {
        Span::Whole => Reply { len, ..Reply::new(200) },
        Span::Part(first, last) => {
            let first = (first + shift).min(last);
            let part = Reply { first, len: last + 1 - first, ..Reply::new(206) };
            part.with("Content-Range", format!("bytes {first}-{last}/{len}"))
        }
        Span::Beyond => {
            let more = format!("<ActualObjectSize>{len}</ActualObjectSize>");
            let message = "The requested range is not satisfiable";
            return Err(Reply::error_with(416, "InvalidRange", message, &more)
                .with("Content-Range", format!("bytes */{len}")));
        }
    };
    reply.content = object.content.clone();
    reply = described(reply, &object).with("Accept-Ranges", "bytes");
    let is_whole = reply.status == 200 || matches!(call.fault, Some(Fault::WholeChecksum));
    if is_whole
        && request.header("x-amz-checksum-mode").is_some_and(|mode| mode.eq_ignore_ascii_case("enabled"))
    {
        reply = summed(reply, &object);
    }
    Ok(reply)
}

/// What a `Range` asks for.
enum Span {
    /// It is not understood, and so ignored.
    Whole,
    /// The first and the last byte.
    Part(u64, u64),
    /// It cannot be satisfied.
    Beyond,
}

impl Span {
    fn parse(range: &str, len: u64) -> Self {
        let Some((first, last)) = range.strip_prefix("bytes=").and_then(|range| range.split_once('-')) else {
            return Self::Whole;
        };
        let (first, last) = match (first.parse::<u64>(), last.parse::<u64>()) {
            (Ok(first), Ok(last)) if first <= last => (first, last),
            (Ok(first), Err(_)) if last.is_empty() => (first, u64::MAX),
            (Err(_), Ok(0)) if first.is_empty() => return Self::Beyond,
            (Err(_), Ok(suffix)) if first.is_empty() => (len.saturating_sub(suffix), u64::MAX),
            _ => return Self::Whole,
        };
        if first < len { Self::Part(first, last.min(len - 1)) } else { Self::Beyond }
    }
}

fn described(mut reply: Reply, object: &Object) -> Reply {
    reply =
        reply.with("ETag", format!("\"{}\"", object.etag)).with("Last-Modified", http_date(object.modified));
    if let Some(version) = &object.version {
        reply = reply.with("x-amz-version-id", version);
    }
    let told = object.metadata.iter().filter(|(name, _)| name != TAGS);
    told.fold(reply, |reply, (name, value)| reply.with(name, value))
}

/// The tags of an object.
pub(crate) fn tags(call: &Call<'_>) -> Answer {
    let request = call.request;
    let store = lock(&call.shared.store);
    let found = store.find(&request.bucket, &request.key, request.parameter("versionId"));
    let object = found.ok_or_else(|| errors::no_such_key(&request.key))?;
    let header = object.metadata.iter().find(|(name, _)| name == TAGS).map_or("", |(_, value)| value);
    let pairs = header.split('&').filter_map(|pair| pair.split_once('='));
    let list = pairs.fold(String::new(), |list, (name, value)| {
        let (name, value) = (escaped(&decoded(name, true)), escaped(&decoded(value, true)));
        list + &format!("<Tag><Key>{name}</Key><Value>{value}</Value></Tag>")
    });
    Ok(Reply::xml("Tagging", &format!("<TagSet>{list}</TagSet>")))
}

/// The object's checksum.
fn summed(reply: Reply, object: &Object) -> Reply {
    let Some((algorithm, sum)) = &object.checksum else { return reply };
    let kind = if object.is_composite { "COMPOSITE" } else { "FULL_OBJECT" };
    reply.with(&algorithm.header(), sum).with("x-amz-checksum-type", kind)
}

/// `If-Match` and `If-None-Match`, of reads and writes.
pub(crate) fn conditions(call: &Call<'_>, object: Option<&Object>) -> Result<(), Reply> {
    let is_read = matches!(call.request.method.as_str(), "GET" | "HEAD");
    let same = |tag: &str, object: &Object| {
        tag == "*" || tag.split(',').any(|one| one.trim().trim_matches('"') == object.etag)
    };
    if let Some(wanted) = call.request.header("if-match") {
        let object = object.ok_or_else(|| errors::no_such_key(&call.request.key))?;
        if !same(wanted, object) {
            return Err(errors::precondition("If-Match"));
        }
    }
    if let (Some(unwanted), Some(object)) = (call.request.header("if-none-match"), object)
        && same(unwanted, object)
    {
        let not_modified = described(Reply::new(304), object);
        return Err(if is_read { not_modified } else { errors::precondition("If-None-Match") });
    }
    Ok(())
}

/// `x-amz-copy-source-if-match`.
pub(crate) fn copy_conditions(call: &Call<'_>, object: &Object) -> Result<(), Reply> {
    let wanted = call.request.header("x-amz-copy-source-if-match");
    if wanted.is_some_and(|wanted| wanted.trim_matches('"') != object.etag) {
        return Err(errors::precondition("x-amz-copy-source-If-Match"));
    }
    Ok(())
}

/// Headers that are kept with an object.
pub(crate) fn metadata(call: &Call<'_>) -> Vec<(String, String)> {
    let is_kept = |name: &str| KEPT.contains(&name) || name.starts_with("x-amz-meta-");
    let mut kept: Vec<_> = call.request.headers.iter().filter(|(name, _)| is_kept(name)).cloned().collect();
    if !kept.iter().any(|(name, _)| name == "content-type") {
        kept.push(("content-type".to_owned(), "binary/octet-stream".to_owned()));
    }
    kept
}

pub(crate) fn put(call: &Call<'_>) -> Answer {
    let request = call.request;
    let knows_checksums = lock(&call.shared.settings).knows_checksums;
    call.summed.check(request, knows_checksums)?;
    let mut store = lock(&call.shared.store);
    if !store.buckets.contains_key(&request.bucket) {
        return Err(errors::no_such_bucket(&request.bucket));
    }
    conditions(call, store.find(&request.bucket, &request.key, None))?;
    let is_forgotten = matches!(call.fault, Some(Fault::Forget));
    let content = if is_forgotten { Content::of("") } else { call.content() };
    let checksum = call.summed.kept(request).map(|(algorithm, sum)| (algorithm, base64(&sum)));
    let object = Object {
        checksum: checksum.filter(|_| knows_checksums && !is_forgotten),
        metadata: metadata(call),
        ..Object::new(content, call.etag(), now())
    };
    let mut reply = Reply::new(200).with("ETag", format!("\"{}\"", object.etag));
    if let Some((algorithm, sum)) = &object.checksum {
        reply = reply.with(&algorithm.header(), sum).with("x-amz-checksum-type", "FULL_OBJECT");
    }
    let version = store.put(&request.bucket, &request.key, object);
    Ok(version.iter().fold(reply, |reply, version| reply.with("x-amz-version-id", version)))
}

pub(crate) fn delete(call: &Call<'_>) -> Answer {
    let request = call.request;
    let mut store = lock(&call.shared.store);
    if !store.buckets.contains_key(&request.bucket) {
        return Err(errors::no_such_bucket(&request.bucket));
    }
    store.remove(&request.bucket, &request.key, request.parameter("versionId"));
    Ok(Reply::new(204))
}

/// DeleteObjects. A key that begins with `denied` is refused.
pub(crate) fn delete_many(call: &Call<'_>) -> Answer {
    let request = call.request;
    let has_sum =
        request.headers.iter().any(|(name, _)| name.starts_with("x-amz-checksum-") || name == "content-md5");
    if !has_sum {
        let message = "Missing required header for this request: Content-MD5 OR x-amz-checksum-*";
        return Err(Reply::error(400, "InvalidRequest", message));
    }
    call.summed.check(request, true)?;
    let xml = String::from_utf8_lossy(call.body);
    let objects = elements(&xml, "Object");
    let is_no_xml = |one: char| one.is_ascii_control() && !matches!(one, '\t' | '\r' | '\n');
    if objects.is_empty() || objects.len() > 1000 || xml.contains(is_no_xml) {
        return Err(errors::malformed());
    }
    let is_quiet = elements(&xml, "Quiet").first().is_some_and(|text| *text == "true");
    let mut inner = String::new();
    let mut store = lock(&call.shared.store);
    for object in objects {
        let key = unescaped(elements(object, "Key").first().unwrap_or(&""));
        let version = elements(object, "VersionId").first().map(|text| unescaped(text));
        let name = escaped(&key);
        if key.starts_with("denied") {
            inner += &format!(
                "<Error><Key>{name}</Key><Code>AccessDenied</Code><Message>Access Denied</Message></Error>"
            );
            continue;
        }
        store.remove(&request.bucket, &key, version.as_deref());
        if !is_quiet {
            inner += &format!("<Deleted><Key>{name}</Key></Deleted>");
        }
    }
    Ok(Reply::xml("DeleteResult", &inner))
}

pub(crate) fn copy(call: &Call<'_>) -> Answer {
    let request = call.request;
    let (source, version) = call.copy_source();
    let (bucket, key) = source.split_once('/').ok_or_else(errors::malformed)?;
    let mut store = lock(&call.shared.store);
    let found = store.find(bucket, key, version.as_deref()).cloned();
    let mut object = found.ok_or_else(|| errors::no_such_key(key))?;
    if !store.buckets.contains_key(&request.bucket) {
        return Err(errors::no_such_bucket(&request.bucket));
    }
    copy_conditions(call, &object)?;
    let replaces =
        request.header("x-amz-metadata-directive").is_some_and(|what| what.eq_ignore_ascii_case("replace"));
    if (bucket, key) == (&request.bucket, &request.key) && !replaces {
        let message = "This copy request is illegal because it is trying to copy an object to itself without changing \
                       the object's metadata, storage class, website redirect location or encryption attributes.";
        return Err(Reply::error(400, "InvalidRequest", message));
    }
    if replaces {
        object.metadata = metadata(call);
    }
    object.modified = now();
    object.version = None;
    let inner = format!(
        "<ETag>&quot;{}&quot;</ETag><LastModified>{}</LastModified>",
        object.etag,
        xml_date(object.modified)
    );
    store.put(&request.bucket, &request.key, object);
    Ok(Reply::xml("CopyObjectResult", &inner))
}

impl Call<'_> {
    /// `x-amz-copy-source`: a bucket and a key, and a version.
    pub(crate) fn copy_source(&self) -> (String, Option<String>) {
        let source = self.request.header("x-amz-copy-source").unwrap_or("");
        let (path, version) = source.split_once("?versionId=").unwrap_or((source, ""));
        let path = decoded(path, false);
        (path.trim_start_matches('/').to_owned(), (!version.is_empty()).then(|| version.to_owned()))
    }

    /// Content of the body: where bodies are not kept, a pattern as long.
    pub(crate) fn content(&self) -> Content {
        if self.body.len() as u64 == self.summed.len {
            return Content::of(self.body);
        }
        Content::Pattern { seed: 0, len: self.summed.len }
    }

    /// MD5; where bodies are not kept, the CRC with a dash in it.
    pub(crate) fn etag(&self) -> String {
        match self.summed.md5 {
            Some(md5) => hex(&md5),
            None => hex(self.summed.of(Algorithm::Crc64).unwrap_or(&[])) + "-0",
        }
    }
}
