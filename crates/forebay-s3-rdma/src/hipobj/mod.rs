//! `hipobj-rc-v2`: two signed requests and a queue pair for each transfer.
//!
//! | request | client says | server answers |
//! |---|---|---|
//! | `POST` [`PREPARE`] | its queue end, what it wants: [`Prepare`] | its own end, a session, for PUT its memory: [`Prepared`] |
//! | `POST` [`READY`] | its memory, for GET: [`Ready`] | after the transfer: [`Finished`] |
//! | `POST` [`CANCEL`] | the session | 200, also where it is gone |
//!
//! GET: the server writes into the client's memory. PUT: the client writes into the server's, behind READY, for servers pair their end
//! only then. Either is a single RDMA WRITE with the cookie as its number. No end says its MTU: both take their port's.
//! All requests have empty bodies, and their headers are signed.

mod finished;
mod prepare;
mod ready;
mod token;

pub use finished::Finished;
pub use prepare::{Prepare, Prepared, Refused};
pub use ready::{Ready, cancel};
pub use token::EndToken;

use crate::hex::number;

/// The path that makes a session.
pub const PREPARE: &str = "/.hipobj-rc/prepare";
/// The path that has the bytes go.
pub const READY: &str = "/.hipobj-rc/ready";
/// The path that ends a session early.
pub const CANCEL: &str = "/.hipobj-rc/cancel";
/// The most bytes of a transfer.
pub const MOST_BYTES: u64 = (1 << 31) - 1;

/// Headers of the dialect alone, in lower case.
pub mod header {
    /// [`super::NAME`], both ways.
    pub const PROTOCOL: &str = "x-amz-rdma-protocol";
    /// `unsupported`, beside 501: use the body.
    pub const STATUS: &str = "x-amz-rdma-protocol-status";
    /// The sender's first sequence number, six digits.
    pub const FIRST: &str = "x-amz-rdma-psn";
    /// The number behind the last byte, eight digits.
    pub const COOKIE: &str = "x-amz-rdma-cookie";
    /// `GET` or `PUT`.
    pub const OPERATION: &str = "x-amz-rdma-op";
    /// `/bucket/key`, as a request line has it.
    pub const TARGET: &str = "x-amz-rdma-target";
    /// Bytes, decimal.
    pub const SIZE: &str = "x-amz-rdma-size";
    /// Where they begin in the object, decimal.
    pub const OFFSET: &str = "x-amz-rdma-offset";
    /// The session's name.
    pub const SESSION: &str = "x-amz-rdma-session";
    /// The sender's queue pair.
    pub const NUMBER: &str = "x-amz-rdma-qpn";
    /// The sender's memory.
    pub const ADDRESS: &str = "x-amz-rdma-mr-addr";
    /// Its key.
    pub const KEY: &str = "x-amz-rdma-mr-rkey";
    /// The object's ETag.
    pub const ETAG: &str = "x-amz-rdma-etag";
    /// Its version.
    pub const VERSION: &str = "x-amz-rdma-version-id";
    /// CRC-64/NVME of the bytes, where the server has it.
    pub const SUM: &str = "x-amz-rdma-checksum";
}

/// The value of [`header::PROTOCOL`].
pub const NAME: &str = "hipobj-rc-v2";

/// A number of at most `most` digits. Servers write some in capitals.
fn digits(text: &str, most: usize) -> Option<u64> {
    number(&text.trim().to_ascii_lowercase(), most)
}

/// A decimal number.
fn decimal(text: &str) -> Option<u64> {
    let text = text.trim();
    let is_number = !text.is_empty() && text.bytes().all(|digit| digit.is_ascii_digit());
    text.parse().ok().filter(|_| is_number)
}

#[cfg(test)]
mod tests;
