//! Connections: calls under way on them, sent again when they are lost, parked when the server asks for it.

mod base;
mod call;
mod call_region;
mod input;
mod link;
mod liveness;
mod outcome;
mod queue;
mod rdma;
mod rdma_link;
mod read_reply;
mod replies;
mod signal;
mod table;
mod tcp;
mod waiting;

pub(crate) use base::SharedWires;
pub use rdma_link::takes_rdma;
pub(crate) use rdma_link::{try_out, try_out_at};
