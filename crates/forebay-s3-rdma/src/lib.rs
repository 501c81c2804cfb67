//! Dialects of S3 over RDMA: what a client and a server write into HTTP heads so that the bytes go by RDMA. Codecs alone: no
//! sockets, no verbs calls. docs/reference/s3-rdma.md describes what is spoken.
//!
//! | module | dialect | client | server |
//! |---|---|---|---|
//! | [`rc1`] | forebay's: one request a transfer, on a kept session | yes | yes |
//! | [`hipobj`] | `hipobj-rc-v2` of AMD's hipObject, also versitygw's: two requests and a queue pair a transfer | codec | yes |
//! | [`Dialect`] | all that are known by their tokens | never sent | declined: the bytes go by the body |
//!
//! A token names memory that a peer may write to: its `Debug` hides address and key, and it has no `Display`.

mod dialect;
pub mod headers;
mod hex;
pub mod hipobj;
pub mod rc1;
mod refusal;
mod reply;
mod sum;

pub use dialect::Dialect;
pub use refusal::Refusal;
pub use reply::{Asked, Moved, Operation, Reason, Reply};
pub use sum::{sum_of_text, text_of_sum};
