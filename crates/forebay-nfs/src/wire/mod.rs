//! Connections: calls under way on them, sent again when they are lost, parked when the server asks for it.

mod base;
mod input;
mod rdma;
mod read_reply;
mod shared;
mod table;
mod tcp;

pub(crate) use rdma::try_out;
pub(crate) use shared::Shared;
