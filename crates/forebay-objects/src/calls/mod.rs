//! Operations of S3 that are waited for.
//!
//! | file | what it has |
//! |---|---|
//! | `bucket` | a bucket, and the calls for its objects: heads, puts, removals |
//! | `first` | an object's head and its first bytes, by one call |
//! | `list` | listings of buckets, objects and unfinished uploads, page by page |
//! | `multipart` | the calls of multipart uploads, and copies within servers |
//! | `upload` | new objects that are written at any offset |
//! | `etag` | ETags that conditions can have, and the error where one changed |
//! | `content_range` | which bytes a reply has |
//! | `checked` | checksums of whole objects, while they come |
//! | `checksum` | CRC-64/NVME of parts and objects |
//! | `examine` | why objects cannot be reached, for `forebay doctor` |
//! | `exchange` | a call and its whole reply, sent again where that helps |
//! | `refusal` | what a server refuses, as an error with a hint |
//! | `sites` | reads of a bucket that several sites have |
//! | `time` | times of servers |

mod bucket;
pub(crate) mod checked;
pub(crate) mod checksum;
mod content_range;
pub(crate) mod etag;
mod examine;
mod exchange;
#[cfg(test)]
mod expiry_tests;
mod first;
#[cfg(feature = "fuzz")]
pub(crate) mod fuzz;
mod list;
mod multipart;
#[cfg(test)]
mod outage_tests;
mod refusal;
pub(crate) mod sites;
#[cfg(test)]
mod tests;
mod time;
pub(crate) mod upload;

pub use bucket::{Bucket, ObjectHead};
pub(crate) use content_range::content_range;
pub use examine::{ObjectFinding, Weight, examine};
pub use list::{List, Listed, ListedObject, buckets};
pub(crate) use multipart::kept_headers;
pub(crate) use refusal::{Refusal, refusal};
pub(crate) use upload::ObjectUpload;
