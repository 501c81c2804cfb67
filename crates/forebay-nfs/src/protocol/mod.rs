//! Messages of the protocols: written and read without allocation, except names of directories. Nothing here opens a
//! connection.

pub mod handle;
pub mod io_call;
pub mod new_file;
pub mod rdma;
pub mod read_dir;
pub mod rpc;
pub mod status;
pub mod v3;
pub mod v4;
pub mod xdr;
