//! Listings of buckets and objects, and calls on buckets.

use std::collections::BTreeMap;

use crate::call::Call;
use crate::reply::{Reply, errors};
use crate::store::Bucket;
use crate::sums::Algorithm;
use crate::text::{decoded, encoded, escaped, xml_date};
use crate::{Asked, Fault, lock, now};

type Answer = Result<Reply, Reply>;

/// An entry of a listing.
enum Entry {
    Object(String),
    Prefix(String),
}

/// ListObjectsV2, and the older ListObjects with its markers.
pub(crate) fn objects(call: &Call<'_>) -> Answer {
    let request = call.request;
    let parameter = |name: &str| request.parameter(name).unwrap_or("");
    let is_second = parameter("list-type") == "2";
    let (prefix, delimiter) = (parameter("prefix"), parameter("delimiter"));
    let token = parameter("continuation-token");
    let after = match (is_second, token.is_empty()) {
        (false, _) => parameter("marker").to_owned(),
        (true, true) => parameter("start-after").to_owned(),
        (true, false) => decoded(token.strip_prefix("token:").ok_or_else(bad_token)?, false),
    };
    let wanted = request.parameter("max-keys").map_or(Ok(1000), str::parse).map_err(|_| bad_token())?;
    let page =
        if let Some(Fault::Page(page)) = call.fault { *page } else { lock(&call.shared.settings).page };
    let most = page.min(wanted).min(1000);
    let store = lock(&call.shared.store);
    let bucket = store.buckets.get(&request.bucket).ok_or_else(|| errors::no_such_bucket(&request.bucket))?;
    let (entries, is_truncated) = entries(bucket, prefix, delimiter, &after, most);
    let is_url = parameter("encoding-type") == "url";
    let name = |name: &str| if is_url { encoded(name, "/") } else { escaped(name) };
    let mut inner = format!(
        "<Name>{}</Name><Prefix>{}</Prefix><MaxKeys>{wanted}</MaxKeys><IsTruncated>{is_truncated}</IsTruncated>",
        request.bucket,
        name(prefix)
    );
    if is_url {
        inner += "<EncodingType>url</EncodingType>";
    }
    if !delimiter.is_empty() {
        inner += &format!("<Delimiter>{}</Delimiter>", name(delimiter));
    }
    if is_second {
        inner += &format!("<KeyCount>{}</KeyCount>", entries.len());
    }
    if let (true, Some(Entry::Object(last) | Entry::Prefix(last))) = (is_truncated, entries.last()) {
        let (tag, next) = if is_second {
            ("NextContinuationToken", format!("token:{}", encoded(last, "")))
        } else {
            ("NextMarker", name(last))
        };
        inner += &format!("<{tag}>{next}</{tag}>");
    }
    for entry in &entries {
        match entry {
            Entry::Object(key) => inner += &contents(bucket, key, &name(key)),
            Entry::Prefix(prefix) => {
                inner += &format!("<CommonPrefixes><Prefix>{}</Prefix></CommonPrefixes>", name(prefix));
            }
        }
    }
    Ok(Reply::xml("ListBucketResult", &inner))
}

fn bad_token() -> Reply {
    Reply::error(400, "InvalidArgument", "The continuation token provided is incorrect")
}

/// Those behind a name, `most` of them, and whether there are more.
fn entries(bucket: &Bucket, prefix: &str, delimiter: &str, after: &str, most: usize) -> (Vec<Entry>, bool) {
    let mut found: BTreeMap<String, Entry> = BTreeMap::new();
    let from = if after > prefix { after } else { prefix };
    for (key, versions) in bucket.objects.range(from.to_owned()..) {
        let Some(rest) = key.strip_prefix(prefix) else { break };
        if versions.last().is_none_or(|object| object.is_marker) {
            continue;
        }
        let cut = (!delimiter.is_empty()).then(|| rest.find(delimiter)).flatten();
        let (name, entry) = match cut {
            Some(at) => {
                let name = &key[..prefix.len() + at + delimiter.len()];
                (name, Entry::Prefix(name.to_owned()))
            }
            None => (key.as_str(), Entry::Object(key.clone())),
        };
        if name > after {
            if found.len() == most && !found.contains_key(name) {
                return (found.into_values().collect(), most > 0);
            }
            found.insert(name.to_owned(), entry);
        }
    }
    (found.into_values().collect(), false)
}

fn contents(bucket: &Bucket, key: &str, name: &str) -> String {
    let Some(object) = bucket.objects.get(key).and_then(|versions| versions.last()) else {
        return String::new();
    };
    let algorithm = object.checksum.as_ref().map_or(String::new(), |(algorithm, _): &(Algorithm, _)| {
        format!("<ChecksumAlgorithm>{}</ChecksumAlgorithm>", algorithm.name())
    });
    format!(
        "<Contents><Key>{name}</Key><LastModified>{}</LastModified><ETag>&quot;{}&quot;</ETag>{algorithm}\
         <Size>{}</Size><StorageClass>STANDARD</StorageClass></Contents>",
        xml_date(object.modified),
        object.etag,
        object.content.len()
    )
}

pub(crate) fn buckets(call: &Call<'_>) -> Reply {
    let store = lock(&call.shared.store);
    let list = store.buckets.iter().fold(String::new(), |list, (name, bucket)| {
        let made = xml_date(bucket.made);
        list + &format!("<Bucket><Name>{name}</Name><CreationDate>{made}</CreationDate></Bucket>")
    });
    let owner = "<Owner><ID>fake</ID><DisplayName>fake</DisplayName></Owner>";
    Reply::xml("ListAllMyBucketsResult", &format!("{owner}<Buckets>{list}</Buckets>"))
}

/// Calls on a bucket but listings.
pub(crate) fn bucket(call: &Call<'_>) -> Answer {
    let name = &call.request.bucket;
    let region = lock(&call.shared.settings).region.clone();
    let mut store = lock(&call.shared.store);
    let found = store.buckets.get(name);
    match (call.asked, found) {
        (Asked::MakeBucket, None) => {
            store.buckets.insert(name.clone(), Bucket { made: now(), ..Bucket::default() });
            Ok(Reply::new(200).with("Location", format!("/{name}")))
        }
        (Asked::MakeBucket, Some(_)) => {
            let message =
                "Your previous request to create the named bucket succeeded and you already own it.";
            Err(Reply::error(409, "BucketAlreadyOwnedByYou", message))
        }
        (_, None) => Err(errors::no_such_bucket(name)),
        (Asked::DeleteBucket, Some(bucket)) if !bucket.objects.is_empty() => {
            Err(Reply::error(409, "BucketNotEmpty", "The bucket you tried to delete is not empty"))
        }
        (Asked::DeleteBucket, Some(_)) => {
            store.buckets.remove(name);
            Ok(Reply::new(204))
        }
        (Asked::HeadBucket, Some(_)) => Ok(Reply::new(200).with("x-amz-bucket-region", region)),
        // S3 leaves us-east-1 out.
        (_, Some(_)) => {
            Ok(Reply::xml("LocationConstraint", if region == "us-east-1" { "" } else { &region }))
        }
    }
}
