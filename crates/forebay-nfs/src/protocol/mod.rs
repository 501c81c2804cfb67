//! What travels: written and read without allocation. Nothing here opens a connection.

pub mod handle;
pub mod io_call;
pub mod rdma;
pub mod rpc;
pub mod status;
pub mod v3;
pub mod v4;
pub mod xdr;
