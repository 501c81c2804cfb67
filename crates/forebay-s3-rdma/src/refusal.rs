//! What a server answers where it does not do it: the one table of statuses.

use std::fmt;

use crate::Reason;

/// A request that the server refuses. Nothing was stored, and no bytes of the object went.
///
/// A GET for which the bytes can go by the body is no refusal: it is answered with them, `x-amz-rdma-reply: 501` and a [`Reason`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// A token, or a request of a dialect, that cannot be read: why.
    Malformed(&'static str),
    /// Not signed as it must be, or another account's session: why.
    Forbidden(&'static str),
    /// PUT by a session that is not there, or no more.
    SessionExpired,
    /// PUT of more than an operation may move.
    TooLong,
    /// More bytes than the server has memory for at once.
    OverBuffer,
    /// Sessions, or memory for transfers, are used up.
    Limits,
    /// PUT by a dialect that the server does not speak, or of a server without RDMA.
    NotSupported,
    /// PUT whose bytes did not arrive.
    TransferFailed,
}

impl Refusal {
    /// HTTP's status.
    pub const fn status(self) -> u16 {
        match self {
            Self::Malformed(_) | Self::TooLong => 400,
            Self::Forbidden(_) => 403,
            Self::SessionExpired => 409,
            Self::OverBuffer => 413,
            Self::TransferFailed => 500,
            Self::NotSupported => 501,
            Self::Limits => 503,
        }
    }

    /// The code in S3's document.
    pub const fn code(self) -> &'static str {
        match self {
            Self::Malformed(_) => "InvalidRDMAToken",
            Self::Forbidden(_) => "AccessDenied",
            Self::SessionExpired => "RDMASessionExpired",
            Self::TooLong | Self::OverBuffer => "EntityTooLarge",
            Self::Limits => "SlowDown",
            Self::NotSupported => "RDMANotSupported",
            Self::TransferFailed => "RDMATransferFailed",
        }
    }

    /// The message in it.
    pub const fn message(self) -> &'static str {
        match self {
            Self::Malformed(why) | Self::Forbidden(why) => why,
            Self::SessionExpired => "the session is not there, or ended: connect again",
            Self::TooLong | Self::OverBuffer => "one operation does not move that many bytes",
            Self::Limits => "sessions, or memory for transfers, are used up",
            Self::NotSupported => "the bytes do not go by RDMA here: send them in the body",
            Self::TransferFailed => "the bytes did not come by RDMA; nothing was stored",
        }
    }

    /// [`crate::headers::REASON`] of the answer: what a client does next.
    pub const fn reason(self) -> Option<Reason> {
        match self {
            Self::SessionExpired => Some(Reason::Session),
            Self::TooLong | Self::OverBuffer => Some(Reason::Size),
            Self::NotSupported => Some(Reason::Dialect),
            Self::TransferFailed => Some(Reason::Transfer),
            Self::Malformed(_) | Self::Forbidden(_) | Self::Limits => None,
        }
    }

    /// [`crate::headers::REPLY`] of the answer, where it has one.
    pub const fn reply(self) -> Option<&'static str> {
        match self {
            Self::NotSupported => Some("501"),
            _ => None,
        }
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.message())
    }
}

impl std::error::Error for Refusal {}
