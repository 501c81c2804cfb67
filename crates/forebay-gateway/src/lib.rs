//! An S3 server over a directory: buckets are directories, keys are paths, and all state lies in the file system, so that any number
//! of gateways over one mount serve the same objects.
//!
//! - `store`: what the server needs of the place where objects lie; `posix` is the one over a directory.
//! - `accounts`: who may ask, and what is theirs; `directory`: their stores below one directory.
//! - `front`: S3's operations over a store.
//! - `rdma`: sessions by which NICs move the bytes.
//! - `server`: connections, their limits, TLS, the access log, figures.

mod accounts;
mod directory;
mod front;
mod hex;
mod lane;
pub mod posix;
mod rdma;
mod server;
pub mod store;
mod sweeper;
mod threads;
mod warn;

#[cfg(feature = "fuzz")]
pub use server::fuzz;

pub use accounts::{AccountEntry, Accounts, OpenStore, read_accounts};
pub use directory::in_directory;
pub use rdma::RdmaOptions;
pub use server::{Limits, Server, ServerOptions, Stop, TlsFiles};
