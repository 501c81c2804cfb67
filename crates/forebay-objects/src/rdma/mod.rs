//! Objects by RDMA: a server writes the bytes of a GET into registered memory of this process, and reads those of a PUT from there.
//! Requests and replies go by HTTP, without a body.
//!
//! | file | what it has |
//! |---|---|
//! | `fabric` | the RDMA devices of this process, or those of a test |
//! | `peer` | the server of an endpoint: whether it takes RDMA, its sessions, operations that wait for one |
//! | `connect` | makes sessions |
//! | `session` | a connection that is paired with the server's end |
//! | `operation` | a request on its way, and its memory |
//! | `verdict` | whether a reply is believed |
//! | `memory` | host memory that is registered for one operation |

mod connect;
mod fabric;
mod memory;
mod operation;
mod peer;
mod session;
mod verdict;

#[doc(hidden)]
pub use fabric::use_fabric;
pub(crate) use operation::{Expected, MemoryOf, NotMoved, Operation};
pub(crate) use peer::RdmaPeer;

/// Fewer bytes go by HTTP, unless RDMA is required. Chosen: over a fabric in the process a byte is cheaper by RDMA, too, but that registers
/// memory for nothing.
pub(crate) const SMALLEST: u64 = 256 << 10;
