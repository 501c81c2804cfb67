//! Calls: a request, and where its reply goes.

use std::fmt;
use std::sync::Arc;

use forebay_error::Result;
use forebay_source::HostRange;

/// The method of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Method {
    Get,
    Head,
    Put,
    Post,
    Delete,
}

/// A request to S3, before it is signed. Nothing in it is percent-encoded.
#[derive(Clone)]
pub(crate) struct Ask {
    pub(crate) method: Method,
    /// Empty: the list of buckets.
    pub(crate) bucket: String,
    /// Empty: the bucket.
    pub(crate) key: String,
    /// Names and values; a name without a value has an empty one.
    pub(crate) query: Vec<(String, String)>,
    /// Further headers, their names in lower case: `range`, `if-match`, `x-amz-checksum-crc64nvme`, ….
    pub(crate) headers: Vec<(String, String)>,
}

impl fmt::Debug for Ask {
    /// A token of RDMA is a key to memory, so headers show their names alone.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { method, bucket, key, query, headers } = self;
        let names: Vec<_> = headers.iter().map(|(name, _)| name).collect();
        let mut shown = f.debug_struct("Ask");
        shown.field("method", method).field("bucket", bucket).field("key", key).field("query", query);
        shown.field("headers", &names).finish()
    }
}

impl Ask {
    /// Whether the server may work for minutes before it answers: it copies bytes, or makes an object of its parts.
    pub(crate) fn takes_long(&self) -> bool {
        let is_copy = self.headers.iter().any(|(name, _)| name == "x-amz-copy-source");
        is_copy || self.is_post("uploadId")
    }

    /// Whether a second attempt leaves another upload: who sends it again has to know that.
    pub(crate) fn begins_upload(&self) -> bool {
        self.is_post("uploads")
    }

    /// Whether it is not sent again by itself where a kept connection is closed: a second attempt would leave another upload, or the server
    /// may still be moving bytes for the first, or have paired the queue pair that it names.
    pub(super) fn is_sent_once(&self) -> bool {
        let is_rdma = self.headers.iter().any(|(name, _)| name.starts_with("x-amz-rdma-"));
        self.begins_upload() || is_rdma || (self.bucket.is_empty() && self.key.starts_with(".forebay/rdma/"))
    }

    fn is_post(&self, parameter: &str) -> bool {
        self.method == Method::Post && self.query.iter().any(|(name, _)| name == parameter)
    }
}

/// The body of a request.
#[derive(Clone, Debug)]
pub(crate) enum Body {
    None,
    Bytes(Arc<[u8]>),
    /// Memory of the caller, valid and untouched until the call ends.
    Memory(HostRange),
}

impl Body {
    /// Bytes of it.
    pub(crate) fn len(&self) -> usize {
        match self {
            Self::None => 0,
            Self::Bytes(bytes) => bytes.len(),
            Self::Memory(memory) => memory.len,
        }
    }

    /// The bytes.
    ///
    /// # Safety
    /// The call has not ended.
    pub(crate) unsafe fn bytes(&self) -> &[u8] {
        match self {
            Self::None => &[],
            Self::Bytes(bytes) => bytes,
            // SAFETY: passed on.
            Self::Memory(memory) => unsafe { memory.bytes() },
        }
    }
}

/// Who makes the heads of requests.
pub(crate) trait Heads: Send + Sync + fmt::Debug {
    /// Whether [`Heads::head`] has its keys and does not wait. Cheap; called before each head.
    fn are_keys_at_hand(&self) -> bool;

    /// The head of a request as it is sent, signed by the keys and the time of now, with `host` and `content-length`, and the empty
    /// line behind it. May wait for keys.
    fn head(&self, ask: &Ask, body: &Body) -> Result<Vec<u8>>;
}

/// The head of a reply.
#[derive(Clone, Debug)]
pub(crate) struct ReplyHead {
    pub(crate) status: u16,
    /// Names in lower case.
    pub(crate) headers: Vec<(String, String)>,
    /// Bytes of the body, where the head says it.
    pub(crate) length: Option<u64>,
}

impl ReplyHead {
    /// The first header of this name, which is in lower case.
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(found, _)| found == name).map(|(_, value)| value.as_str())
    }
}

/// Where a reply goes. Its functions are called on a thread of the network and must not wait. After [`Sink::end`] nothing touches
/// memory of the call, also where it ended with an error.
pub(crate) trait Sink: Send {
    /// The final head came (no 1xx). An error ends the call.
    fn head(&mut self, head: ReplyHead) -> Result<()>;

    /// Where the next bytes of the body are received; [`Room::Later`] pauses the connection until [`Resume::resume`].
    fn room(&mut self) -> Room;

    /// Whether the reply is still wanted; asked when the call goes on. If not, the call ends well, and its connection is closed.
    fn is_wanted(&self) -> bool {
        true
    }

    /// This number of bytes of the body came to the room, without encoding of transfer.
    fn filled(&mut self, bytes: usize);

    /// The call has ended: the whole body came, or an error. Called once.
    fn end(self: Box<Self>, result: Result<()>);
}

/// Where bytes of a body are received.
pub(crate) enum Room {
    /// Memory that is valid and untouched until it was filled or the call ends.
    Memory(HostRange),
    /// There is none yet.
    Later,
    /// Nobody wants the rest: the connection is closed, or the rest is read over where it is short. The call ends well.
    Enough,
}

/// Has a paused call go on. Cheap, from any thread, also after its call has ended.
pub(crate) trait Resume: Send + Sync {
    fn resume(&self);
}
