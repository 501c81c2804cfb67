//! What goes wrong on demand.

use std::time::Duration;

/// A request to the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Asked {
    /// GetObject.
    Get,
    /// HeadObject.
    Head,
    /// PutObject.
    Put,
    /// DeleteObject.
    Delete,
    /// DeleteObjects.
    DeleteMany,
    /// CopyObject.
    Copy,
    /// GetObjectTagging.
    Tags,
    /// ListObjects, ListObjectsV2.
    List,
    /// ListBuckets.
    Buckets,
    /// HeadBucket.
    HeadBucket,
    /// CreateBucket.
    MakeBucket,
    /// DeleteBucket.
    DeleteBucket,
    /// GetBucketLocation.
    Location,
    /// CreateMultipartUpload.
    Create,
    /// UploadPart, UploadPartCopy.
    Part,
    /// ListParts.
    Parts,
    /// CompleteMultipartUpload.
    Complete,
    /// AbortMultipartUpload.
    Abort,
    /// ListMultipartUploads.
    Uploads,
    /// Anything else.
    Other,
}

/// A request as faults see it.
#[derive(Clone, Debug)]
pub struct Seen {
    /// The request.
    pub asked: Asked,
    /// Requests of this kind that came before it.
    pub before: u64,
    /// The connection, counted from 0.
    pub connection: u64,
    /// The bucket.
    pub bucket: String,
    /// The key, decoded.
    pub key: String,
    /// `Range` as it came.
    pub range: Option<String>,
    /// The number of a part.
    pub part: Option<u32>,
}

/// Where a reply is cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// Before its head.
    BeforeHead,
    /// Behind this many bytes of its head.
    InHead(usize),
    /// Between head and body.
    BehindHead,
    /// Behind this many bytes of its body.
    InBody(u64),
}

/// What goes wrong with a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fault {
    /// An error with this status and code, and perhaps `Retry-After` in seconds. The request is not carried out.
    Error(u16, &'static str, Option<u32>),
    /// The request is carried out, and an error is its reply.
    LateError(u16, &'static str),
    /// A redirect with a region, unless that is empty, and perhaps another endpoint (`http://127.0.0.1:1`).
    Redirect(u16, &'static str, Option<String>),
    /// The connection is closed there.
    Cut(Place),
    /// The connection is reset there.
    Reset(Place),
    /// The body has this many bytes less, and its length is that.
    Short(u64),
    /// The body has this many bytes more, and its length is that.
    Long(u64),
    /// This many bytes come behind the reply.
    Behind(usize),
    /// The body's byte there is another.
    Flip(u64),
    /// This is the header's value.
    Header(&'static str, String),
    /// The header is missing.
    Without(&'static str),
    /// A range begins this many bytes later, as its head says.
    Shifted(u64),
    /// 200 and the whole object for a range.
    Whole,
    /// A range's reply has the checksum of the whole object.
    WholeChecksum,
    /// The body comes in chunks of this many bytes, with extensions and a trailer.
    Chunked(usize),
    /// The same, and the line of a later chunk is this one.
    BadChunk(&'static str),
    /// Neither a length nor chunks: the body ends with the connection.
    UntilClose,
    /// Replies with these statuses come before.
    Interim(&'static [u16]),
    /// A header of this many bytes is in the head.
    LongHead(usize),
    /// `Connection: close`, and it is closed.
    Close,
    /// It is closed behind the reply without a word.
    CloseQuietly,
    /// The reply begins this much later; the request was carried out.
    Late(Duration),
    /// The body comes this many bytes at a time, one in so long.
    Slow(usize, Duration),
    /// The connection is silent for so long, behind this many bytes of the body.
    Pause(u64, Duration),
    /// The body of the request is received this many bytes at a time, one in so long.
    SlowRequest(usize, Duration),
    /// The reply comes before the body of the request, and the connection is closed.
    EarlyError(u16, &'static str),
    /// An object or a part of 0 bytes is stored, with 200 and the ETag of all.
    Forget,
    /// Before the request is carried out, its object is replaced by these bytes.
    Replace(Vec<u8>),
    /// 200, and a body with this error.
    ErrorInBody(&'static str),
    /// A listing has pages of this many entries.
    Page(usize),
    /// The reply has this status and these bytes.
    Body(u16, Vec<u8>),
    /// The reply is these bytes, and the connection is closed.
    Raw(Vec<u8>),
}

/// Decides what goes wrong.
pub type Faults = Box<dyn FnMut(&Seen) -> Option<Fault> + Send>;
