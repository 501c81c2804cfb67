//! A test double: an S3 server in the process, with faults on demand. Never shipped.
