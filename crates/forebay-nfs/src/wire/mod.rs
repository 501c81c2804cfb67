//! Connections: calls under way on them, sent again when they are lost, parked when the server asks for it.

mod base;
mod input;
mod rdma;
mod table;
mod tcp;

pub(crate) use base::Shared;
pub(crate) use rdma::try_out;
