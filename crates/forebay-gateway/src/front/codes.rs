//! Errors of a store as S3 answers them: the one table.

use s3s::{S3Error, S3ErrorCode, StdError};

use crate::store::StoreError;
use crate::warn::warn;

/// The answer to a request that the store refused.
pub(crate) fn answer(error: StoreError) -> S3Error {
    use S3ErrorCode as Code;
    let code = match &error {
        StoreError::NoBucket => Code::NoSuchBucket,
        StoreError::BucketExists => Code::BucketAlreadyOwnedByYou,
        StoreError::BucketTaken => Code::BucketAlreadyExists,
        StoreError::BucketFull => Code::BucketNotEmpty,
        StoreError::BucketName(_) => Code::InvalidBucketName,
        StoreError::NoObject => Code::NoSuchKey,
        StoreError::Key(_) => Code::InvalidArgument,
        StoreError::NoUpload => Code::NoSuchUpload,
        StoreError::NoPart(_) => Code::InvalidPart,
        StoreError::PartOrder => Code::InvalidPartOrder,
        StoreError::PartLength(_) => Code::EntityTooSmall,
        StoreError::Precondition => Code::PreconditionFailed,
        StoreError::Conflict => Code::ConditionalRequestConflict,
        StoreError::Denied => Code::AccessDenied,
        StoreError::Full => return full(),
        StoreError::Later(_) => Code::SlowDown,
        StoreError::Other(_) => Code::InternalError,
    };
    match error {
        // The text may have paths of this machine: it goes to the log, not to the client.
        StoreError::Later(error) | StoreError::Other(error) => {
            warn(&error.to_string());
            S3Error::with_source(code, Box::new(error))
        }
        named @ (StoreError::BucketName(_)
        | StoreError::Key(_)
        | StoreError::NoPart(_)
        | StoreError::PartLength(_)) => S3Error::with_message(code, named.to_string()),
        _ => S3Error::new(code),
    }
}

/// As [`answer`], for requests that only read: a key that cannot be is a key that is not there.
pub(crate) fn answer_read(error: StoreError) -> S3Error {
    match error {
        StoreError::Key(_) => answer(StoreError::NoObject),
        other => answer(other),
    }
}

/// S3 has no code for it; 507 is HTTP's.
fn full() -> S3Error {
    let mut error = S3Error::with_message(
        S3ErrorCode::Custom("InsufficientStorage".into()),
        "No room is left for the object.",
    );
    error.set_status_code(hyper::StatusCode::INSUFFICIENT_STORAGE);
    error
}

/// No byte of a body came for too long.
#[derive(Debug)]
pub(crate) struct BodyStalled;

impl std::fmt::Display for BodyStalled {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("no byte of the body came for too long")
    }
}

impl std::error::Error for BodyStalled {}

/// The answer to a body that broke off, or is not what its head said.
pub(crate) fn answer_body(error: &StdError) -> S3Error {
    use s3s::stream::aws_chunked_stream::AwsChunkedStreamError;
    use s3s::stream::upload_stream::UploadStreamError;

    let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(error.as_ref());
    while let Some(error) = cause {
        if error.is::<BodyStalled>() {
            return S3Error::new(S3ErrorCode::RequestTimeout);
        }
        if error.is::<s3s::BodySizeLimitExceeded>() {
            return S3Error::new(S3ErrorCode::EntityTooLarge);
        }
        if let Some(error) = error.downcast_ref::<UploadStreamError>()
            && !matches!(error, UploadStreamError::Underlying(_))
        {
            return S3Error::new(error.to_s3_error_code());
        }
        if let Some(error) = error.downcast_ref::<AwsChunkedStreamError>()
            && !matches!(error, AwsChunkedStreamError::Underlying(_))
        {
            return S3Error::new(error.to_s3_error_code());
        }
        cause = error.source();
    }
    S3Error::new(S3ErrorCode::IncompleteBody)
}
