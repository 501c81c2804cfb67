//! Connections: calls under way on them, sent again when they are lost, parked when the server asks for it.

mod base;
mod call_region;
mod input;
mod liveness;
mod queue;
mod rdma;
mod read_reply;
mod replies;
mod signal;
mod table;
mod tcp;
mod waiting;

pub(crate) use base::Shared;
pub use rdma::takes_rdma;
pub(crate) use rdma::{try_out, try_out_at};
