//! Buckets, and the listings of their objects.

use base64_simd::URL_SAFE_NO_PAD as TOKEN;
use s3s::dto::*;
use s3s::{S3Error, S3ErrorCode, S3Request, S3Result};

use super::said::{encoded, tag_of, time_of};
use super::{Front, owner};
use crate::store::{Entry, ListAsk, ListPage, StoreError, is_sayable};

/// S3's bound of a page.
const PAGE: i32 = 1000;

/// How many entries a page has, as it was asked for: S3 says the number, and bounds it.
pub(super) fn page_len(asked: Option<i32>, name: &str) -> S3Result<(i32, usize)> {
    let max = asked.unwrap_or(PAGE).min(PAGE);
    Ok((max, usize::try_from(max).map_err(|_| wrong(name))?))
}

/// What a listing asks for: inputs of three operations have the same names for it.
macro_rules! page_ask {
    ($input:expr, $marker:expr, $after:expr) => {
        PageAsk {
            bucket: $input.bucket.clone(),
            prefix: $input.prefix.clone(),
            delimiter: $input.delimiter.clone(),
            after: $after,
            max: $input.max_keys,
            names: Names::of($input.encoding_type.as_ref())?.check(&[
                &$input.prefix,
                &$input.delimiter,
                $marker,
            ])?,
        }
    };
}

impl Front {
    pub(super) async fn buckets(&self, request: S3Request<ListBucketsInput>) -> S3Result<ListBucketsOutput> {
        let ListBucketsInput { prefix, max_buckets, continuation_token, .. } = request.input;
        let signed = request.credentials.as_ref();
        let after = continuation_token.as_deref().map(read_token).transpose()?.unwrap_or_default();
        let max = usize::try_from(max_buckets.unwrap_or(i32::MAX)).map_err(|_| wrong("max-buckets"))?;
        Names::Plain.check(&[&prefix])?;
        let start = prefix.clone().unwrap_or_default();
        let mut found = self.ask(signed, |store| store.buckets()).await?;
        found.retain(|bucket| bucket.name.starts_with(&start) && bucket.name > after);
        let token = found.get(max).and(max.checked_sub(1)).map(|last| token(&found[last].name));
        let buckets = found.into_iter().take(max).map(|bucket| Bucket {
            name: Some(bucket.name),
            creation_date: time_of(bucket.created),
            ..Bucket::default()
        });
        Ok(ListBucketsOutput {
            buckets: Some(buckets.collect()),
            continuation_token: token,
            owner: owner(signed),
            prefix,
        })
    }

    pub(super) async fn make_bucket(
        &self,
        request: S3Request<CreateBucketInput>,
    ) -> S3Result<CreateBucketOutput> {
        if request.input.object_lock_enabled_for_bucket == Some(true) {
            return Err(S3Error::with_message(S3ErrorCode::NotImplemented, "there is no object lock here"));
        }
        let bucket = request.input.bucket;
        let location = Some(format!("/{bucket}"));
        self.ask(request.credentials.as_ref(), move |store| match store.make_bucket(&bucket) {
            // As in us-east-1, which this server is: a second call changes nothing.
            Err(StoreError::BucketExists) => Ok(()),
            result => result,
        })
        .await?;
        Ok(CreateBucketOutput { location, ..CreateBucketOutput::default() })
    }

    pub(super) async fn bucket_head(
        &self,
        request: S3Request<HeadBucketInput>,
    ) -> S3Result<HeadBucketOutput> {
        self.has_bucket(request.credentials.as_ref(), request.input.bucket).await?;
        Ok(HeadBucketOutput::default())
    }

    pub(super) async fn remove_bucket(
        &self,
        request: S3Request<DeleteBucketInput>,
    ) -> S3Result<DeleteBucketOutput> {
        let bucket = request.input.bucket;
        self.ask(request.credentials.as_ref(), move |store| store.remove_bucket(&bucket)).await?;
        Ok(DeleteBucketOutput {})
    }

    /// No constraint: `us-east-1`, as clients take it.
    pub(super) async fn bucket_location(
        &self,
        request: S3Request<GetBucketLocationInput>,
    ) -> S3Result<GetBucketLocationOutput> {
        self.has_bucket(request.credentials.as_ref(), request.input.bucket).await?;
        Ok(GetBucketLocationOutput::default())
    }

    /// Neither enabled nor suspended: there never was any.
    pub(super) async fn bucket_versioning(
        &self,
        request: S3Request<GetBucketVersioningInput>,
    ) -> S3Result<GetBucketVersioningOutput> {
        self.has_bucket(request.credentials.as_ref(), request.input.bucket).await?;
        Ok(GetBucketVersioningOutput::default())
    }

    pub(super) async fn bucket_acl(
        &self,
        request: S3Request<GetBucketAclInput>,
    ) -> S3Result<GetBucketAclOutput> {
        let signed = request.credentials.as_ref();
        self.has_bucket(signed, request.input.bucket).await?;
        Ok(GetBucketAclOutput { grants: Some(private(owner(signed))), owner: owner(signed) })
    }

    /// All is private: to ask for that changes nothing.
    pub(super) async fn set_bucket_acl(
        &self,
        request: S3Request<PutBucketAclInput>,
    ) -> S3Result<PutBucketAclOutput> {
        let signed = request.credentials.as_ref();
        only_private(request.input.access_control_policy.as_ref(), signed)?;
        self.has_bucket(signed, request.input.bucket).await?;
        Ok(PutBucketAclOutput::default())
    }

    async fn has_bucket(&self, signed: Option<&s3s::auth::Credentials>, bucket: String) -> S3Result<()> {
        self.ask(signed, move |store| store.bucket(&bucket)).await.map(|_| ())
    }

    pub(super) async fn list(&self, request: S3Request<ListObjectsInput>) -> S3Result<ListObjectsOutput> {
        let input = request.input;
        let signed = request.credentials.as_ref();
        let ask = page_ask!(input, &input.marker, input.marker.clone().unwrap_or_default());
        let names = ask.names;
        let page = self.page(signed, ask, owner(signed)).await?;
        Ok(ListObjectsOutput {
            name: Some(input.bucket),
            prefix: Some(names.of_text(input.prefix.unwrap_or_default())),
            marker: Some(names.of_text(input.marker.unwrap_or_default())),
            max_keys: Some(page.max),
            is_truncated: Some(page.next.is_some()),
            contents: Some(page.objects),
            common_prefixes: Some(page.prefixes),
            delimiter: input.delimiter.filter(|text| !text.is_empty()).map(|text| names.of_text(text)),
            next_marker: page.next.map(|next| names.of_text(next)),
            encoding_type: input.encoding_type,
            ..ListObjectsOutput::default()
        })
    }

    pub(super) async fn list_v2(
        &self,
        request: S3Request<ListObjectsV2Input>,
    ) -> S3Result<ListObjectsV2Output> {
        let input = request.input;
        let signed = request.credentials.as_ref();
        let after = match &input.continuation_token {
            Some(token) => read_token(token)?,
            None => input.start_after.clone().unwrap_or_default(),
        };
        let ask = page_ask!(input, &input.start_after, after);
        let names = ask.names;
        let shown = input.fetch_owner.unwrap_or_default().then(|| owner(signed)).flatten();
        let page = self.page(signed, ask, shown).await?;
        Ok(ListObjectsV2Output {
            name: Some(input.bucket),
            prefix: Some(names.of_text(input.prefix.unwrap_or_default())),
            max_keys: Some(page.max),
            key_count: i32::try_from(page.objects.len() + page.prefixes.len()).ok(),
            continuation_token: input.continuation_token,
            is_truncated: Some(page.next.is_some()),
            next_continuation_token: page.next.as_deref().map(token),
            contents: Some(page.objects),
            common_prefixes: Some(page.prefixes),
            delimiter: input.delimiter.filter(|text| !text.is_empty()).map(|text| names.of_text(text)),
            encoding_type: input.encoding_type,
            start_after: input.start_after.map(|text| names.of_text(text)),
            ..ListObjectsV2Output::default()
        })
    }

    /// Each object has one version, as in a bucket that never had others.
    pub(super) async fn versions(
        &self,
        request: S3Request<ListObjectVersionsInput>,
    ) -> S3Result<ListObjectVersionsOutput> {
        let input = request.input;
        let signed = request.credentials.as_ref();
        let ask = page_ask!(input, &input.key_marker, input.key_marker.clone().unwrap_or_default());
        let names = ask.names;
        let page = self.page(signed, ask, owner(signed)).await?;
        let versions = page.objects.into_iter().map(|object| ObjectVersion {
            key: object.key,
            size: object.size,
            last_modified: object.last_modified,
            e_tag: object.e_tag,
            owner: object.owner,
            is_latest: Some(true),
            version_id: Some("null".to_owned()),
            storage_class: Some(ObjectVersionStorageClass::from_static(ObjectVersionStorageClass::STANDARD)),
            ..ObjectVersion::default()
        });
        Ok(ListObjectVersionsOutput {
            name: Some(input.bucket),
            prefix: Some(names.of_text(input.prefix.unwrap_or_default())),
            key_marker: Some(names.of_text(input.key_marker.unwrap_or_default())),
            max_keys: Some(page.max),
            is_truncated: Some(page.next.is_some()),
            versions: Some(versions.collect()),
            common_prefixes: Some(page.prefixes),
            delimiter: input.delimiter.filter(|text| !text.is_empty()).map(|text| names.of_text(text)),
            next_version_id_marker: page.next.as_ref().map(|_| "null".to_owned()),
            next_key_marker: page.next.map(|next| names.of_text(next)),
            encoding_type: input.encoding_type,
            ..ListObjectVersionsOutput::default()
        })
    }

    async fn page(
        &self,
        signed: Option<&s3s::auth::Credentials>,
        ask: PageAsk,
        owner: Option<Owner>,
    ) -> S3Result<Page> {
        let (max, count) = page_len(ask.max, "max-keys")?;
        let found = self
            .ask(signed, move |store| {
                if count == 0 {
                    return store.bucket(&ask.bucket).map(|_| ListPage::default());
                }
                let delimiter = ask.delimiter.filter(|text| !text.is_empty());
                let prefix = ask.prefix.unwrap_or_default();
                store.list(&ask.bucket, &ListAsk { prefix, delimiter, after: ask.after, max: count })
            })
            .await?;
        let mut page = Page { max, next: found.next, objects: Vec::new(), prefixes: Vec::new() };
        for entry in found.entries {
            match &entry {
                Entry::Prefix(name) => ask.names.check_text(name)?,
                Entry::Object(object) => ask.names.check_text(&object.key)?,
            }
            match entry {
                Entry::Prefix(prefix) => {
                    page.prefixes.push(CommonPrefix { prefix: Some(ask.names.of_text(prefix)) });
                }
                Entry::Object(object) => page.objects.push(Object {
                    key: Some(ask.names.of_text(object.key)),
                    size: i64::try_from(object.len).ok(),
                    last_modified: time_of(object.modified),
                    e_tag: tag_of(&object.etag),
                    owner: owner.clone(),
                    storage_class: Some(ObjectStorageClass::from_static(ObjectStorageClass::STANDARD)),
                    ..Object::default()
                }),
            }
        }
        Ok(page)
    }
}

/// What each kind of listing asks for.
struct PageAsk {
    bucket: String,
    prefix: Option<String>,
    delimiter: Option<String>,
    after: String,
    max: Option<i32>,
    names: Names,
}

struct Page {
    max: i32,
    next: Option<String>,
    objects: Vec<Object>,
    prefixes: Vec<CommonPrefix>,
}

/// How names stand in an answer.
#[derive(Clone, Copy)]
pub(super) enum Names {
    Plain,
    Encoded,
}

impl Names {
    pub(super) fn of(asked: Option<&EncodingType>) -> S3Result<Self> {
        match asked.map(EncodingType::as_str) {
            None => Ok(Self::Plain),
            Some(EncodingType::URL) => Ok(Self::Encoded),
            Some(_) => Err(wrong("encoding-type")),
        }
    }

    /// Refuses texts that an answer cannot say in this way: those that a request has and its answer repeats.
    pub(super) fn check(self, texts: &[&Option<String>]) -> S3Result<Self> {
        texts.iter().filter_map(|text| text.as_deref()).try_for_each(|text| self.check_text(text))?;
        Ok(self)
    }

    pub(super) fn check_text(self, text: &str) -> S3Result<()> {
        if matches!(self, Self::Encoded) || is_sayable(text) {
            return Ok(());
        }
        let why =
            "XML has no control characters: a listing has them with encoding-type=url, nothing else has";
        Err(S3Error::with_message(S3ErrorCode::InvalidArgument, why))
    }

    pub(super) fn of_text(self, text: String) -> String {
        match self {
            Self::Plain => text,
            Self::Encoded => encoded(&text),
        }
    }
}

/// Where a listing goes on, for clients that must not look into it.
fn token(after: &str) -> String {
    TOKEN.encode_to_string(after)
}

fn read_token(token: &str) -> S3Result<String> {
    let bytes = TOKEN.decode_to_vec(token).ok();
    bytes.and_then(|bytes| String::from_utf8(bytes).ok()).ok_or_else(|| wrong("continuation-token"))
}

pub(super) fn wrong(name: &str) -> S3Error {
    S3Error::with_message(S3ErrorCode::InvalidArgument, format!("the value of {name} is wrong"))
}

/// Refuses an access list that gives a right to another than the owner.
pub(super) fn only_private(
    asked: Option<&AccessControlPolicy>,
    signed: Option<&s3s::auth::Credentials>,
) -> S3Result<()> {
    let owner = owner(signed).and_then(|owner| owner.id);
    let is_owner = |grant: &Grant| grant.grantee.as_ref().is_some_and(|grantee| grantee.id == owner);
    match asked.and_then(|asked| asked.grants.as_ref()) {
        Some(grants) if !grants.iter().all(is_owner) => Err(all_is_private()),
        _ => Ok(()),
    }
}

pub(super) fn all_is_private() -> S3Error {
    let why = "all is private here: an account has all rights, nobody else has any";
    S3Error::with_message(S3ErrorCode::AccessControlListNotSupported, why)
}

/// The owner may do all, nobody else anything.
pub(super) fn private(owner: Option<Owner>) -> Vec<Grant> {
    let owner = owner.unwrap_or_default();
    let grantee = Grantee {
        display_name: owner.display_name,
        email_address: None,
        id: owner.id,
        type_: Type::from_static(Type::CANONICAL_USER),
        uri: None,
    };
    vec![Grant {
        grantee: Some(grantee),
        permission: Some(Permission::from_static(Permission::FULL_CONTROL)),
    }]
}
