//! Whether a reply is believed.

use forebay_s3_rdma::{Asked, Reason, Reply};

use crate::wire::call::ReplyHead;

/// What a reply has to say beside the words of RDMA, where it says it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Expected {
    /// The ETag of the object.
    pub(crate) etag: Option<String>,
    /// `bytes START-END/LENGTH`.
    pub(crate) content_range: Option<String>,
}

/// What a reply means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// The bytes are where they belong.
    Moved,
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
            Reply::Done(_) => Self::of_moved(head, expected),
            Reply::Declined(Reason::Session) => Self::SessionLost,
            Reply::Declined(reason) => Self::Declined(reason),
            // Without a word of RDMA: servers that refuse headers which they do not know, among others.
            Reply::Failed(_) if head.status == 501 => Self::Declined(Reason::Unsaid),
            Reply::Failed(_) => Self::Refused,
            Reply::Unknown => Self::Unknown,
            Reply::Wrong(why) => Self::Wrong(why),
        }
    }

    fn of_moved(head: &ReplyHead, expected: &Expected) -> Self {
        let differs = |name, ours: &Option<String>| {
            ours.as_deref().zip(head.header(name)).is_some_and(|(ours, theirs)| ours != theirs)
        };
        if differs("content-range", &expected.content_range) {
            return Self::Wrong("the bytes of another range");
        }
        if differs("etag", &expected.etag) {
            return Self::Replaced;
        }
        Self::Moved
    }
}
