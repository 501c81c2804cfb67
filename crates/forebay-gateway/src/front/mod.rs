//! S3's operations over a store. s3s reads requests and checks their signatures; what they do is here.
//!
//! | file | what it has |
//! |---|---|
//! | `buckets` | buckets, and their listings |
//! | `objects` | objects: written, read, described, removed |
//! | `copies` | objects and parts that are copied from objects |
//! | `forms` | objects that forms of browsers send |
//! | `rdma`, `route`, `word` | objects whose bytes go by RDMA: transfers, sessions, what answers say of it |
//! | `exchange` | the same by hipobj-rc-v2 |
//! | `lend` | objects by their files, for processes of this machine |
//! | `uploads` | uploads by parts |
//! | `access` | who may do what, and what no request may ask for |
//! | `conditions` | `If-…`, ranges, parts |
//! | `said` | headers, metadata and tags of objects |
//! | `sums` | checksums |
//! | `intake`, `body` | bytes on their way in and out |
//! | `codes` | errors of stores as S3's |

#![allow(clippy::wildcard_imports, reason = "inputs and outputs of operations are dozens of names")]

mod access;
mod body;
mod buckets;
mod codes;
mod conditions;
mod copies;
mod exchange;
mod forms;
mod intake;
mod lend;
mod objects;
mod rdma;
mod route;
mod said;
mod sums;
mod uploads;
mod word;

use std::sync::Arc;

use s3s::auth::Credentials;
use s3s::dto::*;
use s3s::{S3, S3Error, S3ErrorCode, S3Request, S3Response, S3Result};

pub(crate) use access::{Belongs, Gate, Visit};
pub(crate) use codes::BodyStalled;
#[cfg(test)]
pub(crate) use lend::Parcel;
pub(crate) use lend::{FILES, FileGrant, LentFile, LocalPeer};
pub(crate) use route::RdmaRoute;
pub(crate) use sums::bytes_of;
pub(crate) use word::RdmaWord;

use crate::accounts::{Account, Accounts};
use crate::rdma::Rdma;
use crate::store::{Store, StoreResult};
use crate::threads::{Turn, Turns, is_own};
use body::Pieces;
use codes::answer;

/// Runs a job that may wait, on a thread for such jobs.
async fn blocking<T: Send + 'static>(job: impl FnOnce() -> S3Result<T> + Send + 'static) -> S3Result<T> {
    let turn = turn().await?;
    if is_own() {
        let done = job();
        drop(turn);
        return done;
    }
    turn.start(job).await.map_err(S3Error::internal_error)?
}

/// The same for a job that takes as long as a client's NIC does.
async fn sending<T: Send + 'static>(job: impl FnOnce() -> S3Result<T> + Send + 'static) -> S3Result<T> {
    turns().start_sending(job).await.map_err(S3Error::internal_error)?
}

/// A thread for such a job of the account that asks now.
async fn turn() -> S3Result<Turn> {
    let why = "requests of this account wait for the file system";
    turns().take().await.ok_or_else(|| S3Error::with_message(S3ErrorCode::SlowDown, why))
}

/// The threads of the account that asks now.
fn turns() -> Turns {
    Visit::current().map(|visit| visit.turns()).unwrap_or_default()
}

/// The operations.
pub(crate) struct Front {
    accounts: Arc<Accounts>,
    pieces: Arc<Pieces>,
    rdma: Option<Arc<Rdma>>,
}

impl Front {
    pub(crate) fn new(accounts: Arc<Accounts>, rdma: Option<Arc<Rdma>>) -> Self {
        Self { accounts, pieces: Arc::default(), rdma }
    }

    /// The account that signed.
    fn account(&self, signed: Option<&Credentials>) -> S3Result<Arc<Account>> {
        let found = signed.and_then(|signed| self.accounts.find(&signed.access_key));
        found.ok_or_else(|| S3Error::new(S3ErrorCode::AccessDenied))
    }

    fn store(&self, signed: Option<&Credentials>) -> S3Result<Arc<dyn Store>> {
        Ok(Arc::clone(&self.account(signed)?.store))
    }

    /// Asks the account's store, on a thread that may wait.
    async fn ask<T: Send + 'static>(
        &self,
        signed: Option<&Credentials>,
        job: impl FnOnce(&dyn Store) -> StoreResult<T> + Send + 'static,
    ) -> S3Result<T> {
        let store = self.store(signed)?;
        blocking(move || job(store.as_ref()).map_err(answer)).await
    }
}

/// The name of a request, in the answer's head and in its error.
#[derive(Clone)]
pub(crate) struct RequestId(pub(crate) String);

fn named(mut error: S3Error, id: Option<RequestId>) -> S3Error {
    if let Some(RequestId(id)) = id {
        error.set_request_id(id);
    }
    error
}

/// There are no versions: each object is the one that S3 calls `null`.
fn no_version(version: Option<&str>) -> S3Result<()> {
    match version {
        None | Some("null" | "") => Ok(()),
        Some(_) => Err(S3Error::new(S3ErrorCode::NoSuchVersion)),
    }
}

/// The owner of all that an account sees.
fn owner(signed: Option<&Credentials>) -> Option<Owner> {
    let id = signed?.access_key.clone();
    Some(Owner { display_name: Some(id.clone()), id: Some(id) })
}

/// The operations' table: each is one line here, and a function of the file that has it.
macro_rules! operations {
    ($($operation:ident: $input:ident -> $output:ident, $function:ident;)*) => {
        #[async_trait::async_trait]
        impl S3 for Front {
            $(async fn $operation(&self, request: S3Request<$input>) -> S3Result<S3Response<$output>> {
                let id = request.extensions.get().cloned();
                self.$function(request).await.map(S3Response::new).map_err(|error| named(error, id))
            })*
        }
    };
}

operations! {
    list_buckets: ListBucketsInput -> ListBucketsOutput, buckets;
    create_bucket: CreateBucketInput -> CreateBucketOutput, make_bucket;
    head_bucket: HeadBucketInput -> HeadBucketOutput, bucket_head;
    delete_bucket: DeleteBucketInput -> DeleteBucketOutput, remove_bucket;
    get_bucket_location: GetBucketLocationInput -> GetBucketLocationOutput, bucket_location;
    get_bucket_versioning: GetBucketVersioningInput -> GetBucketVersioningOutput, bucket_versioning;
    get_bucket_acl: GetBucketAclInput -> GetBucketAclOutput, bucket_acl;
    put_bucket_acl: PutBucketAclInput -> PutBucketAclOutput, set_bucket_acl;
    list_objects: ListObjectsInput -> ListObjectsOutput, list;
    list_objects_v2: ListObjectsV2Input -> ListObjectsV2Output, list_v2;
    list_object_versions: ListObjectVersionsInput -> ListObjectVersionsOutput, versions;
    put_object: PutObjectInput -> PutObjectOutput, put;
    get_object: GetObjectInput -> GetObjectOutput, get;
    head_object: HeadObjectInput -> HeadObjectOutput, head;
    delete_object: DeleteObjectInput -> DeleteObjectOutput, remove;
    delete_objects: DeleteObjectsInput -> DeleteObjectsOutput, remove_many;
    copy_object: CopyObjectInput -> CopyObjectOutput, copy;
    get_object_attributes: GetObjectAttributesInput -> GetObjectAttributesOutput, attributes;
    get_object_acl: GetObjectAclInput -> GetObjectAclOutput, object_acl;
    put_object_acl: PutObjectAclInput -> PutObjectAclOutput, set_object_acl;
    get_object_tagging: GetObjectTaggingInput -> GetObjectTaggingOutput, tags;
    put_object_tagging: PutObjectTaggingInput -> PutObjectTaggingOutput, set_tags;
    delete_object_tagging: DeleteObjectTaggingInput -> DeleteObjectTaggingOutput, clear_tags;
    create_multipart_upload: CreateMultipartUploadInput -> CreateMultipartUploadOutput, begin_upload;
    upload_part: UploadPartInput -> UploadPartOutput, put_part;
    upload_part_copy: UploadPartCopyInput -> UploadPartCopyOutput, copy_part;
    list_parts: ListPartsInput -> ListPartsOutput, parts;
    list_multipart_uploads: ListMultipartUploadsInput -> ListMultipartUploadsOutput, uploads;
    complete_multipart_upload: CompleteMultipartUploadInput -> CompleteMultipartUploadOutput, finish_upload;
    abort_multipart_upload: AbortMultipartUploadInput -> AbortMultipartUploadOutput, abort_upload;
}
