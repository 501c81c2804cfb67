//! What an answer says of RDMA.

use forebay_s3_rdma::headers::{BYTES, REASON, REPLY};
use forebay_s3_rdma::{Reason, Refusal};
use hyper::StatusCode;
use hyper::header::HeaderValue;

/// What becomes known of the transfer that a request asked for.
#[derive(Clone, Copy)]
pub(crate) enum RdmaWord {
    /// These bytes went by RDMA.
    Moved(u64),
    /// A GET's bytes go by the body.
    Declined(Reason),
    /// Nothing was stored.
    Refused(Refusal),
}

impl RdmaWord {
    /// Bytes that went by RDMA.
    pub(crate) const fn bytes(self) -> u64 {
        match self {
            Self::Moved(bytes) => bytes,
            _ => 0,
        }
    }

    /// The headers of an answer. One that failed for another reason has none.
    pub(crate) fn headers(self, status: StatusCode) -> Vec<(&'static str, HeaderValue)> {
        let text = HeaderValue::from_static;
        match (self, status.is_success()) {
            (Self::Moved(bytes), true) => vec![(REPLY, status.as_u16().into()), (BYTES, bytes.into())],
            (Self::Declined(reason), true) => vec![(REPLY, text("501")), (REASON, text(reason.text()))],
            (Self::Refused(refusal), false) => {
                let reply = refusal.reply().map(|reply| (REPLY, text(reply)));
                let reason = refusal.reason().map(|reason| (REASON, text(reason.text())));
                reply.into_iter().chain(reason).collect()
            }
            _ => Vec::new(),
        }
    }
}
