//! Operations of S3 that are waited for.
