//! Names of headers, in lower case.

/// All headers with this begin must be signed.
pub const PREFIX: &str = "x-amz-rdma-";
/// The client's memory.
pub const TOKEN: &str = "x-amz-rdma-token";
/// How the bytes went: `200` or `206` by RDMA, `501` not by RDMA.
pub const REPLY: &str = "x-amz-rdma-reply";
/// Bytes that went by RDMA.
pub const BYTES: &str = "x-amz-rdma-bytes-transferred";
/// Why they did not: a [`crate::Reason`].
pub const REASON: &str = "x-amz-rdma-reason";
/// The checksum of S3 that is compared with the bytes that went.
pub const SUM: &str = "x-amz-checksum-crc64nvme";
/// The token of another dialect.
pub const OTHER_TOKEN: &str = "x-rdma-info";
