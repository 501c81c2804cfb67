//! Objects by RDMA: a server writes the bytes of a GET into registered memory of this process, and those of a PUT come from there. Requests
//! and replies go by HTTP, without a body.
//!
//! | file | what it has |
//! |---|---|
//! | `fabric` | the RDMA devices of this process, or those of a test |
//! | `reached` | the way to a server: a NIC, and HTTP to one address |
//! | `peer` | the server of an endpoint: whether it takes RDMA, and by which dialect |
//! | `lanes` | operations that wait, and the threads that do them |
//! | `operation`, `memory` | a request, and the memory of its bytes |
//! | `call` | calls that a thread waits for |
//! | `dialect` | what dialects have in common |
//! | `rc1`, `session`, `verdict` | forebay's: its sessions, and whether a reply is believed |
//! | `hipobj` | hipobj-rc-v2 |
//! | `wanted` | what a server is asked for to find out |

mod call;
mod dialect;
mod fabric;
mod hipobj;
mod lanes;
mod memory;
mod operation;
mod peer;
mod rc1;
mod reached;
mod session;
mod verdict;
mod wanted;

#[doc(hidden)]
pub use fabric::use_fabric;
pub(crate) use operation::{Expected, MemoryOf, NotMoved, Operation};
pub(crate) use peer::RdmaPeer;
pub(crate) use wanted::Wanted;

/// Fewer bytes go by HTTP, unless RDMA is required. Chosen: over a fabric in the process a byte is cheaper by RDMA, too, but that registers
/// memory for nothing.
pub(crate) const SMALLEST: u64 = 256 << 10;
