//! Whether a reply is believed.

use forebay_s3_rdma::{Asked, Operation, Reason, Reply};

use crate::wire::call::ReplyHead;

/// What a reply has to say beside the words of RDMA, where it says it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Expected {
    /// The ETag of the object.
    pub(crate) etag: Option<String>,
    /// `bytes START-END/LENGTH`, of a range.
    pub(crate) content_range: Option<String>,
    /// The CRC-64/NVME that was sent with the bytes.
    pub(crate) sum: Option<u64>,
}

/// What a reply means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// The bytes are where they belong. With the CRC-64/NVME of an object that was read whole, where the server says it.
    Moved(Option<u64>),
    /// The session is not there any more.
    SessionLost,
    /// The bytes do not go by RDMA.
    Declined(Reason),
    /// The server did not do it.
    Refused,
    /// The object is another one by now.
    Replaced,
    /// A PUT of which nobody knows whether it stored the bytes.
    Unknown,
    /// It is not believed.
    Wrong(&'static str),
}

impl Verdict {
    /// By a reply to a request for these bytes.
    pub(super) fn of(head: &ReplyHead, asked: Asked, expected: &Expected) -> Self {
        match Reply::parse(asked, head.status, |name| head.header(name)) {
            Reply::Done(moved) if asked.operation == Operation::Get => {
                Self::of_read(head, moved.sum, expected)
            }
            Reply::Done(moved) => Self::of_write(moved.sum, expected),
            Reply::Declined(Reason::Session) => Self::SessionLost,
            Reply::Declined(reason) => Self::Declined(reason),
            // Without a word of RDMA: servers that refuse headers which they do not know, among others.
            Reply::Failed(_) if head.status == 501 => Self::Declined(Reason::Unsaid),
            Reply::Failed(_) => Self::Refused,
            Reply::Unknown => Self::Unknown,
            Reply::Wrong(why) => Self::Wrong(why),
        }
    }

    fn of_read(head: &ReplyHead, sum: Option<u64>, expected: &Expected) -> Self {
        let (range, etag) = (head.header("content-range"), head.header("etag"));
        let is_of_range = match expected.content_range.as_deref() {
            Some(ours) => head.status == 206 && range == Some(ours),
            None => head.status == 200,
        };
        if !is_of_range {
            return Self::Wrong("the bytes of another range");
        }
        match (expected.etag.as_deref(), etag) {
            (Some(_), None) => Self::Wrong("there is no ETag"),
            (Some(ours), Some(theirs)) if ours != theirs => Self::Replaced,
            // Some servers send the checksum of all bytes with a range.
            _ => Self::Moved(sum.filter(|_| expected.content_range.is_none())),
        }
    }

    fn of_write(sum: Option<u64>, expected: &Expected) -> Self {
        match (expected.sum, sum) {
            (Some(_), None) => Self::Unknown,
            (Some(ours), Some(theirs)) if ours != theirs => Self::Wrong("the checksum of other bytes"),
            _ => Self::Moved(None),
        }
    }
}
