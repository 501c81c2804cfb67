//! Objects that forms of browsers send: s3s checks the policy that signs a form, and its conditions. What other requests say in headers a
//! form says in fields. s3s leaves out `acl` and `tagging`: the object is private, and has no tags.

use hyper::HeaderMap;
use hyper::header::HeaderValue;
use s3s::S3Result;
use s3s::dto::{
    ObjectCannedACL, ObjectLockLegalHoldStatus, ObjectLockMode, PutObjectInput, ServerSideEncryption,
};

use super::buckets::wrong;

/// The fields of a form as headers, so that all that follows is as for a PUT.
pub(super) fn headers_of(input: &PutObjectInput) -> S3Result<HeaderMap> {
    let text = Option::as_deref;
    let mut headers = HeaderMap::new();
    for (name, value) in [
        ("cache-control", text(&input.cache_control)),
        ("content-disposition", text(&input.content_disposition)),
        ("content-encoding", text(&input.content_encoding)),
        ("content-language", text(&input.content_language)),
        ("content-md5", text(&input.content_md5)),
        ("content-type", text(&input.content_type)),
        ("expires", text(&input.expires)),
        ("x-amz-acl", input.acl.as_ref().map(ObjectCannedACL::as_str)),
        ("x-amz-checksum-crc32", text(&input.checksum_crc32)),
        ("x-amz-checksum-crc32c", text(&input.checksum_crc32c)),
        ("x-amz-checksum-crc64nvme", text(&input.checksum_crc64nvme)),
        ("x-amz-checksum-sha1", text(&input.checksum_sha1)),
        ("x-amz-checksum-sha256", text(&input.checksum_sha256)),
        ("x-amz-grant-full-control", text(&input.grant_full_control)),
        ("x-amz-grant-read", text(&input.grant_read)),
        (
            "x-amz-object-lock-legal-hold",
            input.object_lock_legal_hold_status.as_ref().map(ObjectLockLegalHoldStatus::as_str),
        ),
        ("x-amz-object-lock-mode", input.object_lock_mode.as_ref().map(ObjectLockMode::as_str)),
        (
            "x-amz-server-side-encryption",
            input.server_side_encryption.as_ref().map(ServerSideEncryption::as_str),
        ),
        ("x-amz-server-side-encryption-customer-algorithm", text(&input.sse_customer_algorithm)),
        ("x-amz-website-redirect-location", text(&input.website_redirect_location)),
    ] {
        if let Some(value) = value {
            headers.insert(name, HeaderValue::from_str(value).map_err(|_| wrong(name))?);
        }
    }
    Ok(headers)
}
