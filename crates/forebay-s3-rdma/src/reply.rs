//! What a client makes of an answer.

use crate::headers::{BYTES, REASON, REPLY, SUM};
use crate::sum_of_text;

/// Which way the object goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// To the client: GET, whole or a range.
    Get,
    /// To the server: PUT and UploadPart.
    Put,
}

/// What the client asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Asked {
    /// Which way.
    pub operation: Operation,
    /// Bytes of its token: all of them, or none.
    pub bytes: u64,
}

/// Bytes that went by RDMA.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Moved {
    /// Bytes.
    pub bytes: u64,
    /// Their CRC-64/NVME, where the server said it: of a whole object, and of what it stored.
    pub sum: Option<u64>,
}

/// Why bytes did not go by RDMA.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// The session is not there, or no more: connect again, once.
    Session,
    /// The object has another size than the token, or an operation does not move as much.
    Size,
    /// The transfer failed: the session has ended.
    Transfer,
    /// The server does not speak the dialect of the token.
    Dialect,
    /// The server has not said it.
    Unsaid,
}

impl Reason {
    /// The header's value.
    pub const fn text(self) -> &'static str {
        match self {
            Self::Session => "session",
            Self::Size => "size",
            Self::Transfer => "transfer",
            Self::Dialect => "dialect",
            Self::Unsaid => "unsaid",
        }
    }

    fn of(text: &str) -> Self {
        let all = [Self::Session, Self::Size, Self::Transfer, Self::Dialect];
        all.into_iter().find(|one| one.text() == text).unwrap_or(Self::Unsaid)
    }
}

/// An answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reply {
    /// All bytes that were asked for went by RDMA.
    Done(Moved),
    /// None went. Of a GET with status 2xx the body has them; of a PUT nothing was stored.
    Declined(Reason),
    /// The request failed as one without RDMA would: its status.
    Failed(u16),
    /// A PUT that succeeded without a word of RDMA: the object may be empty. Compare it, then send the body.
    Unknown,
    /// Not to be believed, and why: end the connection, then ask again by the body.
    Wrong(&'static str),
}

impl Reply {
    /// Of an answer's status and headers, whose names are asked for in lower case.
    pub fn parse<'a>(asked: Asked, status: u16, header: impl Fn(&str) -> Option<&'a str>) -> Self {
        let reply = header(REPLY).map(str::trim);
        if !(200..300).contains(&status) {
            return match (header(REASON), reply) {
                (Some(reason), _) => Self::Declined(Reason::of(reason)),
                (None, Some("501")) => Self::Declined(Reason::Unsaid),
                (None, _) => Self::Failed(status),
            };
        }
        match (reply, asked.operation) {
            (Some("501"), _) => Self::Declined(header(REASON).map_or(Reason::Unsaid, Reason::of)),
            (None, Operation::Get) => Self::Declined(Reason::Unsaid),
            (None, Operation::Put) => Self::Unknown,
            (Some(reply), _) => Self::moved(asked, status, reply, header),
        }
    }

    fn moved<'a>(asked: Asked, status: u16, reply: &str, header: impl Fn(&str) -> Option<&'a str>) -> Self {
        let is_known = match asked.operation {
            Operation::Get => reply.parse() == Ok(status) && matches!(status, 200 | 206),
            Operation::Put => matches!(reply, "200" | "204"),
        };
        if !is_known {
            return Self::Wrong("the reply does not fit the status");
        }
        if header("content-length") != Some("0") {
            return Self::Wrong("a body comes beside the bytes that went by RDMA");
        }
        // Others write `bytes/total`.
        let bytes = header(BYTES).and_then(|text| text.split('/').next()?.trim().parse().ok());
        if bytes != Some(asked.bytes) {
            return Self::Wrong("other bytes than were asked for");
        }
        match header(SUM).map(sum_of_text) {
            Some(None) => Self::Wrong("the checksum cannot be read"),
            Some(sum) => Self::Done(Moved { bytes: asked.bytes, sum }),
            None => Self::Done(Moved { bytes: asked.bytes, sum: None }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(operation: Operation, status: u16, headers: &[(&str, &'static str)]) -> Reply {
        let header = |name: &str| headers.iter().find(|(known, _)| *known == name).map(|(_, value)| *value);
        Reply::parse(Asked { operation, bytes: 10 }, status, header)
    }

    const ZERO: (&str, &str) = ("content-length", "0");

    #[test]
    fn answers_to_a_get() {
        let get = |status, headers: &[(&str, &'static str)]| parse(Operation::Get, status, headers);
        let done = Reply::Done(Moved { bytes: 10, sum: None });
        assert_eq!(get(200, &[(REPLY, "200"), (BYTES, "10"), ZERO]), done);
        assert_eq!(get(206, &[(REPLY, "206"), (BYTES, "10/40"), ZERO]), done);
        let sum = Some(0xae8b_1486_0a79_9888);
        let summed = get(200, &[(REPLY, "200"), (BYTES, "10"), ZERO, (SUM, "rosUhgp5mIg=")]);
        assert_eq!(summed, Reply::Done(Moved { bytes: 10, sum }));
        assert_eq!(get(200, &[("content-length", "10")]), Reply::Declined(Reason::Unsaid));
        assert_eq!(get(206, &[(REPLY, "501"), (REASON, "size")]), Reply::Declined(Reason::Size));
        assert_eq!(get(200, &[(REPLY, "501"), (REASON, "weather")]), Reply::Declined(Reason::Unsaid));
        for status in [304, 400, 403, 404, 412, 503] {
            assert_eq!(get(status, &[]), Reply::Failed(status));
        }
        assert_eq!(get(501, &[(REPLY, "501")]), Reply::Declined(Reason::Unsaid));
    }

    #[test]
    fn answers_that_are_not_believed() {
        for headers in [
            &[(REPLY, "200"), (BYTES, "9"), ZERO][..],
            &[(REPLY, "200"), (BYTES, "11"), ZERO],
            &[(REPLY, "200"), (BYTES, "-10"), ZERO],
            &[(REPLY, "200"), ZERO],
            &[(REPLY, "200"), (BYTES, "10"), ("content-length", "10")],
            &[(REPLY, "200"), (BYTES, "10")],
            &[(REPLY, "206"), (BYTES, "10"), ZERO],
            &[(REPLY, "ok"), (BYTES, "10"), ZERO],
            &[(REPLY, ""), (BYTES, "10"), ZERO],
            &[(REPLY, "200"), (BYTES, "10"), ZERO, (SUM, "none")],
        ] {
            assert!(matches!(parse(Operation::Get, 200, headers), Reply::Wrong(_)), "{headers:?}");
        }
    }

    #[test]
    fn answers_to_a_put() {
        let put = |status, headers: &[(&str, &'static str)]| parse(Operation::Put, status, headers);
        let done = Reply::Done(Moved { bytes: 10, sum: None });
        assert_eq!(put(200, &[(REPLY, "200"), (BYTES, "10"), ZERO]), done);
        assert_eq!(put(200, &[(REPLY, "204"), (BYTES, "10"), ZERO]), done);
        assert_eq!(put(200, &[ZERO]), Reply::Unknown);
        // The draft's answer to a PUT that stored nothing.
        assert_eq!(put(200, &[(REPLY, "501")]), Reply::Declined(Reason::Unsaid));
        assert_eq!(put(501, &[(REPLY, "501"), (REASON, "dialect")]), Reply::Declined(Reason::Dialect));
        assert_eq!(put(409, &[(REASON, "session")]), Reply::Declined(Reason::Session));
        assert_eq!(put(500, &[(REASON, "transfer")]), Reply::Declined(Reason::Transfer));
        assert_eq!(put(400, &[]), Reply::Failed(400));
        assert!(matches!(put(200, &[(REPLY, "206"), (BYTES, "10"), ZERO]), Reply::Wrong(_)));
        assert!(matches!(put(200, &[(REPLY, "200"), (BYTES, "0"), ZERO]), Reply::Wrong(_)));
    }
}
